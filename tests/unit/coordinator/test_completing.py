"""S2.1, S2.2: how pending snapshots come to their one end, and which ends count as failures."""

from __future__ import annotations

from typing import Any

import pytest
from coordinator_driver import ALL, SOURCE, TOPOLOGY, WINDOW, Driver, of

from tidegate.channel.control.protocol import Acknowledged, DeclineCode, SubtaskEndedData, SubtaskFinished, Trigger
from tidegate.coordinator import events as ev
from tidegate.coordinator.stop.final_snapshot import FINAL_RETRY_MS, MAX_FINAL_RETRY_MS, FinalSnapshot


def ready(**options: Any) -> Driver:
    d = Driver(**{"interval_ms": None, **options})
    d.start()
    return d


def ends(actions: list[ev.Action]) -> list[tuple[int, str, bool]]:
    """(id, code, counts) of every abort."""
    return [(a.checkpoint_id, a.code, a.counts) for a in of(actions, ev.SendAbort)]


def test_a_duplicate_acknowledgement_does_not_stand_for_another_subtask() -> None:
    """S2.1, S2.2."""
    d = ready()
    d.ask()
    for _ in ALL:
        assert d.ack(ALL[0], 1) == []
    assert of([a for s in ALL[1:] for a in d.ack(s, 1)], ev.CompleteCheckpoint) != []


def test_an_acknowledgement_of_another_run_does_not_count() -> None:
    """S2.2: foreign."""
    d = ready()
    d.ask()
    for subtask in ALL:
        assert d.ack(subtask, 1, run="a run before") == []
    assert d.coordinator.pending_ids == (1,)


def test_an_acknowledgement_of_an_unknown_checkpoint_or_subtask_does_not_count() -> None:
    """S2.2: unknown."""
    d = ready()
    d.ask()
    assert d.ack(ALL[0], 7) == [] and d.ack((WINDOW, 17), 1) == []
    assert [s for s in ALL[:-1] if d.ack(s, 1)] == []


def test_an_acknowledgement_after_the_abort_does_not_count() -> None:
    """S2.2: late."""
    d = ready(tolerable_failures=1)
    d.ask()
    d.decline(ALL[0], 1)
    assert [s for s in ALL if d.ack(s, 1)] == []


def test_an_acknowledgement_after_the_completion_does_not_count() -> None:
    """S2.2: late."""
    d = ready()
    d.ask()
    d.ack_all(1)
    assert d.ack(ALL[0], 1) == [] and d.decline(ALL[0], 1) == []


def test_an_acknowledgement_while_the_completion_is_written_does_not_count() -> None:
    """S2.1: `_metadata` is written once."""
    d = ready()
    d.ask()
    for subtask in ALL[:-1]:
        d.ack(subtask, 1)
    last = Acknowledged(ALL[-1], 1, "run")
    assert len(of(d.coordinator.handle(last, 0), ev.CompleteCheckpoint)) == 1
    assert d.coordinator.handle(last, 0) == []


@pytest.mark.parametrize(
    ("code", "abort", "counts"),
    [
        ("failed", "declined", True),
        ("subtask_finished", "subtask_finished", False),
        ("alignment_aborted", "alignment_aborted", False),
    ],
)
def test_a_decline_says_what_kind_of_end_it_is(code: DeclineCode, abort: str, counts: bool) -> None:
    """S2.2."""
    d = ready()
    d.ask()
    actions = d.decline(ALL[0], 1, code=code)
    assert ends(actions) == [(1, abort, counts)]
    assert bool(of(actions, ev.FailRun)) == counts


def test_a_decline_of_another_run_or_checkpoint_aborts_nothing() -> None:
    """S2.2."""
    d = ready()
    d.ask()
    assert d.decline(ALL[0], 1, run="a run before") == [] and d.decline(ALL[0], 2) == []


def test_an_expiry_counts_and_names_who_has_not_answered() -> None:
    """S1.4, S2.2."""
    d = ready(tolerable_failures=1)
    d.ask()
    d.ack((SOURCE, 0), 1)
    actions = d.tick(10_000)
    assert ends(actions) == [(1, "expired", True)]
    assert "[(0, 1), (1, 0), (1, 1)]" in of(actions, ev.SendAbort)[0].reason


