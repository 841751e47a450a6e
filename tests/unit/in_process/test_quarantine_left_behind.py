"""S7.8: what was rejected into quarantine and had not moved when its run ended, where the next run holds none of it: it
continues another lineage, or the snapshots that hold it are damaged or gone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_commit_gate_jobs import Gated, endless
from test_quarantine_jobs import files_into, held_in_the_staging_folder, rows_of

from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.errors import SnapshotError, StoreError
from tidegate.jobs.client.staged_data import quarantined_data
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob


def savepoint_of_another_job(job: Gated, job_id: str = "other") -> str:
    """Its path, in the same root; of the same pipeline with a sink of its own."""
    other = InProcessJob(
        lambda: endless(f"{job.sink}-{job_id}"), {"parallelism": 2}, job_id, "of-another", job.job.root
    )
    run = other.submit()
    run.pump(10)
    saved = run.ask(ev.SnapshotRequest("savepoint", request_id="s"))
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
    job = Gated(files_into(tmp_path / "out"))
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


def behind_the_word(**options: str) -> Gated:
    """Checkpoint 2 is rejected into quarantine, nothing has moved, and then 1: the next run goes back past 2."""
    job = Gated(**options)
    job.checkpoint(), job.checkpoint()
    held_in_the_staging_folder(job, 2)
    return job


def go_back(job: Gated) -> None:
    assert job.reject(1, "replay").ok
    job.run.crash()
    job.run = job.job.relaunch()


@pytest.mark.parametrize("file", ["_metadata", "state"])
def test_a_damaged_snapshot_of_what_was_rejected_is_named_with_what_to_do(
    file: str, caplog: pytest.LogCaptureFixture
) -> None:
    """S7.8, S9.3: it is not given up in silence; deleted by people it is, with a word in the log, and the job runs."""
    job = behind_the_word(state_size_threshold="0 B")
    folder = job.job.layout.checkpoint(2, 1)
    damaged = [n for n in job.job.store.list(folder) if (n == "_metadata") == (file == "_metadata")]
    assert damaged
    for name in damaged:
        job.job.store.replace(f"{folder}/{name}", b"{")
    with pytest.raises(SnapshotError) as refused:
        go_back(job)
    said = str(refused.value)
    assert "[2] cannot be moved to quarantine/" in said and f"snapshot {folder}" in said
    assert "was changed or truncated" in said or "damaged" in said
    assert "Restore another snapshot" not in said
    assert "delete the snapshot, which discards the output; then start the job again" in refused.value.remedy
    assert rows_of(job, "staged"), "nothing has been cleaned up"
    job.job.store.delete_folder(folder)
    job.run = job.job.relaunch()
    assert "checkpoints [2] were rejected" in caplog.text
    job.run.pump(10)
    assert not rows_of(job, "quarantined")
    job.approve(job.checkpoint())
    assert rows_of(job, "committed")


def test_any_snapshot_behind_the_word_tells_what_to_move(caplog: pytest.LogCaptureFixture) -> None:
    """S7.8: a savepoint is newer, and damaged; the checkpoint holds it too."""
    job = behind_the_word()
    job.run.writers.held = False
    saved = job.run.ask(ev.SnapshotRequest("savepoint", request_id="s"))
    assert saved is not None and saved.ok, saved
    job.job.store.replace(job.job.layout.metadata(saved.data["path"]), b"{")
    go_back(job)
    assert rows_of(job, "quarantined") and "is discarded" not in caplog.text


def test_what_older_snapshots_tell_is_moved_when_the_newest_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    """S7.8: the log names what they do not tell."""
    job = Gated(retained_checkpoints=3)
    job.checkpoint(), job.checkpoint(), job.checkpoint()
    held_in_the_staging_folder(job, 2)
    job.job.store.delete_folder(job.job.layout.checkpoint(3, 1))
    go_back(job)
    kept = {int(t.split(",")[4]) for t in collected(job.sink).quarantined}
    assert kept == {2} and "checkpoints [3] were rejected" in caplog.text


def test_what_a_sink_had_staged_that_the_pipeline_has_no_more_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """S7.8: nobody moves it, and nobody removes it."""

    def renamed(sink: str) -> Pipeline:
        p = Pipeline()
        source = DataGen(lambda numbers: {"v": numbers}, pa.schema([("v", pa.int64())]), splits=2, batch_rows=8)
        p.read(source, uid="numbers").write(CollectSink(sink), uid="out-2")
        return p

    job = behind_the_word()
    job.job.build = lambda: renamed(job.sink)
    go_back(job)
    said = caplog.text
    assert "sink 'out' staged output for checkpoints [2]" in said and "The output stays staged" in said
    assert rows_of(job, "staged") and not rows_of(job, "quarantined")


def test_a_store_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.8: not the job's own store, which nothing could be read from; that of a savepoint, say."""
    job = behind_the_word()
    with monkeypatch.context() as broken:
        broken.setattr("tidegate.coordinator.recovery.quarantine_moves.sink_handles", _no_answer)
        with pytest.raises(StoreError, match="The next run tries again"):
            go_back(job)
    job.run = job.job.rerun()
    assert rows_of(job, "quarantined")


def _no_answer(*_: object) -> None:
    raise StoreError("no route to host")
