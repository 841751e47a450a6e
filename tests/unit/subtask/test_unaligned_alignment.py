"""S3.7: the aligner when barriers may overtake; what S3.2-S3.5 mean then."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tidegate.channel.elements import CheckpointBarrier
from tidegate.subtask.alignment import (
    AlignmentAborted,
    AlignmentAction,
    BarrierAligner,
    BlockChannel,
    CaptureComplete,
    CaptureQueued,
    ForwardCancel,
    RecordChannel,
    StopRecording,
    TakeSnapshot,
    TakeUnaligned,
    UnblockAll,
)


def barrier(n: int, kind: Any = "checkpoint") -> CheckpointBarrier:
    return CheckpointBarrier(n, kind, 0)


def kinds(actions: list[AlignmentAction]) -> list[str]:
    return [type(action).__name__ for action in actions]


def at_once(channels: int) -> BarrierAligner:
    return BarrierAligner(channels, "exactly_once", unaligned_after_ms=0)


def taken(aligner: BarrierAligner, n: int, now_ms: int = 0) -> list[AlignmentAction]:
    """The checkpoint must be due; what the aligner wants after its snapshot."""
    assert TakeUnaligned(barrier(n), 0) in aligner.due_action(now_ms)
    return aligner.on_snapshot_taken(n)


# ------------------------------------------------------------ overtaking


def test_the_first_announced_barrier_takes_the_snapshot_and_what_is_queued_becomes_state() -> None:
    """S3.7."""
    aligner = at_once(2)
    assert aligner.due_ms is None
    assert aligner.on_barrier_queued(0, barrier(1), 7) == []
    assert aligner.due_ms == 7
    assert aligner.due_action(7) == [TakeUnaligned(barrier(1), 7)]
    assert aligner.on_snapshot_taken(1) == [CaptureQueued(1, 0), RecordChannel(1, 1)]
    assert aligner.on_barrier_queued(1, barrier(1), 9) == [CaptureQueued(1, 1), CaptureComplete(1)]


def test_a_single_channel_needs_only_what_is_queued() -> None:
    """S3.2, S3.7."""
    aligner = at_once(1)
    aligner.on_barrier_queued(0, barrier(1), 0)
    assert taken(aligner, 1) == [CaptureQueued(1, 0), CaptureComplete(1)]


def test_an_overtaken_barrier_is_ignored_when_its_turn_comes() -> None:
    """S3.7."""
    aligner = at_once(2)
    aligner.on_barrier_queued(0, barrier(1), 0)
    taken(aligner, 1)
    assert aligner.barrier(0, barrier(1), 1) == []
    aligner.on_barrier_queued(1, barrier(1), 2)
    assert aligner.barrier(1, barrier(1), 3) == []
    assert aligner.due_ms is None


def test_a_barrier_that_is_polled_before_its_announcement_is_looked_at_ends_the_recording() -> None:
    """S3.7: queues are filled by another thread."""
    aligner = at_once(2)
    aligner.on_barrier_queued(0, barrier(1), 0)
    taken(aligner, 1)
    assert aligner.barrier(1, barrier(1), 1) == [StopRecording(1, 1), CaptureComplete(1)]
    assert aligner.on_barrier_queued(1, barrier(1), 2) == []
    assert aligner.on_barrier_queued(0, barrier(1), 2) == []
    assert aligner.due_ms is None


def test_a_barrier_that_is_polled_first_of_all_blocks_only_until_the_snapshot() -> None:
    """S3.2, S3.7."""
    aligner = at_once(2)
    assert aligner.barrier(0, barrier(1), 0) == [BlockChannel(0)]
    assert aligner.due_action(0) == [UnblockAll(), TakeUnaligned(barrier(1), 0)]
    assert aligner.on_snapshot_taken(1) == [RecordChannel(1, 1)]


def test_announcements_during_the_flush_of_the_snapshot_count_as_arrived_before_it() -> None:
    """S3.6, S3.7."""
    aligner = at_once(2)
    aligner.on_barrier_queued(0, barrier(1), 0)
    aligner.due_action(0)
    assert aligner.on_barrier_queued(1, barrier(1), 1) == []
    assert aligner.on_snapshot_taken(1) == [CaptureQueued(1, 0), CaptureQueued(1, 1), CaptureComplete(1)]


@pytest.mark.parametrize("kind", ["savepoint", "stop-savepoint", "final"])
def test_only_checkpoints_overtake(kind: Any) -> None:
    """S3.7."""
    aligner = at_once(2)
    aligner.on_barrier_queued(0, barrier(1, kind), 0)
    assert aligner.due_ms is None
    assert aligner.due_action(1_000_000) == []
    assert aligner.barrier(0, barrier(1, kind), 5) == [BlockChannel(0)]
    assert aligner.barrier(1, barrier(1, kind), 6) == [UnblockAll(), TakeSnapshot(barrier(1, kind), 0)]


def test_a_checkpoint_overtakes_no_savepoint() -> None:
    """S3.1, S3.7: a barrier overtakes records, never another barrier."""
    aligner = at_once(2)
    aligner.on_barrier_queued(0, barrier(1, "savepoint"), 0)
    aligner.on_barrier_queued(0, barrier(2), 1)
    assert aligner.due_ms is None
    aligner.barrier(0, barrier(1, "savepoint"), 2)
    assert aligner.barrier(1, barrier(1, "savepoint"), 3) == [UnblockAll(), TakeSnapshot(barrier(1, "savepoint"), 0)]
    assert aligner.due_action(3) == [TakeUnaligned(barrier(2), 1)]


def test_a_savepoint_behind_an_overtaken_checkpoint_aligns() -> None:
    """S3.2, S3.7."""
    aligner = at_once(2)
    aligner.on_barrier_queued(0, barrier(1), 0)
    taken(aligner, 1)
    aligner.on_barrier_queued(0, barrier(2, "savepoint"), 1)
    assert aligner.barrier(0, barrier(1), 2) == []
    assert aligner.barrier(0, barrier(2, "savepoint"), 3) == [BlockChannel(0)]
    assert aligner.on_barrier_queued(1, barrier(1), 4) == [CaptureQueued(1, 1), CaptureComplete(1)]
    assert aligner.abort(1) == []
    assert aligner.barrier(1, barrier(2, "savepoint"), 5) == [UnblockAll(), TakeSnapshot(barrier(2, "savepoint"), 1)]


# ------------------------------------------------------------ aligned with timeout


def test_a_checkpoint_aligns_until_its_timeout_and_then_overtakes() -> None:
    """S3.7: the channel that was blocked has nothing more in front of its barrier."""
    aligner = BarrierAligner(3, "exactly_once", unaligned_after_ms=100)
    aligner.on_barrier_queued(0, barrier(1), 50)
    assert aligner.due_action(149) == []
    assert aligner.barrier(0, barrier(1), 60) == [BlockChannel(0)]
    aligner.on_barrier_queued(1, barrier(1), 140)
    assert aligner.due_ms == 150
    assert aligner.due_action(150) == [UnblockAll(), TakeUnaligned(barrier(1), 50)]
    assert aligner.on_snapshot_taken(1) == [CaptureQueued(1, 1), RecordChannel(1, 2)]


def test_the_timeout_counts_from_the_first_arrival_not_from_its_turn() -> None:
    """S3.7."""
    aligner = BarrierAligner(2, "exactly_once", unaligned_after_ms=100)
    aligner.on_barrier_queued(1, barrier(1), 10)
    aligner.barrier(1, barrier(1), 90)
    assert aligner.due_action(110) == [UnblockAll(), TakeUnaligned(barrier(1), 10)]


def test_a_checkpoint_whose_barriers_all_come_in_time_stays_aligned() -> None:
    """S3.2, S3.7."""
    aligner = BarrierAligner(2, "exactly_once", unaligned_after_ms=100)
    aligner.on_barrier_queued(0, barrier(1), 1)
    aligner.barrier(0, barrier(1), 2)
    assert aligner.barrier(1, barrier(1), 3) == [UnblockAll(), TakeSnapshot(barrier(1), 1)]
    assert aligner.on_barrier_queued(1, barrier(1), 4) == []
    assert aligner.due_ms is None


# ------------------------------------------------------------ several at once


def test_two_checkpoints_are_captured_at_the_same_time() -> None:
    """S3.7: max_concurrent_checkpoints; the later one's barrier came on channels that had brought the earlier."""
    aligner = at_once(2)
    aligner.on_barrier_queued(0, barrier(1), 0)
    aligner.on_barrier_queued(0, barrier(2), 0)
    assert taken(aligner, 1) == [CaptureQueued(1, 0), RecordChannel(1, 1)]
    assert taken(aligner, 2) == [CaptureQueued(2, 0), RecordChannel(2, 1)]
    assert aligner.on_barrier_queued(1, barrier(1), 3) == [CaptureQueued(1, 1), CaptureComplete(1)]
    assert aligner.on_barrier_queued(1, barrier(2), 4) == [CaptureQueued(2, 1), CaptureComplete(2)]


