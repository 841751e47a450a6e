"""One slot: its subtasks, the messages of its control connection, and the one cooperative loop (design, "Loop rules").

Threads around it only append to the inbox and wake it; everything else happens in `run`.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import assert_never

from tidegate.channel.control.protocol import (
    Abort,
    Acknowledged,
    AlignSources,
    Cancel,
    Commit,
    Complete,
    DeclineCode,
    Declined,
    Deploy,
    DriverMessage,
    Durable,
    GroupWatermark,
    LetFinish,
    PauseSources,
    Quarantine,
    SlotMessage,
    SlotMetrics,
    SourceWatermark,
    SourceWatermarks,
    Start,
    SubtaskCommitted,
    SubtaskEndedData,
    SubtaskFinished,
    SubtaskMetrics,
    SubtaskRunning,
    Trigger,
)
from tidegate.channel.elements import MAX_WATERMARK, SAVEPOINT_KINDS, CheckpointBarrier
from tidegate.jobs.options import SnapshotCompression
from tidegate.operators.stream_operator import CommitPermit
from tidegate.snapshot.blobs import BlobFile
from tidegate.snapshot.handles import OpenLocation
from tidegate.snapshot.local_copies import LocalCopies
from tidegate.snapshot.parts import AsyncSnapshot
from tidegate.subtask.snapshots.snapshot_writer import SnapshotPlace, SnapshotWriter, WrittenSnapshot
from tidegate.subtask.snapshots.writer_threads import run_concurrently
from tidegate.subtask.subtask import Subtask

REPORT_INTERVAL_MS = 200
"""How often a slot tells the driver of its sources' watermarks at most: how far a source may run beyond its drift."""
PAUSED = "ahead of its alignment group"
"""Why such a source is not read."""


class AlignedSources:
    """Tells the driver how far they are, and pauses those that are further ahead of the least of their group, which the
    driver tells, than their drift allows."""

    def __init__(
        self, subtasks: Sequence[Subtask], send: Callable[[SlotMessage], None], now_ms: Callable[[], int]
    ) -> None:
        """Args: subtasks: of the slot; others than sources of a group are passed over."""
        sources = [(s, s.source_input) for s in subtasks if s.source_input is not None]
        self._members = [(s, source, source.group) for s, source in sources if source.group is not None]
        self._send = send
        self._now_ms = now_ms
        self._told: dict[tuple[int, int], tuple[int, bool]] = {}
        self._told_ms: int | None = None
        self._lows: dict[str, GroupWatermark] = {}

    def update(self) -> None:
        """Once each round of the loop."""
        if not self._members:
            return
        for subtask, source, group in self._members:
            low = self._lows.get(group.name, GroupWatermark(MAX_WATERMARK, None, MAX_WATERMARK))
            wait_for_us = low.others_us if low.of == subtask.subtask else low.low_us
            source.pause(PAUSED, subtask.watermark_us - group.max_drift_us > wait_for_us)
        now_ms = self._now_ms()
        if self._told_ms is None or now_ms - self._told_ms >= REPORT_INTERVAL_MS:
            self._report(now_ms)

    def take(self, groups: Mapping[str, GroupWatermark]) -> None:
        """The driver reports how far groups are, by name."""
        self._lows |= groups

    def _report(self, now_ms: int) -> None:
        news = []
        for subtask, _, group in self._members:
            mark = (subtask.watermark_us, subtask.watermarks.reported_idle)
            if self._told.get(subtask.subtask) != mark:
                self._told[subtask.subtask] = mark
                news.append(SourceWatermark(subtask.subtask, group.name, *mark))
        if news:
            self._told_ms = now_ms
            self._send(SourceWatermarks(tuple(news)))


IDLE_WAIT_S = 0.05
"""Longest sleep of an idle loop, seconds: bounds the delay of a wake-up that raced with falling asleep."""

INPUT_STEPS_PER_ROUND = 64
"""Most elements that one subtask takes from its inputs before sources are polled again. With p slots, one poll of each
source makes up to p parts in every slot: a loop that takes fewer parts a round than arrive fills its queues with small
batches. The bound keeps a slot's other subtasks from starving."""
INPUT_TURN_MS = 10
"""How long such a turn may last, milliseconds: behind slow operators a round must not take as long as a full queue."""

