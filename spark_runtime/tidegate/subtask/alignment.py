"""Barrier alignment over the input channels of one subtask (S3.2-S3.5, S3.7). Pure: events in, actions out.

Per checkpoint, exactly-once:

    aligning    from its first barrier on. Channels that delivered it are blocked. Over when every channel has delivered
                it or ended: TakeSnapshot.
    taking      unaligned: it has waited long enough, TakeUnaligned was told and the subtask is about to snapshot.
    capturing   unaligned: the snapshot is taken and the barrier sent on. What lies, or will lie, in front of the
                barrier in the input channels is the channels' state. Over when every channel's barrier, or its end, has
                arrived: CaptureComplete.

Barriers are known from two sides: `announced`, when one arrives in a channel's queue (only where unaligned checkpoints
are on), and `barrier`, when it is polled; either may be told first, since queues are filled by another thread. At most
one checkpoint is being aligned by blocking; later ones may be announced meanwhile, and wait for it: a barrier overtakes
records, never another barrier.
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
    """All barriers are here. `first_ms`: when the first one came, by the caller's clock."""

    barrier: CheckpointBarrier
    first_ms: int


@dataclass(frozen=True, slots=True)
class TakeUnaligned:
    """Snapshot now, with the barrier in front of what is queued; then call `taken`. `first_ms`: as above."""

    barrier: CheckpointBarrier
    first_ms: int


@dataclass(frozen=True, slots=True)
class CaptureQueued:
    """What is queued on `channel` in front of its barrier, or end, belongs to the channel's state of `checkpoint_id`,
    behind what was recorded there. The last that comes from this channel."""

    checkpoint_id: int
    channel: int


@dataclass(frozen=True, slots=True)
class RecordChannel:
    """What is polled from `channel` from now on belongs to the channel's state of `checkpoint_id`, until CaptureQueued
    or StopRecording."""

    checkpoint_id: int
    channel: int


@dataclass(frozen=True, slots=True)
class StopRecording:
    """The barrier, or the end, has been polled: nothing more from `channel`."""

    checkpoint_id: int
    channel: int


