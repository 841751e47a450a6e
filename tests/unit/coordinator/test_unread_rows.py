"""S2.3, S4.2: `tidegate gc` deletes rows of DataFrames that nobody reads any more, and no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from test_offline_garbage import LAYOUT, NOW, Job

from tidegate.coordinator.garbage.garbage_collection import collect_garbage
from tidegate.jobs.artifacts.materialised_rows import Materialised, record_materialised
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import DeletedSavepoint, RestoreFrom, Spec, encode
from tidegate.jobs.stores.store_registry import open_store
from tidegate.snapshot.metadata import read_metadata, write_metadata


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(open_store(str(tmp_path)))


def materialised(job: Job, spec: int, generation: int = 1) -> str:
    """Rows of source `orders`, on record; the folder."""
    path = f"{LAYOUT.materialised_files(spec, 'orders', generation)}/part-0.parquet"
    job.store.create(path, b"rows")
    record_materialised(job.store, LAYOUT, Materialised(spec, "orders", ({"path": path, "rows": 1},), "now"))
    return LAYOUT.materialised(spec)


def reading(job: Job, n: int, spec: int, *, status: str = "running") -> str:
    """Snapshot n completes, with positions in the rows of a submission."""
    path = job.complete(n)
    metadata = read_metadata(job.store, path)
    job.store.delete(LAYOUT.metadata(path))
    url = f"{job.store.url}/{LAYOUT.materialised_files(spec, 'orders', 1)}/part-0.parquet"
    split = {"split_id": "0", "data": {"url": url}}
    operators = tuple(replace(op, uid="orders", status=status) for op in metadata.operators)
    write_metadata(job.store, path, replace(metadata, splits={"orders": [split]}, operators=operators))
    return path


def test_rows_that_no_snapshot_reads_go_when_their_submission_is_over(job: Job) -> None:
    job.driver()
    first = materialised(job, 1)
    job.ended("CANCELED")
    job.driver()
    second = materialised(job, 2)
    assert job.paths(dry_run=True) == [first] and job.store.walk(first)
    assert job.paths() == [first] and not job.store.walk(first) and job.store.walk(second)
    job.ended("FAILED")
    assert job.paths() == [], "it may be started again"
    job.ended("CANCELED")
    assert job.paths() == [second]


def test_rows_stay_as_long_as_a_checkpoint_that_stays_reads_them(job: Job) -> None:
    job.driver()
    rows = materialised(job, 1)
    first = reading(job, job.claim(), 1)
    job.ended("CANCELED")
    job.driver(RestoreFrom("checkpoint", first, 1))
    assert job.paths() == [], "the submission reads them, and has completed nothing"
    second = reading(job, job.claim(), 1)
    job.ended("STOPPED")
    assert job.paths() == [first]
    reading(job, job.claim(), 1, status="finished")
    assert job.paths() == [second, rows], "the source has been read to its end"


def test_a_running_job_keeps_the_rows_of_its_whole_line(job: Job) -> None:
    """Its driver may complete and delete checkpoints while the collector looks."""
    job.driver()
    rows = materialised(job, 1)
    first = reading(job, job.claim(), 1)
    job.ended("STOPPED")
    job.driver(RestoreFrom("checkpoint", first, 1))
    job.store.delete_folder(first)
    assert job.paths() == [] and job.store.walk(rows)


def test_a_savepoint_keeps_the_rows_it_reads_and_wherever_it_was_moved(job: Job) -> None:
    job.driver()
    rows = materialised(job, 1)
    path = reading(job, job.claim("savepoint"), 1)
    job.ended("CANCELED")
    assert job.paths() == []
    job.store.delete_folder(path)
    found = job.collect()
    assert found.collected == () and job.store.walk(rows)
    assert "savepoint 1, which was moved or deleted" in found.rows_kept
    job.store.create(LAYOUT.deletion(1), encode(DeletedSavepoint(1, path, "", "alice")))
    assert job.paths() == [rows], "its user has deleted it"


def test_a_snapshot_that_cannot_be_read_keeps_all_rows(job: Job) -> None:
    job.driver()
    rows = materialised(job, 1)
    path = reading(job, job.claim(), 1)
    job.store.replace(LAYOUT.metadata(path), b"{")
    job.ended("CANCELED")
    found = job.collect()
    assert job.store.walk(rows) and "cannot be read" in found.rows_kept


def test_what_another_driver_wrote_beside_the_rows_on_record_goes(job: Job) -> None:
    job.driver()
    rows = materialised(job, 1, generation=2)
    reading(job, job.claim(), 1)
    stray = f"{LAYOUT.materialised_files(1, 'orders', 1)}/part-7.parquet"
    job.store.create(stray, b"rows")
    assert job.paths() == [], "its writer may be at it"
    job.ended("CANCELED")
    job.driver()
    job.ended("CANCELED")
    assert job.paths() == [stray] and len(job.store.walk(rows)) == 2


def test_rows_stay_when_the_job_is_submitted_anew_while_it_is_looked_at(job: Job) -> None:
    job.driver()
    rows = materialised(job, 1)
    job.ended("CANCELED")
    looks = iter(range(100))

    def specs() -> list[Spec]:
        if next(looks) == 2:
            job.submit()
        return list(job.specs)

    found = collect_garbage(job.store, LAYOUT, lambda: job.log, specs, now=NOW)
    assert job.store.walk(rows) and "submitted again" in found.rows_kept


def test_a_forks_collection_leaves_its_originals_rows_alone(job: Job) -> None:
    job.driver()
    job.store.create(f"{JobLayout('job-2').materialised_files(1, 'orders', 1)}/part-0.parquet", b"rows")
    job.ended("CANCELED")
    assert job.paths() == []
