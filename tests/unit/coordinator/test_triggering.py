"""S1.1-S1.3: which requests start, wait or are refused, in which order the checks come, and what is counted."""

from __future__ import annotations

from typing import Any

import pytest
from coordinator_driver import ALL, SOURCE, WINDOW, Driver, of

from tidegate.channel.control.protocol import SubtaskFinished, SubtaskRunning, Trigger
from tidegate.coordinator import events as ev
from tidegate.coordinator.checkpointing.retention import MAX_OVERDUE_DELETIONS
from tidegate.coordinator.checkpointing.snapshot_requests import RequestQueue
from tidegate.coordinator.checkpointing.trigger import (
    DropRequest,
    KeepWaiting,
    RefuseRequest,
    StartSnapshot,
    TriggerConditions,
    admit_request,
    decide_start,
)
from tidegate.coordinator.events import SnapshotRequest

PERIODIC = SnapshotRequest("checkpoint", periodic=True)
MINE = SnapshotRequest("checkpoint", request_id="mine")
SAVEPOINT = SnapshotRequest("savepoint", request_id="sp")
FINAL = SnapshotRequest("final")
WORST = {
    "shut_down": True,
    "commits_only": True,
    "checkpointing_off": True,
    "periodic_on": False,
    "periodic_queued": True,
}
CURES = ("shut_down", "commits_only", "checkpointing_off", "periodic_on", "periodic_queued")


@pytest.mark.parametrize(
    ("cured", "code"),
    [
        (0, "shut_down"),
        (1, "job_ended"),
        (2, "checkpointing_off"),
        (3, "periodic_off"),
        (4, "periodic_queued"),
        (5, None),
    ],
)
def test_of_several_reasons_to_refuse_a_request_the_first_one_counts(cured: int, code: str | None) -> None:
    """S1.2: the order of the checks."""
    facts = {**WORST, **{name: name == "periodic_on" for name in CURES[:cured]}}
    refusal = admit_request(PERIODIC, TriggerConditions(**facts))
    assert (refusal.code if refusal is not None else None) == code


def test_a_users_request_is_not_refused_for_what_concerns_the_periodic_scheduler() -> None:
    """S1.2."""
    assert admit_request(MINE, TriggerConditions(periodic_on=False, periodic_queued=True)) is None


@pytest.mark.parametrize(
    ("request_", "facts", "verdict"),
    [
        (MINE, {}, StartSnapshot()),
        (MINE, {"claiming": True}, KeepWaiting("claiming")),
        (MINE, {"ending": True}, KeepWaiting("ending")),
        (SAVEPOINT, {"ending": True}, KeepWaiting("ending")),
        (SAVEPOINT, {"ending": True, "only_final": True}, StartSnapshot()),
        (MINE, {"ending": True, "only_final": True}, KeepWaiting("ending")),
        (MINE, {"deletes_too_slowly": True}, KeepWaiting("deletions")),
        (PERIODIC, {"deletes_too_slowly": True}, KeepWaiting("deletions")),
        (SAVEPOINT, {"deletes_too_slowly": True}, StartSnapshot()),
        (FINAL, {"deletes_too_slowly": True, "all_ended": True}, StartSnapshot()),
        (MINE, {"pending": 2, "max_concurrent": 2}, KeepWaiting("max_concurrent")),
        (MINE, {"pending": 1, "max_concurrent": 2}, StartSnapshot()),
        (SAVEPOINT, {"pending": 9}, StartSnapshot()),
        (PERIODIC, {"pause_ends_ms": 101}, KeepWaiting("min_pause", 101)),
        (PERIODIC, {"pause_ends_ms": 100}, StartSnapshot()),
        (MINE, {"pause_ends_ms": 101}, StartSnapshot()),
        (SAVEPOINT, {"pause_ends_ms": 101}, StartSnapshot()),
        (FINAL, {"pause_ends_ms": 101, "all_ended": True}, StartSnapshot()),
        (FINAL, {"all_ended": False}, DropRequest()),
        (MINE, {"all_up": False}, KeepWaiting("not_all_required_subtasks_running")),
        (SAVEPOINT, {"all_up": False}, KeepWaiting("not_all_required_subtasks_running")),
        (PERIODIC, {"pending": 1, "pause_ends_ms": 101, "all_up": False}, KeepWaiting("max_concurrent")),
        (PERIODIC, {"pause_ends_ms": 101, "all_up": False}, KeepWaiting("min_pause", 101)),
    ],
)
def test_what_becomes_of_a_waiting_request(request_: SnapshotRequest, facts: dict[str, Any], verdict: object) -> None:
    """S1.2, S1.3: at 100 ms."""
    assert decide_start(request_, TriggerConditions(**facts), 100) == verdict


