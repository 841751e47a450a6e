"""`commit-pending` of jobs without a commit gate, of Delta tables and a real PostgreSQL server, in both modes, without
Spark (S7.4)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from batch_drivers import Drivers
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from postgres_server import PostgresServer

from tidegate import Delta, Postgres
from tidegate.api.loader.pipeline_loader import load_pipeline
from tidegate.cli.verdicts.pending_commits import commit_pending
from tidegate.connectors.delta.delta_writer import DeltaWriter
from tidegate.connectors.interface import Sink
from tidegate.connectors.postgres.postgres_writer import PostgresWriter
from tidegate.connectors.transactions import Committable
from tidegate.coordinator import events as ev
from tidegate.coordinator.late_commit import commit_late
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.records import RestoreFrom
from tidegate.subtask.chain import OperatorFailure
from tidegate.testing.in_process_job import InProcessJob

PINNED = """
import pyarrow as pa
from tidegate import DataGen, Delta, Pipeline, Postgres

def build(args):
    p = Pipeline()
    numbers = DataGen(lambda n: {"v": n}, pa.schema([("v", pa.int64())]), splits=2, batch_rows=8)
    sink = Postgres(args["out"], args["table"], password=args["password"]) if "table" in args else Delta(args["out"])
    p.read(numbers, uid="numbers").write(sink, uid="out")
    return p
