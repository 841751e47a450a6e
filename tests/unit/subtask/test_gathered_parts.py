"""Parts of small batches are sent together, in the emission that made them (S3.1, S4.4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from builders.subtasks import SubtaskHarness

from tidegate.channel.control.protocol import Cancel
from tidegate.channel.elements import MAX_WATERMARK, CheckpointBarrier, Element, EndOfData, IdleStatus, Watermark
from tidegate.channel.memory import MemoryChannel
from tidegate.connectors.interface import PollResult, SourceReader, Split
from tidegate.operators.time.watermark_specs import AlignmentGroup
from tidegate.subtask.router import OutputEdge, Router
from tidegate.subtask.slot import LINGER_S, LoopSignal, Slot
from tidegate.subtask.source import SourceInput
from tidegate.subtask.subtask import GATHERED_POLLS, GATHERING_MS

BARRIER = CheckpointBarrier(1, "checkpoint", 0, None)


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"v": pa.array(values, pa.int64())})


def by_parity(batch: pa.RecordBatch) -> Sequence[pa.RecordBatch | None]:
    values = batch["v"].to_pylist()
    return [rows(*(v for v in values if v % 2 == parity)) for parity in (0, 1)]


def taken(channel: MemoryChannel) -> list[Element | list[int]]:
    found: list[Element | list[int]] = []
    while (element := channel.poll()) is not None:
        found.append(element["v"].to_pylist() if isinstance(element, pa.RecordBatch) else element)
    return found


@pytest.fixture
def even() -> MemoryChannel:
    return MemoryChannel(1_000_000)


@pytest.fixture
def odd() -> MemoryChannel:
    return MemoryChannel(1_000_000)


@pytest.fixture
def edge(even: MemoryChannel, odd: MemoryChannel) -> OutputEdge:
    return OutputEdge([even, odd], by_parity, gathered_bytes=200)


def test_parts_wait_for_the_end_of_the_emission_and_keep_their_order(
    edge: OutputEdge, even: MemoryChannel, odd: MemoryChannel
) -> None:
    router = Router([edge])
    for batch in (rows(1, 2), rows(4), rows(3, 6)):
        router.send(batch)
    assert router.gathers and taken(even) == taken(odd) == []
    router.flush()
    assert not router.gathers
    assert (taken(even), taken(odd)) == ([[2, 4, 6]], [[1, 3]])
    router.flush()
    assert taken(even) == []


def test_enough_parts_are_sent_at_once(edge: OutputEdge, even: MemoryChannel, odd: MemoryChannel) -> None:
    edge.send(rows(*range(24)))
    assert edge.gathers, "192 bytes are less than 200"
    edge.send(rows(24))
    assert not edge.gathers
    assert (taken(even), taken(odd)) == ([[*range(0, 25, 2)]], [[*range(1, 24, 2)]])


@pytest.mark.parametrize("event", [BARRIER, IdleStatus(True)])
def test_events_follow_the_parts_that_were_sent_before_them(
    edge: OutputEdge, even: MemoryChannel, odd: MemoryChannel, event: Element
) -> None:
    edge.send(rows(1, 2))
    edge.send(event)
    assert (taken(even), taken(odd)) == ([[2], event], [[1], event])


def test_the_newest_watermark_follows_the_gathered_parts(
    edge: OutputEdge, even: MemoryChannel, odd: MemoryChannel
) -> None:
    """A watermark may be later than it could be, but never precedes rows that came before it (S4.4)."""
    edge.send(Watermark(1))
    edge.send(rows(1, 2))
    edge.send(Watermark(5))
    edge.send(rows(2))
    edge.send(Watermark(7))
    edge.send(BARRIER)
    assert taken(even) == [Watermark(1), [2, 2], Watermark(7), BARRIER]
    assert taken(odd) == [Watermark(1), [1], Watermark(7), BARRIER]


def test_nothing_is_gathered_without_a_partitioner(even: MemoryChannel, odd: MemoryChannel) -> None:
    edge = OutputEdge([even, odd])
    edge.send(rows(1))
    assert not edge.gathers
    assert (taken(even), taken(odd)) == ([[1]], [[1]])


def test_one_batch_per_channel_needs_no_more_capacity_than_the_first() -> None:
    """`has_capacity` was true before each batch, and a flush sends one batch on each channel."""
    channel = MemoryChannel(8)
    edge = OutputEdge([channel, MemoryChannel(10)], by_parity, gathered_bytes=1_000)
    for number in range(20):
        assert edge.has_capacity()
        edge.send(rows(2 * number))
    edge.flush()
    assert not edge.has_capacity()
    assert taken(channel) == [[2 * number for number in range(20)]]


class Script(SourceReader):
    """Returns scripted results; the position is the number of results."""

    def __init__(self, *results: PollResult) -> None:
        self.results = list(results)
        self.polls = 0

    def add_splits(self, splits: Sequence[Split]) -> None: ...

    def poll(self, now_ms: int) -> PollResult:
        self.polls += 1
        return self.results.pop(0) if self.results else PollResult(state="nothing_now", retry_at_ms=now_ms + 7)

    def snapshot(self) -> Sequence[Split]:
        return [Split("s", {}, position=self.polls)]


def batch_of(*values: int) -> PollResult:
    return PollResult(rows(*values), "s")


def sourced(edge: OutputEdge, reader: Script, **slot_facts: Any) -> SubtaskHarness:
    source = SourceInput("source", reader, (), 0)
    return SubtaskHarness(edges=[edge], ports=(), uids=(), source=source, slot_facts=slot_facts)


def test_polls_of_a_source_are_sent_together(edge: OutputEdge, even: MemoryChannel, odd: MemoryChannel) -> None:
    harness = sourced(edge, reader := Script(batch_of(1, 2), batch_of(4), batch_of(3)))
    assert harness.slot.run_round()
    assert reader.polls == 4
    assert (taken(even), taken(odd)) == ([[2, 4]], [[1, 3]])
    assert harness.out() == [[1, 2], [4], [3]], "an edge without a partitioner sends each batch"
    assert harness.subtask.source_waits and harness.subtask.retry_at_ms(0) == 7


def test_a_source_with_a_backlog_is_polled_a_limited_number_of_times(edge: OutputEdge, even: MemoryChannel) -> None:
    harness = sourced(edge, reader := Script(*(batch_of(2) for _ in range(20))))
    assert harness.slot.run_round()
    assert reader.polls == GATHERED_POLLS
    assert taken(even) == [[2] * GATHERED_POLLS]
    assert not harness.subtask.source_waits


def test_the_end_of_a_source_follows_its_last_rows(edge: OutputEdge, even: MemoryChannel) -> None:
    """S7.2, also if the end is found while parts are gathered."""
    sourced(edge, Script(batch_of(2), PollResult(state="end"))).pump()
    assert taken(even)[:3] == [[2], Watermark(MAX_WATERMARK), EndOfData(drain=True)]


def test_a_snapshot_holds_exactly_the_rows_before_its_barrier(edge: OutputEdge, even: MemoryChannel) -> None:
    """S4.1: no rows are gathered when a barrier is sent."""
    harness = sourced(edge, reader := Script(*(batch_of(2) for _ in range(GATHERED_POLLS + 3))))
    assert harness.subtask.step()
    harness.subtask.trigger(BARRIER)
    harness.pump()
    found = taken(even)
    at = found.index(BARRIER)
    assert sum(len(part) for part in found[:at] if isinstance(part, list)) == GATHERED_POLLS
    assert found[at + 1 :] == [[2, 2, 2]]
    assert reader.polls == GATHERED_POLLS + 4


def test_a_slow_source_is_not_polled_again(edge: OutputEdge) -> None:
    """Neither a trigger nor the first rows wait for several slow polls."""
    harness = sourced(edge, reader := Script(*(batch_of(2) for _ in range(20))))

    def slow(now_ms: int) -> PollResult:
        harness.clock.now += GATHERING_MS // 2
        return Script.poll(reader, now_ms)

    reader.poll = slow  # type: ignore[method-assign]
    assert harness.slot.run_round()
    assert reader.polls == 3, "the first poll, and two until the time is over"


def test_time_without_a_core_is_no_reason_to_send_less(edge: OutputEdge) -> None:
    """With more slots than cores, the loop spends most of its time without a core."""
    waited: list[int] = []
    harness = sourced(edge, reader := Script(*(batch_of(2) for _ in range(20))), core_wait_ms=lambda: sum(waited))

    def without_core(now_ms: int) -> PollResult:
        harness.clock.now += GATHERING_MS
        waited.append(GATHERING_MS)
        return Script.poll(reader, now_ms)

    reader.poll = without_core  # type: ignore[method-assign]
    assert harness.slot.run_round()
    assert reader.polls == GATHERED_POLLS


def test_a_source_that_is_paused_while_its_rows_wait_is_not_polled_again(edge: OutputEdge) -> None:
    """S7.8: a pause holds at once, also in the middle of an emission."""
    output = MemoryChannel(1)
    source = SourceInput("source", reader := Script(*(batch_of(2) for _ in range(20))), (), 0)
    harness = SubtaskHarness(edges=[edge], ports=(), uids=(), source=source, output=output)
    harness.slot.run_round()
    assert reader.polls == 1, "the rows of the first poll have used the capacity"
    source.pause("ahead", True)
    assert taken(output) == [[2]]
    harness.pump()
    assert reader.polls == 1
    source.pause("ahead", False)
    harness.slot.run_round()
    assert reader.polls == 2


def test_a_source_of_an_alignment_group_is_polled_once_a_round(edge: OutputEdge) -> None:
    """The slot compares its watermark with the group's between two rounds."""
    group = AlignmentGroup("g", 1_000)
    source = SourceInput("source", reader := Script(*(batch_of(2) for _ in range(20))), (), 0, group=group)
    harness = SubtaskHarness(edges=[edge], ports=(), uids=(), source=source)
    harness.subtask.step()
    assert reader.polls == 1


