"""Outcomes of a stop and the next action for each: one table for the driver's answers, the command line and Airflow
(S7.5, S7.7, S7.8). Also the arguments of a stop. Pure."""

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
"""Modes of a stop; the first one is the default."""
ON_TIMEOUT: tuple[OnTimeout, ...] = ("keep_running", "suspend", "cancel")
"""Possible actions when a stop has not ended in time; the first value is the default."""

COMMITTED = "committed"
COMMITS_PENDING = "commits_pending"
SAVEPOINT_OK = "savepoint_ok_stop_failed"
SAVEPOINT_FAILED = "savepoint_failed_job_continues"
CANCELED_IN_STOP = "savepoint_failed_job_canceled"
CLAIM_FAILED: Final = "claim_failed"
"""Code of the answer when a savepoint cannot start because its folder cannot be written."""
NEXT_OF_REFUSED: Mapping[str, str] = MappingProxyType(
    {
        CLAIM_FAILED: "The job continues as before. Name a folder that its driver can write to, as the command's path "
        "or in the option savepoint_directory, and send the command again",
    }
)
"""Next action for each code with which a snapshot is refused."""
ANSWER_MARGIN = timedelta(minutes=5)
"""Extra time for restarts during a stop, besides the stop's own timeout."""


@dataclass(frozen=True, slots=True)
class StopOutcome:
    """One outcome of a stop.

    Attributes:
        stopped: the job has stopped as requested.
        meaning: the state of the job now.
        next_action: what to do next, in the imperative.
    """

    stopped: bool
    meaning: str
    next_action: str


STOP_OUTCOMES: Mapping[str, StopOutcome] = MappingProxyType(
    {
        COMMITTED: StopOutcome(
            True,
            "the job has stopped, and the output before its savepoint is committed",
            "Nothing has to be done. To resume the job, restore the savepoint",
        ),
        COMMITS_PENDING: StopOutcome(
            True,
            "the job has stopped with its savepoint; output that waits for approval or rejection is not committed",
            "Approve or reject the output with `tidegate commit-pending`, which needs no running job. Or restore the "
            "savepoint with commit=on_request, and approve or reject the output in that run",
        ),
        SAVEPOINT_OK: StopOutcome(
            False,
            "the savepoint is complete and valid, but the output before it is not committed yet",
            "Fix the cause that held up the commit. If the job has not ended by then, cancel the job. Then restore the "
            "job from this savepoint, which commits the output. To commit without a run, use "
            "`tidegate commit-pending`",
        ),
        SAVEPOINT_FAILED: StopOutcome(
            False,
            "there is no savepoint, and the stop committed nothing; the job continues",
            "The job continues as before. Fix the cause or allow more time, then stop the job again",
        ),
        CANCELED_IN_STOP: StopOutcome(
            False,
            "there is no savepoint; the job was cancelled because of on_timeout=cancel, and its checkpoints stay",
            "To resume the job, restore it from the latest checkpoint. If there is no checkpoint, start the job again",
        ),
    }
)
"""Outcomes by the code of the answer to a stop. The answer's data and the log contain the same code as `outcome`."""


def stop_arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a stop command: `mode`, and if they are set `path`, `timeout` (a duration as text) and
    `on_timeout`.

    Raises OptionError with the name of the wrong argument.
    """
    data = {name: value for name, value in given.items() if value is not None}
    _check(data.setdefault("mode", STOP_MODES[0]), "mode", "a mode of a stop", STOP_MODES)
    _check(data.get("on_timeout", ON_TIMEOUT[0]), "on_timeout", "a value of on_timeout", ON_TIMEOUT)
    if "timeout" in data:
        limit = parse_duration(data["timeout"], where="timeout")
        if limit < timedelta(milliseconds=1):
            raise OptionError(
                "the timeout of a stop is shorter than 1 ms",
                where="timeout",
                remedy='Set timeout to more time, such as "10 min"',
            )
        data["timeout"] = format_duration(limit)
    return data


def answer_timeout(timeout: timedelta) -> timedelta:
    """Return how long a caller should wait for the answer to a stop with this timeout. With on_timeout=suspend a second
    attempt may take as long again, and the job may restart between and after the attempts."""
    return 2 * timeout + ANSWER_MARGIN


def next_action(outcome: str) -> str:
    """Return the next action after a stop's outcome, or after a refusal of a snapshot by code; "" for other codes."""
    known = STOP_OUTCOMES.get(outcome)
    return known.next_action if known is not None else NEXT_OF_REFUSED.get(outcome, "")


def stop_warning(data: Mapping[str, Any]) -> str:
    """Return a warning about a stop that succeeded; "" when there is none."""
    asked, mode = data.get("asked_mode"), data.get("mode")
    parts = []
    if asked is not None:
        what = (
            f"the stop ended with mode {mode} instead of {asked}"
            if asked != mode
            else f"the stop (mode {mode}) took two attempts"
        )
        parts.append(f"{what}: {data.get('reason', 'the first attempt did not end in time')}")
    if data.get("outcome") == COMMITS_PENDING:
        ids = ", ".join(map(str, data.get("uncommitted", ())))
        parts.append(f"the output of checkpoints {ids} is not committed. {STOP_OUTCOMES[COMMITS_PENDING].next_action}")
    return "; ".join(parts)


def _check(value: object, name: str, what: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise OptionError(f"{value!r} is not {what}", where=name, remedy=f"Use {' or '.join(allowed)}")
