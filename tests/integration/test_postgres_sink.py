"""The Postgres sink on a real server: what readers see, crashes inside a commit, zombies, checks before the start."""

from __future__ import annotations

import datetime as dt
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from postgres_server import PASSWORD_VARIABLE, PostgresServer

from tidegate import Postgres
from tidegate.connectors.interface import SinkWriter
from tidegate.connectors.postgres import postgres_writer
from tidegate.connectors.postgres.staging_tables import Staging
from tidegate.connectors.transactions import Committable
from tidegate.errors import FencedError, OptionError, PipelineError, TidegateError
from tidegate.testing.one_sink_job import TestWriter, numbers

SCHEMA = TestWriter.schema
_tables = count()


class Database:
    """A fresh table and a fresh staging schema on the server, and ways to look at them."""

    def __init__(self, server: PostgresServer) -> None:
        self.server = server
        self.sql = server.connect()
        self.table = f"sink_{next(_tables)}"
        self.staging = f"staging_{self.table}"
        self._writers: list[SinkWriter] = []

    def create(self, columns: str = "n bigint PRIMARY KEY") -> None:
        self.sql.execute(f"CREATE TABLE {self.table} ({columns})")

    def sink(self, **options: Any) -> Postgres:
        given = {"password": self.server.password, "staging_schema": self.staging, **options}
        return Postgres(given.pop("dsn", self.server.dsn), given.pop("table", self.table), **given)

    def writer(self, identity: TestWriter, subtask: int = 0, parallelism: int = 2, **options: Any) -> SinkWriter:
        writer = self.sink(**options).create_writer(identity.context(subtask, parallelism))
        self._writers.append(writer)
        return writer

    def rows(self, columns: str = "*") -> list[Any]:
        return sorted(self.sql.execute(f"SELECT {columns} FROM {self.table}"), key=repr)

    def numbers(self) -> list[int]:
        return [n for (n,) in self.sql.execute(f"SELECT n FROM {self.table} ORDER BY n")]

    def marked(self) -> int:
        """Transactions with a marker."""
        query = f"SELECT coalesce(sum(upper(r) - lower(r)), 0) FROM {self.staging}.writers, unnest(committed) r"
        return int(self.sql.execute(query).fetchone()[0])

    def staged(self) -> tuple[int, int]:
        """Transactions and rows that are staged."""
        (transactions,) = self.sql.execute(f"SELECT count(*) FROM {self.staging}.transactions").fetchone()
        tables = self.sql.execute(
            "SELECT tablename::text FROM pg_tables WHERE schemaname = %s AND tablename LIKE 'rows%%'", [self.staging]
        )
        rows = [self.sql.execute(f"SELECT count(*) FROM {self.staging}.{t}").fetchone()[0] for (t,) in tables]
        return transactions, sum(rows)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
        self.sql.close()


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[Database]:
    made = Database(postgres)
    yield made
    made.close()


def staged(writer: SinkWriter, checkpoint_id: int, *batches: pa.RecordBatch) -> list[Committable]:
    for batch in batches:
        writer.write(batch)
    return list(writer.prepare_commit(checkpoint_id)())


EVERY_TYPE = {
    "i": (pa.int32(), "integer", [1, None, -(2**31)]),
    "u": (pa.uint64(), "numeric", [2**64 - 1, None, 0]),
    "f": (pa.float64(), "double precision", [0.1, None, float("inf")]),
    "d": (pa.decimal128(12, 3), "numeric(12,3)", [Decimal("1.250"), None, Decimal("-0.001")]),
    "t": (pa.string(), "text", ["", None, "tab\tline\r\n\\.\nend \\N 'quoted' \"too\" äß日"]),
    "v": (pa.dictionary(pa.int8(), pa.string()), "varchar(10)", ["x", None, "y"]),
    "j": (pa.string(), "jsonb", ['{"a": "\\n"}', None, "[]"]),
    "b": (pa.binary(), "bytea", [b"", None, bytes(range(256))]),
    "o": (pa.bool_(), "boolean", [True, None, False]),
    "day": (pa.date32(), "date", [dt.date(2024, 2, 29), None, dt.date(1, 1, 1)]),
    "at": (pa.timestamp("us"), "timestamp", [dt.datetime(2024, 1, 1, 0, 0, 0, 1), None, dt.datetime(1900, 1, 1)]),
    "z": (
        pa.timestamp("ms", "Europe/Berlin"),
        "timestamptz",
        [dt.datetime(2024, 6, 1, tzinfo=dt.UTC), None, dt.datetime(1880, 1, 1, tzinfo=dt.UTC)],
    ),
    "c": (pa.time64("us"), "time", [dt.time(23, 59, 59, 999999), None, dt.time(0)]),
    "l": (pa.duration("ms"), "interval", [dt.timedelta(milliseconds=1), None, dt.timedelta(seconds=-90)]),
}


