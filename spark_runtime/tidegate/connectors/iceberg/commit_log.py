"""What an Iceberg table records of committed transactions, and the commits of a sink (S7.4).

    summary of a snapshot        tidegate.job, .lineage, .uid, .checkpoint    whose it is
                                 tidegate.transactions                        ids of its transactions, by blanks
    property of the table        tidegate.committed.<job>,<lineage>,<uid>     {subtask: checkpoint of its last commit}

The property survives the expiry of snapshots. Both change in the commit that adds the files, so readers of the table's
metadata find either all of them or none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tidegate.connectors.transactions import SinkContext, TransactionId

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from pyiceberg.table.update.snapshot import _SnapshotProducer

TRANSACTIONS = "tidegate.transactions"
_JOB, _LINEAGE, _UID, _CHECKPOINT = "tidegate.job", "tidegate.lineage", "tidegate.uid", "tidegate.checkpoint"


def committed_property(sink: SinkContext | TransactionId) -> str:
    """Return the name of the table's property with the last commits of a sink in its job and lineage."""
    # `quote` escapes commas, so that a comma in a name is never read as a separator.
    names = ",".join(quote(name, safe="") for name in (sink.job_id, sink.lineage, sink.uid))
    return f"tidegate.committed.{names}"


class CommitLog:
    """Committed transactions of one sink, in one version of a table's metadata. No I/O.

    Attributes:
        head: the newest snapshot of the branch; None: it has none.
        last: checkpoint of the last commit of each subtask, by index.
    """

    def __init__(self, table: TableMetadata, branch: str, sink: SinkContext | TransactionId) -> None:
        self._table = table
        self._sink = sink
        self.head = table.snapshot_by_name(branch)
        found = json.loads(table.properties.get(committed_property(sink)) or "{}")
        self.last: Mapping[int, int] = {int(subtask): int(checkpoint) for subtask, checkpoint in found.items()}

    def holds(self, made: TransactionId) -> bool:
        """Return whether this version has the transaction: as the writer's last one, or in a snapshot of the branch.

        A writer has one transaction for each checkpoint.
        """
        if self.last.get(made.subtask) == made.checkpoint_id:
            return True
        return any(str(made) in transactions_of(snapshot) for snapshot in self.own())

    def history(self) -> Iterator[Snapshot]:
        """Yield the snapshots of the branch that are not expired, the newest first."""
        from pyiceberg.table.snapshots import ancestors_of

        return iter(ancestors_of(self.head, self._table))

    def own(self) -> Iterator[Snapshot]:
        """Yield the snapshots of the branch that this sink committed in its job and lineage, the newest first."""
        return (snapshot for snapshot in self.history() if self.is_own(snapshot))

    def is_own(self, snapshot: Snapshot) -> bool:
        """Return whether the sink committed the snapshot, in this job and lineage."""
        sink, summary = self._sink, snapshot.summary
        names = {_JOB: sink.job_id, _LINEAGE: sink.lineage, _UID: sink.uid}
        return summary is not None and all(summary[key] == name for key, name in names.items())


def transactions_of(snapshot: Snapshot) -> Sequence[str]:
    """Return the ids of a snapshot's transactions; none: another program made it."""
    text = snapshot.summary[TRANSACTIONS] if snapshot.summary is not None else None
    return str(text).split(" ") if text else ()


def checkpoint_of(snapshot: Snapshot) -> int:
    """Return the checkpoint of a snapshot that a sink committed."""
    assert snapshot.summary is not None
    return int(snapshot.summary[_CHECKPOINT] or 0)


@dataclass(frozen=True)
class AppendAttempt:
    """One attempt to append files to a branch.

    Attributes:
        snapshot_id: id of the snapshot, which the table has if the attempt succeeded.
        problem: None: it succeeded. Else why it failed, or that the answer is unclear: read the table again, because it
            may have succeeded all the same.
        refused: the catalog refused the commit because the table had changed.
        producer: wrote the manifests.
    """

    snapshot_id: int
    problem: Exception | None
    refused: bool
    producer: _SnapshotProducer[Any]

    def clean(self, table: TableMetadata) -> None:
        """Delete the manifests of a refused attempt, unless the table as it is now has its snapshot.

        A proxy may have sent the request twice: the first succeeded, and only the second was refused.
        """
        if self.refused and table.snapshot_by_id(self.snapshot_id) is None:
            self.producer._clean_all_uncommitted()


