"""Converts a `TidegateError`, or a trigger's event, to the exception that ends the Airflow task, with one message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from airflow_tidegate.version_compat import AirflowException, AirflowFailException, AirflowSensorTimeout
from tidegate.errors import TidegateError

__all__ = ["AirflowException", "AirflowFailException", "AirflowSensorTimeout", "Failure", "airflow_failures"]

FINAL_CODES = frozenset({"option", "pipeline", "environment", "record"})
"""Codes of errors that would repeat: the Airflow task fails without using its retries."""


@dataclass(frozen=True)
class Failure:
    """A failure as JSON, so that a trigger can pass it to its task.

    Attributes:
        code: the `TidegateError`'s code.
        message: one text with place, cause (the user's traceback included) and remedy.
        final: a retry cannot fix it.
    """

    code: str
    message: str
    final: bool = False

    @classmethod
    def of(cls, error: TidegateError) -> Failure:
        """Create the failure for `error`."""
        return cls(code=error.code, message=str(error), final=error.code in FINAL_CODES)

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> Failure:
        """Return the failure in a trigger's event."""
        return cls(**event["failure"])

    def to_event(self) -> dict[str, Any]:
        """Return the event that a trigger fires for this failure."""
        return {"failure": asdict(self)}

    def end_task(self) -> NoReturn:
        """Raise the exception that ends the task: AirflowFailException if a retry cannot fix it, else
        AirflowException."""
        raise (AirflowFailException if self.final else AirflowException)(self.message) from None


@contextmanager
def airflow_failures() -> Iterator[None]:
    """Convert a `TidegateError` inside the context to the exception that ends the Airflow task, with one message."""
    try:
        yield
    except TidegateError as error:
        failure = Failure.of(error)
    else:
        return
    failure.end_task()
