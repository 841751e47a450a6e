"""A PostgreSQL source without a right, a slot or a fitting server: refused when the pipeline is built, with the
statement that helps, and never restarted without an end (S9.1)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import postgres_server
import pytest
from postgres_server import PostgresServer
from test_postgres_changes import Table

from tidegate import PostgresTable
from tidegate.errors import OutageError, PipelineError, TidegateError
from tidegate.subtask.failure_codes import failure_code

_numbers = count()
PASSWORD_VARIABLE = "TIDEGATE_TEST_READER_PASSWORD"
PERMANENT = "pipeline"


class Reader:
    """A table, and a user who may nothing."""

    def __init__(self, postgres: PostgresServer) -> None:
        self.table = Table(postgres)
        self.user = f"reader_{next(_numbers)}"
        self.table.run(f"CREATE ROLE {self.user} LOGIN PASSWORD 'right'; INSERT INTO $t VALUES (1, 'a')")
        self.dsn = postgres.dsn.replace("user=owner", f"user={self.user}")

    def refusal(self, **options: Any) -> str:
        """What the build of a pipeline refuses."""
        with pytest.raises(PipelineError) as caught:
            self.source(**options).schema()
        assert failure_code(caught.value) == PERMANENT
        return str(caught.value)

    def failure(self, **options: Any) -> TidegateError:
        """What ends a job whose schema is known, so that nothing was checked."""
        found = self.table.source().found_schema()
        assert found is not None
        source = self.source(**options).with_found_schema(found)
        self.table.source = lambda **_: source  # type: ignore[method-assign]
        error = self.table.read().failure()
        assert isinstance(error, TidegateError)
        return error

    def source(self, **options: Any) -> PostgresTable:
        given = {"changes": True, "password": f"secret:env/{PASSWORD_VARIABLE}", **options}
        return PostgresTable(self.dsn, self.table.name, **given)

    def end(self) -> None:
        self.table.end()
        with self.table.postgres.connect() as sql:
            sql.execute(f"DROP TABLE {self.table.name}; DROP OWNED BY {self.user}; DROP ROLE {self.user}")


@pytest.fixture
def reader(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Reader]:
    monkeypatch.setenv(PASSWORD_VARIABLE, "right")
    made = Reader(postgres)
    yield made
    made.end()


def test_each_missing_right_is_named_with_the_statement_that_grants_it(reader: Reader) -> None:
    said = reader.refusal()
    name, user = f"{reader.table.name}", reader.user
    statement = f'CREATE PUBLICATION "tidegate_public_{name}" FOR TABLE "public"."{name}"'
    assert "the database user may not create the publication" in said and statement in said
    assert f'ALTER ROLE "{user}" REPLICATION' in said
    reader.table.run(f"{statement}; ALTER ROLE {user} REPLICATION")
    grant = f'GRANT SELECT ON "public"."{name}" TO "{user}"'
    assert f"lacks the right SELECT on the table; run: {grant}" in reader.refusal()
    assert f"lacks the right SELECT on the table; run: {grant}" in reader.refusal(changes=False)
    reader.table.run(grant)
    assert reader.source().schema().names == ["change_kind", "id", "v"]
    reader.table.run(f"REVOKE SELECT ON $t FROM {user}; GRANT SELECT (id) ON $t TO {user}")
    assert reader.source(columns=["id"]).schema().names == ["change_kind", "id"]
    assert "lacks the right SELECT" in reader.refusal()


def test_a_publication_of_the_user_that_does_not_exist_is_refused_with_its_statement(reader: Reader) -> None:
    reader.table.run(f"ALTER ROLE {reader.user} REPLICATION; GRANT SELECT ON $t TO {reader.user}")
    assert 'does not exist; run: CREATE PUBLICATION "mine"' in reader.refusal(publication="mine")


@pytest.mark.parametrize(
    ("grants", "said"),
    [
        ("", "the database user may not create it"),
        ("CREATE PUBLICATION tidegate_public_$t FOR TABLE $t", "ALTER ROLE ... REPLICATION"),
        (
            "CREATE PUBLICATION tidegate_public_$t FOR TABLE $t; ALTER ROLE $u REPLICATION",
            "permission denied for table",
        ),
    ],
)
def test_a_run_without_a_right_fails_the_job_at_once(reader: Reader, grants: str, said: str) -> None:
    reader.table.run(grants.replace("$u", reader.user) or "SELECT 1")
    error = reader.failure()
    assert said in str(error) and failure_code(error) == PERMANENT
    assert not isinstance(error, OutageError)


def test_errors_of_connections_have_one_remedy(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, "wrong")
    said = reader.refusal()
    assert "password authentication failed" in said
    assert said.endswith(". Check the user, and the password that password= names") and "wrong" not in said
    monkeypatch.setenv(PASSWORD_VARIABLE, "right")
    reader.dsn = reader.dsn.replace("dbname=postgres", "dbname=nowhere")
    assert reader.refusal().endswith(". Correct dbname in the connection string")
    reader.dsn = "host=127.0.0.1 port=1 dbname=postgres"
    with pytest.raises(OutageError, match="Connection refused.* Check that the server runs, and check host and port"):
        reader.source().schema()


@pytest.fixture
def small_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[PostgresServer]:
    """A server with one replication slot."""
    settings = [one for one in postgres_server.SETTINGS if not one.startswith("max_replication_slots")]
    monkeypatch.setattr(postgres_server, "SETTINGS", (*settings, "max_replication_slots=1"))
    server = PostgresServer("TIDEGATE_TEST_SMALL_POSTGRES_PASSWORD")
    server.start()
    yield server
    server.stop()


def test_a_server_without_a_free_slot_or_without_logical_wal_is_refused(small_server: PostgresServer) -> None:
    table = Table(small_server)
    source = table.source()
    source.schema()
    table.sql.execute("SELECT pg_create_physical_replication_slot('other')")
    with pytest.raises(PipelineError, match="all replication slots are in use; drop unused ones"):
        table.source().schema()
    found = source.found_schema()
    assert found is not None
    table.source = lambda **_: source  # type: ignore[method-assign]
    error = table.read().failure()
    assert "all replication slots are in use" in str(error) and failure_code(error) == PERMANENT
    table.sql.execute("SELECT pg_drop_replication_slot('other')")
    table.end()
    command, _ = small_server._launch
    command[command.index("wal_level=logical")] = "wal_level=replica"
    small_server.kill()
    small_server.start_again()
    with pytest.raises(PipelineError, match="wal_level is replica; set it to logical, and restart the server"):
        Table(small_server).source().schema()
