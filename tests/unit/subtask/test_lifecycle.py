"""S7.2, S7.3: how a subtask ends; S4.4: its watermark."""

from __future__ import annotations

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.subtask.lifecycle import AllInputsEnded, InputEnded, SubtaskLifecycle
from tidegate.subtask.watermarks import WatermarkTracker


def test_an_input_has_ended_when_all_its_channels_have() -> None:
    """S7.2."""
    life = SubtaskLifecycle([0, 0, 1], wait_for_final=True)
    assert life.end_of_data(0, True) == []
    assert life.end_of_data(1, True) == [InputEnded(0, True)]
    assert life.end_of_data(2, True) == [InputEnded(1, True), AllInputsEnded(True)]


def test_drain_holds_only_if_every_input_said_drain() -> None:
    """S7.2."""
    life = SubtaskLifecycle([0, 1], wait_for_final=True)
    life.end_of_data(0, True)
    assert life.end_of_data(1, False) == [InputEnded(1, False), AllInputsEnded(False)]


def test_end_of_data_counts_once_per_channel() -> None:
    life = SubtaskLifecycle([0, 0], wait_for_final=True)
    assert life.end_of_data(0, True) == []
    assert life.end_of_data(0, True) == []


def test_an_ended_subtask_waits_for_a_snapshot_that_starts_after_its_end() -> None:
    """S7.3."""
    life = SubtaskLifecycle([], wait_for_final=True)
    life.on_snapshot_taken(1)
    life.snapshot_settled(1)
    life.end_of_data_sent()
    life.committed(1)
    assert not life.may_finish
    life.on_snapshot_taken(2)
    life.snapshot_settled(2)
    life.committed(2)
    assert life.may_finish


def test_a_subtask_does_not_finish_before_its_part_of_every_snapshot_is_over() -> None:
    """S7.3: a savepoint beside the final snapshot, that completes later."""
    life = SubtaskLifecycle([], wait_for_final=True)
    life.end_of_data_sent()
    life.on_snapshot_taken(1)
    life.on_snapshot_taken(2)
    life.snapshot_settled(1)
    life.committed(1)
    assert not life.may_finish
    life.snapshot_settled(2)
    life.snapshot_settled(2)
    assert life.may_finish


def test_without_a_final_snapshot_an_ended_source_may_finish_at_once() -> None:
    life = SubtaskLifecycle([], wait_for_final=False)
    assert not life.may_finish
    life.end_of_data_sent()
    assert life.may_finish


def test_an_ended_subtask_may_finish_when_it_is_told_that_no_final_snapshot_is_to_come() -> None:
    """S7.3."""
    life = SubtaskLifecycle([], wait_for_final=True)
    life.end_of_data_sent()
    assert not life.may_finish
    life.allow_finish()
    assert life.may_finish


def test_a_subtask_does_not_finish_before_its_inputs_have_reached_end_of_partition() -> None:
    """S7.3."""
    life = SubtaskLifecycle([0], wait_for_final=False)
    life.end_of_data(0, True)
    life.end_of_data_sent()
    assert not life.may_finish
    life.end_of_partition(0)
    assert life.may_finish


def test_the_watermark_is_the_minimum_over_channels_and_never_goes_back() -> None:
    """S4.4."""
    tracker = WatermarkTracker(2)
    assert tracker.watermark(0, 10) is None
    assert tracker.watermark(1, 5) == 5
    assert tracker.watermark(1, 3) is None
    assert tracker.watermark(1, 20) == 10


def test_an_idle_channel_is_left_out_of_the_minimum() -> None:
    """S4.4."""
    tracker = WatermarkTracker(2)
    tracker.watermark(0, 10)
    assert tracker.idle(1, True) == 10
    assert tracker.idle(1, False) is None
    assert tracker.watermark(1, 7) is None


def test_an_ended_channel_counts_as_max_watermark() -> None:
    """S4.4."""
    tracker = WatermarkTracker(2)
    tracker.watermark(0, 10)
    assert tracker.ended(1) == 10
    assert tracker.ended(0) == MAX_WATERMARK


def test_a_channel_that_brings_no_time_holds_back_the_end_alone() -> None:
    """S4.4: beside a stream with watermarks, one without them."""
    tracker = WatermarkTracker(3, timeless=[2])
    tracker.watermark(0, 10)
    assert tracker.watermark(1, 5) == 5
    assert tracker.idle(2, False) is None
    assert tracker.watermark(1, 7) == 7
    assert tracker.watermark(0, MAX_WATERMARK) is None
    assert tracker.watermark(1, MAX_WATERMARK) is None
    assert tracker.ended(2) == MAX_WATERMARK
