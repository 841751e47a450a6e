"""What must hold of a stop that did not go as asked (S7.7): the job is in the state that the answer says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.jobs.records import Command, CommandResult, Decision
from tidegate.jobs.stop_outcomes import CANCELED_IN_STOP, SAVEPOINT_FAILED, SAVEPOINT_OK

Demand = Callable[[str, bool, str], None]
"""(checker, whether it holds, what does not)."""
ENDED = ("FINISHED", "FINISHED_COMMIT_PENDING", "STOPPED", "FAILED", "CANCELED")


@dataclass(frozen=True)
class StopChecker:
    """Judges answers to stops by the log.

    Attributes:
        decisions: the log so far, of which the list is shared.
        completed: checkpoint id -> its completion.
        objects: paths of everything on the disk.
        before_the_end: command id -> generation whose run took it while the final snapshot was on its way (0: it was
            not), and how many entries the log had then.
    """

    demand: Demand
    decisions: Sequence[Decision]
    completed: Mapping[int, Decision]
    objects: Collection[str]
    before_the_end: dict[str, tuple[int, int]] = field(default_factory=dict)

    def taken(self, command_id: str, generation: int, *, final_pending: bool) -> None:
        """A run takes a stop; `final_pending`: the final snapshot of the job is on its way."""
        self.before_the_end[command_id] = generation if final_pending else 0, len(self.decisions)

    def _was_tried(self, generation: int, entries: int) -> bool:
        """A savepoint of a stop was claimed behind the first `entries`. An earlier checkpoint may have let subtasks
        finish that had ended before it: then they finish one after the other before each of its savepoints."""
        since = (d for d in self.decisions[entries:] if d.generation == generation and d.kind == "claim")
        return any(d.data["kind"] == "stop-savepoint" for d in since)

    def answered(self, command: Command, result: CommandResult) -> None:
        """A stop has its answer; one of a driver that is fenced and does not know it is not judged."""
        if not self.decisions or result.generation != self.decisions[-1].generation:
            return
        mine = self._entries(command.spec)
        statuses = [entry for entry in mine if entry.kind == "status"]
        status = statuses[-1].data["status"] if statuses else ""
        n, what = result.data.get("checkpoint_id", 0), f"{command.command_id} was answered {result.code}"
        if result.code == SAVEPOINT_FAILED:
            stopped = [e.number for e in mine if e.kind == "complete" and e.data["kind"] == "stop-savepoint"]
            self._demand(status not in ENDED, f"{what}, and the job is {status}")
            self._demand(not stopped, f"{what}, and entries {stopped} complete it")
        elif result.code == CANCELED_IN_STOP:
            self._demand(status == "CANCELED", f"{what}, and the job is {status}")
            rejected = any(entry.kind == "reject" for entry in self.decisions)
            points = [e for e in mine if e.kind == "complete" and e.data["kind"] != "savepoint"]
            none = result.data["path"] is None and (not points or rejected)
            there = none if result.data["path"] is None else self._is_there(n, result.data)
            self._demand(there, f"{what} with {result.data}, which is not there")
        elif result.code == SAVEPOINT_OK:
            kept = n in self.completed and self.completed[n].data["kind"] == "stop-savepoint"
            self._demand(kept, f"{what} with {n}")
        elif result.code == "job_ended" and "outcome" not in result.data:
            generation, entries = self.before_the_end.get(command.command_id, (0, 0))
            too_late = generation != result.generation or self._was_tried(generation, entries)
            self._demand(too_late, f"{what}, though the final snapshot was still on its way")
        elif result.ok and "asked_mode" in result.data:
            self._demand(result.data["mode"] == "suspend", f"{what}, at the second try, with a drain")

    def _demand(self, holds: bool, what: str) -> None:
        self.demand("stop outcomes", holds, what)

    def _is_there(self, n: int, data: Mapping[str, Any]) -> bool:
        entry = self.completed.get(n)
        return entry is not None and entry.data["path"] == data["path"] and f"{data['path']}/_metadata" in self.objects

    def _entries(self, spec: int) -> list[Decision]:
        """What drivers of submission `spec` wrote."""
        found: list[Decision] = []
        reigning = 0
        for decision in self.decisions:
            reigning = decision.data["spec"] if decision.kind == "fence" else reigning
            if reigning == spec:
                found.append(decision)
        return found
