"""SinkOperator: a SinkWriter as a stream operator, with its uncommitted transactions in the snapshot (S7.4)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tidegate.connectors.interface import Sink, SinkWriter, SupportsQuarantine
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.errors import SnapshotError
from tidegate.jobs.history.verdicts import WithheldRange
from tidegate.jobs.stores.store import Store
from tidegate.operators.stream_operator import CommitPermit, OperatorContext, Output, StreamOperator
from tidegate.snapshot.parts import OWNER_COLUMN, AsyncSnapshot, StatePart

COMMITTABLES = "committables"
COMMITTABLES_SCHEMA = pa.schema(
    [
        pa.field("checkpoint_id", pa.int64(), nullable=False),
        pa.field("transaction_id", pa.string(), nullable=False),
        pa.field("data", pa.string(), nullable=False),
        pa.field(OWNER_COLUMN, pa.int32()),
    ]
)
"""List state of the sink: one row per pre-committed transaction whose commit has not been confirmed; `data` is JSON.

The owner is the subtask that wrote the transaction. At another parallelism, the transaction is committed by the subtask
that removes the leftovers of the owner, because the commit must precede the removal.
"""


class _Preparation:
    """The blocking part of one pre-commit, run exactly once by the first caller that needs its handles.

    The snapshot of a later checkpoint holds the handles of all earlier ones, so it must not be written before they are
    known. The later snapshot runs an earlier part itself instead of waiting for its thread, so it cannot deadlock,
    whatever number of threads exists.
    """

    def __init__(self, checkpoint_id: int, owner: int, work: Callable[[], Sequence[Committable]]) -> None:
        self.checkpoint_id = checkpoint_id
        self.owner = owner
        self._work: Callable[[], Sequence[Committable]] | None = work
        self._lock = threading.Lock()
        self._made: tuple[Committable, ...] | None = None
        self._error: Exception | None = None
        self._staged: tuple[Mapping[str, Any], ...] | None = None
        self.withheld = False

    def run(self) -> tuple[Committable, ...]:
        """Return the handles. Blocks for the work, or for the thread that does it.

        A failure is final: no other transaction holds these rows, so no later checkpoint may complete without them.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._made is None:
                assert self._work is not None, "the work is kept until it is done"
                try:
                    self._made = tuple(self._work())
                except Exception as e:
                    self._error = e
                    raise
                self._work = None  # frees the writer's files: an uncommitted transaction may wait long for its verdict
            return self._made

    def result(self, sink: Sink, ctx: SinkContext) -> tuple[Mapping[str, Any], ...]:
        """Return documents of the staged data for the metadata (S7.8). Calls the sink once."""
        if self._staged is None:
            made = self.run()
            self._staged = tuple(sink.staged(ctx, self.checkpoint_id, handle).to_json() for handle in made)
        return self._staged


