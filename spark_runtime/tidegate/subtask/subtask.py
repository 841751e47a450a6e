"""One subtask: takes elements and triggers one at a time, emits resumably, snapshots as one atomic step (S3, S4, S7).

No clock, thread or socket: channels, clock and the host that makes snapshots durable are given. Everything a subtask
does is
an *emission*, a generator; the loop pulls it while the outputs have capacity, and starts nothing else before it is
exhausted. That makes records, barriers, watermarks and snapshots serial (S4.1).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidegate.channel.elements import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    CancelBarrier,
    CheckpointBarrier,
    Element,
    EndOfData,
    EndOfPartition,
    IdleStatus,
    Watermark,
)
from tidegate.channel.ports import InputChannel
from tidegate.operators.contract import CommitPermit, OperatorContext
from tidegate.snapshot.parts import AsyncSnapshot
from tidegate.subtask.alignment import (
    AlignmentAborted,
    AlignmentAction,
    AlignmentMode,
    BarrierAligner,
    Block,
    ForwardCancel,
    TakeSnapshot,
    UnblockAll,
)
from tidegate.subtask.chain import OperatorChain
from tidegate.subtask.lifecycle import InputEnded, SubtaskLifecycle
from tidegate.subtask.routing import Router
from tidegate.subtask.source import SourceInput
from tidegate.subtask.watermarks import WatermarkTracker

EMISSION_BUDGET = 32
"""Elements one step may emit before the loop looks at the other subtasks."""


class SubtaskHost(Protocol):
    """What a subtask asks of the slot around it. No call blocks."""

    def now_ms(self) -> int:
        """Processing time."""

    def write_snapshot(
        self,
        subtask: tuple[int, int],
        checkpoint_id: int,
        parts: Sequence[tuple[str, AsyncSnapshot]],
        metrics: dict[str, float],
        finished: bool,
    ) -> None:
        """Run the asynchronous phase and acknowledge, or decline when it fails."""

    def decline(self, subtask: tuple[int, int], checkpoint_id: int, reason: str) -> None:
        """Tell the coordinator."""

    def ended(self, subtask: tuple[int, int], natural: bool) -> None:
        """EndOfData has been passed on."""

    def finished(self, subtask: tuple[int, int]) -> None:
        """Closed, EndOfPartition sent."""

    def commit(
        self,
        subtask: tuple[int, int],
        checkpoint_id: int,
        work: Sequence[Callable[[], None]],
        done: Callable[[], None],
    ) -> None:
        """Do the commits off the loop, report them; then call `done` on the loop."""


@dataclass
class InputPort:
    """One input channel of a subtask. `blocked`: aligned, not processed."""

    channel: InputChannel
    input_index: int
    blocked: bool = False
    ended: bool = False


class Subtask:
    """See the module. `step` is called by the slot's loop."""

    def __init__(
        self,
        subtask: tuple[int, int],
        chain: OperatorChain,
        uids: Sequence[str],
        inputs: Sequence[InputPort],
        router: Router,
        host: SubtaskHost,
        *,
        source: SourceInput | None,
        mode: AlignmentMode,
        wait_for_final: bool,
        restored_finished: bool = False,
    ) -> None:
        self.subtask = subtask
        self._chain = chain
        self._uids = tuple(uids)
        self._inputs = list(inputs)
        self._router = router
        self._host = host
        self._source = source
        self._aligner = BarrierAligner(len(inputs), mode)
        self._watermarks = WatermarkTracker(len(inputs))
        self._lifecycle = SubtaskLifecycle([port.input_index for port in inputs], wait_for_final=wait_for_final)
        self._restored_finished = restored_finished
        self._emission: Iterator[Element] | None = None
        self._triggers: deque[CheckpointBarrier] = deque()
        self._next_input = 0
        self._alignment_bytes = 0
        self._ended_naturally = False
        self._committing = 0
        self._watermark_out_us = MIN_WATERMARK
        self.rows_in = 0
        self.retry_at_ms: int | None = None
        if restored_finished:
            self._emission = self._end(drain=True, natural=True)

    # ------------------------------------------------------------ told by the slot

    @property
    def is_finished(self) -> bool:
        """Closed, EndOfPartition sent."""
        return self._lifecycle.phase == "finished"

    @property
    def rows_out(self) -> int:
        """Rows sent, before partitioning."""
        return self._router.rows_out

    @property
    def watermark_us(self) -> int:
        """The watermark last sent on."""
        return self._watermark_out_us

    @property
    def source_input(self) -> SourceInput | None:
        """The head of a source chain."""
        return self._source

    def contexts(self) -> list[tuple[str, OperatorContext]]:
        """(uid, context) of every operator."""
        return [(uid, op.ctx) for uid, op in zip(self._uids, self._chain.operators, strict=True)]

    def trigger(self, barrier: CheckpointBarrier) -> None:
        """The coordinator starts a snapshot here (S1.3)."""
        if self.is_finished:
            self._host.decline(self.subtask, barrier.checkpoint_id, "the subtask has finished")
        else:
            self._triggers.append(barrier)

    def aborted(self, checkpoint_id: int) -> None:
        """The coordinator aborted `checkpoint_id`."""
        self._triggers = deque(t for t in self._triggers if t.checkpoint_id != checkpoint_id)
        for action in self._aligner.abort(checkpoint_id):
            if isinstance(action, UnblockAll):
                self._unblock()
        for operator in self._chain.operators:
            operator.aborted(checkpoint_id)

    def completed(self, permit: CommitPermit) -> None:
        """`permit.checkpoint_id` is complete: commit what it permits, then perhaps finish (S7.3, S7.4)."""
        if self.is_finished:
            return
        work = [todo for operator in self._chain.operators if (todo := operator.commit(permit)) is not None]
        if not work:
            self._lifecycle.committed(permit.checkpoint_id)
            return
        self._committing += 1

        def done() -> None:
            self._committing -= 1
            self._lifecycle.committed(permit.checkpoint_id)

        self._host.commit(self.subtask, permit.checkpoint_id, work, done)

    def close(self) -> None:
        """Release the operators and the reader, whatever the state."""
        if not self.is_finished:
            self._close()

    # ------------------------------------------------------------ the step

    def step(self) -> bool:
        """Do one thing. False: nothing could be done now."""
        if self._emission is not None:
            return self._pull()
        if self.is_finished:
            return False
        if self._triggers and self._lifecycle.all_partitions_ended:
            self.retry_at_ms = None
            self._emission = self._on_trigger(self._triggers.popleft())
        elif self._lifecycle.may_finish and not self._committing and not self._triggers:
            self._emission = self._finish()
        elif self._source is not None:
            if self._lifecycle.phase != "running" or not self._poll_source():
                return False
        elif not self._take_input():
            return False
        return self._pull()

    def _pull(self) -> bool:
        emission = self._emission
        if emission is None:
            return True
        router = self._router
        pulled = 0
        while pulled < EMISSION_BUDGET:
            if not router.has_capacity():
                return pulled > 0
            element = next(emission, None)
            if element is None:
                self._emission = None
                return True
            router.send(element)
            if isinstance(element, Watermark):
                self._watermark_out_us = element.time_us
            pulled += 1
        return True

    def _poll_source(self) -> bool:
        assert self._source is not None
        now_ms = self._host.now_ms()
        polled = self._source.poll(now_ms)
        self.retry_at_ms = polled.retry_at_ms if polled.state == "nothing_now" else None
        idle_change = self._source.idle_change(polled, now_ms)
        if polled.batch is not None:
            self.rows_in += polled.batch.num_rows
            self._emission = self._source_batch(polled.batch, idle_change)
        elif polled.state == "end":
            self._emission = self._end(drain=True, natural=True)
        elif idle_change is not None:
            self._emission = iter((IdleStatus(idle_change),))
        else:
            return polled.state == "more"
        return True

    def _source_batch(self, batch: pa.RecordBatch, idle_change: bool | None) -> Iterator[Element]:
        if idle_change is not None:
            yield IdleStatus(idle_change)
        yield from self._chain.batch(batch, 0)

    def _take_input(self) -> bool:
        inputs = self._inputs
        for k in range(len(inputs)):
            index = (self._next_input + k) % len(inputs)
            port = inputs[index]
            if port.blocked or port.ended:
                continue
            element = port.channel.poll()
            if element is not None:
                self._next_input = (index + 1) % len(inputs)
                self._emission = self._on_element(index, port, element)
                return True
        return False

    # ------------------------------------------------------------ elements

    def _on_element(self, index: int, port: InputPort, element: Element) -> Iterator[Element]:
        if isinstance(element, pa.RecordBatch):
            self.rows_in += element.num_rows
            if self._aligner.aligning:
                self._alignment_bytes += element.nbytes
            return self._chain.batch(element, port.input_index)
        match element:
            case Watermark(time_us):
                was_idle = self._watermarks.all_idle
                return self._on_progress(self._watermarks.watermark(index, time_us), was_idle)
            case IdleStatus(idle):
                was_idle = self._watermarks.all_idle
                return self._on_progress(self._watermarks.idle(index, idle), was_idle)
            case CheckpointBarrier():
                return self._on_alignment(self._aligner.barrier(index, element, self._host.now_ms()))
            case CancelBarrier(checkpoint_id):
                return self._on_alignment(self._aligner.cancel(checkpoint_id))
            case EndOfData(drain):
                return self._on_end_of_data(index, drain)
            case EndOfPartition():
                port.ended = True
                self._lifecycle.end_of_partition(index)
                return self._on_alignment(self._aligner.end_of_partition(index))
        raise AssertionError(f"unknown element {element!r}")

    def _on_progress(self, advanced_us: int | None, was_idle: bool) -> Iterator[Element]:
        """A channel told its time or idleness: what follows for the chain and downstream (S4.4)."""
        if self._restored_finished:
            return
        if advanced_us is not None:
            yield from self._chain.watermark(advanced_us)
        if self._watermarks.all_idle != was_idle:
            yield IdleStatus(not was_idle)

    def _on_end_of_data(self, index: int, drain: bool) -> Iterator[Element]:
        for step in self._lifecycle.end_of_data(index, drain):
            if self._restored_finished:
                continue
            if isinstance(step, InputEnded):
                if step.drain:
                    yield from self._chain.end_input(step.index)
            else:
                yield from self._end(drain=step.drain, natural=True)

    def _on_alignment(self, actions: Sequence[AlignmentAction]) -> Iterator[Element]:
        """Channels are blocked and unblocked at once: while a full output parks the emission, an abort may come, and
        what it unblocks must stay so (S2.2)."""
        for action in actions:
            match action:
                case Block(channel):
                    self._inputs[channel].blocked = True
                case UnblockAll():
                    self._unblock()
                case AlignmentAborted(checkpoint_id, reason):
                    self._host.decline(self.subtask, checkpoint_id, reason)
        return self._emit_alignment(actions)

    def _emit_alignment(self, actions: Sequence[AlignmentAction]) -> Iterator[Element]:
        for action in actions:
            match action:
                case ForwardCancel(checkpoint_id):
                    yield CancelBarrier(checkpoint_id)
                case TakeSnapshot(barrier, first_ms):
                    yield from self._snapshot(barrier, first_ms)

    def _unblock(self) -> None:
        for port in self._inputs:
            port.blocked = False

    # ------------------------------------------------------------ snapshot and end

    def _on_trigger(self, barrier: CheckpointBarrier) -> Iterator[Element]:
        """The barrier is born here. A stop ends the data of a running source first (S7.2)."""
        if barrier.stop is not None and self._lifecycle.phase == "running":
            yield from self._end(drain=barrier.stop == "drain", natural=False)
        yield from self._snapshot(barrier, self._host.now_ms())

    def _snapshot(self, barrier: CheckpointBarrier, first_ms: int) -> Iterator[Element]:
        """Flush, barrier, synchronous phase, then the rest elsewhere: one atomic step (S3.6)."""
        checkpoint_id = barrier.checkpoint_id
        if not self._restored_finished:
            yield from self._chain.prepare_snapshot(checkpoint_id)
        yield barrier
        started_ms = self._host.now_ms()
        parts: list[tuple[str, AsyncSnapshot]] = []
        if self._source is not None:
            parts.append((self._source.uid, self._source.snapshot()))
        for uid, operator in zip(self._uids, self._chain.operators, strict=True):
            part = operator.snapshot(checkpoint_id)
            if part is not None:
                parts.append((uid, part))
        self._lifecycle.snapshot_taken(checkpoint_id)
        metrics = {
            "sync_ms": float(self._host.now_ms() - started_ms),
            "alignment_ms": float(max(0, started_ms - first_ms)),
            "start_delay_ms": float(max(0, first_ms - barrier.triggered_ms)),
            "alignment_bytes": float(self._alignment_bytes),
        }
        self._alignment_bytes = 0
        self._host.write_snapshot(self.subtask, checkpoint_id, parts, metrics, self._ended_naturally)

    def _end(self, *, drain: bool, natural: bool) -> Iterator[Element]:
        """The end of this subtask's data (S7.2): MAX_WATERMARK, end_input, finish, EndOfData."""
        if drain and self._restored_finished:
            yield Watermark(MAX_WATERMARK)
        elif drain:
            if self._source is not None:
                yield from self._chain.watermark(MAX_WATERMARK)
                yield from self._chain.end_input(0)
            yield from self._chain.finish()
        yield EndOfData(drain)
        self._ended_naturally = drain and natural
        self._lifecycle.passed_on()
        self._host.ended(self.subtask, self._ended_naturally)

    def _finish(self) -> Iterator[Element]:
        self._close()
        yield EndOfPartition()
        self._lifecycle.finished()
        self._host.finished(self.subtask)

    def _close(self) -> None:
        """Reader and operators, each whatever the other does (S7.1)."""
        try:
            if self._source is not None:
                self._source.close()
        finally:
            self._chain.close()
