"""S7.8 in whole jobs: nothing is visible without an approval, an approval holds over restores, a rejection takes the
job back, and too much that waits pauses the sources."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders.sinks import new_sink_name

from tidegate.api.pipeline import Pipeline
from tidegate.channel.control.protocol import PauseSources
from tidegate.connectors.datagen import DataGen
from tidegate.connectors.files.sink.parquet import Parquet
from tidegate.connectors.interface import PollResult
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded, RunRejected
from tidegate.coordinator.recovery.restore_point import end_status
from tidegate.errors import PipelineError, SnapshotError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.staged_data import staged_data
from tidegate.jobs.history.verdicts import find_verdicts
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.status import derive
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

SCHEMA = pa.schema([("v", pa.int64())])
_ids = itertools.count(1)


def endless(sink: str, rows: int | None = None) -> Pipeline:
    p = Pipeline()
    source = DataGen(lambda numbers: {"v": numbers}, SCHEMA, rows=rows, splits=2, batch_rows=8)
    p.read(source, uid="numbers").write(CollectSink(sink), uid="out")
    return p


def bounded_beside_endless(sink: str) -> Pipeline:
    p = Pipeline()
    few = DataGen(lambda numbers: {"v": numbers}, SCHEMA, rows=40, splits=2, batch_rows=8)
    p.read(few, uid="few").write(CollectSink(sink), uid="out")
    more = DataGen(lambda numbers: {"v": numbers}, SCHEMA, splits=2, batch_rows=8)
    p.read(more, uid="more").write(CollectSink(f"{sink}-more"), uid="out-more")
    return p


class Gated:
    """A job behind a gate, its newest run, and its words."""

    def __init__(self, build: Callable[[str], Pipeline] = endless, *, rounds: int = 10, **options: Any) -> None:
        self.sink = new_sink_name()
        given = {"parallelism": 2, "commit": "on_request", **options}
        self.job = InProcessJob(lambda: build(self.sink), given)
        self.run: InProcessRun = self.job.submit()
        self.run.pump(rounds)

    def checkpoint(self) -> int:
        """Of more rows than before."""
        self.run.pump(6)
        answer = self.run.ask(ev.SnapshotRequest("checkpoint", request_id=f"c{next(_ids)}"))
        assert answer is not None and answer.ok, answer
        self.run.pump(10)
        return int(answer.data["checkpoint_id"])

    def say(self, approves: bool, n: int | None = None, then: ev.Then = "stop", id: str = "") -> ev.CommandAnswer:
        request_id = id or f"v{next(_ids)}"
        self.run.run.handle_command(ev.Verdict(request_id, approves, n, "the auditor", then))
        self.run.pump(20)
        return self.job.answers[request_id]

    def approve(self, n: int | None = None, id: str = "") -> ev.CommandAnswer:
        return self.say(True, n, id=id)

    def reject(self, n: int, then: ev.Then = "stop") -> ev.CommandAnswer:
        return self.say(False, n, then)

    def stop(self, mode: Any = "suspend") -> RunEnded:
        self.run.ask(ev.SnapshotRequest("stop-savepoint", request_id=f"s{next(_ids)}", stop=mode))
        assert isinstance(self.run.outcome, RunEnded)
        return self.run.outcome

    def crash(self) -> None:
        self.run.crash()
        self.again()

    def again(self, restore: RestoreFrom | None = None) -> None:
        """The same submission once more, or with `restore` a new one."""
        self.run = self.job.relaunch() if restore is None else self.job.submit(restore)
        self.run.pump(10)

    def refused(self, code: str = "snapshot") -> None:
        """As a driver says it of its submission."""
        self.job.generation_log.append("failure", {"message": "refused", "code": code})
        self.job.generation_log.append("status", {"status": "FAILED", "reason": "refused"})

    @property
    def log(self) -> list[tuple[str, int]]:
        kinds = ("approve", "reject", "committed")
        return [(d.kind, d.data["checkpoint_id"]) for d in self.job.log.read() if d.kind in kinds]

    @property
    def view(self) -> Any:
        return derive(self.job.specs, self.job.log.read(), None)

    @property
    def shown(self) -> int:
        """Rows that are visible; none twice."""
        values = [row["v"] for row in collected(self.sink).table().to_pylist()]
        assert len(values) == len(set(values))
        return len(values)

    @property
    def folders(self) -> set[str]:
        return set(self.job.store.list(self.job.layout.checkpoints))


def test_completion_permits_nothing_and_an_approval_commits_all_up_to_it() -> None:
    """S7.8."""
    job = Gated()
    assert [job.checkpoint() for _ in range(3)] == [1, 2, 3]
    assert job.shown == 0 and job.view.waiting == (1, 2, 3)
    answer = job.approve(2)
    assert (answer.ok, answer.code, answer.data["checkpoint_id"]) == (True, "approved", 2)
    two = job.shown
    assert two > 0 and job.log == [("approve", 2), ("committed", 2)]
    assert job.view.waiting == (3,) and job.view.checkpoint(1).committed and not job.view.checkpoint(3).committed
    job.approve()
    assert job.shown > two and job.view.waiting == () and job.log[-1] == ("committed", 3)


def test_the_same_word_again_is_answered_alike_and_decides_nothing() -> None:
    """S7.8: by content, and by the command's id even where the newest that waits has become another."""
    job = Gated()
    job.checkpoint(), job.checkpoint()
    assert job.approve(id="mine").data["checkpoint_id"] == 2
    job.checkpoint()
    assert job.approve(id="mine").data["checkpoint_id"] == 2
    assert job.approve(2).ok and job.approve(1).ok
    assert job.log == [("approve", 2), ("committed", 2)]