def test_every_type_arrives_as_it_was_sent(database: Database) -> None:
    database.create(", ".join(f'"{name}" {sql}' for name, (_, sql, _) in EVERY_TYPE.items()))
    batch = pa.record_batch({name: pa.array(values, kind) for name, (kind, _, values) in EVERY_TYPE.items()})
    identity = TestWriter()
    identity.schema = batch.schema
    database.sink().check(batch.schema)
    writer = database.writer(identity)
    writer.commit(staged(writer, 1, batch))
    database.sql.execute("SET timezone = 'UTC'")
    found = database.sql.execute(f"SELECT * FROM {database.table}").fetchall()
    for position, (name, (_, _, values)) in enumerate(EVERY_TYPE.items()):
        expected = [{"a": "\n"}, None, []] if name == "j" else values
        assert [row[position] for row in found] == expected, name


def batch_of(**columns: Sequence[Any]) -> pa.RecordBatch:
    return pa.record_batch({name: pa.array(values) for name, values in columns.items()})


def test_an_upsert_takes_the_last_row_of_a_key_and_leaves_other_columns_alone(database: Database) -> None:
    """Within a transaction, also across its batches, and from checkpoint to checkpoint."""
    database.create("k text, part bigint, v text, note text DEFAULT 'mine', PRIMARY KEY (part, k)")
    identity = TestWriter()
    first = batch_of(k=["a", "b", "a"], part=[1, 1, 1], v=["1", "2", "3"])
    identity.schema = first.schema
    options = {"mode": "upsert", "key": ("k", "part")}
    database.sink(**options).check(first.schema)
    writer = database.writer(identity, **options)
    later = batch_of(k=["b", "a"], part=[1, 2], v=[None, "4"]).cast(first.schema)
    one = staged(writer, 1, first, later)
    two = staged(writer, 2, batch_of(k=["a"] * 200, part=[1] * 200, v=[str(v) for v in range(200)]))
    writer.commit([*two, *one])
    assert database.rows("k, part, v, note") == [("a", 1, "199", "mine"), ("a", 2, "4", "mine"), ("b", 1, None, "mine")]
    database.sql.execute(f"UPDATE {database.table} SET note = 'theirs' WHERE k = 'b'")
    writer.commit(staged(writer, 3, batch_of(k=["b"], part=[1], v=["5"])))
    assert ("b", 1, "5", "theirs") in database.rows("k, part, v, note")


class Crash(Exception):
    """The process dies here."""


@pytest.mark.parametrize("retried", [False, True])
def test_a_commit_that_crashes_at_any_step_is_completed_by_the_next_run(
    database: Database, monkeypatch: pytest.MonkeyPatch, retried: bool
) -> None:
    """S7.4: rows and marker are one: at no step are there any of the one without the other."""
    crashes = 0
    database.create()
    for at in range(1, 30):
        identity = TestWriter(f"lineage-{at}")
        writer = database.writer(identity)
        handles = staged(writer, 1, numbers(at * 10, 3)) + staged(writer, 1, numbers(at * 10 + 3, 1))
        before = database.numbers(), database.marked()
        left = iter(range(at - 1, -1, -1))

        def step(remaining: Iterator[int] = left) -> None:
            if next(remaining, 1) == 0:
                raise Crash

        def around(name: str, step: Callable[[], None] = step) -> Callable[..., Any]:
            effect = getattr(Staging, name)

            def wrapped(*args: Any) -> Any:
                step()
                made = effect(*args)
                step()
                return made

            return wrapped

        with monkeypatch.context() as patched:
            for name in ("take", "publish", "remove_rows", "mark"):
                patched.setattr(Staging, name, around(name))
            try:
                writer.commit(handles)
            except Crash:
                crashes += 1
                assert (database.numbers(), database.marked()) == before
        if retried:
            writer.commit(handles)
        identity.run = 2
        after = database.writer(identity)
        after.commit(handles)
        after.recover(1)
        assert database.numbers()[-4:] == list(range(at * 10, at * 10 + 4)), f"crash at step {at}"
        assert (len(database.numbers()), database.marked()) == (len(before[0]) + 4, before[1] + 2)
        assert database.staged() == (0, 0)
    assert 10 <= crashes < 29, "the steps must cover the whole commit"


