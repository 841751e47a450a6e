"""S2.3, S7.4: when a completed snapshot counts as committed."""

from __future__ import annotations

from coordinator_driver import TOPOLOGY, WINDOW, Driver, of

from tidegate.channel.control.protocol import SubtaskCommitted
from tidegate.coordinator import events as ev
from tidegate.coordinator.checkpointing.retention import CompletedCheckpoint
from tidegate.coordinator.commits.commit_tracker import CommitTracker
from tidegate.coordinator.topology import ChainShape, Topology

ONE, TWO = (WINDOW, 0), (WINDOW, 1)


def test_everybody_must_have_reported_and_says_so_once() -> None:
    tracker = CommitTracker(TOPOLOGY)
    tracker.completed(1)
    tracker.committed(ONE, 1)
    tracker.committed(ONE, 1)
    assert tracker.take_committed() is None
    tracker.committed(TWO, 1)
    assert tracker.take_committed() == 1
    assert tracker.take_committed() is None


def test_a_newer_commit_covers_older_ones() -> None:
    """S7.4."""
    tracker = CommitTracker(TOPOLOGY)
    tracker.completed(1)
    tracker.completed(2)
    tracker.committed(ONE, 1)
    tracker.committed(ONE, 2)
    tracker.committed(TWO, 2)
    assert tracker.take_committed() == 2
    tracker.committed(TWO, 1)
    assert tracker.take_committed() is None


def test_a_subtask_that_has_finished_is_not_waited_for() -> None:
    """S6.2, S7.4: it has committed all it ever will."""
    tracker = CommitTracker(TOPOLOGY)
    tracker.completed(1)
    tracker.committed(ONE, 1)
    tracker.finished(ONE)
    tracker.finished(ONE)
    assert tracker.take_committed() is None
    tracker.finished(TWO)
    assert tracker.take_committed() == 1
    tracker.completed(2)
    assert tracker.take_committed() == 2


def test_reports_of_unknown_snapshots_and_subtasks_change_nothing() -> None:
    tracker = CommitTracker(TOPOLOGY)
    tracker.committed(ONE, 9)
    tracker.completed(1)
    tracker.finished((0, 0))
    tracker.committed((0, 0), 1)
    assert tracker.take_committed() is None


def test_a_job_without_two_phase_sinks_has_nothing_to_record() -> None:
    tracker = CommitTracker(Topology(1, (ChainShape(0, ("src",), (), True, False),)))
    tracker.completed(1)
    assert tracker.take_committed() is None


def test_the_commit_of_the_last_sinks_is_recorded_before_the_run_ends() -> None:
    """S7.4, S7.5."""
    d = Driver(interval_ms=None)
    d.start()
    d.ask("stop-savepoint", "stop", stop="suspend")
    d.ack_all(1)
    d.end_data(natural=False)
    d.send(SubtaskCommitted(ONE, 1))
    actions = d.finish()
    assert [type(a) for a in actions] == [ev.RecordCommitted, ev.EndRun]
    assert of(actions, ev.RecordCommitted) == [ev.RecordCommitted(1)]


def test_the_last_committed_checkpoint_stays_until_a_newer_one_is_committed() -> None:
    """S2.3."""
    d = Driver(interval_ms=None, completed=(CompletedCheckpoint(1, "checkpoint", "chk-1"),), last_committed=1)
    d.next_id = 2
    d.start()
    d.ask()
    assert of(d.ack_all(2), ev.DeleteCheckpoint) == []
    d.ask()
    assert [r.checkpoint_id for r in of(d.ack_all(3), ev.DeleteCheckpoint)] == [2]
    actions = d.send(SubtaskCommitted(ONE, 3)) + d.send(SubtaskCommitted(TWO, 3))
    assert [r.checkpoint_id for r in of(actions, ev.DeleteCheckpoint)] == [1]


def test_what_the_submission_was_restored_from_outlives_savepoints() -> None:
    """S2.3: a savepoint is no recovery point, so that the restore point is still needed."""
    done = (CompletedCheckpoint(1, "checkpoint", "chk-1"), CompletedCheckpoint(2, "checkpoint", "chk-2"))
    d = Driver(interval_ms=None, completed=done, restored=1)
    d.next_id = 3
    d.start()
    d.ask("savepoint", "sp")
    assert of(d.ack_all(3), ev.DeleteCheckpoint) == []
    d.ask()
    assert [r.checkpoint_id for r in of(d.ack_all(4), ev.DeleteCheckpoint)] == [1, 2]
