"""What is told when a job is over (S7.7). Pure."""

from __future__ import annotations

from tidegate.jobs.stop_outcomes import SAVEPOINT_OK
from tidegate.coordinator.events import Answer
from tidegate.coordinator.supervision.supervision_events import StopPoint

CANCELED = Answer("", True, "canceled", "the job is cancelled")
"""To everybody who asked for it."""


def terminated_text(reason: str, stop: StopPoint | None = None) -> str:
    """What a job fails with whose driver was terminated before it could end the job."""
    if stop is not None:
        return (
            f"the driver was terminated (SIGTERM) when savepoint {stop.path} was complete, before what it covers was "
            f"committed: {reason}. Restore it to go on"
        )
    return (
        f"the driver was terminated (SIGTERM) before a savepoint completed: {reason}. "
        "Restore the latest checkpoint to go on"
    )


def cut_short(stop: StopPoint, reason: str) -> Answer:
    text = (
        f"savepoint {stop.path} is complete and valid, but the job ended before what it covers was committed: "
        f"{reason}. Restore it: that commits it too"
    )
    data = {"outcome": SAVEPOINT_OK, "mode": stop.mode, "checkpoint_id": stop.checkpoint_id, "path": stop.path}
    return Answer("", False, SAVEPOINT_OK, text, data)


def refusal(code: str, message: str) -> Answer:
    return Answer("", False, code, message)
