"""S1, S2, S7: the coordinator, by events and actions alone."""

from __future__ import annotations

import pytest
from coordinator_driver import ALL, SOURCE, WINDOW, Driver, of

from tidegate.channel.control.protocol import (
    Declined,
    SubtaskCommitted,
    SubtaskEndedData,
    SubtaskFinished,
    SubtaskRunning,
    Trigger,
)
from tidegate.coordinator import events as ev
from tidegate.coordinator.checkpointing.collected_metadata import subtask_history
from tidegate.coordinator.checkpointing.retention import CompletedCheckpoint
from tidegate.coordinator.stop.final_snapshot import FINAL_RETRY_MS


@pytest.fixture
def driver() -> Driver:
    d = Driver()
    d.start()
    return d


def test_nothing_is_triggered_before_every_subtask_runs() -> None:
    """S1.1, S1.3."""
    d = Driver()
    d.send(SubtaskRunning((SOURCE, 0)))
    assert of(d.tick(5_000), ev.ClaimCheckpoint) == []


def test_the_periodic_trigger_starts_after_the_first_delay_and_goes_to_the_sources(driver: Driver) -> None:
    """S1.1, S1.3."""
    assert of(driver.tick(999), Trigger) == []
    (trigger,) = of(driver.tick(1), Trigger)
    assert trigger.subtasks == ((SOURCE, 0), (SOURCE, 1))
    assert trigger.kind == "checkpoint" and trigger.triggered_ms == 1000


def test_completion_needs_every_acknowledgement_and_then_notifies(driver: Driver) -> None:
    """S2.1."""
    driver.tick(1000)
    for subtask in ALL[:-1]:
        assert driver.ack(subtask, 1) == []
    actions = driver.ack(ALL[-1], 1)
    assert [type(a).__name__ for a in actions] == ["CompleteCheckpoint", "NotifyComplete"]
    assert of(actions, ev.NotifyComplete)[0].log_number == 101


def test_the_history_holds_every_subtasks_acknowledgement_with_its_time(driver: Driver) -> None:
    """S2.5."""
    driver.tick(1000)
    for k, subtask in enumerate(ALL):
        driver.now += 10
        actions = driver.ack(subtask, 1, metrics={"bytes": k})
    (complete,) = of(actions, ev.CompleteCheckpoint)
    assert subtask_history(complete)["0.1"] == {"ack_ms": 20, "bytes": 1}
    assert complete.metrics["bytes"] == 6 and complete.metrics["acknowledged"] == 4


def test_late_duplicate_unknown_and_foreign_acknowledgements_change_nothing(driver: Driver) -> None:
    """S2.2."""
    driver.tick(1000)
    assert driver.ack((SOURCE, 0), 1, run="older run") == []
    assert driver.ack((SOURCE, 0), 99) == []
    driver.ack((SOURCE, 0), 1)
    assert driver.ack((SOURCE, 0), 1) == []
    for subtask in ALL[1:]:
        driver.ack(subtask, 1)
    assert driver.ack((SOURCE, 0), 1) == []


def test_only_one_checkpoint_is_pending_by_default(driver: Driver) -> None:
    """S1.2."""
    driver.tick(1000)
    assert of(driver.tick(1000), ev.ClaimCheckpoint) == []
    assert of(driver.ack_all(1), ev.ClaimCheckpoint) != []


def test_min_pause_counts_from_completion_and_sets_the_next_tick() -> None:
    """S1.2."""
    d = Driver(min_pause_ms=700)
    d.start()
    d.tick(1000)
    d.now += 900
    d.ack_all(1)
    assert of(d.tick(100), ev.ClaimCheckpoint) == []
    assert of(d.tick(599), ev.ClaimCheckpoint) == []
    assert of(d.tick(1), ev.ClaimCheckpoint) != []


def test_a_savepoint_is_forced_past_concurrency_and_min_pause() -> None:
    """S1.2."""
    d = Driver(min_pause_ms=60_000)
    d.start()
    d.tick(1000)
    (trigger,) = of(d.ask("savepoint"), Trigger)
    assert trigger.kind == "savepoint"


def test_a_savepoint_answers_its_request_but_commits_and_subsumes_nothing(driver: Driver) -> None:
    """S2.1, S2.4."""
    driver.tick(1000)
    driver.ask("savepoint")
    actions = driver.ack_all(2)
    (answer,) = of(actions, ev.CommandAnswer)
    assert answer.ok and answer.data["path"] == "chk-2"
    assert of(actions, ev.NotifyComplete) == [] and of(actions, ev.SendAbort) == []
    assert of(driver.ack_all(1), ev.NotifyComplete) != []


def test_a_user_checkpoint_runs_before_a_periodic_one() -> None:
    """S1.2."""
    d = Driver()
    d.start()
    d.tick(1000)
    d.tick(1000)
    d.ask("checkpoint", "mine")
    d.ack_all(1)
    actions = d.ack_all(2)
    assert [a.request_id for a in of(actions, ev.CommandAnswer)] == ["mine"]


