"""One slot: its subtasks, the messages of its control connection, and its cooperative loop (design, "Loop rules").

Other threads only append to the inbox and wake the loop. Everything else happens in `run`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import assert_never

from tidegate.channel.control.protocol import (
    Abort,
    Acknowledged,
    AlignSources,
    AssignSplits,
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
    SplitsHeld,
    Start,
    SubtaskCommitted,
    SubtaskEndedData,
    SubtaskFinished,
    SubtaskMetrics,
    SubtaskRunning,
    Trigger,
)
from tidegate.channel.elements import MAX_WATERMARK, SAVEPOINT_KINDS, CheckpointBarrier
from tidegate.connectors.split_documents import split_from_json
from tidegate.jobs.options import SnapshotCompression
from tidegate.log_format import context
from tidegate.operators.stream_operator import CommitPermit
from tidegate.snapshot.blobs import BlobFile
from tidegate.snapshot.handles import OpenLocation
from tidegate.snapshot.local_copies import LocalCopies
from tidegate.snapshot.parts import AsyncSnapshot
from tidegate.subtask.snapshots.snapshot_writer import SnapshotPlace, SnapshotWriter, WrittenSnapshot
from tidegate.subtask.snapshots.writer_threads import run_concurrently
from tidegate.subtask.subtask import Subtask

logger = logging.getLogger("tidegate.subtask")

REPORT_INTERVAL_MS = 200
"""Shortest time between reports of the sources' watermarks to the driver, milliseconds. It limits how far a source may
exceed its drift."""
PAUSED = "ahead of its alignment group"
"""Reason of the pause of a source that is too far ahead."""
IDLE_WAIT_S = 1.0
"""Longest sleep of an idle loop, seconds.

Nothing waits for it: messages, elements, credit, answers and pushed rows wake the loop, and times (timers, polls, idle
sources, reports) end the sleep. It only limits the delay if user code changes what its operator waits for without a
call of `wake`.
"""

INPUT_STEPS_PER_ROUND = 64
"""Most elements that one subtask takes from its inputs before sources are polled again.

With p slots, one poll of each source creates up to p parts in every slot. A loop that takes fewer parts per round than
arrive fills its queues with small batches. The limit keeps the slot's other subtasks from starving.
"""
INPUT_TURN_MS = 10
"""Longest duration of such a turn, milliseconds. With slow operators, a round must not take as long as a full queue."""

LINGER_S = 0.0008
"""Pause after a round in which sources emitted all they have, seconds. Paced sources of all slots emit at the same
ticks. Without the pause, an operator is called for the rows of its own slot, and again for the rows of each other."""

COMMIT_PENDING = "too many checkpoints are not committed"
"""Reason of the pause of sources while too many checkpoints wait for a verdict (S7.8)."""
MAX_KNOWN_PLACES = 1_024
"""Snapshot locations that a slot remembers. More than can be pending at once, because the coordinator limits those."""


class AlignedSources:
    """Reports watermarks of sources to the driver, and pauses sources that are too far ahead of their alignment group.

    The driver sends the lowest watermark of each group. A source is paused while it is further ahead than its drift
    allows.
    """

    def __init__(
        self, subtasks: Sequence[Subtask], send: Callable[[SlotMessage], None], now_ms: Callable[[], int]
    ) -> None:
        """Args: subtasks: subtasks of the slot; only sources that belong to a group are used."""
        sources = [(s, s.source_input) for s in subtasks if s.source_input is not None]
        self._members = [(s, source, source.group) for s, source in sources if source.group is not None]
        self._send = send
        self._now_ms = now_ms
        self._reported: dict[tuple[int, int], tuple[int, bool]] = {}
        self._reported_ms: int | None = None
        self._lows: dict[str, GroupWatermark] = {}

    def update(self) -> None:
        """Update pauses and reports. Call it once per round of the loop."""
        if not self._members:
            return
        for subtask, source, group in self._members:
            # Until the driver reports the group, no source waits.
            low = self._lows.get(group.name, GroupWatermark(MAX_WATERMARK, None, MAX_WATERMARK))
            wait_for_us = low.others_us if low.of == subtask.subtask else low.low_us
            source.pause(PAUSED, subtask.watermark_us - group.max_drift_us > wait_for_us)
        now_ms = self._now_ms()
        if self._reported_ms is None or now_ms - self._reported_ms >= REPORT_INTERVAL_MS:
            self._report(now_ms)

    def take(self, groups: Mapping[str, GroupWatermark]) -> None:
        """Store the progress of groups that the driver reports, by name."""
        self._lows |= groups

    @property
    def due_ms(self) -> int | None:
        """Time of the next report, of changes that came soon after the last report; None: nothing has changed."""
        if self._reported_ms is None or all(
            self._reported.get(subtask.subtask) == (subtask.watermark_us, subtask.watermarks.reported_idle)
            for subtask, _, _ in self._members
        ):
            return None
        return self._reported_ms + REPORT_INTERVAL_MS

    def _report(self, now_ms: int) -> None:
        news = []
        for subtask, _, group in self._members:
            mark = (subtask.watermark_us, subtask.watermarks.reported_idle)
            if self._reported.get(subtask.subtask) != mark:
                self._reported[subtask.subtask] = mark
                news.append(SourceWatermark(subtask.subtask, group.name, *mark))
        # Without news the time is not set, so that the first change after a quiet period is reported immediately.
        if news:
            self._reported_ms = now_ms
            self._send(SourceWatermarks(tuple(news)))


class LoopSignal:
    """The single primitive that wakes a slot's loop."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Wake the loop. Safe from any thread."""
        self._event.set()

    def wait(self, timeout_s: float) -> None:
        """Sleep until woken or until `timeout_s` has passed, then clear the wake-up.

        No wake-up is lost: whoever wakes the loop has changed its input before (an inbox, a queue, credit). A call of
        `set` before the clearing means that the following round sees the change; a later call ends the next wait.
        """
        self._event.wait(timeout_s)
        self._event.clear()

    def linger(self, pause_s: float) -> None:
        """Sleep for `pause_s`, whatever wakes the loop meanwhile."""
        time.sleep(pause_s)


