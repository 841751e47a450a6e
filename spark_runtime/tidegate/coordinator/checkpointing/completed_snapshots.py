"""The snapshots that have completed: which of them are committed, and which must stay (S2.3, S7.4). Pure."""

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
    """What is on the shelf. Every call returns what follows from it: commits to record, folders to retire."""

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
        """Args: completed: oldest first. restored: what the run starts from, when it is one of them; it stays until
        the submission has a newer recovery point, whatever else is retained. gate: what is committed has to be
        approved."""
        self._gate = gate
        self._commits = CommitTracker(topology)
        self._completed = list(completed)
        self._retained = retained
        self._last_committed = last_committed if topology.commits else None
        self._restored = restored

    def add(self, snapshot: CompletedCheckpoint) -> list[Action]:
        """It has completed; newer than all others."""
        self._completed.append(snapshot)
        if snapshot.kind != "savepoint":
            self._restored = None
            if self._gate is None:
                self._commits.completed(snapshot.checkpoint_id)
        return self._record_committed() + self._retire()

    def notify(self, checkpoint_id: int, log_number: int, *, last: bool) -> list[Action]:
        """A recovery point is complete: subtasks are told, with the permit to commit it or behind a gate without.
        `last`: every subtask may finish on it."""
        if self._gate is None:
            return [ev.NotifyComplete(checkpoint_id, log_number)]
        return self._gate.completed(checkpoint_id, last=last)

    def up(self) -> list[Action]:
        """Every subtask runs."""
        return self._gated(self._gate.up()) if self._gate is not None else []

    def apply_verdict(self, verdict: ev.CheckpointApproved | ev.CheckpointQuarantined) -> list[Action]:
        """A verdict after which the run goes on is in the log (S7.8)."""
        assert self._gate is not None, "a verdict without a commit gate"
        if isinstance(verdict, ev.CheckpointQuarantined):
            actions = self._gate.quarantine(verdict.withheld)
        else:
            actions = self._gate.approve(verdict.checkpoint_id, verdict.log_number)
        return self._gated(actions) + self._retire()

    def _gated(self, actions: Sequence[Action]) -> list[Action]:
        """What the gate asks for, with what follows from it."""
        out: list[Action] = []
        for action in actions:
            out.append(action)
            if isinstance(action, ev.SendPermit):
                self._commits.completed(action.checkpoint_id)
                out += self._record_committed()
            elif isinstance(action, ev.RecordCommitted):
                self._last_committed = action.checkpoint_id
        return out

    def committed(self, subtask: Subtask, checkpoint_id: int) -> list[Action]:
        """`subtask` has committed up to `checkpoint_id`."""
        self._commits.committed(subtask, checkpoint_id)
        return self._record_committed()

    def finished(self, subtask: Subtask) -> list[Action]:
        """`subtask` has finished, and committed all it ever will."""
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
