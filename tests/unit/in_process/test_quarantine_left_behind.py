"""S7.8: what was rejected into quarantine and had not moved when its run ended, where the next run holds none of it: it
continues another lineage, or the snapshots that hold it are damaged or gone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from test_commit_gate_jobs import Gated, endless
from test_quarantine_jobs import held_in_the_staging_folder, rows_of

from tidegate.connectors.datagen import DataGen
from tidegate.connectors.parquet import Parquet
from tidegate.contract.records import RestoreFrom
from tidegate.contract.staged import quarantined_data
from tidegate.coordinator import events as ev
from tidegate.pipeline.pipeline import Pipeline
from tidegate.testing.collect import collected
from tidegate.testing.in_process import InProcessJob


def savepoint_of_another_job(job: Gated, job_id: str = "other") -> str:
    """Its path, in the same root; of the same pipeline with a sink of its own."""
    other = InProcessJob(
        lambda: endless(f"{job.sink}-{job_id}"), {"parallelism": 2}, job_id, "of-another", job.job.root
    )
    run = other.submit()
    run.pump(10)
    saved = run.ask(ev.Request("savepoint", request_id="s"))
    assert saved is not None and saved.ok, saved
    return str(saved.data["path"])


def test_a_restore_of_another_jobs_snapshot_moves_what_its_own_had_left() -> None:
    """S7.8, S7.4: a new lineage, which cleans up nothing of the one before; so nobody else would."""
    job = Gated()
    job.approve(job.checkpoint())
    job.checkpoint()
    held_in_the_staging_folder(job, 2)
    staged = rows_of(job, "staged")
    job.run.crash()
    path = savepoint_of_another_job(job)
    job.job.lineage = "lineage-2"
    job.run = job.job.submit(RestoreFrom("savepoint", path=path))
    assert rows_of(job, "quarantined") == staged and not rows_of(job, "staged")
    assert not collected(f"{job.sink}-other").quarantined, "of the other job's nothing is touched"


def test_files_of_a_lineage_that_is_left_go_to_quarantine_with_their_notes(tmp_path: Path) -> None:
    """S7.8."""

    def files(_: str) -> Pipeline:
        p = Pipeline()
        source = DataGen(lambda numbers: {"v": numbers}, pa.schema([("v", pa.int64())]), splits=2, batch_rows=8)
        p.read(source, uid="numbers").write(Parquet(tmp_path / "out"), uid="out")
        return p

    job = Gated(files)
    job.checkpoint()
    job.run.writers.held = True
    assert job.reject(1, "quarantine").ok
    staged = list((tmp_path / "out").rglob("*--1--0.parquet.staged"))
    rows = sum(pq.read_metadata(file).num_rows for file in staged)
    job.run.crash()
    path = savepoint_of_another_job(job)
    job.job.lineage = "lineage-2"
    job.run = job.job.submit(RestoreFrom("savepoint", path=path))
    (kept,) = quarantined_data(job.job.store, job.job.layout.quarantine, 1)
    assert kept.rows == rows and len(kept.files) == len(staged) and not any(file.exists() for file in staged)


def test_a_restore_in_a_lineage_that_was_left_moves_what_the_one_between_had_left() -> None:
    """S7.8: back in the first lineage, behind a fresh start whose output was rejected."""
    job = Gated()
    job.approve(job.checkpoint())
    job.stop()
    job.job.lineage = "lineage-2"
    job.run = job.job.submit()
    job.run.pump(10)
    n = job.checkpoint()
    held_in_the_staging_folder(job, n)
    job.run.crash()
    job.job.lineage = "lineage-1"
    job.again(RestoreFrom("checkpoint", checkpoint_id=1, on_committed_after="accept_duplicates"))
    of_second = [t for t in collected(job.sink).quarantined if ",lineage-2," in t]
    assert of_second and not [t for t in collected(job.sink).staged if ",lineage-2," in t]
