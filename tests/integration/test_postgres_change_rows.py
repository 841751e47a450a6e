"""Change rows in the Postgres sink, on a real server (S7.4)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from postgres_server import PostgresServer

from tidegate import Postgres
from tidegate.change_rows import change_kind_field
from tidegate.connectors.interface import SinkWriter
from tidegate.connectors.postgres import postgres_writer
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.errors import DataError, OptionError, OutageError, PipelineError, TidegateError

_numbers = count()
SCHEMA = pa.schema([change_kind_field("op"), ("id", pa.int32()), ("v", pa.string())])
KINDS = {"+": "insert", "<": "update_before", ">": "update_after", "-": "delete"}


class Target:
    """A table with a unique second column, and a writer of change rows."""

    def __init__(self, postgres: PostgresServer) -> None:
        self.postgres, self.table = postgres, f"changed_{next(_numbers)}"
        self.sql = postgres.connect()
        self.sql.execute(f"CREATE TABLE {self.table} (id int PRIMARY KEY, v text NOT NULL UNIQUE)")

    def sink(self, **options: Any) -> Postgres:
        given = {"mode": "upsert", "key": "id", "password": self.postgres.password, **options}
        return Postgres(self.postgres.dsn, self.table, **given)

    def writer(self, generation: int = 1, subtask: int = 0, parallelism: int = 1) -> SinkWriter:
        ctx = SinkContext(self.table, "l", "out", subtask, parallelism, generation, "r1", SCHEMA)
        return self.sink().create_writer(ctx)

    def rows(self) -> dict[int, str]:
        return dict(self.sql.execute(f"SELECT id, v FROM {self.table}").fetchall())


def batch(*rows: tuple[str, int, str | None]) -> pa.RecordBatch:
    kinds, ids, values = zip(*rows, strict=True)
    arrays = [pa.array([KINDS.get(kind, kind) for kind in kinds]), pa.array(ids, pa.int32()), pa.array(values)]
    return pa.RecordBatch.from_arrays([arrays[0], arrays[1], arrays[2].cast(pa.string())], schema=SCHEMA)


@pytest.fixture
def target(postgres: PostgresServer) -> Iterator[Target]:
    made = Target(postgres)
    yield made
    made.sql.close()


def test_the_last_change_of_a_key_decides_in_a_transaction_and_over_checkpoints(target: Target) -> None:
    target.sink().check(SCHEMA)
    writer = target.writer()
    writer.write(batch(("+", 1, "a"), ("+", 2, "b"), ("<", 1, "a"), (">", 1, "c"), ("-", 2, None), ("+", 3, "d")))
    handles = list(writer.prepare_commit(1)())
    assert target.rows() == {}
    writer.commit(handles)
    assert target.rows() == {1: "c", 3: "d"}
    # The key changes, by both spellings; a value moves to another key; a deleted key comes again.
    writer.write(batch(("<", 1, "c"), (">", 10, "c"), ("-", 3, None), ("+", 30, "d"), ("-", 10, None), ("+", 10, "e")))
    later = list(writer.prepare_commit(2)())
    writer.commit(later)
    writer.commit([*handles, *later])  # again, as after a restore
    assert target.rows() == {10: "e", 30: "d"}
    writer.write(batch(("-", 77, None), ("-", 10, None)))
    writer.commit(list(writer.prepare_commit(3)()))
    assert target.rows() == {30: "d"}
    writer.close()


def test_a_missing_value_is_refused_before_the_commit_unless_the_row_is_deleted(target: Target) -> None:
    writer = target.writer()
    writer.write(batch(("-", 1, None), ("+", 2, None)))
    with pytest.raises(TidegateError, match="rows could not be staged"):
        writer.prepare_commit(1)()
    writer.close()


def test_an_unknown_kind_is_refused(target: Target) -> None:
    writer = target.writer()
    writer.write(batch(("+", 1, "a"), ("upsert", 2, "b")))
    with pytest.raises(DataError, match="'upsert' is unknown"):
        writer.prepare_commit(1)()
    writer.close()


def test_a_newer_run_removes_what_an_older_one_staged(target: Target) -> None:
    """S9.2."""
    older = target.writer()
    older.write(batch(("+", 1, "a")))
    handles = list(older.prepare_commit(1)())
    newer = target.writer(generation=2)
    newer.recover(0)
    with pytest.raises(TidegateError):
        older.commit(handles)
    assert target.rows() == {}
    older.close()
    newer.close()


def test_change_rows_need_a_key_and_the_right_to_delete(target: Target) -> None:
    with pytest.raises(PipelineError, match="change rows, by column 'op', but the sink appends"):
        target.sink(mode="append", key=()).check(SCHEMA)
    target.sql.execute(
        f"CREATE ROLE inserts_only LOGIN PASSWORD 'x'; GRANT SELECT, INSERT, UPDATE ON {target.table} TO inserts_only;"
        " GRANT CREATE ON DATABASE postgres TO inserts_only"
    )
    os.environ["INSERTS_ONLY"] = "x"
    dsn = target.postgres.dsn.replace("user=owner", "user=inserts_only")
    sink = Postgres(dsn, target.table, mode="upsert", key="id", password="secret:env/INSERTS_ONLY")
    try:
        with pytest.raises(PipelineError, match="lacks the right DELETE, which change rows need"):
            sink.check(SCHEMA)
        rows = pa.schema([field for field in SCHEMA if field.name != "op"])
        with pytest.raises(PipelineError) as caught:
            sink.check(pa.schema([*rows, ("w", pa.int32())]))
        assert "DELETE" not in str(caught.value)
    finally:
        del os.environ["INSERTS_ONLY"]
        target.sql.execute("DROP OWNED BY inserts_only; DROP ROLE inserts_only")


def make_deferrable(target: Target) -> None:
    table, name = target.table, f"{target.table}_v_key"
    target.sql.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}, ADD CONSTRAINT {name} UNIQUE (v) DEFERRABLE")


@pytest.mark.parametrize(
    "changes",
    [
        [(">", 2, "y"), (">", 1, "b")],
        [(">", 1, "tmp"), (">", 2, "a"), (">", 1, "b")],
        [("-", 2, None), (">", 1, "b"), ("+", 2, "a")],
    ],
)
def test_a_unique_value_that_moves_to_another_row_is_committed_once_the_constraint_is_deferrable(
    target: Target, changes: list[tuple[str, int, str | None]]
) -> None:
    writer = target.writer()
    writer.write(batch(("+", 1, "a"), ("+", 2, "b")))
    writer.commit(list(writer.prepare_commit(1)()))
    writer.write(batch(*changes))
    handles = list(writer.prepare_commit(2)())
    with pytest.raises(TidegateError, match="UNIQUE .* DEFERRABLE") as caught:
        writer.commit(handles)
    assert "(v)=" not in str(caught.value), "the error quotes a row"
    assert target.rows() == {1: "a", 2: "b"}
    make_deferrable(target)
    writer.commit(handles)
    assert target.rows() == {1: "b", 2: "y" if changes[0] == (">", 2, "y") else "a"}
    writer.close()


def test_a_unique_value_moves_between_rows_of_different_subtasks(target: Target) -> None:
    """S7.4: whichever subtask commits first publishes what both have staged for the checkpoint."""
    make_deferrable(target)
    writers = [target.writer(subtask=subtask, parallelism=2) for subtask in (0, 1)]
    staged: list[list[Committable]] = []
    for checkpoint, rows in enumerate([("a", "b"), ("tmp", "c"), ("b", "a")], start=1):
        handles = []
        for number, (writer, value) in enumerate(zip(writers, rows, strict=True)):
            writer.write(batch((">", number + 1, value)))
            handles.append(list(writer.prepare_commit(checkpoint)())[0])
        staged.append(handles)
    for writer, handle in zip(writers, staged[0], strict=True):
        writer.commit([handle])
    # The first subtask's part of checkpoint 2 is not committed when the second one wants to commit checkpoint 3.
    second = threading.Thread(target=writers[1].commit, args=([staged[1][1], staged[2][1]],))
    second.start()
    second.join(1.0)
    assert second.is_alive() and target.rows() == {1: "a", 2: "c"}
    writers[0].commit([staged[1][0]])
    second.join()
    assert target.rows() == {1: "b", 2: "a"}
    writers[0].commit([staged[1][0], staged[2][0]])
    assert target.rows() == {1: "b", 2: "a"}
    left = target.sql.execute("SELECT count(*) FROM tidegate.transactions WHERE target LIKE %s", [f"%{target.table}"])
    assert left.fetchone() == (0,)
    for writer in writers:
        writer.close()


def test_rows_of_an_older_checkpoint_of_another_subtask_are_not_published(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.8: that checkpoint may be rejected, and its rows wait for their quarantine."""
    make_deferrable(target)
    writers = [target.writer(subtask=subtask, parallelism=2) for subtask in (0, 1)]
    writers[0].write(batch(("+", 1, "a")))
    writers[0].commit(list(writers[0].prepare_commit(1)()))
    writers[0].write(batch((">", 1, "rejected")))
    rejected = list(writers[0].prepare_commit(2)())
    writers[1].write(batch(("+", 2, "a")))
    handles = list(writers[1].prepare_commit(3)())
    monkeypatch.setattr(postgres_writer, "COMMIT_ORDER_TIMEOUT_S", 0.3)
    with pytest.raises(OutageError, match="rows of an older checkpoint are not committed"):
        writers[1].commit(handles)
    assert target.rows() == {1: "a"}
    writers[0].abort(rejected)
    with pytest.raises(TidegateError, match="duplicate key"):
        writers[1].commit(handles)
    for writer in writers:
        writer.close()


