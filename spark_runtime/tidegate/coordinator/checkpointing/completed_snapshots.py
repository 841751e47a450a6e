"""The completed snapshots of a job: which are committed, and which must be kept (S2.3, S7.4). Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.channel.control.protocol import Subtask
from tidegate.coordinator import events as ev
from tidegate.coordinator.checkpointing.retention import CompletedCheckpoint, find_retired
from tidegate.coordinator.commits.commit_gate import CommitGate
from tidegate.coordinator.commits.commit_tracker import CommitTracker
from tidegate.coordinator.events import Action
from tidegate.coordinator.topology import Topology


class CompletedSnapshots:
    """The list of completed snapshots.

    Every method returns the resulting actions: commits to record, folders to delete.
    """

    def __init__(
        self,
        topology: Topology,
        completed: Sequence[CompletedCheckpoint],
        *,
        retained: int,
        last_committed: int | None,
        restored: int | None,
        gate: CommitGate | None = None,
    ) -> None:
        """Create the list for one run.

        Args:
            completed: the job's completed snapshots, oldest first.
            retained: the option `retained_checkpoints`.
            last_committed: newest checkpoint whose commit is known.
            restored: the snapshot that the run starts from, if it is one of `completed`. It is kept until the
                submission has a newer recovery point, whatever else is kept.
            gate: with a gate, only approved checkpoints are committed.
        """
        self._gate = gate
        self._commits = CommitTracker(topology)
        self._completed = list(completed)
        self._retained = retained
        self._last_committed = last_committed if topology.commits else None
        self._restored = restored

    def add(self, snapshot: CompletedCheckpoint) -> list[Action]:
        """Add a snapshot that has completed. It must be newer than all others."""
        self._completed.append(snapshot)
        if snapshot.kind != "savepoint":
            self._restored = None
            # With a gate, the completion permits nothing. The commit is tracked from its permit on (`_gated`).
            if self._gate is None:
                self._commits.completed(snapshot.checkpoint_id)
        return self._record_committed() + self._retire()

    def notify(self, checkpoint_id: int, log_number: int, *, last: bool) -> list[Action]:
        """Notify subtasks that a recovery point is complete. Without a gate the message also permits its commit.

        `last`: every subtask may finish with this snapshot.
        """
        if self._gate is None:
            return [ev.NotifyComplete(checkpoint_id, log_number)]
        return self._gate.completed(checkpoint_id, last=last)

    def up(self) -> list[Action]:
        """Return the gate's actions after all subtasks have started."""
        return self._gated(self._gate.up()) if self._gate is not None else []

    def apply_verdict(self, verdict: ev.CheckpointApproved | ev.CheckpointQuarantined) -> list[Action]:
        """Apply a verdict that is in the decision log and lets the run continue (S7.8)."""
        assert self._gate is not None, "a verdict without a commit gate"
        if isinstance(verdict, ev.CheckpointQuarantined):
            actions = self._gate.quarantine(verdict.withheld)
        else:
            actions = self._gate.approve(verdict.checkpoint_id, verdict.log_number)
        return self._gated(actions) + self._retire()

    def _gated(self, actions: Sequence[Action]) -> list[Action]:
        """Add to the actions of the gate the actions that follow from them."""
        out: list[Action] = []
        for action in actions:
            out.append(action)
            if isinstance(action, ev.SendPermit):
                self._commits.completed(action.checkpoint_id)
                # If all subtasks of the sinks have finished, nobody sends
                # a report, and the commit counts as done immediately.
                out += self._record_committed()
            elif isinstance(action, ev.RecordCommitted):
                self._last_committed = action.checkpoint_id
        return out

    def committed(self, subtask: Subtask, checkpoint_id: int) -> list[Action]:
        """Record that `subtask` has committed all checkpoints up to `checkpoint_id`."""
        self._commits.committed(subtask, checkpoint_id)
        return self._record_committed()

    def finished(self, subtask: Subtask) -> list[Action]:
        """Record that `subtask` has finished. It has then committed everything it will ever commit."""
        self._commits.finished(subtask)
        return self._record_committed()

    def _record_committed(self) -> list[Action]:
        newest = self._commits.take_committed()
        if newest is None:
            return []
        self._last_committed = newest
        if self._gate is not None:
            self._gate.committed = newest
        return [ev.RecordCommitted(newest), *self._retire()]

    def _retire(self) -> list[Action]:
        gone = find_retired(
            self._completed,
            retained=self._retained,
            last_committed=self._last_committed,
            restored=self._restored,
            pinned=self._gate.pinned if self._gate is not None else (),
            rejected=self._gate.rejected if self._gate is not None else (),
        )
        ids = {c.checkpoint_id for c in gone}
        self._completed = [c for c in self._completed if c.checkpoint_id not in ids]
        return [ev.DeleteCheckpoint(c.checkpoint_id, c.path) for c in gone]