@dataclass(frozen=True, slots=True)
class CaptureComplete:
    """The channel state of `checkpoint_id` is whole: it may be made durable and acknowledged."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class AlignmentAborted:
    """The checkpoint is given up here, captured or not; report it to the coordinator."""

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
    """Attributes: arrived: channels whose barrier was polled. announced: arrived in the queue, polled or not.
    missing: while capturing, the channels whose barrier is still to come. overtaken_by: a newer checkpoint that came
    on a channel without this one, which therefore cannot complete."""

    barrier: CheckpointBarrier
    first_ms: int
    phase: Literal["aligning", "taking", "capturing"] = "aligning"
    arrived: set[int] = field(default_factory=set)
    on_barrier_queued: set[int] = field(default_factory=set)
    missing: set[int] = field(default_factory=set)
    overtaken_by: int | None = None


class BarrierAligner:
    """Alignment state of one subtask.

    Exactly-once blocks the channels that have delivered the barrier being aligned. At-least-once keeps every alignment
    that can still complete and blocks nothing. Off takes no part: a barrier is declined, and a cancel marker sent on.
    """

    def __init__(self, channels: int, mode: AlignmentMode, unaligned_after_ms: int | None = None) -> None:
        """Args: channels: number of input channels, numbered from 0.
        unaligned_after_ms: from the first arrival of a checkpoint's barrier to overtaking; None: never. Exactly-once
        only."""
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
        """Ids on their way through this subtask, ascending in exactly-once: aligned, taken or captured."""
        return self._current.keys()

    # ------------------------------------------------------------ barriers, markers and ends in their turn

    def barrier(self, channel: int, barrier: CheckpointBarrier, now_ms: int) -> list[AlignmentAction]:
        """Barrier polled from `channel`."""
        n = barrier.checkpoint_id
        if self._is_over(n):
            return []
        if self._is_simple:
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
        if alignment.phase == "capturing":
            return actions + self._captured(n, channel, StopRecording(n, channel))
        alignment.on_barrier_queued.add(channel)
        if self._is_complete(alignment):
            return actions + self._complete(n)
        if self._exactly_once:
            actions.append(BlockChannel(channel))
        return actions

    def end_of_partition(self, channel: int) -> list[AlignmentAction]:
        """The end of `channel` was polled: it counts as having delivered every barrier (S3.5)."""
        self._closed.add(channel)
        actions: list[AlignmentAction] = []
        for n, alignment in list(self._current.items()):
            if alignment.phase == "capturing":
                actions += self._captured(n, channel, StopRecording(n, channel))
        complete = [n for n, alignment in self._current.items() if self._is_complete(alignment)]
        return actions + (self._complete(max(complete)) if complete else [])

    def cancel(self, checkpoint_id: int) -> list[AlignmentAction]:
        """A cancel marker came in-band, before or after barriers of its id (S3.4)."""
        if self._is_over(checkpoint_id):
            return []
        return [*self._drop(checkpoint_id), *self._report(checkpoint_id, "a subtask upstream could not take part")]

    def abort(self, checkpoint_id: int) -> list[AlignmentAction]:
        """The coordinator aborted `checkpoint_id`: remembered, unblocks (S2.2)."""
        if self._is_over(checkpoint_id):
            return []
        return self._drop(checkpoint_id)

    # ------------------------------------------------------------ unaligned

    def on_barrier_queued(self, channel: int, barrier: CheckpointBarrier, now_ms: int) -> list[AlignmentAction]:
        """A barrier has arrived in the queue of `channel`. Never an action that emits or blocks: may be told at any
        time, also within an emission."""
        n = barrier.checkpoint_id
        if self._is_over(n):
            return []
        alignment = self._begin(barrier, now_ms)
        if alignment is None or channel in alignment.on_barrier_queued:
            return []
        for m, older in self._current.items():
            if m < n and channel not in older.on_barrier_queued:
                older.overtaken_by = n
        if alignment.phase == "capturing":
            return self._captured(n, channel, CaptureQueued(n, channel))
        alignment.on_barrier_queued.add(channel)
        return []

    def on_end_queued(self, channel: int) -> list[AlignmentAction]:
        """The end has arrived in the queue of `channel`: no barrier follows. Actions as of `announced`."""
        self._ending.add(channel)
        actions: list[AlignmentAction] = []
        for n, alignment in list(self._current.items()):
            if alignment.phase == "capturing":
                actions += self._captured(n, channel, CaptureQueued(n, channel))
        return actions

    @property
    def all_ends_arrived(self) -> bool:
        """Nothing more will arrive on any channel; what has may still be queued."""
        return len(self._ending | self._closed) == self._channels

    @property
    def due_ms(self) -> int | None:
        """From when on `due` has something to tell, by the caller's clock; None: not before another event."""
        if self._unaligned_after_ms is None:
            return None
        if any(alignment.overtaken_by is not None for alignment in self._current.values()):
            return 0
        for alignment in self._current.values():
            if alignment.phase != "capturing":
                may_overtake = alignment.phase == "aligning" and alignment.barrier.kind == "checkpoint"
                return alignment.first_ms + self._unaligned_after_ms if may_overtake else None
        return None

    def due_action(self, now_ms: int) -> list[AlignmentAction]:
        """What time or announcements have brought about. Between emissions alone: it may snapshot."""
        actions: list[AlignmentAction] = []
        for n, alignment in list(self._current.items()):
            newer = alignment.overtaken_by
            if newer is not None:
                actions += self._abort(n, f"barrier {newer} came before all barriers {n}")
        due_ms = self.due_ms
        if due_ms is None or now_ms < due_ms:
            return actions
        alignment = next(a for a in self._current.values() if a.phase == "aligning")
        alignment.phase = "taking"
        if alignment.arrived:
            actions.append(UnblockAll())
        return [*actions, TakeUnaligned(alignment.barrier, alignment.first_ms)]

    def triggered(self, barrier: CheckpointBarrier, since_ms: int, now_ms: int) -> list[AlignmentAction]:
        """A trigger waits here, since `since_ms`, for every input to end (S1.3). Told between emissions: it may
        overtake what is queued as soon as every end has arrived; else [], ask again. With every end processed, and in
        sources, there is nothing to overtake: []."""
        if not self.may_take_trigger(barrier, since_ms, now_ms):
            return []
        self._current[barrier.checkpoint_id] = _Alignment(barrier, since_ms, "taking")
        return [TakeUnaligned(barrier, since_ms)]

    def may_take_trigger(self, barrier: CheckpointBarrier, since_ms: int, now_ms: int) -> bool:
        """`triggered` would answer with a snapshot."""
        return (
            self._unaligned_after_ms is not None
            and barrier.kind == "checkpoint"
            and now_ms >= since_ms + self._unaligned_after_ms
            and len(self._closed) < self._channels
            and self.all_ends_arrived
            and all(a.phase == "capturing" for a in self._current.values())
        )

    def on_snapshot_taken(self, checkpoint_id: int) -> list[AlignmentAction]:
        """The snapshot that TakeUnaligned asked for has just been taken, and nothing was polled since it was asked for.
        [] when it has been aborted meanwhile."""
        alignment = self._current.get(checkpoint_id)
        if alignment is None:
            return []
        alignment.phase = "capturing"
        actions: list[AlignmentAction] = []
        for channel in range(self._channels):
            if channel in alignment.arrived or channel in self._closed:
                continue
            if channel in alignment.on_barrier_queued or channel in self._ending:
                actions.append(CaptureQueued(checkpoint_id, channel))
            else:
                alignment.missing.add(channel)
                actions.append(RecordChannel(checkpoint_id, channel))
        return actions if alignment.missing else actions + self._capture_complete(checkpoint_id)

    # ------------------------------------------------------------ inside

    def _begin(self, barrier: CheckpointBarrier, now_ms: int) -> _Alignment | None:
        """The alignment of `barrier`, new when this is its first sign; None when a newer one makes it too late."""
        n = barrier.checkpoint_id
        alignment = self._current.get(n)
        if alignment is None:
            if self._exactly_once and self._current and n < max(self._current):
                return None
            alignment = self._current[n] = _Alignment(barrier, now_ms)
        return alignment

    def _abort_older(self, channel: int, checkpoint_id: int) -> list[AlignmentAction]:
        """Exactly-once: older ones that cannot complete any more, since `channel` has passed their barrier over (S3.4).
        While one is aligned, a channel that did bring it is blocked: any newer barrier tells so."""
        actions: list[AlignmentAction] = []
        if self._exactly_once and len(self._current) > 1:
            for m, older in list(self._current.items()):
                if m < checkpoint_id and (older.phase == "aligning" or channel not in older.on_barrier_queued):
                    actions += self._abort(m, f"barrier {checkpoint_id} came before all barriers {m}")
        return actions

    def _is_over(self, checkpoint_id: int) -> bool:
        """Completed, given up, cancelled or aborted here."""
        if checkpoint_id in self._cancelled:
            return True
        return checkpoint_id <= self._newest_done and checkpoint_id not in self._current

    def _captured(self, checkpoint_id: int, channel: int, action: AlignmentAction) -> list[AlignmentAction]:
        alignment = self._current[checkpoint_id]
        alignment.on_barrier_queued.add(channel)
        if channel not in alignment.missing:
            return []
        alignment.missing.discard(channel)
        return [action] if alignment.missing else [action, *self._capture_complete(checkpoint_id)]

    def _capture_complete(self, checkpoint_id: int) -> list[AlignmentAction]:
        self._done(checkpoint_id)
        return [CaptureComplete(checkpoint_id)]

    def _drop(self, checkpoint_id: int) -> list[AlignmentAction]:
        self._cancelled.add(checkpoint_id)
        dropped = self._current.pop(checkpoint_id, None)
        # One that was only announced blocks nothing; channels may be blocked for an older one, and must stay so.
        was_blocking = dropped is not None and dropped.phase == "aligning" and bool(dropped.arrived)
        return [UnblockAll()] if was_blocking and self._exactly_once else []

    def _report(self, checkpoint_id: int, reason: str) -> list[AlignmentAction]:
        """To the coordinator, and downstream once."""
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
        """At-least-once drops older ones with it (S3.3); exactly-once gives up those that cannot complete."""
        del self._current[checkpoint_id]
        if not self._exactly_once:
            for older in [n for n in self._current if n < checkpoint_id]:
                del self._current[older]
        self._newest_done = max(self._newest_done, checkpoint_id)
        self._drop_old()

    def _drop_old(self) -> None:
        if self._cancelled or self._forwarded:
            self._cancelled = {n for n in self._cancelled if n > self._newest_done}
            self._forwarded = {n for n in self._forwarded if n > self._newest_done}
