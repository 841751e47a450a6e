"""Snapshots that a table gets while a job runs, and the data files that they add (S4.3)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tidegate.connectors.iceberg.commit_log import is_first
from tidegate.connectors.iceberg.table_reading import TableSelection
from tidegate.connectors.interface import Discovery, Split, SplitEnumerator
from tidegate.errors import PipelineError, TidegateError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

logger = logging.getLogger("tidegate.connectors")

OnOverwrite = Literal["refuse", "ignore"]
"""Action at a snapshot that removes or replaces rows."""
Start = Literal["all", "new"]
"""Which rows a source that follows a table reads first; see `IcebergTable`."""

SPLITS_PER_SEARCH = 1_000
"""Most data files that one search returns."""
SNAPSHOTS_PER_SEARCH = 100
"""Most snapshots whose manifests one search reads; the next search follows at once."""


class TableEnumerator(SplitEnumerator):
    """Returns the data files of a table's first snapshot, then of each append, in order of the snapshots.

    Its state names the last snapshot of which files were returned, and how many of them; None: all. So a restored
    enumerator continues within a snapshot. The files of a snapshot have a fixed order.
    """

    def __init__(
        self,
        selection: TableSelection,
        state: Mapping[str, Any] | None,
        *,
        start: Start = "all",
        on_overwrite: OnOverwrite = "refuse",
    ) -> None:
        """Args: state: see `Source.create_enumerator`."""
        self._selection = selection
        self._start = start
        self._on_overwrite = on_overwrite
        self._is_fresh = state is None
        # The snapshot whose files wait or were returned last; whether all its files are read, and not only added ones.
        self._snapshot: int | None = None if state is None else state["snapshot"]
        self._is_whole: bool = state is not None and state["whole"]
        files = None if state is None else state["files"]
        self._returned: int = files or 0
        self._sequence: int = 0 if state is None else state["sequence"]
        self._waiting: deque[Split] = deque()
        self._is_planned = files is None
        self._catalog: Catalog | None = None

    def discover(self) -> Discovery:
        """Return the next data files.

        Raises:
            OutageError: the catalog or the table's storage does not answer.
            PipelineError: a snapshot removes rows, or snapshots that were not read are expired.
        """
        found: list[Split] = []
        looked = 0
        table: Table | None = None
        try:
            while not self._take(found) and looked < SNAPSHOTS_PER_SEARCH:
                table = table or self._load()
                if not self._plan_next(table):
                    break
                looked += 1
        except TidegateError:
            if not found:
                raise
            looked = SNAPSHOTS_PER_SEARCH  # the splits are returned first; the next search finds the same error
        more = bool(self._waiting) or len(found) >= SPLITS_PER_SEARCH or looked >= SNAPSHOTS_PER_SEARCH
        returned = self._returned if self._waiting or not self._is_planned else None
        state = {"snapshot": self._snapshot, "sequence": self._sequence, "whole": self._is_whole, "files": returned}
        return Discovery(found, state, more=more)

    def problem(self) -> str | None:
        """Return why the snapshots after the state can no longer be read; None: they can. Returns no splits.

        Raises:
            OutageError: the catalog does not answer.
        """
        try:
            table = self._load()
            if not self._is_planned:
                self._snapshot_to_resume(table)
            self._later(table)
        except PipelineError as error:
            return error.what_and_why
        return None

    def _take(self, found: list[Split]) -> bool:
        """Move splits that wait to `found`. Return whether it has enough."""
        while self._waiting and len(found) < SPLITS_PER_SEARCH:
            found.append(self._waiting.popleft())
            self._returned += 1
        return len(found) >= SPLITS_PER_SEARCH

    def close(self) -> None:
        """Close the catalog."""
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None

    def _load(self) -> Table:
        if self._catalog is None:
            self._catalog = self._selection.catalog.open()
        return self._selection.catalog.load(self._catalog, self._selection.table)

    def _plan_next(self, table: Table) -> bool:
        """Plan the next snapshot. Return whether there was one."""
        if not self._is_planned:
            self._resume(table)
            return True
        if self._is_fresh:
            snapshot = self._selection.start(table)
            if snapshot is not None:
                splits = self._selection.splits(table, snapshot) if self._start == "all" else []
                self._begin(snapshot, splits, whole=True)
            self._is_fresh = False
            return True
        later = self._later(table)
        if not later:
            return False
        splits = self._selection.added_splits(table, later[0]) if self._has_rows_to_read(later[0]) else []
        self._begin(later[0], splits, whole=False)
        return True

    def _begin(self, snapshot: Snapshot, splits: Sequence[Split], *, whole: bool) -> None:
        """Continue with a snapshot that is planned: an error before leaves the enumerator as it was."""
        self._snapshot, self._is_whole, self._returned = snapshot.snapshot_id, whole, 0
        self._sequence = snapshot.sequence_number or 0
        self._waiting.extend(splits)

    def _resume(self, table: Table) -> None:
        """Plan the snapshot of a restored state again, without the files that were returned."""
        snapshot = self._snapshot_to_resume(table)
        plan = self._selection.splits if self._is_whole else self._selection.added_splits
        self._waiting.extend(plan(table, snapshot)[self._returned :])
        self._is_planned = True

    def _snapshot_to_resume(self, table: Table) -> Snapshot:
        snapshot = table.snapshot_by_id(self._snapshot) if self._snapshot is not None else None
        if snapshot is None:
            raise self._gone("its data files were not all read before it expired")
        return snapshot

    def _later(self, table: Table) -> Sequence[Snapshot]:
        """Return the snapshots of the branch after the last one, the oldest first."""
        from pyiceberg.table.snapshots import ancestors_of

        found: list[Snapshot] = []
        for snapshot in ancestors_of(table.snapshot_by_name(self._selection.ref), table.metadata):
            if snapshot.snapshot_id == self._snapshot:
                return found[::-1]
            found.append(snapshot)
        if self._is_complete(found):
            return found[::-1]
        if self._snapshot is not None and table.snapshot_by_id(self._snapshot) is not None:
            raise self._gone("it is not in the history of the branch, which was set to another snapshot")
        raise self._gone("it is expired, and so are snapshots after it, whose rows would be missing")

    def _is_complete(self, later: Sequence[Snapshot]) -> bool:
        """Return whether no snapshot between the last one and these is expired. The last one itself may be."""
        if not later:
            return self._snapshot is None
        if self._snapshot is None:
            return is_first(later[-1])
        if later[-1].parent_snapshot_id is not None:
            return later[-1].parent_snapshot_id == self._snapshot
        # Programs that expire snapshots may remove the parent from the next one. Each snapshot of a table has the next
        # sequence number; with other branches there may be a gap, and then the answer is no.
        return bool(self._sequence) and later[-1].sequence_number == self._sequence + 1

    def _has_rows_to_read(self, snapshot: Snapshot) -> bool:
        from pyiceberg.table.snapshots import Operation

        operation = snapshot.summary.operation if snapshot.summary is not None else Operation.OVERWRITE
        if operation == Operation.APPEND:
            return True
        # A replacement, such as a compaction, writes the same rows to other files.
        if operation == Operation.REPLACE:
            return False
        what = f"snapshot {snapshot.snapshot_id} ({operation.value})"
        if self._on_overwrite == "refuse":
            raise PipelineError(
                f"{what} of the Iceberg table removes or replaces rows",
                where=self._selection.where,
                cause="a source that follows a table reads appended rows only",
                remedy='Set on_overwrite="ignore" to skip such snapshots, or start the job fresh',
            )
        logger.warning("a snapshot that removes or replaces rows is ignored: %s, %s", self._selection.where, what)
        return False

    def _gone(self, cause: str) -> PipelineError:
        return PipelineError(
            f"the Iceberg table can no longer be followed from snapshot {self._snapshot}",
            where=self._selection.where,
            cause=cause,
            remedy="Start the job fresh; and keep snapshots longer than the job may be late or stopped",
        )
