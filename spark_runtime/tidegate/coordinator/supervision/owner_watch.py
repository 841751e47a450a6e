"""Detect that the owner of a job is lost, and send the command of `on_owner_lost`. Pure; callers pass the time.

The owner, an Airflow task or trigger, rewrites `owner.json` regularly. The driver reads it and measures with its own
clock for how long it has not changed, so that no clocks are compared. Then it does what a client could do: it sends the
job a command. The command's id is derived from what was read, so that another driver of the submission that reads the
same sends the same command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tidegate.jobs.layout import stable_id
from tidegate.jobs.options import OnOwnerLost


@dataclass(frozen=True, slots=True)
class OwnerRead:
    """A read of `owner.json`. `mark` None: the file names no owner of this submission.

    The job waits only for an owner that it has seen. After that, a missing mark counts as silence. A task of an earlier
    submission that still writes the file does not count as the owner.
    """

    mark: str | None


@dataclass(frozen=True, slots=True)
class OwnerUnreadable:
    """A read that failed: the store did not respond, and may not have responded to the owner either."""


OwnerEvent: TypeAlias = OwnerRead | OwnerUnreadable


@dataclass(frozen=True, slots=True)
class SendEndCommand:
    """Send this command to the job.

    Attributes:
        attempt: number of the command for the same silence, from 1.
    """

    verb: Literal["stop", "cancel"]
    command_id: str
    attempt: int
    arguments: Mapping[str, Any] = field(default_factory=dict)


class OwnerWatch:
    """One driver's view of its job's owner."""

    def __init__(self, spec: int, policy: OnOwnerLost, timeout_ms: int) -> None:
        """Args: timeout_ms: the option `owner_timeout`."""
        self._spec, self._policy, self._timeout_ms = spec, policy, timeout_ms
        self._mark: str | None = None
        self._since_ms: int | None = None
        self._asked = 0

    def handle(self, event: OwnerEvent, now_ms: int) -> SendEndCommand | None:
        """Process a read of the file. Return the command to send, or None.

        A failed read restarts the measured time. Sending a command restarts it, too: if a stop fails, it is sent again
        after the owner has been silent for another `owner_timeout`.
        """
        if self._policy == "keep_running":
            return None
        mark = self._mark if isinstance(event, OwnerUnreadable) or event.mark is None else event.mark
        if isinstance(event, OwnerUnreadable) or mark is None:
            self._since_ms = None
            return None
        if mark != self._mark:
            self._mark, self._since_ms, self._asked = mark, now_ms, 0
            return None
        if self._since_ms is None:
            self._since_ms = now_ms
        if now_ms - self._since_ms < self._timeout_ms:
            return None
        self._since_ms = now_ms
        return self.request_end()

    def request_end(self) -> SendEndCommand:
        """Return the next command for the current silence.

        Also for callers whose previous command has an answer already, possibly from an earlier driver.
        """
        self._asked += 1
        command_id = stable_id("owner-lost", self._spec, self._mark, self._asked)
        if self._policy == "cancel":
            return SendEndCommand("cancel", command_id, self._asked)
        return SendEndCommand("stop", command_id, self._asked, {"mode": "suspend"})
