"""S7.8 in whole jobs: `reject` with then=quarantine. The job goes on from what was rejected, and never shows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_commit_gate_jobs import Gated

from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.connectors.files.sink.parquet import Parquet
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import StoreError
from tidegate.jobs.client.staged_data import quarantined_data
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun


def rows_of(job: Gated, where: str) -> list[int]:
    """Committed, staged or quarantined ones, sorted; none twice."""
    transactions = getattr(collected(job.sink), where)
    found = sorted(n for batches in transactions.values() for b in batches for n in b.column("v").to_pylist())
    assert len(found) == len(set(found))
    return found


def to_quarantine(job: Gated, n: int) -> ev.CommandAnswer:
    return job.say(False, n, "quarantine")


def until_all_is_accounted_for(job: Gated) -> None:
    """Every row that was read is visible or in quarantine, once."""
    job.approve(job.checkpoint())
    assert not set(rows_of(job, "committed")) & set(rows_of(job, "quarantined"))
    everything = sorted([*rows_of(job, "committed"), *rows_of(job, "quarantined")])
    splits = [[n for n in everything if n % 2 == k] for k in (0, 1)]
    assert all(found == list(range(k, k + 2 * len(found), 2)) for k, found in enumerate(splits)), everything


def test_the_job_goes_on_without_the_output_of_what_was_rejected() -> None:
    """S7.8: what waits behind it goes with it; what is in front still waits; what comes later is committed."""
    job = Gated()
    assert [job.checkpoint() for _ in range(4)] == [1, 2, 3, 4]
    job.approve(1)
    shown = rows_of(job, "committed")
    answer = to_quarantine(job, 3)
    assert answer.ok and answer.data["rejected"] == [3, 4], answer
    assert job.run.outcome is None and job.view.waiting == (2,) and job.view.uncommitted == (2,)
    assert [job.view.checkpoint(n).verdict for n in (1, 2, 3, 4)] == ["approved", "waiting", *["quarantined"] * 2]
    kept = rows_of(job, "quarantined")
    assert kept and rows_of(job, "committed") == shown
    job.checkpoint()
    job.approve(5)
    assert rows_of(job, "quarantined") == kept and len(rows_of(job, "committed")) > len(shown)
    assert not job.view.checkpoint(3).committed and job.view.checkpoint(2).committed
    until_all_is_accounted_for(job)


def test_the_word_on_it_stands() -> None:
    """S7.8: not approved any more; said again, answered alike; no restore commits it."""
    job = Gated()
    job.checkpoint(), job.checkpoint()
    assert to_quarantine(job, 2).ok
    assert job.approve(2).code == "rejected"
    assert to_quarantine(job, 2).code == "rejected" and to_quarantine(job, 2).ok
    assert [kind for kind, _ in job.log] == ["reject"]
    job.checkpoint()
    job.stop()
    job.again(RestoreFrom("checkpoint", checkpoint_id=3, on_committed_after="accept_duplicates"))
    job.approve(3)
    kept = rows_of(job, "quarantined")
    assert kept and not set(kept) & set(rows_of(job, "committed"))


@pytest.mark.parametrize("then", ["rerun", "relaunch"])
def test_a_crash_between_the_word_and_the_move_leaves_nothing_undone(then: str) -> None:
    """S7.8: the next run moves it before it cleans up; and it never commits it, whatever is approved later."""
    job = Gated()
    job.checkpoint(), job.checkpoint()
    job.run.writers.held = True
    assert to_quarantine(job, 2).ok
    assert not rows_of(job, "quarantined")
    job.run.crash()
    job.run = job.job.rerun() if then == "rerun" else job.job.relaunch()
    assert rows_of(job, "quarantined")
    until_all_is_accounted_for(job)


def test_a_snapshot_that_was_under_way_at_the_word_holds_it_and_a_restore_moves_it() -> None:
    """S7.8: the new snapshot's state still has the handles while they have not moved."""
    job = Gated()
    job.checkpoint()
    job.run.writers.held = True
    job.run.run.handle_command(ev.SnapshotRequest("checkpoint", request_id="late"))
    job.run.pump(8)
    job.run.run.handle_command(ev.Verdict("v", False, 1, "anna", "quarantine"))
    slot_writers, job.run.writers._waiting = job.run.writers._waiting, []
    job.run.pump(8)
    for work in slot_writers:
        work()
    job.run.pump(8)
    assert job.job.answers["late"].ok and not rows_of(job, "quarantined")
    job.run.crash()
    job.run = job.job.rerun()
    assert rows_of(job, "quarantined")
    until_all_is_accounted_for(job)


