"""The rewind of the Postgres sink on a real server: rows of commits are rewound, and rows of others are kept (S9.3)."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from postgres_server import PostgresServer

from tidegate import DataGen, Pipeline, Postgres
from tidegate import count as count_rows
from tidegate.change_rows import change_kind_field
from tidegate.connectors.interface import SinkWriter
from tidegate.connectors.leftovers import NeededTransactions
from tidegate.connectors.postgres.staging_tables import Staging
from tidegate.connectors.transactions import Committable
from tidegate.coordinator import events as ev
from tidegate.errors import PipelineError, SinkConflictError, TidegateError
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.in_process_job import InProcessJob
from tidegate.testing.one_sink_job import TestWriter

ROWS = pa.schema([("id", pa.int64()), ("v", pa.string())])
CHANGES = pa.schema([change_kind_field("op"), ("id", pa.int64()), ("v", pa.string())])
UPSERT: dict[str, Any] = {"mode": "upsert", "key": "id", "rewind": True}
_numbers = count()


class Target:
    """A table with its own staging schema, and one subtask that writes it."""

    def __init__(self, server: PostgresServer) -> None:
        self.server, self.sql = server, server.connect()
        self.table = f"rewound_{next(_numbers)}"
        self.staging = f"staging_{self.table}"
        self.identity = TestWriter()
        self.options: dict[str, Any] = {}
        self._writers: list[SinkWriter] = []

    def create(self, columns: str = "id bigint PRIMARY KEY, v text", **options: Any) -> None:
        self.sql.execute(f"CREATE TABLE {self.table} ({columns})")
        self.options = options
        self.identity.schema = ROWS

    def run(self, statement: str) -> None:
        self.sql.execute(statement.format(t=self.table))

    def sink(self, **options: Any) -> Postgres:
        given = {"password": self.server.password, "staging_schema": self.staging, **self.options, **options}
        return Postgres(self.server.dsn, self.table, **given)

    def writer(self, subtask: int = 0, **options: Any) -> SinkWriter:
        writer = self.sink(**options).create_writer(self.identity.context(subtask))
        self._writers.append(writer)
        return writer

    def prepared(self, writer: SinkWriter, checkpoint_id: int, *rows: tuple[Any, ...]) -> list[Committable]:
        columns = [
            pa.array(values, kind.type)
            for values, kind in zip(zip(*rows, strict=True), self.identity.schema, strict=True)
        ]
        writer.write(pa.RecordBatch.from_arrays(columns, schema=self.identity.schema))
        return list(writer.prepare_commit(checkpoint_id)())

    def commit(self, writer: SinkWriter, checkpoint_id: int, *rows: tuple[Any, ...]) -> list[Committable]:
        handles = self.prepared(writer, checkpoint_id, *rows)
        writer.commit(handles)
        return handles

    def rewind(self, checkpoint_id: int, **options: Any) -> Callable[[], None]:
        """The check of the next generation's driver; the function that rewinds."""
        self.identity.generation += 1
        return self.sink(**options).rewind_to(self.identity.context(0, parallelism=1), checkpoint_id)

    def rows(self, columns: str = "*") -> list[Any]:
        return sorted(self.sql.execute(f"SELECT {columns} FROM {self.table}").fetchall(), key=repr)

    def kept(self) -> dict[str, int]:
        """Number of rows in the sink's tables for rewinds."""
        query = "SELECT tablename::text FROM pg_tables WHERE schemaname = %s AND tablename ~ '^(rewind|former)'"
        names = [name for (name,) in self.sql.execute(query, [self.staging])]
        found = {n: self.sql.execute(f"SELECT count(*) FROM {self.staging}.{n}").fetchone()[0] for n in names}
        return {name.partition("_")[0]: rows for name, rows in found.items()}

    def close(self) -> None:
        for writer in self._writers:
            writer.close()
        self.sql.close()


@pytest.fixture
def target(postgres: PostgresServer) -> Iterator[Target]:
    made = Target(postgres)
    yield made
    made.close()


