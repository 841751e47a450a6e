"""One subtask: takes one element or trigger at a time, emits resumably, snapshots in one atomic step (S3, S4, S7).

Channels, clock and the host that makes snapshots durable are passed in. All work of a subtask is an *emission*, a
generator. The loop advances it while the outputs have capacity, and does nothing else for the subtask in between. So
all work is serial (S4.1).

Unaligned checkpoints (S3.7) rely on one property of the channels: a sender never keeps elements to wait for capacity,
so that everything that was sent before a barrier arrives even if nobody consumes it. In-flight data is therefore only
in the receiver's queues, and a snapshot of a subtask is possible between any two emissions.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain as one_after_another

import pyarrow as pa

from tidegate.channel.elements import (
    MAX_WATERMARK,
    MIN_WATERMARK,
    SAVEPOINT_KINDS,
    CancelBarrier,
    CheckpointBarrier,
    Element,
    EndOfData,
    EndOfPartition,
    IdleStatus,
    SplitChanged,
    Watermark,
    batch_bytes,
)
from tidegate.connectors.interface import PollResult, Split
from tidegate.operators.stream_operator import (
    MERGED_BYTES,
    CommitPermit,
    EmissionPaused,
    OperatorContext,
    Output,
    SideOutput,
    TurnOver,
)
from tidegate.snapshot.partial_rows import count_rows
from tidegate.snapshot.parts import AsyncSnapshot
from tidegate.subtask.alignment import (
    AlignmentAborted,
    AlignmentAction,
    AlignmentMode,
    BarrierAligner,
    BlockChannel,
    ForwardCancel,
    TakeSnapshot,
    TakeUnaligned,
    UnblockAll,
)
from tidegate.subtask.chain import OperatorChain
from tidegate.subtask.commits import CommitState
from tidegate.subtask.host import SubtaskHost
from tidegate.subtask.input_port import InputPort
from tidegate.subtask.inputs import Inputs
from tidegate.subtask.lifecycle import InputEnded, SubtaskLifecycle
from tidegate.subtask.router import Emitted, Router
from tidegate.subtask.snapshots.in_flight_capture import InFlightCapture, InFlightCaptures, snapshot_metrics
from tidegate.subtask.snapshots.unaligned_barrier import UnalignedSwitch
from tidegate.subtask.source import SourceInput
from tidegate.subtask.watermarks import WatermarkTracker

__all__ = ["InputPort", "Subtask", "SubtaskHost"]

EMISSION_BUDGET = 32
"""Elements that one step may emit before the other subtasks get a turn."""
GATHERED_POLLS = 16
"""Most polls of a source whose records are sent together. With 32 slots, a batch of the usual 64k rows becomes parts of
2k rows, and each part has the fixed cost of a message."""
GATHERING_MS = 100
"""Time from the first of these polls after which a source is not polled again, milliseconds. With slow readers or user
functions, neither a trigger nor the first rows wait for all of them. The time in which the loop waited for a core does
not count: with more slots than cores, messages would become smaller just when small ones cost most."""


class SubtaskTimers:
    """Processing-time work of the chain's operators, checked before every step.

    It ends with the data. After a real end no work is left (S7.6); after a suspend it stays in the savepoint (S7.2).
    """

    def __init__(
        self, chain: OperatorChain, lifecycle: SubtaskLifecycle, host: SubtaskHost, inputs: Inputs | None
    ) -> None:
        """Args: inputs: the inputs; None: a source feeds the chain."""
        self._inputs = inputs
        self._chain = chain
        self._lifecycle = lifecycle
        self._host = host

    def due_ms(self) -> int | None:
        """Return the processing time of the next work; None: there is none."""
        return self._chain.next_processing_time_ms() if self._lifecycle.phase == "running" else None

    def are_due(self) -> bool:
        """Return whether there is work to do now."""
        if not self._chain.has_timers:
            return False
        due_ms = self.due_ms()
        return due_ms is not None and due_ms <= self._host.now_ms()

    def fire(self) -> Iterator[Output]:
        """Do the work that is due."""
        if self._inputs is not None:
            self._chain.hold_input(self._inputs.any_blocked)
        yield from self._chain.processing_time(self._host.now_ms())


class Subtask:
    """See the module. The slot's loop calls `step`.

    Attributes:
        watermark_us: the watermark last sent downstream.
        watermarks: the watermarks of the inputs.
        commits: processes permits and verdicts.
        at_work: see `OperatorChain.busy_operators`.
    """

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
        unaligned_after_ms: int | None = None,
        parallelism: int = 1,
        replay: Sequence[tuple[int, Element]] = (),
    ) -> None:
        """Create a subtask.

        Args:
            unaligned_after_ms: time from a checkpoint's first barrier until it overtakes queued records; None: never
                (S3.7).
            replay: (number of the port, element) to process before all elements from the ports.
        """
        self.subtask = subtask
        self._chain, self.at_work = chain, chain.busy_operators
        self._uids = tuple(uids)
        head_uid = self._uids[0] if self._uids else ""
        self._captures = InFlightCaptures(inputs, subtask[1], parallelism, head_uid, self._abort_capture)
        # A barrier overtakes queued batches, but not those that the operator is processing (S3.7).
        most_bytes = sys.maxsize if unaligned_after_ms is None else MERGED_BYTES
        self._inputs = Inputs(inputs, self._captures, replay, merged_bytes=lambda: min(chain.merged_bytes, most_bytes))
        self._router, self._host = router, host
        self._source = source
        self._mode = mode
        self._aligner = BarrierAligner(len(inputs), mode, unaligned_after_ms)
        # A live view of the aligner's ids, because every batch reads it.
        self._aligning = self._aligner.aligning
        self._overtakes = unaligned_after_ms is not None
        self._overtaking = UnalignedSwitch(unaligned_after_ms, self._aligner, router, host)
        self.watermarks = WatermarkTracker(len(inputs), [n for n, port in enumerate(inputs) if port.timeless])
        self._lifecycle = SubtaskLifecycle([port.input_index for port in inputs], wait_for_final=wait_for_final)
        self.commits = CommitState(subtask, chain, self._lifecycle, host)
        self._timers = SubtaskTimers(chain, self._lifecycle, host, self._inputs if source is None else None)
        self._restored_finished = restored_finished
        self._triggers = self._overtaking.triggers
        self._emission: Iterator[Emitted] | None = None
        self._ahead: Emitted | None = None
        self._alignment_bytes: dict[int, int] = defaultdict(int)
        self._ended_naturally = False
        self._is_ending = False
        self.watermark_us = MIN_WATERMARK
        self._poll_at_ms: int | None = None
        self._silent = False
        self.rows_in = 0
        if self._overtakes:
            self._inputs.listen()
        if restored_finished:
            self._emission = self._end(drain=True, natural=True)

    # ------------------------------------------------------------ called by the slot

    @property
    def is_finished(self) -> bool:
        """True when the subtask is closed and has sent EndOfPartition."""
        return self._lifecycle.phase == "finished"

    @property
    def is_last(self) -> bool:
        """True if it has no outputs."""
        return not self._router.edges

    @property
    def is_emitting(self) -> bool:
        """True while something that it emits is not sent yet."""
        return self._emission is not None

    @property
    def rows_out(self) -> int:
        """Rows sent, before partitioning."""
        return self._router.rows_out

    @property
    def source_input(self) -> SourceInput | None:
        """The head of a source chain, or None."""
        return self._source

    @property
    def source_waits(self) -> bool:
        """True while the source has no records before a known time, and all that it returned is sent."""
        return self._poll_at_ms is not None and self._emission is None

    def retry_at_ms(self, stepped_ms: int) -> int | None:
        """Return the processing time at which to step again even if nothing else has happened; None: nothing waits for
        a time.

        Args:
            stepped_ms: a time before the last step. Work that was due then waits for something else, such as capacity,
                and must not keep the loop awake. A time that came since then may have come after the step, and must not
                be missed.
        """
        times = [t for t in (self._overtaking.due_ms(), self._timers.due_ms()) if t is not None and t > stepped_ms]
        if self._poll_at_ms is not None and self.source_waits and not (self._source and self._source.is_paused):
            times.append(self._poll_at_ms)
        return min(times, default=None)

    def contexts(self) -> list[tuple[str, OperatorContext]]:
        """Return (uid, context) of every operator."""
        return [(uid, op.ctx) for uid, op in zip(self._uids, self._chain.operators, strict=True)]

    def trigger(self, barrier: CheckpointBarrier) -> None:
        """Start a snapshot here, as the coordinator orders (S1.3)."""
        if self.is_finished:
            self._host.decline(self.subtask, barrier.checkpoint_id, "the subtask has finished", "subtask_finished")
        elif self._mode == "off":
            self._host.decline(self.subtask, barrier.checkpoint_id, "checkpointing is off")
        else:
            self._overtaking.triggered(barrier)

    def aborted(self, checkpoint_id: int) -> None:
        """Process the coordinator's abort of `checkpoint_id`."""
        self._overtaking.aborted(checkpoint_id)
        for action in self._aligner.abort(checkpoint_id):
            if isinstance(action, UnblockAll):
                self._inputs.unblock()
        self._drop_checkpoint(checkpoint_id)
        if self._source is not None:
            self._source.aborted(checkpoint_id, reads_on=self._lifecycle.phase == "running" and not self._is_ending)
        for operator in self._chain.operators:
            operator.aborted(checkpoint_id)

    def completed(self, permit: CommitPermit, *, report: bool = False) -> None:
        """Commit what the completion or approval of `permit.checkpoint_id` permits, then possibly finish (S7.3, S7.4).

        An approval may come long after the completion. `report`: report even if there was nothing to commit (S7.8).
        """
        if not self.is_finished:
            if self._source is not None:
                self._source.completed(permit.checkpoint_id)
            self.commits.permitted(permit, report=report)

    def durable(self, checkpoint_id: int, *, last: bool) -> None:
        """Process a completion that permits nothing. `last`: the job ends with this checkpoint (S7.8)."""
        if not self.is_finished:
            self.commits.durable(checkpoint_id, last=last)

    def assign(self, splits: Sequence[Split], *, last: bool) -> None:
        """Give further splits to the reader (S4.3). `last`: it gets no more."""
        assert self._source is not None, "splits for a subtask without a source"
        if self._lifecycle.phase != "running" or self._is_ending:
            # The coordinator holds them back; if it did not, they would be lost. A restart assigns them again.
            raise AssertionError(f"internal error: source {self._source.uid!r} got splits after its data had ended")
        self._source.assign(splits, last=last)
        self._source.report_held()
        self._poll_at_ms = None

    def let_finish(self) -> None:
        """Allow the end without a final snapshot, because none is coming (S7.3)."""
        self._lifecycle.allow_finish()

    def close(self) -> None:
        """Release the operators and the reader, in any state."""
        if not self.is_finished:
            self._close()

    # ------------------------------------------------------------ the step

    def step(self) -> bool:
        """Do one thing. Return False if nothing could be done now."""
        if self._overtakes:
            self._handle_announcements()
        if self._emission is not None:
            return self._pull()
        phase = self._lifecycle.phase
        if phase == "finished":
            return False
        if self._overtakes and (due := self._overtaking.actions()):
            self._emission = self._on_alignment(due)
        elif self._triggers and self._lifecycle.all_partitions_ended:
            self._poll_at_ms = None
            barrier, since_ms = self._triggers.popleft()
            self._overtaking.starts(barrier, since_ms)
            self._is_ending = self._is_ending or barrier.stop is not None
            self._emission = self._on_trigger(barrier)
        elif phase == "ended" and self._lifecycle.may_finish and not self.commits.busy and not self._triggers:
            self._emission = self._finish()
        elif self._timers.are_due():
            self._emission = self._on_timers()
        elif self._source is None:
            return self._step_inputs()
        elif phase != "running" or self._source.is_paused or self._poll_waits(self._source) or not self._poll_source():
            return False
        return self._pull()

    def _step_inputs(self) -> bool:
        """Process the next element, and watermarks before it that have no effect.

        Every batch is followed by a watermark of its channel, and only the last of these advances the minimum.
        """
        taken = self._inputs.take()
        if taken is None:
            return False
        number, element = taken
        while isinstance(element, Watermark) and element.time_us < MAX_WATERMARK:
            advanced_us = self.watermarks.watermark(number, element.time_us)
            if advanced_us is not None:
                self._emission = self._on_progress(advanced_us)
                return self._pull()
            taken = self._inputs.take()
            if taken is None:
                return True
            number, element = taken
        self._emission = self._on_element(number, element)
        return self._pull()

    def _pull(self) -> bool:
        """Emit while the outputs have capacity.

        If the overdraft is used up too, look one element ahead: only batches need capacity, and the barrier that the
        overdraft is for may be next.
        """
        emission = self._emission
        if emission is None:
            return True
        router, overtaking = self._router, self._overtaking
        pulled = 0
        while pulled < EMISSION_BUDGET:
            if router.has_capacity() or overtaking.overdraw():
                if self._ahead is None:
                    element = next(emission, None)
                else:
                    element, self._ahead = self._ahead, None
            elif self._ahead is None and overtaking.is_overdrawn and not router.holds_back:
                element = next(emission, None)
                if isinstance(element, (pa.RecordBatch, SideOutput)):
                    self._ahead = element
                    return pulled > 0
            else:
                return pulled > 0
            if element is None:
                self._emission = None
                router.flush()
                if self._overtakes:
                    overtaking.on_emission_ended()
                return True
            if isinstance(element, EmissionPaused):
                router.flush()
                return self._turn_over(element) or pulled > 0
            router.send(element)
            if isinstance(element, Watermark):
                self.watermark_us = element.time_us
            pulled += 1
        return True

    def _turn_over(self, paused: EmissionPaused) -> bool:
        """Return whether the paused emission can continue after the turns of others."""
        if isinstance(paused, TurnOver):
            self._inputs.gather()
            return True
        return False

    def _poll_waits(self, source: SourceInput) -> bool:
        """Return whether the reader has no records before a time to come."""
        return self._poll_at_ms is not None and not source.is_woken and self._host.now_ms() < self._poll_at_ms

    def _poll_source(self) -> bool:
        polled, announced = self._polled()
        rows = self._rows_of(polled)
        if rows is not None:
            self._emission = rows if self._poll_at_ms is not None else self._with_more(rows)
        elif polled.state == "end":
            self._emission = self._end(drain=True, natural=True)
        elif changes := tuple(self._idle_change()):
            self._emission = iter(changes)
        else:
            # A chain of this slot may wait for the change of split.
            return polled.state == "more" or announced
        return True

    def _polled(self) -> tuple[PollResult, bool]:
        """Poll the source, and note what the result says besides its records. Return also whether its split changed."""
        assert self._source is not None
        now_ms = self._host.now_ms()
        polled = self._source.poll(now_ms)
        announced = self._router.announce_split(self._source.turn)
        self._silent = self._source.is_idle(polled, now_ms)
        self._poll_at_ms = self._source.next_poll_ms(polled, now_ms)
        return polled, announced

    def _rows_of(self, polled: PollResult) -> Iterator[Emitted] | None:
        """Return what the chain makes of the polled records; None: there are none."""
        assert self._source is not None
        sides, rows = self._source.sides(polled), polled.batch
        if rows is None and not sides:
            return None
        self.rows_in += 0 if rows is None else rows.num_rows
        return one_after_another(sides, () if rows is None else self._batch(rows, 0))

    def _with_more(self, rows: Iterator[Emitted]) -> Iterator[Emitted]:
        """Emit records. Poll again while the parts for other subtasks are small, so that they are sent together."""
        assert self._source is not None
        since_ms, waited_ms = self._host.now_ms(), self._host.core_wait_ms()
        yield from rows
        for _ in range(GATHERED_POLLS - 1):
            if self._poll_at_ms is not None or not self._router.gathers or self._triggers:
                return
            taken_ms = self._host.now_ms() - since_ms
            if taken_ms >= GATHERING_MS and taken_ms - (self._host.core_wait_ms() - waited_ms) >= GATHERING_MS:
                return
            # The slot decides between two rounds whether a source of an alignment group is too far ahead.
            if self._source.is_paused or self._source.group is not None:
                return
            polled, _ = self._polled()
            more = self._rows_of(polled)
            if more is None:
                if polled.state == "end":
                    yield from self._end(drain=True, natural=True)
                else:
                    yield from self._idle_change()
                return
            yield from more

    def _batch(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Emitted]:
        rows = self._chain.batch(batch, input_index)
        return one_after_another((IdleStatus(False),), rows) if self.watermarks.reactivates() else rows

    # ------------------------------------------------------------ elements

    def _on_element(self, index: int, element: Element) -> Iterator[Emitted]:
        port = self._inputs.ports[index]
        if isinstance(element, pa.RecordBatch):
            self.rows_in += count_rows(element)
            for checkpoint_id in self._aligning:
                self._alignment_bytes[checkpoint_id] += batch_bytes(element)
            return self._batch(element, port.input_index)
        match element:
            case Watermark(time_us):
                return self._on_progress(self.watermarks.watermark(index, time_us))
            case SplitChanged():
                return self._chain.begin_split(element)
            case IdleStatus(idle):
                return self._on_progress(self.watermarks.idle(index, idle))
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
        raise AssertionError(f"internal error: a subtask received {element!r}, which is neither records nor an event")

    def _on_progress(self, advanced_us: int | None) -> Iterator[Emitted]:
        """Process a channel's new time or idleness: pass the consequences to the chain and downstream (S4.4)."""
        # MAX_WATERMARK was sent when the subtask was deployed, and no watermark may follow it (S6.4).
        if self._restored_finished:
            return
        if advanced_us is not None:
            yield from self._chain.watermark(advanced_us)
        yield from self._idle_change()

    def _on_timers(self) -> Iterator[Emitted]:
        yield from self._timers.fire()
        yield from self._idle_change()

    def _idle_change(self) -> Iterator[Emitted]:
        idle = self.watermarks.idle_change(
            withheld=self._chain.has_pending_rows(), silent=self._silent or self._chain.is_idle()
        )
        if idle is not None:
            yield IdleStatus(idle)

    def _on_end_of_data(self, index: int, drain: bool) -> Iterator[Emitted]:
        for step in self._lifecycle.end_of_data(index, drain):
            # The end was sent when the subtask was deployed (S6.4).
            if self._restored_finished:
                continue
            if isinstance(step, InputEnded):
                if step.drain:
                    yield from self._chain.end_input(step.index)
                    yield from self._idle_change()
            else:
                yield from self._end(drain=step.drain, natural=True)

    def _on_alignment(self, actions: Sequence[AlignmentAction]) -> Iterator[Emitted]:
        """Carry out the aligner's actions.

        Channels are blocked and unblocked immediately, not during the emission. While full outputs delay the emission,
        an abort may arrive, and the channels that it unblocks must stay unblocked (S2.2).
        """
        for action in actions:
            match action:
                case BlockChannel(channel):
                    self._inputs.ports[channel].blocked = True
                case UnblockAll():
                    self._inputs.unblock()
                case AlignmentAborted(checkpoint_id, reason):
                    self._drop_checkpoint(checkpoint_id)
                    self._host.decline(self.subtask, checkpoint_id, reason, "alignment_aborted")
                case TakeSnapshot(barrier, first_ms) | TakeUnaligned(barrier, first_ms):
                    self._overtaking.starts(barrier, first_ms)
                case _:
                    self._capture(action)
        return self._emit_alignment(actions)

    def _emit_alignment(self, actions: Sequence[AlignmentAction]) -> Iterator[Emitted]:
        for action in actions:
            match action:
                case ForwardCancel(checkpoint_id):
                    yield CancelBarrier(checkpoint_id)
                case TakeSnapshot(barrier, first_ms) | TakeUnaligned(barrier, first_ms):
                    yield from self._snapshot(barrier, first_ms, unaligned=isinstance(action, TakeUnaligned))

    # ------------------------------------------------------------ unaligned (S3.7)

    def _handle_announcements(self) -> None:
        """Process barriers and ends that have arrived in the queues. Also called while an emission waits."""
        news = self._inputs.news
        while news:
            number, event = news.popleft()
            if isinstance(event, EndOfPartition):
                actions = self._aligner.on_end_queued(number)
            else:
                actions = self._aligner.on_barrier_queued(number, event, self._host.now_ms())
            for action in actions:
                self._capture(action)

    def _capture(self, action: AlignmentAction) -> None:
        done = self._captures.apply(action)
        if done is not None:
            self._write(done)

    def _abort_capture(self, checkpoint_id: int, reason: str) -> None:
        # The returned actions are empty: a checkpoint that captures blocks no channel.
        self._aligner.abort(checkpoint_id)
        self._drop_checkpoint(checkpoint_id)
        self._host.decline(self.subtask, checkpoint_id, reason)

    def _drop_checkpoint(self, checkpoint_id: int) -> None:
        self._captures.drop(checkpoint_id)
        self._alignment_bytes.pop(checkpoint_id, None)
        self._lifecycle.snapshot_settled(checkpoint_id)

    # ------------------------------------------------------------ snapshot and end

    def _on_trigger(self, barrier: CheckpointBarrier) -> Iterator[Emitted]:
        """Create the barrier here. A stop first ends the data of a running source (S7.2)."""
        if barrier.stop is not None and self._lifecycle.phase == "running":
            yield from self._end(drain=barrier.stop == "drain", natural=False)
        yield from self._snapshot(barrier, self._host.now_ms())

    def _snapshot(self, barrier: CheckpointBarrier, first_ms: int, *, unaligned: bool = False) -> Iterator[Emitted]:
        """Flush, send the barrier and run the synchronous phase as one atomic step; the rest runs elsewhere (S3.6)."""
        checkpoint_id = barrier.checkpoint_id
        # Nothing else of this subtask runs until the emission ends (S4.1), so that barrier and state agree.
        if not self._restored_finished:
            yield from self._chain.prepare_snapshot(checkpoint_id)
        yield barrier
        started_ms = self._host.now_ms()
        parts: list[tuple[str, AsyncSnapshot]] = []
        if self._source is not None:
            completes = barrier.kind != "savepoint"  # no recovery point (S2.4)
            parts.append((self._source.uid, self._source.snapshot(checkpoint_id, completes=completes)))
        parts += self._chain.snapshot(checkpoint_id, portable=barrier.kind in SAVEPOINT_KINDS)
        self._lifecycle.on_snapshot_taken(checkpoint_id)
        metrics = snapshot_metrics(barrier, first_ms, started_ms, self._host.now_ms(), unaligned=unaligned)
        capture = InFlightCapture(checkpoint_id, parts, metrics, self._ended_naturally)
        if unaligned:
            self._captures.begin(capture, self._inputs.replay_left())
            actions = self._aligner.on_snapshot_taken(checkpoint_id)
            for action in actions:
                self._capture(action)
            if not actions:
                self._drop_checkpoint(checkpoint_id)  # it was aborted while its barrier waited for capacity
        else:
            self._write(capture)

    def _write(self, done: InFlightCapture) -> None:
        done.metrics["alignment_bytes"] = float(self._alignment_bytes.pop(done.checkpoint_id, 0))
        over = self._lifecycle.snapshot_settled
        self._host.write_snapshot(self.subtask, done.checkpoint_id, done.parts, done.metrics, done.finished, over)

    def _end(self, *, drain: bool, natural: bool) -> Iterator[Emitted]:
        """End this subtask's data (S7.2): MAX_WATERMARK, end_input, finish, EndOfData."""
        if drain and self._restored_finished:
            yield Watermark(MAX_WATERMARK)
        elif drain:
            if self._source is not None:
                yield from self._chain.watermark(MAX_WATERMARK)
                yield from self._chain.end_input(0)
            yield from self._chain.finish()
        yield EndOfData(drain)
        # The code after a `yield` runs when the element was sent, so that the phase never precedes EndOfData.
        self._ended_naturally = drain and natural
        self._lifecycle.end_of_data_sent()
        self._host.ended(self.subtask, self._ended_naturally)

    def _finish(self) -> Iterator[Emitted]:
        self._close()
        yield EndOfPartition()
        self._lifecycle.finished()
        self._host.finished(self.subtask)

    def _close(self) -> None:
        """Close reader and operators. An error of one does not keep the other from closing (S7.1)."""
        try:
            if self._source is not None:
                self._source.close()
        finally:
            self._chain.close()
