"""When a checkpoint overtakes what is queued in front of one subtask, and how far its barrier may overdraw (S3.7)."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from tidegate.channel.elements import CheckpointBarrier
from tidegate.subtask.alignment import AlignmentAction, BarrierAligner
from tidegate.subtask.router import Router


class MonotonicClock(Protocol):
    """Of the host."""

    def now_ms(self) -> int:
        """Processing time."""


class UnalignedSwitch:
    """The triggers that wait here, and what is urgent because a checkpoint has waited long enough.

    With `after_ms` None nothing ever is, and triggers wait for the end of every input.

    Attributes:
        triggers: (barrier, when its trigger came), oldest first.
        is_overdrawn: the emission in hand uses the overdraft of its outputs.
    """

    def __init__(self, after_ms: int | None, aligner: BarrierAligner, router: Router, clock: MonotonicClock) -> None:
        """Args: after_ms: from the first barrier of a checkpoint, or its trigger, to overtaking."""
        self.triggers: deque[tuple[CheckpointBarrier, int]] = deque()
        self.is_overdrawn = False
        self._after_ms = after_ms
        self._aligner = aligner
        self._router = router
        self._clock = clock
        self._urgent_ms: int | None = None

    def triggered(self, barrier: CheckpointBarrier) -> None:
        """A trigger came."""
        self.triggers.append((barrier, self._clock.now_ms()))

    def aborted(self, checkpoint_id: int) -> None:
        """Its trigger, if it waits, is void."""
        left = [t for t in self.triggers if t[0].checkpoint_id != checkpoint_id]
        self.triggers.clear()
        self.triggers.extend(left)

    def due_ms(self) -> int | None:
        """Processing time from which on a checkpoint waits for nothing but the emission in hand; None: none does."""
        if self._after_ms is None:
            return None
        times = [self._urgent_ms, self._aligner.due_ms]
        if self.triggers and self._aligner.all_ends_arrived:
            times.append(self._urgent_from(*self.triggers[0]))
        return min((t for t in times if t is not None), default=None)

    def actions(self) -> list[AlignmentAction]:
        """What is due now, between emissions; a trigger it takes is no longer in `triggers`."""
        if self._after_ms is None or not (self.triggers or self._aligner.aligning):
            return []
        now_ms = self._clock.now_ms()
        actions = self._aligner.due_action(now_ms)
        if not actions and self.triggers:
            actions = self._aligner.triggered(*self.triggers[0], now_ms)
            if actions:
                self.triggers.popleft()
        return actions

    def starts(self, barrier: CheckpointBarrier, since_ms: int) -> None:
        """The next emission is the snapshot of `barrier`, whose first barrier or trigger came at `since_ms`."""
        self._urgent_ms = self._urgent_from(barrier, since_ms)

    def overdraw(self) -> bool:
        """The outputs are full: may the emission in hand go on?"""
        if self.is_overdrawn:
            return False
        due_ms = self.due_ms()
        if due_ms is None or self._clock.now_ms() < due_ms:
            return False
        self._router.overdraw(True)
        self.is_overdrawn = True
        return self._router.has_capacity()

    def on_emission_ended(self) -> None:
        """Nothing is urgent before the next one; the overdraft is closed."""
        self._urgent_ms = None
        if self.is_overdrawn:
            self._router.overdraw(False)
            self.is_overdrawn = False

    def _urgent_from(self, barrier: CheckpointBarrier, since_ms: int) -> int | None:
        if self._after_ms is None or barrier.kind != "checkpoint":
            return None
        return since_ms + self._after_ms
