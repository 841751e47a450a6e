"""Carry out the aligner's decision that a barrier overtakes queued records, and decide when a subtask may use the
overdraft (S3.7). `BarrierAligner` decides when."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from tidegate.channel.elements import CheckpointBarrier
from tidegate.subtask.alignment import AlignmentAction, BarrierAligner
from tidegate.subtask.router import Router


class MonotonicClock(Protocol):
    """The clock of the host."""

    def now_ms(self) -> int:
        """Return the processing time in milliseconds."""


class UnalignedSwitch:
    """The waiting triggers, and the checkpoints that are urgent because they have waited long enough.

    With `after_ms` None nothing is ever urgent, and triggers wait for the end of every input.

    Attributes:
        triggers: (barrier, when its trigger arrived), oldest first.
        is_overdrawn: the current emission uses the overdraft of its outputs.
    """

    def __init__(self, after_ms: int | None, aligner: BarrierAligner, router: Router, clock: MonotonicClock) -> None:
        """Args: after_ms: time from the first barrier of a checkpoint, or its trigger, until it overtakes queued
        records.
        """
        self.triggers: deque[tuple[CheckpointBarrier, int]] = deque()
        self.is_overdrawn = False
        self._after_ms = after_ms
        self._aligner = aligner
        self._router = router
        self._clock = clock
        self._urgent_ms: int | None = None

    def triggered(self, barrier: CheckpointBarrier) -> None:
        """Add a trigger that has arrived."""
        self.triggers.append((barrier, self._clock.now_ms()))

    def aborted(self, checkpoint_id: int) -> None:
        """Remove the waiting trigger of an aborted checkpoint."""
        # Changed in place, because the subtask holds the same deque.
        left = [t for t in self.triggers if t[0].checkpoint_id != checkpoint_id]
        self.triggers.clear()
        self.triggers.extend(left)

    def due_ms(self) -> int | None:
        """Return the time from which a checkpoint waits only for the current emission; None: no checkpoint does."""
        if self._after_ms is None:
            return None
        times = [self._urgent_ms, self._aligner.due_ms]
        if self.triggers and self._aligner.all_ends_arrived:
            times.append(self._urgent_from(*self.triggers[0]))
        return min((t for t in times if t is not None), default=None)

    def actions(self) -> list[AlignmentAction]:
        """Return the actions that are due between emissions. Triggers that are used are removed from `triggers`."""
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
        """Announce that the next emission is the snapshot of `barrier`, whose first barrier or trigger came at
        `since_ms`.
        """
        self._urgent_ms = self._urgent_from(barrier, since_ms)

    def overdraw(self) -> bool:
        """Return whether the current emission may continue although its outputs are full.

        Opens the overdraft if urgent.
        """
        # The caller found no capacity although the overdraft is open, so it is used up.
        if self.is_overdrawn:
            return False
        due_ms = self.due_ms()
        if due_ms is None or self._clock.now_ms() < due_ms:
            return False
        self._router.overdraw(True)
        self.is_overdrawn = True
        return self._router.has_capacity()

    def on_emission_ended(self) -> None:
        """Close the overdraft after an emission. Nothing is urgent before the next one."""
        self._urgent_ms = None
        if self.is_overdrawn:
            self._router.overdraw(False)
            self.is_overdrawn = False

    def _urgent_from(self, barrier: CheckpointBarrier, since_ms: int) -> int | None:
        if self._after_ms is None or barrier.kind != "checkpoint":
            return None
        return since_ms + self._after_ms
