"""S3.2-S3.5: barrier alignment."""

from __future__ import annotations

from tidegate.channel.elements import CheckpointBarrier
from tidegate.subtask.alignment import (
    AlignmentAborted,
    BarrierAligner,
    BlockChannel,
    ForwardCancel,
    TakeSnapshot,
    UnblockAll,
)


def barrier(n: int) -> CheckpointBarrier:
    return CheckpointBarrier(n, "checkpoint", 0)


def kinds(actions: object) -> list[str]:
    assert isinstance(actions, list)
    return [type(a).__name__ for a in actions]


def test_a_single_channel_snapshots_as_soon_as_its_barrier_arrives() -> None:
    """S3.2."""
    assert BarrierAligner(1, "exactly_once").barrier(0, barrier(1), 5) == [TakeSnapshot(barrier(1), 5)]


def test_channels_that_delivered_the_barrier_are_blocked_until_the_last_one_delivers() -> None:
    """S3.2."""
    aligner = BarrierAligner(3, "exactly_once")
    assert aligner.barrier(1, barrier(1), 5) == [BlockChannel(1)]
    assert aligner.barrier(0, barrier(1), 6) == [BlockChannel(0)]
    assert aligner.barrier(2, barrier(1), 9) == [UnblockAll(), TakeSnapshot(barrier(1), 5)]


def test_at_least_once_blocks_nothing_and_snapshots_with_the_last_barrier() -> None:
    """S3.3."""
    aligner = BarrierAligner(2, "at_least_once")
    assert aligner.barrier(0, barrier(1), 1) == []
    assert aligner.barrier(1, barrier(1), 2) == [TakeSnapshot(barrier(1), 1)]


def test_at_least_once_lets_an_older_checkpoint_complete_after_a_newer_barrier_came() -> None:
    """S3.3."""
    aligner = BarrierAligner(2, "at_least_once")
    aligner.barrier(0, barrier(1), 1)
    assert aligner.barrier(0, barrier(2), 2) == []
    assert aligner.barrier(1, barrier(1), 3) == [TakeSnapshot(barrier(1), 1)]
    assert aligner.barrier(1, barrier(2), 4) == [TakeSnapshot(barrier(2), 2)]


def test_at_least_once_drops_the_older_checkpoint_when_the_newer_completes() -> None:
    """S3.3."""
    aligner = BarrierAligner(2, "at_least_once")
    aligner.barrier(0, barrier(1), 1)
    aligner.barrier(0, barrier(2), 2)
    assert aligner.barrier(1, barrier(2), 3) == [TakeSnapshot(barrier(2), 2)]
    assert aligner.barrier(1, barrier(1), 4) == []


def test_a_newer_barrier_aborts_the_older_alignment_and_starts_its_own() -> None:
    """S3.4."""
    aligner = BarrierAligner(2, "exactly_once")
    aligner.barrier(0, barrier(1), 1)
    actions = aligner.barrier(1, barrier(2), 2)
    assert kinds(actions) == ["UnblockAll", "AlignmentAborted", "ForwardCancel", "BlockChannel"]
    assert actions[1].checkpoint_id == 1  # type: ignore[union-attr]
    assert aligner.barrier(0, barrier(2), 3) == [UnblockAll(), TakeSnapshot(barrier(2), 2)]


def test_a_barrier_of_a_completed_or_aborted_checkpoint_is_ignored() -> None:
    """S3.4."""
    aligner = BarrierAligner(2, "exactly_once")
    aligner.barrier(0, barrier(3), 1)
    aligner.barrier(1, barrier(3), 1)
    assert aligner.barrier(0, barrier(2), 2) == []
    aligner.abort(4)
    assert aligner.barrier(0, barrier(4), 2) == []


def test_an_older_barrier_does_not_disturb_a_newer_alignment() -> None:
    """S3.4."""
    aligner = BarrierAligner(2, "exactly_once")
    aligner.barrier(0, barrier(2), 1)
    assert aligner.barrier(1, barrier(1), 2) == []
    assert aligner.barrier(1, barrier(2), 3) == [UnblockAll(), TakeSnapshot(barrier(2), 1)]


def test_a_channel_that_has_ended_counts_as_having_delivered_every_barrier() -> None:
    """S3.5."""
    aligner = BarrierAligner(2, "exactly_once")
    aligner.end_of_partition(1)
    assert aligner.barrier(0, barrier(1), 1) == [UnblockAll(), TakeSnapshot(barrier(1), 1)]


def test_a_channel_can_complete_an_alignment_by_ending() -> None:
    """S3.5."""
    aligner = BarrierAligner(2, "exactly_once")
    aligner.barrier(0, barrier(1), 1)
    assert aligner.end_of_partition(1) == [UnblockAll(), TakeSnapshot(barrier(1), 1)]


def test_a_channel_that_delivered_and_then_ended_is_not_counted_twice() -> None:
    """S3.5."""
    aligner = BarrierAligner(3, "exactly_once")
    aligner.barrier(0, barrier(1), 1)
    assert aligner.end_of_partition(0) == []
    assert aligner.barrier(1, barrier(1), 1) == [BlockChannel(1)]


def test_a_cancel_marker_unblocks_at_once_and_goes_downstream_once() -> None:
    """S3.4."""
    aligner = BarrierAligner(2, "exactly_once")
    aligner.barrier(0, barrier(1), 1)
    assert kinds(aligner.cancel(1)) == ["UnblockAll", "AlignmentAborted", "ForwardCancel"]
    assert aligner.cancel(1) == []


def test_a_cancel_marker_in_front_of_its_barriers_makes_them_block_nothing() -> None:
    """S3.4."""
    aligner = BarrierAligner(2, "exactly_once")
    actions = aligner.cancel(1)
    assert actions == [AlignmentAborted(1, actions[0].reason), ForwardCancel(1)]  # type: ignore[union-attr]
    assert aligner.barrier(0, barrier(1), 1) == []
    assert aligner.barrier(1, barrier(1), 1) == []


def test_an_abort_by_the_coordinator_unblocks_the_channels() -> None:
    """S2.2, S3.4."""
    aligner = BarrierAligner(2, "exactly_once")
    aligner.barrier(0, barrier(1), 1)
    assert aligner.abort(1) == [UnblockAll()]
    assert aligner.abort(1) == []
