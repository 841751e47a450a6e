"""Leftovers of a sink with a data source: records, rows and markers that no snapshot needs (S2.3)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from fsspec import AbstractFileSystem

from tidegate.connectors.files.sink.commit_group import CommitGroups
from tidegate.connectors.files.sink.file_leftovers import FileLeftovers, StoredFile
from tidegate.connectors.files.sink.sink_layout import FileLayout, parse_staged_name
from tidegate.connectors.leftovers import ALL_CHECKPOINTS, Leftover, LeftoverReport, NeededTransactions
from tidegate.connectors.pyspark.batch_records import BatchRecords
from tidegate.connectors.pyspark.bounded_sink_writer import ENDED_FOLDER
from tidegate.connectors.pyspark.data_source_writer import WriterCalls
from tidegate.connectors.pyspark.stream_sink_writer import give_up
from tidegate.connectors.transactions import SinkContext


class SinkLeftovers(FileLeftovers):
    """Leftovers of one sink in one job and lineage.

    A batch that no snapshot needs is given up: the class's `abort` is called before its record is removed. Kept rows,
    and records of an end, are needed until the lineage has no snapshot.
    """

    def __init__(
        self,
        filesystem: AbstractFileSystem,
        layout: FileLayout,
        needed: NeededTransactions,
        ctx: SinkContext,
        calls: WriterCalls | None,
    ) -> None:
        """Args: calls: of a stream; None: the class knows nothing of what is removed."""
        super().__init__(filesystem, layout, needed)
        self._calls = calls
        self._groups = CommitGroups(filesystem, layout)
        self._records = BatchRecords(filesystem, layout, ctx)
        self._markers_from = needed.markers_from

    def collect(self, *, dry_run: bool) -> LeftoverReport:
        """Remove the leftovers; with `dry_run`, only report them. Blocks."""
        kept = [one for one in self._kept() if self.is_old(one)]
        report = super().collect(dry_run=dry_run)
        if not dry_run:
            for one in kept:
                with suppress(FileNotFoundError):
                    self._fs.rm_file(one.path)
        return replace(
            report, found=(*report.found, *(Leftover(one.path, "staged", 1, one.size_bytes) for one in kept))
        )

    def _kept(self) -> list[StoredFile]:
        """Return notes of old batches and, of a lineage without snapshots, kept rows and records of ends."""
        found = []
        for one in self.files_in(self._records.adopted_folder):
            name = parse_staged_name(one.name)
            if name is not None and name.file < self._markers_from:
                found.append(one)
        if self._markers_from == ALL_CHECKPOINTS:
            found += self.files_in(f"{self._layout.staging_of_all}/{ENDED_FOLDER}")
            found += [one for one in self.files_in(self._layout.root) if self._layout.published_by(one.name)]
        return found

    def _give_up(self, paths: Sequence[str]) -> None:
        for path in paths if self._calls is not None else ():
            record = self._groups.read(path)
            if record is not None and self._calls is not None and "message" in record.data:
                give_up(self._calls, record, self._records.is_committed)
