"""Processes of the user's own: rows, states and timers in, batches out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders.batches import batch_of
from builders.operators import OperatorHarness
from state_suites.model_backend import ModelBackend

from tidegate.api.states import list_state, value_state
from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.errors import PipelineError, SnapshotError
from tidegate.operators import keyed_backend
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.processes.process_specs import KeyedProcessSpec
from tidegate.operators.user_functions.keyed_process import FiredTimers, KeyedProcess, KeyedRows, ProcessContext
from tidegate.snapshot.parts import StatePart
from tidegate.snapshot.redistribution import Rescale, redistributed

GROUPS = 16
INPUT = pa.schema([("k", pa.int64()), ("t", pa.int64())])
RESULT = pa.schema([("what", pa.string()), ("k", pa.int64()), ("t", pa.int64())])
COUNT = value_state("count", {"n": pa.int64()})
Answer = Callable[[FiredTimers, ProcessContext], None]


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the operator adds is the same over every back end."""
    monkeypatch.setattr(keyed_backend, "new_backend", lambda name: ModelBackend())


class Alarms(KeyedProcess):
    """Sets a timer at each row's time, and tells of those that fire. `answer` may register more."""

    states = (COUNT,)

    def __init__(self, *, clock: bool = False, answer: Answer | None = None) -> None:
        self.clock = clock
        self.answer = answer
        self.calls: list[str] = []

    def open(self, ctx: ProcessContext) -> None:
        self.calls = ["open"]

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
        timers = ctx.processing_timers if self.clock else ctx.event_timers
        timers.register(rows.keys, rows.owners, rows.batch["t"].to_numpy())
        held = ctx.value("count").get(rows.keys)
        before = np.where(held.present, held.columns["n"].fill_null(0).to_numpy(), 0)
        counts = before + np.bincount(rows.owners, minlength=rows.keys.size)
        ctx.value("count").put(rows.keys, pa.record_batch([pa.array(counts)], names=["n"]))

    def on_timers(self, due: FiredTimers, ctx: ProcessContext) -> Iterator[pa.RecordBatch]:
        if self.answer is not None:
            self.answer(due, ctx)
        keys = due.keys.columns()["k"].take(pa.array(due.owners))
        what = pa.array([due.kind] * len(due.times_us))
        yield pa.record_batch([what, keys, pa.array(due.times_us)], schema=RESULT)

    def finish(self, ctx: ProcessContext) -> Iterable[pa.RecordBatch]:
        for keys in ctx.all_keys("count"):
            counts = ctx.value("count").get(keys).columns["n"]
            yield pa.record_batch([pa.array(["count"] * keys.size), keys.columns()["k"], counts], schema=RESULT)

    def close(self) -> None:
        self.calls.append("close")


class ProcessHarness(OperatorHarness[list[tuple[Any, ...]]]):
    """The operator of a process; results as (what, key, time)."""

    def __init__(
        self,
        process: KeyedProcess,
        restored: Sequence[StatePart] | None = None,
        *,
        on_end: Any = "fire",
        place: tuple[int, int] = (0, 1),
        schema: pa.Schema = RESULT,
        time: str | None = "t",
    ) -> None:
        spec = KeyedProcessSpec(process, ("k",), tuple(process.states), time, "us", INPUT, schema)
        super().__init__(
            create_operator(spec),
            results,
            INPUT,
            restored=restored,
            max_parallelism=GROUPS,
            subtask=place[0],
            parallelism=place[1],
            processing_time_on_end=on_end,
        )

    def feed(self, *rows: tuple[int | None, int | None]) -> list[tuple[Any, ...]]:
        return self.process(batch_of(INPUT, rows))


