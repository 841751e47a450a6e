"""Rewind of an Iceberg table: its branch returns to the snapshot before the sink's later ones (S9.3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.connectors.iceberg.catalog import IcebergCatalog
from tidegate.connectors.iceberg.commit_log import CommitLog, checkpoint_of, move_branch
from tidegate.connectors.transactions import SinkContext
from tidegate.errors import OutageError, SinkConflictError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

REWIND_ATTEMPTS = 10
"""Attempts to move the branch; each attempt reads the table first."""


@dataclass(frozen=True)
class _Plan:
    """What a rewind changes in one version of the table.

    to: the snapshot that becomes the head; None: none, the branch had no snapshot.
    last: the sink's last commits that stay, see `CommitLog.last`.
    newest: newest checkpoint that the rewind removes; None: it removes none, so it changes nothing.
    """

    to: int | None
    last: Mapping[int, int]
    newest: int | None


class TableRewind:
    """Commits of one sink, in one job and lineage, between snapshot `after` and checkpoint `before`, both excluded.

    Data files stay: the removed snapshots still refer to them, until the table's maintenance expires these snapshots.
    """

    def __init__(
        self, catalog: IcebergCatalog, name: str, branch: str, ctx: SinkContext, after: int, before: int
    ) -> None:
        self._catalog = catalog
        self._name = name
        self._branch = branch
        self._ctx = ctx
        self._after = after
        self._before = before

    def check(self, table: Table) -> None:
        """Check that the rewind is possible.

        Raises:
            SinkConflictError: others have written since, or snapshots were expired.
        """
        self._plan(table)

    def take_back(self, opened: Catalog, record: Callable[[int], None]) -> None:
        """Move the branch. Idempotent. Raises as `check` does, and OutageError if the catalog accepts no change.

        Args:
            record: called before each attempt with the newest checkpoint that it removes. It records durably that no
                transaction up to that checkpoint is committed again: a zombie that loads the table after the branch has
                moved finds this record, and one that has loaded it before cannot append.
        """
        problem: Exception | None = None
        for _ in range(REWIND_ATTEMPTS):
            table = self._catalog.load(opened, self._name)
            plan = self._plan(table)
            if plan.newest is None:
                return
            record(plan.newest)
            problem = move_branch(table, self._branch, plan.to, self._ctx, plan.last)
            if problem is None:
                return
        raise OutageError(
            f"the Iceberg table accepted no rewind in {REWIND_ATTEMPTS} attempts",
            where=self._where,
            cause=self._catalog.error_text(problem) if problem is not None else "",
            remedy="Check which other processes change the table, and that its catalog answers",
        )

    @property
    def _where(self) -> str:
        return f"job {self._ctx.job_id}, sink {self._ctx.uid!r}, table {self._name}, branch {self._branch}"

    def _is_between(self, checkpoint_id: int) -> bool:
        return self._after < checkpoint_id < self._before

    def _plan(self, table: Table) -> _Plan:
        log = CommitLog(table.metadata, self._branch, self._ctx)
        history = list(log.history())
        removed: list[Snapshot] = []
        while history and self._is_removed(log, history[0]):
            removed.append(history.pop(0))
        below = next((snapshot for snapshot in history if self._is_removed(log, snapshot)), None)
        if below is not None:
            raise self._refused(
                f"another writer has changed the table since checkpoint {checkpoint_of(below)}: snapshot "
                f"{history[0].snapshot_id}, {_operation(history[0])}"
            )
        if not history and removed and removed[-1].parent_snapshot_id is not None:
            raise self._refused(f"snapshot {removed[-1].parent_snapshot_id}, which was before it, is expired")
        gone = {subtask: n for subtask, n in log.last.items() if self._is_between(n)}
        known = {checkpoint_of(s) for s in table.metadata.snapshots if log.is_own(s)}
        lost = sorted(set(gone.values()) - known)
        if lost:
            raise self._refused(f"the snapshots of checkpoints {lost} are expired")
        newest = max([*map(checkpoint_of, removed), *gone.values()], default=None)
        to = history[0].snapshot_id if history else None
        last = {subtask: n for subtask, n in log.last.items() if subtask not in gone}
        return _Plan(to, last, newest)

    def _is_removed(self, log: CommitLog, snapshot: Snapshot) -> bool:
        return log.is_own(snapshot) and self._is_between(checkpoint_of(snapshot))

    def _refused(self, cause: str) -> SinkConflictError:
        return SinkConflictError(
            f"the Iceberg sink cannot rewind to checkpoint {self._after}",
            where=self._where,
            cause=cause,
            remedy="Restore with on_committed_after=accept_duplicates, and remove duplicate rows yourself",
        )


def _operation(snapshot: Snapshot) -> str:
    return "an unknown operation" if snapshot.summary is None else f"operation {snapshot.summary.operation.value}"
