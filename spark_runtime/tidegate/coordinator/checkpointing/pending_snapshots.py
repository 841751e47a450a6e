"""Snapshots that are triggered and neither complete nor aborted (S2.1)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tidegate.channel.control.protocol import Acknowledged, Subtask
from tidegate.channel.elements import CheckpointKind
from tidegate.coordinator.checkpointing.checkpoint_plan import CheckpointPlan
from tidegate.coordinator.events import (
    AbortCode,
    Action,
    CompleteCheckpoint,
    DeleteCheckpoint,
    EndRun,
    SendAbort,
    SnapshotRequest,
)

COUNTED_ABORTS: frozenset[AbortCode] = frozenset({"expired", "declined", "io"})
"""Abort codes that are failures. They count towards `tolerable_checkpoint_failures`, except for savepoints (S2.2)."""
NAMED_SUBTASKS = 5
"""Most subtasks that the reason of an expired snapshot names."""

SUM_METRICS = ("bytes", "persisted_bytes", "alignment_bytes", "in_flight_bytes", "unaligned")
MAX_METRICS = ("sync_ms", "async_ms", "alignment_ms", "start_delay_ms")


def deadline_of(request: SnapshotRequest, timeout_ms: int, now_ms: int) -> int:
    """Return the time at which a snapshot that is triggered now expires. Args: timeout_ms: `checkpoint_timeout`."""
    # The savepoint of a stop must not expire before the stop itself times out.
    return now_ms + max(timeout_ms, request.timeout_ms)


@dataclass
class PendingCheckpoint:
    """Mutable record of one snapshot between trigger and completion or abort.

    `after_all_data`: every subtask had forwarded EndOfData when it took its part, so that all subtasks may finish with
    the snapshot (S7.3). Known at the trigger, or when all have acknowledged.
    """

    checkpoint_id: int
    request: SnapshotRequest
    path: str
    triggered_ms: int
    deadline_ms: int
    plan: CheckpointPlan
    acks: dict[Subtask, Acknowledged] = field(default_factory=dict)
    completing: bool = False
    after_all_data: bool = False

    def waits_for(self, subtask: Subtask) -> bool:
        """Return whether `subtask` still has to acknowledge."""
        return subtask in self.plan.wait_for and subtask not in self.acks

    def acknowledge(self, ack: Acknowledged, now_ms: int) -> bool:
        """Record an acknowledgement, with the time since the trigger. Return True if it was the last one.

        Repeated and unexpected acknowledgements are ignored.
        """
        if not self.waits_for(ack.subtask) or self.completing:
            return False
        self.acks[ack.subtask] = replace(ack, metrics={**ack.metrics, "ack_ms": now_ms - self.triggered_ms})
        return len(self.acks) == len(self.plan.wait_for)

    @property
    def all_had_ended(self) -> bool:
        """True if every subtask had processed all its data when it acknowledged. All must have acknowledged."""
        return all(ack.finished for ack in self.acks.values())

    def completion(self, now_ms: int) -> CompleteCheckpoint:
        """Return the action that completes this snapshot. All subtasks must have acknowledged."""
        return CompleteCheckpoint(
            self.checkpoint_id,
            self.request.kind,
            self.request.stop,
            self.path,
            self.triggered_ms,
            dict(self.acks),
            self.plan.finished,
            self.metrics(now_ms),
        )

    def end_action(self, uncommitted: tuple[int, ...]) -> EndRun:
        """Return the action that ends the run. For the snapshot of a stop, when every subtask has finished."""
        request = self.request
        return EndRun(request.stop, self.checkpoint_id, self.path, request.request_id, uncommitted)

    def abort_actions(self, reason: str, code: AbortCode, counts: bool = False) -> list[Action]:
        """Return the actions that abort this snapshot: notify every subtask, and delete its files (S2.2, S2.3)."""
        checkpoint_id = self.checkpoint_id
        return [SendAbort(checkpoint_id, reason, code, counts), DeleteCheckpoint(checkpoint_id, self.path)]

    def is_expired(self, now_ms: int) -> bool:
        """Return whether the snapshot has exceeded its deadline. It never expires once its completion has started."""
        return now_ms >= self.deadline_ms and not self.completing

    def expiry_message(self, now_ms: int) -> str:
        """Return the reason for an expiry. It names subtasks that have not acknowledged."""
        missing = sorted(self.plan.wait_for - self.acks.keys())[:NAMED_SUBTASKS]
        return f"the snapshot expired after {now_ms - self.triggered_ms} ms; no acknowledgement from subtasks {missing}"

    def metrics(self, now_ms: int) -> dict[str, float]:
        """Return metrics over all subtasks: sums of bytes, maxima of times (milliseconds), duration, counts (S2.5)."""
        out: dict[str, float] = {name: sum(a.metrics.get(name, 0) for a in self.acks.values()) for name in SUM_METRICS}
        out |= {name: max((a.metrics.get(name, 0) for a in self.acks.values()), default=0) for name in MAX_METRICS}
        out["duration_ms"] = now_ms - self.triggered_ms
        out["acknowledged"] = len(self.acks)
        out["finished_subtasks"] = len(self.plan.finished)
        return out


class PendingSnapshots(dict[int, PendingCheckpoint]):
    """The pending snapshots of one run, by id."""

    @property
    def kinds(self) -> set[CheckpointKind]:
        """The kinds of all pending snapshots."""
        return {p.request.kind for p in self.values()}

    def expired(self, now_ms: int) -> list[PendingCheckpoint]:
        """Return the snapshots that must be aborted because of their age, oldest first."""
        return [p for p in self.values() if p.is_expired(now_ms)]

    @property
    def deadlines_ms(self) -> list[int]:
        """The deadlines of snapshots whose completion has not started."""
        return [p.deadline_ms for p in self.values() if not p.completing]

    def finals(self) -> list[PendingCheckpoint]:
        """Return the final snapshots that can still be aborted."""
        return [p for p in self.values() if p.request.kind == "final" and not p.completing]
