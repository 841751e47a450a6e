"""Whether the owner of a job is lost, and what the job then does by itself (`on_owner_lost`). Pure; times come in.

The owner, an Airflow task or trigger, writes `owner.json` anew from time to time. The driver looks at it and measures
by its own clock for how long it has stood still: no clocks are compared. Then it does what a client could do, and by
the same way: it sends the job a command, under an id that follows from what was seen, so that another driver of the
submission that sees the same sends the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from tidegate.jobs.layout import stable_id
from tidegate.jobs.options import OnOwnerLost


@dataclass(frozen=True, slots=True)
class OwnerRead:
    """A look at `owner.json`. Mark None: it tells of no owner of this submission. Before there was one, nobody is
    waited for; afterwards that is silence: a task of an earlier submission that still writes is not it."""

    mark: str | None


@dataclass(frozen=True, slots=True)
class OwnerUnreadable:
    """A look that told nothing: the store did not answer, and neither may it have answered the owner."""


OwnerEvent: TypeAlias = OwnerRead | OwnerUnreadable


@dataclass(frozen=True, slots=True)
class SendEndCommand:
    """Send the job this command.

    Attributes:
        attempt: from 1; counts those for the same silence.
    """

    verb: Literal["stop", "cancel"]
    command_id: str
    attempt: int
    arguments: Mapping[str, Any] = field(default_factory=dict)


class OwnerWatch:
    """One driver's view of its job's owner."""

    def __init__(self, spec: int, policy: OnOwnerLost, timeout_ms: int) -> None:
        """Args: timeout_ms: `owner_timeout`."""
        self._spec, self._policy, self._timeout_ms = spec, policy, timeout_ms
        self._mark: str | None = None
        self._since_ms: int | None = None
        self._asked = 0

    def handle(self, event: OwnerEvent, now_ms: int) -> SendEndCommand | None:
        """Take a look. One that told nothing begins the time anew, and so does asking: a stop that failed is asked for
        once more after the owner has been silent for as long again."""
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
        """The next command for the silence that was seen; also after one that has its answer, as what a driver before
        this one asked for."""
        self._asked += 1
        command_id = stable_id("owner-lost", self._spec, self._mark, self._asked)
        if self._policy == "cancel":
            return SendEndCommand("cancel", command_id, self._asked)
        return SendEndCommand("stop", command_id, self._asked, {"mode": "suspend"})
