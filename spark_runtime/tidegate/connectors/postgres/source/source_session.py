"""Sessions of a source: plain connections with fixed output, and libpq calls that never block the process.

psycopg's own `copy` and the replication protocol's COPY BOTH are read on the level of libpq, a row per call: psycopg
has no API for replication, and its iteration costs more for a row than the server needs to send it.
"""

from __future__ import annotations

import select
import threading
from typing import TYPE_CHECKING, Any

from tidegate.connectors.postgres.connection import Database, load_psycopg
from tidegate.connectors.postgres.source.column_values import OUTPUT_SETTINGS
from tidegate.connectors.postgres.source.source_errors import result_error

if TYPE_CHECKING:
    import psycopg

WAIT_S = 0.1
"""Seconds after which a wait for the server notices that the source closes."""


class SourceClosedError(Exception):
    """The source closes, so that the thread must end. Never reaches a user."""


def open_session(database: Database, application: str, **own: str) -> psycopg.Connection[Any]:
    """Return a connection whose session writes values as `column_values` reads them."""
    connection = database.connect(application[:63], **own)
    settings = "; ".join(f"SET {name} = '{value}'" for name, value in OUTPUT_SETTINGS.items())
    try:
        connection.execute(settings)
    except BaseException:
        connection.close()
        raise
    return connection


def run_simple(connection: psycopg.Connection[Any], statement: str, closed: threading.Event) -> Any:
    """Run one statement with the simple protocol, and return its result of libpq. The first one, if it begins a COPY.

    Raises:
        psycopg.Error: the server refuses it, or the connection is lost.
        SourceClosedError: `closed` is set while the server works.
    """
    libpq = connection.pgconn
    libpq.send_query(statement.encode())
    while libpq.flush():
        select.select([], [libpq.socket], [], WAIT_S)
    result = next_result(connection, closed)
    status = load_psycopg().pq.ExecStatus
    if result.status in (status.FATAL_ERROR, status.BAD_RESPONSE):
        raise result_error(result)
    if result.status not in (status.COPY_OUT, status.COPY_BOTH):
        end_results(connection, closed)
    return result


def next_result(connection: psycopg.Connection[Any], closed: threading.Event) -> Any:
    """Wait for a result, and return it; None: there is no further one."""
    libpq = connection.pgconn
    while libpq.is_busy():
        wait_for_data(connection, WAIT_S, closed)
        libpq.consume_input()
    return libpq.get_result()


def end_results(connection: psycopg.Connection[Any], closed: threading.Event) -> None:
    """Read the remaining results of a statement. Raises psycopg.Error if one is an error."""
    while (result := next_result(connection, closed)) is not None:
        if result.status == load_psycopg().pq.ExecStatus.FATAL_ERROR:
            raise result_error(result)


def wait_for_data(connection: psycopg.Connection[Any], limit_s: float, closed: threading.Event) -> bool:
    """Wait until the server has sent something, and return whether it has."""
    if closed.is_set():
        raise SourceClosedError
    poll = select.poll()  # `select` refuses numbers from 1,024 on
    poll.register(connection.pgconn.socket, select.POLLIN)
    return bool(poll.poll(limit_s * 1_000))
