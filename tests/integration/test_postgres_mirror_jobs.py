"""Whole jobs in this process: a table is mirrored into another one, while it changes and the job crashes (S4, S9.1)."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from builders.sinks import forget_sinks, new_sink_name
from deltalake import DeltaTable
from postgres_server import PostgresServer, drop_slot

from tidegate import Postgres, PostgresTable
from tidegate.api.pipeline import Pipeline
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.batch import run_batch
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

_numbers = count()
ROOT = Path(__file__).parents[2]
ROWS = 40_000
ROUNDS = 200_000


class Mirror:
    """A job that mirrors a table, and a writer that changes it."""

    def __init__(self, postgres: PostgresServer, seed: int) -> None:
        self.postgres, self.number = postgres, next(_numbers)
        self.source, self.target = f"mirrored_{self.number}", f"mirror_{self.number}"
        self.sql = postgres.connect()
        for table in (self.source, self.target):
            self.sql.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int NOT NULL, note text)")
        self.sql.execute(f"INSERT INTO {self.source} SELECT g, 0, 'row ' || g FROM generate_series(1, {ROWS}) g")
        self.random = random.Random(seed)
        self.job = InProcessJob(self._build, {"parallelism": 1}, job_id=f"mirror-{self.number}")

    def _build(self) -> Pipeline:
        p = Pipeline()
        source = PostgresTable(self.postgres.dsn, self.source, password=self.postgres.password, changes=True)
        sink = Postgres(self.postgres.dsn, self.target, mode="upsert", key="id", password=self.postgres.password)
        p.read(source, uid="table").write(sink, uid="mirror")
        return p

    def write(self) -> None:
        """One transaction: some rows, or sometimes all."""
        low = self.random.randrange(ROWS)
        high = low + self.random.choice([10, 100, 2_000])
        statements = [
            f"UPDATE {self.source} SET v = v + 1 WHERE id BETWEEN {low} AND {high}",
            f"DELETE FROM {self.source} WHERE id BETWEEN {low} AND {high} AND id % 3 = 0",
            f"INSERT INTO {self.source} SELECT g, -1, NULL FROM generate_series({low}, {high}) g"
            " ON CONFLICT DO NOTHING",
            f"UPDATE {self.source} SET id = -id WHERE id BETWEEN {low} AND {low + 10} AND NOT EXISTS"
            f" (SELECT FROM {self.source} o WHERE o.id = -{self.source}.id)",
            f"UPDATE {self.source} SET note = 'all ' || v",
        ]
        chosen = self.random.choices(statements, weights=[4, 3, 3, 3, 1], k=self.random.choice([1, 1, 3]))
        self.sql.execute("; ".join(["BEGIN", *chosen, "COMMIT"]))

    def position(self, run: InProcessRun) -> Any:
        (subtask,) = [subtask for subtask in run._subtasks if subtask.source_input is not None]
        assert subtask.source_input is not None
        return subtask.source_input._reader.snapshot()[0].position

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = self.sql.execute(f"SELECT id, v, note FROM {table} ORDER BY 1").fetchall()
        return found

    def until(self, run: InProcessRun, condition: Callable[[], bool]) -> None:
        """Let the job work until `condition`, which is checked after every round."""
        for _ in range(ROUNDS):
            if condition():
                return
            if not run.pump():
                run.tick(1)
            assert run.outcome is None, run.outcome
        raise AssertionError(f"the job does not get there: {self.position(run)}")

    def checkpoint(self, run: InProcessRun) -> None:
        answer = run.ask(ev.SnapshotRequest("checkpoint", request_id=f"c{next(_numbers)}"))
        assert answer is not None and answer.ok, answer

    def catches_up(self, run: InProcessRun) -> None:
        """Until the stream has passed the present end of the WAL; then the mirror equals the table."""
        end = self.sql.execute("SELECT pg_current_wal_insert_lsn()").fetchone()[0]
        passed = "SELECT %s::pg_lsn >= %s::pg_lsn"
        tries = count()

        def is_past() -> bool:
            position = self.position(run)
            if next(tries) % 100 or position is None or position["copying"]:
                return False
            return bool(self.sql.execute(passed, [position["lsn"], end]).fetchone()[0])

        self.until(run, is_past)
        self.checkpoint(run)
        run.pump(100)  # the sink commits when it hears of the completion
        assert self.rows(self.target) == self.rows(self.source)

    def end(self) -> None:
        query = "SELECT slot_name FROM pg_replication_slots WHERE slot_name LIKE %s"
        prefix = f"tidegate_mirror_{self.number}_%"
        for (slot,) in self.sql.execute(query, [prefix]).fetchall():
            drop_slot(self.sql, slot)
        self.sql.close()


@pytest.fixture
def mirrors(postgres: PostgresServer) -> Iterator[Callable[[int], Mirror]]:
    made: list[Mirror] = []

    def make(seed: int) -> Mirror:
        made.append(Mirror(postgres, seed))
        return made[-1]

    yield make
    for mirror in made:
        mirror.end()
    forget_sinks("sink")


PHASES: dict[str, Callable[[Any], bool]] = {
    "begin": lambda position: True,
    "slot": lambda position: position is not None,
    "copy": lambda position: position is not None and position["copying"] and bool(position["copied"]),
    "copied": lambda position: position is not None and not position["copying"] and bool(position["copied"]),
    "stream": lambda position: position is not None and not position["copying"] and not position["copied"],
    "transaction": lambda position: position is not None and position["commit_lsn"] != "0/0",
}


@pytest.mark.parametrize("snapshot", [False, True], ids=["before-a-checkpoint", "after-a-checkpoint"])
@pytest.mark.parametrize("phase", PHASES)
def test_the_mirror_equals_the_table_after_a_crash_in_each_phase_of_the_hand_over(
    mirrors: Callable[[int], Mirror], phase: str, snapshot: bool
) -> None:
    """S4.2, S7.4, S9.1."""
    mirror = mirrors(list(PHASES).index(phase) * 2 + snapshot)
    run = mirror.job.submit()
    mirror.write()
    if phase in ("stream", "transaction"):
        mirror.catches_up(run)
        mirror.sql.execute(f"UPDATE {mirror.source} SET v = v + 1")
    mirror.until(run, lambda: PHASES[phase](mirror.position(run)))
    if snapshot:
        mirror.checkpoint(run)
    for _ in range(3):
        mirror.write()
    run.crash()
    mirror.write()
    run = mirror.job.rerun()
    for _ in range(3):
        run.pump(20)
        mirror.write()
    mirror.catches_up(run)
    run.crash()


@pytest.mark.parametrize("seed", [1, 2])
def test_the_mirror_equals_the_table_after_crashes_at_any_time(mirrors: Callable[[int], Mirror], seed: int) -> None:
    """S4.2, S7.4, S9.1, S9.2: also with new drivers, and a stop and a restore."""
    mirror = mirrors(seed)
    run = mirror.job.submit()
    for _ in range(12):
        mirror.write()
        for _ in range(mirror.random.randrange(300)):
            if not run.pump():
                run.tick(1)
        action = mirror.random.choice(["checkpoint", "checkpoint", "crash", "driver", "stop"])
        if action == "checkpoint":
            mirror.checkpoint(run)
        elif action == "stop":
            run.ask(ev.SnapshotRequest("stop-savepoint", request_id=f"s{next(_numbers)}", stop="suspend"))
            assert isinstance(run.outcome, RunEnded)
            run = mirror.job.submit(RestoreFrom(kind="latest"))
        else:
            run.crash()
            run = mirror.job.rerun() if action == "crash" else mirror.job.relaunch()
    mirror.catches_up(run)
    run.crash()


def test_all_ranges_see_one_state_and_a_scan_gives_the_same_rows_in_both_modes(postgres: PostgresServer) -> None:
    """S8.2; rows that arrive when the ranges are known are in none of them."""
    table = f"scanned_{next(_numbers)}"
    sinks = new_sink_name(), new_sink_name()
    with postgres.connect() as sql:
        sql.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v text)")
        sql.execute(f"INSERT INTO {table} SELECT g, 'v' || g FROM generate_series(1, 5000) g")

        def build(sink: str) -> Pipeline:
            p = Pipeline()
            source = PostgresTable(postgres.dsn, table, password=postgres.password, splits=6)
            p.read(source, uid="table").select("id").write(CollectSink(sink), uid="out")
            return p

        run = InProcessJob(lambda: build(sinks[0]), {"parallelism": 2}).submit()
        started = [subtask for subtask in run._subtasks if subtask.source_input is not None]
        run.until(lambda: any(subtask.source_input.turn.active for subtask in started if subtask.source_input))
        sql.execute(f"UPDATE {table} SET id = id + 100000; INSERT INTO {table} VALUES (0, 'later')")
        while run.outcome is None:
            if not run.pump():
                run.tick(1)
        assert isinstance(run.outcome, RunEnded)
        sql.execute(f"DELETE FROM {table} WHERE id = 0; UPDATE {table} SET id = id - 100000")
        run_batch(lambda: build(sinks[1]), {"parallelism": 2})
    for sink in sinks:
        assert sorted(collected(sink).table()["id"].to_pylist()) == list(range(1, 5001))
    forget_sinks("sink")


class RecipeMirror(Mirror):
    """The pipeline of the recipe, for a table whose columns Delta lacks."""

    def __init__(self, postgres: PostgresServer, folder: Path) -> None:
        super().__init__(postgres, 0)
        self.folder = folder
        self.source = f"awkward_{self.number}"
        columns = "opens time, lasts interval, tags text[], price numeric, big text"
        generated = "twice int GENERATED ALWAYS AS (1) STORED"
        self.sql.execute(f"CREATE TABLE {self.source} (id int PRIMARY KEY, v int, {columns}, {generated})")
        self.sql.execute(f"ALTER TABLE {self.source} ALTER big SET STORAGE EXTERNAL")

    def _build(self) -> Pipeline:
        name = "recipe_table_mirror"
        spec = importlib.util.spec_from_file_location(name, ROOT / "dags" / "pipelines" / "table_mirror.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        made: Pipeline = module.build(
            {
                "dsn": self.postgres.dsn,
                "password": self.postgres.password,
                "table": f"public.{self.source}",
                "key": ["id"],
                "out": str(self.folder),
                "columns": ["id", "v", "opens", "lasts", "tags", "price", "big"],
                "types": {"opens": "string", "lasts": "string", "tags": "string", "price": "decimal(20, 4)"},
                "missing_values": "fetch",
            }
        )
        return made

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        if table == self.target:
            return sorted(tuple(row.values()) for row in DeltaTable(str(self.folder)).to_pyarrow_table().to_pylist())
        columns = "id, v, opens::text, lasts::text, tags::text, price::numeric(20, 4), big"
        return list(self.sql.execute(f"SELECT {columns} FROM {table} ORDER BY 1").fetchall())


def test_the_recipe_mirrors_types_that_delta_lacks_and_large_values(postgres: PostgresServer, tmp_path: Path) -> None:
    mirror = RecipeMirror(postgres, tmp_path / "table")
    try:
        values = "time '08:30', interval '1 month', ARRAY['a', 'b c'], 1.25, repeat('x', 9000)"
        mirror.sql.execute(f"INSERT INTO {mirror.source} SELECT g, 0, {values} FROM generate_series(1, 20) g")
        run = mirror.job.submit()
        mirror.catches_up(run)
        mirror.sql.execute(f"UPDATE {mirror.source} SET v = 1 WHERE id > 10; DELETE FROM {mirror.source} WHERE id = 3")
        mirror.catches_up(run)
        assert len(mirror.rows(mirror.target)) == 19
        run.crash()
    finally:
        mirror.end()