def test_what_cannot_be_approved_is_refused_with_its_reason() -> None:
    """S7.8, S2.4."""
    job = Gated()
    assert job.approve().code == "nothing_waits"
    one = job.checkpoint()
    savepoint = job.run.ask(ev.SnapshotRequest("savepoint", request_id="sp"))
    assert savepoint is not None and job.approve(int(savepoint.data["checkpoint_id"])).code == "savepoint"
    assert job.approve(99).code == "unknown_checkpoint"
    job.run.run.handle_command(ev.SnapshotRequest("checkpoint", request_id="slow"))
    assert job.approve(3).code in ("not_completed", "approved")
    job.approve(one)
    assert job.reject(one).code == "approved"


def test_a_job_without_a_gate_takes_no_verdicts() -> None:
    """S7.8."""
    job = Gated(commit="automatic")
    one = job.checkpoint()
    assert job.approve(one).code == "no_commit_gate" and job.shown > 0 and job.view.waiting == ()


def test_a_gate_with_nothing_to_hold_back_is_refused() -> None:
    """S7.8."""

    def one_phase(sink: str) -> Pipeline:
        p = Pipeline()
        source = DataGen(lambda numbers: {"v": numbers}, SCHEMA, splits=1, batch_rows=8)
        p.read(source, uid="numbers").write(CollectSink(sink, two_phase=False), uid="out")
        return p

    with pytest.raises(PipelineError, match="no sink of the pipeline commits in two phases.*out"):
        Gated(one_phase)


def test_what_waits_survives_a_crash_and_is_committed_by_a_later_approval() -> None:
    """S7.8, S7.4."""
    job = Gated()
    job.checkpoint(), job.checkpoint()
    job.crash()
    assert job.shown == 0 and job.view.waiting == (1, 2)
    assert job.approve(1).ok and job.shown > 0
    job.checkpoint()
    job.crash()
    before = job.shown
    assert job.approve().ok and job.shown > before and job.view.waiting == ()


def test_what_was_approved_when_a_run_died_is_committed_by_the_next() -> None:
    """S7.8, S7.4: the restore commits it, and it is recorded as committed."""
    job = Gated()
    job.checkpoint(), job.checkpoint()
    job.run.writers.held = True
    job.approve(1)
    assert job.shown == 0 and job.log == [("approve", 1)] and job.view.uncommitted == (1, 2)
    job.crash()
    assert job.shown > 0 and job.log == [("approve", 1), ("committed", 1)] and job.view.waiting == (2,)