class Slot:
    """Hosts subtasks; implements SubtaskHost.

    Call order: construct, `subtasks = deploy(..., host=slot)`, `start(subtasks)`, then `run`, or `run_round` if the
    caller drives the loop. `post` and `wake` may be called from any thread, everything else only from the loop's
    thread.
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
        write_out: Callable[[], None] = lambda: None,
        copies: LocalCopies | None = None,
        compression: SnapshotCompression = "none",
        input_steps: int = INPUT_STEPS_PER_ROUND,
        linger_s: float = 0.0,
        core_wait_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        """Create a slot.

        Args:
            send: sends a message to the driver; must not block.
            threshold_bytes: the option `state_size_threshold`.
            write_out: writes what a step has sent to other slots; called after every step.
            copies: local copies of state, with `local_recovery` (S5.4).
            compression: the option `snapshot_compression`.
            input_steps: see `INPUT_STEPS_PER_ROUND`.
            linger_s: see `LINGER_S`; 0: no pause, for a slot that receives nothing from others.
            core_wait_ms: see `SubtaskHost.core_wait_ms`. Called by the loop's thread.
        """
        self._run_id = run_id
        self._generation = generation
        self._send = send
        self._open_location = open_location
        self._writer = SnapshotWriter(run_id, generation, open_location, threshold_bytes, writers, copies, compression)
        self._writers = writers
        self._now_ms = now_ms
        self._wake = wake
        self._transport_failure = transport_failure
        self._write_out = write_out
        self._input_steps = input_steps
        self._linger_s = linger_s
        self._core_wait_ms = core_wait_ms
        self._only_sources_emitted = False
        self._is_exhausted = False
        self._subtasks: list[Subtask] = []
        self._by_id: dict[tuple[int, int], Subtask] = {}
        self._aligned = AlignedSources((), send, now_ms)
        self._inbox: deque[DriverMessage | Callable[[], None]] = deque()
        self._places: dict[int, SnapshotPlace] = {}
        self._held: dict[int, list[Callable[[SnapshotPlace], None]]] = {}
        self._newest_trigger = 0
        self._cancelled = False
        self._round_ms = 0
        self.progress = 0
        self.rounds = 0

    # ------------------------------------------------------------ SubtaskHost

    def now_ms(self) -> int:
        """Return the processing time, milliseconds since the epoch."""
        return self._now_ms()

    def core_wait_ms(self) -> int:
        """Return how long the loop's thread has waited for a core."""
        return self._core_wait_ms()

    def wake(self) -> None:
        """Wake the loop. Safe from any thread."""
        self._wake.set()

    def restored_files(self, files: Mapping[tuple[str, int], Sequence[BlobFile]]) -> None:
        """Register files of the restored snapshot, which are used until the first checkpoint completes."""
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
        """Pass the asynchronous phase to a writer thread.

        If the barrier arrived before the trigger message, the phase waits for the snapshot's location.
        """

        def submit(place: SnapshotPlace) -> None:
            self._write(subtask, place, parts, metrics, finished, over)

        place = self._places.get(checkpoint_id)
        if place is None and checkpoint_id <= self._newest_trigger:
            over(checkpoint_id)  # aborted: triggers arrive in order, so its location was known and is forgotten
            return
        if place is None:
            self._held.setdefault(checkpoint_id, []).append(submit)
        else:
            submit(place)

    def decline(self, subtask: tuple[int, int], checkpoint_id: int, reason: str, code: DeclineCode = "failed") -> None:
        """Send the message to the coordinator."""
        self._send(Declined(subtask, checkpoint_id, self._run_id, reason, code))

    def ended(self, subtask: tuple[int, int], natural: bool) -> None:
        """Send the message to the coordinator."""
        self._send(SubtaskEndedData(subtask, natural))

    def finished(self, subtask: tuple[int, int]) -> None:
        """Send the message to the coordinator."""
        self._send(SubtaskFinished(subtask, self._last_counts(subtask)))

    def splits_held(self, subtask: tuple[int, int], unfinished: int, received: int, passed: int, aborted: int) -> None:
        """Send the message to the coordinator."""
        self._send(SplitsHeld(subtask, unfinished, received, passed, aborted))

    def commit(
        self,
        subtask: tuple[int, int],
        checkpoint_id: int,
        work: Sequence[Callable[[], None]],
        done: Callable[[], None],
    ) -> None:
        """Run the commits on writer threads and report them, then run `done` on the loop."""

        def committed(_: object) -> None:
            # Sent before `done` is posted: `done` may let the subtask finish, and the driver must receive the commit
            # first.
            self._send(SubtaskCommitted(subtask, checkpoint_id))
            self.post(done)

        # An error is raised on the loop, where it ends the run.
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
        # Read here, because `written` runs on a writer thread, and only the loop may call the reader.
        counters = self._last_counts(subtask) if finished else {}

        def written(made: WrittenSnapshot) -> None:
            operators = {uid: handle.to_json() for uid, handle in made.handles.items()}
            measured = {**metrics, **made.metrics}
            # Sent before `over` is posted: a subtask that finishes before its acknowledgement would abort the snapshot
            # (S7.3).
            self._send(Acknowledged(subtask, checkpoint_id, self._run_id, operators, measured, finished, counters))
            self.post(partial(over, checkpoint_id))

        def failed(error: Exception) -> None:
            place = context(checkpoint=checkpoint_id, operator=",".join(uid for uid, _ in parts), subtask=subtask[1])
            logger.error("the snapshot could not be written, and is aborted", exc_info=error, extra=place)
            self.decline(subtask, checkpoint_id, f"state could not be written: {type(error).__name__}: {error}")
            self.post(partial(over, checkpoint_id))

        self._writer.write(subtask[1], place, parts, written, failed)

    def _last_counts(self, subtask: tuple[int, int]) -> Mapping[str, int]:
        """Return the counts of a source subtask that has processed all its data.

        Positions do not hold them from then on.
        """
        hosted = self._by_id.get(subtask)
        return hosted.source_input.counters() if hosted is not None and hosted.source_input is not None else {}

    # ------------------------------------------------------------ messages

    def post(self, message: DriverMessage | Callable[[], None]) -> None:
        """Queue a message of the driver, or a call, for the loop. Safe from any thread."""
        self._inbox.append(message)
        self._wake.set()

    def unhandled(self) -> Sequence[DriverMessage]:
        """Remove and return messages of the driver that arrived after the loop had ended."""
        rest = [message for message in self._inbox if not callable(message)]
        self._inbox.clear()
        return rest

    def start(self, subtasks: Sequence[Subtask]) -> None:
        """Take the deployed subtasks, downstream ones first, and report them as running."""
        self._subtasks = list(subtasks)
        self._by_id = {s.subtask: s for s in subtasks}
        self._aligned = AlignedSources(subtasks, self._send, self._now_ms)
        for subtask in subtasks:
            self._send(SubtaskRunning(subtask.subtask))
            if subtask.source_input is not None:
                subtask.source_input.report_held()

    def _take_messages(self) -> bool:
        any_taken = bool(self._inbox)
        while self._inbox:
            message = self._inbox.popleft()
            if callable(message):
                message()
            else:
                self._on_message(message)
        return any_taken

    def _on_message(self, message: DriverMessage) -> None:  # noqa: C901, PLR0912 - one case per message
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
            case AssignSplits(target, splits, last):
                self._by_id[target].assign([split_from_json(split) for split in splits], last=last)
            case LetFinish():
                for subtask in self._subtasks:
                    subtask.let_finish()
            case Cancel():
                self._cancelled = True
            case Deploy() | Start():
                raise AssertionError(
                    f"internal error: the message {type(message).__name__} arrived after the slot's loop had started"
                )
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
        """True when every subtask has finished, or the driver cancelled the run."""
        return self._cancelled or all(s.is_finished for s in self._subtasks)

    @property
    def was_cancelled(self) -> bool:
        """True when the driver cancelled the run."""
        return self._cancelled

    def run_round(self) -> bool:
        """Run one round: messages, then a turn of every subtask. Return False if nothing could be done.

        Downstream subtasks run first, so that queued elements are processed before sources add more.
        """
        self.rounds += 1
        self._round_ms = self._now_ms()
        progressed = has_messages = self._take_messages()
        others_progressed = False
        self._is_exhausted = not has_messages
        failure = self._transport_failure()
        # After a cancellation the other slots close their connections, which is no failure.
        if failure is not None and not self._cancelled:
            raise failure
        self._aligned.update()
        for subtask in self._subtasks:
            # Messages of the driver reach every subtask before queues are emptied, so that no barrier waits for the
            # queues.
            if self._step(subtask) if has_messages else self._step_subtasks(subtask):
                if not subtask.is_last:  # subtasks downstream had their turn before
                    self._is_exhausted = False
                progressed = True
                others_progressed = others_progressed or subtask.source_input is None
        self._only_sources_emitted = progressed and not has_messages and not others_progressed
        self._write_out()  # of all sources together: their subtasks come last, and often emit at the same time
        if progressed:
            self.progress += 1
        return progressed

    def _step_subtasks(self, subtask: Subtask) -> bool:
        """Do one step of a source, or several steps of another subtask, up to the limits.

        A message of the driver (a trigger, an abort) ends the turn early, so that it does not wait for a whole queue.
        """
        until_ms = self._now_ms() + INPUT_TURN_MS
        if not self._step(subtask):
            # An emission may wait for capacity that a subtask of this slot has just freed.
            self._is_exhausted = self._is_exhausted and not subtask.is_emitting
            return False
        if subtask.source_input is None:
            for _ in range(self._input_steps - 1):
                if self._inbox or self._now_ms() >= until_ms:
                    break
                if not self._step(subtask):
                    return True
        self._is_exhausted = False
        return True

    def _step(self, subtask: Subtask) -> bool:
        progressed = subtask.step()
        if subtask.source_input is None:
            self._write_out()
        return progressed

    def run(self) -> None:
        """Run rounds until the run is over. Sleeps if no subtask can do anything more, and lingers (`LINGER_S`)."""
        while not self.is_over:
            if not self.run_round() or (self._is_exhausted and not self.is_over):
                self._wake.wait(self._sleep_s())
            elif self._linger_s and self._only_sources_emitted and self._sources_are_read():
                self._wake.linger(self._linger_s)

    def _sources_are_read(self) -> bool:
        """Return whether all sources wait for a time, so that the next rows come from other slots."""
        return all(s.source_waits for s in self._subtasks if s.source_input is not None)

    def _sleep_s(self) -> float:
        """Return the seconds until something is due, at most `IDLE_WAIT_S`.

        Times up to the last round count as used: what was due then waits for something else, such as capacity.
        """
        times = [at_ms for s in self._subtasks if (at_ms := s.retry_at_ms(self._round_ms)) is not None]
        if (report_ms := self._aligned.due_ms) is not None:
            times.append(report_ms)
        if not times:
            return IDLE_WAIT_S
        return min(IDLE_WAIT_S, max(0.0, (min(times) - self._now_ms()) / 1000))

    def close(self) -> None:
        """Close every subtask. Errors are only logged, because the outcome of the run matters more."""
        for subtask in self._subtasks:
            try:
                subtask.close()
            except Exception:
                logger.exception(
                    "closing a subtask failed; the result of the run does not change",
                    extra=context(subtask=subtask.subtask[1]),
                )

    def metrics(self) -> SlotMetrics:
        """Return the metrics for the heartbeat."""
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