def test_metadata_that_cannot_be_written_aborts_the_checkpoint_and_counts() -> None:
    """S2.1, S2.2."""
    d = ready(tolerable_failures=1)
    d.completions_fail = True
    d.ask(request_id="mine")
    actions = d.ack_all(1)
    assert ends(actions) == [(1, "io", True)]
    assert [(a.request_id, a.ok, a.code) for a in of(actions, ev.CommandAnswer)] == [("mine", False, "aborted")]
    assert (
        of(actions, ev.DeleteCheckpoint) == [ev.DeleteCheckpoint(1, "chk-1")] and of(actions, ev.NotifyComplete) == []
    )


def test_being_subsumed_does_not_count() -> None:
    """S2.1, S2.2."""
    d = ready(max_concurrent=2)
    d.ask(request_id="older")
    d.ask(request_id="newer")
    actions = d.ack_all(2)
    assert ends(actions) == [(1, "subsumed", False)] and of(actions, ev.FailRun) == []
    assert [(a.request_id, a.ok) for a in of(actions, ev.CommandAnswer)] == [("older", False), ("newer", True)]


def test_a_subtask_that_finished_between_plan_and_trigger_does_not_count() -> None:
    """S1.5, S2.2."""
    d = ready()
    d.ask()
    assert ends(d.send(SubtaskFinished((SOURCE, 0)))) == [(1, "subtask_finished", False)]


def test_what_else_is_pending_when_a_stop_completes_is_aborted_without_counting() -> None:
    """S2.2, S7.3."""
    d = ready()
    d.ask("savepoint", "sp")
    d.ask("stop-savepoint", "stop", stop="suspend")
    assert ends(d.ack_all(2)) == [(1, "job_stops", False)]


def test_what_is_pending_when_everything_has_finished_is_aborted_without_counting() -> None:
    """S2.2."""
    d = ready()
    d.ask()
    for subtask in ALL[:-1]:
        d.ack(subtask, 1)
        d.send(SubtaskFinished(subtask))
    d.coordinator.handle(Acknowledged(ALL[-1], 1, "run"), 0)
    assert ends(d.send(SubtaskFinished(ALL[-1]))) == [(1, "job_ended", False)]


def test_every_id_counts_once_however_many_subtasks_decline_it() -> None:
    """S2.2."""
    d = ready(tolerable_failures=1)
    d.ask()
    actions = [a for s in ALL for a in d.decline(s, 1)] + d.tick(60_000)
    assert ends(actions) == [(1, "declined", True)] and of(actions, ev.FailRun) == []


def test_savepoints_count_neither_as_failures_nor_stop_others_from_counting() -> None:
    """S2.2."""
    d = ready(tolerable_failures=1)
    for n in (1, 2, 3):
        d.ask("savepoint", f"sp-{n}")
        assert ends(d.decline(ALL[0], n)) == [(n, "declined", False)]
    d.ask()
    assert of(d.decline(ALL[0], 4), ev.FailRun) == []
    d.ask()
    assert len(of(d.decline(ALL[0], 5), ev.FailRun)) == 1


def test_failures_count_in_a_row() -> None:
    """S2.2: a success resets."""
    d = ready(tolerable_failures=1)
    n = 0
    for _ in range(3):
        d.ask()
        assert of(d.decline(ALL[0], n + 1), ev.FailRun) == []
        d.ask()
        d.ack_all(n + 2)
        n += 2


def test_after_too_many_failures_nothing_more_is_started() -> None:
    """S2.2: the run is over."""
    d = ready()
    d.ask(request_id="one")
    d.ask(request_id="two")
    actions = d.decline(ALL[0], 1)
    assert len(of(actions, ev.FailRun)) == 1 and of(actions, ev.ClaimCheckpoint) == []
    assert d.coordinator.next_wake_ms() is None
    _, again = d.coordinator.shut_down("over")
    assert [r.request_id for r in again] == ["two"]


def test_nothing_is_said_of_a_snapshot_whose_completion_was_being_written() -> None:
    """S2.1: "complete" may be in the log; an abort, an answer or a deletion would contradict it."""
    d = ready()
    d.ask("savepoint", "sp")
    for subtask in ALL[:-1]:
        d.ack(subtask, 1)
    d.coordinator.handle(Acknowledged(ALL[-1], 1, "run"), 0)
    assert d.coordinator.shut_down("the store is away") == ([], [])


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint", "stop-savepoint", "final"])
@pytest.mark.parametrize("how", ["declined", "expired", "shutdown", "stop_timeout"])
def test_aborts_are_sent_to_everybody_and_the_folder_goes_whatever_the_kind(kind: Any, how: str) -> None:
    """S2.2, S2.3: what an aborted savepoint has written is of no use either."""
    d = ready(tolerable_failures=9)
    stop = {"stop": "suspend"} if kind == "stop-savepoint" else {}
    actions = d.end_data() if kind == "final" else d.ask(kind, "c", **stop)
    assert [t.kind for t in of(actions, Trigger)] == [kind]
    match how:
        case "declined":
            actions = d.decline(ALL[0], 1)
        case "expired":
            actions = d.tick(10_000)
        case "shutdown":
            actions, _ = d.coordinator.shut_down("over")
        case _:
            if kind != "stop-savepoint":
                return
            actions = d.send(ev.TimeOutStop("c", "10 s"))
    assert [a.code for a in of(actions, ev.SendAbort) if a.checkpoint_id == 1] == [how]
    assert ev.DeleteCheckpoint(1, "chk-1") in of(actions, ev.DeleteCheckpoint)


