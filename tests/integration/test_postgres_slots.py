"""Replication slots of jobs on a real server: `tidegate gc --sources` drops those that no snapshot needs (S2.3), and
lost ones are reported."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from postgres_server import PostgresServer, drop_slot
from test_postgres_changes import Table, change

from tidegate import PostgresTable
from tidegate.api.loader.pipeline_loader import load_pipeline
from tidegate.cli.main import main
from tidegate.connectors.interface import ReleasesInput, SourceContext, Split
from tidegate.coordinator import events as ev
from tidegate.errors import SnapshotError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.records import DeletedSavepoint, encode
from tidegate.testing.in_process_job import InProcessJob

_numbers = count()
PATIENCE_S = 60.0
PIPELINE = """
from tidegate import JsonLines, Pipeline, PostgresTable

def build(args):
    p = Pipeline()
    source = PostgresTable(args["dsn"], args["table"], password=args["password"], changes=True)
    p.read(source, uid="table").write(JsonLines(args["out"], if_exists="append"), uid="out")
    return p
"""


class Job:
    """A job that reads the changes of a table, and `tidegate gc` for it."""

    def __init__(self, server: PostgresServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._folder, self._capsys = folder, capsys
        self.job_id, self.table = f"slots-{next(_numbers)}", f"slots_{next(_numbers)}"
        self.sql = server.connect()
        self.sql.execute(f"CREATE TABLE {self.table} (id int PRIMARY KEY)")
        (folder / "slots_job.py").write_text(PIPELINE)
        self._arguments = {"dsn": server.dsn, "table": self.table, "password": server.password}
        self._arguments["out"] = str(folder / "out")
        self.client = JobClient(str(folder / "root"), self.job_id)
        self._specs: list[Any] = []

    def start(self) -> None:
        """Start fresh, and wait until the table is copied."""
        pipeline = f"{self._folder / 'slots_job.py'}:build"
        fresh = bool(self._specs)
        if fresh:
            self.status("FAILED")
        spec = self.client.submit(pipeline=pipeline, arguments=self._arguments, options={"parallelism": 1}, fresh=fresh)
        self._specs.append(spec)
        folder, arguments = str(self._folder), self._arguments

        class Made:
            def build(self) -> object:
                return load_pipeline(folder, "slots_job:build", arguments)

        root = str(self._folder / "root")
        job = InProcessJob(Made, {"parallelism": 1}, self.job_id, spec.lineage, root)  # type: ignore[arg-type]
        job.specs, job._spec, job._spec_number = list(self._specs), spec, spec.number
        self.job, self.run = job, job.relaunch()
        self.status("RUNNING")
        (subtask,) = [subtask for subtask in self.run._subtasks if subtask.source_input is not None]
        assert subtask.source_input is not None
        reader = subtask.source_input._reader
        self._reader = reader
        deadline = time.monotonic() + PATIENCE_S
        while (position := reader.snapshot()[0].position) is None or position["copying"]:
            if not self.run.pump():
                self.run.tick(1)
            assert self.run.outcome is None and time.monotonic() < deadline, self.run.outcome

    def position(self) -> Any:
        return self._reader.snapshot()[0].position

    def source(self) -> PostgresTable:
        given = self._arguments
        return PostgresTable(given["dsn"], given["table"], password=given["password"], changes=True)

    def status(self, name: str) -> None:
        self.job.generation_log.append("status", {"status": name})

    def snapshot(self, kind: Any) -> Path:
        answer = self.run.ask(ev.SnapshotRequest(kind, request_id=f"s{next(_numbers)}"))
        assert answer is not None and answer.ok, answer
        complete = [d for d in self.job.log.read() if d.kind == "complete"]
        return self._folder / "root" / complete[-1].data["path"]

    def slots(self) -> list[str]:
        query = "SELECT slot_name::text FROM pg_replication_slots WHERE slot_name LIKE %s ORDER BY 1"
        return [name for (name,) in self.sql.execute(query, [f"tidegate_{self.job_id.replace('-', '_')}_table%"])]

    def publications(self) -> int:
        query = "SELECT count(*) FROM pg_publication WHERE pubname = %s"
        return int(self.sql.execute(query, [f"tidegate_public_{self.table}"]).fetchone()[0])

    def is_read(self) -> bool:
        query = "SELECT count(*) FROM pg_replication_slots WHERE active AND slot_name = ANY (%s)"
        return bool(self.sql.execute(query, [self.slots()]).fetchone()[0])

    def crash(self) -> None:
        self.run.crash()
        deadline = time.monotonic() + PATIENCE_S
        while self.is_read():
            assert time.monotonic() < deadline

    def gc(self, *flags: str) -> list[str]:
        """What `tidegate gc` names in the source."""
        self._capsys.readouterr()
        words = ["gc", self.job_id, "--root", str(self._folder / "root"), "--json", "--older-than", "0 s", *flags]
        assert main(words) == 0, self._capsys.readouterr().err
        self.report = json.loads(self._capsys.readouterr().out)
        found = self.report["in_sources"]
        assert all(one["why"] == "ended" and one["source"].startswith("PostgresTable(") for one in found)
        return [one["path"] for one in found]

    def end(self) -> None:
        self.run.crash()
        for name in self.slots():
            drop_slot(self.sql, name)
        self.sql.close()


@pytest.fixture
def started(postgres: PostgresServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Job]:
    job = Job(postgres, tmp_path, capsys)
    job.start()
    yield job
    job.end()


def test_a_slot_is_dropped_when_its_job_has_ended_and_no_snapshot_exists(started: Job) -> None:
    """S2.3: never while the job runs, could run again, or could be restored; nor without --sources."""
    job = started
    (slot,), publication = job.slots(), f"publication tidegate_public_{job.table}"
    checkpoint = job.snapshot("checkpoint")
    assert job.gc("--sources") == []
    job.crash()
    assert job.gc("--sources") == [], "a dead driver may be replaced"
    job.status("CANCELED")
    assert job.gc("--sources") == [], "the checkpoint can be restored"
    job.job.store.delete_folder(str(checkpoint.relative_to(Path(job.client.store.url.removeprefix("file://")))))
    assert job.gc() == job.gc("--sinks") == []
    would = job.gc("--sources", "--dry-run")
    assert would[0] == f"replication slot {slot}" and set(would[1:]) <= {publication}
    assert job.slots() == [slot]
    assert job.gc("--sources") == would
    assert job.slots() == [] and job.publications() == 2 - len(would)
    assert job.gc("--sources") == []


def test_a_fresh_start_leaves_a_slot_that_is_dropped_unless_a_savepoint_needs_it(started: Job) -> None:
    """S7.4: each lineage by itself. A savepoint that is not in its place may have been moved."""
    job = started
    (first,) = job.slots()
    savepoint = job.snapshot("savepoint")
    job.crash()
    job.start()
    (second,) = set(job.slots()) - {first}
    assert job.gc("--sources") == []
    moved = savepoint.rename(savepoint.parent / "moved")
    assert job.gc("--sources") == []
    job.client.store.create(job.client.layout.deletion(99), encode(DeletedSavepoint(99, "another", "", "alice")))
    assert job.gc("--sources", "--dry-run") == []
    path = job.client.view().completed[0].path
    job.client.store.create(job.client.layout.deletion(1), encode(DeletedSavepoint(1, path, "", "alice")))
    assert job.gc("--sources", "--dry-run") == [f"replication slot {first}"], "it was deleted, not moved"
    job.client.store.delete_folder(job.client.layout.deletions)
    moved.rename(savepoint)
    job.crash()
    job.start()
    (third,) = set(job.slots()) - {first, second}
    assert job.gc("--sources") == [f"replication slot {second}"]
    assert set(job.slots()) == {first, third} and job.publications() == 1


def test_a_slot_that_a_savepoint_needs_is_reported_and_dropped_on_request(
    started: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    """S2.3, S9.3: whether the savepoint is in its place, or was moved or deleted; never while a run is active."""
    job = started
    (slot,) = job.slots()
    assert job.gc("--sources", "--even-with-snapshots") == [], "the job runs"
    savepoint = job.snapshot("savepoint")
    position = job.position()
    job.crash()
    assert job.gc("--sources", "--even-with-snapshots") == [], "a dead driver may be replaced"
    job.status("CANCELED")
    for text in ("savepoint 1 (", ", moved or deleted)"):
        assert job.gc("--sources") == []
        (kept,) = job.report["sinks_kept"]
        assert f"replication slot {slot}" in kept and text in kept and "--even-with-snapshots" in kept
        savepoint = savepoint.rename(savepoint.parent / "moved")
    assert job.gc("--sources", "--even-with-snapshots", "--dry-run")[0] == f"replication slot {slot}"
    assert job.slots() == [slot]
    assert job.gc("--sources", "--even-with-snapshots")[0] == f"replication slot {slot}"
    (lost,) = job.report["abandoned"]
    assert lost.startswith("savepoint 1 (") and job.slots() == []
    assert job.gc("--sources") == [] and job.report["sinks_kept"] == []
    arguments = ["gc", job.job_id, "--root", "r", "--even-with-snapshots"]
    assert main(arguments) == 2 and "needs --sources and the name of one job" in capsys.readouterr().err
    split = Split("changes", {"table": job.table}, position)
    ((_, problem),) = job.source().unavailable_splits([split])
    assert "does not exist any more" in problem


def test_a_slot_that_a_zombie_reads_stays(started: Job) -> None:
    """S9.2."""
    job = started
    zombie = job.run
    job.start()
    assert len(job.slots()) == 2 and job.gc("--sources") == []
    zombie.crash()
    deadline = time.monotonic() + PATIENCE_S
    while not job.gc("--sources"):
        assert time.monotonic() < deadline
    assert len(job.slots()) == 1


def test_publications_of_the_user_and_of_other_jobs_stay(postgres: PostgresServer) -> None:
    owner, other = Table(postgres), Table(postgres)
    try:
        owner.run("CREATE PUBLICATION pub_$t FOR TABLE $t WITH (publish_via_partition_root = true)")
        for table, options in ((owner, {"publication": f"pub_{owner.name}"}), (other, {})):
            reading = table.read(**options)
            reading.until(lambda reading=reading: reading.position is not None and not reading.position["copying"])
        for table, options in ((owner, {"publication": f"pub_{owner.name}"}), (other, {})):
            table.readers[0].reader.close()
            table.readers[0].reader._prefetch._thread.join(PATIENCE_S)  # type: ignore[attr-defined]
            source = table.source(**options)
            assert isinstance(source, ReleasesInput)
            (slot,), ctx = table.slots(), SourceContext(table.uid, 0, 1, job_id="job", lineage="l1")
            paths: list[str] = []
            deadline = time.monotonic() + PATIENCE_S
            while not paths and time.monotonic() < deadline:
                paths = [one.path for one in source.release(ctx)]
            # A slot of another test's job may need the second publication.
            assert paths[0] == f"replication slot {slot}" and paths[1:] in (
                [],
                [f"publication tidegate_public_{other.name}"],
            )
            assert table is other or paths[1:] == []
            assert source.release(ctx) == [] and table.slots() == []
        count_of = "SELECT count(*) FROM pg_publication WHERE pubname = %s"
        assert owner.sql.execute(count_of, [f"pub_{owner.name}"]).fetchone() == (1,)
        assert list(other.source(changes=False).release(SourceContext(other.uid, 0, 1))) == []
    finally:
        owner.end()
        other.end()


@pytest.fixture
def little_wal(postgres: PostgresServer) -> Iterator[Callable[[Table], None]]:
    """Makes the server remove WAL that the slot of a table needs."""
    with postgres.connect() as sql:

        def lose(table: Table) -> None:
            sql.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'")
            sql.execute("SELECT pg_reload_conf()")
            (slot,) = table.slots()
            deadline = time.monotonic() + PATIENCE_S
            query = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
            while sql.execute(query, [slot]).fetchone() != ("lost",):
                assert time.monotonic() < deadline
                sql.execute("SELECT pg_logical_emit_message(false, 'filler', repeat('x', 1000000)), pg_switch_wal()")
                sql.execute("CHECKPOINT")

        yield lose
        sql.execute("ALTER SYSTEM RESET max_slot_wal_keep_size")
        sql.execute("SELECT pg_reload_conf()")


def test_a_slot_that_has_lost_wal_is_reported_before_the_run_and_by_it(
    postgres: PostgresServer, little_wal: Callable[[Table], None]
) -> None:
    """S4.2, S9.1: never continued at another place."""
    table = Table(postgres)
    try:
        reading = table.read()
        reading.until(lambda: reading.position is not None and not reading.position["copying"])
        splits = reading.snapshot()
        reading.reader.close()
        reading.reader._prefetch._thread.join(PATIENCE_S)  # type: ignore[attr-defined]
        table.run("INSERT INTO $t VALUES (1, 'a')")
        assert table.source().unavailable_splits(splits) == []
        little_wal(table)
        said = "the server has removed WAL that the slot"
        ((_, problem),) = table.source().unavailable_splits(splits)
        assert said in problem and "max_slot_wal_keep_size" in problem
        error = table.read(splits, run_id="r2").failure()
        assert isinstance(error, SnapshotError) and said in str(error)
    finally:
        table.end()


def test_a_slot_that_loses_wal_while_it_is_read_fails_the_run(
    postgres: PostgresServer, little_wal: Callable[[Table], None]
) -> None:
    """S9.1: no checkpoint completes meanwhile, so the server keeps WAL until the limit."""
    table = Table(postgres)
    try:
        reading = table.read()
        reading.until(lambda: reading.position is not None and not reading.position["copying"])
        little_wal(table)
        error = reading.failure()
        assert isinstance(error, SnapshotError) and "the server has removed WAL that the slot" in str(error)
    finally:
        table.end()


def test_changes_of_a_partitioned_table_are_those_of_the_whole_table(postgres: PostgresServer) -> None:
    """S4.2: also a row that moves to another partition, and partitions that are added; its copy is restored by keys."""
    table = Table(postgres)
    try:
        table.run("DROP TABLE $t")
        table.run("CREATE TABLE $t (id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)")
        table.run("CREATE TABLE $t_1 PARTITION OF $t FOR VALUES FROM (0) TO (10)")
        table.run("CREATE TABLE $t_2 PARTITION OF $t FOR VALUES FROM (10) TO (20)")
        table.run("INSERT INTO $t VALUES (1, 'a'), (11, 'a')")
        reading = table.read()
        assert reading.rows(2) == [change("insert", id=1, v="a"), change("insert", id=11, v="a")]
        table.run("UPDATE $t SET v = 'b' WHERE id = 1")
        table.run("UPDATE $t SET id = 12 WHERE id = 1")
        table.run("CREATE TABLE $t_3 PARTITION OF $t FOR VALUES FROM (20) TO (30)")
        table.run("INSERT INTO $t VALUES (21, 'c')")
        table.run("DELETE FROM $t_2 WHERE id = 11")
        assert reading.rows(5) == [
            change("update_after", id=1, v="b"),
            change("delete", id=1, v=None),
            change("insert", id=12, v="b"),
            change("insert", id=21, v="c"),
            change("delete", id=11, v=None),
        ]
        again = table.read(reading.snapshot(), run_id="r2")
        table.run("INSERT INTO $t VALUES (22, 'd')")
        assert again.rows(1) == [change("insert", id=22, v="d")]
    finally:
        table.end()
