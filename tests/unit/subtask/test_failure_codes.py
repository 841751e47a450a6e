"""S9.1: what a failure says about another try."""

from __future__ import annotations

import json
import queue
import shutil
from typing import Any

import pyarrow as pa
import pytest

from tidegate.errors import NotFoundError, PipelineError, SnapshotError, StoreError, TidegateError
from tidegate.subtask.chain import OperatorFailure
from tidegate.subtask.failure_codes import USER_ERROR, failure_code


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
        (raised("open('/not/there')"), ""),
        (raised("json.loads('<html>502')"), "user_error"),
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
    assert failure_code(lost) == "missing_file" and failure_code(TidegateError("refused")) == "runtime_error"
    outer = RuntimeError("restore failed")
    outer.__cause__ = SnapshotError("damaged")
    outer.__cause__.__cause__ = NotFoundError("no object")
    assert failure_code(outer) == "snapshot"


class IntegrityError(Exception):
    """As database drivers name it (PEP 249)."""

    __module__ = "psycopg.errors"


class OperationalError(Exception):
    """As database drivers name it (PEP 249)."""

    __module__ = "psycopg"


@pytest.mark.parametrize(("answer", "code"), [(IntegrityError, "runtime_error"), (OperationalError, "")])
def test_a_row_that_a_database_refuses_is_told_from_a_database_that_is_away(answer: Any, code: str) -> None:
    """Also where a sink hides what the database said, because it quotes rows."""
    try:
        try:
            raise answer("duplicate key")
        except Exception as error:
            assert failure_code(error) == ("user_error" if code else "")
            raise TidegateError("rows could not be staged") from None
    except TidegateError as error:
        assert failure_code(error) == code


@pytest.mark.parametrize(
    "error", [raised("pa.array([[1]]).cast(pa.date32())"), pa.ArrowCapacityError("too long"), RecursionError("deep")]
)
def test_what_a_library_cannot_do_with_the_data_is_about_the_data(error: Exception) -> None:
    assert failure_code(error) == "user_error"


class BadOrderError(Exception):
    """As a pipeline defines one."""


@pytest.mark.parametrize("error", [RuntimeError("order 17 has no lines"), BadOrderError("order 17")])
def test_what_a_line_of_the_pipeline_raises_is_a_user_error_whatever_its_class(error: Exception) -> None:
    try:
        raise error
    except Exception as caught:
        assert failure_code(caught) == USER_ERROR


def test_what_a_package_raises_in_the_pipelines_call_is_none() -> None:
    try:
        queue.Queue[int]().get_nowait()
    except Exception as caught:
        assert failure_code(caught) == ""


def test_a_lost_connection_is_none_wherever_it_is_raised() -> None:
    try:
        raise ConnectionResetError("the service went away")
    except Exception as caught:
        assert failure_code(caught) == ""


def test_a_file_that_the_pipeline_opens_is_missing_and_one_of_the_runtime_is_made_again() -> None:
    try:
        open("/not/there")  # noqa: SIM115
    except OSError as caught:
        assert failure_code(caught) == "missing_file"
    try:
        shutil.copy("/not/there", "/nor/there")
    except OSError as caught:
        assert failure_code(caught) == ""


@pytest.mark.parametrize("away", [ConnectionResetError("reset"), TimeoutError("slow"), StoreError("503")])
def test_what_an_outage_has_caused_may_go_well_whatever_it_was_made_of(away: Exception) -> None:
    """A pipeline that cannot be built, a file that cannot be listed, a lookup of the user's that fails."""
    for made in (
        PipelineError("the input files cannot be listed"),
        RuntimeError("lookup failed"),
        SnapshotError("unreadable"),
    ):
        try:
            try:
                raise away
            except Exception as cause:
                raise made from cause
        except Exception as caught:
            assert failure_code(caught) == ""
        made.__cause__ = made.__context__ = None
        try:
            try:
                raise away
            except Exception:
                raise made from None
        except Exception as caught:
            assert failure_code(caught) == ""