def test_a_completion_that_proves_nothing_new_leaves_the_count_of_failures() -> None:
    """S2.2: a savepoint, and a checkpoint from before the last failure; one from after it ends the row."""
    d = ready(tolerable_failures=1, max_concurrent=2)
    d.ask(request_id="one")
    d.ask(request_id="two")
    d.decline(ALL[0], 2)
    d.ask("savepoint", "sp")
    d.ack_all(3)
    d.ack_all(1)
    assert [a.request_id for a in of(d.actions, ev.CommandAnswer) if a.ok] == ["sp", "one"]
    d.ask(request_id="three")
    assert len(of(d.decline(ALL[0], 4), ev.FailRun)) == 1


def test_a_newer_checkpoint_ends_the_row_of_failures() -> None:
    """S2.2."""
    d = ready(tolerable_failures=1)
    for n in (1, 3, 5):
        d.ask(request_id=f"fails-{n}")
        assert of(d.decline(ALL[0], n), ev.FailRun) == []
        d.ask(request_id=f"completes-{n}")
        d.ack_all(n + 1)


# ---------------------------------------------------------------- the final snapshot


def test_a_final_snapshot_is_retried_with_a_growing_back_off() -> None:
    """S1.2, S7.3."""
    d = ready(tolerable_failures=100, min_pause_ms=50_000)
    d.end_data()
    waits = []
    for n in range(1, 9):
        d.decline(ALL[0], n)
        wake_ms = d.coordinator.next_wake_ms()
        assert wake_ms is not None
        waits.append(wake_ms - d.now)
        d.tick(waits[-1] - 1)
        assert d.coordinator.pending_ids == ()
        d.tick(1)
        assert d.coordinator.pending_ids == (n + 1,)
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]
    assert (waits[0], waits[-1]) == (FINAL_RETRY_MS, MAX_FINAL_RETRY_MS)


def test_the_back_off_counts_from_the_failure_not_from_the_trigger() -> None:
    """S1.2."""
    d = ready(tolerable_failures=9)
    d.end_data()
    d.tick(10_000)
    assert d.coordinator.pending_ids == () and d.coordinator.next_wake_ms() == 10_000 + FINAL_RETRY_MS


def test_a_back_off_never_overflows() -> None:
    """S1.2."""
    final = FinalSnapshot(needed=True)
    for _ in range(10_000):
        final.failed(0)
    assert final.due_ms == MAX_FINAL_RETRY_MS


def test_a_final_snapshot_does_not_wait_for_min_pause() -> None:
    """S1.2."""
    d = ready(min_pause_ms=60_000)
    d.ask()
    d.ack_all(1)
    assert [t.kind for t in of(d.end_data(), Trigger)] == ["final"]


def test_a_final_snapshot_that_somebody_finished_before_is_planned_afresh_at_once() -> None:
    """S1.5, S7.3."""
    d = ready()
    d.ask()
    for subtask in TOPOLOGY.subtasks():
        d.send(SubtaskEndedData(subtask, True))
    d.decline(ALL[0], 1, code="alignment_aborted")
    assert d.coordinator.pending_ids == (2,)
    actions = d.send(SubtaskFinished((SOURCE, 0)))
    assert ends(actions) == [(2, "subtask_finished", False)]
    assert [t.subtasks for t in of(actions, Trigger)] == [((SOURCE, 1),)]


def test_no_final_snapshot_is_taken_beside_a_stop_savepoint() -> None:
    """S1.2: they merge."""
    d = ready()
    d.ask("stop-savepoint", "stop", stop="suspend")
    assert of(d.end_data(natural=False), ev.ClaimCheckpoint) == []
    assert of(d.ack_all(1), ev.ClaimCheckpoint) == []
