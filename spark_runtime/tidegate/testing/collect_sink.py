"""CollectSink: a two-phase-commit sink in the memory of this process, for tests of pipelines and of the runtime."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.connectors.interface import NO_CHECKPOINT, Sink, SinkWriter
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.transactions import (
    Committable,
    SinkContext,
    check_writer,
    is_leftover,
    parse_transaction_id,
    transaction_id,
)
from tidegate.errors import TidegateError
from tidegate.jobs.client.staged_data import StagedData
from tidegate.jobs.history.sink_identity import SinkIdentity

_registry_lock = threading.Lock()


@dataclass
class Collection:
    """Rows of the sinks of one name: those that readers of a real system would see, and those that they would not.

    Attributes:
        staged: batches per pre-committed, unpublished transaction.
        committed: batches per published transaction, in order of publication.
        quarantined: batches per transaction that a verdict withheld.
        repeated_commits: ids of transactions that were committed again. This is allowed; nothing was published twice.
        publications: how often each transaction was published, minus how often it was rewound; for committed
            transactions any number other than 1 is a defect of the sink.
        rows_written: rows ever written, also by failed runs.
    """

    staged: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    committed: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    quarantined: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    repeated_commits: list[str] = field(default_factory=list)
    publications: Counter[str] = field(default_factory=Counter)
    rows_written: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def table(self) -> pa.Table:
        """Return the committed rows; an empty table without columns if there are none."""
        with self._lock:
            return _as_table(self.committed)

    def staged_table(self) -> pa.Table:
        """Return the pre-committed rows, which no reader sees yet."""
        with self._lock:
            return _as_table(self.staged)

    def rows(self) -> list[tuple[object, ...]]:
        """Return the committed rows as tuples, in order of publication."""
        return _as_rows(self.table())

    def duplicates(self) -> dict[tuple[object, ...], int]:
        """Return committed rows that occur more than once, with their number."""
        return {row: n for row, n in Counter(self.rows()).items() if n > 1}

    def assert_exactly(self, expected: Sequence[tuple[object, ...]]) -> None:
        """Fail unless the committed rows equal `expected`, in any order; the message names lost and duplicated rows."""
        found, wanted = Counter(self.rows()), Counter(expected)
        lost, extra = wanted - found, found - wanted
        assert not lost, f"{sum(lost.values())} rows lost, such as {list(lost)[:3]}"
        assert not extra, f"{sum(extra.values())} rows too many, such as {list(extra)[:3]}"
        twice = {t: n for t, n in self.publications.items() if n != (t in self.committed)}
        assert not twice, f"transactions published more than once: {twice}"

    def stage(self, transaction: str, batches: list[pa.RecordBatch]) -> None:
        """Store the rows of a pre-committed transaction."""
        with self._lock:
            assert transaction not in self.staged and transaction not in self.committed, f"{transaction} used twice"
            self.staged[transaction] = batches

    def publish(self, transaction: str) -> None:
        """Publish a transaction, idempotently; raises TidegateError if it is neither staged nor published."""
        with self._lock:
            if transaction in self.committed:
                self.repeated_commits.append(transaction)
                return
            batches = self.staged.pop(transaction, None)
            if batches is None:
                raise TidegateError(
                    "the rows of a pre-committed transaction are lost",
                    where=transaction,
                    cause="the transaction is neither published nor staged",
                    remedy="Run the whole test in one process: CollectSink keeps rows in memory",
                )
            self.committed[transaction] = batches
            self.publications[transaction] += 1

    def move_to_quarantine(self, transaction: str) -> None:
        """Move a staged transaction to quarantine, idempotently."""
        with self._lock:
            batches = self.staged.pop(transaction, None)
            if batches is not None:
                self.quarantined[transaction] = batches

    def drop(self, transaction: str) -> None:
        """Remove a staged transaction, idempotently."""
        with self._lock:
            self.staged.pop(transaction, None)

    def take_back(self, transaction: str) -> None:
        """Remove a published transaction, idempotently."""
        with self._lock:
            if self.committed.pop(transaction, None) is not None:
                self.publications[transaction] -= 1

    def wrote(self, rows: int) -> None:
        """Count written rows."""
        with self._lock:
            self.rows_written += rows


_registry: dict[str, Collection] = {}


def collected(name: str) -> Collection:
    """Return the collection of this name in this process; it is created at first use."""
    with _registry_lock:
        return _registry.setdefault(name, Collection())


def clear_collected(name: str) -> None:
    """Empty the collection of this name."""
    with _registry_lock:
        _registry.pop(name, None)


class CollectSink(Sink):
    """Collects rows under a name; read them with `collected(name)`. Works only if all slots are in one process."""

    def __init__(self, name: str, *, two_phase: bool = True) -> None:
        self.name = name
        self.two_phase = two_phase

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """Return a writer into the collection."""
        return CollectWriter(collected(self.name), ctx, self.two_phase)

    def staged(self, ctx: SinkContext, checkpoint_id: int, handle: Committable) -> StagedData:
        """Return the number of rows; `collected(name).staged` holds them."""
        return StagedData(ctx.uid, checkpoint_id, rows=int(handle.data["rows"]))

    def quarantine(self, ctx: SinkContext, committables: Sequence[Committable], into: Quarantine) -> None:
        """Move the rows to `collected(name).quarantined`."""
        move_to_quarantine(collected(self.name), ctx, committables)

    def rewind_to(
        self,
        ctx: SinkContext,
        checkpoint_id: int,
        pending: Sequence[Committable] = (),
        *,
        before: int = NO_CHECKPOINT,
    ) -> Callable[[], None]:
        """Return the work that removes the rows of later transactions."""
        return rewind_of(collected(self.name), ctx, checkpoint_id, pending, before)

    def identity(self) -> SinkIdentity:
        """Return the sink's name as its identity."""
        return SinkIdentity("CollectSink", (self.name,))