"""
_tables = itertools.count()


class Target:
    """Where rows go, and what readers see of it."""

    writer: type[Any]
    arguments: dict[str, Any]

    def sink(self) -> Sink:
        raise NotImplementedError

    def shown(self) -> list[int]:
        raise NotImplementedError

    def staged(self) -> int:
        """Transactions that are neither committed nor removed."""
        raise NotImplementedError


class IntoDelta(Target):
    writer = DeltaWriter

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "table"
        self.arguments = {"out": str(self.folder)}

    def sink(self) -> Sink:
        return Delta(self.folder)

    def shown(self) -> list[int]:
        try:
            return sorted(DeltaTable(self.folder).to_pyarrow_table().column("v").to_pylist())
        except TableNotFoundError:
            return []

    def staged(self) -> int:
        return len(list(self.folder.rglob("*.staged")))


class IntoPostgres(Target):
    writer = PostgresWriter

    def __init__(self, server: PostgresServer) -> None:
        self.table = f"late_{next(_tables)}"
        self.sql = server.connect()
        self.sql.execute(f"CREATE TABLE {self.table} (v int8)")
        self.arguments = {"out": server.dsn, "table": self.table, "password": server.password}

    def sink(self) -> Sink:
        return Postgres(self.arguments["out"], self.table, password=self.arguments["password"])

    def shown(self) -> list[int]:
        return [v for (v,) in self.sql.execute(f"SELECT v FROM {self.table} ORDER BY 1").fetchall()]

    def staged(self) -> int:
        found = self.sql.execute("SELECT count(*) FROM tidegate.transactions").fetchone()
        assert found is not None
        return int(found[0])


@pytest.fixture
def delta(tmp_path: Path) -> Target:
    return IntoDelta(tmp_path)


@pytest.fixture
def table(postgres: PostgresServer) -> Target:
    return IntoPostgres(postgres)


class Failing:
    """A job whose pipeline is pinned; its stop-savepoint is complete, and its sink was cut off in the commit."""

    def __init__(self, target: Target, folder: Path, monkeypatch: pytest.MonkeyPatch, commits_before: int) -> None:
        self.file = folder / "late_job.py"
        self.file.write_text(PINNED)
        self.client = JobClient(str(folder / "root"), "late")
        options = {"parallelism": 2}
        spec = self.client.submit(pipeline=f"{self.file}:build", arguments=target.arguments, options=options)

        class Made:
            def build(self) -> object:
                return load_pipeline(str(folder), "late_job:build", target.arguments)

        job = InProcessJob(Made, options, "late", spec.lineage, self.client.root)  # type: ignore[arg-type]
        job.specs, job._spec, job._spec_number = [spec], spec, 1
        self.job, run = job, job.relaunch()
        run.pump(10)
        run.ask(ev.SnapshotRequest("checkpoint", request_id="c"))
        run.pump(10)
        with monkeypatch.context() as broken, pytest.raises(OperatorFailure):
            cut_off(broken, target, commits_before)
            run.ask(ev.SnapshotRequest("stop-savepoint", request_id="s", stop="suspend"))
            run.to_end()
        run.crash()
        stop = {"outcome": "savepoint_ok_stop_failed", "mode": "suspend", "checkpoint_id": 2}
        job.generation_log.append("status", {"status": "FAILED", "reason": "cut off", "stop": stop})


def cut_off(broken: pytest.MonkeyPatch, target: Target, commits_before: int) -> None:
    """Commits fail from now on, but for the first `commits_before`."""
    left = iter(range(commits_before))
    real = target.writer.commit

    def commit(writer: Any, committables: Sequence[Committable]) -> None:
        if next(left, None) is None:
            raise ConnectionError("cut off")
        real(writer, committables)

    broken.setattr(target.writer, "commit", commit)


def check_stream(target: Target, folder: Path, monkeypatch: pytest.MonkeyPatch, commits_before: int) -> None:
    failed = Failing(target, folder, monkeypatch, commits_before)
    before = target.shown()
    result = commit_pending(failed.client)
    shown, view = target.shown(), failed.client.view()
    assert (result.committed, result.waiting, result.uncommitted) == (2, (), ())
    assert len(shown) > len(before) and shown == list(range(len(shown))) and target.staged() == 0
    assert view.status.value == "FAILED" and view.checkpoints[1].committed
    assert view.stop is not None and view.stop["outcome"] == "committed"
    entries = len(failed.client.decisions())
    assert commit_pending(failed.client) == result and target.shown() == shown
    assert len(failed.client.decisions()) == entries, "nothing to do takes no fence"
    again = failed.job.submit(RestoreFrom("latest"))
    again.pump(10)
    again.ask(ev.SnapshotRequest("stop-savepoint", request_id="s2", stop="suspend"))
    again.to_end()
    assert len(target.shown()) > len(shown) and target.shown() == list(range(len(target.shown())))


def check_batch(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    drivers = Drivers(sink=lambda _: target.sink())
    job, commit = drivers.driver()
    commit.claim()
    drivers.staged(job, commit)
    commit.complete(drivers.staged(job, commit, attempt=2), job.splits(None), 5)
    with monkeypatch.context() as broken, pytest.raises(Exception, match="cut off"):
        cut_off(broken, target, commits_before=0)
        commit.publish()
    job.status("FAILED", reason="cut off")
    result = commit_late(drivers.driver(only_commits=True)[0], "late")
    assert (result.committed, result.waiting, result.uncommitted) == (1, (), ())
    assert target.shown() == list(range(100)) and target.staged() == 0
    view = drivers.view()
    assert view.status.value == "FAILED" and view.checkpoints[0].committed
    assert commit_late(drivers.driver(only_commits=True)[0], "again") == result
    assert target.shown() == list(range(100))


@pytest.mark.parametrize("commits_before", [0, 1])
def test_a_delta_table_gets_what_a_job_without_a_gate_could_not_commit(
    delta: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits_before: int
) -> None:
    """S7.4: whether or not a subtask had committed before."""
    check_stream(delta, tmp_path, monkeypatch, commits_before)


@pytest.mark.parametrize("commits_before", [0, 1])
def test_postgresql_gets_what_a_job_without_a_gate_could_not_commit(
    table: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits_before: int
) -> None:
    """S7.4."""
    check_stream(table, tmp_path, monkeypatch, commits_before)


def test_a_delta_table_gets_what_a_batch_job_could_not_commit(delta: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.4, S8.1: and nothing of what Spark's tasks staged twice."""
    check_batch(delta, monkeypatch)


def test_postgresql_gets_what_a_batch_job_could_not_commit(table: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.4, S8.1."""
    check_batch(table, monkeypatch)
