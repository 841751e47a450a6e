"""Versions that a Delta table gets while a job runs, and the data files that they add or change (S4.3)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import pyarrow as pa

from tidegate.clock import steady_clock
from tidegate.connectors.delta.log.log_files import LogEntry, LogFiles, LogListing
from tidegate.connectors.delta.log.table_metadata import TableMetadata
from tidegate.connectors.delta.log.table_state import TableState, commit_time_ms, state_of
from tidegate.connectors.delta.source.file_rows import FilePart
from tidegate.connectors.delta.source.table_selection import PartitionFilter, TableSelection, schema_problem
from tidegate.connectors.delta.source.version_changes import TableFacts, VersionChanges
from tidegate.connectors.interface import Discovery, Split, SplitEnumerator
from tidegate.errors import OutageError, PipelineError, TidegateError

logger = logging.getLogger("tidegate.connectors")

OnRewrite = Literal["refuse", "ignore"]
"""Action at a version that removes or rewrites rows."""
OnNewColumns = Literal["refuse", "ignore"]
"""Action at a version that adds columns to the table."""
Start = Literal["all", "new"]
"""Which rows a source that follows a table reads first; see `DeltaTable`."""

SPLITS_PER_SEARCH = 1_000
"""Most splits that one search returns."""
VERSIONS_PER_SEARCH = 1_000
"""Most log entries that one search reads, so that a search of many small versions ends."""
HOUR_MS = 3_600_000
"""Times until which files stay are rounded down to hours: two searches of an unchanged table find equal splits."""
FILES_PER_CHANGE_SPLIT = 200
"""Most data files of a split of change rows. A snapshot contains them until the split is read to its end."""


class TableEnumerator(SplitEnumerator):
    """Reads the log of a table, one entry after the other, and returns the data files as splits.

    Its state is a version and the number of its files that were returned, with facts about the table. For change rows a
    split holds the files of several versions, and there is one split at a time, because changes have an order.
    """

    def __init__(
        self,
        selection: TableSelection,
        table: pa.Schema,
        state: Mapping[str, Any] | None,
        *,
        start: Start = "all",
        on_rewrite: OnRewrite = "refuse",
        on_new_columns: OnNewColumns = "refuse",
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """Create it.

        Args:
            table: the table's columns when the job was first built.
            state: see `Source.create_enumerator`.
        """
        self._selection = selection
        self._table = table
        self._start = start
        self._on_rewrite = on_rewrite
        self._refuse_new = on_new_columns == "refuse" and not selection.columns
        self._now_ms = now_ms or steady_clock()
        self._log = selection.log()
        self._facts: TableFacts | None = None
        self._version, self._returned, self._base_ms = -1, 0, 0
        self._is_whole, self._is_done = False, True
        self._parts: Iterator[FilePart] | None = None
        self._prefix = ""
        self._stamp: tuple[int, int] | None = None
        self._is_checked = state is None
        if state is not None:
            self._facts = TableFacts.from_json(state["facts"])
            self._version, self._returned, self._base_ms = state["version"], state["returned"], state["base_ms"]
            self._is_whole, self._is_done = state["whole"], state["done"]

    def discover(self) -> Discovery:
        """Return the files of the next versions.

        Raises:
            OutageError: the storage does not answer.
            PipelineError: a version cannot be read.
        """
        found: list[Split] = []
        try:
            more = self._search(found)
        except TidegateError:
            if not found:
                raise
            more = True  # the next search reports the error, after the splits before it
        return Discovery(found, self._state(), more=more, readable_until_ms=self._until_ms(caught_up=not more))

    def problem(self) -> str | None:
        """Return why the versions after the state can no longer be read; None: they can. Returns no splits.

        Raises:
            OutageError: the storage does not answer.
        """
        try:
            with self._reading():
                self._check_log()
                if not self._is_done:
                    self._planned()
        except PipelineError as error:
            return error.what_and_why
        return None

    def _search(self, found: list[Split]) -> bool:
        with self._reading():
            if self._facts is None:
                self._begin()
            self._check_log()
            return self._change_splits(found) if self._selection.changes else self._file_splits(found)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            with self._log.answering():
                yield
        except FileNotFoundError as e:
            # The next search finds out whether it will come back.
            raise OutageError(
                "a file of the Delta table's log was removed while it was read", where=self._selection.url, cause=str(e)
            ) from e

    def _state(self) -> dict[str, Any]:
        return {
            "version": self._version,
            "returned": self._returned,
            "done": self._is_done,
            "whole": self._is_whole,
            "base_ms": self._base_ms,
            "facts": self._known.to_json(),
        }

    @property
    def _known(self) -> TableFacts:
        assert self._facts is not None, "the first search has begun"
        return self._facts

    def _until_ms(self, *, caught_up: bool) -> int | None:
        """Return until when all later entries, and the files that they name, certainly exist.

        A file of a version may be removed by the version after it, and is deleted after the retention.
        """
        kept = (self._known.file_retention_ms, self._known.log_retention_ms)
        if kept[0] is None or kept[1] is None:
            return None
        return (self._now_ms() if caught_up else self._base_ms) + min(kept[0], kept[1])

    # ------------------------------------------------------------ splits

    def _file_splits(self, found: list[Split]) -> bool:
        """Add a split for each file. Return whether there may be more."""
        for _ in range(VERSIONS_PER_SEARCH):
            while len(found) < SPLITS_PER_SEARCH:
                part = self._take()
                if part is None:
                    break
                found.append(self._split(f"{self._prefix}{part.file.path}", [part]))
            else:
                return True
            if not self._advance():
                return False
        return True

    def _change_splits(self, found: list[Split]) -> bool:
        """Add one split with changes of one version, in their order. Return whether there may be more."""
        for _ in range(VERSIONS_PER_SEARCH):
            first = self._returned
            parts: list[FilePart] = []
            try:
                while len(parts) < FILES_PER_CHANGE_SPLIT and (part := self._take()) is not None:
                    parts.append(part)
            finally:  # also before an error: they count as returned
                if parts:
                    found.append(self._split(f"{self._version}:{first}", parts))
            if parts:
                return True
            if not self._advance():
                return False
        return True

    def _split(self, name: str, parts: list[FilePart]) -> Split:
        return split_of(name, parts, self._known, self._base_ms)

    def _take(self) -> FilePart | None:
        """Return the next file of the present version; None: all were returned."""
        if self._is_done:
            return None
        try:
            if self._parts is None:
                self._parts = self._planned()
            part = next(self._parts, None)
        except BaseException:
            self._parts = None  # a generator that has failed would look as if it had ended
            raise
        if part is None:
            self._is_done, self._parts = True, None
        else:
            self._returned += 1
        return part

    def _planned(self) -> Iterator[FilePart]:
        """Yield the files of the present version that were not returned: after a restore, or after an error."""
        if self._is_whole:
            return self._whole(state_of(self._log, self._version))
        entry = self._log.entry(self._version)
        if entry is None:
            raise self._gone("its log entry was cleaned up before all its files were returned")
        return self._later(VersionChanges.of(entry, self._known, self._filter), self._known)

    def _whole(self, state: TableState) -> Iterator[FilePart]:
        return _after(self._returned, whole_version(self._log, state, self._filter))

    def _later(self, changes: VersionChanges, facts: TableFacts) -> Iterator[FilePart]:
        # Only a restored table gets earlier files again, whose first splits may still be read.
        self._prefix = f"{changes.entry.version}:" if changes.operation == "RESTORE" else ""
        if self._selection.changes:
            return _after(self._returned, changes.changed(self._filter, facts, self._selection.url))
        if changes.removed:
            return iter(())  # `_check_version` has refused it, or it is ignored
        return _after(self._returned, changes.appended(self._filter))

    @property
    def _filter(self) -> PartitionFilter:
        return PartitionFilter(self._selection, self._table, self._known.names)

    # ------------------------------------------------------------ versions

    def _begin(self) -> None:
        """Choose the first version."""
        listing = self._log.listed()
        whole = self._start == "all"
        state = self._selection.start(self._log, files=whole, listing=listing)
        self._check_schema(state.metadata, state.version)
        base_ms = stays_from_ms(listing, state.version, self._now_ms())
        self._facts, self._version, self._base_ms = TableFacts.of(state.metadata), state.version, base_ms
        self._is_whole, self._is_done = whole, not whole
        self._parts = self._whole(state) if whole else None

    def _advance(self) -> bool:
        """Go to the next version. Return False if there is none. Changes nothing if it raises."""
        entry = self._log.entry(self._version + 1)
        if entry is None:
            return False
        changes = VersionChanges.of(entry, self._known, self._filter)
        self._check_version(changes)
        facts = changes.facts(self._known)
        self._facts, self._version, self._base_ms = facts, entry.version, entry.written_ms
        self._returned, self._is_whole, self._is_done = 0, False, False
        self._stamp = entry.stamp
        self._parts = self._later(changes, facts)
        return True

    def _check_version(self, changes: VersionChanges) -> None:
        version = changes.entry.version
        where = f"{self._selection.url}, version {version}"
        if changes.metadata is not None:
            if changes.metadata.table_id != self._known.table_id:
                raise self._replaced()
            self._selection.check(changes.metadata, where)
            self._check_schema(changes.metadata, version)
        elif changes.protocol is not None:
            TableMetadata(self._known.table_id, (), (), {}, changes.protocol).check_readable(where)
        if not changes.removed or self._selection.changes:
            return
        what = f"version {version} of the Delta table ({changes.operation})"
        if self._on_rewrite == "refuse":
            raise PipelineError(
                f"{what} removes or rewrites rows",
                where=self._selection.url,
                cause=f"it removes {changes.removed} data files, and adds {changes.added}; a source that follows a "
                "table reads appended rows only",
                remedy='Set on_rewrite="ignore" to skip such versions, or changes=True to read what they change',
            )
        logger.warning(
            "%s, %s, is ignored: rows of its %d removed files may have been read, rows of its %d added files are not",
            what,
            self._selection.url,
            changes.removed,
            changes.added,
        )

    def _check_schema(self, metadata: TableMetadata, version: int) -> None:
        check_schema(self._selection, self._table, metadata, version, refuse_new=self._refuse_new)

    # ------------------------------------------------------------ the log itself

    def _check_log(self) -> None:
        """Check that the log is the one that was read, and that its next entry is not cleaned up."""
        if not self._is_checked:
            now = state_of(self._log, files=False)
            if now.metadata.table_id != self._known.table_id:
                raise self._replaced()
            self._is_checked = True
        here: LogEntry | None = self._log.entry(self._version)
        if here is not None:
            if self._stamp not in (None, here.stamp):
                raise self._replaced()
            self._stamp = here.stamp
            return
        listing = self._log.listed()
        if listing.latest is None or listing.latest < self._version:
            raise self._replaced()
        if listing.latest > self._version and self._version + 1 not in listing.entries:
            raise self._gone(f"log entries after it are cleaned up; the oldest is {min(listing.entries, default='-')}")

    def _replaced(self) -> PipelineError:
        return PipelineError(
            f"the Delta table is not the one that was read up to version {self._version}",
            where=self._selection.url,
            cause="it was dropped and created again, or restored from a copy",
            remedy="Start the job fresh",
        )

    def _gone(self, cause: str) -> PipelineError:
        return PipelineError(
            f"the Delta table can no longer be followed from version {self._version}",
            where=self._selection.url,
            cause=cause,
            remedy="Start the job fresh; and keep log entries longer than the job may be late or stopped: set "
            "delta.logRetentionDuration",
        )


def split_of(name: str, parts: Sequence[FilePart], facts: TableFacts, base_ms: int) -> Split:
    """Return a split of data files. Args: base_ms: a time at which the table certainly had them."""
    data: dict[str, Any] = {"files": [part.to_json() for part in parts]}
    if facts.names is not None:
        data["names"] = facts.names
    if facts.file_retention_ms is not None:
        data["until_ms"] = base_ms + facts.file_retention_ms
    return Split(name, data, weight=max(1, sum(part.file.size_bytes for part in parts)))


def stays_from_ms(listing: LogListing, version: int, now_ms: int) -> int:
    """Return a time at which a table certainly had the files of a version: the next one may have removed them."""
    return listing.entries.get(version + 1, now_ms // HOUR_MS * HOUR_MS)


def whole_version(log: LogFiles, state: TableState, chosen: PartitionFilter) -> Iterator[FilePart]:
    """Yield all data files of a version that are read, in the order of their paths."""
    entry = log.entry(state.version)
    time_ms = 0 if entry is None else commit_time_ms(entry.actions(("commitInfo",)), entry.written_ms)
    for file in chosen.of(state.data_files()):
        yield FilePart(state.version, time_ms, file)


def check_schema(
    selection: TableSelection, table: pa.Schema, metadata: TableMetadata, version: int, *, refuse_new: bool
) -> None:
    """Check that a version has the columns that a job reads.

    Args:
        table: the table's columns when the job was first built.
        refuse_new: also refuse columns that the table has got since.

    Raises:
        PipelineError: with the column.
    """
    needed = dict.fromkeys((*(selection.columns or table.names), *selection.partitions))
    job = pa.schema([table.field(name) for name in needed])
    problem = schema_problem(job, metadata, refuse_new=refuse_new)
    if problem is not None:
        raise PipelineError(
            "the columns of the Delta table have changed",
            where=f"{selection.url}, version {version}",
            cause=problem,
            remedy='Set on_new_columns="ignore" to go on without them; or start the job fresh to read them'
            if problem.startswith("columns were added")
            else "Start the job fresh, with a pipeline for the new columns",
        )


def _after(returned: int, parts: Iterator[FilePart]) -> Iterator[FilePart]:
    for number, part in enumerate(parts):
        if number >= returned:
            yield part
