"""Suite for sinks without a two-phase commit of each subtask: one commit in the driver, or none at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.connectors.interface import Sink
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.errors import TidegateError
from tidegate.testing.conformance import Conformance
from tidegate.testing.one_sink_job import TestWriter, numbers


class BatchSinkConformance(Conformance, ABC):
    """Subclass it, named `Test...`. Records are batches of one int64 column `n`."""

    folder: Path

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> Iterator[None]:
        self.folder = tmp_path
        yield

    @abstractmethod
    def make_sink(self, fresh: bool) -> Sink:
        """Return the sink. Args: fresh: use a new, empty target, else the target created last."""

    @abstractmethod
    def visible(self) -> list[int] | None:
        """Return what readers see in the target created last; None: the sink stores nothing."""

    def context(self, subtask: int = 0, lineage: str = "lineage-1") -> SinkContext:
        """Return the context of a batch job."""
        return replace(TestWriter(lineage).context(subtask), staging=(str(self.folder / "staging"), {}))

    def prepared(self, sink: Sink, rows: int, lineage: str = "lineage-1") -> list[Committable]:
        """Write rows 0 and 1 in subtask 0, 2 and 3 in subtask 1, and so on; return all handles."""
        handles: list[Committable] = []
        for subtask in range(2):
            writer = sink.create_writer(self.context(subtask, lineage))
            writer.recover(0)
            for first in range(2 * subtask, rows, 4):
                writer.write(numbers(first, min(2, rows - first)))
            writer.end_input()
            handles += writer.prepare_commit(1)()
            writer.close()
        return handles

    def test_all_rows_are_visible_after_the_one_commit_and_none_before(self) -> None:
        """S8.1."""
        sink = self.make_sink(fresh=True)
        handles = self.prepared(sink, 7)
        assert self.visible() in (None, [])
        self.make_sink(fresh=False).create_writer(self.context()).commit(handles)
        assert self.visible() in (None, list(range(7)))

    def test_committing_again_changes_nothing(self) -> None:
        """S7.4: by the driver that repeats a commit."""
        handles = self.prepared(self.make_sink(fresh=True), 5)
        for _ in range(2):
            self.make_sink(fresh=False).create_writer(self.context()).commit(handles)
        assert self.visible() in (None, list(range(5)))

    def test_a_job_without_rows_commits_none(self) -> None:
        """S8.1."""
        handles = self.prepared(self.make_sink(fresh=True), 0)
        self.make_sink(fresh=False).create_writer(self.context()).commit(handles)
        assert self.visible() in (None, [])

    def test_transactions_of_another_lineage_are_refused(self) -> None:
        """S7.4; a sink without handles has none to refuse."""
        handles = self.prepared(self.make_sink(fresh=True), 3, "lineage-2")
        if handles:
            with pytest.raises(TidegateError):
                self.make_sink(fresh=False).create_writer(self.context()).commit(handles)
        assert self.visible() in (None, [])

    def test_it_describes_its_target_and_accepts_the_schema(self) -> None:
        """S7.4: by its identity a fork is refused."""
        sink = self.make_sink(fresh=True)
        sink.check(TestWriter.schema)
        assert sink.identity() == self.make_sink(fresh=False).identity() and str(sink.identity())
