"""Meaning of the server's errors for a source (S9.1)."""

from __future__ import annotations

from typing import Any, NoReturn

from tidegate.connectors.postgres.connection import Database, is_unreachable, load_psycopg, remedy_of
from tidegate.errors import OutageError, PipelineError, TidegateError

_OUTAGE_CLASSES = ("08", "40", "53", "57P")
"""SQLSTATEs of errors that a later attempt may not meet: lost connections, conflicts with the recovery of a standby,
missing resources, a server that shuts down, crashes or starts."""
_STARTING = ("the database system is", "too many clients", "remaining connection slots")
"""Messages without SQLSTATE of a server that cannot accept connections now."""


def is_outage(error: Exception) -> bool:
    """Return whether a later attempt may succeed."""
    if not isinstance(error, load_psycopg().Error):
        return False
    state: str | None = getattr(error, "sqlstate", None)
    if state:
        # 53400: no replication slot is free, which no restart changes.
        return state.startswith(_OUTAGE_CLASSES) and state != "53400"
    return is_unreachable(error) or any(text in str(error) for text in _STARTING)


def source_error(database: Database, error: Exception, what: str, where: str) -> TidegateError:
    """Return the error of a source for an error of psycopg."""
    kind = OutageError if is_outage(error) else PipelineError
    cause = database.error_text(error)
    return kind(what, where=f"{database.place}, {where}", cause=cause, remedy=remedy_of(error))


def raise_alone(failed: TidegateError) -> NoReturn:
    """Raise an error without the error that is being handled as its context.

    With an error of psycopg in its context, a refusal counts as an outage, and the job restarts without an end
    (`failure_codes`). `from None` only hides the context.
    """
    try:
        raise failed
    finally:
        failed.__context__ = None


def lacks_replication(error: Exception) -> bool:
    """Return whether the server refuses a replication connection because of the right REPLICATION."""
    # The error of a connection has no SQLSTATE. The server's term stays in translated messages.
    return isinstance(error, load_psycopg().Error) and "walsender" in str(error)


def result_error(result: Any) -> Exception:
    """Return the error of a result of libpq."""
    load_psycopg()
    from psycopg import errors

    error: Exception = errors.error_from_result(result, "utf-8")
    return error