def test_a_periodic_checkpoint_is_dropped_while_a_required_subtask_is_not_up() -> None:
    """S1.3."""
    verdict = decide_start(PERIODIC, TriggerConditions(all_up=False), 0)
    assert isinstance(verdict, RefuseRequest) and verdict.code == "not_all_required_subtasks_running"


def test_a_periodic_request_before_the_job_runs_finds_the_scheduler_off() -> None:
    """S1.1, S1.2."""
    d = Driver()
    d.send(SubtaskRunning((SOURCE, 0)))
    assert d.send(ev.SnapshotRequested(PERIODIC)) == []
    assert d.coordinator.refused == {"periodic_off": 1}


def test_no_periodic_checkpoint_is_asked_for_while_the_job_stops() -> None:
    """S1.1: RUNNING alone has the scheduler on."""
    d = Driver()
    d.start()
    d.ask("stop-savepoint", "stop", stop="suspend")
    assert of(d.tick(1000), ev.ClaimCheckpoint) == []
    assert d.coordinator.refused == {"periodic_off": 1}


def test_ticks_while_a_periodic_request_waits_are_refused_and_counted() -> None:
    """S1.2: at most one waits."""
    d = Driver()
    d.start()
    d.tick(1000)
    for _ in range(3):
        d.tick(1000)
    assert d.coordinator.refused == {"periodic_queued": 2}
    assert [t.checkpoint_id for t in of(d.ack_all(1), Trigger)] == [2]
    assert of(d.ack_all(2), ev.ClaimCheckpoint) == []


def test_checkpoints_wait_while_too_many_retired_ones_are_not_deleted() -> None:
    """S2.3: a slow store piles up nothing without limit; savepoints, which nobody deletes, are taken all the same."""
    d = Driver()
    d.start()
    d.send(ev.DeletionsOverdue(MAX_OVERDUE_DELETIONS - 1))
    assert [t.checkpoint_id for t in of(d.tick(1000), Trigger)] == [1]
    d.send(ev.DeletionsOverdue(MAX_OVERDUE_DELETIONS))
    d.ack_all(1)
    assert of(d.tick(1000) + d.ask("checkpoint", "mine") + d.tick(1000), ev.ClaimCheckpoint) == []
    assert d.coordinator.waits_for_deletions == MAX_OVERDUE_DELETIONS
    assert [t.kind for t in of(d.ask("savepoint", "sp"), Trigger)] == ["savepoint"]
    d.ack_all(2)
    assert [t.checkpoint_id for t in of(d.send(ev.DeletionsOverdue(0)), Trigger)] == [3]
    assert d.coordinator.waits_for_deletions == 0


def test_a_request_after_the_end_is_refused_as_shut_down() -> None:
    """S1.2."""
    d = Driver(interval_ms=None)
    d.start()
    d.finish()
    (answer,) = of(d.ask("savepoint", "late"), ev.CommandAnswer)
    assert (answer.ok, answer.code) == (False, "shut_down")
    assert d.coordinator.refused == {"shut_down": 1}


def test_a_users_request_waits_for_subtasks_to_come_up_and_over_a_restart() -> None:
    """S1.3: a retry of its caller finds it."""
    d = Driver(interval_ms=None)
    d.send(SubtaskRunning((SOURCE, 0)))
    assert d.ask("checkpoint", "mine") == []
    _, again = d.coordinator.shut_down("a slot died")
    assert [r.request_id for r in again] == ["mine"]
    d = Driver(interval_ms=None)
    d.send(ev.SnapshotRequested(again[0]))
    d.start()
    assert [a.request_id for a in of(d.ack_all(1), ev.CommandAnswer)] == ["mine"]


def test_a_savepoint_that_was_pending_when_the_run_failed_is_taken_again() -> None:
    """S1.3, S9.1."""
    d = Driver(interval_ms=None)
    d.start()
    d.ask("savepoint", "sp", path="s3://bucket/sp")
    actions, again = d.coordinator.shut_down("a slot died")
    assert [(a.code, a.counts) for a in of(actions, ev.SendAbort)] == [("shutdown", False)]
    assert again == [SnapshotRequest("savepoint", request_id="sp", path="s3://bucket/sp")]