def test_what_a_restored_savepoint_commits_is_recorded_of_the_checkpoint_in_front_of_it() -> None:
    """S7.8, S2.4: a savepoint between what is approved; said once, and nothing is left that waits for a commit."""
    job = Gated()
    job.checkpoint()
    savepoint = job.run.ask(ev.SnapshotRequest("savepoint", request_id="sp"))
    assert savepoint is not None and job.checkpoint() == 3
    job.run.writers.held = True
    job.approve(3)
    job.run.crash()
    job.again(RestoreFrom("savepoint", path=savepoint.data["path"], on_committed_after="accept_duplicates"))
    job.crash()
    assert job.shown > 0 and job.log == [("approve", 3), ("committed", 1)] and job.view.uncommitted == ()


def test_a_verdict_that_comes_before_every_subtask_runs_is_carried_out_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.8: nobody may hear a permit that is sent too early."""
    job = Gated()
    job.checkpoint()
    job.run.crash()
    with monkeypatch.context() as held:
        held.setattr(InProcessRun, "_deliver", lambda _: False)
        job.run = job.job.relaunch()
        job.run.run.handle_command(ev.Verdict("early", True, 1, "the auditor"))
        assert not job.run.slot._inbox, "no slot is there to hear it"
    job.run.pump(20)
    assert job.shown > 0 and job.log == [("approve", 1), ("committed", 1)]


def test_sources_pause_while_too_many_wait_and_go_on_with_a_verdict() -> None:
    """S7.8: visibly; savepoints and stops work meanwhile."""
    job = Gated(max_uncommitted_checkpoints=2, checkpoint_interval="1 s")

    def until_two_wait() -> None:
        for _ in range(20):
            job.run.tick(500)
            job.run.pump(10)
        assert len(job.view.waiting) == 2

    until_two_wait()
    assert job.run.run.coordinator.sources_paused
    read = job.run.slot.metrics().subtasks
    job.run.tick(5_000)
    job.run.pump(50)
    assert job.run.slot.metrics().subtasks == read and len(job.view.waiting) == 2
    refused = job.run.ask(ev.SnapshotRequest("checkpoint", request_id="more"))
    assert refused is not None and refused.code == "too_many_uncommitted"
    savepoint = job.run.ask(ev.SnapshotRequest("savepoint", request_id="sp"))
    assert savepoint is not None and savepoint.ok
    job.approve(1)
    assert not job.run.run.coordinator.sources_paused
    job.run.pump(50)
    assert job.run.slot.metrics().subtasks != read
    assert job.view.waiting == (2,), "the next periodic one comes with its tick, so that it holds something"
    until_two_wait()
    assert len(job.stop().uncommitted) == 3


def test_a_source_that_paused_is_not_idle_for_that() -> None:
    """S7.8, S4.4: at its first poll with nothing to give it would be, and the watermark run away from its rows."""
    job = Gated(max_uncommitted_checkpoints=1)
    (source, *_) = [s.source_input for s in job.run.slot._subtasks if s.source_input is not None]
    source._idle_after_ms = 30_000
    nothing = PollResult(state="nothing_now")
    job.checkpoint()
    job.run.tick(3_600_000)
    job.run.slot.post(PauseSources(False))
    job.run.slot._take_messages()
    assert not source.is_idle(nothing, job.job.now_ms)
    assert source.is_idle(nothing, job.job.now_ms + 30_000)
    source.pause("for a test", True)
    source.pause("for a test", False)
    assert source.is_idle(nothing, job.job.now_ms + 40_000), "idle until it gives something"


def test_a_restored_job_with_too_much_that_waits_pauses_at_once() -> None:
    """S7.8."""
    job = Gated(max_uncommitted_checkpoints=1)
    job.checkpoint()
    job.crash()
    assert job.run.run.coordinator.sources_paused


def test_a_stop_names_what_waits_and_a_restore_with_an_approval_commits_it() -> None:
    """S7.5, S7.8."""
    job = Gated()
    job.checkpoint()
    assert job.stop().uncommitted == (1, 2) and job.shown == 0
    job.again(RestoreFrom("latest"))
    assert job.shown == 0 and job.view.waiting == (1, 2)
    job.approve(2)
    assert job.shown > 0 and job.view.waiting == ()
    assert job.view.checkpoint(1).committed


def test_a_bounded_job_ends_with_its_commit_pending() -> None:
    """S7.8: what waits and what is approved can be told from the log, for whoever commits without the job."""
    job = Gated(lambda sink: endless(sink, 40))
    outcome = job.run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.uncommitted == (1,) and job.shown == 0
    verdicts = find_verdicts(job.job.specs, job.job.log.read(), 1)
    assert (verdicts.waiting, verdicts.uncommitted, verdicts.approved) == ((1,), (1,), 0)


def test_a_bounded_job_whose_end_was_approved_in_time_has_nothing_left_to_commit() -> None:
    """S7.8: the run that restores the final snapshot commits it."""
    job = Gated(lambda sink: endless(sink, 40), rounds=0)
    job.run.until(lambda: job.view.waiting == (1,))
    assert job.approve(1).ok and job.shown == 0
    job.crash()
    outcome = job.run.to_end()
    assert job.shown == 40 and ("committed", 1) in job.log
    assert isinstance(outcome, RunEnded) and outcome.uncommitted == ()


@pytest.mark.parametrize("when", ["before", "after", "never"])
def test_a_job_that_is_started_again_at_its_end_has_no_more_that_waits(
    when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.8, S7.3: there is nothing to take another final snapshot of, which would want a verdict in its turn. What is
    approved when subtasks may have finished is recorded and left to others."""
    job = Gated(lambda sink: endless(sink, 40))
    job.run.to_end()
    with monkeypatch.context() as held:
        held.setattr(InProcessRun, "_deliver", lambda _: False)
        job.run = job.job.submit(RestoreFrom("latest"))
    while when == "after" and not job.run.slot.is_over:
        job.run._deliver()
        job.run.slot.run_round()
    if when != "never":
        job.run.run.handle_command(ev.Verdict("v", True, 1, "the auditor"))
    outcome = job.run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.uncommitted == (() if when == "before" else (1,))
    assert job.shown == (40 if when == "before" else 0) and job.view.waiting == ((1,) if when == "never" else ())
    if when == "after":
        job.again(RestoreFrom("latest"))
        assert job.shown == 40 and job.view.uncommitted == ()


