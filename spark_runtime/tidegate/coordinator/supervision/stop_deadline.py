"""The time that stops have, seen from around the runs (S7.7). Pure; times come in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from tidegate.channel.elements import StopMode
from tidegate.coordinator.events import CommandAnswer, SnapshotRequest, TimeOutStop
from tidegate.coordinator.supervision.supervision_events import StopPoint
from tidegate.jobs.records import Command
from tidegate.jobs.stop_outcomes import CANCELED_IN_STOP, ON_TIMEOUT, SAVEPOINT_FAILED, SAVEPOINT_OK, OnTimeout
from tidegate.units import format_duration, parse_duration

RETRY_STOP_MS = 1_000
"""How long after its time was up a stop that no run has is looked at again, milliseconds."""


@dataclass
class StopDeadline:
    """One stop under way, from its command to its answer.

    Attributes:
        command: as it was taken.
        request: what runs are asked for: of the command, or for the second try.
        on_timeout: what follows when its time is up.
        limit: its time, in words.
        deadline_ms: when its time is up; None: not now, as it has been, or as the second try waits for a run.
        given_up: its run was told to give it up.
        first: what became of the first try; None: this is it.
        held: how it failed, which is told once the job is up again, or when its time is up; None: it has not.
    """

    command: Command
    request: SnapshotRequest
    on_timeout: OnTimeout
    limit: str
    deadline_ms: int | None
    given_up: bool = False
    first: CommandAnswer | None = None
    held: CommandAnswer | None = None

    @classmethod
    def of(cls, command: Command, default: timedelta, now_ms: int) -> StopDeadline:
        """For a command that the book accepted now. Args: default: the option `stop_timeout`."""
        arguments = command.arguments
        timeout = parse_duration(arguments.get("timeout", default))
        limit_ms = max(1, timeout // timedelta(milliseconds=1))
        mode: StopMode = "drain" if arguments.get("mode") == "drain" else "suspend"
        request = SnapshotRequest(
            "stop-savepoint",
            request_id=command.command_id,
            stop=mode,
            path=arguments.get("path"),
            timeout_ms=limit_ms,
            by=command.issued_by,
        )
        on_timeout = next((o for o in ON_TIMEOUT if o == arguments.get("on_timeout")), ON_TIMEOUT[0])
        return cls(command, request, on_timeout, format_duration(timeout), now_ms + limit_ms)

    @property
    def tries_again(self) -> bool:
        """Its time up, it is tried once more, as a suspend."""
        return self.on_timeout == "suspend" and self.first is None

    def is_late(self, now_ms: int) -> bool:
        """Its time is up, or was when its run was told."""
        return self.given_up or (self.deadline_ms is not None and now_ms >= self.deadline_ms)

    def give_up(self, stop: StopPoint | None) -> TimeOutStop:
        """What its run is told. Args: stop: the savepoint that an earlier run completed."""
        self.deadline_ms, self.given_up = None, True
        path, mode = (stop.path, stop.mode) if stop is not None else (None, None)
        return TimeOutStop(self.command.command_id, self.limit, path, mode)

    def retry(self, told: CommandAnswer) -> SnapshotRequest:
        """The second try; its time begins when a run has it."""
        self.first, self.given_up, self.deadline_ms, self.held = told, False, None, None
        self.request = replace(self.request, stop="suspend")
        return self.request

    def started(self, now_ms: int) -> None:
        """A run is up that has it."""
        if self.deadline_ms is None and not self.given_up:
            self.deadline_ms = now_ms + self.request.timeout_ms

    def pause(self, failed: CommandAnswer, now_ms: int) -> None:
        """Its run is over. The job may be up again in the time that is left; when that is up already, in as much."""
        self.held, self.given_up = failed, False
        if self.deadline_ms is None or self.deadline_ms <= now_ms:
            self.deadline_ms = now_ms + self.request.timeout_ms

    def answer_while_down(self) -> CommandAnswer:
        """What is told of a stop that no run has when its time is up, if there is no savepoint of it."""
        if self.held is None:
            return self.answer_without_run()
        return replace(self.held, message=f"{self.held.message}; the job is not up again yet")

    def answer_without_run(self) -> CommandAnswer:
        """What is told of a stop that no run has when its time is up."""
        mode = self.request.stop
        reason = f"the stop (mode {mode}) was not done within {self.limit}: no run of the job was up to take it"
        data: dict[str, Any] = {"outcome": SAVEPOINT_FAILED, "mode": mode, "reason": reason, "held_up_by": []}
        return CommandAnswer(self.command.command_id, False, SAVEPOINT_FAILED, f"{reason}; the job goes on", data)

    def uncommitted(self, stop: StopPoint) -> CommandAnswer:
        """What is told instead when its savepoint is complete and no run is up to commit it."""
        text = (
            f"savepoint {stop.path} is complete and valid, but the job has not ended within {self.limit}: no run of it "
            "is up to commit what it covers; the next one does, and ends"
        )
        data = {"outcome": SAVEPOINT_OK, "mode": stop.mode, "checkpoint_id": stop.checkpoint_id, "path": stop.path}
        return CommandAnswer(self.command.command_id, False, SAVEPOINT_OK, text, {**data, "held_up_by": []})

    def answer(self, answer: CommandAnswer) -> CommandAnswer:
        """The answer, with what became of the first try."""
        if self.first is None:
            return answer
        first = self.first
        data = {
            **answer.data,
            "asked_mode": first.data.get("mode"),
            "reason": _reason(first),
            "held_up_by": answer.data.get("held_up_by") or first.data.get("held_up_by", []),
        }
        return replace(answer, message=f"{answer.message}; at the first try: {_reason(first)}", data=data)


def cancelled(told: CommandAnswer, latest: tuple[int | None, str] | None) -> CommandAnswer:
    """The answer to a stop that ended in the job being cancelled. Args: told: what became of the stop. latest: id and
    place of the latest recovery point."""
    n, path = latest if latest is not None else (None, None)
    left = f"the latest to restore is {path}" if path is not None else "no checkpoint of it had completed"
    data: dict[str, Any] = {**told.data, "outcome": CANCELED_IN_STOP, "checkpoint_id": n, "path": path}
    text = f"{_reason(told)}; the job was cancelled, as on_timeout=cancel wants it; {left}"
    return replace(told, code=CANCELED_IN_STOP, message=text, data=data)


def earliest(watches: Iterable[StopDeadline]) -> int | None:
    """When the next of them is due."""
    return min((w.deadline_ms for w in watches if w.deadline_ms is not None), default=None)


def _reason(told: CommandAnswer) -> str:
    """What happened to a stop, without what followed."""
    return str(told.data.get("reason") or told.message)
