"""A coordinator with somebody to carry out what it asks for, and records it."""

from __future__ import annotations

from typing import Any

from tidegate.channel.control.protocol import (
    Acknowledged,
    DeclineCode,
    Declined,
    Subtask,
    SubtaskEndedData,
    SubtaskFinished,
    SubtaskRunning,
)
from tidegate.coordinator import events as ev
from tidegate.coordinator.coordinator import Coordinator, CoordinatorOptions
from tidegate.coordinator.topology import ChainShape, Topology

SOURCE, WINDOW = 0, 1
ALL = [(SOURCE, 0), (SOURCE, 1), (WINDOW, 0), (WINDOW, 1)]
TOPOLOGY = Topology(
    2,
    (
        ChainShape(SOURCE, ("src",), (), True, False),
        ChainShape(WINDOW, ("win", "out"), ((SOURCE, True),), False, True),
    ),
)


class Driver:
    """Carries out Claim and Complete as the I/O shell would, and records every action."""

    def __init__(self, topology: Topology = TOPOLOGY, **options: Any) -> None:
        given: dict[str, Any] = {
            "interval_ms": 1000,
            "min_pause_ms": 0,
            "timeout_ms": 10_000,
            "max_concurrent": 1,
            "max_queued": 10,
            "tolerable_failures": 0,
            "retained": 1,
        }
        names = ("completed", "last_committed", "restored", "finished", "commit_only", "gate")
        others = {name: options.pop(name) for name in names if name in options}
        self.coordinator = Coordinator(
            topology, CoordinatorOptions(**{**given, **options}), run_id="run", first_delay_ms=1000, **others
        )
        self.claims_fail = self.completions_fail = False
        self.now = 0
        self.next_id = 1
        self.actions: list[ev.Action] = []
        self.topology = topology

    def send(self, event: ev.Event) -> list[ev.Action]:
        """All actions that follow from `event`."""
        out: list[ev.Action] = []
        pending = [event]
        while pending:
            for action in self.coordinator.handle(pending.pop(0), self.now):
                out.append(action)
                if isinstance(action, ev.ClaimCheckpoint) and self.claims_fail:
                    pending.append(ev.ClaimFailed("the store is away"))
                elif isinstance(action, ev.ClaimCheckpoint):
                    pending.append(ev.LocationReady(self.next_id, f"chk-{self.next_id}"))
                    self.next_id += 1
                if isinstance(action, ev.CompleteCheckpoint) and self.completions_fail:
                    pending.append(ev.CompletionFailed(action.checkpoint_id, "no space"))
                elif isinstance(action, ev.CompleteCheckpoint):
                    pending.append(ev.CompletionDurable(action.checkpoint_id, 100 + action.checkpoint_id))
        self.actions += out
        return out

    def start(self) -> None:
        for subtask in self.topology.subtasks():
            self.send(SubtaskRunning(subtask))

    def tick(self, ms: int) -> list[ev.Action]:
        self.now += ms
        return self.send(ev.Tick())

    def ack(self, subtask: Subtask, n: int, run: str = "run", **kwargs: Any) -> list[ev.Action]:
        return self.send(Acknowledged(subtask, n, run, **kwargs))

    def ack_all(self, n: int) -> list[ev.Action]:
        out: list[ev.Action] = []
        for subtask in self.topology.subtasks():
            out += self.ack(subtask, n)
        return out

    def decline(self, subtask: Subtask, n: int, run: str = "run", code: DeclineCode = "failed") -> list[ev.Action]:
        return self.send(Declined(subtask, n, run, "disk full", code))

    def end_data(self, natural: bool = True) -> list[ev.Action]:
        return [a for s in self.topology.subtasks() for a in self.send(SubtaskEndedData(s, natural))]

    def finish(self) -> list[ev.Action]:
        return [a for s in self.topology.subtasks() for a in self.send(SubtaskFinished(s))]

    def ask(self, kind: Any = "checkpoint", request_id: str = "c", **kwargs: Any) -> list[ev.Action]:
        return self.send(ev.SnapshotRequested(ev.SnapshotRequest(kind, request_id=request_id, **kwargs)))


def of(actions: list[ev.Action], kind: type) -> list[Any]:
    return [a for a in actions if isinstance(a, kind)]
