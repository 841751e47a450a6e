"""Deadlines of stops, across runs (S7.7). Pure; callers pass the time."""

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
"""Milliseconds after which a stop without a run is checked again when its time is up."""


@dataclass
class StopDeadline:
    """One stop in progress, from its command to its answer.

    Attributes:
        command: the accepted command.
        request: the request that runs receive: of the command, or of the second try.
        on_timeout: what happens when its time is up.
        limit: its timeout, in words.
        deadline_ms: when its time is up; None: its time was already up, or the second try waits for a run.
        given_up: its run was ordered to end it.
        first: result of the first try; None: this is the first try.
        held: the failure of the stop. It is sent as the answer when the job is running again, or when the time is up;
            None: the stop has not failed.
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
        """Create the deadline of a command that has just been accepted. `default`: the option `stop_timeout`."""
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
        """True if the stop is tried once more, as a suspend, when its time is up."""
        return self.on_timeout == "suspend" and self.first is None

    def is_late(self, now_ms: int) -> bool:
        """Return whether its time is up, or was when its run was ordered to end it."""
        return self.given_up or (self.deadline_ms is not None and now_ms >= self.deadline_ms)

    def give_up(self, stop: StopPoint | None) -> TimeOutStop:
        """Return the event for its run. `stop`: the savepoint that an earlier run completed."""
        self.deadline_ms, self.given_up = None, True
        path, mode = (stop.path, stop.mode) if stop is not None else (None, None)
        return TimeOutStop(self.command.command_id, self.limit, path, mode)

    def retry(self, answer: CommandAnswer) -> SnapshotRequest:
        """Return the request of the second try. Its time begins when a run receives it."""
        self.first, self.given_up, self.deadline_ms, self.held = answer, False, None, None
        self.request = replace(self.request, stop="suspend")
        return self.request

    def started(self, now_ms: int) -> None:
        """Start the time of the second try, because a run has received it."""
        if self.deadline_ms is None and not self.given_up:
            self.deadline_ms = now_ms + self.request.timeout_ms

    def pause(self, failed: CommandAnswer, now_ms: int) -> None:
        """Keep the failure until the job is running again, because its run is over.

        The restart has the remaining time. If none remains, it has the full timeout again.
        """
        self.held, self.given_up = failed, False
        # Without new time, the failure would be answered before the restart had a chance to succeed.
        if self.deadline_ms is None or self.deadline_ms <= now_ms:
            self.deadline_ms = now_ms + self.request.timeout_ms

    def answer_while_down(self) -> CommandAnswer:
        """Return the answer to a stop without a savepoint, if its time is up while no run is active."""
        if self.held is None:
            return self.answer_without_run()
        return replace(self.held, message=f"{self.held.message}; the job is not running again yet")

    def answer_without_run(self) -> CommandAnswer:
        """Return the answer to a stop that no run has received when its time is up."""
        mode = self.request.stop
        reason = f"the stop (mode {mode}) did not finish within {self.limit}: no run of the job was active"
        data: dict[str, Any] = {"outcome": SAVEPOINT_FAILED, "mode": mode, "reason": reason, "held_up_by": []}
        return CommandAnswer(self.command.command_id, False, SAVEPOINT_FAILED, f"{reason}; the job continues", data)

    def uncommitted(self, stop: StopPoint) -> CommandAnswer:
        """Return the answer to a stop whose savepoint is complete while no run is active to commit it."""
        text = (
            f"savepoint {stop.path} is complete and valid, but the job has not ended within {self.limit}: no run is "
            "active to commit the savepoint. The next run commits it, and ends"
        )
        data = {"outcome": SAVEPOINT_OK, "mode": stop.mode, "checkpoint_id": stop.checkpoint_id, "path": stop.path}
        return CommandAnswer(self.command.command_id, False, SAVEPOINT_OK, text, {**data, "held_up_by": []})

    def answer(self, answer: CommandAnswer) -> CommandAnswer:
        """Return the answer, extended by the result of the first try."""
        if self.first is None:
            return answer
        first = self.first
        data = {
            **answer.data,
            "asked_mode": first.data.get("mode"),
            "reason": _reason(first),
            "held_up_by": answer.data.get("held_up_by") or first.data.get("held_up_by", []),
        }
        return replace(answer, message=f"{answer.message}; the first attempt failed: {_reason(first)}", data=data)


def cancelled(answer: CommandAnswer, latest: tuple[int | None, str] | None) -> CommandAnswer:
    """Return the answer to a stop that was turned into a cancel.

    Args:
        `answer`: result of the stop.
        latest: id and location of the latest recovery point.
    """
    n, path = latest if latest is not None else (None, None)
    left = f"the latest checkpoint to restore is {path}" if path is not None else "no checkpoint had completed"
    data: dict[str, Any] = {**answer.data, "outcome": CANCELED_IN_STOP, "checkpoint_id": n, "path": path}
    text = f"{_reason(answer)}; the job was cancelled because of on_timeout=cancel; {left}"
    return replace(answer, code=CANCELED_IN_STOP, message=text, data=data)


def earliest(watches: Iterable[StopDeadline]) -> int | None:
    """Return the earliest deadline, or None."""
    return min((w.deadline_ms for w in watches if w.deadline_ms is not None), default=None)


def _reason(answer: CommandAnswer) -> str:
    """Return the cause in a stop's answer, without its consequences."""
    return str(answer.data.get("reason") or answer.message)
