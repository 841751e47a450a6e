"""How a stop can end, and what is to be done then: one table for the driver's answers, the command line and Airflow
(S7.5, S7.7, S7.8). Also what a stop may be told. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final, Literal

from tidegate.errors import OptionError
from tidegate.units import format_duration, parse_duration

OnTimeout = Literal["suspend", "cancel", "keep_running"]

STOP_MODES = ("suspend", "drain")
"""Ways to stop."""
ON_TIMEOUT: tuple[OnTimeout, ...] = ("keep_running", "suspend", "cancel")
"""What becomes of a job whose stop has not ended in time; the first one is the default."""

COMMITTED = "committed"
COMMITS_PENDING = "commits_pending"
SAVEPOINT_OK = "savepoint_ok_stop_failed"
SAVEPOINT_FAILED = "savepoint_failed_job_continues"
CANCELED_IN_STOP = "savepoint_failed_job_canceled"
CLAIM_FAILED: Final = "claim_failed"
"""Code of the answer to a savepoint that could not be begun, since nothing can be written to its place."""


@dataclass(frozen=True, slots=True)
class StopOutcome:
    """One way a stop ends.

    Attributes:
        stopped: the job has stopped as asked.
        meaning: what is so now.
        next_action: what to do, in the imperative.
    """

    stopped: bool
    meaning: str
    next_action: str


STOP_OUTCOMES: Mapping[str, StopOutcome] = MappingProxyType(
    {
        COMMITTED: StopOutcome(
            True,
            "the job has stopped, and what its savepoint covers is committed",
            "Nothing is left to do; restore the savepoint to go on",
        ),
        COMMITS_PENDING: StopOutcome(
            True,
            "the job has stopped with its savepoint; what waits for a verdict is not committed",
            "Approve or reject what waits with `tidegate commit-pending`, which needs no running job; or restore it "
            "with commit=on_request, and do so there",
        ),
        SAVEPOINT_OK: StopOutcome(
            False,
            "the savepoint is complete and valid; what it covers is not committed yet",
            "Mend what held up the commit; if the job has not ended by then, cancel it; then restore it from that "
            "savepoint, which commits it, or commit without going on: `tidegate commit-pending`",
        ),
        SAVEPOINT_FAILED: StopOutcome(
            False,
            "there is no savepoint, and nothing was committed by the stop; the job goes on",
            "The job goes on as before: mend the cause or give it more time, then stop it again",
        ),
        CANCELED_IN_STOP: StopOutcome(
            False,
            "there is no savepoint; the job was cancelled as on_timeout=cancel wants it, and its checkpoints stay",
            "Restore the job from the latest to go on; one that had completed no checkpoint is to be started anew",
        ),
    }
)
"""Code of the answer to a stop -> what it means. The same text is the `outcome` in its data and in the log."""

NEXT_OF_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        CLAIM_FAILED: "The job goes on as before: name a folder that its driver can write to, as the command's path or "
        "in the option savepoint_directory, and ask again",
    }
)
"""Code of the refusal of a snapshot -> what to do next."""


def stop_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a stop as they stand in its command: `mode`, and where given `path`, `timeout` (a duration as text)
    and `on_timeout`.

    Raises OptionError naming the argument.
    """
    data = {name: value for name, value in given.items() if value is not None}
    _check(data.setdefault("mode", STOP_MODES[0]), "mode", "a way to stop", STOP_MODES)
    _check(data.get("on_timeout", ON_TIMEOUT[0]), "on_timeout", "what a stop can end in", ON_TIMEOUT)
    if "timeout" in data:
        limit = parse_duration(data["timeout"], where="timeout")
        if limit < timedelta(milliseconds=1):
            raise OptionError("a stop needs time", where="timeout", remedy='Give it some, such as "10 min"')
        data["timeout"] = format_duration(limit)
    return data


def answer_timeout(timeout: timedelta) -> timedelta:
    """How long whoever asked for a stop with this timeout should wait for the answer: on_timeout=suspend may take as
    long again, and the job a while to restart in between and after it."""
    return 2 * timeout + ANSWER_MARGIN


ANSWER_MARGIN = timedelta(minutes=5)
"""Restarts in the course of a stop, besides its own time."""


def next_action(outcome: str) -> str:
    """What to do after a stop that ended so, or a snapshot that was refused with this code; "" for others."""
    known = STOP_OUTCOMES.get(outcome)
    return known.next_action if known is not None else NEXT_OF_REFUSED.get(outcome, "")


def stop_warning(data: Mapping[str, Any]) -> str:
    """What to say besides the outcome of a stop that went well; "" when there is nothing."""
    asked, mode = data.get("asked_mode"), data.get("mode")
    parts = []
    if asked is not None:
        what = f"{mode} instead of {asked}" if asked != mode else f"{mode} at the second try"
        parts.append(f"{what}: {data.get('reason', 'the first try was not done in time')}")
    if data.get("outcome") == COMMITS_PENDING:
        ids = ", ".join(map(str, data.get("uncommitted", ())))
        parts.append(f"not committed: checkpoints {ids}. {STOP_OUTCOMES[COMMITS_PENDING].next_action}")
    return "; ".join(parts)


def _check(value: object, name: str, what: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise OptionError(f"{value!r} is not {what}", where=name, remedy=f"Use {' or '.join(allowed)}")
