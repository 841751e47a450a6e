"""Whole jobs that read and write Iceberg tables: crashes, new drivers, rescales, and the commit gate (S4.3, S5.5, S7.8,
S9.3)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from iceberg_tables import TABLE, expire_all_but_the_newest, opened, rows_of, sqlite_catalog
from process_jobs import run_with_accidents, suspended
from pyiceberg.catalog import Catalog
from test_commit_gate_jobs import Gated

import tidegate
from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.connectors.iceberg import iceberg_writer
from tidegate.connectors.iceberg.iceberg_sink import Iceberg
from tidegate.connectors.iceberg.iceberg_source import IcebergTable
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.jobs.client.staged_data import quarantined_data
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.batch import run_batch
from tidegate.testing.in_process_job import InProcessJob

SCHEMA = pa.schema([("n", pa.int64())])
SOURCE = "shop.source"


@pytest.fixture(autouse=True)
def without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """All subtasks commit in one thread, so that it is useless to wait for another one."""
    monkeypatch.setattr(iceberg_writer, "LEADER_WAITS_S", ())


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    return sqlite_catalog(tmp_path)


@pytest.fixture
def catalog(properties: dict[str, str]) -> Iterator[Catalog]:
    made = opened(properties)
    yield made
    made.close()


def numbered(
    properties: dict[str, str], total: int | None = None, rate: float | None = None, **options: Any
) -> Pipeline:
    p = Pipeline()
    source = DataGen(lambda n: {"n": n}, SCHEMA, rows=total, splits=3, batch_rows=8, rate=rate)
    p.read(source, uid="numbers").write(Iceberg(TABLE, catalog=properties, create=True, **options), uid="out")
    return p


def checkpoints_of(catalog: Catalog) -> list[str]:
    """The checkpoints of the table's snapshots, one for each snapshot."""
    found = [snapshot.summary for snapshot in catalog.load_table(TABLE).snapshots()]
    return [str(summary["tidegate.checkpoint"]) for summary in found if summary and summary["tidegate.checkpoint"]]


@pytest.mark.parametrize("seed", range(4))
def test_accidents_lose_and_repeat_nothing(properties: dict[str, str], catalog: Catalog, seed: int) -> None:
    """S5.5, S7.4, S9.1, S9.2."""
    run_with_accidents(lambda: numbered(properties, 600, partition_by="bucket(2, n)"), f"iceberg-{seed}")
    assert rows_of(catalog) == list(range(600))
    files = [task.file.file_path for task in catalog.load_table(TABLE).scan().plan_files()]
    assert len(files) == len(set(files))


def test_a_checkpoint_of_several_subtasks_is_one_snapshot(properties: dict[str, str], catalog: Catalog) -> None:
    job = InProcessJob(lambda: numbered(properties, 400, 2_000.0), {"parallelism": 3, "checkpoint_interval": "20 ms"})
    assert isinstance(job.submit().to_end(), RunEnded)
    made = checkpoints_of(catalog)
    assert len(made) > 1 and len(made) == len(set(made))
    assert rows_of(catalog) == list(range(400))


@pytest.mark.parametrize("seed", range(3))
def test_a_table_is_copied_exactly_whatever_happens(properties: dict[str, str], catalog: Catalog, seed: int) -> None:
    """S4.2: positions within data files are restored, at any parallelism."""
    table = catalog.create_table(SOURCE, SCHEMA)
    for first in range(0, 500, 100):
        table.append(pa.table({"n": pa.array(range(first, first + 100), pa.int64())}))

    def build() -> Pipeline:
        p = Pipeline()
        source = IcebergTable(SOURCE, catalog=properties, filter="n >= 10")
        p.read(source, uid="in").write(Iceberg(TABLE, catalog=properties, create=True), uid="out")
        return p

    run_with_accidents(build, f"copy-{seed}")
    assert rows_of(catalog) == list(range(10, 500))


def test_a_followed_table_is_copied_while_it_grows(properties: dict[str, str], catalog: Catalog) -> None:
    """S4.3: over crashes, a savepoint and another parallelism, with snapshots that expire between."""
    table = catalog.create_table(SOURCE, SCHEMA)
    numbers = itertools.count()
    wanted: list[int] = []

    def grow(files: int) -> None:
        for _ in range(files):
            rows = [next(numbers) for _ in range(20)]
            wanted.extend(rows)
            catalog.load_table(SOURCE).append(pa.table({"n": pa.array(rows, pa.int64())}))

    def build() -> Pipeline:
        p = Pipeline()
        source = IcebergTable(SOURCE, catalog=properties, follow="1 s")
        p.read(source, uid="in").write(Iceberg(TABLE, catalog=properties, create=True), uid="out")
        return p

    grow(4)
    job = InProcessJob(build, {"parallelism": 2, "checkpoint_interval": "20 ms"})
    run = job.submit()
    run.until(lambda: rows_of(catalog) == wanted)
    grow(3)
    run.pump(5)
    run.crash()
    run = job.rerun()
    grow(2)
    run.until(lambda: rows_of(catalog) == wanted)
    expire_all_but_the_newest(table.refresh())
    grow(2)
    path = suspended(run, 1)
    grow(2)
    job.options = {**job.options, "parallelism": 3}
    run = job.submit(RestoreFrom("savepoint", path=path))
    run.until(lambda: rows_of(catalog) == wanted)
    run.crash()


