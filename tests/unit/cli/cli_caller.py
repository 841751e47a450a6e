"""Calls the command line against a job directory in memory, with a driver that does what the test says."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from tidegate.cli.environment import CliEnvironment
from tidegate.cli.main import main
from tidegate.cli.output import Output
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.decision_log import DecisionLog, GenerationLog
from tidegate.jobs.launch.driver_requirements import require_driver_machine
from tidegate.jobs.launch.local import driver_command
from tidegate.jobs.launches import record_launch
from tidegate.jobs.records import Command, CommandResult, Launch, Spec, StatusHint, encode

NOW = "2026-11-21T09:25:00.000Z"


@dataclass
class Driver:
    """A driver of one submission; `script` runs once for every pause of whoever waits."""

    client: JobClient
    spec: Spec
    generation_log: GenerationLog
    beats: int = 0

    def beat(self, **data: Any) -> None:
        """Replace the hint."""
        self.beats += 1
        hint = StatusHint(self.generation_log.generation, self.beats, "r1", NOW, data)
        self.client.store.replace(self.client.layout.status(self.generation_log.generation), encode(hint))

    def status(self, status: str, **data: Any) -> None:
        """Append a status."""
        self.generation_log.append("status", {"status": status, **data})

    def complete(self, checkpoint_id: int, kind: str, path: str | None = None) -> str:
        """Claim and complete a snapshot; its folder."""
        path = path or self.client.layout.checkpoint(checkpoint_id, self.generation_log.generation)
        data = {"checkpoint_id": checkpoint_id, "kind": kind, "path": path}
        self.generation_log.append("claim", {**data, "triggered_at": NOW})
        body = {"body": {"job_id": self.client.job_id, "lineage": self.spec.lineage}}
        if "://" not in path:
            self.client.store.replace(self.client.layout.metadata(path), json.dumps(body).encode())
        metrics = {"duration_ms": 31, "bytes": 2048, "alignment_ms": 2}
        self.generation_log.append("complete", {**data, "metrics": metrics, "parent": None})
        return path

    def waiting_commands(self) -> list[Command]:
        """Commands without answer."""
        store, layout = self.client.store, self.client.layout
        found = [self.client.command(i) for i in layout.unanswered(store.list(layout.commands))]
        return [command for command in found if command is not None]

    def answer(self, command: Command, ok: bool, code: str, message: str, **data: Any) -> None:
        """Answer a command."""
        result = CommandResult(command.command_id, ok, code, message, data, self.generation_log.generation, NOW)
        self.client.store.create(self.client.layout.result(command.command_id), encode(result))


Script = Callable[[Driver], None]


@dataclass
class Caller:
    """Calls `tidegate` in this process.

    Attributes:
        script: what the driver does at each pause.
        launched: submissions that were launched.
        elapsed_s: time that passed in pauses; nobody really sleeps.
        looks_at_machine: Java, slots and ports are looked at before a submission, here.
    """

    capsys: pytest.CaptureFixture[str]
    root: str = field(default_factory=lambda: f"memory://{secrets.token_hex(8)}")
    script: Script = field(default=lambda driver: driver.beat())
    launched: list[Spec] = field(default_factory=list)
    driver: Driver | None = None
    elapsed_s: float = 0.0
    looks_at_machine: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    def sleep(self, seconds: float) -> None:
        """Let time pass and the driver act."""
        self.elapsed_s += seconds
        if self.driver is not None:
            self.script(self.driver)

    def client(self, root: str, job_id: str, storage_options: Mapping[str, Any] | None = None) -> JobClient:
        """A client on our time."""
        return JobClient(root, job_id, storage_options, sleep=self.sleep, monotonic=lambda: self.elapsed_s)

    def begin(self, client: JobClient, spec: Spec) -> Driver:
        """Begin a driver's generation_log."""
        log = DecisionLog(client.store, client.layout, lambda: NOW, lambda: secrets.token_hex(8))
        self.driver = Driver(client, spec, log.begin_generation(spec=spec.number, launch=1))
        return self.driver

    def launch(self, client: JobClient, spec: Spec) -> Launch:
        """Record a launch elsewhere and begin."""
        self.launched.append(spec)
        self.begin(client, spec)
        command = lambda attempt: driver_command("python", client.root, attempt, spec.job_id)  # noqa: E731
        return record_launch(
            client.store, client.layout, spec.number, launcher="scripted", command=command, host="elsewhere"
        )

    def __call__(self, *words: str, root: bool = True) -> Answer:
        """Run a verb; `root`: with --root."""

        def surroundings(output: Output) -> CliEnvironment:
            require = require_driver_machine if self.looks_at_machine else lambda *_: None
            return CliEnvironment(output, self.environment, self.launch, require, self.sleep, lambda: self.elapsed_s)

        place = ("--root", self.root) if root else ()
        self.capsys.readouterr()
        code = main([*words, *place], make_surroundings=surroundings)
        printed = self.capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    def submitted(self, job_id: str = "flights", **more: Any) -> Driver:
        """A job whose driver has just begun."""
        client = self.client(self.root, job_id)
        more.setdefault("pipeline", PIPELINE)
        return self.begin(client, client.submit(**more))


@dataclass(frozen=True)
class Answer:
    """What a call gave."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)


PIPELINE = ""
"""`file:function` of a small pipeline; set by the conftest."""