def test_the_earlier_of_two_waiting_checkpoints_overtakes_first() -> None:
    """S3.1, S3.7: barriers leave in the order of their ids."""
    aligner = BarrierAligner(1, "exactly_once", unaligned_after_ms=10)
    aligner.on_barrier_queued(0, barrier(1), 0)
    aligner.on_barrier_queued(0, barrier(2), 5)
    assert aligner.due_action(100) == [TakeUnaligned(barrier(1), 0)]
    assert aligner.on_snapshot_taken(1) == [CaptureQueued(1, 0), CaptureComplete(1)]
    assert aligner.due_action(100) == [TakeUnaligned(barrier(2), 5)]


def test_a_newer_barrier_on_a_channel_without_the_older_one_gives_the_older_up() -> None:
    """S3.4: captured already or not, it cannot complete; reported, and cancelled downstream."""
    aligner = at_once(2)
    aligner.on_barrier_queued(0, barrier(1), 0)
    taken(aligner, 1)
    assert aligner.on_barrier_queued(1, barrier(2), 1) == []
    assert aligner.due_ms == 0
    actions = aligner.due_action(1)
    assert kinds(actions) == ["AlignmentAborted", "ForwardCancel", "TakeUnaligned"]
    assert actions[0] == AlignmentAborted(1, "a barrier of checkpoint 2 arrived before all barriers of checkpoint 1")
    assert actions[1:] == [ForwardCancel(1), TakeUnaligned(barrier(2), 1)]
    assert aligner.barrier(0, barrier(1), 2) == []