def test_a_sink_that_has_ended_stays_while_what_it_wrote_waits() -> None:
    """S7.8, S6.1: the rest of the job goes on, and with the sink its transactions would be forgotten."""
    job = Gated(bounded_beside_endless)
    for _ in range(4):
        job.checkpoint()
    job.crash()
    job.checkpoint()
    assert job.shown == 0
    job.approve()
    assert job.shown == 40
    job.crash()
    job.checkpoint()
    job.approve()
    assert job.shown == 40


def test_a_rejection_takes_the_job_back_to_what_is_in_front_of_it() -> None:
    """S7.8: replay; what is rejected is never committed, and its rows come again."""
    job = Gated()
    job.checkpoint()
    job.approve(1)
    first = job.shown
    job.checkpoint(), job.checkpoint()
    assert job.reject(2, "replay").data["rejected"] == [2, 3]
    assert isinstance(job.run.outcome, RunRejected) and job.run.outcome.then == "replay"
    job.run.run.shut_down("rejected")
    job.again()
    assert job.run.run.restored_from is not None and "chk-1-" in job.run.run.restored_from
    assert job.approve(3).code == "rejected" and job.reject(2).ok
    assert job.view.checkpoint(2).verdict == "rejected" and job.view.waiting == ()
    assert job.checkpoint() == 4 and job.shown == first
    job.approve()
    assert job.shown > first and job.view.checkpoint(4).committed and not job.view.checkpoint(3).committed


