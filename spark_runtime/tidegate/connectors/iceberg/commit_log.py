"""Records of committed transactions in an Iceberg table, and the commits of a sink (S7.4).

    summary of a snapshot     tidegate.job, tidegate.lineage, tidegate.uid   the sink that made it
      with files              tidegate.checkpoint, tidegate.transactions     ids of its transactions, between blanks
      of a rewind             tidegate.rewound                               the checkpoints between two, both excluded
    property of the table     tidegate.committed.<job>,<lineage>,<uid>       {subtask: checkpoint of its last commit}

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
    from pyiceberg.table import Table, Transaction
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update.snapshot import _SnapshotProducer

LastCommits = Mapping[int, int]
"""Index of a subtask -> checkpoint of its last commit."""

_JOB, _LINEAGE, _UID, _CHECKPOINT = "tidegate.job", "tidegate.lineage", "tidegate.uid", "tidegate.checkpoint"
_TRANSACTIONS, _REWOUND = "tidegate.transactions", "tidegate.rewound"


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
        self.last: LastCommits = {int(subtask): int(checkpoint) for subtask, checkpoint in found.items()}

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
        """Yield the snapshots of the branch that this sink made in its job and lineage, the newest first."""
        return (snapshot for snapshot in self.history() if self.is_own(snapshot))

    def is_own(self, snapshot: Snapshot) -> bool:
        """Return whether the sink made the snapshot, in this job and lineage."""
        names = _names_of(self._sink)
        return snapshot.summary is not None and all(snapshot.summary[key] == name for key, name in names.items())


def _names_of(sink: SinkContext | TransactionId) -> dict[str, str]:
    return {_JOB: sink.job_id, _LINEAGE: sink.lineage, _UID: sink.uid}


def transactions_of(snapshot: Snapshot) -> Sequence[str]:
    """Return the ids of a snapshot's transactions; none: it is not the commit of a sink."""
    text = snapshot.summary[_TRANSACTIONS] if snapshot.summary is not None else None
    return str(text).split(" ") if text else ()


def checkpoint_of(snapshot: Snapshot) -> int | None:
    """Return the checkpoint of a snapshot that is the commit of a sink; None: it is something else."""
    text = snapshot.summary[_CHECKPOINT] if snapshot.summary is not None else None
    return int(text) if text else None


def is_first(snapshot: Snapshot) -> bool:
    """Return whether a snapshot is certainly the first one of its table, with no expired snapshot before it.

    Some programs remove the parent of a snapshot when they expire it, among them pyiceberg.
    """
    if snapshot.parent_snapshot_id is not None:
        return False
    if snapshot.sequence_number:
        return snapshot.sequence_number == 1
    # Tables of format version 1 have no sequence numbers.
    summary = snapshot.summary
    return summary is not None and summary["total-data-files"] == (summary["added-data-files"] or "0")


def added_files(snapshot: Snapshot) -> int:
    """Return the number of data files that a snapshot has added."""
    return int((snapshot.summary["added-data-files"] if snapshot.summary is not None else None) or 0)


def rewound_by(snapshot: Snapshot) -> tuple[int, int] | None:
    """Return the checkpoints between which a snapshot of a rewind removed everything; None: it is something else."""
    text = snapshot.summary[_REWOUND] if snapshot.summary is not None else None
    if not text:
        return None
    after, before = str(text).split(" ")
    return int(after), int(before)


@dataclass(frozen=True)
class CommitAttempt:
    """One attempt to change the files of a branch.

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
    table: Table,
    branch: str,
    files: Sequence[DataFile],
    transactions: Sequence[TransactionId],
    spec_id: int,
    replaced: Sequence[DataFile] = (),
) -> CommitAttempt:
    """Try once to append files as one snapshot, as the successor of the branch's head in `table`.

    It fails if the branch has changed since `table` was loaded. pyiceberg's own retry is not used: it would append the
    files again after another process has committed the same transaction.

    Args:
        files: of one partition spec.
        transactions: of one sink and checkpoint.
        spec_id: the partition spec.
        replaced: files that the same snapshot removes.
    """
    first = transactions[0]
    summary = {
        **_names_of(first),
        _CHECKPOINT: str(first.checkpoint_id),
        _TRANSACTIONS: " ".join(map(str, transactions)),
    }
    last = {**CommitLog(table.metadata, branch, first).last, **{t.subtask: t.checkpoint_id for t in transactions}}
    # pyiceberg writes manifests by the default spec of the table object, which is sent nowhere. Files may have been
    # written before the table's partitioning changed.
    table.metadata = table.metadata.model_copy(update={"default_spec_id": spec_id})
    transaction = table.transaction()
    update = transaction.update_snapshot(snapshot_properties=summary, branch=branch)
    producer: _SnapshotProducer[Any]
    if replaced:
        producer = update.overwrite()
    elif str(table.properties.get("commit.manifest-merge.enabled", "false")).lower() == "true":
        producer = update.merge_append()
    else:
        producer = update.fast_append()
    with producer:
        for file in files:
            producer.append_data_file(file)
        for file in replaced:
            producer.delete_data_file(file)
    return _attempted(transaction, producer, last, first)


def remove_files(
    table: Table,
    branch: str,
    files: Sequence[DataFile],
    sink: SinkContext,
    between: tuple[int, int],
    last: LastCommits,
    restored: Sequence[DataFile] = (),
) -> CommitAttempt:
    """Try once to remove files from a branch, as the successor of the branch's head in `table`.

    It fails if the branch has changed since `table` was loaded.

    Args:
        between: the checkpoints between which all commits of the sink are removed, both excluded.
        last: the last commits that remain.
        restored: files of one partition spec that the same snapshot adds again.
    """
    summary = {**_names_of(sink), _REWOUND: f"{between[0]} {between[1]}"}
    if restored:
        # As in `append_files`.
        table.metadata = table.metadata.model_copy(update={"default_spec_id": restored[0].spec_id})
    transaction = table.transaction()
    update = transaction.update_snapshot(snapshot_properties=summary, branch=branch)
    with update.overwrite() as producer:
        for file in files:
            producer.delete_data_file(file)
        for file in restored:
            producer.append_data_file(file)
    return _attempted(transaction, producer, last, sink)


def _attempted(
    transaction: Transaction, producer: _SnapshotProducer[Any], last: LastCommits, sink: SinkContext | TransactionId
) -> CommitAttempt:
    """Set the sink's last commits, and commit the transaction once."""
    from pyiceberg.exceptions import CommitFailedException
    from pyiceberg.table.update import AssertTableUUID

    transaction.set_properties({committed_property(sink): json.dumps({str(s): last[s] for s in sorted(last)})})
    table = transaction._table
    same_table = AssertTableUUID(uuid=table.metadata.table_uuid)
    problem: Exception | None = None
    try:
        table._do_commit(updates=transaction._updates, requirements=(*transaction._requirements, same_table))
    except Exception as e:  # it may come after the commit: the caller reads the table again
        problem = e
    return CommitAttempt(producer.snapshot_id, problem, isinstance(problem, CommitFailedException), producer)


def forget_commits(table: Table, sink: SinkContext) -> None:
    """Remove the sink's last commits from the table's properties.

    Raises:
        Exception: of the catalog; nothing has changed, or the removal succeeded.
    """
    with table.transaction() as transaction:
        transaction.remove_properties(committed_property(sink))