def test_a_newer_barrier_that_is_polled_gives_the_older_up_too() -> None:
    """S3.4."""
    aligner = at_once(2)
    aligner.on_barrier_queued(0, barrier(1), 0)
    taken(aligner, 1)
    assert kinds(aligner.barrier(1, barrier(2), 1)) == ["AlignmentAborted", "ForwardCancel", "BlockChannel"]


def test_what_was_given_up_does_not_take_a_still_older_one_with_it() -> None:
    """S3.4: 2 was passed over by 3 on channel 1; 1 was not."""
    aligner = at_once(3)
    for n in (1, 2):
        aligner.on_barrier_queued(0, barrier(n), 0)
        taken(aligner, n)
    aligner.on_barrier_queued(1, barrier(1), 1)
    aligner.on_barrier_queued(1, barrier(3), 2)
    assert aligner.due_action(2)[0] == AlignmentAborted(
        2, "a barrier of checkpoint 3 arrived before all barriers of checkpoint 2"
    )
    assert aligner.on_barrier_queued(2, barrier(1), 3) == [CaptureQueued(1, 2), CaptureComplete(1)]


def test_an_older_barrier_that_comes_after_a_newer_one_is_ignored() -> None:
    """S3.4."""
    aligner = at_once(2)
    aligner.on_barrier_queued(1, barrier(2), 0)
    assert aligner.on_barrier_queued(0, barrier(1), 1) == []
    assert aligner.due_action(1) == [TakeUnaligned(barrier(2), 0)]
    assert aligner.on_snapshot_taken(2) == [RecordChannel(2, 0), CaptureQueued(2, 1)]


# ------------------------------------------------------------ cancelled, aborted


