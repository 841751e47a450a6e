"""One failure, told once: from a `TidegateError` (or a trigger's event) to the exception that ends the Airflow task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from airflow_tidegate.version_compat import AirflowException, AirflowFailException, AirflowSensorTimeout
from tidegate.errors import TidegateError

__all__ = ["AirflowException", "AirflowFailException", "AirflowSensorTimeout", "Failure", "airflow_failures"]

FINAL_CODES = frozenset({"option", "pipeline", "environment", "record"})
"""Codes of errors that the same attempt would meet again: the Airflow task fails without using up its retries."""


@dataclass(frozen=True)
class Failure:
    """A failure as JSON, so that a trigger can hand it to its task.

    Attributes:
        code: the `TidegateError`'s code.
        message: one text with place, cause (the user's traceback included) and remedy.
        final: a retry cannot mend it.
    """

    code: str
    message: str
    final: bool = False

    @classmethod
    def of(cls, error: TidegateError) -> Failure:
        """The failure that `error` tells."""
        return cls(code=error.code, message=str(error), final=error.code in FINAL_CODES)

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> Failure:
        """The failure in a trigger's event."""
        return cls(**event["failure"])

    def to_event(self) -> dict[str, Any]:
        """The event a trigger fires for this failure."""
        return {"failure": asdict(self)}

    def end_task(self) -> NoReturn:
        """Raise what ends the Airflow task: AirflowFailException when no retry can mend it, else AirflowException."""
        raise (AirflowFailException if self.final else AirflowException)(self.message) from None


@contextmanager
def airflow_failures() -> Iterator[None]:
    """Turn a `TidegateError` inside into the exception that ends the Airflow task, with one message."""
    try:
        yield
    except TidegateError as error:
        failure = Failure.of(error)
    else:
        return
    failure.end_task()
