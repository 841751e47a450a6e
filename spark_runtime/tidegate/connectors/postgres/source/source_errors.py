"""Meaning of the server's errors for a source (S9.1)."""

from __future__ import annotations

from typing import Any

from tidegate.connectors.postgres.connection import Database, is_unreachable, load_psycopg
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
        return state.startswith(_OUTAGE_CLASSES)
    return is_unreachable(error) or any(text in str(error) for text in _STARTING)


def source_error(database: Database, error: Exception, what: str, where: str) -> TidegateError:
    """Return the error of a source for an error of psycopg."""
    cause = database.error_text(error)
    place = f"{database.place}, {where}"
    if is_outage(error):
        remedy = "Check the server and the network. The job tries again according to its restart strategy"
        return OutageError(what, where=place, cause=cause, remedy=remedy)
    remedy = "Check the rights of the database user and the options of the source; the server's log has the details"
    return PipelineError(what, where=place, cause=cause, remedy=remedy)


def result_error(result: Any) -> Exception:
    """Return the error of a result of libpq."""
    load_psycopg()
    from psycopg import errors

    error: Exception = errors.error_from_result(result, "utf-8")
    return error
