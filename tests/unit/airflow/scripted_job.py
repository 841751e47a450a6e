"""A job directory in a folder, a driver that does only what the test scripts, and the context of an Airflow task."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.decision_log import DecisionLog, GenerationLog
from tidegate.jobs.records import CommandResult, StatusHint, encode

NOW = "2026-01-01T00:00:00.000+00:00"
PIPELINE = "pipe.py:build"


class ScriptedDriver:
    """Writes what a driver would write, when the test says so."""

    def __init__(self, client: JobClient, spec: int = 1, launch: int = 1) -> None:
        self.client = client
        numbers = itertools.count()
        log = DecisionLog(client.store, client.layout, lambda: NOW, lambda: f"{spec}-{launch}-{next(numbers)}")
        self.generation_log: GenerationLog = log.begin_generation(spec=spec, launch=launch)
        self._beats = 0

    def status(self, status: str, **data: Any) -> None:
        self.generation_log.append("status", {"status": status, **data})

    def checkpoint(
        self,
        checkpoint_id: int,
        kind: str = "checkpoint",
        *,
        aborted: str | None = None,
        triggered_at: str = NOW,
        watermark_us: int | None = None,
        sinks: tuple[str, ...] = (),
        readable_until: str | None = None,
    ) -> None:
        path = self.client.layout.checkpoint(checkpoint_id, self.generation_log.generation)
        facts = {"checkpoint_id": checkpoint_id, "kind": kind, "path": path}
        self.generation_log.append("claim", {**facts, "triggered_at": triggered_at, "watermark_us": watermark_us})
        if aborted is None:
            metadata = {"body": {"job_id": self.client.job_id, "lineage": self.client.specs()[-1].lineage}}
            self.client.store.create(self.client.layout.metadata(path), json.dumps(metadata).encode())
            done = {"metrics": {"duration_ms": 7}, "parent": None, "sinks": dict.fromkeys(sinks, "")}
            done |= {} if readable_until is None else {"readable_until": readable_until}
            self.generation_log.append("complete", {**facts, **done})
        else:
            self.generation_log.append("abort", {"checkpoint_id": checkpoint_id, "reason": aborted})

    def beat(self, **data: Any) -> None:
        self._beats += 1
        hint = StatusHint(self.generation_log.generation, self._beats, "r", NOW, data)
        self.client.store.replace(self.client.layout.status(self.generation_log.generation), encode(hint))

    def answer(self, command_id: str, ok: bool = True, code: str = "done", message: str = "", **data: Any) -> None:
        result = CommandResult(command_id, ok, code, message, data, self.generation_log.generation, NOW)
        self.client.store.create(self.client.layout.result(command_id), encode(result))

    def commands(self) -> list[str]:
        names = self.client.store.list(self.client.layout.commands)
        return [n.removesuffix(".json") for n in names if n.endswith(".json") and n.count(".") == 1]


@dataclass
class Job:
    """One job under a connection that Airflow finds in the environment."""

    root: Path
    dag_file: Path
    client: JobClient
    launches: list[int] = field(default_factory=list)
    on_launch: Callable[[int, int], None] = lambda spec, attempt: None

    def submit(self, submission_id: str = "by-hand", **changes: Any) -> Any:
        arguments: dict[str, Any] = {
            "pipeline": PIPELINE,
            "arguments": {"out": "x"},
            "options": {},
            "submission_id": submission_id,
            "code_root": str(self.dag_file.parent),
            "fresh": True,
            **changes,
        }
        return self.client.submit(**arguments)

    def context(
        self, task_id: str = "t", *, run_id: str = "r1", map_index: int = -1, clear_number: int = 0
    ) -> dict[str, Any]:
        instance = SimpleNamespace(dag_id="d", run_id=run_id, task_id=task_id, map_index=map_index)
        return {
            "ti": instance,
            "dag_run": SimpleNamespace(clear_number=clear_number),
            "dag": SimpleNamespace(fileloc=str(self.dag_file)),
        }
