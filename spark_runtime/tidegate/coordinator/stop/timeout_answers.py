"""Answers to a stop whose time is up, with the subtasks that delayed it (S7.7). Pure functions of coordinator state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.channel.control.protocol import Subtask
from tidegate.coordinator import events as ev
from tidegate.coordinator.checkpointing.checkpoint_plan import SubtaskState
from tidegate.coordinator.checkpointing.pending_snapshots import NAMED_SUBTASKS, PendingCheckpoint
from tidegate.coordinator.events import Action, SnapshotRequest
from tidegate.coordinator.stop.answers import answer_to
from tidegate.coordinator.topology import Topology
from tidegate.jobs.stop_outcomes import SAVEPOINT_FAILED, SAVEPOINT_OK


@dataclass(frozen=True)
class BlockingSubtask:
    """A subtask that others wait for.

    Attributes:
        operators: uids of its chain.
        subtask: its index.
        why: what it has not done.
        at_work: uids of the operators of the chain that it waits for, as far as known.
    """

    operators: tuple[str, ...]
    subtask: int
    why: str
    at_work: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return this as JSON."""
        document = {"operators": list(self.operators), "subtask": self.subtask, "why": self.why}
        return {**document, "at_work": list(self.at_work)} if self.at_work else document

    def __str__(self) -> str:
        chain = " -> ".join(self.operators)
        who = f"{', '.join(self.at_work)} of {chain}" if self.at_work and len(self.operators) > 1 else chain
        return f"operator {who}, subtask {self.subtask} ({self.why})"


@dataclass(frozen=True)
class StopTimeoutState:
    """The state of a run when the time of its stop is up.

    Attributes:
        topology: topology of the run.
        states: state of every subtask.
        limit: the timeout, in words.
        at_work: uids of the operators that subtasks wait for, as far as known.
    """

    topology: Topology
    states: Mapping[Subtask, SubtaskState]
    limit: str
    at_work: Mapping[Subtask, tuple[str, ...]]

    def blocking_start(self) -> list[BlockingSubtask]:
        """Return the subtasks that a stop waits for before its savepoint is triggered."""
        return [self._of(s, "has not started yet") for s, state in self.states.items() if state == "created"]

    def blocking_savepoint(self, pending: PendingCheckpoint) -> list[BlockingSubtask]:
        """Return the subtasks that the pending savepoint waits for, without those that only wait for them."""

        def waits(subtask: Subtask) -> bool:
            # A running subtask waits for upstream data to end; an ended one for upstream barriers of the savepoint.
            if self.states[subtask] == "running":
                return any(self.states[above] == "running" for above in self._above(subtask))
            return any(pending.waits_for(above) for above in self._above(subtask))

        missing = sorted(pending.plan.wait_for - pending.acks.keys())
        return [self._of(s, self._has_not_acknowledged(s, pending)) for s in self._first(missing, waits)]

    def blocking_finish(self, checkpoint_id: int) -> list[BlockingSubtask]:
        """Return the subtasks that the end of the job waits for, without those that only wait for them.

        The savepoint of the stop is complete.
        """
        missing = sorted(s for s, state in self.states.items() if state != "finished")

        def waits(subtask: Subtask) -> bool:
            return any(self.states[above] != "finished" for above in self._above(subtask))

        def owes(subtask: Subtask) -> str:
            commits = self.topology.chains[subtask[0]].commits
            return f"has not committed savepoint {checkpoint_id}" if commits else "has not closed"

        return [self._of(s, owes(s)) for s in self._first(missing, waits)]

    def _has_not_acknowledged(self, subtask: Subtask, pending: PendingCheckpoint) -> str:
        if self.states[subtask] == "running":
            return "has not sent the end of its data downstream"
        return f"has not acknowledged savepoint {pending.checkpoint_id}"

    def _above(self, subtask: Subtask) -> list[Subtask]:
        chain, index = subtask
        return [
            (above, i)
            for above, all_to_all in self.topology.chains[chain].upstream
            for i in (range(self.topology.parallelism) if all_to_all else (index,))
        ]

    @staticmethod
    def _first(missing: Sequence[Subtask], waits: Callable[[Subtask], bool]) -> Sequence[Subtask]:
        # If each of them seems to wait for another, all are named: an answer without a cause would help nobody.
        return [s for s in missing if not waits(s)] or missing

    def _of(self, subtask: Subtask, why: str) -> BlockingSubtask:
        return BlockingSubtask(
            self.topology.chains[subtask[0]].operators, subtask[1], why, self.at_work.get(subtask, ())
        )


