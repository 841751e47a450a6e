"""The people who approve and reject what a simulated job behind a commit gate stages: late, twice, at random, and of
checkpoints of which they cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from tidegate.jobs.records import Verb

if TYPE_CHECKING:
    from simulator.world import World


class Send(Protocol):
    """Sends a command."""

    def __call__(self, verb: Verb, **arguments: Any) -> str:
        """Gives its id."""


class Auditor:
    """Comes now and then."""

    def __init__(self, world: World, send: Send) -> None:
        self._world = world
        self._send = send
        self._last: tuple[Verb, dict[str, Any]] | None = None

    def look(self) -> None:
        """While faults strike: any word on any checkpoint."""
        chance, random = self._world.scheduler.chance, self._world.scheduler.random
        gate = self._world.checkers.gate
        if gate is None or not chance(0.2):
            return
        if self._last is not None and chance(0.15):
            self._say(*self._last)
        elif gate.waiting and chance(0.7):
            wanted = random.choice(gate.waiting)
            if chance(0.4):
                self._say("commit", {"checkpoint_id": wanted})
            else:
                if len(self._world.decisions) % 3:  # what came after it goes with it; mostly, without another draw
                    wanted = gate.waiting[0]
                then = "replay" if chance(0.8) else "stop"
                if then == "replay" and len(self._world.decisions) % 2:  # half of them, without another draw
                    then = "quarantine"
                    self._world.events["quarantines"] += 1
                self._say("reject", {"checkpoint_id": wanted, "then": then})
        elif chance(0.4):
            self._say("commit", {})
        else:
            newest = max((d.data["checkpoint_id"] for d in self._world.decisions if d.kind == "claim"), default=1)
            verb: Verb = "commit" if chance(0.6) else "reject"
            self._say(verb, {"checkpoint_id": 1 + self._world.scheduler.upto(newest + 1)})

    def approve(self) -> None:
        """So that the job can go on."""
        gate = self._world.checkers.gate
        if gate is not None and gate.waiting and self._world.scheduler.chance(0.2):
            self._say("commit", {})

    def _say(self, verb: Verb, arguments: dict[str, Any]) -> None:
        self._last = verb, arguments
        self._world.events["approvals" if verb == "commit" else "rejections"] += 1
        self._send(verb, **arguments)