def test_an_abort_before_the_overtaking_leaves_nothing_due() -> None:
    """S2.2, S3.7."""
    aligner = BarrierAligner(2, "exactly_once", unaligned_after_ms=100)
    aligner.on_barrier_queued(0, barrier(1), 0)
    aligner.barrier(0, barrier(1), 1)
    assert aligner.abort(1) == [UnblockAll()]
    assert aligner.due_ms is None
    assert aligner.on_barrier_queued(1, barrier(1), 2) == []
    assert aligner.barrier(1, barrier(1), 3) == []


def test_an_abort_during_the_flush_of_the_snapshot_leaves_nothing_to_capture() -> None:
    """S2.2, S3.7."""
    aligner = at_once(2)
    aligner.on_barrier_queued(0, barrier(1), 0)
    aligner.due_action(0)
    assert aligner.abort(1) == []
    assert aligner.on_snapshot_taken(1) == []


def test_an_abort_ends_the_capture_without_unblocking_another_alignment() -> None:
    """S2.2, S3.7."""
    aligner = at_once(2)
    aligner.on_barrier_queued(0, barrier(1), 0)
    taken(aligner, 1)
    aligner.barrier(0, barrier(1), 1)
    assert aligner.barrier(0, barrier(2, "savepoint"), 2) == [BlockChannel(0)]
    assert aligner.abort(1) == []
    assert aligner.on_barrier_queued(1, barrier(1), 3) == []
    assert aligner.barrier(1, barrier(1), 4) == []
    assert aligner.barrier(1, barrier(2, "savepoint"), 5)[0] == UnblockAll()


def test_a_checkpoint_that_was_only_announced_unblocks_nothing_when_it_is_dropped() -> None:
    """S2.2, S3.2, S3.7: channel 0 has delivered savepoint 1 and must wait for channel 1, whatever becomes of 2."""
    for drop in (BarrierAligner.abort, BarrierAligner.cancel):
        aligner = at_once(2)
        aligner.on_barrier_queued(0, barrier(1, "savepoint"), 0)
        assert aligner.barrier(0, barrier(1, "savepoint"), 1) == [BlockChannel(0)]
        aligner.on_barrier_queued(0, barrier(2), 2)
        assert UnblockAll() not in drop(aligner, 2)
        assert aligner.barrier(1, barrier(1, "savepoint"), 3)[0] == UnblockAll()


def test_a_cancel_marker_ends_the_capture_and_goes_downstream_once() -> None:
    """S3.4, S3.7."""
    aligner = at_once(2)
    aligner.on_barrier_queued(0, barrier(1), 0)
    taken(aligner, 1)
    assert kinds(aligner.cancel(1)) == ["AlignmentAborted", "ForwardCancel"]
    assert aligner.cancel(1) == []
    assert aligner.on_barrier_queued(1, barrier(1), 2) == []


def test_a_barrier_announced_after_its_cancel_marker_overtakes_nothing() -> None:
    """S3.4, S3.7."""
    aligner = at_once(2)
    aligner.cancel(1)
    aligner.on_barrier_queued(0, barrier(1), 1)
    assert aligner.due_ms is None
    assert aligner.due_action(9) == []


# ------------------------------------------------------------ ends


def test_an_end_that_arrives_completes_the_capture_of_its_channel() -> None:
    """S3.5, S3.7."""
    aligner = at_once(2)
    aligner.on_barrier_queued(0, barrier(1), 0)
    taken(aligner, 1)
    assert aligner.on_end_queued(1) == [CaptureQueued(1, 1), CaptureComplete(1)]
    assert aligner.end_of_partition(1) == []


def test_an_end_that_is_polled_before_its_announcement_completes_the_capture_once() -> None:
    """S3.5, S3.7."""
    aligner = at_once(2)
    aligner.on_barrier_queued(0, barrier(1), 0)
    taken(aligner, 1)
    assert aligner.end_of_partition(1) == [StopRecording(1, 1), CaptureComplete(1)]
    assert aligner.on_end_queued(1) == []


