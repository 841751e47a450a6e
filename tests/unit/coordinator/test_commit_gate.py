"""S7.8: the commit gate at the coordinator and around runs, and what waits as told by the log."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from coordinator_driver import WINDOW, Driver, of
from test_recovery import Log
from test_recovery import spec as plain_spec
from test_supervision import BOOM, Driven, command, farewell, statuses

from tidegate.channel.control.protocol import Durable, PauseSources, SubtaskCommitted, SubtaskRunning
from tidegate.coordinator import events as ev
from tidegate.coordinator.commits.commit_gate import CommitGate
from tidegate.coordinator.commits.ruling import decide_verdict
from tidegate.coordinator.events import Verdict
from tidegate.coordinator.garbage.abandoned_checkpoints import find_abandoned_folders
from tidegate.coordinator.job_run import RunEnded, RunRejected
from tidegate.coordinator.recovery.restore_point import choose_restore_point, end_status
from tidegate.coordinator.supervision.supervision_events import (
    AnswerCommand,
    BeginSupervision,
    CommandArrived,
    DeliverToRun,
    RecordFailure,
    RunTornDown,
    StartRun,
    WaitForSlots,
)
from tidegate.errors import SnapshotError
from tidegate.jobs.history.verdicts import find_verdicts
from tidegate.jobs.records import RestoreFrom, Spec
from tidegate.jobs.status import JobStatus, derive

ONE, TWO = (WINDOW, 0), (WINDOW, 1)
REJECTED = RunRejected("checkpoint 7 was rejected by anna")


def spec(number: int, restore: RestoreFrom | None = None, commit: str = "on_request", most: int = 3) -> Spec:
    return replace(plain_spec(number, restore), options={"commit": commit, "max_uncommitted_checkpoints": most})


def gated(**given: Any) -> Driver:
    d = Driver(interval_ms=None, gate=CommitGate(3, **given))
    d.start()
    return d


# ------------------------------------------------------------ the coordinator


def test_completion_tells_subtasks_and_permits_nothing() -> None:
    """S7.8."""
    d = gated()
    d.ask()
    actions = d.ack_all(1)
    assert of(actions, Durable) == [Durable(1, last=False)]
    assert of(actions, ev.NotifyComplete) == of(actions, ev.SendPermit) == []
    d.send(SubtaskCommitted(ONE, 1)), d.send(SubtaskCommitted(TWO, 1))
    assert of(d.actions, ev.RecordCommitted) == []


def test_an_approval_sends_the_permit_and_its_commit_is_recorded_when_all_have() -> None:
    """S7.8, S7.4."""
    d = gated()
    for n in (1, 2):
        d.ask()
        d.ack_all(n)
    assert d.send(ev.CheckpointApproved(2, 9)) == [ev.SendPermit(2, 9), ev.DeleteCheckpoint(1, "chk-1")]
    assert d.send(SubtaskCommitted(ONE, 2)) == []
    assert d.send(SubtaskCommitted(TWO, 2)) == [ev.RecordCommitted(2)]


def test_what_is_approved_after_the_last_snapshot_is_left_to_others() -> None:
    """S7.8: subtasks may have finished, and a commit that none does must not be recorded."""
    d = gated()
    d.ask("stop-savepoint", "stop", stop="suspend")
    assert of(d.ack_all(1), Durable) == [Durable(1, last=True)]
    assert of(d.send(ev.CheckpointApproved(1, 9)), ev.SendPermit) == []
    d.end_data(natural=False)
    actions = d.finish()
    assert of(actions, ev.RecordCommitted) == []
    assert of(actions, ev.EndRun) == [ev.EndRun("suspend", 1, "chk-1", "stop", (1,))]


def test_a_run_records_what_its_restore_committed() -> None:
    """S7.8."""
    d = Driver(interval_ms=None, gate=CommitGate(3, [4, 5], [5], approved=4, approved_at=8, _restored_with=4))
    assert d.send(SubtaskRunning((0, 0))) == []
    d.start()
    assert of(d.actions, ev.RecordCommitted) == [ev.RecordCommitted(4)] and of(d.actions, ev.SendPermit) == []


def test_a_permit_that_came_before_the_subtasks_is_sent_when_they_are_there() -> None:
    """S7.8."""
    d = Driver(interval_ms=None, gate=CommitGate(3, [4, 5], [4, 5]))
    assert d.send(ev.CheckpointApproved(4, 8)) == []
    d.start()
    assert of(d.actions, ev.SendPermit) == [ev.SendPermit(4, 8)]


def test_a_run_that_starts_at_the_end_takes_no_checkpoint_that_would_wait() -> None:
    """S7.8: the approval of the restored checkpoint ends the job, whatever the interval."""
    for at_end, claims in ((False, 1), (True, 0)):
        d = Driver(interval_ms=1000, gate=CommitGate(3, [4], [4], at_end=at_end))
        d.send(ev.CheckpointApproved(4, 8))
        d.start()
        assert len(of(d.tick(5_000), ev.ClaimCheckpoint)) == claims
    d.send(SubtaskCommitted(ONE, 4)), d.send(SubtaskCommitted(TWO, 4))
    d.end_data()
    assert of(d.finish(), ev.EndRun) == [ev.EndRun(None, None, None, None, ())]


def test_sources_pause_when_as_many_wait_as_may() -> None:
    """S7.8."""
    d = gated(line=[1], waiting=[1])
    d.next_id = 2
    for n in (2, 3):
        d.ask()
        d.ack_all(n)
    assert of(d.actions, PauseSources) == [PauseSources(True)] and d.coordinator.sources_paused
    (refused,) = of(d.ask(request_id="mine"), ev.CommandAnswer)
    assert (refused.ok, refused.code) == (False, "too_many_uncommitted")
    assert of(d.ask("savepoint", "sp"), ev.ClaimCheckpoint) != []
    assert of(d.send(ev.CheckpointApproved(1, 9)), PauseSources) == [PauseSources(False)]


def test_what_waits_stays_and_what_a_rejection_goes_back_to() -> None:
    """S2.3."""
    d = gated()
    for n in (1, 2, 3):
        d.ask()
        assert of(d.ack_all(n), ev.DeleteCheckpoint) == []
    assert of(d.send(ev.CheckpointApproved(2, 9)), ev.DeleteCheckpoint) == [ev.DeleteCheckpoint(1, "chk-1")]


# ------------------------------------------------------------ around runs


@pytest.mark.parametrize(("verb", "arguments"), [("commit", {}), ("reject", {"checkpoint_id": 3, "then": "replay"})])
def test_a_verdict_goes_to_the_run_or_to_the_next_one(verb: str, arguments: Any) -> None:
    """S7.8, S9.4."""
    word = Verdict("v", verb == "commit", arguments.get("checkpoint_id"), "anna", arguments.get("then", "stop"))
    arrived = CommandArrived(command("v", verb, **arguments))
    assert Driven().to_running().feed(arrived) == [DeliverToRun(word)]
    waits = Driven().to_pausing()
    assert waits.feed(arrived) == [] and StartRun((word,)) in waits.resume()


def test_a_rejection_stops_the_job_with_its_reason() -> None:
    """S7.8: who rejected what; it is no failure."""
    actions = Driven().to_running().feed(RunTornDown(REJECTED))
    assert statuses(actions) == ["STOPPED"] and actions[0].data == {"reason": "checkpoint 7 was rejected by anna"}
    assert [a for a in actions if isinstance(a, RecordFailure)] == []
    assert farewell(actions, "stop", "stop").code == "rejected"


def test_a_rejection_that_replays_goes_back_at_once_and_uses_up_no_restart() -> None:
    """S7.8, S9.1."""
    job = Driven(restart_attempts=1).to_running()
    for _ in range(3):
        actions = job.feed(RunTornDown(replace(REJECTED, then="replay")))
        assert statuses(actions) == ["RESTARTING"] and WaitForSlots() in actions
        job.to_running()
    assert statuses(job.feed(RunTornDown(BOOM))) == ["RESTARTING"]


def test_an_end_with_commits_outstanding_says_so() -> None:
    """S7.5, S7.8."""
    natural = Driven().to_running().feed(RunTornDown(RunEnded(None, None, None, None, (3, 4))))
    assert statuses(natural) == ["FINISHED_COMMIT_PENDING"] and natural[0].data["uncommitted"] == [3, 4]
    stopped = Driven().to_running().feed(RunTornDown(RunEnded("suspend", 4, "sp-4", "stop", (3, 4))))
    answer = farewell(stopped, "stop", "stop")
    assert statuses(stopped) == ["STOPPED"] and answer.ok and answer.code == "commits_pending"
    assert "checkpoints 3, 4" in answer.message and stopped[0].data["stop"]["uncommitted"] == [3, 4]
    again = Driven().feed(BeginSupervision(("STOPPED", stopped[0].data)))
    assert farewell(again, "stop", "stop").data == answer.data
    assert [a for a in again if isinstance(a, AnswerCommand)] == []


# ------------------------------------------------------------ the log


def waits(log: Log, specs: list[Spec]) -> tuple[int, ...]:
    return find_verdicts(specs, log.entries, specs[-1].number).waiting


def test_what_waits_is_completed_not_approved_and_of_the_line() -> None:
    """S7.8: approvals hold over submissions; an abandoned timeline waits for nothing."""
    log = Log().fence(1).complete(1).complete(2).complete(3, "savepoint")
    assert waits(log, [spec(1)]) == (1, 2)
    log.fence(2).complete(4)
    later = [spec(1), spec(2, RestoreFrom("checkpoint", checkpoint_id=1))]
    assert waits(log, later) == (1, 4)
    log.add("approve", checkpoint_id=4, by="anna")
    assert waits(log, later) == ()
    verdicts = find_verdicts(later, log.entries, 2)
    assert (verdicts.approved, verdicts.line, verdicts.unapproved) == (4, (1, 4), {2, 3})


def test_an_approval_covers_what_two_lines_have_in_common_and_no_more() -> None:
    """S7.8, S9.3."""
    log = Log().fence(1).complete(1).complete(2).complete(3).add("approve", checkpoint_id=3, by="anna").fence(2)
    back = [spec(1), spec(2, RestoreFrom("checkpoint", checkpoint_id=2))]
    assert find_verdicts(back, log.entries, 2).approved == 2
    fresh = [spec(1), spec(2)]
    assert find_verdicts(fresh, log.entries, 2).approved == 0


def test_what_is_approved_stays_until_it_is_committed() -> None:
    """S2.3, S7.8: also when nothing waits any more, and the job is cancelled and deletes its checkpoints."""
    log = Log().fence(1).complete(1).complete(2).add("approve", checkpoint_id=2, by="anna")
    assert find_verdicts([spec(1)], log.entries, 1).pinned == (2,)
    log.add("committed", checkpoint_id=2)
    assert find_verdicts([spec(1)], log.entries, 1).pinned == ()


def test_what_completed_without_a_gate_needs_no_verdict() -> None:
    """S7.8."""
    log = Log().fence(1).complete(1).fence(2).complete(2)
    assert waits(log, [spec(1, commit="automatic"), spec(2, RestoreFrom("latest"))]) == (2,)


def test_the_view_tells_what_waits_and_that_sources_pause() -> None:
    """S7.8: visibly."""
    log = Log().fence(1).complete(1).complete(2).add("status", status="RUNNING")
    view = derive([spec(1, most=2)], log.entries, None)
    assert view.waiting == (1, 2) and view.sources_paused and view.checkpoints[0].verdict == "waiting"
    log.add("approve", checkpoint_id=1, by="anna")
    view = derive([spec(1, most=2)], log.entries, None)
    assert (view.waiting, view.uncommitted, view.sources_paused) == ((2,), (1, 2), False)
    assert view.checkpoints[0].verdict == "approved"


def test_after_a_rejection_the_newest_in_front_of_it_is_where_a_run_starts() -> None:
    """S7.8, S9.3."""
    log = Log().fence(1).complete(1).complete(2).complete(3)
    log.add("reject", checkpoint_id=2, by="anna", then="replay")
    point = choose_restore_point(log.entries, [spec(1)], 1)
    assert point is not None and point.checkpoint_id == 1
    log.complete(4)
    point = choose_restore_point(log.entries, [spec(1)], 1)
    assert point is not None and point.checkpoint_id == 4
    assert find_verdicts([spec(1)], log.entries, 1).waiting == (1, 4)


def test_a_submission_cannot_begin_with_what_was_rejected() -> None:
    """S7.8."""
    log = Log().fence(1).complete(1).complete(2).add("reject", checkpoint_id=1, by="anna", then="stop").fence(2)
    specs = [spec(1), spec(2, RestoreFrom("checkpoint", checkpoint_id=2))]
    with pytest.raises(SnapshotError, match="checkpoint 2 was rejected, or was taken after"):
        choose_restore_point(log.entries, specs, 2)


@pytest.mark.parametrize("restore", [RestoreFrom("checkpoint", checkpoint_id=99), RestoreFrom("latest")])
def test_what_never_was_is_not_taken_for_rejected(restore: RestoreFrom) -> None:
    """S7.8, S9.3: a verdict elsewhere does not make a restore a fresh start, which would read everything again."""
    log = Log().fence(1).complete(1).add("reject", checkpoint_id=1, by="anna", then="stop").fence(2).fence(3)
    specs = [spec(1), spec(2), spec(3, restore)]
    with pytest.raises(SnapshotError, match="the decision log of the job has no record of"):
        choose_restore_point(log.entries, specs, 3)
    assert choose_restore_point(log.entries, [spec(1), spec(2, RestoreFrom("latest"))], 2) is None


def test_a_submission_that_was_to_stop_with_a_rejection_is_not_run_again() -> None:
    """S7.8: the driver died between the decision and the end."""
    log = Log().fence(1).complete(1).add("reject", checkpoint_id=1, by="anna", then="stop", command="mine").fence(1)
    ended = end_status(log.entries, 1)
    assert ended is not None and ended[0] == "STOPPED"
    actions = Driven().feed(BeginSupervision(ended))
    assert statuses(actions) == ["STOPPED"] and actions[0].data == {"reason": "checkpoint 1 was rejected by anna"}
    mine = farewell(actions, "mine", "reject")
    assert (mine.ok, mine.code, mine.data) == (True, "rejected", {"checkpoint_id": 1})
    assert [farewell(actions, "x", verb).ok for verb in ("reject", "stop")] == [False, False]
    assert farewell(actions, "x", "stop").code == "rejected"
    replayed = Log().fence(1).complete(1).add("reject", checkpoint_id=1, by="anna", then="replay").fence(1)
    assert end_status(replayed.entries, 1) is None
    pending = Log().fence(1).add("status", status=JobStatus.FINISHED_COMMIT_PENDING.value)
    assert end_status(pending.entries, 1) == ("FINISHED_COMMIT_PENDING", {})


def test_the_next_driver_keeps_what_waits_and_deletes_what_was_rejected() -> None:
    """S2.3."""
    log = Log().fence(1).complete(1).complete(2).complete(3).complete(4)
    log.add("approve", checkpoint_id=2, by="anna").add("reject", checkpoint_id=4, by="anna", then="replay")
    log.entries.append(replace(log.entries[0], number=len(log.entries) + 1, generation=2))
    folders = {f"job/chk-{n}" for n in range(1, 5)}
    gone = find_abandoned_folders(
        log.entries, folders, [spec(1)], spec_number=1, generation=2, retained=1, commits=True
    )
    assert [left.path for left in gone] == ["job/chk-1", "job/chk-4"]


@pytest.mark.parametrize("approves", [True, False])
def test_a_command_that_was_carried_out_is_answered_alike_by_the_next_driver(approves: bool) -> None:
    """S7.8, S9.4: whatever waits by then."""
    kind: Any = "approve" if approves else "reject"
    log = Log().fence(1).complete(1).complete(2)
    log.add(kind, checkpoint_id=2, by="anna", command="mine", then="replay").complete(3)
    outcome = decide_verdict(
        Verdict("mine", approves, None if approves else 2, "anna"), find_verdicts([spec(1)], log.entries, 1)
    )
    assert isinstance(outcome, ev.CommandAnswer) and outcome.ok and outcome.data["checkpoint_id"] == 2