def test_the_request_that_falls_out_of_a_full_queue_is_answered() -> None:
    """S1.2."""
    d = Driver(max_queued=1, interval_ms=None)
    d.ask("checkpoint", "first")
    (answer,) = of(d.ask("checkpoint", "second"), ev.CommandAnswer)
    assert (answer.request_id, answer.code) == ("second", "too_many_requests")


def test_a_checkpoint_that_expires_is_aborted_everywhere_and_fails_the_run_when_none_is_tolerated(
    driver: Driver,
) -> None:
    """S1.4, S2.2."""
    driver.tick(1000)
    driver.ack((SOURCE, 0), 1)
    actions = driver.tick(10_000)
    (abort,) = of(actions, ev.SendAbort)
    assert abort.checkpoint_id == 1 and "expired" in abort.reason
    assert len(of(actions, ev.FailRun)) == 1


def test_declines_count_against_the_tolerated_failures_and_a_success_resets_them() -> None:
    """S2.2."""
    d = Driver(tolerable_failures=1, interval_ms=None)
    d.start()
    d.ask(request_id="a")
    assert of(d.send(Declined((WINDOW, 0), 1, "run", "disk full")), ev.FailRun) == []
    d.ask(request_id="b")
    d.ack_all(2)
    d.ask(request_id="c")
    assert of(d.send(Declined((WINDOW, 0), 3, "run", "disk full")), ev.FailRun) == []
    d.ask(request_id="d")
    assert len(of(d.send(Declined((WINDOW, 0), 4, "run", "disk full")), ev.FailRun)) == 1


def test_a_failed_savepoint_does_not_count(driver: Driver) -> None:
    """S2.2."""
    driver.ask("savepoint")
    actions = driver.send(Declined((WINDOW, 0), 1, "run", "disk full"))
    assert of(actions, ev.FailRun) == []
    assert not of(actions, ev.CommandAnswer)[0].ok


def test_a_newer_completion_subsumes_older_checkpoints_but_no_savepoint() -> None:
    """S2.1."""
    d = Driver(max_concurrent=3, interval_ms=None)
    d.start()
    d.ask("checkpoint", "one")
    d.ask("savepoint", "two")
    d.ask("checkpoint", "three")
    actions = d.ack_all(3)
    assert [a.checkpoint_id for a in of(actions, ev.SendAbort)] == [1]
    assert of(d.ack_all(2), ev.CommandAnswer)[0].ok


def test_a_finished_source_is_recorded_and_the_rest_is_triggered_past_it(driver: Driver) -> None:
    """S1.3, S6.1."""
    driver.send(SubtaskEndedData((SOURCE, 0), True))
    driver.send(SubtaskFinished((SOURCE, 0)))
    (trigger,) = of(driver.tick(1000), Trigger)
    assert trigger.subtasks == ((SOURCE, 1),)
    for subtask in ALL[1:-1]:
        driver.ack(subtask, 1)
    (complete,) = of(driver.ack(ALL[-1], 1), ev.CompleteCheckpoint)
    assert complete.finished == frozenset({(SOURCE, 0)})


def test_when_all_sources_have_finished_the_next_stage_is_triggered(driver: Driver) -> None:
    """S1.3, S6.1."""
    for i in range(2):
        driver.send(SubtaskEndedData((SOURCE, i), True))
        driver.send(SubtaskFinished((SOURCE, i)))
    (trigger,) = of(driver.tick(1000), Trigger)
    assert trigger.subtasks == ((WINDOW, 0), (WINDOW, 1))


def test_a_subtask_that_finishes_between_plan_and_acknowledgement_aborts_that_checkpoint(driver: Driver) -> None:
    """S1.5."""
    driver.tick(1000)
    actions = driver.send(SubtaskFinished((SOURCE, 0)))
    assert [a.checkpoint_id for a in of(actions, ev.SendAbort)] == [1]
    assert of(actions, ev.FailRun) == []


def test_the_end_of_a_source_is_recorded_once_all_its_subtasks_have_ended(driver: Driver) -> None:
    assert of(driver.send(SubtaskEndedData((SOURCE, 0), True)), ev.RecordSourceEnd) == []
    assert of(driver.send(SubtaskEndedData((SOURCE, 1), True)), ev.RecordSourceEnd) == [ev.RecordSourceEnd(SOURCE)]
    assert of(driver.send(SubtaskFinished((SOURCE, 1))), ev.RecordSourceEnd) == []


def test_a_source_ended_by_a_stop_has_not_reached_its_end_of_data(driver: Driver) -> None:
    driver.send(SubtaskEndedData((SOURCE, 0), False))
    assert of(driver.send(SubtaskEndedData((SOURCE, 1), False)), ev.RecordSourceEnd) == []