def test_an_approval_publishes_and_a_rejection_keeps_rows_out(properties: dict[str, str], catalog: Catalog) -> None:
    """S7.8: staged files can be audited before, and rejected ones are in quarantine."""
    job = Gated(lambda _: numbered(properties))
    assert [job.checkpoint() for _ in range(3)] == [1, 2, 3]
    assert rows_of(catalog) == []
    assert job.approve(1).ok
    shown = rows_of(catalog)
    assert job.say(False, 2, "quarantine").ok
    kept = [quarantined_data(job.job.store, job.job.layout.quarantine, n) for n in (2, 3)]
    assert all(data.rows and data.format == "parquet" for (data,) in kept)
    job.checkpoint()
    assert job.approve(4).ok
    later = rows_of(catalog)
    assert len(later) > len(shown) and len(set(later)) == len(later)
    assert checkpoints_of(catalog) == ["1", "4"]
    rejected = sum(data.rows or 0 for (data,) in kept)
    assert len(set(range(max(later) + 1)) - set(later)) >= rejected, "the rejected rows are not there"


def test_a_rewind_restores_the_table_and_the_job_writes_the_rows_again(
    properties: dict[str, str], catalog: Catalog
) -> None:
    """S9.3."""
    options = {"parallelism": 2, "retained_checkpoints": 10}
    job = InProcessJob(lambda: numbered(properties), options)
    run = job.submit()
    sizes = []
    for number in range(4):
        run.pump(6)
        answer = run.ask(ev.SnapshotRequest("checkpoint", request_id=f"c{number}"))
        assert answer is not None and answer.ok
        run.pump(10)
        sizes.append(len(rows_of(catalog)))
    run.crash()
    restore = RestoreFrom("checkpoint", checkpoint_id=2, on_committed_after="rewind")
    run = job.submit(restore)
    assert len(rows_of(catalog)) == sizes[1] < sizes[3]
    run.pump(40)
    assert suspended(run, 1) is not None
    found = rows_of(catalog)
    assert len(found) > sizes[1] and len(found) == len(set(found))
    for split in range(3):
        of_split = [n for n in found if n % 3 == split]
        assert of_split == list(range(split, split + 3 * len(of_split), 3)), "a row is missing between others"


def test_the_example_of_the_page_runs(properties: dict[str, str], catalog: Catalog) -> None:
    """With a catalog in a folder in place of its REST catalog."""
    text = (Path(__file__).parents[3] / "docs" / "connectors" / "iceberg.md").read_text(encoding="utf-8")
    code = text.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {**vars(tidegate), "Pipeline": Pipeline, "Iceberg": Iceberg, "IcebergTable": IcebergTable}
    names |= {name: getattr(tidegate, name) for name in ("tumbling", "count")}
    exec(compile(code, "iceberg.md", "exec"), names)
    names["catalog"] = properties
    for namespace in ("raw", "mart"):
        catalog.create_namespace(namespace)
    times = pa.array([datetime(2026, 11, 28, hour, tzinfo=UTC) for hour in range(3)], pa.timestamp("us", "UTC"))
    rows = pa.table({"ordered_at": times, "shop": pa.array(["a", "a", "b"])})
    catalog.create_table("raw.orders", rows.schema).append(rows)
    job = InProcessJob(lambda: names["build"]({}), {"parallelism": 2, "checkpoint_interval": "20 ms"})
    run = job.submit()
    run.until(lambda: rows_of(catalog, "mart.hourly", "orders") == [1])
    assert suspended(run, 1, "drain") is not None
    assert rows_of(catalog, "mart.hourly", "orders") == [1, 1, 1]


def test_a_batch_job_reads_and_writes_tables(properties: dict[str, str], catalog: Catalog) -> None:
    """S8.1: one commit, on success."""
    table = catalog.create_table(SOURCE, SCHEMA)
    for first in range(0, 300, 100):
        table.append(pa.table({"n": pa.array(range(first, first + 100), pa.int64())}))

    def build() -> Pipeline:
        p = Pipeline()
        source = IcebergTable(SOURCE, catalog=properties, filter="n < 250")
        p.read(source, uid="in").write(Iceberg(TABLE, catalog=properties, create=True), uid="out")
        return p

    run_batch(build, {"parallelism": 2})
    assert rows_of(catalog) == list(range(250))
    assert len(catalog.load_table(TABLE).snapshots()) == 1