def append_files(
    table: Table, branch: str, files: Sequence[DataFile], transactions: Sequence[TransactionId], spec_id: int
) -> AppendAttempt:
    """Try once to append files as one snapshot, as the successor of the branch's head in `table`.

    It fails if the branch has changed since `table` was loaded. pyiceberg's own retry is not used: it would append the
    files again after another process has committed the same transaction.

    Args:
        files: of one partition spec.
        transactions: of one sink and checkpoint.
        spec_id: the partition spec.
    """
    first = transactions[0]
    summary = {
        _JOB: first.job_id,
        _LINEAGE: first.lineage,
        _UID: first.uid,
        _CHECKPOINT: str(first.checkpoint_id),
        TRANSACTIONS: " ".join(map(str, transactions)),
    }
    last = {**CommitLog(table.metadata, branch, first).last, **{t.subtask: t.checkpoint_id for t in transactions}}
    # pyiceberg writes manifests by the default spec of the table object, which is sent nowhere. Files may have been
    # written before the table's partitioning changed.
    table.metadata = table.metadata.model_copy(update={"default_spec_id": spec_id})
    transaction = table.transaction()
    update = transaction.update_snapshot(snapshot_properties=summary, branch=branch)
    merges = str(table.properties.get("commit.manifest-merge.enabled", "false")).lower() == "true"
    with update.merge_append() if merges else update.fast_append() as producer:
        for file in files:
            producer.append_data_file(file)
    transaction.set_properties({committed_property(first): json.dumps({str(s): last[s] for s in sorted(last)})})
    problem, refused = _commit_once(table, transaction._updates, transaction._requirements)
    return AppendAttempt(producer.snapshot_id, problem, refused, producer)


def _commit_once(
    table: Table, updates: Sequence[TableUpdate], requirements: Sequence[TableRequirement]
) -> tuple[Exception | None, bool]:
    """Commit; return the problem, and whether the catalog reported a conflict."""
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.update import AssertTableUUID

    same_table = AssertTableUUID(uuid=table.metadata.table_uuid)
    try:
        table._do_commit(updates=tuple(updates), requirements=(*requirements, same_table))
    except CommitFailedException as e:
        return e, True
    except Exception as e:  # any other error may come after the commit: the caller reads the table again
        return e, False
    return None, False


def move_branch(
    table: Table, branch: str, to: int | None, sink: SinkContext, last: Mapping[int, int]
) -> Exception | None:
    """Try once to set a branch to an older snapshot, and the sink's last commits. Return the problem.

    It fails if the branch has changed since `table` was loaded.

    Args:
        to: None: the branch had no snapshot.
        last: see `CommitLog.last`.
    """
    from pyiceberg.table.refs import SnapshotRefType
    from pyiceberg.table.update import (
        AssertRefSnapshotId,
        RemovePropertiesUpdate,
        RemoveSnapshotRefUpdate,
        SetPropertiesUpdate,
        SetSnapshotRefUpdate,
    )

    head = table.metadata.snapshot_by_name(branch)
    updates: list[TableUpdate] = []
    if to is None:
        updates.append(RemoveSnapshotRefUpdate(ref_name=branch))
    elif head is None or head.snapshot_id != to:
        updates.append(SetSnapshotRefUpdate(ref_name=branch, type=SnapshotRefType.BRANCH, snapshot_id=to))
    name = committed_property(sink)
    if last:
        updates.append(SetPropertiesUpdate(updates={name: json.dumps({str(s): last[s] for s in sorted(last)})}))
    elif name in table.properties:
        updates.append(RemovePropertiesUpdate(removals=[name]))
    seen = AssertRefSnapshotId(ref=branch, snapshot_id=None if head is None else head.snapshot_id)
    return _commit_once(table, updates, (seen,))[0] if updates else None