COMMIT_PENDING = "too much is not committed"
"""Why sources are not read while a commit gate holds too much back (S7.8)."""
MAX_KNOWN_PLACES = 1_024
"""Snapshot locations a slot remembers; more than can be pending at once, since the coordinator bounds those."""


class LoopSignal:
    """The one wake primitive of a slot's loop."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Wake the loop; from any thread."""
        self._event.set()

    def wait(self, timeout_s: float) -> None:
        """Sleep until woken or `timeout_s` has passed; forgets the wake-up."""
        self._event.wait(timeout_s)
        self._event.clear()


class Slot:
    """Hosts subtasks; implements SubtaskHost.

    Call order: construct, `subtasks = deploy(..., host=slot)`, `start(subtasks)`, then `run`, or `pump` when driven
    from
    outside. `tell` may be called from any thread, everything else from the loop's.
    """

    def __init__(
        self,
        *,
        run_id: str,
        generation: int,
        send: Callable[[SlotMessage], None],
        open_location: OpenLocation,
        threshold_bytes: int,
        writers: Executor,
        now_ms: Callable[[], int],
        wake: LoopSignal,
        transport_failure: Callable[[], BaseException | None] = lambda: None,
        copies: LocalCopies | None = None,
        compression: SnapshotCompression = "none",
        input_steps: int = INPUT_STEPS_PER_ROUND,
    ) -> None:
        """Args: send: a message to the driver, must not block. threshold_bytes: `state_size_threshold`. copies: with
        `local_recovery` (S5.4). compression: `snapshot_compression`. input_steps: see `INPUT_STEPS_PER_ROUND`."""
        self._run_id = run_id
        self._generation = generation
        self._send = send
        self._open_location = open_location
        self._writer = SnapshotWriter(run_id, generation, open_location, threshold_bytes, writers, copies, compression)
        self._writers = writers
        self._now_ms = now_ms
        self._wake = wake
        self._transport_failure = transport_failure
        self._input_steps = input_steps
        self._subtasks: list[Subtask] = []
        self._by_id: dict[tuple[int, int], Subtask] = {}
        self._aligned = AlignedSources((), send, now_ms)
        self._inbox: deque[DriverMessage | Callable[[], None]] = deque()
        self._places: dict[int, SnapshotPlace] = {}
        self._held: dict[int, list[Callable[[SnapshotPlace], None]]] = {}
        self._newest_trigger = 0
        self._cancelled = False
        self.progress = 0
        self.rounds = 0

    # ------------------------------------------------------------ SubtaskHost

    def now_ms(self) -> int:
        """Processing time, milliseconds since the epoch."""
        return self._now_ms()

    def wake(self) -> None:
        """Rouse the loop; from any thread."""
        self._wake.set()

    def restored_files(self, files: Mapping[tuple[str, int], Sequence[BlobFile]]) -> None:
        """Rely on them until the first completed checkpoint."""
        self._writer.blobs.restored(files)

    def write_snapshot(
        self,
        subtask: tuple[int, int],
        checkpoint_id: int,
        parts: Sequence[tuple[str, AsyncSnapshot]],
        metrics: dict[str, float],
        finished: bool,
        over: Callable[[int], None],
    ) -> None:
        """Hand the asynchronous phase to a writer; a barrier that overtook its trigger message waits for the place."""

        def submit(place: SnapshotPlace) -> None:
            self._write(subtask, place, parts, metrics, finished, over)

        place = self._places.get(checkpoint_id)
        if place is None and checkpoint_id <= self._newest_trigger:
            over(checkpoint_id)  # aborted since: triggers come in order, and this one's place has been forgotten
            return
        if place is None:
            self._held.setdefault(checkpoint_id, []).append(submit)
        else:
            submit(place)

    def decline(self, subtask: tuple[int, int], checkpoint_id: int, reason: str, code: DeclineCode = "failed") -> None:
        """Tell the coordinator."""
        self._send(Declined(subtask, checkpoint_id, self._run_id, reason, code))

    def ended(self, subtask: tuple[int, int], natural: bool) -> None:
        """Tell the coordinator."""
        self._send(SubtaskEndedData(subtask, natural))

    def finished(self, subtask: tuple[int, int]) -> None:
        """Tell the coordinator."""
        self._send(SubtaskFinished(subtask, self._last_counts(subtask)))

    def commit(
        self,
        subtask: tuple[int, int],
        checkpoint_id: int,
        work: Sequence[Callable[[], None]],
        done: Callable[[], None],
    ) -> None:
        """Do the commits on writers, report them, then `done` on the loop."""

        def committed(_: object) -> None:
            self._send(SubtaskCommitted(subtask, checkpoint_id))
            self.post(done)

        run_concurrently(self._writers, work, committed, lambda error: self.post(lambda: _raise(error)))

    def _write(
        self,
        subtask: tuple[int, int],
        place: SnapshotPlace,
        parts: Sequence[tuple[str, AsyncSnapshot]],
        metrics: dict[str, float],
        finished: bool,
        over: Callable[[int], None],
    ) -> None:
        checkpoint_id = place.checkpoint_id
        counters = self._last_counts(subtask) if finished else {}

        def written(made: WrittenSnapshot) -> None:
            operators = {uid: handle.to_json() for uid, handle in made.handles.items()}
            measured = {**metrics, **made.metrics}
            self._send(Acknowledged(subtask, checkpoint_id, self._run_id, operators, measured, finished, counters))
            self.post(partial(over, checkpoint_id))

        def failed(error: Exception) -> None:
            traceback.print_exception(error)
            self.decline(subtask, checkpoint_id, f"state could not be written: {type(error).__name__}: {error}")
            self.post(partial(over, checkpoint_id))

        self._writer.write(subtask[1], place, parts, written, failed)

    def _last_counts(self, subtask: tuple[int, int]) -> Mapping[str, int]:
        """Counts of a source subtask that has processed all its data: no position holds them from then on."""
        hosted = self._by_id.get(subtask)
        return hosted.source_input.counters() if hosted is not None and hosted.source_input is not None else {}

    # ------------------------------------------------------------ messages

    def post(self, message: DriverMessage | Callable[[], None]) -> None:
        """Queue a message of the driver, or a call, for the loop; from any thread."""
        self._inbox.append(message)
        self._wake.set()

    def unhandled(self) -> Sequence[DriverMessage]:
        """Messages of the driver that came too late for the loop, which has ended; they are no longer here."""
        rest = [message for message in self._inbox if not callable(message)]
        self._inbox.clear()
        return rest

    def start(self, subtasks: Sequence[Subtask]) -> None:
        """Take the deployed subtasks, downstream ones first, and report them running."""
        self._subtasks = list(subtasks)
        self._by_id = {s.subtask: s for s in subtasks}
        self._aligned = AlignedSources(subtasks, self._send, self._now_ms)
        for subtask in subtasks:
            self._send(SubtaskRunning(subtask.subtask))

    def _take_messages(self) -> bool:
        any_taken = bool(self._inbox)
        while self._inbox:
            message = self._inbox.popleft()
            if callable(message):
                message()
            else:
                self._on_message(message)
        return any_taken

    def _on_message(self, message: DriverMessage) -> None:
        match message:
            case Trigger():
                self._on_trigger(message)
            case Abort(checkpoint_id):
                self._places.pop(checkpoint_id, None)
                self._held.pop(checkpoint_id, None)
                self._writer.blobs.aborted(checkpoint_id)
                for subtask in self._subtasks:
                    subtask.aborted(checkpoint_id)
            case Complete(checkpoint_id, generation, log_number):
                self._writer.completed(checkpoint_id)
                for subtask in self._subtasks:
                    subtask.completed(CommitPermit(checkpoint_id, generation, log_number))
            case Durable(checkpoint_id, last):
                self._writer.completed(checkpoint_id)
                for subtask in self._subtasks:
                    subtask.durable(checkpoint_id, last=last)
            case Commit(checkpoint_id, generation, log_number):
                for subtask in self._subtasks:
                    subtask.completed(CommitPermit(checkpoint_id, generation, log_number), report=True)
            case Quarantine(path, withheld):
                for subtask in self._subtasks:
                    subtask.commits.quarantine(withheld, partial(self._open_location, path))
            case PauseSources(paused):
                for subtask in self._subtasks:
                    if subtask.source_input is not None:
                        subtask.source_input.pause(COMMIT_PENDING, paused)
            case AlignSources(groups):
                self._aligned.take(groups)
            case LetFinish():
                for subtask in self._subtasks:
                    subtask.let_finish()
            case Cancel():
                self._cancelled = True
            case Deploy() | Start():
                raise AssertionError(f"{type(message).__name__} comes before the loop")
            case _:
                assert_never(message)

    def _on_trigger(self, message: Trigger) -> None:
        checkpoint_id = message.checkpoint_id
        contained = message.kind in SAVEPOINT_KINDS
        place = self._places[checkpoint_id] = SnapshotPlace(checkpoint_id, message.path, contained)
        self._newest_trigger = max(self._newest_trigger, checkpoint_id)
        while len(self._places) > MAX_KNOWN_PLACES:
            del self._places[min(self._places)]
        for submit in self._held.pop(checkpoint_id, ()):
            submit(place)
        barrier = CheckpointBarrier(checkpoint_id, message.kind, message.triggered_ms, message.stop)
        for triggered in message.subtasks:
            subtask = self._by_id.get(triggered)
            if subtask is not None:
                subtask.trigger(barrier)

    # ------------------------------------------------------------ loop

    @property
    def is_over(self) -> bool:
        """Every subtask has finished, or the driver cancelled the run."""
        return self._cancelled or all(s.is_finished for s in self._subtasks)

    @property
    def was_cancelled(self) -> bool:
        """The driver cancelled the run."""
        return self._cancelled

    def run_round(self) -> bool:
        """One round: messages, then a turn of every subtask, downstream ones first, so that what waits in the queues is
        processed before sources add to it. False: nothing could be done now."""
        self.rounds += 1
        progressed = told = self._take_messages()
        failure = self._transport_failure()
        if failure is not None and not self._cancelled:
            raise failure
        self._aligned.update()
        for subtask in self._subtasks:
            # What the driver has said reaches every subtask before queues are drained: no barrier waits for them.
            if subtask.step() if told else self._step_subtasks(subtask):
                progressed = True
        if progressed:
            self.progress += 1
        return progressed

    def _step_subtasks(self, subtask: Subtask) -> bool:
        """One step of a source; of another subtask as many as its inputs have elements, up to the bounds. A message of
        the driver (a trigger, an abort) ends the turn early: it does not wait for a whole queue."""
        until_ms = self._now_ms() + INPUT_TURN_MS
        if not subtask.step():
            return False
        if subtask.source_input is None:
            for _ in range(self._input_steps - 1):
                if self._inbox or self._now_ms() >= until_ms or not subtask.step():
                    break
        return True

    def run(self) -> None:
        """Pump until over. Sleeps only when no subtask could do anything."""
        while not self.is_over:
            if not self.run_round():
                self._wake.wait(self._sleep_s())

    def _sleep_s(self) -> float:
        times = [at_ms for s in self._subtasks if (at_ms := s.retry_at_ms) is not None]  # asked once: time goes on
        if not times:
            return IDLE_WAIT_S
        return min(IDLE_WAIT_S, max(0.0, (min(times) - self._now_ms()) / 1000))

    def close(self) -> None:
        """Close every subtask; errors are printed, since the run's own outcome matters more."""
        for subtask in self._subtasks:
            try:
                subtask.close()
            except Exception:
                traceback.print_exc()

    def metrics(self) -> SlotMetrics:
        """For the heartbeat."""
        return SlotMetrics(
            self.progress,
            tuple(
                SubtaskMetrics(
                    s.subtask,
                    s.rows_in,
                    s.rows_out,
                    s.watermark_us,
                    tuple(s.at_work()),
                    s.source_input.metrics() if s.source_input is not None else None,
                    {uid: dict(context.counters) for uid, context in s.contexts() if context.counters},
                )
                for s in self._subtasks
            ),
        )


def _raise(error: BaseException) -> None:
    raise error