def test_appended_rows_need_no_key_and_one_record_for_a_commit(target: Target) -> None:
    """S9.3: equal rows of others, and of earlier commits, stay."""
    target.create("id bigint, v text")
    target.run("INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
    writer = target.writer()
    target.commit(writer, 1, (1, "a"), (1, "a"))
    target.commit(writer, 2, (1, "a"), (3, "c"), (3, "c"))
    assert target.kept() == {"rewind": 2}
    target.rewind(1)()
    assert target.rows() == [(1, "a"), (1, "a"), (1, "a"), (2, "b")]
    assert target.kept() == {"rewind": 1}
    target.rewind(0)()
    assert target.rows() == [(1, "a"), (2, "b")]


@pytest.mark.parametrize("statement", ["VACUUM (FREEZE) {t}", "VACUUM FULL {t}", "CLUSTER {t} USING {t}_pkey"])
@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
def test_maintenance_of_the_table_does_not_hinder_a_rewind(target: Target, options: Any, statement: str) -> None:
    target.create(**options)
    writer = target.writer()
    target.commit(writer, 1, (1, "a"))
    target.commit(writer, 2, (2, "b"))
    target.run(statement)
    target.rewind(1)()
    assert target.rows() == [(1, "a")]


def test_former_rows_come_back_whole_over_several_commits(target: Target) -> None:
    """S9.3: with columns that the sink does not write, computed columns, and rows of others."""
    extra = "note text DEFAULT 'mine', double text GENERATED ALWAYS AS (v || v) STORED"
    target.create(f"id bigint PRIMARY KEY, v text, n bigint GENERATED ALWAYS AS IDENTITY, {extra}", **UPSERT)
    target.run("INSERT INTO {t} (id, v, note) VALUES (1, 'x', 'theirs'), (9, 'y', 'theirs')")
    writer = target.writer()
    target.commit(writer, 1, (1, "a"), (2, "a"))
    before = target.rows()
    target.commit(writer, 2, (1, "b"), (2, "b"), (3, "b"))
    target.commit(writer, 3, (1, "c"), (3, "c"), (4, "c"), (4, "d"))
    # Each former row once for each commit that replaced it.
    assert target.kept() == {"rewind": 3, "former": 5}
    rewind = target.rewind(1)
    assert target.rows("id, v")[-1] == (9, "y") and len(target.rows()) == 5, "the check must change nothing"
    rewind()
    assert target.rows() == before
    rewind()
    target.rewind(1)()
    assert target.rows() == before
    again = target.writer()
    target.commit(again, 4, (1, "e"), (3, "e"))
    target.rewind(1)()
    assert target.rows() == before
    target.rewind(0)()
    assert target.rows("id, v, note") == [(1, "x", "theirs"), (9, "y", "theirs")]


def test_deleted_rows_come_back_and_references_to_restored_rows_stay(target: Target) -> None:
    """S9.3, change rows: also the value of an identity column, and a unique value that another row has taken."""
    target.create("id bigint PRIMARY KEY, v text UNIQUE, n bigint GENERATED ALWAYS AS IDENTITY", **UPSERT)
    target.run("CREATE TABLE {t}_ref (id bigint REFERENCES {t} ON DELETE CASCADE)")
    target.identity.schema = CHANGES
    writer = target.writer()
    target.commit(writer, 1, ("insert", 1, "a"), ("insert", 2, "b"), ("insert", 3, "c"))
    before = target.rows()
    target.run("INSERT INTO {t}_ref VALUES (3)")
    target.commit(writer, 2, ("delete", 1, None), ("insert", 4, "a"), ("update_after", 3, "d"), ("delete", 7, None))
    target.commit(writer, 3, ("delete", 2, None), ("insert", 1, "b"), ("delete", 4, None), ("insert", 5, "e"))
    target.rewind(1)()
    assert target.rows() == before
    assert target.sql.execute(f"SELECT id FROM {target.table}_ref").fetchall() == [(3,)]


@pytest.mark.parametrize("seed", range(6))
def test_any_history_of_changes_is_rewound_to_any_checkpoint(target: Target, seed: int) -> None:
    """S9.3: two subtasks with keys of their own, on a partitioned table, against a model."""
    draw = random.Random(seed)
    parts = "PARTITION BY HASH (id)" if seed % 2 else ""
    target.sql.execute(f"CREATE TABLE {target.table} (id bigint PRIMARY KEY, v text, w text DEFAULT 'w') {parts}")
    for part in range(3 if seed % 2 else 0):
        values = f"WITH (MODULUS 3, REMAINDER {part})"
        target.sql.execute(f"CREATE TABLE {target.table}_{part} PARTITION OF {target.table} FOR VALUES {values}")
    target.options, target.identity.schema = UPSERT, CHANGES
    target.run("INSERT INTO {t} VALUES (0, 'old'), (1, 'old')")
    states, checkpoint = {0: target.rows()}, 0
    for _ in range(4):
        writers = [target.writer(subtask) for subtask in (0, 1)]
        for _ in range(draw.randint(1, 4)):
            checkpoint += 1
            for subtask, writer in enumerate(writers):
                kinds = draw.choices(("insert", "update_after", "delete"), (2, 2, 1), k=draw.randint(1, 5))
                rows = [(kind, 2 * draw.randint(0, 3) + subtask, str(draw.random())) for kind in kinds]
                target.commit(writer, checkpoint, *rows)
            states[checkpoint] = target.rows()
        back = draw.choice([n for n in states if n <= checkpoint])
        target.rewind(back)()
        assert target.rows() == states[back], f"rewind from {checkpoint} to {back}"
        states = {n: state for n, state in states.items() if n <= back}
    target.rewind(0)()
    assert target.rows() == [(0, "old", "w"), (1, "old", "w")]
    assert set(target.kept().values()) == {0}


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE {t} SET v = 'theirs' WHERE id = 2", "changed or deleted 1 of the rows"),
        ("UPDATE {t} SET v = v WHERE id = 1", "changed or deleted 1 of the rows"),
        ("DELETE FROM {t} WHERE id >= 2", "changed or deleted 2 of the rows"),
        ("INSERT INTO {t} VALUES (4, 'theirs')", "changed 1 of the rows, or has inserted rows"),
        ("ALTER TABLE {t} ALTER v TYPE varchar(9) USING v::varchar(9)", "columns of the table were changed"),
        ("ALTER TABLE {t} DROP v", "columns of the table were changed"),
        ("DROP TABLE {t}", "the table does not exist any more"),
    ],
)
def test_a_rewind_that_would_take_back_changes_of_others_is_refused_by_name(
    target: Target, statement: str, said: str
) -> None:
    """S9.3: before anything changes."""
    target.create(**UPSERT)
    target.identity.schema = CHANGES
    writer = target.writer()
    target.commit(writer, 1, ("insert", 1, "a"), ("insert", 4, "a"))
    target.commit(writer, 2, ("update_after", 1, "b"), ("insert", 2, "b"), ("insert", 3, "b"), ("delete", 4, None))
    kept = target.kept()
    target.run(statement)
    with pytest.raises(SinkConflictError, match=rf"cannot rewind to checkpoint 1.*{target.table}.*{said}"):
        target.rewind(1)
    assert target.kept() == kept