def test_what_is_queued_in_front_of_an_end_without_barrier_is_captured() -> None:
    """S3.5, S3.7."""
    aligner = at_once(3)
    aligner.on_end_queued(1)
    aligner.on_end_queued(2)
    aligner.end_of_partition(2)
    aligner.on_barrier_queued(0, barrier(1), 0)
    assert taken(aligner, 1) == [CaptureQueued(1, 0), CaptureQueued(1, 1), CaptureComplete(1)]


def test_an_end_behind_the_barrier_is_not_counted_twice() -> None:
    """S3.5, S3.7."""
    aligner = at_once(3)
    for channel in (0, 1):
        aligner.on_barrier_queued(channel, barrier(1), 0)
    assert taken(aligner, 1) == [CaptureQueued(1, 0), CaptureQueued(1, 1), RecordChannel(1, 2)]
    assert aligner.on_end_queued(0) == []
    assert aligner.barrier(0, barrier(1), 1) == []
    assert aligner.end_of_partition(0) == []
    assert aligner.on_barrier_queued(2, barrier(1), 2) == [CaptureQueued(1, 2), CaptureComplete(1)]


# ------------------------------------------------------------ triggered here, inputs over


def test_a_trigger_overtakes_as_soon_as_every_end_has_arrived() -> None:
    """S1.3, S3.7: what is queued becomes state, so that nothing buffered is skipped."""
    aligner = at_once(2)
    aligner.on_end_queued(0)
    aligner.end_of_partition(0)
    assert aligner.triggered(barrier(4), since_ms=0, now_ms=0) == []
    aligner.on_end_queued(1)
    assert aligner.triggered(barrier(4), since_ms=0, now_ms=1) == [TakeUnaligned(barrier(4), 0)]
    assert aligner.on_snapshot_taken(4) == [CaptureQueued(4, 1), CaptureComplete(4)]


def test_a_trigger_waits_for_its_timeout_and_for_the_savepoint_in_front_of_it() -> None:
    """S1.3, S3.7."""
    aligner = BarrierAligner(1, "exactly_once", unaligned_after_ms=50)
    aligner.on_barrier_queued(0, barrier(3, "savepoint"), 0)
    aligner.on_end_queued(0)
    assert aligner.triggered(barrier(4), since_ms=10, now_ms=100) == []
    aligner.barrier(0, barrier(3, "savepoint"), 20)
    assert aligner.triggered(barrier(4), since_ms=10, now_ms=59) == []
    assert aligner.triggered(barrier(4, "final"), since_ms=10, now_ms=60) == []
    assert aligner.triggered(barrier(4), since_ms=10, now_ms=60) == [TakeUnaligned(barrier(4), 10)]


# ------------------------------------------------------------ other modes


def test_at_least_once_is_never_unaligned() -> None:
    """S3.3, S3.7."""
    with pytest.raises(AssertionError, match="never unaligned"):
        BarrierAligner(2, "at_least_once", unaligned_after_ms=0)


def test_switched_off_it_declines_once_and_tells_downstream() -> None:
    """S3.3: at most once; nobody waits for a subtask that takes no part."""
    aligner = BarrierAligner(2, "off")
    assert aligner.barrier(0, barrier(1), 0) == [AlignmentAborted(1, "checkpointing is off"), ForwardCancel(1)]
    assert aligner.barrier(1, barrier(1), 0) == []


def test_aligned_checkpoints_do_not_listen_to_time() -> None:
    """S3.2."""
    aligner = BarrierAligner(2, "exactly_once")
    aligner.barrier(0, barrier(1), 0)
    assert aligner.due_ms is None
    assert aligner.due_action(10**9) == []


# ------------------------------------------------------------ any order of events