class SinkOperator(StreamOperator):
    """One subtask of a sink, at the end of a graph or within it.

    On the loop: `process`, `snapshot` (its synchronous part closes the transaction), `commit`, `recover` (the last two
    only return work). On writer threads, concurrently with the loop: the returned functions. Guarantee with a
    two-phase-commit sink: every row processed before a completed checkpoint's barrier is published once, whatever
    fails, as long as permits are made only from `complete` entries (S7.4). With `two_phase = False`: at least once.
    """

    def __init__(self, sink: Sink, *, passes_on: bool = False) -> None:
        """Create the operator. Args: passes_on: emit every batch that was written, unchanged."""
        self._sink = sink
        self._passes_on = passes_on
        self._writer: SinkWriter | None = None
        self._lock = threading.Lock()
        self._publishing = threading.Lock()
        self._pending: list[_Preparation] = []
        self._restored_checkpoint_id = 0

    @property
    def writer(self) -> SinkWriter:
        """Return the sink's writer; only after `open`."""
        assert self._writer is not None, "SinkOperator used before open"
        return self._writer

    def open(self, ctx: OperatorContext) -> None:
        """Create the writer."""
        super().open(ctx)
        self._place = SinkContext(
            job_id=ctx.job_id,
            lineage=ctx.lineage,
            uid=ctx.uid,
            subtask=ctx.subtask,
            parallelism=ctx.parallelism,
            generation=ctx.generation,
            run_id=ctx.run_id,
            schema=ctx.input_schemas[0],
            scratch=ctx.scratch,
            staging=ctx.staging,
            storage=ctx.storage,
        )
        self._writer = self._sink.create_writer(self._place)

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Keep the restored snapshot's handles until a permit covers them. The caller runs `recover` next."""
        by_origin: dict[tuple[int, int], list[Committable]] = {}
        for part in parts:
            assert part.name == COMMITTABLES, f"a sink has no state {part.name!r}"
            for row, handle in zip(part.table.to_pylist(), handles_in_snapshot([part]), strict=True):
                origin = row["checkpoint_id"], row.get(OWNER_COLUMN, self.ctx.subtask)
                by_origin.setdefault(origin, []).append(handle)
        with self._lock:
            for origin, handles in sorted(by_origin.items()):
                self._pending.append(_Preparation(*origin, lambda known=handles: known))  # type: ignore[misc]

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Write the batch into the running transaction, then emit it if an operator reads it."""
        self.writer.write(batch)
        if self._passes_on:
            yield batch

    def finish(self) -> Iterator[Output]:
        """Report the end of the input to the writer: no write follows."""
        self.writer.end_input()
        yield from ()

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Close the running transaction and return the function that stages it durably.

        That function returns every uncommitted handle up to `checkpoint_id`. A sink without two-phase commit has no
        state.
        """
        if not self._sink.two_phase:
            return None
        with self._lock:
            work = self.writer.prepare_commit(checkpoint_id)
            self._pending.append(_Preparation(checkpoint_id, self.ctx.subtask, work))
            covered = tuple(self._pending)
        return lambda: self._as_parts(covered)

    def commit(self, permit: CommitPermit) -> Callable[[], None] | None:
        """Return work that publishes everything pre-committed up to the permit; None when there is nothing.

        The work raises when a transaction cannot be published; the handles are then kept.
        """
        with self._lock:
            covered = [p for p in self._pending if p.checkpoint_id <= permit.checkpoint_id and not p.withheld]
        return (lambda: self._publish(covered)) if covered else None

    def quarantine(self, withheld: WithheldRange, folder: Callable[[], tuple[Store, str]]) -> Callable[[], None] | None:
        """Return work that moves withheld transactions to quarantine; None when there are none.

        Snapshots hold the handles until the data has moved. If this run dies, the run that restores such a snapshot
        moves it.
        """
        with self._lock:
            covered = [p for p in self._pending if withheld.covers(p.checkpoint_id)]
            for p in covered:
                p.withheld = True

        def work() -> None:
            self._apply_restored(covered, lambda handles: self._put_away(handles, Quarantine(*folder(), withheld)))

        return work if covered else None

    def needs_commit_permit(self, checkpoint_id: int) -> bool:
        """Return whether a transaction that the completed checkpoint covers is not committed."""
        with self._lock:
            covered = [p for p in self._pending if p.checkpoint_id <= checkpoint_id and not p.withheld]
        return any(p.run() for p in covered)

    def recover(self, permit: CommitPermit | None) -> Callable[[], None]:
        """Return work that publishes what the restored snapshot holds and `permit` covers, then removes leftovers of
        failed runs.

        Run the work once after `restore`, before the first commit of this run. It may run in parallel with new writes.

        Args:
            permit: permit for the restored snapshot; None at a fresh start and in a fork. A fork never publishes
                transactions of its original (S7.4): it drops their handles and does not touch their data.
        """
        with self._lock:
            if permit is None:
                self._pending.clear()
            open_now = [p for p in self._pending if not p.withheld]
            covered = [p for p in open_now if permit is not None and p.checkpoint_id <= permit.checkpoint_id]
            waiting = [p for p in self._pending if p not in covered]

        def work() -> None:
            # Before `recover`, which removes all staged data of earlier runs that is not in `kept`.
            self._apply_restored(covered, self._commit_restored)
            if self._sink.two_phase:
                kept = [handle for p in waiting for handle in p.run()]
                self.writer.recover(permit.checkpoint_id if permit is not None else 0, kept)

        return work

    def _publish(self, covered: Sequence[_Preparation]) -> None:
        self._apply_restored(covered, self.writer.commit)

    def _apply_restored(self, covered: Sequence[_Preparation], do: Callable[[Sequence[Committable]], None]) -> None:
        """Publish or move the transactions that are still pending, then drop their handles."""
        # Serialises commits: two threads must not publish the same transaction at once.
        with self._publishing:
            with self._lock:
                # Selected again under the lock, because another thread may have published some of them meanwhile.
                open_still = [p for p in covered if p in self._pending]
            handles = [handle for p in open_still for handle in p.run()]
            if handles:
                do(handles)
            with self._lock:
                self._pending = [p for p in self._pending if p not in open_still]

    def _put_away(self, handles: Sequence[Committable], into: Quarantine) -> None:
        assert isinstance(self._sink, SupportsQuarantine), "the driver refuses a quarantine of other sinks"
        self._sink.quarantine(self._place, handles, into)

    def _commit_restored(self, handles: Sequence[Committable]) -> None:
        try:
            self.writer.commit(handles)
        except (LookupError, TypeError, AttributeError) as error:
            sink = type(self._sink).__name__
            raise SnapshotError(
                f"{sink} cannot commit transaction {handles[0].transaction_id}",
                where=f"sink {self.ctx.uid!r} subtask {self.ctx.subtask}",
                cause=f"the state may come from another sink class or version: {type(error).__name__}: {error}",
                remedy="Restore with the sink class that wrote the transaction, or give the sink a new uid",
            ) from error

    def _as_parts(self, covered: Sequence[_Preparation]) -> Sequence[StatePart]:
        made = [(p, h) for p in covered for h in p.run()]
        columns: list[Sequence[Any]] = [
            [p.checkpoint_id for p, _ in made],
            [h.transaction_id for _, h in made],
            [json.dumps(dict(h.data), sort_keys=True) for _, h in made],
            [p.owner for p, _ in made],
        ]
        staged_data = tuple(d for p in covered for d in p.result(self._sink, self._place)) if self.ctx.gated else ()
        return [StatePart(COMMITTABLES, "list", pa.Table.from_arrays(columns, schema=COMMITTABLES_SCHEMA), staged_data)]

    def aborted(self, checkpoint_id: int) -> None:
        """Do nothing: what the checkpoint pre-committed stays pending, and the next permit covers it."""

    def close(self) -> None:
        """Close the writer. Staged and pre-committed data stays for the next run."""
        if self._writer is not None:
            self._writer.close()


def handles_in_snapshot(parts: Sequence[StatePart]) -> list[Committable]:
    """Return the handles in a sink's snapshot, as `Sink.rewind_to` accepts them."""
    rows = [row for part in parts for row in part.table.to_pylist()]
    return [Committable(row["transaction_id"], json.loads(row["data"])) for row in rows]
