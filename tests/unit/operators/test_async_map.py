"""map_async: order, watermarks, capacity, time-outs and state, with answers that come when the test says so."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from builders.operators import OperatorHarness
from hypothesis import given
from hypothesis import strategies as st

from tidegate.channel.elements import MAX_WATERMARK, Watermark
from tidegate.errors import PipelineError, TidegateError
from tidegate.operators.async_map import AsyncMap
from tidegate.operators.async_requests import MAX_THREADS
from tidegate.operators.async_specs import TIMED_OUT, AsyncMapSpec
from tidegate.operators.stream_operator import EMISSION_PAUSED, SideOutput
from tidegate.snapshot.redistribution import Rescale, redistributed
from tidegate.testing.inline_requests import HeldRequests

SCHEMA = pa.schema([("v", pa.int64())])
ANSWER = pa.schema([("twice", pa.int64())])


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch([pc.multiply(batch["v"], 2)], schema=ANSWER)


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


class AsyncMapHarness(OperatorHarness[None]):
    """An operator whose answers wait for `answer`, and what it has given: values, watermarks, WAITING."""

    def __init__(
        self,
        function: Callable[..., Any] = twice,
        *,
        parts: Any = None,
        subtask: int = 0,
        parallelism: int = 1,
        **what: Any,
    ) -> None:
        given = {"capacity": 3, "batch_rows": 1, "timeout_ms": 100, "ordered": True, "on_timeout": "fail", **what}
        self.wakes = 0
        self.requests = HeldRequests(twice, 1, lambda *a: None)
        self.given: list[Any] = []
        super().__init__(
            AsyncMap(AsyncMapSpec(function, SCHEMA, ANSWER, **given)),
            self.take,
            SCHEMA,
            restored=parts,
            now_ms=1_000,
            subtask=subtask,
            parallelism=parallelism,
            wake=self._wake,
            requests=self._start,
        )

    def _wake(self) -> None:
        self.wakes += 1

    def _start(self, *what: Any) -> HeldRequests:
        self.requests = HeldRequests(*what)
        return self.requests

    def take(self, emission: Any) -> None:
        """Everything of an emission up to its end, or to where it waits."""
        for output in emission:
            if isinstance(output, Watermark):
                self.given.append(("watermark", output.time_us))
            elif isinstance(output, SideOutput):
                self.given.append((output.name, output.batch.to_pydict()["v"]))
            elif output is EMISSION_PAUSED:
                self.given.append("waiting")
                return
            else:
                self.given += output.to_pydict()["twice"]

    def rows(self, *values: int) -> None:
        self.process(rows(*values))

    def watermark(self, time_us: int) -> None:
        super().watermark(time_us)
        if self.operator.forwards_watermarks():
            self.given.append(("watermark", time_us))

    def turn(self) -> None:
        """The loop looks at the clock."""
        due = self.operator.next_processing_time_ms()
        if due is not None and due <= self.clock.now:
            self.at(self.clock.now)
            again = self.operator.next_processing_time_ms()
            assert again is None or again > self.clock.now, "it would be asked again at once, for nothing"

    def answer(self, position: int = 0) -> None:
        self.requests.answer(position)
        self.turn()


def test_ordered_answers_come_out_in_the_order_of_the_input() -> None:
    harness = AsyncMapHarness()
    harness.rows(1, 2, 3)
    harness.answer(2)
    harness.answer(1)
    assert harness.given == []
    harness.answer(0)
    assert harness.given == [2, 4, 6] and not harness.operator.has_pending_rows()


def test_unordered_answers_come_out_as_they_come_but_never_past_a_watermark() -> None:
    """S4.4."""
    harness = AsyncMapHarness(ordered=False)
    harness.rows(1, 2)
    harness.watermark(10)
    harness.rows(3)
    harness.answer(2)
    harness.answer(1)
    assert harness.given == [4], "3 came behind the watermark, which waits for 1"
    harness.answer(0)
    assert harness.given == [4, 2, ("watermark", 10), 6]


@pytest.mark.parametrize("ordered", [True, False])
def test_watermarks_wait_behind_requests_and_else_pass_at_once(ordered: bool) -> None:
    """S4.4: of several with nothing between them the last is kept."""
    harness = AsyncMapHarness(ordered=ordered)
    harness.watermark(5)
    harness.rows(1)
    harness.watermark(7)
    harness.watermark(8)
    assert harness.given == [("watermark", 5)] and harness.operator.has_pending_rows()
    harness.answer()
    assert harness.given == [("watermark", 5), 2, ("watermark", 8)]
    harness.watermark(9)
    assert harness.given[-1] == ("watermark", 9)


def test_no_more_than_the_capacity_is_asked_at_once_and_further_input_waits_for_room() -> None:
    harness = AsyncMapHarness(capacity=3)
    harness.rows(1, 2, 3, 4, 5)
    assert harness.requests.most == 3
    emission = harness.operator.process(rows(6), 0)
    harness.take(emission)
    assert harness.given == ["waiting"]
    for _ in range(5):
        harness.requests.answer()
        harness.take(emission)
    while harness.requests.held:
        harness.answer()
    assert [g for g in harness.given if g != "waiting"] == [2, 4, 6, 8, 10, 12]
    assert harness.requests.most == 3 and harness.wakes == 6


def test_the_end_of_the_input_waits_for_the_last_answer() -> None:
    """S7.1, S7.2."""
    harness = AsyncMapHarness(ordered=False)
    harness.rows(1, 2)
    harness.watermark(3)
    emission = harness.operator.on_watermark(MAX_WATERMARK)
    harness.take(emission)
    harness.requests.answer(1)
    harness.take(emission)
    harness.requests.answer(0)
    harness.take(emission)
    assert harness.given == ["waiting", 4, "waiting", 2, ("watermark", 3)]
    harness.take(harness.operator.finish())
    assert harness.given[-1] == ("watermark", 3)


def test_a_request_that_takes_too_long_fails_the_job_or_gives_its_rows_to_the_side_output() -> None:
    harness = AsyncMapHarness()
    harness.rows(1)
    assert harness.operator.next_processing_time_ms() == 1_100
    harness.clock.now = 1_100
    with pytest.raises(TidegateError, match="twice returned no answer for 1 rows"):
        harness.turn()
    harness = AsyncMapHarness(on_timeout="side_output", batch_rows=2)
    harness.rows(1, 2)
    harness.clock.now = 1_050
    harness.rows(3)
    harness.clock.now = 1_100
    late = next(iter(harness.requests.held))
    harness.turn()
    assert harness.given == [(TIMED_OUT, [1, 2])] and list(harness.requests.held) != [late]
    harness.operator._on_done(late, twice(rows(1, 2)), None)
    harness.answer()
    assert harness.given == [(TIMED_OUT, [1, 2]), 6], "an answer that comes too late is none"
    assert harness.operator.ctx.counters == {"requests_timed_out": 2}


def test_no_request_uses_up_its_time_while_it_waits_for_a_thread() -> None:
    harness = AsyncMapHarness(capacity=2 * MAX_THREADS)
    harness.rows(*range(2 * MAX_THREADS))
    assert harness.requests.most == MAX_THREADS
    for _ in range(2):
        harness.clock.now += 60
        for _ in range(MAX_THREADS):
            harness.answer()
    assert harness.given == [2 * v for v in range(2 * MAX_THREADS)]


async def twice_later(batch: pa.RecordBatch) -> pa.RecordBatch:
    return twice(batch)


def test_coroutines_need_no_threads() -> None:
    harness = AsyncMapHarness(twice_later, capacity=2 * MAX_THREADS)
    harness.rows(*range(3 * MAX_THREADS))
    assert harness.requests.most == 2 * MAX_THREADS


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
def test_what_would_end_the_slot_fails_the_job_by_the_name_of_the_function(error: BaseException) -> None:
    harness = AsyncMapHarness()
    harness.rows(1)
    harness.operator._on_done(1, None, error)
    with pytest.raises(TidegateError, match=f"twice returned no answer.*{type(error).__name__}"):
        harness.turn()


def test_unordered_answers_of_many_requests_are_found_without_going_through_all_that_wait() -> None:
    harness = AsyncMapHarness(capacity=3, ordered=False)
    harness.rows(*range(1_000))
    looked = 0

    class Counting(deque[Any]):
        def popleft(self) -> Any:
            nonlocal looked
            looked += 1
            return super().popleft()

    harness.operator._queue = Counting(harness.operator._queue)
    while harness.requests.held:
        harness.answer(len(harness.requests.held) - 1)
    assert sorted(harness.given) == [2 * v for v in range(1_000)]
    assert looked < 10_000


def test_without_a_timeout_a_request_may_take_for_ever() -> None:
    harness = AsyncMapHarness(timeout_ms=None)
    harness.rows(1)
    assert harness.operator.next_processing_time_ms() is None


def raising(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise KeyError("no such customer")


def test_what_the_function_raises_comes_out_as_it_is() -> None:
    harness = AsyncMapHarness(raising)
    harness.rows(1)
    with pytest.raises(KeyError, match="no such customer"):
        harness.answer()


@pytest.mark.parametrize(
    ("answer", "cause"),
    [(7, "is a int"), (rows(1), "columns are ['v']"), ([twice(rows(1)), 8], "is a int")],
)
def test_an_answer_that_is_not_of_the_schema_is_refused_by_the_name_of_the_function(answer: Any, cause: str) -> None:
    harness = AsyncMapHarness(lambda batch: answer)
    harness.rows(1)
    with pytest.raises(PipelineError) as refused:
        harness.answer()
    assert cause in str(refused.value) and "<lambda>" in str(refused.value)


def test_an_answer_may_be_several_batches_or_none() -> None:
    harness = AsyncMapHarness(lambda batch: [twice(batch), twice(batch)] if batch["v"][0].as_py() == 1 else None)
    harness.rows(1, 2)
    harness.answer()
    harness.answer()
    assert harness.given == [2, 2]


def test_rows_in_flight_are_asked_again_after_a_restore_in_front_of_new_ones() -> None:
    harness = AsyncMapHarness()
    harness.rows(1, 2, 3)
    harness.answer(1)
    harness.watermark(4)
    parts = harness.state()
    restored = AsyncMapHarness(capacity=4, parts=parts)
    assert restored.operator.next_processing_time_ms() == 0, "the loop is to ask without any input"
    restored.turn()
    restored.rows(4)
    while restored.requests.held:
        restored.answer()
    assert restored.given == [2, 4, 6, ("watermark", 4), 8]
    shapes = {shape.name: shape for shape in AsyncMapSpec(twice, SCHEMA, ANSWER, 1, 1, 1, True, "fail").states()}
    assert {part.name: part.kind for part in parts} == {name: shape.kind for name, shape in shapes.items()}
    assert [(c.name, c.type) for c in shapes["requests"].columns] == [("v", "int64")]


def test_a_rescale_gives_every_row_in_flight_to_one_subtask_and_holds_the_earliest_watermark() -> None:
    """S5.5."""
    former = {}
    for subtask in range(3):
        harness = AsyncMapHarness(subtask=subtask, parallelism=3)
        harness.rows(subtask * 10, subtask * 10 + 1)
        harness.watermark(100 + subtask)
        former[subtask] = harness.state()
    found: list[list[Any]] = []
    for subtask in range(2):
        place = Rescale(3, 2, 128, subtask)
        restored = AsyncMapHarness(parts=redistributed(former, None, place), subtask=subtask, parallelism=2)
        restored.turn()
        while restored.requests.held:
            restored.answer()
        found.append(restored.given)
    assert found == [[0, 2, 40, 42, ("watermark", 100)], [20, 22, ("watermark", 100)]]


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.integers(1, 4)),
        st.tuples(st.just("watermark"), st.integers(0, 0)),
        st.tuples(st.just("answer"), st.integers(0, 5)),
        st.tuples(st.just("restore"), st.integers(0, 0)),
    ),
    max_size=40,
)


@given(STEPS, st.booleans(), st.integers(1, 3))
def test_every_row_comes_out_once_and_none_past_a_watermark(
    steps: list[tuple[str, int]], ordered: bool, batch_rows: int
) -> None:
    """Row v is of time v; the watermark is the next row's time."""
    harness = AsyncMapHarness(ordered=ordered, capacity=100, batch_rows=batch_rows)
    out: list[Any] = []
    number = 0
    for step, n in steps:
        if step == "rows":
            harness.rows(*range(number, number + n))
            number += n
        elif step == "watermark":
            harness.watermark(number)
        elif step == "restore":
            out += harness.given
            harness = AsyncMapHarness(ordered=ordered, capacity=100, batch_rows=batch_rows, parts=harness.state())
            harness.turn()
        elif harness.requests.held:
            harness.answer(n % len(harness.requests.held))
    while harness.requests.held:
        harness.answer(len(harness.requests.held) - 1)
    out += harness.given
    values = [o // 2 for o in out if not isinstance(o, tuple)]
    assert sorted(values) == list(range(number))
    if ordered:
        assert values == list(range(number))
    watermark = -1
    for o in out:
        if isinstance(o, tuple):
            assert o[1] >= watermark
            watermark = o[1]
        else:
            assert o // 2 >= watermark, "it is late, and was not"