def results(batches: Iterable[Any]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def place_of(key: int) -> int:
    """Its key group."""
    harness = ProcessHarness(Alarms())
    harness.feed((key, 0))
    part = next(part for part in harness.state() if part.name == "count")
    return int(part.table["__key_group"][0].as_py())


def test_event_timers_fire_in_order_of_time_when_the_watermark_reaches_them() -> None:
    """S5.1, S7.2."""
    harness = ProcessHarness(Alarms())
    assert harness.feed((1, 30), (2, 10), (1, 10), (1, 30), (None, 20)) == []
    assert harness.watermark(9) == []
    assert sorted(harness.watermark(20)[:2]) == [("event", 1, 10), ("event", 2, 10)]
    assert harness.watermark(30) == [("event", 1, 30)], "one for a key and time"
    assert harness.watermark(1000) == []
    assert not harness.operator.has_pending_rows(), "as open windows over event time do not"


def test_timers_that_answer_timers_fire_in_the_same_watermark_when_they_are_due() -> None:
    def again(due: FiredTimers, ctx: ProcessContext) -> None:
        early = due.times_us < 20
        ctx.event_timers.register(due.keys, due.owners[early], due.times_us[early] + 5)

    harness = ProcessHarness(Alarms(answer=again))
    harness.feed((1, 10), (1, 18))
    assert harness.watermark(19) == [("event", 1, 10), ("event", 1, 18), ("event", 1, 15)]
    assert harness.watermark(30) == [("event", 1, 20), ("event", 1, 23)]


def test_a_timer_for_a_time_that_has_passed_fires_with_the_next_watermark() -> None:
    harness = ProcessHarness(Alarms())
    harness.watermark(100)
    assert harness.feed((1, 50)) == []
    assert harness.watermark(101) == [("event", 1, 50)]


def test_timers_over_processing_time_fire_by_the_clock_and_keep_idleness_back() -> None:
    """S4.4, S5.1."""
    harness = ProcessHarness(Alarms(clock=True))
    assert harness.operator.next_processing_time_ms() is None and not harness.operator.has_pending_rows()
    harness.feed((1, 10_500), (2, 30_000))
    assert harness.operator.next_processing_time_ms() == 11, "what is between two milliseconds waits for the later one"
    assert harness.operator.has_pending_rows()
    assert harness.at(11) == [("processing", 1, 10_500)]
    assert harness.watermark(10**9) == []
    assert harness.at(40) == [("processing", 2, 30_000)]
    assert harness.operator.next_processing_time_ms() is None and not harness.operator.has_pending_rows()


def test_the_end_of_the_input_fires_all_event_timers_and_those_that_answer_them() -> None:
    """S7.2, S7.6: a chain of timers comes to its end, so that no record disappears."""

    def again(due: FiredTimers, ctx: ProcessContext) -> None:
        early = due.times_us < 50
        ctx.event_timers.register(due.keys, due.owners[early], due.times_us[early] + 10)

    harness = ProcessHarness(Alarms(answer=again))
    harness.feed((1, 10))
    assert [row[2] for row in harness.watermark(MAX_WATERMARK)] == [10, 20, 30, 40, 50]
    assert harness.finish() == [("count", 1, 1)]
    assert harness.context.counters == {}


def test_a_timer_that_always_registers_the_next_ends_with_the_input_and_what_is_dropped_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S7.6."""

    def again(due: FiredTimers, ctx: ProcessContext) -> None:
        ctx.event_timers.register(due.keys, due.owners, due.times_us + 1)

    harness = ProcessHarness(Alarms(answer=again))
    harness.feed((1, 0))
    with caplog.at_level(logging.WARNING):
        assert len(harness.watermark(MAX_WATERMARK)) == 1_001
    assert harness.context.counters == {"event_timers_dropped": 1}
    assert "event_timers_dropped" in caplog.text


@pytest.mark.parametrize("on_end", ["fire", "drop"])
def test_timers_over_processing_time_fire_once_at_the_end_or_are_dropped_and_counted(on_end: str) -> None:
    """S7.6: the set is frozen: what is registered in answer is dropped, and counted too."""

    def again(due: FiredTimers, ctx: ProcessContext) -> None:
        ctx.processing_timers.register(due.keys, due.owners, due.times_us + 1)

    harness = ProcessHarness(Alarms(clock=True, answer=again), on_end=on_end)
    harness.feed((1, 10), (2, 20), (2, 30))
    fired = harness.watermark(MAX_WATERMARK)
    assert len(fired) == (3 if on_end == "fire" else 0)
    assert harness.context.counters == {"processing_time_dropped": 3}
    assert harness.operator.next_processing_time_ms() is None and not harness.operator.has_pending_rows()


def test_rows_between_the_last_watermark_and_the_end_still_set_timers_and_later_ones_are_counted() -> None:
    """S7.6: finish may emit behind MAX_WATERMARK."""

    class Late(Alarms):
        def finish(self, ctx: ProcessContext) -> Iterable[pa.RecordBatch]:
            for keys in ctx.all_keys("count"):
                ctx.event_timers.register(keys, np.arange(keys.size, dtype=np.int32), np.zeros(keys.size, np.int64))
            return ()

    harness = ProcessHarness(Late())
    assert harness.watermark(MAX_WATERMARK) == []
    assert harness.feed((1, 10)) == []
    assert harness.finish() == [("event", 1, 10)]
    assert harness.context.counters == {"event_timers_dropped": 1}
    assert harness.finish() == [], "finish may come again"


def test_states_and_timers_go_on_after_a_restore_at_another_parallelism() -> None:
    """S5.5: no timer fires twice, none is lost."""
    keys = list(range(20))
    old = ProcessHarness(Alarms())
    old.feed(*((k, 100 + k) for k in keys))
    fired = old.watermark(109)
    state = {0: old.state()}
    new = []
    for index in range(3):
        parts = redistributed(state, None, Rescale(1, 3, GROUPS, index))
        new.append(ProcessHarness(Alarms(), parts, place=(index, 3)))
    assert all(harness.operator._context.watermark_us == 109 for harness in new)
    fired += [row for harness in new for row in harness.watermark(1000)]
    assert sorted(row[1] for row in fired) == keys
    assert sorted(row for harness in new for row in harness.finish()) == [("count", k, 1) for k in keys]


def test_after_a_restore_the_watermark_of_a_key_is_that_of_its_key_group() -> None:
    """S4.4: of subtasks that had come to different times the earliest counts, and late rows stay late."""
    early, late = (next(k for k in range(100) if place_of(k) // (GROUPS // 2) == half) for half in range(2))
    old = [ProcessHarness(Alarms(), place=(index, 2)) for index in range(2)]
    old[0].watermark(50)
    old[1].watermark(100)
    parts = redistributed({i: harness.state() for i, harness in enumerate(old)}, None, Rescale(2, 1, GROUPS, 0))
    harness = ProcessHarness(Alarms(), parts)
    context = harness.operator._context
    keys = harness.operator._back_end.keys(pa.record_batch([pa.array([early, late]), pa.array([0, 0])], schema=INPUT))
    assert context.watermark_us == 50
    assert context.watermarks_us(keys).tolist() == [50, 100]
    again = redistributed({0: harness.state()}, None, Rescale(1, 1, GROUPS, 0))
    assert ProcessHarness(Alarms(), again).operator._context.watermarks_us(keys).tolist() == [50, 100]
    harness.watermark(120)
    assert context.watermarks_us(keys).tolist() == [120, 120]


def test_a_drained_state_goes_on_before_any_watermark() -> None:
    """S7.5: what the drain told of time was not so."""
    harness = ProcessHarness(Alarms())
    harness.feed((1, 10))
    harness.watermark(MAX_WATERMARK)
    assert ProcessHarness(Alarms(), harness.state()).operator._context.watermark_us == MIN_WATERMARK


def test_a_state_whose_columns_grew_or_were_renamed_goes_on_and_any_other_change_is_refused() -> None:
    """S5.5."""
    old = ProcessHarness(Alarms())
    old.feed((1, 5), (1, 6))
    state = old.state()

    class Grown(Alarms):
        states = (value_state("count", {"rows": pa.int64(), "who": pa.string()}, renamed={"n": "rows"}),)

        def finish(self, ctx: ProcessContext) -> Iterable[pa.RecordBatch]:
            for keys in ctx.all_keys("count"):
                held = ctx.value("count").get(keys).columns
                assert held["who"].to_pylist() == [None]
                yield pa.record_batch([["count"], keys.columns()["k"], held["rows"]], schema=RESULT)

    assert ProcessHarness(Grown(), state).finish() == [("event", 1, 5), ("event", 1, 6), ("count", 1, 2)]

    class Changed(Alarms):
        states = (value_state("count", {"n": pa.string()}),)

    class Gone(Alarms):
        states = ()

    for process in (Changed(), Gone()):
        with pytest.raises(SnapshotError, match="count"):
            ProcessHarness(process, state)


def test_event_time_is_given_in_microseconds() -> None:
    seen: list[Any] = []

    class Times(KeyedProcess):
        def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
            seen.append(rows.event_time_us.to_pylist())

    ProcessHarness(Times()).feed((1, 5), (2, None))
    assert seen == [[5, None]]
    with pytest.raises(PipelineError, match="with_watermark"):
        ProcessHarness(Times(), time=None).feed((1, 5))


def test_a_wrong_batch_is_refused_with_the_column_and_the_line_of_the_yield() -> None:
    class Wrong(KeyedProcess):
        def process(self, rows: KeyedRows, ctx: ProcessContext) -> Iterator[pa.RecordBatch]:
            yield pa.record_batch([pa.array([1])], names=["what"])  # the line

    with pytest.raises(PipelineError) as refused:
        ProcessHarness(Wrong(), schema=pa.schema([("what", pa.string())])).feed((1, 5))
    with open(__file__) as source:
        line = next(n for n, text in enumerate(source, 1) if text.endswith("# the line\n"))
    assert "column 'what' is int64, but string is declared" in str(refused.value)
    assert f"test_keyed_process.py:{line}" in refused.value.where and "'op' subtask 0" in refused.value.where


@pytest.mark.parametrize("given", [5, pa.record_batch([pa.array(["a"])], names=["what"]), ["a"]])
def test_what_is_no_batches_is_refused(given: Any) -> None:
    class Odd(KeyedProcess):
        def process(self, rows: KeyedRows, ctx: ProcessContext) -> Any:
            return given

    with pytest.raises(PipelineError, match="process of process Odd returned do not match the declared schema"):
        ProcessHarness(Odd(), schema=pa.schema([("what", pa.string())])).feed((1, 5))


def test_a_state_is_asked_for_by_its_name_and_kind() -> None:
    class Asks(KeyedProcess):
        states = (COUNT, list_state("seen", {"v": pa.int64()}))

        def __init__(self, ask: Callable[[ProcessContext], object]) -> None:
            self.ask = ask

        def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
            self.ask(ctx)

    with pytest.raises(PipelineError, match="did you mean 'count'"):
        ProcessHarness(Asks(lambda ctx: ctx.value("cuont"))).feed((1, 5))
    with pytest.raises(PipelineError, match=r"ctx\.list\('seen'\)"):
        ProcessHarness(Asks(lambda ctx: ctx.value("seen"))).feed((1, 5))


def test_timers_need_an_on_timers_and_whole_numbers() -> None:
    class Mute(KeyedProcess):
        def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
            ctx.event_timers.register(rows.keys, rows.owners, np.zeros(len(rows.owners), np.int64))

    class Fractions(Alarms):
        def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
            ctx.event_timers.register(rows.keys, rows.owners, np.zeros(len(rows.owners)))

    with pytest.raises(PipelineError, match="no method on_timers"):
        ProcessHarness(Mute()).feed((1, 5))
    with pytest.raises(PipelineError, match="two integer columns"):
        ProcessHarness(Fractions()).feed((1, 5))


def test_every_subtask_has_a_process_of_its_own_that_is_closed_once() -> None:
    process = Alarms()
    one, other = ProcessHarness(process), ProcessHarness(process)
    mine = one.operator._process
    assert mine is not process and mine is not other.operator._process
    one.operator.close()
    one.operator.close()
    assert mine.calls == ["open", "close"]


@pytest.mark.parametrize("owner", [-1, 1])
def test_timers_of_keys_that_the_set_does_not_have_are_refused(owner: int) -> None:
    """S5.1: a back end would look past the end of its keys."""

    class Astray(Alarms):
        def process(self, rows: KeyedRows, ctx: ProcessContext) -> None:
            ctx.event_timers.delete(rows.keys, np.full(1, owner, np.int32), np.zeros(1, np.int64))

    with pytest.raises(PipelineError, match=f"timers have keys {owner} to {owner}, but the set has 1 keys,"):
        ProcessHarness(Astray()).feed((1, 5))