def answer_failed_stop(request: SnapshotRequest, reason: str) -> list[Action]:
    """Fail the run after a stop's savepoint was aborted. Nothing was committed (S7.7).

    The trigger made its sources send EndOfData, so the run has to restart. The failure precedes the answer: the answer
    is sent when the job is running again.
    """
    text = f"the stop-savepoint failed; nothing was committed, and the job restarts from its recovery point: {reason}"
    data: dict[str, object] = {"outcome": SAVEPOINT_FAILED, "mode": request.stop, "reason": reason}
    return [ev.FailRun(f"stop failed: {reason}"), *answer_to(request, False, SAVEPOINT_FAILED, text, data)]


def answer_unstarted_stop(request: SnapshotRequest, scene: StopTimeoutState) -> list[Action]:
    """Answer a stop whose savepoint was not triggered. The job continues unchanged."""
    held = scene.blocking_start()
    by = _blocked_by_text(held) if held else "its savepoint could not be started yet"
    reason = f"{_too_slow(request, scene)}: {by}"
    return _answer(request, reason, "no source had stopped, and the job continues", held, {})


def answer_timed_out_stop(pending: PendingCheckpoint, scene: StopTimeoutState) -> list[Action]:
    """Abort the pending savepoint of a stop.

    Its trigger has ended the data, so the run restarts from a recovery point.
    """
    held = scene.blocking_savepoint(pending)
    done, all_of_them = len(pending.acks), len(pending.plan.wait_for)
    so_far = f"{done} of {all_of_them} subtasks have acknowledged savepoint {pending.checkpoint_id}"
    reason = f"{_too_slow(pending.request, scene)}: {_blocked_by_text(held)}; {so_far}"
    then = "nothing was committed, and the job restarts from its recovery point"
    progress = {"acknowledged": done, "subtasks": all_of_them, "savepoint": pending.checkpoint_id}
    return [
        *pending.abort_actions(reason, "stop_timeout"),
        ev.FailRun(reason, stop_given_up=True),
        *_answer(pending.request, reason, then, held, progress),
    ]


def answer_kept_savepoint(
    event: ev.TimeOutStop, scene: StopTimeoutState, checkpoint_id: int, taken: PendingCheckpoint | None
) -> list[Action]:
    """Answer a stop whose savepoint is complete. The savepoint is kept, its commit continues, and then the job ends.

    `taken`: the savepoint as this run took it; None: an earlier run took it.
    """
    if event.request_id is None:
        return []
    path, mode = (taken.path, taken.request.stop) if taken is not None else (event.path, event.mode)
    held = scene.blocking_finish(checkpoint_id)
    text = (
        f"savepoint {path or checkpoint_id} is complete and valid, but the job has not ended within {scene.limit}: "
        f"{_blocked_by_text(held)}; the job continues to commit, and then ends"
    )
    data: dict[str, Any] = {"outcome": SAVEPOINT_OK, "mode": mode, "checkpoint_id": checkpoint_id, "path": path}
    data["held_up_by"] = _documents(held)
    return [ev.CommandAnswer(event.request_id, False, SAVEPOINT_OK, text, data)]


def _answer(
    request: SnapshotRequest, reason: str, then: str, held: Sequence[BlockingSubtask], progress: Mapping[str, int]
) -> list[Action]:
    data: dict[str, object] = {
        "outcome": SAVEPOINT_FAILED,
        "mode": request.stop,
        "reason": reason,
        "held_up_by": _documents(held),
        **progress,
    }
    return answer_to(request, False, SAVEPOINT_FAILED, f"{reason}; {then}", data)


def _too_slow(request: SnapshotRequest, scene: StopTimeoutState) -> str:
    return f"the stop (mode {request.stop}) did not finish within {scene.limit}"


def _blocked_by_text(held: Sequence[BlockingSubtask]) -> str:
    more = f" and {len(held) - NAMED_SUBTASKS} more" if len(held) > NAMED_SUBTASKS else ""
    return f"held up by {', '.join(map(str, held[:NAMED_SUBTASKS]))}{more}"


def _documents(held: Sequence[BlockingSubtask]) -> list[dict[str, Any]]:
    return [hold_up.document() for hold_up in held[:NAMED_SUBTASKS]]