@pytest.mark.parametrize("seed", range(200))
def test_every_snapshot_is_taken_once_in_order_with_just_what_lay_in_front_of_its_barriers(seed: int) -> None:
    """S3.1, S3.2, S3.7: what a snapshot holds and what it captured of a channel together are the records in front of
    its barrier there, without gap or repetition, whatever the timing."""
    random = Random(seed)
    channels, gap, timeout_ms = random.randint(1, 4), random.randint(1, 4), random.choice([0, 3, 10])
    sequence = [random.choice(["checkpoint", "checkpoint", "savepoint"]) for _ in range(random.randint(1, 4))]
    barriers = [barrier(n + 1, kind) for n, kind in enumerate(sequence)]
    sent: list[list[Any]] = []
    for _ in range(channels):
        elements: list[Any] = []
        for b in barriers:
            elements += ["record"] * random.randrange(gap + 1)
            elements.append(b)
        sent.append(elements)
    model = Model(channels, timeout_ms, sent)
    while not model.is_over:
        model.step(random)
    assert model.order == sorted(model.order) == [b.checkpoint_id for b in barriers]
    assert sorted(model.complete) == model.order
    for b in barriers:
        for channel, elements in enumerate(sent):
            in_front = elements[: elements.index(b)].count("record")
            assert model.processed_at[b.checkpoint_id][channel] + model.captured[b.checkpoint_id][channel] == in_front


class Model:
    """Channels as lists, a subtask that obeys the aligner."""

    def __init__(self, channels: int, timeout_ms: int, sent: list[list[Any]]) -> None:
        self.aligner = BarrierAligner(channels, "exactly_once", unaligned_after_ms=timeout_ms)
        self.now_ms = 0
        self.coming = [list(elements) for elements in sent]
        self.queues: list[list[Any]] = [[] for _ in range(channels)]
        self.news: list[tuple[int, CheckpointBarrier]] = []
        self.blocked: set[int] = set()
        self.records = [0] * channels
        self.recording: set[tuple[int, int]] = set()
        self.order: list[int] = []
        self.complete: list[int] = []
        self.processed_at: dict[int, list[int]] = {}
        self.captured: dict[int, list[int]] = {}

    @property
    def is_over(self) -> bool:
        return not any(self.coming) and not any(self.queues) and not self.news and self.aligner.due_ms is None

    def step(self, random: Random) -> None:
        self.now_ms += random.randrange(4)
        match random.choice(["arrive", "arrive", "news", "due", "poll"]):
            case "arrive":
                channel = random.randrange(len(self.coming))
                if self.coming[channel]:
                    element = self.coming[channel].pop(0)
                    self.queues[channel].append(element)
                    if element != "record":
                        self.news.append((channel, element))
            case "news":
                while self.news and random.random() < 0.8:
                    self.do(self.aligner.on_barrier_queued(*self.news.pop(0), self.now_ms))
            case "due":
                self.do(self.aligner.due_action(self.now_ms))
            case "poll":
                channel = random.randrange(len(self.queues))
                if self.queues[channel] and channel not in self.blocked:
                    self.take(channel, self.queues[channel].pop(0))

    def take(self, channel: int, element: Any) -> None:
        if element == "record":
            self.records[channel] += 1
            for n, recorded in self.recording:
                self.captured[n][channel] += recorded == channel
        else:
            self.do(self.aligner.barrier(channel, element, self.now_ms))

    def do(self, actions: list[AlignmentAction]) -> None:
        for action in actions:
            match action:
                case BlockChannel(channel):
                    self.blocked.add(channel)
                case UnblockAll():
                    self.blocked.clear()
                case TakeSnapshot(b):
                    self.snapshot(b.checkpoint_id)
                    self.complete.append(b.checkpoint_id)
                case TakeUnaligned(b):
                    self.snapshot(b.checkpoint_id)
                    self.do(self.aligner.on_snapshot_taken(b.checkpoint_id))
                case RecordChannel(n, channel):
                    self.recording.add((n, channel))
                case StopRecording(n, channel):
                    self.recording.discard((n, channel))
                case CaptureQueued(n, channel):
                    self.recording.discard((n, channel))
                    ids = [e if e == "record" else e.checkpoint_id for e in self.queues[channel]]
                    self.captured[n][channel] += ids[: ids.index(n)].count("record")
                case CaptureComplete(n):
                    self.complete.append(n)
                case other:
                    raise AssertionError(f"nothing may be given up here: {other}")

    def snapshot(self, n: int) -> None:
        self.order.append(n)
        self.processed_at[n] = list(self.records)
        self.captured[n] = [0] * len(self.queues)
