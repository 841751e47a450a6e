"""Connections to a PostgreSQL database: one transaction at a time, repeated after a lost connection; no secrets in
texts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from tidegate.errors import MissingExtraError, OptionError, PipelineError
from tidegate.extras import installation
from tidegate.jobs.secrets import MASK, is_reference, resolve_secrets

if TYPE_CHECKING:
    import psycopg

DEFAULT_CONNECT_TIMEOUT_S = 10
ATTEMPTS = 3
"""Attempts for one transaction. An idle connection may have been cut, and the server may end one side of a deadlock."""
IDLE_IN_TRANSACTION_LIMIT_S = 60
"""Time, in seconds, after which the server ends a transaction with a silent client: a frozen zombie must not keep its
locks.
"""
IDLE_CONNECTIONS = 2
"""Idle connections kept by one writer. Additional connections serve more busy threads and are closed after use."""

_SECRET_PARAMETERS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")

_NO_PASSWORD = "no password supplied"
"""Message of libpq, without a severity or an error code, for a server that was reached."""
# Errors of a connection that cannot be made have no SQLSTATE, so their messages decide. A server in another language
# gets the last remedy.
_REMEDIES = (
    (
        ("password authentication failed", "28P01", _NO_PASSWORD),
        "Check the user, and the password that password= names",
    ),
    (("no pg_hba.conf entry",), "Allow the connection in the server's pg_hba.conf"),
    (("walsender",), "Let an administrator run: ALTER ROLE ... REPLICATION"),
    (("all replication slots are in use",), "Drop unused replication slots, or raise max_replication_slots"),
    (("permission denied", "must be owner", "42501"), "Let an administrator grant the right to the database user"),
    (('database "', "3D000"), "Correct dbname in the connection string"),
    (('role "', "28000"), "Correct user in the connection string"),
    (("failed to resolve host", "could not translate host name"), "Correct host in the connection string"),
)
_ENDED = "Find out why the server ends connections: a restart, a failover or an administrator"
_UNREACHABLE = "Check that the server runs, and check host and port in the connection string"
_OTHERWISE = "Find the cause in the log of the database server"

logger = logging.getLogger("tidegate.connectors")
T = TypeVar("T")


def load_psycopg() -> Any:
    """Return the module `psycopg`.

    Raises:
        MissingExtraError: it is not installed, or finds no libpq.
    """
    try:
        import psycopg
    except ImportError as e:
        raise MissingExtraError(
            "PostgreSQL sources and sinks need the package psycopg",
            where="this Python environment",
            cause=str(e).splitlines()[0],
            remedy=f"Run `{installation('postgres')}` on the machines of the driver and the slots",
        ) from e
    return psycopg


class Database:
    """Address of a database. No I/O before `connect`.

    Args:
        dsn: libpq's connection string or URL, without secrets.
        password: reference to a secret, or None.
        connector: class that messages name.

    Attributes:
        place: user, host, port and name of the database, for messages.
    """

    def __init__(self, dsn: str, password: str | None = None, connector: str = "Postgres") -> None:
        self._parameters = _parameters_of(dsn, connector)
        if password is not None and not is_reference(password):
            raise OptionError(
                "the password is in plain text",
                where=f"{connector}(password=...)",
                cause="every reader of the job directory can read pipelines and arguments",
                remedy="Pass a reference: secret:env/NAME or secret:file/PATH",
            )
        self._password = password
        self.place = _place(self._parameters)

    def connect(self, application: str, **own: str) -> psycopg.Connection[Any]:
        """Return a connection outside any transaction.

        Args:
            own: parameters of libpq that the caller depends on, such as `replication`.

        Raises:
            psycopg.Error: the server refuses the connection, or cannot be reached.
            OptionError: the password's reference cannot be resolved.
        """
        psycopg = load_psycopg()
        given: dict[str, Any] = {"connect_timeout": DEFAULT_CONNECT_TIMEOUT_S, "application_name": application}
        given |= self._parameters
        given |= {"password": self._resolved()} if self._password else {}
        # Prepared statements do not survive a connection pooler between the server and this process.
        connection = psycopg.connect(
            **{**given, **own, "client_encoding": "UTF8"}, autocommit=True, prepare_threshold=None
        )
        # Each statement must see what was committed while the transaction waited for a lock. A stricter level hides it.
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        return connection

    def _resolved(self) -> str:
        return str(resolve_secrets({"password": self._password})["password"])

    def error_text(self, error: Exception) -> str:
        """Return the message of the server or libpq on one line.

        The password is masked. The server's detail is left out, because it may quote a whole row.
        """
        diagnosis = getattr(error, "diag", None)
        text = getattr(diagnosis, "message_primary", None) or str(error)
        state = getattr(error, "sqlstate", None)
        text = " ".join(text.split()) + (f" (SQLSTATE {state})" if state else "")
        if self._password:
            try:
                secret = self._resolved()
            except OptionError:
                secret = ""
            text = text.replace(secret, MASK) if secret else text
        return text


def is_unreachable(error: Exception) -> bool:
    """Return whether the server did not answer, or the connection was lost.

    A refusal by a server that was reached does not count: its message contains the severity, or has an error code of
    another class.
    """
    if not isinstance(error, load_psycopg().OperationalError):
        return False
    if error.sqlstate:
        return error.sqlstate.startswith("08")
    return "FATAL" not in str(error) and _NO_PASSWORD not in str(error)


def remedy_of(error: Exception) -> str:
    """Return the one next action that fits an error of psycopg."""
    text = f"{error} {getattr(error, 'sqlstate', None) or ''}"
    for signs, remedy in _REMEDIES:
        if any(sign in text for sign in signs):
            return remedy
    if is_unreachable(error):
        return _UNREACHABLE
    # A server that shuts down, or has just started.
    return _ENDED if "57P0" in text or "the database system is" in text else _OTHERWISE


class Connections:
    """Connections of one writer, for all of its threads. Safe to close at any time, more than once."""

    def __init__(self, database: Database, application: str) -> None:
        self._database = database
        self._application = application
        self._lock = threading.Lock()
        self._idle: list[psycopg.Connection[Any]] = []
        self._closed = False

    def run(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        """Run `work` in one transaction, which is committed durably when it returns and aborted when it raises.

        If the connection is lost or the server requests it, the work is repeated on a new connection. So `work` must be
        repeatable, also after a commit whose answer was lost.

        Raises:
            psycopg.Error: the error of the last attempt.
        """
        psycopg = load_psycopg()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._once(work)
            except psycopg.OperationalError as e:
                if attempt == ATTEMPTS:
                    raise
                logger.warning(
                    "a transaction at the database %s failed, and is tried again: %s",
                    self._database.place,
                    self._database.error_text(e),
                )
        raise AssertionError("unreachable")

    def _once(self, work: Callable[[psycopg.Connection[Any]], T]) -> T:
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            connection = self._database.connect(self._application)
        kept = False
        try:
            # A role or database may switch synchronous_commit off. A crash of the server could then lose a commit that
            # it confirmed.
            with connection.transaction():
                connection.execute(
                    "SELECT set_config('idle_in_transaction_session_timeout', %s, true),"
                    " CASE WHEN current_setting('synchronous_commit') = 'off'"
                    " THEN set_config('synchronous_commit', 'on', true) END",
                    [f"{IDLE_IN_TRANSACTION_LIMIT_S}s"],
                )
                made = work(connection)
            kept = True
        finally:
            with self._lock:
                # After an error the connection may be broken, or its state unknown, so it is closed.
                kept = kept and not self._closed and len(self._idle) < IDLE_CONNECTIONS
                if kept:
                    self._idle.append(connection)
            if not kept:
                connection.close()
        return made

    def close(self) -> None:
        """Close idle connections now, and busy connections when their work ends."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _parameters_of(dsn: str, connector: str) -> dict[str, Any]:
    psycopg = load_psycopg()
    from psycopg.conninfo import conninfo_to_dict

    try:
        parameters = dict(conninfo_to_dict(dsn))
    except psycopg.ProgrammingError:
        # libpq's message would quote the string, and a password in it.
        raise OptionError(
            f"the connection string of {connector} cannot be parsed",
            where=f"{connector}(dsn=...)",
            remedy='Pass "host=... dbname=... user=..." or "postgresql://user@host/dbname"',
        ) from None
    secret = [name for name in _SECRET_PARAMETERS if parameters.get(name)]
    if secret:
        raise OptionError(
            f"the connection string contains a secret: {', '.join(secret)}",
            where=f"{connector}(dsn=...)",
            cause="every reader of the job directory can read pipelines and arguments",
            remedy='Remove the secret from dsn, and pass password="secret:env/NAME" or "secret:file/PATH"',
        )
    return parameters


def _place(parameters: Mapping[str, Any]) -> str:
    user = f"{parameters['user']}@" if "user" in parameters else ""
    host = parameters.get("host") or parameters.get("hostaddr") or parameters.get("service") or "localhost"
    port = f":{parameters['port']}" if "port" in parameters else ""
    return f"{user}{host}{port}/{parameters.get('dbname', '')}"


def refused(database: Database, error: Exception, what: str, where: str) -> PipelineError:
    """Return the error of a check for an error of psycopg."""
    cause = database.error_text(error)
    return PipelineError(what, where=f"{database.place}, {where}", cause=cause, remedy=remedy_of(error))
