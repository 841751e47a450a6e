"""S1.2, S7.3, S7.7: what the coordinator starts, and does not start, while a job ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tidegate.channel.control.protocol import (
    Acknowledged,
    Declined,
    LetFinish,
    SubtaskEndedData,
    SubtaskFinished,
    SubtaskRunning,
    Trigger,
)
from tidegate.coordinator import events as ev
from tidegate.coordinator.coordinator import Coordinator, CoordinatorOptions
from tidegate.coordinator.stop.final_snapshot import FINAL_RETRY_MS
from tidegate.coordinator.topology import ChainShape, Topology

SOURCE, SINK = 0, 1
TOPOLOGY = Topology(
    1, (ChainShape(SOURCE, ("src",), (), True, False), ChainShape(SINK, ("out",), ((SOURCE, True),), False, True))
)


ONE_PHASE = Topology(1, tuple(replace(chain, commits=False) for chain in TOPOLOGY.chains))


class Run:
    def __init__(self, commit_only: int | None = None, topology: Topology = TOPOLOGY, **options: Any) -> None:
        given: dict[str, Any] = {
            "interval_ms": None,
            "min_pause_ms": 0,
            "timeout_ms": 10_000,
            "max_concurrent": 1,
            "max_queued": 10,
            "tolerable_failures": 5,
            "retained": 1,
        }
        self.coordinator = Coordinator(
            topology,
            CoordinatorOptions(**{**given, **options}),
            run_id="run",
            first_delay_ms=1000,
            commit_only=commit_only,
        )
        self.now, self.next_id, self.claims_fail = 0, 1, False
        for subtask in TOPOLOGY.subtasks():
            self.send(SubtaskRunning(subtask))

    def send(self, event: ev.Event) -> list[ev.Action]:
        out: list[ev.Action] = []
        pending = [event]
        while pending:
            for action in self.coordinator.handle(pending.pop(0), self.now):
                out.append(action)
                if isinstance(action, ev.ClaimCheckpoint) and self.claims_fail:
                    pending.append(ev.ClaimFailed("the store is away"))
                elif isinstance(action, ev.ClaimCheckpoint):
                    pending.append(ev.LocationReady(self.next_id, f"chk-{self.next_id}"))
                    self.next_id += 1
                if isinstance(action, ev.CompleteCheckpoint):
                    pending.append(ev.CompletionDurable(action.checkpoint_id, 100 + action.checkpoint_id))
        return out

    def ask(self, kind: Any, request_id: str, **kwargs: Any) -> list[ev.Action]:
        return self.send(ev.SnapshotRequested(ev.SnapshotRequest(kind, request_id=request_id, **kwargs)))

    def end_data(self) -> list[ev.Action]:
        out: list[ev.Action] = []
        for subtask in TOPOLOGY.subtasks():
            out += self.send(SubtaskEndedData(subtask, True))
        return out

    def ack_all(self, n: int) -> list[ev.Action]:
        return [a for s in TOPOLOGY.subtasks() for a in self.send(Acknowledged(s, n, "run"))]


def of(actions: list[ev.Action], kind: type) -> list[Any]:
    return [a for a in actions if isinstance(a, kind)]


def test_no_savepoint_is_triggered_behind_a_stop_on_its_way() -> None:
    run = Run()
    run.ask("stop-savepoint", "stop", stop="drain")
    assert of(run.ask("savepoint", "sp"), Trigger) == []
    run.ack_all(1)
    for subtask in TOPOLOGY.subtasks():
        actions = run.send(SubtaskFinished(subtask))
    (answer,) = of(actions, ev.CommandAnswer)
    assert (answer.request_id, answer.code) == ("sp", "job_ended")


def test_a_stop_that_comes_during_the_final_snapshot_takes_its_savepoint_in_the_place_of_that() -> None:
    """S7.7: the job has not ended yet, and a late acknowledgement of the final one changes nothing."""
    run = Run()
    run.end_data()
    assert run.coordinator.pending_ids == (1,)
    actions = run.ask("stop-savepoint", "stop", stop="suspend")
    assert [(a.checkpoint_id, a.code, a.counts) for a in of(actions, ev.SendAbort)] == [(1, "job_stops", False)]
    assert [(t.checkpoint_id, t.kind) for t in of(actions, Trigger)] == [(2, "stop-savepoint")]
    assert run.coordinator.next_wake_ms() == 10_000, "no other final one is asked for"
    actions = run.ack_all(1) + run.ack_all(2)
    for subtask in TOPOLOGY.subtasks():
        actions += run.send(SubtaskFinished(subtask))
    assert of(actions, ev.FailRun) == of(actions, ev.CommandAnswer) == []
    assert of(actions, ev.EndRun) == [ev.EndRun("suspend", 2, "chk-2", "stop")]


def test_a_stop_whose_claim_fails_during_the_final_snapshot_leaves_that_alone() -> None:
    """S7.7: nothing can be written to the place that it names; the job comes to its own end."""
    run = Run()
    run.end_data()
    run.claims_fail = True
    actions = run.ask("stop-savepoint", "stop", stop="suspend")
    assert [a.code for a in of(actions, ev.CommandAnswer)] == ["savepoint_failed_job_continues"]
    assert run.coordinator.pending_ids == (1,) and of(actions, ev.SendAbort) == []
    assert of(run.ack_all(1), ev.NotifyComplete) == [ev.NotifyComplete(1, 101)]


def test_a_stop_that_comes_when_the_final_snapshot_is_complete_finds_the_job_ended() -> None:
    run = Run()
    run.end_data()
    run.ack_all(1)
    actions = run.ask("stop-savepoint", "stop", stop="suspend")
    for subtask in TOPOLOGY.subtasks():
        actions += run.send(SubtaskFinished(subtask))
    assert of(actions, ev.FailRun) == of(actions, Trigger) == []
    assert [a.code for a in of(actions, ev.CommandAnswer)] == ["job_ended"]
    assert of(actions, ev.EndRun) == [ev.EndRun(None, None, None)]


def test_a_savepoint_that_comes_during_the_final_snapshot_is_taken_beside_it() -> None:
    """S7.3: subtasks close when they have written both."""
    run = Run()
    run.end_data()
    actions = run.ask("savepoint", "sp")
    assert of(actions, ev.SendAbort) == [] and run.coordinator.pending_ids == (1, 2)
    actions = run.ack_all(1) + run.ack_all(2)
    for subtask in TOPOLOGY.subtasks():
        actions += run.send(SubtaskFinished(subtask))
    assert [(a.request_id, a.code) for a in of(actions, ev.CommandAnswer)] == [("sp", "completed")]
    assert of(actions, ev.EndRun) == [ev.EndRun(None, None, None)]


def test_a_final_snapshot_whose_claim_failed_is_asked_for_again() -> None:
    run = Run()
    run.claims_fail = True
    run.end_data()
    run.claims_fail = False
    assert run.coordinator.next_wake_ms() == FINAL_RETRY_MS
    run.now += FINAL_RETRY_MS
    assert [t.kind for t in of(run.send(ev.Tick()), Trigger)] == ["final"]


def test_a_request_that_a_final_snapshot_pushes_out_is_answered() -> None:
    run = Run(max_queued=1, max_concurrent=1)
    run.ask("checkpoint", "c1")
    run.ask("checkpoint", "c2")
    actions = run.end_data()
    assert [(a.request_id, a.code) for a in of(actions, ev.CommandAnswer)] == [("c2", "too_many_requests")]


def test_a_run_that_only_commits_takes_no_snapshot_and_records_the_commit() -> None:
    run = Run(commit_only=7, interval_ms=1000)
    run.now += 5_000
    actions = run.send(ev.Tick()) + run.end_data()
    actions += run.ask("stop-savepoint", "stop", stop="suspend")
    actions += run.ask("savepoint", "sp")
    for subtask in TOPOLOGY.subtasks():
        actions += run.send(SubtaskFinished(subtask))
    assert of(actions, ev.ClaimCheckpoint) == [] and of(actions, ev.RecordSourceEnd) == []
    assert of(actions, ev.RecordCommitted) == [ev.RecordCommitted(7)]
    assert [(a.request_id, a.code) for a in of(actions, ev.CommandAnswer)] == [("sp", "job_ended")]


def test_an_aborted_final_snapshot_leaves_no_files() -> None:
    run = Run()
    run.end_data()
    actions = run.send(Declined((SINK, 0), 1, "run", "no space"))
    assert of(actions, ev.DeleteCheckpoint) == [ev.DeleteCheckpoint(1, "chk-1")]


def test_a_job_that_nobody_wants_a_final_snapshot_of_ends_without_one() -> None:
    """S7.3: no interval and nothing to commit; subtasks are told once, when nothing reads any more."""
    run = Run(topology=ONE_PHASE)
    assert of(run.send(SubtaskEndedData((SOURCE, 0), True)), LetFinish) == []
    assert run.send(SubtaskEndedData((SINK, 0), True)) == [LetFinish()]
    assert run.send(ev.Tick()) == [] and run.coordinator.next_wake_ms() is None
    actions = run.send(SubtaskFinished((SOURCE, 0))) + run.send(SubtaskFinished((SINK, 0)))
    assert actions == [ev.EndRun(None, None, None)]


@pytest.mark.parametrize("options", [{"interval_ms": 1000, "topology": ONE_PHASE}, {"interval_ms": None}])
def test_with_an_interval_or_something_to_commit_a_job_ends_with_a_final_snapshot(options: Any) -> None:
    """S7.3."""
    actions = Run(**options).end_data()
    assert [t.kind for t in of(actions, Trigger)] == ["final"] and of(actions, LetFinish) == []


def test_a_job_without_snapshots_or_one_that_only_commits_tells_nobody_to_finish() -> None:
    """S7.3, S7.7: their subtasks wait for nothing."""
    for options in ({"enabled": False}, {"commit_only": 7}):
        assert of(Run(topology=ONE_PHASE, **options).end_data(), LetFinish) == []


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_a_snapshot_on_its_way_is_not_overtaken_by_the_end(kind: str) -> None:
    """S7.3: subtasks that finished would abort it."""
    run = Run(topology=ONE_PHASE)
    run.ask(kind, "asked")
    assert of(run.end_data(), LetFinish) == []
    actions = run.ack_all(1)
    assert [a.code for a in of(actions, ev.CommandAnswer)] == ["completed"]
    assert of(actions, LetFinish) == [LetFinish()]


def test_a_stop_that_comes_before_the_end_is_the_snapshot_that_subtasks_wait_for() -> None:
    """S7.3, S7.7."""
    run = Run(topology=ONE_PHASE)
    run.send(SubtaskEndedData((SOURCE, 0), True))
    run.ask("stop-savepoint", "stop", stop="suspend")
    actions = run.send(SubtaskEndedData((SINK, 0), True)) + run.ack_all(1)
    for subtask in TOPOLOGY.subtasks():
        actions += run.send(SubtaskFinished(subtask))
    assert of(actions, LetFinish) == []
    assert of(actions, ev.EndRun) == [ev.EndRun("suspend", 1, "chk-1", "stop")]


def test_a_stop_that_comes_when_subtasks_were_told_to_finish_is_too_late() -> None:
    """S7.7: it neither starts nor fails the run."""
    run = Run(topology=ONE_PHASE)
    run.end_data()
    actions = run.ask("stop-savepoint", "stop", stop="suspend")
    for subtask in TOPOLOGY.subtasks():
        actions += run.send(SubtaskFinished(subtask))
    assert [a.code for a in of(actions, ev.CommandAnswer)] == ["job_ended"]
    assert of(actions, ev.ClaimCheckpoint) == [] and of(actions, ev.FailRun) == []


def test_a_stop_that_could_not_be_claimed_leaves_the_final_snapshot_due() -> None:
    """S1.2: the stop came when the final one was about to be asked for again, and would have served."""
    run = Run()
    run.claims_fail = True
    run.end_data()
    run.now += FINAL_RETRY_MS
    run.ask("stop-savepoint", "stop", stop="suspend")
    assert run.coordinator.next_wake_ms() is not None


def test_a_checkpoint_whose_barriers_met_the_end_of_data_everywhere_is_the_last_one() -> None:
    """S7.3: subtasks finish with it, one after the other. A final snapshot beside that would be aborted each time."""
    run = Run(interval_ms=1_000)
    run.ask("checkpoint", "asked")
    actions = run.end_data()
    for subtask in TOPOLOGY.subtasks():
        actions += run.send(Acknowledged(subtask, 1, "run", finished=True))
    for subtask in TOPOLOGY.subtasks():
        actions += run.send(SubtaskFinished(subtask))
    assert [t.checkpoint_id for t in of(actions, Trigger)] == [] and of(actions, ev.SendAbort) == []
    assert of(actions, ev.EndRun) == [ev.EndRun(None, None, None)]


def test_a_checkpoint_that_one_subtask_took_before_its_end_leaves_the_final_one_due() -> None:
    """S7.3: that subtask would wait without end."""
    run = Run(interval_ms=1_000)
    run.ask("checkpoint", "asked")
    run.end_data()
    run.send(Acknowledged((SOURCE, 0), 1, "run", finished=True))
    actions = run.send(Acknowledged((SINK, 0), 1, "run"))
    assert [t.kind for t in of(actions, Trigger)] == ["final"]
