"""PySpark's StatefulProcessor over keyed state: what its handle, states and timers do, and when it is called."""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from builders.batches import batch_of
from builders.operators import OperatorHarness
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.compat.pyspark_stateful.processor_calls import TURN_CALLS
from tidegate.compat.pyspark_stateful.processor_specs import INITIAL, StatefulProcessorSpec
from tidegate.compat.pyspark_stateful.spark_ddl import schema_of
from tidegate.compat.pyspark_stateful.spark_values import arrow_schema
from tidegate.compat.pyspark_stateful.state_declarations import declared
from tidegate.compat.pyspark_stateful.state_overlays import LARGE_MAP_ENTRIES
from tidegate.compat.pyspark_stateful.transform_with_state import (
    LEAST_MERGED_BYTES,
    MERGED_BYTES_OF_FRAMES,
    MERGED_BYTES_OF_ROWS,
    TransformWithState,
)
from tidegate.errors import PipelineError, SnapshotError
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.stream_operator import TURN_OVER
from tidegate.snapshot.parts import StatePart
from tidegate.snapshot.redistribution import Rescale, redistributed

GROUPS = 16
INPUT = pa.schema([("k", pa.string()), ("n", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
START = pa.schema([("owner", pa.string()), ("n", pa.int64())])
Said = tuple[str | None, str]


class ProcessorHarness(OperatorHarness[list[Said]]):
    """The operator of a processor; what the processor says as (key, words)."""

    def __init__(
        self,
        processor: StatefulProcessor,
        mode: str = "none",
        restored: Sequence[StatePart] | None = None,
        *,
        place: tuple[int, int] = (0, 1),
        initial: bool = False,
        output: str = "k STRING, what STRING",
        output_time: str | None = None,
        on_end: Any = "fire",
        back_end: Any = "heap",
        pandas: bool = False,
        drained: bool = False,
    ) -> None:
        found = declared(processor, mode, "here")
        schema = arrow_schema(schema_of(output, "it", "here"), "it", "here", nullable=False)
        time = "t" if mode == "eventtime" else None
        start = (START, ("owner",)) if initial else (None, ())
        self.spec = StatefulProcessorSpec(
            *(processor, pandas, found.states, found.deleted, mode, ("k",), time, "us", INPUT, *start, schema),
            *(output_time, "us"),
        )
        operator = create_operator(self.spec)
        assert isinstance(operator, TransformWithState)
        super().__init__(
            operator,
            said,
            INPUT,
            restored=restored,
            now_ms=1_000,
            max_parallelism=GROUPS,
            subtask=place[0],
            parallelism=place[1],
            processing_time_on_end=on_end,
            state_backend=back_end,
            drained=drained,
        )

    def feed(self, *rows: tuple[str | None, int | None, int | None]) -> list[Said]:
        """Rows of (key, number, event time in seconds)."""
        return self.process(batch_of(INPUT, [(k, n, None if s is None else s * 1_000_000) for k, n, s in rows]))

    def start(self, *rows: tuple[str, int]) -> list[Said]:
        """Rows of the initial state."""
        return self.process(batch_of(START, rows), INITIAL)

    def seconds(self, second: int) -> list[Said]:
        """What the processor says when event time has come to a second."""
        return self.watermark(second * 1_000_000)

    def end(self) -> list[Said]:
        return [*self.watermark(MAX_WATERMARK), *self.finish()]


def said(outputs: Iterable[Any]) -> list[Said]:
    batches = [output for output in outputs if isinstance(output, pa.RecordBatch)]
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]  # type: ignore[misc]


class Scripted(StatefulProcessor):
    """Does what the test says, with the states that it declares."""

    def __init__(
        self,
        rows: Callable[..., Iterable[Any] | None],
        *,
        states: Callable[[StatefulProcessorHandle], Mapping[str, Any]] = lambda handle: {},
        timer: Callable[..., Iterable[Any] | None] | None = None,
        initial: Callable[..., None] | None = None,
    ) -> None:
        self.rows, self.declare, self.timer, self.initial = rows, states, timer, initial

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.states = self.declare(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Any:
        return self.rows(self, key[0], rows, timerValues)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
        assert self.timer is not None
        return self.timer(self, key[0], timerValues, expiredTimerInfo.getExpiryTimeInMs())

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        assert self.initial is not None
        self.initial(self, key[0], initialState)


def number(handle: StatefulProcessorHandle) -> Mapping[str, Any]:
    return {"n": handle.getValueState("n", "n BIGINT")}


def add_up(self: Scripted, key: str, rows: Iterator[Row], _: Any) -> Iterator[Row]:
    total = (self.states["n"].get() or (0,))[0] + sum(row.n for row in rows)
    self.states["n"].update((total,))
    yield Row(k=key, what=str(total))


def set_timers(self: Scripted, key: str, rows: Iterator[Row], _: Any) -> None:
    for row in rows:
        if row.n is not None:
            self.handle.registerTimer(row.n * 1000)


def tell_timer(self: Scripted, key: str, values: Any, time_ms: int) -> Iterator[Row]:
    yield Row(k=key, what=f"{time_ms // 1000} at {values.getCurrentWatermarkInMs() // 1000}")


def test_a_processor_is_called_once_for_each_key_and_batch_with_rows_in_order() -> None:
    def tell(self: Scripted, key: str, rows: Iterator[Row], _: Any) -> Iterator[Row]:
        yield Row(what=str([(row.k, row.n) for row in rows]), k=key)

    assert ProcessorHarness(Scripted(tell)).feed(("b", 1, 0), ("a", 2, 0), ("b", 3, 0), (None, 4, 0)) == [
        ("b", "[('b', 1), ('b', 3)]"),
        ("a", "[('a', 2)]"),
        (None, "[(None, 4)]"),
    ]


def test_rows_that_the_processor_leaves_are_nobodys() -> None:
    def first(self: Scripted, key: str, rows: Iterator[Row], _: Any) -> list[Row]:
        return [Row(k=key, what=str(next(rows).n))]

    assert ProcessorHarness(Scripted(first)).feed(("b", 1, 0), ("b", 2, 0), ("a", 3, 0)) == [("b", "1"), ("a", "3")]


@pytest.mark.parametrize("back_end", ["heap", "memory", "rocksdb"])
def test_states_are_kept_from_batch_to_batch_and_through_a_snapshot(back_end: Any) -> None:
    harness = ProcessorHarness(Scripted(add_up, states=number), back_end=back_end)
    assert harness.feed(("a", 1, 0), ("b", 2, 0)) == [("a", "1"), ("b", "2")]
    assert harness.feed(("a", 3, 0)) == [("a", "4")]
    again = ProcessorHarness(Scripted(add_up, states=number), restored=harness.state(), back_end=back_end)
    assert again.feed(("b", 5, 0), ("a", 6, 0)) == [("b", "7"), ("a", "10")]


def test_attributes_of_a_processor_are_each_subtasks_own() -> None:
    processor = Scripted(add_up, states=number)
    one, other = ProcessorHarness(processor), ProcessorHarness(processor)
    assert one.feed(("a", 1, 0)) == other.feed(("a", 1, 0)) == [("a", "1")]
    assert not hasattr(processor, "handle")


def test_many_keys_and_long_lists_are_worked_through_in_parts() -> None:
    """Keys are cut into parts, a key's rows never."""

    def grow(self: Scripted, key: str, rows: Iterator[Row], _: Any) -> Iterator[Row]:
        self.states["l"].appendList([(row.n,) for row in rows])
        yield Row(k=key, what=str([n for (n,) in self.states["l"].get()]))

    harness = ProcessorHarness(Scripted(grow, states=lambda handle: {"l": handle.getListState("l", "n INT")}))
    keys = [f"{i}" for i in range(3_000)]
    rows = [(key, i, 0) for i in range(2) for key in keys]
    assert sorted(harness.feed(*rows)) == sorted((key, "[0, 1]") for key in keys)
    assert sorted(harness.feed(*rows)) == sorted((key, "[0, 1, 0, 1]") for key in keys)


@pytest.mark.parametrize("pandas", [False, True])
def test_others_have_a_turn_after_some_calls(pandas: bool) -> None:
    """A slow processor must not keep the other subtasks of its slot from working, nor its heartbeats from progress."""
    calls: list[str] = []

    def note(self: Scripted, key: str, rows: Iterator[Any], *_: Any) -> None:
        calls.append(key)

    processor = Scripted(note, timer=note, initial=note)
    processor.rows = lambda self, key, rows, values: (self.handle.registerTimer(10_000), note(self, key, rows))[1]
    harness = ProcessorHarness(processor, "eventtime", pandas=pandas, initial=True)
    batch = batch_of(INPUT, [(f"{i}", i, 0) for i in range(3 * TURN_CALLS)])
    start = batch_of(START, [(f"{i}", i) for i in range(3 * TURN_CALLS)])

    def turns(outputs: Iterable[Any]) -> list[int]:
        """The calls before the end of each turn."""
        calls.clear()
        return [len(calls) for output in outputs if output is TURN_OVER]

    expected = [TURN_CALLS, 2 * TURN_CALLS, 3 * TURN_CALLS]
    assert turns(harness.operator.process(start, INITIAL)) == expected
    list(harness.operator.end_input(INITIAL))
    assert turns(harness.operator.process(batch, 0)) == expected
    assert turns(harness.operator.on_watermark(10_000_000)) == expected


@pytest.mark.parametrize(("pandas", "most"), [(False, MERGED_BYTES_OF_ROWS), (True, MERGED_BYTES_OF_FRAMES)])
def test_merged_batches_grow_while_keys_repeat_in_them_and_shrink_if_they_hardly_do(pandas: bool, most: int) -> None:
    """Larger ones have fewer calls for each row, or only delay barriers."""
    operator = ProcessorHarness(Scripted(lambda *_: None), pandas=pandas).operator
    assert operator.merged_bytes == MERGED_BYTES_OF_ROWS
    operator.merged_bytes = 2 * LEAST_MERGED_BYTES

    def size_after(rows: int, keys: int) -> int:
        k = pa.array([f"{i % keys:01000}" for i in range(rows)])
        batch = pa.record_batch([k, pa.nulls(rows, pa.int64()), pa.nulls(rows, INPUT.field("t").type)], schema=INPUT)
        next(operator.process(batch, 0))
        return operator.merged_bytes

    assert size_after(99, 64) == size_after(99, 99) == 2 * LEAST_MERGED_BYTES, "a small batch says nothing"
    assert size_after(1_500, 600) == 5 * LEAST_MERGED_BYTES
    assert size_after(4_000, 64) == most
    operator.merged_bytes = 2 * LEAST_MERGED_BYTES
    assert size_after(1_500, 1_200) == LEAST_MERGED_BYTES
    assert size_after(1_500, 1_200) == LEAST_MERGED_BYTES


def test_a_list_that_was_cleared_holds_what_is_appended_afterwards() -> None:
    def change(self: Scripted, key: str, rows: Iterator[Row], _: Any) -> Iterator[Row]:
        held = self.states["l"]
        before, there = list(held.get()), held.exists()
        held.appendValue((1,))
        held.clear()
        held.appendList([(2,), (3,)])
        held.appendValue((len(before),))
        yield Row(k=key, what=f"{before} {there} {list(held.get())}")

    harness = ProcessorHarness(Scripted(change, states=lambda handle: {"l": handle.getListState("l", "n INT")}))
    assert harness.feed(("a", 0, 0)) == [("a", "[] False [(2,), (3,), (0,)]")]
    assert harness.feed(("a", 0, 0)) == [("a", "[(2,), (3,), (0,)] True [(2,), (3,), (3,)]")]


def test_a_large_map_is_read_entry_by_entry_and_the_same() -> None:
    """The second batch reads all entries, and finds them many; from the third on single ones are read."""

    def change(self: Scripted, key: str, rows: Iterator[Row], _: Any) -> Iterator[Row]:
        entries = self.states["m"]
        for row in rows:
            held = entries.getValue((row.n, "x"))
            entries.updateValue((row.n, "x"), (1 if held is None else held.times + 1,))
            if row.n == 7:
                entries.removeKey((row.n, "x"))
        probe = [entries.getValue((n, "x")) for n in (7, 8, 9_999)], entries.containsKey((8, "x"))
        yield Row(k=key, what=f"{probe} {len(list(entries.keys())) if key == 'all' else 0}")

    columns = "n BIGINT, times STRING", "times INT"
    harness = ProcessorHarness(Scripted(change, states=lambda handle: {"m": handle.getMapState("m", *columns)}))
    many = [("a", n, 0) for n in range(3 * LARGE_MAP_ENTRIES)]
    assert harness.feed(*many) == [("a", "([None, Row(times=1), None], True) 0")]
    assert harness.feed(("a", 8, 0)) == [("a", "([None, Row(times=2), None], True) 0")]
    assert harness.feed(("a", 8, 0), ("a", 9_999, 0)) == [("a", "([None, Row(times=3), Row(times=1)], True) 0")]
    assert harness.feed(*[("all", n, 0) for n in range(9)]) == [("all", "([None, Row(times=1), None], True) 8")]


def test_a_map_that_was_cleared_holds_what_is_put_afterwards() -> None:
    def change(self: Scripted, key: str, rows: Iterator[Row], _: Any) -> Iterator[Row]:
        entries = self.states["m"]
        before = sorted(entries.iterator())
        entries.clear()
        there = entries.exists(), entries.getValue((1,))
        for row in rows:
            entries.updateValue((row.n,), (len(before),))
        yield Row(k=key, what=f"{before} {there} {sorted(entries.values())}")

    harness = ProcessorHarness(Scripted(change, states=lambda handle: {"m": handle.getMapState("m", "n INT", "n INT")}))
    assert harness.feed(("a", 1, 0), ("a", 2, 0)) == [("a", "[] (False, None) [(0,), (0,)]")]
    assert harness.feed(("a", 2, 0)) == [("a", "[((1,), (0,)), ((2,), (0,))] (False, None) [(2,)]")]


def test_event_timers_fire_by_the_watermark_in_order_of_time() -> None:
    harness = ProcessorHarness(Scripted(set_timers, timer=tell_timer), "eventtime")
    assert harness.feed(("a", 30, 1), ("b", 10, 1), ("a", 10, 1), ("a", 30, 1)) == []
    assert harness.seconds(9) == []
    assert sorted(harness.seconds(29)) == [("a", "10 at 29"), ("b", "10 at 29")]
    assert harness.seconds(30) == [("a", "30 at 30")]
    assert harness.seconds(99) == []


def test_a_timer_for_a_time_that_has_come_fires_behind_the_rows_of_its_batch() -> None:
    harness = ProcessorHarness(Scripted(set_timers, timer=tell_timer), "eventtime")
    harness.seconds(20)
    assert harness.feed(("a", 20, 30), ("a", 21, 30)) == [("a", "20 at 20")]


def test_a_timer_is_listed_while_it_fires_and_gone_afterwards_even_if_it_was_registered_again() -> None:
    """As in Spark; what fires is settled when firing begins."""

    def fire(self: Scripted, key: str, _: Any, time_ms: int) -> Iterator[Row]:
        yield Row(k=key, what=f"{time_ms // 1000} of {[time // 1000 for time in self.handle.listTimers()]}")
        self.handle.registerTimer(time_ms)
        self.handle.deleteTimer(11_000)

    harness = ProcessorHarness(Scripted(set_timers, timer=fire), "eventtime")
    harness.feed(("a", 10, 1), ("a", 11, 1), ("a", 50, 1))
    assert harness.seconds(20) == [("a", "10 of [10, 11, 50]"), ("a", "11 of [50]")]
    assert harness.seconds(49) == []


def test_a_timer_that_is_due_fires_whatever_handlers_delete_however_many_keys_are_worked_through_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As in Spark, where what fires is settled when firing begins."""
    monkeypatch.setattr("tidegate.compat.pyspark_stateful.processor_calls.MAX_KEYS", 2)

    def fire(self: Scripted, key: str, _: Any, time_ms: int) -> Iterator[Row]:
        self.handle.deleteTimer(11_000)
        self.handle.deleteTimer(50_000)
        yield Row(k=key, what=str(time_ms // 1000))

    harness = ProcessorHarness(Scripted(set_timers, timer=fire), "eventtime")
    harness.feed(*((key, second, 1) for key in "abc" for second in (10, 11, 50)))
    assert sorted(harness.seconds(20)) == [(key, second) for key in "abc" for second in ("10", "11")]
    assert harness.seconds(60) == []


def test_a_timer_that_a_handler_sets_to_a_time_that_has_come_fires_the_next_time() -> None:
    """Else one that always sets the next would fire for ever."""

    def fire(self: Scripted, key: str, _: Any, time_ms: int) -> Iterator[Row]:
        self.handle.registerTimer(time_ms - 1000)
        yield Row(k=key, what=str(time_ms // 1000))

    harness = ProcessorHarness(Scripted(set_timers, timer=fire), "eventtime")
    harness.feed(("a", 10, 1))
    assert [harness.seconds(second) for second in (20, 21, 22)] == [[("a", "10")], [("a", "9")], [("a", "8")]]
    assert harness.feed(("b", None, 99)) == [("a", "7")]


def test_processing_timers_fire_by_the_clock_and_keep_idleness_back() -> None:
    def fire(self: Scripted, key: str, values: Any, time_ms: int) -> Iterator[Row]:
        self.handle.registerTimer(values.getCurrentProcessingTimeInMs())
        yield Row(k=key, what=f"{time_ms} at {values.getCurrentProcessingTimeInMs()}")

    harness = ProcessorHarness(Scripted(set_timers, timer=fire), "processingtime")
    assert harness.operator.next_processing_time_ms() is None and not harness.operator.has_pending_rows()
    assert harness.feed(("a", 2, 1)) == []
    assert harness.operator.next_processing_time_ms() == 2_000 and harness.operator.has_pending_rows()
    assert harness.at(2_500) == [("a", "2000 at 2500")]
    assert harness.operator.next_processing_time_ms() == 2_501, "one for now waits, so that the loop goes on"


def test_the_end_of_the_input_fires_all_event_timers_and_the_watermark_comes_from_timer_to_timer() -> None:
    """S7.6."""
    harness = ProcessorHarness(Scripted(set_timers, timer=tell_timer), "eventtime")
    harness.feed(("a", 30, 1), ("b", 40, 1), ("b", 3, 1))
    harness.seconds(5)
    assert harness.end() == [("a", "30 at 30"), ("b", "40 at 40")]


def test_the_end_of_the_input_fires_processing_timers_once_or_drops_them() -> None:
    """S7.6."""

    def again(self: Scripted, key: str, values: Any, time_ms: int) -> Iterator[Row]:
        self.handle.registerTimer(time_ms + 1)
        yield Row(k=key, what=str(time_ms))

    harness = ProcessorHarness(Scripted(set_timers, timer=again), "processingtime")
    harness.feed(("a", 60, 1))
    assert harness.end() == [("a", "60000")] and harness.context.counters == {"processing_time_dropped": 1}
    harness = ProcessorHarness(Scripted(set_timers, timer=again), "processingtime", on_end="drop")
    harness.feed(("a", 60, 1), ("b", 60, 1))
    assert harness.end() == [] and harness.context.counters == {"processing_time_dropped": 2}


def test_late_rows_are_dropped_and_counted_over_event_time_alone() -> None:
    """S4.4: a row without a time is not late."""
    harness = ProcessorHarness(Scripted(add_up, states=number), "eventtime")
    harness.seconds(10)
    assert harness.feed(("a", 1, 9), ("a", 2, 10), ("b", 3, 2), ("a", 4, None)) == [("a", "6")]
    assert harness.context.counters == {"late_dropped": 2}
    harness = ProcessorHarness(Scripted(add_up, states=number))
    harness.seconds(10)
    assert harness.feed(("a", 1, 9)) == [("a", "1")]


def test_without_time_mode_there_is_no_time() -> None:
    def tell(self: Scripted, key: str, rows: Iterator[Row], values: Any) -> Iterator[Row]:
        yield Row(k=key, what=f"{values.getCurrentProcessingTimeInMs()} {values.getCurrentWatermarkInMs()}")

    assert ProcessorHarness(Scripted(tell)).feed(("a", 1, 1)) == [("a", "-1 -1")]
    assert ProcessorHarness(Scripted(tell), "eventtime").feed(("a", 1, 1)) == [("a", "1000 0")], (
        "0 before the first watermark"
    )


def start_with(self: Scripted, key: str, row: Row) -> None:
    self.states["n"].update(((self.states["n"].get() or (0,))[0] + row.n,))


def test_rows_wait_for_the_initial_state_also_through_a_restore() -> None:
    """S7: before the first row, and never on a restore."""

    def account() -> Scripted:
        return Scripted(add_up, states=number, initial=start_with)

    harness = ProcessorHarness(account(), initial=True)
    assert harness.feed(("a", 1, 0)) == harness.start(("a", 100), ("b", 50)) == []
    assert harness.operator.has_pending_rows() and not harness.operator.forwards_watermarks()
    again = ProcessorHarness(account(), initial=True, restored=harness.state())
    assert again.feed(("b", 2, 0)) == again.start(("a", 10)) == []
    assert said(again.operator.end_input(INITIAL)) == [("a", "111"), ("b", "52")]
    assert again.feed(("a", 5, 0)) == [("a", "116")]
    third = ProcessorHarness(account(), initial=True, restored=again.state())
    assert third.start(("a", 100)) == [] and third.context.counters == {"initial_state_ignored": 1}
    assert third.feed(("a", 1, 0)) == [("a", "117")]


def test_an_initial_state_that_a_drain_cut_short_goes_on() -> None:
    """S7.5."""
    harness = ProcessorHarness(Scripted(add_up, states=number, initial=start_with), initial=True)
    harness.start(("a", 100))
    assert harness.end() == []
    again = ProcessorHarness(
        Scripted(add_up, states=number, initial=start_with), initial=True, restored=harness.state(), drained=True
    )
    assert again.feed(("a", 1, 0)) == again.start(("a", 10)) == []
    assert said(again.operator.end_input(INITIAL)) == [("a", "111")]


def test_a_watermark_waits_for_the_initial_state_with_the_rows() -> None:
    harness = ProcessorHarness(
        Scripted(set_timers, timer=tell_timer, initial=lambda self, key, row: self.handle.registerTimer(row.n * 1000)),
        "eventtime",
        initial=True,
    )
    harness.feed(("a", 7, 5))
    harness.start(("b", 3))
    assert harness.seconds(8) == []
    harness = ProcessorHarness(
        Scripted(set_timers, timer=tell_timer, initial=lambda self, key, row: self.handle.registerTimer(row.n * 1000)),
        "eventtime",
        harness.state(),
        initial=True,
    )
    outputs = list(harness.operator.end_input(INITIAL))
    assert said(outputs) == [("b", "3 at 8"), ("a", "7 at 8")]
    assert getattr(outputs[-1], "time_us", None) == 8_000_000, "it is passed on behind them"


def test_an_initial_state_of_a_snapshot_without_one_is_too_late() -> None:
    harness = ProcessorHarness(Scripted(add_up, states=number))
    harness.feed(("a", 1, 0))
    again = ProcessorHarness(
        Scripted(add_up, states=number, initial=start_with), initial=True, restored=harness.state()
    )
    assert again.start(("a", 100)) == []
    assert again.feed(("a", 1, 0)) == [("a", "2")]


def test_an_initial_state_may_be_taken_away_when_no_row_waits_for_it_any_more() -> None:
    harness = ProcessorHarness(Scripted(add_up, states=number, initial=start_with), initial=True)
    harness.feed(("a", 1, 0))
    with pytest.raises(SnapshotError, match="wait for an initial state"):
        ProcessorHarness(Scripted(add_up, states=number), restored=harness.state())
    list(harness.operator.end_input(INITIAL))
    assert ProcessorHarness(Scripted(add_up, states=number), restored=harness.state()).feed(("a", 1, 0)) == [("a", "2")]


def test_waiting_rows_states_and_timers_come_to_whoever_has_their_key_group() -> None:
    """S5.5."""

    def processor() -> Scripted:
        def both(self: Scripted, key: str, rows: Iterator[Row], _: Any) -> None:
            for row in rows:
                self.handle.registerTimer(row.n * 1000)
                start_with(self, key, row)

        def tell(self: Scripted, key: str, _: Any, time_ms: int) -> Iterator[Row]:
            yield Row(k=key, what=f"{time_ms} {self.states['n'].get()}")

        return Scripted(both, states=number, timer=tell, initial=start_with)

    keys = [f"key {i}" for i in range(20)]
    harness = ProcessorHarness(processor(), "eventtime", initial=True)
    harness.start(*[(key, 1) for key in keys])
    harness.feed(*[(key, 7, 5) for key in keys])
    found: list[Said] = []
    for index in range(3):
        parts = redistributed({0: harness.state()}, None, Rescale(1, 3, GROUPS, index))
        new = ProcessorHarness(processor(), "eventtime", parts, place=(index, 3), initial=True)
        list(new.operator.end_input(INITIAL))
        found += new.seconds(100)
    assert sorted(found) == sorted((key, "7000 (8,)") for key in keys)


def test_a_state_that_init_deletes_is_dropped_from_a_snapshot() -> None:
    harness = ProcessorHarness(
        Scripted(add_up, states=lambda handle: (handle.getValueState("old", "x INT"), number(handle))[1])
    )
    harness.feed(("a", 1, 0))
    with pytest.raises(SnapshotError, match="'old'"):
        ProcessorHarness(Scripted(add_up, states=number), restored=harness.state())
    forgets = Scripted(add_up, states=lambda handle: (handle.deleteIfExists("old"), number(handle))[1])
    assert ProcessorHarness(forgets, restored=harness.state()).feed(("a", 1, 0)) == [("a", "2")]


def test_timers_of_another_time_mode_are_refused_at_a_restore() -> None:
    harness = ProcessorHarness(Scripted(set_timers, timer=tell_timer), "eventtime")
    harness.feed(("a", 10, 1))
    for mode in ("processingtime", "none"):
        with pytest.raises(SnapshotError, match="timers over event time"):
            ProcessorHarness(Scripted(set_timers, timer=tell_timer), mode, harness.state())


def test_a_row_behind_the_watermark_is_refused_where_its_time_counts() -> None:
    """As in Spark; but timers give rows before the watermark that they answer is passed on."""

    def fire(self: Scripted, key: str, _: Any, time_ms: int) -> Iterator[Row]:
        yield Row(k=key, at=dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC))

    harness = ProcessorHarness(
        Scripted(set_timers, timer=fire), "eventtime", output="k STRING, at TIMESTAMP", output_time="at"
    )
    harness.feed(("a", 10, 1), ("a", 30, 1))
    assert len(harness.seconds(20)) == 1
    with pytest.raises(PipelineError, match="the watermark is 1970-01-01T00:00:20") as refused:
        harness.feed(("a", 15, 25))
    assert "eventTimeColumnName" in refused.value.remedy


@pytest.mark.parametrize(
    ("give", "cause"),
    [
        (lambda key: [("a", "b")], "the result is a tuple"),
        (lambda key: [Row("a", "b")], "without names"),
        (lambda key: [Row(k=key, what=5)], "column 'what' is string"),
        (lambda key: 5, "returned a int"),
    ],
)
def test_rows_that_are_not_of_the_declared_type_are_refused(give: Callable[[str], Any], cause: str) -> None:
    with pytest.raises(PipelineError, match="does not match outputStructType") as refused:
        ProcessorHarness(Scripted(lambda self, key, rows, _: give(key))).feed(("a", 1, 1))
    assert cause in refused.value.cause


def test_nulls_where_none_are_declared_are_refused() -> None:
    harness = ProcessorHarness(Scripted(lambda self, key, rows, _: [Row(k=None)]), output="k STRING NOT NULL")
    with pytest.raises(PipelineError, match="outputStructType") as refused:
        harness.feed(("a", 1, 1))
    assert "has nulls" in refused.value.cause


@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda self: self.handle.getValueState("new", "n INT"), "called outside init"),
        (lambda self: self.handle.deleteIfExists("n"), "called outside init"),
        (lambda self: self.handle.registerTimer(5), "with timeMode None"),
        (lambda self: self.states["n"].update(("x",)), "the value does not fit"),
        (lambda self: self.states["n"].update((1, 2)), "the value does not fit"),
        (lambda self: self.states["n"].update(1), "the value does not fit"),
        (lambda self: self.states["n"].update((True,)), "the value does not fit"),
        (lambda self: self.states["n"].update((2**63,)), "the value does not fit"),
    ],
)
def test_what_cannot_be_is_refused_with_the_line_of_the_processor(use: Callable[[Any], Any], what: str) -> None:
    with pytest.raises(PipelineError, match=what) as refused:
        ProcessorHarness(Scripted(lambda self, key, rows, _: use(self), states=number)).feed(("a", 1, 1))
    assert __file__ in refused.value.where


@pytest.mark.parametrize(
    ("use", "state"),
    [
        (lambda self: self.states["value"].update((dt.timedelta.max,)), "state 'value'"),
        (lambda self: self.states["list"].appendValue((dt.timedelta.max,)), "state 'list'"),
        (lambda self: self.states["list"].put([(dt.timedelta.max,)]), "state 'list'"),
        (lambda self: self.states["map"].updateValue(("x",), (dt.timedelta.max,)), "state 'map'"),
        (lambda self: self.states["map"].getValue(("\ud800",)), "the map key of state 'map'"),
    ],
)
def test_a_value_beyond_its_type_is_refused_with_state_key_and_value(use: Callable[[Any], Any], state: str) -> None:
    """S5.1: once a day-time interval beyond 64 bits was a bare ArrowInvalid, for all keys in hand."""

    def intervals(handle: StatefulProcessorHandle) -> dict[str, Any]:
        return {
            "value": handle.getValueState("value", "i INTERVAL DAY TO SECOND"),
            "list": handle.getListState("list", "i INTERVAL DAY TO SECOND"),
            "map": handle.getMapState("map", "i STRING", "i INTERVAL DAY TO SECOND"),
        }

    harness = ProcessorHarness(Scripted(lambda self, key, rows, _: use(self) if key == "b" else [], states=intervals))
    with pytest.raises(PipelineError, match=f"the value does not fit {state}") as refused:
        harness.feed(("a", 1, 1), ("b", 2, 1))
    assert "key k='b'" in refused.value.where and "but got" in refused.value.cause


def test_a_state_is_of_no_use_without_a_key() -> None:
    kept: list[Any] = []
    harness = ProcessorHarness(Scripted(lambda self, key, rows, _: kept.append(self.states["n"]), states=number))
    harness.feed(("a", 1, 1))
    with pytest.raises(PipelineError, match="while no key is processed"):
        kept[0].get()


def test_pandas_frames_come_and_go_by_key() -> None:
    class Frames(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.n = handle.getValueState("n", "n BIGINT")

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
            for frame in rows:
                total = (self.n.get() or (0,))[0] + int(frame["n"].sum())
                self.n.update((frame["n"].sum(),))
                yield pd.DataFrame({"k": key, "what": [f"{total} {frame.index.tolist()} {frame['t'].dtype}"]})
                yield pd.DataFrame({0: key, 1: [str(list(frame.columns))]})

    harness = ProcessorHarness(Frames(), pandas=True)
    columns = "['k', 'n', 't']"
    assert harness.feed(("a", 1, 5), ("b", 2, 5), ("a", 3, 5)) == [
        ("a", "4 [0, 1] datetime64[ns]"),
        ("a", columns),
        ("b", "2 [0] datetime64[ns]"),
        ("b", columns),
    ]
    assert harness.feed(("a", 1, 5))[0] == ("a", "5 [0] datetime64[ns]")


def test_ignoring_an_initial_state_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    harness = ProcessorHarness(Scripted(add_up, states=number, initial=start_with), initial=True)
    list(harness.operator.end_input(INITIAL))
    again = ProcessorHarness(
        Scripted(add_up, states=number, initial=start_with), initial=True, restored=harness.state()
    )
    with caplog.at_level(logging.WARNING):
        again.start(("a", 100))
        again.start(("a", 100))
    assert caplog.text.count("initial_state_ignored") == 1