def test_batches_of_another_schema_are_sent_apart(even: MemoryChannel) -> None:
    """A reader may return columns with and without nulls, which Arrow does not join."""
    edge = OutputEdge([even], lambda batch: [batch], gathered_bytes=10_000)
    strict = pa.schema([pa.field("v", pa.int64(), nullable=False)])
    edge.send(pa.record_batch([pa.array([1])], schema=strict))
    edge.send(rows(2))
    edge.send(rows(3))
    edge.flush()
    assert taken(even) == [[1], [2, 3]]


def test_a_hot_key_does_not_gather_more_than_its_channel_holds(even: MemoryChannel, odd: MemoryChannel) -> None:
    edge = OutputEdge([even, odd], by_parity, gathered_bytes=10**9, channel_bytes=100)
    for _ in range(4):
        edge.send(rows(2, 4, 6))
    assert edge.gathers, "96 bytes are less than 100"
    edge.send(rows(8))
    assert not edge.gathers
    assert (taken(even), taken(odd)) == ([[2, 4, 6] * 4 + [8]], [])


class Signal(LoopSignal):
    """Records how the loop waits, and cancels the run at the first real wait."""

    def __init__(self) -> None:
        super().__init__()
        self.lingered: list[float] = []
        self.slot: Slot | None = None

    def wait(self, timeout_s: float) -> None:
        assert self.slot is not None
        self.slot.post(Cancel())

    def linger(self, pause_s: float) -> None:
        self.lingered.append(pause_s)


