"""The sink of docs/connectors/custom-sinks.md passes the suite that the page names; a faulty one is reported."""

from __future__ import annotations

import itertools
import json
import os
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tidegate.connectors.interface import Sink, SinkWriter
from tidegate.connectors.transactions import Committable, SinkContext, check_writer, is_leftover, transaction_id
from tidegate.errors import TidegateError
from tidegate.testing import SinkConformance

_PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "custom-sinks.md"
_NAMES: dict[str, Any] = {
    "Committable": Committable,
    "Path": Path,
    "Sink": Sink,
    "SinkConformance": SinkConformance,
    "SinkWriter": SinkWriter,
    "TidegateError": TidegateError,
    "check_own": check_writer,
    "is_leftover": is_leftover,
    "itertools": itertools,
    "json": json,
    "os": os,
    "partial": partial,
    "pytest": pytest,
    "transaction_id": transaction_id,
}
for _block in re.findall(r"```python\n(.*?)```", _PAGE.read_text(encoding="utf-8"), flags=re.DOTALL):
    if "class Lines" in _block or "class TestLines" in _block:
        exec(compile(_block, str(_PAGE), "exec"), _NAMES)

if TYPE_CHECKING:
    Documented = SinkConformance
else:
    Documented = _NAMES["TestLines"]


class TestLines(Documented):
    """As it is shown."""


class Faulty(SinkConformance):
    """Not collected: its tests are called by those below."""

    def __init__(self, folder: Path, writer: type[Any]) -> None:
        self.folder, self.writer = folder, writer

    def make_sink(self, fresh: bool) -> Sink:
        made: Sink = _NAMES["Lines"](self.folder)
        made.create_writer = lambda ctx: self.writer(self.folder, ctx)  # type: ignore[method-assign]
        return made

    def visible(self) -> list[int]:
        return [json.loads(line)["n"] for file in self.folder.glob("shown/*") for line in file.open()]


def test_a_sink_that_forgets_what_it_committed_is_shown_the_rows_that_came_twice(tmp_path: Path) -> None:
    """S7.4: also where the suite is not a test module of its own."""

    class Forgets(_NAMES["LinesWriter"]):  # type: ignore[misc]
        def commit(self, committables: list[Committable]) -> None:
            for handle in committables:
                again = f"{handle.transaction_id}-{len(list(self.shown.iterdir()))}"
                (self.shown / again).write_bytes((self.staged / handle.transaction_id).read_bytes())

    with pytest.raises(AssertionError, match=re.escape("[0, 0, 0, 1, 1, 1")):
        Faulty(tmp_path, Forgets).test_committing_again_changes_nothing()


def test_a_sink_that_raises_what_is_no_error_of_ours_is_told_what_it_raised(tmp_path: Path) -> None:
    """S7.4."""

    class Raises(_NAMES["LinesWriter"]):  # type: ignore[misc]
        def commit(self, committables: list[Committable]) -> None:
            for handle in committables:
                os.replace(self.staged / handle.transaction_id, self.shown / handle.transaction_id)

    with pytest.raises(AssertionError, match="expected a TidegateError, got FileNotFoundError"):
        Faulty(tmp_path, Raises).test_a_transaction_with_neither_marker_nor_data_is_a_loud_failure()


def test_a_sink_with_ids_of_its_own_is_found_out(tmp_path: Path) -> None:
    """S7.8: a verdict could not find what it is about."""

    class Own(_NAMES["LinesWriter"]):  # type: ignore[misc]
        def __init__(self, folder: Path, ctx: SinkContext) -> None:
            super().__init__(folder, ctx)
            self.names = itertools.count()

        def stage(self, rows: list[Any], name: str) -> list[Committable]:
            return [Committable(f"mine-{next(self.names)}", {}) for _ in super().stage(rows, name)]

    with pytest.raises(TidegateError, match="invalid transaction id"):
        Faulty(tmp_path, Own).test_a_handle_tells_who_wrote_it_for_which_checkpoint()
