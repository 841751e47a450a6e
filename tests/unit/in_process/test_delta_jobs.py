"""Whole jobs that read Delta tables: crashes, new drivers, rescales, the gate, rewinds (S4.2, S4.3, S5.5, S9.3)."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.delta_tables import Growing, rows
from deltalake import DeltaTable as Written
from deltalake import write_deltalake
from process_jobs import run_with_accidents, suspended
from test_commit_gate_jobs import Gated

from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.connectors.delta.delta_sink import Delta
from tidegate.connectors.delta.source.delta_source import DeltaTable
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded, RunFailed
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.batch import run_batch
from tidegate.testing.in_process_job import InProcessJob

SCHEMA = pa.schema([("n", pa.int64())])


def copied(source: DeltaTable, out: Path, *columns: str) -> Pipeline:
    p = Pipeline()
    stream = p.read(source, uid="in")
    (stream.select(*columns) if columns else stream).write(Delta(out), uid="out")
    return p


def rows_of(folder: Path) -> list[int]:
    if not Written.is_deltatable(str(folder)):
        return []
    return sorted(Written(str(folder)).to_pyarrow_table()["n"].to_pylist())


@pytest.mark.parametrize("seed", range(3))
def test_a_table_is_copied_exactly_whatever_happens(tmp_path: Path, seed: int) -> None:
    """S4.2: positions within data files are restored, at any parallelism."""
    growing = Growing(tmp_path / "in")
    for _ in range(5):
        growing.append(100)
    out = tmp_path / "out"
    run_with_accidents(lambda: copied(DeltaTable(growing.folder), out), f"delta-copy-{seed}")
    assert rows_of(out) == list(range(500))


def test_a_batch_job_copies_a_version(tmp_path: Path) -> None:
    growing = Growing(tmp_path / "in")
    for _ in range(3):
        growing.append(100)
    run_batch(lambda: copied(DeltaTable(growing.folder, version=2), tmp_path / "out"), {"parallelism": 2})
    assert rows_of(tmp_path / "out") == list(range(200))


def test_a_followed_table_is_copied_while_it_grows(tmp_path: Path) -> None:
    """S4.3: over crashes, a savepoint and another parallelism, with compactions and cleanup between."""
    growing, out = Growing(tmp_path / "in"), tmp_path / "out"
    wanted: list[int] = []

    def grow(files: int) -> None:
        for _ in range(files):
            wanted.extend(range(growing.next, growing.next + 20))
            growing.append(20)

    grow(4)
    options: dict[str, Any] = {"parallelism": 2, "checkpoint_interval": "20 ms"}
    job = InProcessJob(lambda: copied(DeltaTable(growing.folder, follow="1 s"), out), options)
    run = job.submit()
    run.until(lambda: rows_of(out) == wanted)
    grow(3)
    run.pump(5)
    run.crash()
    run = job.rerun()
    grow(2)
    run.until(lambda: rows_of(out) == wanted)
    growing.written.optimize.compact()
    growing.written.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    growing.written.create_checkpoint()
    grow(2)
    path = suspended(run, 1)
    grow(2)
    job.options = {**options, "parallelism": 3}
    run = job.submit(RestoreFrom("savepoint", path=path))
    run.until(lambda: rows_of(out) == wanted)
    run.crash()


def test_versions_that_were_cleaned_up_while_the_job_stood_still_fail_it(tmp_path: Path) -> None:
    growing, out = Growing(tmp_path / "in"), tmp_path / "out"
    growing.append(5)
    job = InProcessJob(lambda: copied(DeltaTable(growing.folder, follow="1 s"), out), {"checkpoint_interval": "20 ms"})
    run = job.submit()
    run.until(lambda: len(rows_of(out)) == 5)
    path = suspended(run, 1)
    for _ in range(3):
        growing.append(1)
    growing.written.create_checkpoint()
    for version in range(3):
        (growing.log / f"{version:020}.json").unlink()
    run = job.submit(RestoreFrom("savepoint", path=path))
    outcome = run.to_end()
    assert isinstance(outcome, RunFailed)
    assert "can no longer be followed from version 1" in str(outcome)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_changes_arrive_in_order_whatever_happens(tmp_path: Path, parallelism: int) -> None:
    """S4.3: the newest change of each key is the row of the table, over crashes and rescales."""
    growing, out = Growing(tmp_path / "in", **{"delta.enableChangeDataFeed": "true"}), tmp_path / "out"
    steps = itertools.count(1)

    def change() -> None:
        step = next(steps)
        growing.append(30)
        growing.written.update(updates={"name": f"'step {step}'"}, predicate=f"n % 3 = {step % 3}")
        growing.written.delete(f"n % 11 = {step}")

    def build() -> Pipeline:
        source = DeltaTable(growing.folder, version=1, follow="1 s", changes=True, commit_columns=True)
        p = Pipeline()
        p.read(source, uid="in").changes_as_rows().write(Delta(out), uid="out")
        return p

    def replayed() -> dict[int, str]:
        if not Written.is_deltatable(str(out)):
            return {}
        table = Written(str(out))
        now: dict[int, str] = {}
        # A version of the output is a subtask's rows of one checkpoint, in their order.
        for uri in _in_order(table):
            for row in pa.parquet.read_table(uri).to_pylist():
                if row["change_kind"] in ("delete", "update_before"):
                    assert now.pop(row["n"]) == row["name"], row
                else:
                    assert row["n"] not in now, row
                    now[row["n"]] = row["name"]
        return now

    def expected() -> dict[int, str]:
        return {row["n"]: row["name"] for row in growing.written.to_pyarrow_table().to_pylist()}

    change()
    options: dict[str, Any] = {"parallelism": parallelism, "checkpoint_interval": "20 ms"}
    job = InProcessJob(build, options)
    run = job.submit()
    for _ in range(3):
        change()
    run.until(lambda: replayed() == expected())
    change()
    run.pump(7)
    run.crash()
    run = job.rerun()
    run.until(lambda: replayed() == expected())
    change()
    run.pump(9)
    path = suspended(run, 1)
    change()
    job.options = {**options, "parallelism": 2}
    run = job.submit(RestoreFrom("savepoint", path=path))
    run.until(lambda: replayed() == expected())
    run.crash()


def _in_order(table: Written) -> list[str]:
    """Files by the checkpoint that committed them."""
    import pyarrow.parquet  # noqa: F401

    return sorted(table.file_uris(), key=lambda uri: [int(part.split(".")[0]) for part in uri.split("--")[-2:]])


def test_the_columns_of_the_first_build_belong_to_the_job(tmp_path: Path) -> None:
    """S5.5: a restored job does not read a column that the table has got since."""
    growing, out = Growing(tmp_path / "in"), tmp_path / "out"
    growing.append(5)
    source = lambda: DeltaTable(growing.folder, follow="1 s", on_new_columns="ignore")  # noqa: E731
    job = InProcessJob(lambda: copied(source(), out), {"checkpoint_interval": "20 ms"})
    run = job.submit()
    run.until(lambda: len(rows_of(out)) == 5)
    path = suspended(run, 1)
    more = rows(5, 1).append_column("more", pa.array(["x"]))
    write_deltalake(str(growing.folder), more, mode="append", schema_mode="merge")
    run = job.submit(RestoreFrom("savepoint", path=path))
    run.until(lambda: rows_of(out) == list(range(6)))
    run.crash()
    assert Written(str(out)).schema().to_arrow().names == ["n", "name"]


def numbered(out: Path) -> Pipeline:
    p = Pipeline()
    p.read(DataGen(lambda n: {"n": n}, SCHEMA, splits=2, batch_rows=8), uid="numbers").write(Delta(out), uid="out")
    return p


def test_an_approved_checkpoint_of_a_followed_table_is_published_and_others_are_not(tmp_path: Path) -> None:
    """S7.8."""
    growing, out = Growing(tmp_path / "in"), tmp_path / "out"
    growing.append(20)
    job = Gated(lambda _: copied(DeltaTable(growing.folder, follow="100 ms"), out), rounds=40)
    first = job.checkpoint()
    growing.append(20)
    job.run.tick(200)
    job.run.pump(40)
    assert job.checkpoint() == first + 1 and rows_of(out) == []
    assert job.approve(first).ok
    assert rows_of(out) == list(range(20))
    job.crash()
    assert job.approve(first + 1).ok
    assert rows_of(out) == list(range(40))


def test_a_restore_to_an_earlier_checkpoint_rewinds_the_table(tmp_path: Path) -> None:
    """S9.3."""
    out = tmp_path / "out"
    job = InProcessJob(lambda: numbered(out), {"parallelism": 2, "retained_checkpoints": 9})
    run = job.submit()
    shown: list[list[int]] = []
    for number in range(3):
        run.pump(6)
        answer = run.ask(ev.SnapshotRequest("checkpoint", request_id=f"q{number}"))
        assert answer is not None and answer.ok
        run.pump(10)
        shown.append(rows_of(out))
    assert len(shown[0]) < len(shown[1]) < len(shown[2])
    write_deltalake(str(out), pa.table({"n": pa.array([-1], pa.int64())}), mode="append")
    run.crash()
    path = next(d.data["path"] for d in job.log.read() if d.kind == "complete" and d.data["checkpoint_id"] == 1)
    run = job.submit(RestoreFrom("checkpoint", path, 1, on_committed_after="rewind"))
    assert rows_of(out) == [-1, *shown[0]]
    run.pump(20)
    suspended(run, 9)
    found = rows_of(out)[1:]
    assert len(found) > len(shown[0]) and len(found) == len(set(found)), "no row is lost or repeated"
    assert isinstance(run.outcome, RunEnded)