def lingered(harness: SubtaskHarness, signal: Signal) -> list[float]:
    signal.slot = harness.slot
    harness.slot.run()
    return signal.lingered


def test_the_loop_lingers_for_rows_of_other_slots_when_its_sources_are_read(edge: OutputEdge) -> None:
    signal = Signal()
    source = SourceInput("source", Script(batch_of(1, 2)), (), 0)
    facts = {"wake": signal, "linger_s": LINGER_S}
    harness = SubtaskHarness(edges=[edge], ports=(), uids=(), source=source, slot_facts=facts)
    assert lingered(harness, signal) == [LINGER_S]


def test_the_loop_never_lingers_while_a_source_has_more(edge: OutputEdge) -> None:
    signal = Signal()
    source = SourceInput("source", Script(*(batch_of(2) for _ in range(2 * GATHERED_POLLS))), (), 0)
    facts = {"wake": signal, "linger_s": LINGER_S}
    harness = SubtaskHarness(edges=[edge], ports=(), uids=(), source=source, slot_facts=facts)
    assert lingered(harness, signal) == []


def test_a_slot_alone_never_lingers(edge: OutputEdge) -> None:
    signal = Signal()
    source = SourceInput("source", Script(batch_of(1, 2)), (), 0)
    harness = SubtaskHarness(edges=[edge], ports=(), uids=(), source=source, slot_facts={"wake": signal})
    assert lingered(harness, signal) == []