def test_lost_connections_and_lost_answers_are_survived(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.4: the server ends the kept connection, then a connection whose transaction it has just committed."""
    database.create()
    writer = database.writer(TestWriter())
    handles = staged(writer, 1, numbers(0, 2))
    application = "tidegate job-1/out/0"
    kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
    assert database.sql.execute(kill, [application]).fetchall()
    writer.commit(handles)

    import psycopg

    leave = psycopg.Transaction.__exit__
    lost = iter([True])

    def answer_lost(self: Any, *error: Any) -> Any:
        done = leave(self, *error)
        if error == (None, None, None) and next(lost, False):
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return done

    monkeypatch.setattr(psycopg.Transaction, "__exit__", answer_lost)
    lost = iter([False, True])
    handles = staged(writer, 2, numbers(2, 2))
    assert next(lost, None) is None, "the answer was not lost"
    lost = iter([True])
    writer.commit(handles)
    assert next(lost, None) is None, "the answer was not lost"
    assert database.numbers() == [0, 1, 2, 3]
    assert (database.staged(), database.marked()) == ((0, 0), 2)


def test_two_processes_that_commit_the_same_at_once_publish_it_once(database: Database) -> None:
    """S7.4."""
    database.create()
    identity = TestWriter()
    first = database.writer(identity)
    handles = staged(first, 1, numbers(0, 1000)) + staged(first, 2, numbers(1000, 1000))
    identity.run = 2
    second = database.writer(identity)
    failures: list[Exception] = []

    def commit(writer: SinkWriter) -> None:
        try:
            writer.commit(handles)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=commit, args=[writer]) for writer in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert database.numbers() == list(range(2000))


def test_a_zombie_of_an_older_generation_stages_publishes_and_removes_nothing(database: Database) -> None:
    """S9.2: from when its successor has touched the database; also one of a higher parallelism."""
    database.create()
    identity = TestWriter()
    zombie, other = database.writer(identity, 3, 4), database.writer(identity, 2, 4)
    kept, lost = staged(zombie, 1, numbers(0, 2)), staged(zombie, 2, numbers(2, 2))
    elsewhere = staged(other, 1, numbers(8, 2))
    zombie.write(numbers(4, 2))
    late = zombie.prepare_commit(3)
    identity.generation = 2
    successor = database.writer(identity, 1, 2)
    successor.abort([])
    for call in (late, lambda: zombie.commit(kept), lambda: zombie.commit(lost), lambda: zombie.abort(kept)):
        with pytest.raises(FencedError, match="newer generation"):
            call()
    zombie.recover(0)
    identity.generation = 1
    newborn = database.writer(identity, 1, 2)
    newborn.recover(0)
    with pytest.raises(FencedError):
        newborn.commit(kept)
    successor.recover(1, kept)
    assert database.staged() == (2, 4)
    successor.commit(kept)
    other.commit(elsewhere)
    assert database.numbers() == [0, 1, 8, 9]


def test_a_zombie_of_the_same_generation_that_recovers_late_removes_nothing(database: Database) -> None:
    """S9.2: run ids have no order, registrations have."""
    database.create()
    identity = TestWriter()
    zombie = database.writer(identity)
    zombie.commit(staged(zombie, 1, numbers(0, 1)))
    identity.run = 2
    successor = database.writer(identity)
    handles = staged(successor, 2, numbers(1, 2))
    zombie.recover(1)
    successor.commit(handles)
    assert database.numbers() == [0, 1, 2]


def test_markers_take_a_row_for_a_run_and_not_for_a_checkpoint(database: Database) -> None:
    database.create()
    identity = TestWriter()
    for run in range(1, 5):
        identity.run = run
        writer = database.writer(identity)
        writer.recover(0)
        if run in (1, 4):
            for n in range(20):
                writer.prepare_commit(n)()
                writer.commit(staged(writer, n, numbers(run * 100 + n, 1)))
    found = database.sql.execute(
        f"SELECT run_id, committed::text FROM {database.staging}.writers ORDER BY 1"
    ).fetchall()
    assert found == [("run-1-0001", "{[1,21)}"), ("run-1-0004", "{[1,21)}")]


def test_two_writers_of_one_run_share_no_transaction_numbers(database: Database) -> None:
    """S7.4: else the marker of the one would stand for the other's."""
    database.create()
    first = database.writer(TestWriter())
    early, kept = staged(first, 1, numbers(0, 1)), staged(first, 2, numbers(1, 1))
    first.commit(early)
    second = database.writer(TestWriter())
    second.commit(staged(second, 3, numbers(2, 1)))
    first.commit(kept)
    assert database.numbers() == [0, 1, 2]
    assert (database.staged(), database.marked()) == ((0, 0), 3)


def test_rows_the_table_cannot_take_are_refused_before_the_checkpoint_completes(database: Database) -> None:
    """S7.4: staged columns are of the table's types, and NOT NULL where those are."""
    database.create("n bigint NOT NULL, s varchar(3)")
    identity = TestWriter()
    identity.schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    writer = database.writer(identity)
    for batch in (batch_of(n=[1, None], s=["a", "b"]), batch_of(n=[1], s=["long"]), batch_of(n=[1], s=["\0"])):
        with pytest.raises(TidegateError, match="could not be staged.*sink 'out', subtask 0") as caught:
            staged(writer, 1, batch)
        assert "Failing row" not in "".join(traceback.format_exception(caught.value))
    assert database.staged() == (0, 0)


def test_a_commit_that_the_table_refuses_is_whole_again_once_that_is_mended(database: Database) -> None:
    """S7.4: nothing of it is visible, and nothing is lost."""
    database.create()
    database.sql.execute(f"INSERT INTO {database.table} VALUES (1)")
    writer = database.writer(TestWriter())
    handles = staged(writer, 1, numbers(0, 3))
    with pytest.raises(TidegateError, match="could not be committed.*duplicate key") as caught:
        writer.commit(handles)
    assert "(n)=(1)" not in "".join(traceback.format_exception(caught.value))
    assert database.numbers() == [1]
    database.sql.execute(f"DELETE FROM {database.table}")
    writer.commit(handles)
    assert database.numbers() == [0, 1, 2]


def test_lost_and_damaged_transactions_are_named(database: Database) -> None:
    """S7.4: never "already done"."""
    database.create()
    writer = database.writer(TestWriter())
    lost, damaged, foreign = (staged(writer, n, numbers(n, 1)) for n in (1, 2, 3))
    sql, name = database.sql, database.staging
    sql.execute(f"DELETE FROM {name}.transactions WHERE checkpoint_id = 1")
    (rows,) = sql.execute(f"SELECT DISTINCT staging FROM {name}.transactions").fetchone()
    sql.execute(f"DELETE FROM {name}.{rows} WHERE n = 2")
    sql.execute(f"UPDATE {name}.transactions SET target = 'public.other' WHERE checkpoint_id = 3")
    for handles, said in ((lost, "are lost.*no commit marker"), (damaged, "are damaged"), (foreign, "public.other")):
        with pytest.raises(TidegateError, match=said):
            writer.commit(handles)
    assert database.numbers() == []
    sql.execute(f"DROP SCHEMA {name} CASCADE")
    with pytest.raises(TidegateError, match="transaction of another job|are lost"):
        database.writer(TestWriter()).commit(damaged)


def test_what_a_pipeline_with_other_columns_staged_is_published(database: Database) -> None:
    database.create("n bigint, added text DEFAULT 'old'")
    identity = TestWriter()
    first = database.writer(identity)
    handles = staged(first, 1, numbers(0, 1))
    identity.run, identity.schema = 2, pa.schema([("n", pa.int64()), ("added", pa.string())])
    second = database.writer(identity)
    new = staged(second, 2, batch_of(n=[1], added=["new"]))
    second.commit([*handles, *new])
    assert database.rows() == [(0, "old"), (1, "new")]


def test_after_a_rescale_an_upsert_waits_for_older_rows_that_another_subtask_commits(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.4: a key that moved from subtask 3 of 4 to subtask 0 of 2; its old row is committed by subtask 1."""
    monkeypatch.setattr(postgres_writer, "COMMIT_ORDER_TIMEOUT_S", 0.2)
    database.create("n bigint PRIMARY KEY, v bigint")
    options = {"mode": "upsert", "key": "n"}
    identity = TestWriter()
    identity.schema = pa.schema([("n", pa.int64()), ("v", pa.int64())])
    old = staged(database.writer(identity, 3, 4, **options), 1, batch_of(n=[7], v=[1]))
    identity.generation = 2
    quick, slow = database.writer(identity, 0, 2, **options), database.writer(identity, 1, 2, **options)
    new = staged(quick, 2, batch_of(n=[7], v=[2]))
    with pytest.raises(TidegateError, match="rows of an older checkpoint are not committed"):
        quick.commit(new)
    slow.commit(old)
    quick.commit(new)
    assert database.rows() == [(7, 2)]


def test_a_check_changes_nothing_and_a_good_table_passes(database: Database) -> None:
    database.create("n bigint, extra text, id bigint GENERATED ALWAYS AS IDENTITY, UNIQUE (n)")
    database.sink().check(SCHEMA)
    found = database.sql.execute("SELECT FROM pg_namespace WHERE nspname = %s", [database.staging]).fetchall()
    assert found == []


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (None, {}, "the table does not exist"),
        ("m bigint", {}, "no column 'n'; its columns are m"),
        ("n integer", {}, "'n': type int64 does not fit integer"),
        ("n bigint, m text NOT NULL", {}, "'m' of the table is NOT NULL"),
        ("n bigint GENERATED ALWAYS AS IDENTITY", {}, "the database computes this column"),
        ("n bigint NOT NULL", {"mode": "upsert", "key": "n"}, "no primary key or unique constraint on exactly n"),
        ("n bigint UNIQUE", {"mode": "upsert", "key": "n"}, "nulls never match"),
        ("n bigint, m bigint, PRIMARY KEY (n, m)", {"mode": "upsert", "key": ["n", "m"]}, "no key column 'm'"),
        ("n bigint, m bigint DEFAULT 1, PRIMARY KEY (n, m)", {"mode": "upsert", "key": "n"}, "exactly n"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_by_name(
    database: Database, columns: str | None, options: dict[str, Any], said: str
) -> None:
    if columns is not None:
        database.create(columns)
    with pytest.raises(PipelineError, match=said) as caught:
        database.sink(**options).check(SCHEMA)
    assert f"public.{database.table}" in str(caught.value)


def test_views_unwritable_types_and_reserved_names_are_refused_all_at_once(database: Database) -> None:
    database.sql.execute(f"CREATE VIEW {database.table} AS SELECT 1::bigint AS n")
    with pytest.raises(PipelineError, match="not a table, but a view"):
        database.sink().check(SCHEMA)
    database.table += "_too"
    database.create("n bigint, l bigint[], tidegate_row bigint")
    schema = pa.schema(
        [("l", pa.list_(pa.int64())), ("tidegate_row", pa.int64()), ("n", pa.int64()), ("n", pa.int64())]
    )
    with pytest.raises(PipelineError, match="3 reasons.*column 'n' twice.*list<.*'tidegate_row'"):
        database.sink().check(schema)


def test_missing_rights_are_named_and_inserting_alone_is_enough_to_append(database: Database) -> None:
    database.create()
    role, sql = f"role_{database.table}", database.sql
    secret = "visible-nowhere"
    sql.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{secret}'")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TIDEGATE_TEST_ROLE", secret)
        options = {"dsn": f"host={database.server.folder} dbname=postgres user={role}"}
        options["password"] = "secret:env/TIDEGATE_TEST_ROLE"
        with pytest.raises(PipelineError, match="2 reasons.*lacks the right INSERT.*lacks CREATE on the database"):
            database.sink(**options).check(SCHEMA)
        sql.execute(
            f"CREATE SCHEMA {database.staging} AUTHORIZATION {role}; GRANT INSERT (n) ON {database.table} TO {role}"
        )
        database.sink(**options).check(SCHEMA)
        with pytest.raises(PipelineError, match="lacks the right SELECT"):
            database.sink(**options, mode="upsert", key="n").check(SCHEMA)
        writer = database.writer(TestWriter(), **options)
        writer.commit(staged(writer, 1, numbers(0, 3)))
        assert database.numbers() == [0, 1, 2]
        sql.execute(f"ALTER ROLE {role} PASSWORD 'another'")
        with pytest.raises(PipelineError, match="cannot be reached.*password authentication failed") as caught:
            database.sink(**options).check(SCHEMA)
        assert secret not in str(caught.value)


def test_the_secret_is_asked_for_only_where_it_is_used(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    database.create()
    sink = database.sink()
    monkeypatch.delenv(PASSWORD_VARIABLE)
    with pytest.raises(OptionError, match=PASSWORD_VARIABLE):
        sink.check(SCHEMA)