class CollectWriter(SinkWriter):
    """Writer of CollectSink; transactions are lists of batches."""

    def __init__(self, collection: Collection, ctx: SinkContext, two_phase: bool) -> None:
        self._collection = collection
        self._ctx = ctx
        self._two_phase = two_phase
        self._running: list[pa.RecordBatch] = []
        self._made = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Add the batch to the running transaction."""
        self._collection.wrote(batch.num_rows)
        self._running.append(batch)
        if not self._two_phase:
            transaction, _ = self._close(0)
            self._collection.stage(transaction, [batch])
            self._collection.publish(transaction)

    def _close(self, checkpoint_id: int) -> tuple[str, list[pa.RecordBatch]]:
        batches, self._running = self._running, []
        self._made += 1
        return transaction_id(self._ctx, checkpoint_id, self._made), batches

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """Close the transaction; return no handle if it is empty."""
        if not self._running:
            return tuple
        transaction, batches = self._close(checkpoint_id)

        def stage() -> Sequence[Committable]:
            self._collection.stage(transaction, batches)
            return [Committable(transaction, {"rows": sum(b.num_rows for b in batches)})]

        return stage

    def commit(self, committables: Sequence[Committable]) -> None:
        """Publish."""
        for handle in committables:
            check_writer(self._ctx, handle)
            self._collection.publish(handle.transaction_id)

    def abort(self, committables: Sequence[Committable]) -> None:
        """Drop."""
        for handle in committables:
            check_writer(self._ctx, handle)
            self._collection.drop(handle.transaction_id)

    def recover(self, checkpoint_id: int, pending: Sequence[Committable] = ()) -> None:
        """Drop transactions staged by earlier runs of this subtask, and of old subtasks that it is responsible for."""
        kept = {handle.transaction_id for handle in pending}
        for transaction in list(self._collection.staged):
            if transaction not in kept and is_leftover(self._ctx, transaction):
                self._collection.drop(transaction)


def move_to_quarantine(collection: Collection, ctx: SinkContext, committables: Sequence[Committable]) -> None:
    """Implement `Sink.quarantine` for a sink into `collection`."""
    for handle in committables:
        check_writer(ctx, handle)
        collection.move_to_quarantine(handle.transaction_id)


def rewind_of(
    collection: Collection, ctx: SinkContext, checkpoint_id: int, pending: Sequence[Committable], before: int
) -> Callable[[], None]:
    """Implement `Sink.rewind_to` for a sink into `collection`."""

    def take_back() -> None:
        # Before the published rows are removed, so that a zombie finds no staged transaction to publish again.
        CollectWriter(collection, ctx, True).recover(checkpoint_id, pending)
        for transaction in list(collection.committed):
            made = parse_transaction_id(transaction)
            own = (made.job_id, made.lineage, made.uid) == (ctx.job_id, ctx.lineage, ctx.uid)
            if own and checkpoint_id < made.checkpoint_id < before:
                collection.take_back(transaction)

    return take_back


def _as_table(transactions: dict[str, list[pa.RecordBatch]]) -> pa.Table:
    batches = [batch for part in transactions.values() for batch in part]
    return pa.Table.from_batches(batches) if batches else pa.table({})


def _as_rows(table: pa.Table) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]
