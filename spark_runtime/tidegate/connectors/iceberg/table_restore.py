"""Rewind of an Iceberg table that a sink has upserted: the branch gets the files of an earlier snapshot (S9.3)."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from tidegate.connectors.iceberg.commit_log import CommitLog, checkpoint_of, is_first, rewound_by
from tidegate.connectors.iceberg.table_rewind import RewindPlan, TableRewind

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot


class TableRestore(TableRewind):
    """Upserts and appends of one sink, in one job and lineage, between two checkpoints.

    An upsert writes rows of others again, so its files cannot simply be removed. Instead, a snapshot gives the branch
    the files of the snapshot before the first of these commits. This removes everything that was written since, so it
    is refused if another program has changed rows since. The branch is not set to the older snapshot: the new one
    records the rewind, and fails if the branch has changed.
    """

    def _plan(self, table: Table) -> RewindPlan:
        log = CommitLog(table.metadata, self._branch, self._ctx)
        removed = self._removed(log)
        gone = {subtask: n for subtask, n in log.last.items() if self._is_between(n)}
        if not removed and not gone:
            return RewindPlan((), None, log.last)
        if not removed:
            raise self._refused("the snapshots of its commits are no longer in the branch")
        before = self._snapshot_before(table, log, removed)
        then = {} if before is None else self._data_files(table, before)
        now = {} if log.head is None else self._data_files(table, log.head)
        restored = [file for path, file in then.items() if path not in now]
        if len({file.spec_id for file in restored}) > 1:
            raise self._refused("the files to restore have two partitionings, which one snapshot cannot add")
        newest = max(n for n in (*map(checkpoint_of, removed), *gone.values()) if n is not None)
        last = {subtask: n for subtask, n in log.last.items() if subtask not in gone}
        return RewindPlan([file for path, file in now.items() if path not in then], newest, last, restored)

    def _snapshot_before(self, table: Table, log: CommitLog, removed: Collection[Snapshot]) -> Snapshot | None:
        """Return the snapshot before the first of these commits; None: the table had none.

        Raises:
            SinkConflictError: other changes are among them, or the snapshot is expired.
        """
        missing = {snapshot.snapshot_id for snapshot in removed}
        rewound: list[tuple[int, int]] = []
        for snapshot in log.history():
            if snapshot.snapshot_id in missing:
                missing.remove(snapshot.snapshot_id)
            elif not log.is_own(snapshot):
                self._accept_other(snapshot)
            elif (between := rewound_by(snapshot)) is not None:
                rewound.append(between)
            else:
                n = checkpoint_of(snapshot)
                # An earlier rewind may have removed it already.
                if n is not None and not any(after < n < before for after, before in rewound):
                    raise self._refused(
                        f"snapshot {snapshot.snapshot_id}, for checkpoint {n}, was committed in between"
                    )
            if not missing:
                return self._parent(table, snapshot)
        raise self._refused("older snapshots of the table are expired")

    def _accept_other(self, snapshot: Snapshot) -> None:
        from pyiceberg.table.snapshots import Operation

        if snapshot.summary is None or snapshot.summary.operation != Operation.REPLACE:
            raise self._refused(f"snapshot {snapshot.snapshot_id}, of another program, has changed rows")

    def _parent(self, table: Table, snapshot: Snapshot) -> Snapshot | None:
        found = None
        if snapshot.parent_snapshot_id is not None:
            found = table.metadata.snapshot_by_id(snapshot.parent_snapshot_id)
        if found is None and not is_first(snapshot):
            raise self._refused(f"the snapshot before snapshot {snapshot.snapshot_id} is expired")
        return found

    def _data_files(self, table: Table, snapshot: Snapshot) -> dict[str, DataFile]:
        """Return the data files of a snapshot by path. Refuses delete files: they do not apply to files added again."""
        from pyiceberg.manifest import DataFileContent

        found = {}
        for manifest in snapshot.manifests(table.io):
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
                if entry.data_file.content != DataFileContent.DATA:
                    raise self._refused(f"snapshot {snapshot.snapshot_id} has delete files, of another program")
                found[entry.data_file.file_path] = entry.data_file
        return found