def test_one_final_snapshot_starts_at_once_when_nothing_reads_any_more() -> None:
    """S7.3."""
    d = Driver(interval_ms=None)
    d.start()
    actions: list[ev.Action] = []
    for subtask in ALL:
        actions += d.send(SubtaskEndedData(subtask, True))
    assert [t.kind for t in of(actions, Trigger)] == ["final"]
    actions = d.ack_all(1)
    assert of(actions, ev.NotifyComplete) != []


def test_a_failed_final_snapshot_is_asked_for_again_after_a_pause() -> None:
    """S1.2, S7.3."""
    d = Driver(interval_ms=None, tolerable_failures=3)
    d.start()
    for subtask in ALL:
        d.send(SubtaskEndedData(subtask, True))
    assert of(d.send(Declined((WINDOW, 0), 1, "run", "io")), ev.ClaimCheckpoint) == []
    assert [c.request.kind for c in of(d.tick(FINAL_RETRY_MS), ev.ClaimCheckpoint)] == ["final"]


def test_the_run_ends_when_every_subtask_has_finished() -> None:
    d = Driver(interval_ms=None)
    d.start()
    for subtask in ALL[:-1]:
        assert of(d.send(SubtaskFinished(subtask)), ev.EndRun) == []
    assert of(d.send(SubtaskFinished(ALL[-1])), ev.EndRun) == [ev.EndRun(None, None, None)]


def test_a_stop_ends_the_run_with_its_savepoint_and_takes_no_other_snapshot(driver: Driver) -> None:
    """S7.3, S7.5."""
    driver.ask("stop-savepoint", "stop", stop="suspend")
    for subtask in ALL:
        driver.send(SubtaskEndedData(subtask, False))
    actions = driver.ack_all(1)
    assert of(actions, ev.CommandAnswer) == [] and of(actions, ev.NotifyComplete) != []
    assert of(driver.tick(5_000), ev.ClaimCheckpoint) == []
    actions = []
    for subtask in ALL:
        actions += driver.send(SubtaskFinished(subtask))
    assert of(actions, ev.EndRun) == [ev.EndRun("suspend", 1, "chk-1", "stop")]


def test_a_stop_whose_savepoint_fails_makes_the_run_fail_over_and_says_so(driver: Driver) -> None:
    """S7.7."""
    driver.ask("stop-savepoint", "stop", stop="drain")
    actions = driver.send(Declined((WINDOW, 1), 1, "run", "disk full"))
    (answer,) = of(actions, ev.CommandAnswer)
    assert (answer.ok, answer.code) == (False, "savepoint_failed_job_continues")
    assert len(of(actions, ev.FailRun)) == 1


def test_a_second_stop_is_told_of_the_first(driver: Driver) -> None:
    driver.ask("stop-savepoint", "one", stop="drain")
    (answer,) = of(driver.ask("stop-savepoint", "two", stop="suspend"), ev.CommandAnswer)
    assert (answer.request_id, answer.code) == ("two", "stop_in_progress")


def test_a_checkpoint_counts_as_committed_when_every_committing_subtask_says_so(driver: Driver) -> None:
    driver.tick(1000)
    driver.ack_all(1)
    assert of(driver.send(SubtaskCommitted((WINDOW, 0), 1)), ev.RecordCommitted) == []
    assert of(driver.send(SubtaskCommitted((WINDOW, 1), 1)), ev.RecordCommitted) == [ev.RecordCommitted(1)]


def test_retention_keeps_the_newest_and_the_last_committed() -> None:
    """S2.3."""
    d = Driver(completed=(CompletedCheckpoint(1, "checkpoint", "chk-1"),))
    d.next_id = 2
    d.start()
    d.tick(1000)
    d.ack_all(2)
    d.send(SubtaskCommitted((WINDOW, 0), 2))
    d.send(SubtaskCommitted((WINDOW, 1), 2))
    assert [r.checkpoint_id for r in of(d.actions, ev.DeleteCheckpoint)] == [1]
    d.tick(1000)
    assert of(d.ack_all(3), ev.DeleteCheckpoint) == []
    d.send(SubtaskCommitted((WINDOW, 0), 3))
    assert [r.checkpoint_id for r in of(d.send(SubtaskCommitted((WINDOW, 1), 3)), ev.DeleteCheckpoint)] == [2]


def test_shutting_down_aborts_what_is_pending_and_hands_user_requests_to_the_next_run(driver: Driver) -> None:
    """S9.1."""
    driver.ask("checkpoint", "mine")
    actions, again = driver.coordinator.shut_down("a slot died")
    assert [a.checkpoint_id for a in of(actions, ev.SendAbort)] == [1]
    assert [r.request_id for r in again] == ["mine"]


def test_shutting_down_tells_a_stop_that_the_job_goes_on(driver: Driver) -> None:
    """S7.7."""
    driver.ask("stop-savepoint", "stop", stop="suspend")
    actions, again = driver.coordinator.shut_down("a slot died")
    (answer,) = of(actions, ev.CommandAnswer)
    assert answer.code == "savepoint_failed_job_continues" and again == []
