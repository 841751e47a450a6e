"""Whole jobs that upsert Delta and Iceberg tables: accidents, change rows, gate, rewinds, batch (S7.4, S7.8, S9.3)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.delta_tables import Growing
from process_jobs import run_with_accidents, suspended
from test_commit_gate_jobs import Gated
from upserted_tables import KINDS, Upserted

from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.connectors.delta.source.delta_source import DeltaTable
from tidegate.connectors.upserts import staged_groups
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.jobs.client.staged_data import quarantined_data
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.batch import run_batch
from tidegate.testing.in_process_job import InProcessJob

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
KEYS = 37

Build = Callable[[], Pipeline]


@pytest.fixture(autouse=True)
def without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """All subtasks commit in one thread, so that it is useless to wait for another one."""
    monkeypatch.setattr(staged_groups, "LEADER_TIMEOUT_S", 0.0)


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Upserted:
    return KINDS[request.param](tmp_path / "out" if request.param == "Delta" else tmp_path, SCHEMA)


def counting(table: Upserted, total: int | None = None, rate: float | None = None) -> Pipeline:
    """Row n has key n modulo KEYS, so that each row replaces the one before with its key."""
    p = Pipeline()
    rows = DataGen(lambda n: {"k": n % KEYS, "v": n}, SCHEMA, rows=total, splits=1, batch_rows=8, rate=rate)
    p.read(rows, uid="rows").repartition("k").write(table.sink(), uid="out")
    return p


def newest(total: int) -> list[tuple[int, int]]:
    return sorted({n % KEYS: n for n in range(total)}.items())


def found(table: Upserted) -> list[tuple[int, int]]:
    return sorted((row["k"], row["v"]) for row in table.table().to_pylist())


@pytest.mark.parametrize("seed", range(3))
def test_the_newest_row_of_each_key_is_stored_whatever_happens(table: Upserted, seed: int) -> None:
    """S5.5, S7.4, S9.1, S9.2: crashes, new drivers and rescales."""
    run_with_accidents(lambda: counting(table, 600), f"upserts-{seed}")
    assert found(table) == newest(600)


def test_a_batch_job_stores_each_key_once(table: Upserted) -> None:
    """S8.1: in one commit."""
    run_batch(lambda: counting(table, 500), {"parallelism": 2})
    rows = found(table)
    assert [k for k, _ in rows] == list(range(KEYS)) and all(v % KEYS == k for k, v in rows)


def test_a_mirror_of_a_table_follows_all_its_changes(table: Upserted, tmp_path: Path) -> None:
    """S4.3, S7.4: over crashes, a savepoint and another parallelism."""
    growing = Growing(tmp_path / "in", **{"delta.enableChangeDataFeed": "true"})
    steps = itertools.count(1)
    table.options["key"] = "n"

    def change() -> None:
        step = next(steps)
        growing.append(30)
        growing.written.update(updates={"name": f"'step {step}'"}, predicate=f"n % 3 = {step % 3}")
        growing.written.delete(f"n % 11 = {step}")

    def build() -> Pipeline:
        p = Pipeline()
        source = DeltaTable(growing.folder, version=1, follow="1 s", changes=True)
        p.read(source, uid="in").repartition("n").write(table.sink(), uid="out")
        return p

    def equal() -> bool:
        wanted = growing.written.to_pyarrow_table().sort_by("n").to_pylist()
        rows = table.table()
        return rows.num_columns == 2 and rows.sort_by("n").to_pylist() == wanted

    change()
    options: dict[str, Any] = {"parallelism": 2, "checkpoint_interval": "20 ms"}
    job = InProcessJob(build, options)
    run = job.submit()
    run.until(equal)
    change()
    run.pump(7)
    run.crash()
    run = job.rerun()
    change()
    run.until(equal)
    change()
    run.pump(9)
    path = suspended(run, 1)
    change()
    job.options = {**options, "parallelism": 3}
    run = job.submit(RestoreFrom("savepoint", path=path))
    run.until(equal)
    run.crash()


def gated(table: Upserted, **options: Any) -> Gated:
    return Gated(lambda _: counting(table, rate=2_000.0), rounds=20, **options)


def advance(job: Gated) -> None:
    job.run.tick(20)
    job.run.pump(20)


def test_an_approval_of_several_checkpoints_stores_the_newest_rows(table: Upserted) -> None:
    """S7.8: in the order of the checkpoints, also after a crash."""
    job = gated(table)
    taken = []
    for _ in range(3):
        advance(job)
        taken.append(job.checkpoint())
    assert found(table) == []
    assert job.approve(taken[0]).ok
    first = found(table)
    job.crash()
    advance(job)
    taken.append(job.checkpoint())
    assert found(table) == first
    assert job.approve(taken[-1]).ok
    rows = found(table)
    last = max(v for _, v in rows)
    assert rows == newest(last + 1), "no key has a row of an older checkpoint"
    assert last > max(v for _, v in first)


def test_rejected_rows_replace_nothing(table: Upserted) -> None:
    """S7.8: rows of the checkpoints beside are stored."""
    job = gated(table)
    advance(job)
    first = job.checkpoint()
    assert job.approve(first).ok
    before = found(table)
    advance(job)
    rejected = job.checkpoint()
    assert job.reject(rejected, "quarantine").ok
    advance(job)
    assert found(table) == before
    data = quarantined_data(job.job.store, job.job.layout.quarantine, rejected)
    assert sum(one.rows for one in data) > 0
    advance(job)
    later = job.checkpoint()
    assert job.approve(later).ok
    rows = dict(found(table))
    last = max(rows.values())
    assert last > max(v for _, v in before)
    assert all(v <= last and v % KEYS == k for k, v in rows.items())


def test_a_restore_to_an_earlier_checkpoint_rewinds_the_table(table: Upserted) -> None:
    """S9.3."""
    job = InProcessJob(lambda: counting(table, rate=2_000.0), {"parallelism": 2, "retained_checkpoints": 9})
    run = job.submit()
    shown: list[list[tuple[int, int]]] = []
    for number in range(3):
        run.tick(30)
        run.pump(20)
        answer = run.ask(ev.SnapshotRequest("checkpoint", request_id=f"q{number}"))
        assert answer is not None and answer.ok
        run.pump(10)
        shown.append(found(table))
    assert shown[0] != shown[1] != shown[2]
    run.crash()
    path = next(d.data["path"] for d in job.log.read() if d.kind == "complete" and d.data["checkpoint_id"] == 1)
    run = job.submit(RestoreFrom("checkpoint", path, 1, on_committed_after="rewind"))
    assert found(table) == shown[0]
    run.tick(30)
    run.pump(20)
    suspended(run, 9)
    assert isinstance(run.outcome, RunEnded)
    rows = found(table)
    assert rows == newest(max(v for _, v in rows) + 1)
