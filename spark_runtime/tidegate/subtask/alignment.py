"""Barrier alignment over the input channels of one subtask (S3.2-S3.5, S3.7). Pure: events in, actions out.

Phases of a checkpoint in exactly-once mode:

    aligning    from its first barrier on. Channels that delivered the barrier are blocked. Ends with TakeSnapshot when
                every channel has delivered the barrier or ended.
    taking      unaligned only: the checkpoint has waited long enough. TakeUnaligned was returned, and the subtask is
                about to take its snapshot.
    capturing   unaligned only: the snapshot is taken and the barrier sent on. Records that are, or will be, queued
                before the barrier in the input channels are the channel state. Ends with CaptureComplete when every
                channel has delivered its barrier or ended.

Barriers are reported twice: to `on_barrier_queued`, when a barrier arrives in a channel's queue (only with unaligned
checkpoints), and to `barrier`, when it is polled. The two may be reported in either order, because another thread fills
the queues. At most one checkpoint at a time aligns by blocking. Later checkpoints may already be reported as queued,
and wait for it: a barrier overtakes records, never another barrier.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tidegate.channel.elements import CheckpointBarrier

AlignmentMode = Literal["exactly_once", "at_least_once", "off"]


@dataclass(frozen=True, slots=True)
class BlockChannel:
    """Do not process `channel` until UnblockAll."""

    channel: int


@dataclass(frozen=True, slots=True)
class UnblockAll:
    """Resume every channel."""


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Take the snapshot: all barriers have arrived. `first_ms`: when the first one arrived, by the caller's clock."""

    barrier: CheckpointBarrier
    first_ms: int


@dataclass(frozen=True, slots=True)
class TakeUnaligned:
    """Take the snapshot now, so that the barrier overtakes queued records; then call `on_snapshot_taken`.

    `first_ms`: see TakeSnapshot.
    """

    barrier: CheckpointBarrier
    first_ms: int


@dataclass(frozen=True, slots=True)
class CaptureQueued:
    """Add the records queued on `channel` before its barrier or end to the channel state of `checkpoint_id`.

    They follow the records that were recorded before. This is the last action for the channel.
    """

    checkpoint_id: int
    channel: int


@dataclass(frozen=True, slots=True)
class RecordChannel:
    """Record what is polled from `channel` from now on as channel state of `checkpoint_id`.

    Ends with CaptureQueued or StopRecording.
    """

    checkpoint_id: int
    channel: int


@dataclass(frozen=True, slots=True)
class StopRecording:
    """Stop recording `channel`, because its barrier or end has been polled."""

    checkpoint_id: int
    channel: int


@dataclass(frozen=True, slots=True)
class CaptureComplete:
    """The channel state of `checkpoint_id` is complete. It may be made durable and acknowledged."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class AlignmentAborted:
    """The checkpoint is aborted in this subtask, captured or not. Report it to the coordinator."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ForwardCancel:
    """Send the cancel marker of `checkpoint_id` downstream, once."""

    checkpoint_id: int


AlignmentAction: TypeAlias = (
    BlockChannel
    | UnblockAll
    | TakeSnapshot
    | TakeUnaligned
    | CaptureQueued
    | RecordChannel
    | StopRecording
    | CaptureComplete
    | AlignmentAborted
    | ForwardCancel
)


@dataclass
class _Alignment:
    """The progress of one checkpoint.

    Attributes:
        arrived: channels whose barrier was polled.
        on_barrier_queued: channels whose barrier has arrived in the queue, polled or not.
        missing: while capturing, channels whose barrier has not arrived.
        overtaken_by: a newer checkpoint that arrived on a channel without this one, which therefore cannot complete.
    """

    barrier: CheckpointBarrier
    first_ms: int
    phase: Literal["aligning", "taking", "capturing"] = "aligning"
    arrived: set[int] = field(default_factory=set)
    on_barrier_queued: set[int] = field(default_factory=set)
    missing: set[int] = field(default_factory=set)
    overtaken_by: int | None = None