def test_a_word_that_comes_before_every_subtask_runs_is_carried_out_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.8."""
    job = Gated()
    job.checkpoint()
    job.run.crash()
    with monkeypatch.context() as held:
        held.setattr(InProcessRun, "_deliver", lambda _: False)
        job.run = job.job.relaunch()
        job.run.run.handle_command(ev.Verdict("early", False, 1, "anna", "quarantine"))
        assert not job.run.slot._inbox, "no slot is there to hear it"
    job.run.pump(10)
    assert rows_of(job, "quarantined")
    until_all_is_accounted_for(job)


def test_sources_read_again_and_nothing_is_pinned_any_more() -> None:
    """S7.8, S2.3."""
    job = Gated(max_uncommitted_checkpoints=2)
    job.checkpoint(), job.checkpoint()
    assert job.run.run.coordinator.sources_paused
    to_quarantine(job, 1)
    assert not job.run.run.coordinator.sources_paused
    job.checkpoint(), job.checkpoint()
    assert job.view.waiting == (3, 4) and not {"chk-1-g1"} & job.folders


def test_a_job_whose_last_output_is_in_quarantine_has_nothing_pending() -> None:
    """S7.8: a stop comes after the word; while the job is ending the word is refused, for commit-pending to take."""
    job = Gated()
    job.checkpoint()
    to_quarantine(job, 1)
    job.run.run.handle_command(ev.SnapshotRequest("stop-savepoint", request_id="s", stop="suspend"))
    job.run.until(lambda: bool(job.view.waiting))
    answer = to_quarantine(job, job.view.waiting[-1])
    assert answer.code == "job_ends" and "commit-pending" in answer.message
    job.run.to_end()
    assert isinstance(job.run.outcome, RunEnded) and job.run.outcome.uncommitted == (2,)


def test_a_job_restored_without_a_gate_does_not_commit_it() -> None:
    """S7.8: completion permits what the snapshot holds, but for that."""
    job = Gated()
    job.checkpoint()
    job.run.writers.held = True
    to_quarantine(job, 1)
    job.run.crash()
    job.job.options = {**job.job.options, "commit": "automatic"}
    job.again(RestoreFrom("latest"))
    job.checkpoint()
    assert rows_of(job, "quarantined") and rows_of(job, "committed")
    assert not set(rows_of(job, "quarantined")) & set(rows_of(job, "committed"))


def test_a_fork_takes_nothing_of_its_originals_quarantine() -> None:
    """S7.4, S7.8."""
    job = Gated()
    job.checkpoint()
    job.run.writers.held = True
    to_quarantine(job, 1)
    job.run.crash()
    path = job.job.layout.checkpoint(1, 1)
    fork = InProcessJob(job.job.build, job.job.options, "fork", "lineage-2", job.job.root)
    fork.submit(RestoreFrom("checkpoint", path=path)).pump(10)
    assert not rows_of(job, "quarantined") and rows_of(job, "staged")


class _Stubborn(CollectSink):
    quarantine = None  # type: ignore[assignment]


def stubborn(sink: str) -> Pipeline:
    p = Pipeline()
    source = DataGen(lambda numbers: {"v": numbers}, pa.schema([("v", pa.int64())]), splits=2, batch_rows=8)
    p.read(source, uid="numbers").write(_Stubborn(sink), uid="out")
    return p


def test_a_sink_that_cannot_says_so_and_the_job_goes_on() -> None:
    """S7.8: the checkpoint waits as before, for another word."""
    build: Callable[[str], Pipeline] = stubborn
    job = Gated(build)
    job.checkpoint()
    answer = to_quarantine(job, 1)
    assert (answer.ok, answer.code) == (False, "cannot_quarantine") and "'out'" in answer.message
    assert job.run.outcome is None and job.view.waiting == (1,) and job.log == []
    assert job.reject(1, "replay").ok


def test_a_rejection_of_what_is_in_front_takes_the_job_back_past_it() -> None:
    """S7.8: rows that went to quarantine come again, from input."""
    job = Gated()
    job.checkpoint(), job.checkpoint()
    to_quarantine(job, 2)
    assert rows_of(job, "quarantined")
    assert job.reject(1, "replay").ok
    job.run = job.job.rerun()
    job.run.pump(40)
    job.approve(job.checkpoint())
    committed = rows_of(job, "committed")
    assert set(rows_of(job, "quarantined")) <= set(committed)


def held_in_the_staging_folder(job: Gated, n: int) -> None:
    """The word is in the log, and nothing has moved when the run ends."""
    job.run.writers.held = True
    assert to_quarantine(job, n).ok
    assert rows_of(job, "staged") and not rows_of(job, "quarantined")


def test_a_savepoint_that_cannot_be_read_any_more_keeps_no_run_from_going_on_behind_the_word() -> None:
    """S7.8: what the run restores holds all of it."""
    job = Gated()
    job.checkpoint(), job.checkpoint()
    held_in_the_staging_folder(job, 2)
    job.run.writers.held = False
    job.checkpoint()
    saved = job.run.ask(ev.SnapshotRequest("savepoint", request_id="s"))
    assert saved is not None and saved.ok, saved
    job.job.store.replace(job.job.layout.metadata(saved.data["path"]), b"{")
    job.crash()
    assert rows_of(job, "quarantined")
    until_all_is_accounted_for(job)


@pytest.mark.parametrize("then", ["rerun", "relaunch"])
def test_going_back_in_front_of_the_word_moves_first_what_no_run_had_moved(then: str) -> None:
    """S7.8, S7.4: the run restores no handle of it, and would remove it as what failed runs left."""
    job = Gated(max_uncommitted_checkpoints=2, retained_checkpoints=1)
    job.checkpoint(), job.checkpoint()
    held_in_the_staging_folder(job, 2)
    assert job.reject(1, "replay").ok
    job.run.crash()
    if then == "relaunch":
        job.job.generation_log.append("status", {"status": "FAILED", "reason": "the host died"})
        job.run = job.job.relaunch()
    else:
        job.run = job.job.rerun()
    kept = rows_of(job, "quarantined")
    assert kept
    job.run.pump(40)
    job.approve(job.checkpoint())
    assert rows_of(job, "quarantined") == kept and set(kept) <= set(rows_of(job, "committed"))


def files_into(folder: Path) -> Callable[[str], Pipeline]:
    def build(_: str) -> Pipeline:
        p = Pipeline()
        source = DataGen(lambda numbers: {"v": numbers}, pa.schema([("v", pa.int64())]), splits=2, batch_rows=8)
        p.read(source, uid="numbers").write(Parquet(folder), uid="out")
        return p

    return build


def test_files_that_no_run_had_moved_are_in_quarantine_with_their_notes(tmp_path: Path) -> None:
    """S7.8: of both subtasks, at another parallelism too."""
    job = Gated(files_into(tmp_path / "out"))
    job.checkpoint(), job.checkpoint()
    before = {
        file: pq.read_table(file).column("v").to_pylist() for file in (tmp_path / "out").rglob("*--2--0.parquet.staged")
    }
    job.run.writers.held = True
    assert to_quarantine(job, 2).ok and job.reject(1, "replay").ok
    job.run.crash()
    job.job.options = {**job.job.options, "parallelism": 1}
    job.again(RestoreFrom("latest"))
    (kept,) = quarantined_data(job.job.store, job.job.layout.quarantine, 2)
    assert len(kept.files) == 2 and kept.rows is not None
    contents = [job.job.store.read(file.path.removeprefix(f"{job.job.store.url}/")) for file in kept.files]
    found = [pq.read_table(pa.BufferReader(content)).column("v").to_pylist() for content in contents]
    assert sum(map(len, found)) == kept.rows and all(rows in before.values() for rows in found)
    job.run.pump(200)
    job.approve(job.checkpoint())
    assert {n for rows in found for n in rows} <= set(pq.read_table(tmp_path / "out").column("v").to_pylist())


def test_a_rejection_that_stops_the_job_and_a_restore_in_front_of_all_lose_nothing_of_it() -> None:
    """S7.8, S2.3: neither the garbage of a generation_log nor the clean-up of a run gets there before the move."""
    job = Gated()
    job.approve(job.checkpoint())
    job.checkpoint(), job.checkpoint()
    held_in_the_staging_folder(job, 3)
    assert job.reject(2).ok
    job.run.crash()
    left = job.job.last_job
    assert left is not None and left.verdicts.pinned[-1:] == (3,)
    job.job.relaunch().crash()
    assert not {g.path for g in left.garbage()} & {left.verdicts.views[3].path}
    job.again(RestoreFrom("latest"))
    assert rows_of(job, "quarantined")
    job.approve(job.checkpoint())
    assert not job.job.last_job.verdicts.unmoved, "a run that took a snapshot has moved it"


def test_a_fresh_start_moves_it_too() -> None:
    """S7.8: of the lineage before, which nobody cleans up after."""
    job = Gated()
    job.checkpoint()
    held_in_the_staging_folder(job, 1)
    job.run.crash()
    job.job.lineage = "lineage-2"
    job.run = job.job.submit()
    assert rows_of(job, "quarantined") and not rows_of(job, "staged")


def test_a_cancelled_job_that_keeps_no_checkpoints_moves_it_before_they_go() -> None:
    """S7.8, S2.3."""
    job = Gated()
    job.checkpoint()
    held_in_the_staging_folder(job, 1)
    job.run.crash()
    left = job.job.last_job
    assert left is not None
    left.delete_checkpoints()
    assert rows_of(job, "quarantined") and not job.folders


def test_a_store_that_cannot_be_reached_keeps_the_run_from_cleaning_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.8: the next run tries again."""
    job = Gated()
    job.checkpoint(), job.checkpoint()
    held_in_the_staging_folder(job, 2)
    assert job.reject(1, "replay").ok
    job.run.crash()
    with monkeypatch.context() as broken:
        broken.setattr("tidegate.testing.collect_sink.CollectSink.quarantine", _unreachable)
        with pytest.raises(StoreError, match="could not move staged output"):
            job.job.rerun()
        left = job.job.last_job
        assert left is not None
        left.delete_checkpoints()
    assert rows_of(job, "staged") and job.folders == {"chk-2-g1"}
    job.run = job.job.rerun()
    assert rows_of(job, "quarantined")


def _unreachable(*_: object) -> None:
    raise OSError("no route to host")


def test_notes_tell_where_it_is() -> None:
    """S7.8: a sink without files notes nothing."""
    job = Gated()
    job.checkpoint()
    to_quarantine(job, 1)
    assert quarantined_data(job.job.store, job.job.layout.quarantine, 1) == ()