def test_a_unique_value_that_two_rows_have_at_the_end_is_refused(target: Target) -> None:
    make_deferrable(target)
    writer = target.writer()
    writer.write(batch(("+", 1, "a"), ("+", 2, "a")))
    handles = list(writer.prepare_commit(1)())
    for _ in range(2):
        with pytest.raises(TidegateError, match="rows could not be committed.*duplicate key"):
            writer.commit(handles)
    assert target.rows() == {}
    writer.close()


def test_a_zombie_publishes_nothing_for_a_subtask_that_a_newer_generation_has_taken(target: Target) -> None:
    """S9.2: its own subtask is not fenced yet."""
    make_deferrable(target)
    older = [target.writer(subtask=subtask, parallelism=2) for subtask in (0, 1)]
    handles = []
    for number, writer in enumerate(older):
        writer.write(batch(("+", number + 1, "ab"[number])))
        writer.commit(list(writer.prepare_commit(1)()))
        writer.write(batch((">", number + 1, "ba"[number])))
        handles.append(list(writer.prepare_commit(2)()))
    newer = target.writer(generation=2, subtask=1, parallelism=2)
    newer.recover(1, handles[1])
    with pytest.raises(TidegateError, match="duplicate key"):
        older[0].commit(handles[0])
    assert target.rows() == {1: "a", 2: "b"}
    newer.commit(handles[1])
    assert target.rows() == {1: "b", 2: "a"}
    for writer in (*older, newer):
        writer.close()


def test_a_fresh_start_of_a_mirror_needs_an_empty_table_unless_rows_are_to_stay(target: Target) -> None:
    ctx, plain = (SinkContext("j", "", "out", 0, 1, 0, "", schema) for schema in (SCHEMA, SCHEMA.remove(0)))
    target.sink().check_fresh_start(ctx)
    target.sql.execute(f"INSERT INTO {target.table} VALUES (1, 'a')")
    with pytest.raises(
        PipelineError, match=f"already holds rows .*{target.table}.* Empty the target; or set if_exists="
    ):
        target.sink().check_fresh_start(ctx)
    target.sink(if_exists="append").check_fresh_start(ctx)
    target.sink().check_fresh_start(plain)
    with pytest.raises(PipelineError, match="already holds rows"):
        target.sink(if_exists="error").check_fresh_start(plain)
    with pytest.raises(OptionError, match="if_exists='replace' is unknown"):
        target.sink(if_exists="replace")


def test_a_missing_table_has_one_remedy(target: Target) -> None:
    target.sql.execute(f"DROP TABLE {target.table}")
    with pytest.raises(PipelineError, match=r"the table does not exist .* Create the table, or correct table=$"):
        target.sink().check(SCHEMA)