class BarrierAligner:
    """Alignment state of one subtask.

    Exactly-once blocks the channels that have delivered the barrier of the aligning checkpoint. At-least-once keeps
    every alignment that can still complete, and blocks no channel. Off takes no part: barriers are declined, and cancel
    markers forwarded.
    """

    def __init__(self, channels: int, mode: AlignmentMode, unaligned_after_ms: int | None = None) -> None:
        """Create the aligner.

        Args:
            channels: number of input channels, numbered from 0.
            unaligned_after_ms: time from the first barrier of a checkpoint until it overtakes queued records; None:
                never. Exactly-once only.
        """
        assert unaligned_after_ms is None or mode == "exactly_once", f"{mode} is never unaligned"
        self._channels = channels
        self._mode = mode
        self._exactly_once = mode == "exactly_once"
        self._unaligned_after_ms = unaligned_after_ms
        self._is_simple = channels == 1 and self._exactly_once and unaligned_after_ms is None
        self._closed: set[int] = set()
        self._ending: set[int] = set()
        self._current: dict[int, _Alignment] = {}
        self._newest_done = 0
        self._cancelled: set[int] = set()
        self._forwarded: set[int] = set()

    @property
    def aligning(self) -> Collection[int]:
        """Ids of unfinished checkpoints in this subtask, ascending in exactly-once: aligning, taking or capturing."""
        return self._current.keys()

    # ------------------------------------------------------------ barriers, markers and ends in their turn

    def barrier(self, channel: int, barrier: CheckpointBarrier, now_ms: int) -> list[AlignmentAction]:
        """Process a barrier polled from `channel`."""
        n = barrier.checkpoint_id
        if self._is_over(n):
            return []
        if self._is_simple:
            # With one channel the first barrier is also the last: nothing is blocked, and no alignment has to be kept
            # (S3.2).
            self._newest_done = n
            self._drop_old()
            return [TakeSnapshot(barrier, now_ms)]
        if self._mode == "off":
            return self._abort(n, "checkpointing is off")
        alignment = self._begin(barrier, now_ms)
        if alignment is None:
            return []
        actions = self._abort_older(channel, n)
        alignment.arrived.add(channel)
        # The queue's thread may report the barrier only after it is polled here. Whichever comes first ends the
        # recording.
        if alignment.phase == "capturing":
            return actions + self._captured(n, channel, StopRecording(n, channel))
        alignment.on_barrier_queued.add(channel)
        if self._is_complete(alignment):
            return actions + self._complete(n)
        if self._exactly_once:
            actions.append(BlockChannel(channel))
        return actions

    def end_of_partition(self, channel: int) -> list[AlignmentAction]:
        """Process the polled end of `channel`. The channel counts as having delivered every barrier (S3.5)."""
        self._closed.add(channel)
        actions: list[AlignmentAction] = []
        for n, alignment in list(self._current.items()):
            if alignment.phase == "capturing":
                actions += self._captured(n, channel, StopRecording(n, channel))
        # Only at-least-once can complete several at once. The newest is enough, because older ones are then dropped
        # (S3.3).
        complete = [n for n, alignment in self._current.items() if self._is_complete(alignment)]
        return actions + (self._complete(max(complete)) if complete else [])

    def cancel(self, checkpoint_id: int) -> list[AlignmentAction]:
        """Process a cancel marker, which may come before or after barriers of its id (S3.4)."""
        if self._is_over(checkpoint_id):
            return []
        return [
            *self._drop(checkpoint_id),
            *self._report(checkpoint_id, "an upstream subtask could not take part in the snapshot"),
        ]

    def abort(self, checkpoint_id: int) -> list[AlignmentAction]:
        """Abort `checkpoint_id` for the coordinator. The id is remembered, and channels are unblocked (S2.2)."""
        if self._is_over(checkpoint_id):
            return []
        return self._drop(checkpoint_id)

    # ------------------------------------------------------------ unaligned

    def on_barrier_queued(self, channel: int, barrier: CheckpointBarrier, now_ms: int) -> list[AlignmentAction]:
        """Process the arrival of a barrier in the queue of `channel`.

        Returned actions never emit or block. So this may be called at any time, even during an emission.
        """
        n = barrier.checkpoint_id
        if self._is_over(n):
            return []
        alignment = self._begin(barrier, now_ms)
        if alignment is None or channel in alignment.on_barrier_queued:
            return []
        for m, older in self._current.items():
            # Channels are first-in-first-out, so the older barrier cannot follow. The abort waits for `due_action`,
            # because it sends a cancel marker, and this method must not emit.
            if m < n and channel not in older.on_barrier_queued:
                older.overtaken_by = n
        if alignment.phase == "capturing":
            return self._captured(n, channel, CaptureQueued(n, channel))
        alignment.on_barrier_queued.add(channel)
        return []

    def on_end_queued(self, channel: int) -> list[AlignmentAction]:
        """Process the arrival of the end in the queue of `channel`: no barrier follows.

        Actions as in `on_barrier_queued`.
        """
        self._ending.add(channel)
        actions: list[AlignmentAction] = []
        for n, alignment in list(self._current.items()):
            if alignment.phase == "capturing":
                actions += self._captured(n, channel, CaptureQueued(n, channel))
        return actions

    @property
    def all_ends_arrived(self) -> bool:
        """True when nothing more will arrive on any channel. Elements may still be queued."""
        return len(self._ending | self._closed) == self._channels

    @property
    def due_ms(self) -> int | None:
        """Time from which `due_action` can return actions, by the caller's clock; None: not before another event."""
        if self._unaligned_after_ms is None:
            return None
        if any(alignment.overtaken_by is not None for alignment in self._current.values()):
            return 0
        for alignment in self._current.values():
            # The oldest one that does not capture yet decides, because a barrier never overtakes another barrier.
            if alignment.phase != "capturing":
                may_overtake = alignment.phase == "aligning" and alignment.barrier.kind == "checkpoint"
                return alignment.first_ms + self._unaligned_after_ms if may_overtake else None
        return None

    def due_action(self, now_ms: int) -> list[AlignmentAction]:
        """Return the actions that are due because of time or queued barriers.

        Call it only between emissions: it may take a snapshot.
        """
        actions: list[AlignmentAction] = []
        for n, alignment in list(self._current.items()):
            newer = alignment.overtaken_by
            if newer is not None:
                actions += self._abort(
                    n, f"a barrier of checkpoint {newer} arrived before all barriers of checkpoint {n}"
                )
        due_ms = self.due_ms
        if due_ms is None or now_ms < due_ms:
            return actions
        alignment = next(a for a in self._current.values() if a.phase == "aligning")
        alignment.phase = "taking"
        # Unblocking before the snapshot is safe: no channel is polled until the snapshot is taken.
        if alignment.arrived:
            actions.append(UnblockAll())
        return [*actions, TakeUnaligned(alignment.barrier, alignment.first_ms)]

    def triggered(self, barrier: CheckpointBarrier, since_ms: int, now_ms: int) -> list[AlignmentAction]:
        """Process a trigger that has waited in this subtask since `since_ms` for the end of every input (S1.3).

        Call it only between emissions. The snapshot may overtake queued records as soon as every end has arrived in the
        queues. Returns [] if it may not yet: call again. Also returns [] in sources and after every end was processed,
        where there is nothing to overtake.
        """
        if not self.may_take_trigger(barrier, since_ms, now_ms):
            return []
        self._current[barrier.checkpoint_id] = _Alignment(barrier, since_ms, "taking")
        return [TakeUnaligned(barrier, since_ms)]

    def may_take_trigger(self, barrier: CheckpointBarrier, since_ms: int, now_ms: int) -> bool:
        """Return whether `triggered` would return a snapshot."""
        return (
            self._unaligned_after_ms is not None
            and barrier.kind == "checkpoint"
            and now_ms >= since_ms + self._unaligned_after_ms
            and len(self._closed) < self._channels
            and self.all_ends_arrived
            and all(a.phase == "capturing" for a in self._current.values())
        )

    def on_snapshot_taken(self, checkpoint_id: int) -> list[AlignmentAction]:
        """Process the snapshot of TakeUnaligned, right after it was taken.

        No channel may have been polled since TakeUnaligned. Returns [] if the checkpoint has been aborted since.
        """
        alignment = self._current.get(checkpoint_id)
        if alignment is None:
            return []
        alignment.phase = "capturing"
        actions: list[AlignmentAction] = []
        for channel in range(self._channels):
            # All records before the barrier or the end have been processed here, so that nothing is in flight.
            if channel in alignment.arrived or channel in self._closed:
                continue
            # Everything before the barrier is in the queue already. Later records belong to a later snapshot.
            if channel in alignment.on_barrier_queued or channel in self._ending:
                actions.append(CaptureQueued(checkpoint_id, channel))
            else:
                alignment.missing.add(channel)
                actions.append(RecordChannel(checkpoint_id, channel))
        return actions if alignment.missing else actions + self._capture_complete(checkpoint_id)

    # ------------------------------------------------------------ inside

    def _begin(self, barrier: CheckpointBarrier, now_ms: int) -> _Alignment | None:
        """Return the alignment of `barrier`, a new one if it is unknown, or None if a newer checkpoint makes it too
        late.
        """
        n = barrier.checkpoint_id
        alignment = self._current.get(n)
        if alignment is None:
            if self._exactly_once and self._current and n < max(self._current):
                return None
            alignment = self._current[n] = _Alignment(barrier, now_ms)
        return alignment

    def _abort_older(self, channel: int, checkpoint_id: int) -> list[AlignmentAction]:
        """Abort older checkpoints that cannot complete, because `channel` skipped their barrier (S3.4). Exactly-once
        only.

        While a checkpoint aligns, the channels that delivered its barrier are blocked. So any newer barrier proves a
        skip.
        """
        actions: list[AlignmentAction] = []
        if self._exactly_once and len(self._current) > 1:
            for m, older in list(self._current.items()):
                if m < checkpoint_id and (older.phase == "aligning" or channel not in older.on_barrier_queued):
                    actions += self._abort(
                        m, f"a barrier of checkpoint {checkpoint_id} arrived before all barriers of checkpoint {m}"
                    )
        return actions

    def _is_over(self, checkpoint_id: int) -> bool:
        """Return whether the checkpoint has completed or was aborted or cancelled here."""
        if checkpoint_id in self._cancelled:
            return True
        # The id alone does not decide: an older checkpoint may still capture when a newer one is done.
        return checkpoint_id <= self._newest_done and checkpoint_id not in self._current

    def _captured(self, checkpoint_id: int, channel: int, action: AlignmentAction) -> list[AlignmentAction]:
        alignment = self._current[checkpoint_id]
        alignment.on_barrier_queued.add(channel)
        # The barrier is reported twice, when queued and when polled. Only the first report ends the capture.
        if channel not in alignment.missing:
            return []
        alignment.missing.discard(channel)
        return [action] if alignment.missing else [action, *self._capture_complete(checkpoint_id)]

    def _capture_complete(self, checkpoint_id: int) -> list[AlignmentAction]:
        self._done(checkpoint_id)
        return [CaptureComplete(checkpoint_id)]

    def _drop(self, checkpoint_id: int) -> list[AlignmentAction]:
        # Remembered even if unknown: barriers of this id may still arrive, and must block no channel (S3.4). Not by
        # `_newest_done`: the barriers of an older checkpoint, which is still pending, may arrive later.
        self._cancelled.add(checkpoint_id)
        dropped = self._current.pop(checkpoint_id, None)
        # A checkpoint whose barriers are only queued blocks nothing. Channels blocked for an older one must stay
        # blocked.
        was_blocking = dropped is not None and dropped.phase == "aligning" and bool(dropped.arrived)
        return [UnblockAll()] if was_blocking and self._exactly_once else []

    def _report(self, checkpoint_id: int, reason: str) -> list[AlignmentAction]:
        """Report to the coordinator, and once downstream."""
        actions: list[AlignmentAction] = [AlignmentAborted(checkpoint_id, reason)]
        if checkpoint_id not in self._forwarded:
            self._forwarded.add(checkpoint_id)
            actions.append(ForwardCancel(checkpoint_id))
        return actions

    def _abort(self, checkpoint_id: int, reason: str) -> list[AlignmentAction]:
        actions = [*self._drop(checkpoint_id), *self._report(checkpoint_id, reason)]
        self._newest_done = max(self._newest_done, checkpoint_id)
        self._drop_old()
        return actions

    def _is_complete(self, alignment: _Alignment) -> bool:
        return alignment.phase == "aligning" and len(alignment.arrived | self._closed) == self._channels

    def _complete(self, checkpoint_id: int) -> list[AlignmentAction]:
        done = self._current[checkpoint_id]
        self._done(checkpoint_id)
        take = TakeSnapshot(done.barrier, done.first_ms)
        if self._exactly_once and self._channels > 1:
            return [UnblockAll(), take]
        return [take]

    def _done(self, checkpoint_id: int) -> None:
        """Remove a completed checkpoint.

        At-least-once also drops older ones (S3.3); exactly-once aborts them elsewhere.
        """
        del self._current[checkpoint_id]
        if not self._exactly_once:
            for older in [n for n in self._current if n < checkpoint_id]:
                del self._current[older]
        self._newest_done = max(self._newest_done, checkpoint_id)
        self._drop_old()

    def _drop_old(self) -> None:
        # `_is_over` needs no entry for ids up to `_newest_done`, so the sets stay small in long runs.
        if self._cancelled or self._forwarded:
            self._cancelled = {n for n in self._cancelled if n > self._newest_done}
            self._forwarded = {n for n in self._forwarded if n > self._newest_done}
