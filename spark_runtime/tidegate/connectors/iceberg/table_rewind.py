"""Rewind of an Iceberg table: a snapshot removes the data files that a sink has added since a checkpoint (S9.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidegate.connectors.files.sink.sink_layout import FileLayout
from tidegate.connectors.iceberg.catalog import IcebergCatalog
from tidegate.connectors.iceberg.commit_log import (
    CommitAttempt,
    CommitLog,
    LastCommits,
    added_files,
    checkpoint_of,
    is_first,
    remove_files,
    rewound_by,
)
from tidegate.connectors.transactions import SinkContext
from tidegate.errors import OutageError, SinkConflictError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

REWIND_ATTEMPTS = 10
"""Attempts to remove the files; each attempt reads the table first."""


@dataclass(frozen=True)
class RewindPlan:
    """The changes of a rewind in one version of the table.

    files: the files to remove.
    newest: newest checkpoint that the rewind removes; None: it removes none, so it changes nothing.
    last: the last commits that remain.
    restored: files that the branch gets again.
    """

    files: Sequence[DataFile]
    newest: int | None
    last: LastCommits
    restored: Sequence[DataFile] = ()


class TableRewind:
    """Commits of one sink, in one job and lineage, between snapshot `after` and checkpoint `before`, both excluded.

    Their files are found in the branch by name. The rewind removes whole files, and none of another writer. So it is
    refused if another program has rewritten one of the files: rows of the sink are then in other files. The storage
    keeps the removed files until the table's maintenance expires the older snapshots.
    """

    def __init__(
        self,
        catalog: IcebergCatalog,
        name: str,
        branch: str,
        layout: FileLayout,
        ctx: SinkContext,
        after: int,
        before: int,
    ) -> None:
        self._catalog = catalog
        self._name = name
        self._branch = branch
        self._layout = layout
        self._ctx = ctx
        self._after = after
        self._before = before

    def check(self, table: Table) -> None:
        """Check that the rewind is possible.

        Raises:
            SinkConflictError: another program has rewritten files of the sink, or snapshots were expired.
        """
        self._plan(table)

    def take_back(self, opened: Catalog, record: Callable[[int], None]) -> None:
        """Remove the files. Idempotent. Raises as `check` does, and OutageError if the catalog accepts no change.

        Args:
            record: called before each attempt with the newest checkpoint that it removes. It records durably that no
                transaction up to that checkpoint is committed again: a zombie that loads the table after the removal
                finds this record, and one that has loaded it before cannot append.
        """
        attempt: CommitAttempt | None = None
        for _ in range(REWIND_ATTEMPTS):
            table = self._catalog.load(opened, self._name)
            if attempt is not None:
                attempt.clean(table.metadata)
            plan = self._plan(table)
            if plan.newest is None:
                return
            record(plan.newest)
            attempt = remove_files(
                table, self._branch, plan.files, self._ctx, (self._after, plan.newest + 1), plan.last, plan.restored
            )
            if attempt.problem is None:
                return
        assert attempt is not None and attempt.problem is not None
        raise OutageError(
            f"the Iceberg table accepted no rewind in {REWIND_ATTEMPTS} attempts",
            where=self._where,
            cause=self._catalog.error_text(attempt.problem),
            remedy="Check which other processes change the table, and that its catalog answers",
        )

    @property
    def _where(self) -> str:
        return f"job {self._ctx.job_id}, sink {self._ctx.uid!r}, table {self._name}, branch {self._branch}"

    def _is_between(self, checkpoint_id: int | None) -> bool:
        return checkpoint_id is not None and self._after < checkpoint_id < self._before

    def _plan(self, table: Table) -> RewindPlan:
        log = CommitLog(table.metadata, self._branch, self._ctx)
        removed = self._removed(log)
        gone = {subtask: n for subtask, n in log.last.items() if self._is_between(n)}
        if not removed and not gone:
            return RewindPlan((), None, log.last)
        files = self._files(table, log)
        added = sum(map(added_files, removed))
        if len(files) != added:
            raise self._refused(
                f"{added} files were added since, but {len(files)} of them are in the table: another program has "
                "rewritten or deleted the others"
            )
        newest = max([n for n in (*map(checkpoint_of, removed), *gone.values()) if n is not None])
        last = {subtask: n for subtask, n in log.last.items() if subtask not in gone}
        return RewindPlan(files, newest, last)

    def _removed(self, log: CommitLog) -> list[Snapshot]:
        """Return the commits to remove, without those that an earlier rewind has removed.

        Raises:
            SinkConflictError: expired snapshots may have held such a commit.
        """
        found: list[Snapshot] = []
        rewound: list[tuple[int, int]] = []
        oldest: Snapshot | None = None
        reaches_after = False
        for snapshot in log.history():
            oldest = snapshot
            if not log.is_own(snapshot):
                continue
            if (between := rewound_by(snapshot)) is not None:
                rewound.append(between)
            n = checkpoint_of(snapshot)
            if n is None or any(after < n < before for after, before in rewound):
                continue
            if self._is_between(n):
                found.append(snapshot)
            reaches_after = reaches_after or n <= self._after
        is_whole = oldest is None or is_first(oldest)
        if not (is_whole or reaches_after) and (found or any(map(self._is_between, log.last.values()))):
            raise self._refused("older snapshots of the table are expired, so that commits since may be unknown")
        return found

    def _files(self, table: Table, log: CommitLog) -> list[DataFile]:
        """Return the data files in the branch that the sink has added between."""
        from pyiceberg.manifest import DataFileContent

        if log.head is None:
            return []
        found = []
        for manifest in log.head.manifests(table.io):
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                published = self._layout.published_by(entry.data_file.file_path.rsplit("/", 1)[-1])
                is_data = entry.data_file.content == DataFileContent.DATA
                if is_data and published is not None and self._is_between(published[1]):
                    found.append(entry.data_file)
        return found

    def _refused(self, cause: str) -> SinkConflictError:
        return SinkConflictError(
            f"the Iceberg sink cannot rewind to checkpoint {self._after}",
            where=self._where,
            cause=cause,
            remedy="Restore with on_committed_after=accept_duplicates, and remove duplicate rows yourself",
        )