def test_a_change_of_others_between_two_commits_is_seen_and_later_ones_of_other_rows_stay(target: Target) -> None:
    """S9.3: the second commit has replaced the change, which its former row shows."""
    target.create(**UPSERT)
    writer = target.writer()
    target.commit(writer, 1, (1, "a"), (2, "a"))
    target.commit(writer, 2, (1, "b"))
    target.run("UPDATE {t} SET v = 'theirs'")
    target.commit(writer, 3, (1, "c"))
    with pytest.raises(SinkConflictError, match="changed or deleted 1 of the rows"):
        target.rewind(1)
    target.rewind(2)()
    assert target.rows() == [(1, "theirs"), (2, "theirs")]


def test_a_change_of_others_between_check_and_rewind_is_seen(target: Target) -> None:
    """S9.3: the rewind compares again, while other writers wait."""
    target.create()
    writer = target.writer()
    target.commit(writer, 1, (1, "a"))
    rewind = target.rewind(0)
    target.run("UPDATE {t} SET v = 'theirs'")
    with pytest.raises(SinkConflictError, match="changed or deleted 1"):
        rewind()
    assert target.rows() == [(1, "theirs")]


def test_commits_without_rewind_records_are_never_passed(target: Target) -> None:
    """S9.3: by a sink with rewind=False, or with upsert by default; also if later commits have rewind records."""
    target.create()
    for n, options in enumerate(({"rewind": False}, {"mode": "upsert", "key": "id"}), 1):
        target.commit(target.writer(**options), 2 * n - 1, (n, "a"))
        target.commit(target.writer(**{**options, "rewind": True}), 2 * n, (10 * n, "b"))
        for back in range(2 * n - 1):
            with pytest.raises(
                SinkConflictError, match=rf"no rewind records: the sink had rewind=False.*checkpoint {2 * n - 1}"
            ):
                target.rewind(back)
        target.rewind(2 * n - 1, **options)()
        assert target.rows() == [(m, "a") for m in range(1, n + 1)]


