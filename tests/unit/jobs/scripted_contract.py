"""A job without Spark: time that passes when somebody sleeps, and a driver that does what the test says."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.decision_log import DecisionLog
from tidegate.jobs.records import CommandResult, Spec, StatusHint, encode

NOW = "2026-11-21T09:25:00.000Z"


class FakeTime:
    """A clock that only `sleep` moves; `at` does something when it gets there."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._due: list[tuple[float, Callable[[], object]]] = []

    def now(self) -> datetime:
        return datetime(2026, 11, 21, 9, 25, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        assert seconds > 0, "a wait that never pauses"
        self.seconds += seconds
        due = [action for at, action in self._due if at <= self.seconds]
        self._due = [(at, action) for at, action in self._due if at > self.seconds]
        for action in due:
            action()

    def at(self, seconds: float, action: Callable[[], object]) -> None:
        self._due.append((seconds, action))


class ScriptedDriver:
    """Writes what a driver writes."""

    def __init__(self, client: JobClient, spec: Spec, launch: int = 1) -> None:
        self.client, self.spec, self.beats = client, spec, 0
        nonces = itertools.count()
        log = DecisionLog(client.store, client.layout, lambda: NOW, lambda: f"{id(self)}-{next(nonces)}")
        self.generation_log = log.begin_generation(spec=spec.number, launch=launch)

    def status(self, status: str, **data: Any) -> None:
        self.generation_log.append("status", {"status": status, **data})

    def beat(self, **data: Any) -> None:
        self.beats += 1
        hint = StatusHint(self.generation_log.generation, self.beats, "r", NOW, data)
        self.client.store.replace(self.client.layout.status(self.generation_log.generation), encode(hint))

    def checkpoint(self, checkpoint_id: int, kind: str = "checkpoint", path: str | None = None) -> str:
        layout = self.client.layout
        path = path or layout.checkpoint(checkpoint_id, self.generation_log.generation)
        data = {"checkpoint_id": checkpoint_id, "kind": kind, "path": path}
        self.generation_log.append("claim", {**data, "triggered_at": NOW})
        body = {"job_id": self.client.job_id, "lineage": self.spec.lineage}
        self.client.store.create(layout.metadata(path), json.dumps({"record": "snapshot", "body": body}).encode())
        self.generation_log.append("complete", {**data, "metrics": {}, "parent": None})
        return path

    def answer(self, command_id: str, ok: bool = True, **data: Any) -> None:
        result = CommandResult(
            command_id, ok, "done" if ok else "refused", "told", data, self.generation_log.generation, NOW
        )
        self.client.store.create(self.client.layout.result(command_id), encode(result))