def test_a_rejection_of_all_there_is_starts_from_the_beginning() -> None:
    """S7.8."""
    job = Gated()
    job.checkpoint()
    job.reject(1, "replay")
    job.run.run.shut_down("rejected")
    job.again()
    assert job.run.run.restored_from is None and collected(job.sink).staged == {}
    job.checkpoint()
    job.approve()
    assert job.shown > 0


def test_a_rejection_that_stops_the_job_ends_its_submission() -> None:
    """S7.8: also when the driver died before it said so; the next submission goes on from what is in front."""
    job = Gated()
    job.checkpoint()
    job.approve()
    job.checkpoint()
    job.reject(2)
    assert isinstance(job.run.outcome, RunRejected) and job.run.outcome.then == "stop"
    status = end_status(job.job.log.read(), 1)
    assert status is not None and status[0] == "STOPPED" and "checkpoint 2 was rejected by the auditor" in str(status)
    with pytest.raises(SnapshotError, match="checkpoint 2 was rejected"):
        job.job.submit(RestoreFrom("checkpoint", checkpoint_id=2))
    job.again(RestoreFrom("latest"))
    assert job.run.run.restored_from is not None and "chk-1-" in job.run.run.restored_from


def test_what_was_restored_from_something_rejected_is_rejected_with_it() -> None:
    """S7.8, S9.3: over submissions; the submission goes back behind what it was restored from."""
    job = Gated()
    job.checkpoint()
    job.approve()
    job.checkpoint()
    job.stop()
    job.again(RestoreFrom("checkpoint", checkpoint_id=2))
    assert job.checkpoint() == 4
    assert job.reject(2, "replay").data["rejected"] == [2, 4]
    job.run.run.shut_down("rejected")
    job.again()
    assert job.run.run.restored_from is not None and "chk-1-" in job.run.run.restored_from
    assert find_verdicts(job.job.specs, job.job.log.read(), 2).rejected >= {2, 3, 4}