def test_a_row_that_another_program_inserts_during_the_commit_is_saved_too(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.3: after the existing rows were saved, and before the upsert. The transaction is repeated."""
    target.create(**UPSERT)
    writer = target.writer()
    handles = target.prepared(writer, 1, (1, "ours"), (2, "ours"))
    publish, calls = Staging.publish, count()

    def late(*args: Any) -> int:
        if next(calls) == 0:
            target.run("INSERT INTO {t} VALUES (2, 'theirs')")
        return publish(*args)

    monkeypatch.setattr(Staging, "publish", late)
    writer.commit(handles)
    assert next(calls) == 2
    assert target.rows() == [(1, "ours"), (2, "ours")]
    target.rewind(0)()
    assert target.rows() == [(2, "theirs")]


def test_a_row_that_another_program_is_changing_is_saved_as_it_becomes(target: Target) -> None:
    """S9.3: the commit waits for the other transaction, and saves its version."""
    target.create(**UPSERT)
    target.run("INSERT INTO {t} VALUES (1, 'old')")
    writer = target.writer()
    handles = target.prepared(writer, 1, (1, "ours"))
    with target.server.connect() as other:
        with other.transaction():
            other.execute(f"UPDATE {target.table} SET v = 'theirs'")
            committing = threading.Thread(target=writer.commit, args=[handles])
            committing.start()
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'former_'"
            while target.sql.execute(waiting).fetchone() == (0,):
                assert committing.is_alive()
        committing.join(30)
    assert target.rows() == [(1, "ours")]
    target.rewind(0)()
    assert target.rows() == [(1, "theirs")]


class Crash(Exception):
    """The process dies here."""


def test_a_rewind_that_crashes_at_any_statement_is_completed_by_the_next(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S9.3: rows, markers and rewind records change together, and not in part."""
    target.create(**UPSERT)
    writer = target.writer()
    target.commit(writer, 1, (1, "a"))
    crashes = 0
    import psycopg

    execute = psycopg.Connection.execute
    for at in range(60):
        writer = target.writer()
        target.commit(writer, 10 + at, (1, str(at)), (2, "b"))
        before = target.rows(), target.kept()
        rewind = target.rewind(1)
        calls = count()

        def crashing(self: Any, *args: Any, calls: Iterator[int] = calls, at: int = at) -> Any:
            if next(calls) == at:
                raise Crash
            return execute(self, *args)

        try:
            with monkeypatch.context() as patched:
                patched.setattr(psycopg.Connection, "execute", crashing)
                rewind()
        except Crash:
            crashes += 1
            assert (target.rows(), target.kept()) == before
            target.rewind(1)()
        else:
            break
        # Each rewind has restored one row of the first commit, and has recorded it.
        assert (target.rows(), target.kept()) == ([(1, "a")], {"rewind": 2 + at, "former": 1 + at})
    assert 20 <= crashes < 60, "the statements must cover the whole rewind"


def test_rewind_records_go_when_no_snapshot_needs_them_and_older_snapshots_are_then_refused(target: Target) -> None:
    """S2.3, S9.3: young ones stay; a dry run changes nothing."""
    target.create(**UPSERT)
    writer = target.writer()
    for n in range(1, 5):
        target.commit(writer, n, (1, str(n)), (n, "x"))
    sink, everybody = target.sink(), target.identity.context(0, parallelism=1)
    before = target.kept()
    now = datetime.max.replace(tzinfo=UTC)
    young = sink.collect(everybody, NeededTransactions(None, 3, datetime(2020, 1, 1, tzinfo=UTC)))
    assert (young.found, young.too_young, target.kept()) == ((), 2, before)
    would = sink.collect(everybody, NeededTransactions(None, 3, now), dry_run=True)
    assert target.kept() == before
    found = sink.collect(everybody, NeededTransactions(None, 3, now))
    assert found == would
    assert [(one.path.rpartition(".")[2][:6], one.why, one.files) for one in found.found] == [
        ("former", "rewind", 2),
        ("rewind", "rewind", 2),
    ]
    assert all(one.size_bytes > 0 for one in found.found)
    with pytest.raises(SinkConflictError, match=r"`tidegate gc` has deleted them. The newest is of checkpoint 2"):
        target.rewind(1)
    target.rewind(2)()
    assert target.rows() == [(1, "2"), (2, "x")]


def test_tables_of_an_earlier_version_are_extended_and_their_commits_are_not_passed(target: Target) -> None:
    target.create()
    first = target.writer()
    target.commit(first, 1, (1, "a"))
    target.sql.execute(
        f"ALTER TABLE {target.staging}.writers DROP kept_until;"
        f" ALTER TABLE {target.staging}.transactions DROP staged_at; DROP TABLE {target.staging}.rewind_records"
    )
    target.identity.run = 2
    target.commit(target.writer(), 2, (2, "b"))
    with pytest.raises(SinkConflictError, match="no rewind records"):
        target.rewind(1)
    assert target.rows() == [(1, "a"), (2, "b")]


def test_rights_for_a_rewind_are_checked_when_it_is_requested(target: Target) -> None:
    """With rewind=None the right to insert is still enough; the rewind is then refused by the server."""
    target.create()
    role, sql, secret = f"role_{target.table}", target.sql, "visible-nowhere"
    sql.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{secret}'; CREATE SCHEMA {target.staging} AUTHORIZATION {role}")
    sql.execute(f"GRANT INSERT ON {target.table} TO {role}")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TIDEGATE_TEST_REWIND_ROLE", secret)
        dsn = f"host={target.server.folder} dbname=postgres user={role}"
        options = {"password": "secret:env/TIDEGATE_TEST_REWIND_ROLE", "staging_schema": target.staging}
        sink = Postgres(dsn, target.table, **options)
        sink.check(ROWS)
        with pytest.raises(PipelineError, match=r"2 reasons.*right SELECT, which a rewind needs.*right DELETE"):
            Postgres(dsn, target.table, rewind=True, **options).check(ROWS)
        writer = sink.create_writer(target.identity.context())
        target.commit(writer, 1, (1, "a"))
        writer.close()
        target.identity.generation = 2
        with pytest.raises(TidegateError, match="could not be compared with rewind records.*permission denied"):
            sink.rewind_to(target.identity.context(0, parallelism=1), 0)


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_job_goes_back_and_its_rows_come_once(target: Target, mode: str) -> None:
    """S9.3: a whole job of two subtasks."""
    total, keys = 4_000, 7
    schema = pa.schema([("id", pa.int64())])
    columns = "id bigint" if mode == "append" else "id bigint PRIMARY KEY, n bigint"
    target.create(columns, **({"mode": mode, "rewind": True} | ({"key": "id"} if mode == "upsert" else {})))

    def build() -> Pipeline:
        p = Pipeline()
        divisor = keys if mode == "upsert" else total
        rows = p.read(DataGen(lambda n: {"id": n % divisor}, schema, rows=total, splits=2, batch_rows=8), uid="numbers")
        if mode == "upsert":
            rows = rows.group_by("id").agg(n=count_rows(), uid="counts")
        rows.write(target.sink(), uid="out")
        return p

    job = InProcessJob(build, {"parallelism": 2, "retained_checkpoints": 9})
    run = job.submit()
    states: dict[int, Sequence[Any]] = {}
    for n in range(4):
        run.pump(4)
        answer = run.ask(ev.SnapshotRequest("checkpoint", request_id=f"q{n}"))
        assert answer is not None and answer.ok, answer
        run.pump(10)
        states[int(answer.data["checkpoint_id"])] = target.rows()
    first, *later = states
    assert len({repr(state) for state in states.values()}) == 4
    run.crash()
    path = next(d.data["path"] for d in job.log.read() if d.kind == "complete" and d.data["checkpoint_id"] == first)
    run = job.submit(RestoreFrom("checkpoint", path, first, on_committed_after="rewind"))
    assert target.rows() == states[first]
    assert [d.data["checkpoint_id"] for d in job.log.read() if d.kind == "rewind"] == [first]
    run.to_end()
    numbers = [(n,) for n in range(total)]
    counts = [(k, len(range(k, total, keys))) for k in range(keys)]
    assert target.rows() == sorted(numbers if mode == "append" else counts, key=repr)


def test_values_that_have_changed_places_are_taken_back_if_the_constraint_is_deferrable(target: Target) -> None:
    """S9.3: no order of single updates keeps the values unique."""
    target.create("id bigint PRIMARY KEY, v text, CONSTRAINT {t}_v UNIQUE (v)".replace("{t}", target.table), **UPSERT)
    writer = target.writer()
    target.commit(writer, 1, (1, "a"), (2, "b"))
    for checkpoint, row in ((2, (1, "c")), (3, (2, "a")), (4, (1, "b"))):
        target.commit(writer, checkpoint, row)
    with pytest.raises(TidegateError, match="UNIQUE .* DEFERRABLE"):
        target.rewind(1)()
    assert target.rows() == [(1, "b"), (2, "a")]
    target.run("ALTER TABLE {t} DROP CONSTRAINT {t}_v, ADD CONSTRAINT {t}_v UNIQUE (v) DEFERRABLE")
    target.rewind(1)()
    assert target.rows() == [(1, "a"), (2, "b")]
