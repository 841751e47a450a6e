"""S9.1: what a failure says about another try."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tidegate.contract.errors import NotFoundError, SnapshotError, StoreError, TidegateError
from tidegate.subtask.chain import OperatorFailure
from tidegate.subtask.failure_codes import failure_code


class DatabaseAwayError(ValueError):
    """Of a client library, which derives it from a builtin error."""


def raised(text: str) -> BaseException:
    try:
        eval(text, {"json": json, "pa": pa})
    except Exception as error:
        return error
    raise AssertionError(text)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (raised("1 / 0"), "user_error"),
        (raised("{}['k']"), "user_error"),
        (raised("pa.scalar('x').cast(pa.int64())"), "user_error"),
        (raised("open('/not/there')"), "missing_file"),
        (raised("json.loads('<html>502')"), ""),
        (DatabaseAwayError("connection refused"), ""),
        (ConnectionRefusedError("connection refused"), ""),
        (TimeoutError("slow"), ""),
        (MemoryError(), ""),
        (RuntimeError("cannot start a thread"), ""),
        (StoreError("reset by peer"), "store"),
        (SnapshotError("damaged"), "snapshot"),
    ],
)
def test_errors_that_come_again_are_told_from_those_that_pass(error: Any, code: str) -> None:
    assert failure_code(error) == code == OperatorFailure("op", 0, error).code


def test_the_cause_counts() -> None:
    """What wraps a damaged state file is no better than that."""
    lost = TidegateError("a transaction is lost")
    lost.__cause__ = FileNotFoundError("staged file")
    assert failure_code(lost) == "missing_file" and failure_code(TidegateError("locked")) == ""
    outer = RuntimeError("restore failed")
    outer.__cause__ = SnapshotError("damaged")
    outer.__cause__.__cause__ = NotFoundError("no object")
    assert failure_code(outer) == "snapshot"