def test_a_stop_is_not_replayed() -> None:
    """S7.8: once its savepoint is complete the job is ending."""
    job = Gated()
    job.checkpoint()
    job.run.writers.held = False
    job.run.run.handle_command(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    job.run.until(lambda: any(v.kind == "stop-savepoint" and v.status == "completed" for v in job.view.checkpoints))
    assert job.run.outcome is None
    assert job.reject(1, "replay").code == "job_stops"


def test_a_checkpoint_that_waits_is_never_dropped_nor_what_a_rejection_goes_back_to() -> None:
    """S2.3."""
    job = Gated()
    for _ in range(4):
        job.checkpoint()
    job.approve(1)
    for _ in range(2):
        job.checkpoint()
    assert {int(name.split("-")[1]) for name in job.folders} == {1, 2, 3, 4, 5, 6}
    job.approve(5)
    assert {int(name.split("-")[1]) for name in job.folders} == {5, 6}
    job.stop()
    assert {int(name.split("-")[1]) for name in job.folders} == {5, 6}


def test_the_gate_cannot_be_got_around_by_a_submission_without_one() -> None:
    """S7.8."""
    job = Gated()
    job.checkpoint()
    job.stop()
    job.job.options = {"parallelism": 2}
    with pytest.raises(SnapshotError, match="wait for approval or rejection.*on_request"):
        job.job.submit(RestoreFrom("latest"))


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize(("commit", "said"), [("automatic", "wait for approval"), ("on_request", "was rejected")])
def test_a_copy_of_a_snapshot_is_no_way_around_a_verdict(commit: str, said: str, restored: bool) -> None:
    """S7.8: the log knows its id, wherever the folder lies, and what it comes from, of earlier submissions too."""
    job = Gated()
    job.checkpoint()
    if restored:
        job.run.crash()
        job.again(RestoreFrom("latest"))
    savepoint = job.run.ask(ev.SnapshotRequest("savepoint", request_id="sp"))
    assert savepoint is not None
    copy = "elsewhere/copied"
    for name in job.job.store.list(savepoint.data["path"]):
        job.job.store.create(f"{copy}/{name}", job.job.store.read(f"{savepoint.data['path']}/{name}"))
    if commit == "on_request":
        job.reject(1)
    else:
        job.run.crash()
    job.job.options = {"parallelism": 2, "commit": commit}
    with pytest.raises(SnapshotError, match=said):
        job.job.submit(RestoreFrom("savepoint", path=copy))


def test_going_back_past_what_was_never_approved_is_no_rewind() -> None:
    """S9.3, S7.8: nothing of it is committed; past something approved it is."""
    job = Gated(retained_checkpoints=5)
    job.checkpoint(), job.checkpoint()
    job.approve(1)
    job.stop()
    job.again(RestoreFrom("checkpoint", checkpoint_id=1))
    job.checkpoint()
    job.approve()
    assert job.approve(2).code == "abandoned"
    job.run.crash()
    with pytest.raises(SnapshotError, match=r"checkpoints \[4\] were completed after"):
        job.job.submit(RestoreFrom("checkpoint", checkpoint_id=1))


def test_snapshots_tell_what_sinks_have_staged(tmp_path: Path) -> None:
    """S7.8: in the metadata, of every subtask, over restores; a job without a gate tells nothing."""

    def build(_: str) -> Pipeline:
        p = Pipeline()
        source = DataGen(lambda numbers: {"v": numbers}, SCHEMA, splits=2, batch_rows=8)
        p.read(source, uid="numbers").write(Parquet(tmp_path / "out"), uid="out")
        return p

    gated = Gated(build, state_size_threshold="0 B")
    gated.checkpoint()
    gated.run.crash()
    gated.run = gated.job.rerun()
    newest = gated.checkpoint()
    client = SimpleNamespace(
        specs=lambda: tuple(gated.job.specs),
        decisions=gated.job.log.read,
        store=gated.job.store,
        storage_options={},
        job_id="job",
    )
    staged = staged_data(cast(JobClient, client), newest)
    assert len(staged) == 2 and all(len(data.paths) >= 2 for data in staged)
    found = [n for data in staged for n in pq.read_table(list(data.paths)).column("v").to_pylist()]
    assert sorted(found) == list(range(len(found))) and len(found) == sum(data.rows or 0 for data in staged)


def test_what_an_earlier_restore_went_back_in_front_of_is_no_restore_point_any_more() -> None:
    """S7.4, S7.8: what had waited there was removed; an approval would find nothing to publish."""
    job = Gated(retained_checkpoints=5)
    job.checkpoint(), job.checkpoint(), job.checkpoint()
    job.stop()
    job.again(RestoreFrom("checkpoint", checkpoint_id=1))
    job.run.crash()
    path = next(v.path for v in job.view.checkpoints if v.checkpoint_id == 4)
    with pytest.raises(
        SnapshotError, match=r"staged output of checkpoints \[2, 3, 4\], which has been deleted.*submission 2"
    ):
        job.again(RestoreFrom("savepoint", path=path))
    job.again(RestoreFrom("checkpoint", checkpoint_id=1))
    assert job.approve().ok and job.shown


def test_what_an_earlier_restore_went_on_from_may_be_restored_again() -> None:
    """S7.8: nothing in front of the snapshot was abandoned."""
    job = Gated(retained_checkpoints=5)
    job.checkpoint(), job.checkpoint()
    job.stop()
    job.again(RestoreFrom("latest"))
    job.checkpoint()
    job.run.crash()
    job.again(RestoreFrom("checkpoint", checkpoint_id=3))
    assert job.view.waiting == (1, 2, 3)
    assert job.approve().ok and job.shown


def test_a_savepoint_whose_staged_data_was_abandoned_may_not_be_restored() -> None:
    """S7.8, S7.4: no verdict is ever given on it, but a later approval would permit what it holds, and find it lost."""
    job = Gated(retained_checkpoints=5)
    job.approve(job.checkpoint())
    job.run.pump(6)
    saved = job.run.ask(ev.SnapshotRequest("savepoint", request_id="saved"))
    assert saved is not None and saved.data["checkpoint_id"] == 2
    job.run.crash()
    job.again(RestoreFrom("checkpoint", checkpoint_id=1))
    job.checkpoint()
    job.run.crash()
    with pytest.raises(
        SnapshotError, match=r"checkpoint 2 needs the staged output of checkpoints \[2\], which has been deleted"
    ):
        job.again(RestoreFrom("savepoint", checkpoint_id=2))


@pytest.mark.parametrize("code", ["snapshot", "pipeline", ""])
def test_a_submission_that_was_refused_abandons_nothing(code: str) -> None:
    """S7.8, S9.3: going back was refused before a slot started, so that what waits is still there. One that failed in
    another way may have removed it."""
    job = Gated(retained_checkpoints=5)
    job.checkpoint(), job.checkpoint(), job.checkpoint()
    job.approve(2)
    job.run.crash()
    with pytest.raises(SnapshotError, match=r"checkpoints \[2\] were completed after"):
        job.again(RestoreFrom("checkpoint", checkpoint_id=1))
    job.refused(code)
    if not code:
        with pytest.raises(SnapshotError, match="which has been deleted"):
            job.again(RestoreFrom("checkpoint", checkpoint_id=3))
        return
    job.again(RestoreFrom("checkpoint", checkpoint_id=3))
    shown = job.shown
    assert job.view.waiting == (3,) and shown
    assert job.approve().ok and job.shown > shown


@pytest.mark.parametrize("how", ["run", "driver"])
def test_a_savepoint_that_its_own_job_did_not_go_on_from_may_not_be_restored(how: str) -> None:
    """S7.8, S2.4: it is no recovery point, so that the next run removed what it had staged."""
    job = Gated(retained_checkpoints=5)
    job.approve(job.checkpoint())
    job.run.pump(6)
    saved = job.run.ask(ev.SnapshotRequest("savepoint", request_id="saved"))
    assert saved is not None and saved.ok
    job.run.crash()
    job.run = job.job.rerun() if how == "run" else job.job.relaunch()
    job.run.pump(10)
    job.checkpoint()
    job.run.crash()
    with pytest.raises(SnapshotError, match=r"staged output of checkpoints \[2\], which has been deleted"):
        job.again(RestoreFrom("savepoint", checkpoint_id=2))
    job.refused()
    job.again(RestoreFrom("checkpoint", checkpoint_id=3))
    assert job.approve(3).ok


def test_a_savepoint_whose_run_completed_a_checkpoint_behind_it_may_be_restored() -> None:
    """S7.8: that one holds what it had staged, and so kept it."""
    job = Gated(retained_checkpoints=5)
    job.approve(job.checkpoint())
    job.run.pump(6)
    saved = job.run.ask(ev.SnapshotRequest("savepoint", request_id="saved"))
    assert saved is not None and saved.ok
    job.checkpoint()
    job.crash()
    job.checkpoint()
    job.run.crash()
    job.again(RestoreFrom("savepoint", checkpoint_id=2))
    shown = job.shown
    job.approve(job.checkpoint())
    assert job.shown > shown


def test_a_savepoint_is_no_back_door() -> None:
    """S7.4, S7.8: restored without a gate it would commit its own part, which nobody has approved."""
    job = Gated(retained_checkpoints=5)
    job.approve(job.checkpoint())
    job.run.pump(6)
    saved = job.run.ask(ev.SnapshotRequest("savepoint", request_id="saved"))
    assert saved is not None and saved.ok
    job.run.crash()
    shown = job.shown
    job.job.options = {**job.job.options, "commit": "automatic"}
    with pytest.raises(SnapshotError, match=r"checkpoints \[2\] wait for approval"):
        job.again(RestoreFrom("savepoint", checkpoint_id=2))
    assert job.shown == shown
    job.job.options = {**job.job.options, "commit": "on_request"}
    job.again(RestoreFrom("savepoint", checkpoint_id=2))
    job.approve(job.checkpoint())
    assert job.shown > shown