def test_the_pause_counts_from_the_completion_not_from_the_trigger() -> None:
    """S1.2."""
    d = Driver(min_pause_ms=3_000, timeout_ms=60_000)
    d.start()
    d.tick(1000)
    d.now = 6_000
    d.ack_all(1)
    assert of(d.tick(2_999), ev.ClaimCheckpoint) == []
    assert d.coordinator.next_wake_ms() == 9_000
    assert of(d.tick(1), ev.ClaimCheckpoint) != []


def test_a_refused_savepoint_in_a_full_queue_is_not_the_one_that_ranks_higher() -> None:
    """S1.2: final before user before periodic, savepoint before checkpoint; the last in rank falls out."""
    queue = RequestQueue(2)
    assert queue.add(PERIODIC) is None and queue.add(MINE) is None
    assert queue.has_periodic()
    assert queue.add(SAVEPOINT) is PERIODIC
    assert not queue.has_periodic()
    assert queue.add(FINAL) is MINE
    assert queue.add(MINE) is MINE
    assert queue.savepoints() == [SAVEPOINT]
    assert queue.drain() == [FINAL, SAVEPOINT]
    assert queue.savepoints() == [] and len(queue) == 0


def test_requests_of_one_rank_keep_their_order() -> None:
    """S1.2."""
    queue = RequestQueue(10)
    asked = [SnapshotRequest("checkpoint", request_id=str(n)) for n in range(5)]
    for request in asked:
        queue.add(request)
    queue.take(asked[2])
    assert queue.drain() == [asked[0], asked[1], asked[3], asked[4]]


def test_too_many_requests_are_counted_with_the_others() -> None:
    """S1.2."""
    d = Driver(max_queued=1, interval_ms=None)
    d.ask("checkpoint", "first")
    d.ask("checkpoint", "second")
    (answer,) = of(d.ask("savepoint", "third"), ev.CommandAnswer)
    assert answer.request_id == "first"
    assert d.coordinator.refused == {"too_many_requests": 2}


def test_a_claim_that_fails_is_answered_and_counts_as_a_failure_but_not_of_a_savepoint() -> None:
    """S1.4, S2.2: it is I/O."""
    d = Driver(interval_ms=None)
    d.start()
    d.claims_fail = True
    actions = d.ask("savepoint", "sp")
    assert [a.code for a in of(actions, ev.CommandAnswer)] == ["claim_failed"] and of(actions, ev.FailRun) == []
    actions = d.ask("checkpoint", "mine")
    assert [a.code for a in of(actions, ev.CommandAnswer)] == ["claim_failed"] and len(of(actions, ev.FailRun)) == 1


def test_the_location_comes_before_the_trigger_and_the_plan_is_as_of_then() -> None:
    """S1.3-S1.5: what finishes while the id is claimed is not waited for."""
    d = Driver(interval_ms=None)
    d.start()
    (claim,) = d.coordinator.handle(ev.SnapshotRequested(MINE), 0)
    assert claim == ev.ClaimCheckpoint(MINE)
    d.send(SubtaskFinished((SOURCE, 0)))
    (trigger,) = d.coordinator.handle(ev.LocationReady(1, "chk-1"), 0)
    assert trigger.subtasks == ((SOURCE, 1),)
    for subtask in ALL[1:-1]:
        d.ack(subtask, 1)
    assert of(d.ack((WINDOW, 1), 1), ev.NotifyComplete) != []


def test_a_job_without_snapshots_refuses_every_request_and_ends_without_a_final_one() -> None:
    """S1.2, S7.3: checkpoint_mode off."""
    d = Driver(enabled=False)
    d.start()
    actions = d.tick(5_000)
    for kind, request_id in (("checkpoint", "c"), ("savepoint", "s"), ("stop-savepoint", "t")):
        (answer,) = of(d.ask(kind, request_id), ev.CommandAnswer)
        assert (answer.ok, answer.code) == (False, "checkpointing_off") and "Cancel the job" in answer.message
    actions += d.end_data()
    assert d.coordinator.next_wake_ms() is None
    actions += d.finish()
    assert of(actions, ev.ClaimCheckpoint) == []
    assert of(actions, ev.EndRun) == [ev.EndRun(None, None, None)]
