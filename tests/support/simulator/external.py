"""The external system that simulated sinks publish into."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from simulator.faults import Faults
from simulator.scheduler import current_task
from tidegate.connectors.discard import DiscardWriter
from tidegate.connectors.interface import NO_CHECKPOINT, Sink, SinkWriter
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.errors import StoreError
from tidegate.testing.collect_sink import Collection, CollectWriter, move_to_quarantine, rewind_of


class External(Collection):
    """One sink's target. Each call takes virtual time, may fail, and is a place to die at, before or after its
    effect."""

    def __init__(
        self,
        faults: Faults,
        now_ms: Callable[[], int],
        on_publish: Callable[[str], None],
        on_put_away: Callable[[str], None],
        on_take_back: Callable[[str], None] = lambda _transaction: None,
    ) -> None:
        super().__init__()
        self._on_put_away = on_put_away
        self._on_take_back = on_take_back
        self.staged_ms: dict[str, int] = {}
        self._now_ms = now_ms
        self._faults = faults
        self._on_publish = on_publish

    def stage(self, transaction: str, batches: list[pa.RecordBatch]) -> None:
        """See `Collection.stage`."""
        self._step()
        super().stage(transaction, batches)
        self.staged_ms[transaction] = self._now_ms()
        self._step()

    def publish(self, transaction: str) -> None:
        """See `Collection.publish`."""
        self._step()
        if self._faults.strikes("commit_error"):
            raise StoreError("the external system did not take the commit", where=transaction)
        super().publish(transaction)
        self._on_publish(transaction)
        self._step()

    def show(self, batch: pa.RecordBatch) -> None:
        """Take rows that are visible at once."""
        self.committed.setdefault("", []).append(batch)

    def drop(self, transaction: str) -> None:
        """See `Collection.drop`."""
        self._step()
        super().drop(transaction)

    def move_to_quarantine(self, transaction: str) -> None:
        """See `Collection.move_to_quarantine`."""
        self._step()
        if self._faults.strikes("commit_error"):
            raise StoreError("the external system moved nothing", where=transaction)
        if transaction in self.staged:
            self._on_put_away(transaction)
        super().move_to_quarantine(transaction)
        self._step()

    def take_back(self, transaction: str) -> None:
        """See `Collection.take_back`."""
        self._step()
        if self._faults.strikes("commit_error"):
            raise StoreError("the external system gave nothing back", where=transaction)
        super().take_back(transaction)
        self._on_take_back(transaction)
        self._step()

    def _step(self) -> None:
        task = current_task()
        if task is not None:
            task.process.check_alive()
            if self._faults.strikes("slot_crash"):
                task.process.crash()
            task.pause(task.process.scheduler.upto(4))


class ExternalSink(Sink):
    """A sink into an External."""

    def __init__(self, external: External, *, two_phase: bool) -> None:
        self._external = external
        self.two_phase = two_phase

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """A writer."""
        if self.two_phase:
            return CollectWriter(self._external, ctx, two_phase=True)
        return OnePhaseWriter(self._external)

    def quarantine(self, ctx: SinkContext, committables: Sequence[Committable], into: Quarantine) -> None:
        """Puts the rows away."""
        move_to_quarantine(self._external, ctx, committables)

    def rewind_to(
        self,
        ctx: SinkContext,
        checkpoint_id: int,
        pending: Sequence[Committable] = (),
        *,
        before: int = NO_CHECKPOINT,
    ) -> Callable[[], None]:
        """Removes the rows of later transactions, one transaction after the other."""
        return rewind_of(self._external, ctx, checkpoint_id, pending, before)


class OnePhaseWriter(DiscardWriter):
    """Nothing to commit: what is written is seen, also what a run writes that will be rolled back."""

    def __init__(self, external: External) -> None:
        super().__init__()
        self._external = external

    def write(self, batch: pa.RecordBatch) -> None:
        """Show it."""
        self._external.show(batch)
