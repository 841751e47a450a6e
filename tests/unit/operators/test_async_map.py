"""map_async: order, watermarks, capacity, time-outs and state, with answers that come when the test says so."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.channel.elements import MAX_WATERMARK, Watermark
from tidegate.errors import PipelineError, TidegateError
from tidegate.operators.async_map import AsyncMap
from tidegate.operators.async_requests import MAX_THREADS
from tidegate.operators.async_specs import TIMED_OUT, AsyncMapSpec
from tidegate.operators.stream_operator import EMISSION_PAUSED, OperatorContext, SideOutput
from tidegate.snapshot.redistribution import Rescale, redistributed
from tidegate.snapshot.streams import decode_parts, encode_parts
from tidegate.testing.inline_requests import HeldRequests

SCHEMA = pa.schema([("v", pa.int64())])
ANSWER = pa.schema([("twice", pa.int64())])


def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch([pc.multiply(batch["v"], 2)], schema=ANSWER)


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int64())], schema=SCHEMA)


class Rig:
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
        self.now_ms = 1_000
        self.wakes = 0
        self.operator = AsyncMap(AsyncMapSpec(function, SCHEMA, ANSWER, **given))
        self.requests = HeldRequests(twice, 1, lambda *a: None)
        self.operator.open(
            OperatorContext(
                job_id="job",
                lineage="l",
                uid="op",
                subtask=subtask,
                parallelism=parallelism,
                max_parallelism=128,
                generation=1,
                run_id="r",
                input_schemas=(SCHEMA,),
                processing_time_ms=lambda: self.now_ms,
                wake=self._wake,
                requests=self._start,
            )
        )
        self.given: list[Any] = []
        if parts is not None:
            self.operator.restore(parts)

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
        self.take(self.operator.process(rows(*values), 0))

    def watermark(self, time_us: int) -> None:
        self.take(self.operator.on_watermark(time_us))
        if self.operator.forwards_watermarks():
            self.given.append(("watermark", time_us))

    def turn(self) -> None:
        """The loop looks at the clock."""
        due = self.operator.next_processing_time_ms()
        if due is not None and due <= self.now_ms:
            self.take(self.operator.on_processing_time(self.now_ms))
            again = self.operator.next_processing_time_ms()
            assert again is None or again > self.now_ms, "it would be asked again at once, for nothing"

    def answer(self, position: int = 0) -> None:
        self.requests.answer(position)
        self.turn()

    def parts(self) -> Any:
        snapshot = self.operator.snapshot(1)
        assert snapshot is not None
        return decode_parts(encode_parts(snapshot()))


def test_ordered_answers_come_out_in_the_order_of_the_input() -> None:
    rig = Rig()
    rig.rows(1, 2, 3)
    rig.answer(2)
    rig.answer(1)
    assert rig.given == []
    rig.answer(0)
    assert rig.given == [2, 4, 6] and not rig.operator.has_pending_rows()


def test_unordered_answers_come_out_as_they_come_but_never_past_a_watermark() -> None:
    """S4.4."""
    rig = Rig(ordered=False)
    rig.rows(1, 2)
    rig.watermark(10)
    rig.rows(3)
    rig.answer(2)
    rig.answer(1)
    assert rig.given == [4], "3 came behind the watermark, which waits for 1"
    rig.answer(0)
    assert rig.given == [4, 2, ("watermark", 10), 6]


@pytest.mark.parametrize("ordered", [True, False])
def test_watermarks_wait_behind_requests_and_else_pass_at_once(ordered: bool) -> None:
    """S4.4: of several with nothing between them the last is kept."""
    rig = Rig(ordered=ordered)
    rig.watermark(5)
    rig.rows(1)
    rig.watermark(7)
    rig.watermark(8)
    assert rig.given == [("watermark", 5)] and rig.operator.has_pending_rows()
    rig.answer()
    assert rig.given == [("watermark", 5), 2, ("watermark", 8)]
    rig.watermark(9)
    assert rig.given[-1] == ("watermark", 9)


def test_no_more_than_the_capacity_is_asked_at_once_and_further_input_waits_for_room() -> None:
    rig = Rig(capacity=3)
    rig.rows(1, 2, 3, 4, 5)
    assert rig.requests.most == 3
    emission = rig.operator.process(rows(6), 0)
    rig.take(emission)
    assert rig.given == ["waiting"]
    for _ in range(5):
        rig.requests.answer()
        rig.take(emission)
    while rig.requests.held:
        rig.answer()
    assert [g for g in rig.given if g != "waiting"] == [2, 4, 6, 8, 10, 12]
    assert rig.requests.most == 3 and rig.wakes == 6


def test_the_end_of_the_input_waits_for_the_last_answer() -> None:
    """S7.1, S7.2."""
    rig = Rig(ordered=False)
    rig.rows(1, 2)
    rig.watermark(3)
    emission = rig.operator.on_watermark(MAX_WATERMARK)
    rig.take(emission)
    rig.requests.answer(1)
    rig.take(emission)
    rig.requests.answer(0)
    rig.take(emission)
    assert rig.given == ["waiting", 4, "waiting", 2, ("watermark", 3)]
    rig.take(rig.operator.finish())
    assert rig.given[-1] == ("watermark", 3)


def test_a_request_that_takes_too_long_fails_the_job_or_gives_its_rows_to_the_side_output() -> None:
    rig = Rig()
    rig.rows(1)
    assert rig.operator.next_processing_time_ms() == 1_100
    rig.now_ms = 1_100
    with pytest.raises(TidegateError, match="twice has not answered for 1 rows"):
        rig.turn()
    rig = Rig(on_timeout="side_output", batch_rows=2)
    rig.rows(1, 2)
    rig.now_ms = 1_050
    rig.rows(3)
    rig.now_ms = 1_100
    late = next(iter(rig.requests.held))
    rig.turn()
    assert rig.given == [(TIMED_OUT, [1, 2])] and list(rig.requests.held) != [late]
    rig.operator._on_done(late, twice(rows(1, 2)), None)
    rig.answer()
    assert rig.given == [(TIMED_OUT, [1, 2]), 6], "an answer that comes too late is none"
    assert rig.operator.ctx.counters == {"requests_timed_out": 2}


def test_no_request_uses_up_its_time_while_it_waits_for_a_thread() -> None:
    rig = Rig(capacity=2 * MAX_THREADS)
    rig.rows(*range(2 * MAX_THREADS))
    assert rig.requests.most == MAX_THREADS
    for _ in range(2):
        rig.now_ms += 60
        for _ in range(MAX_THREADS):
            rig.answer()
    assert rig.given == [2 * v for v in range(2 * MAX_THREADS)]


async def twice_later(batch: pa.RecordBatch) -> pa.RecordBatch:
    return twice(batch)


def test_coroutines_need_no_threads() -> None:
    rig = Rig(twice_later, capacity=2 * MAX_THREADS)
    rig.rows(*range(3 * MAX_THREADS))
    assert rig.requests.most == 2 * MAX_THREADS


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError()])
def test_what_would_end_the_slot_fails_the_job_by_the_name_of_the_function(error: BaseException) -> None:
    rig = Rig()
    rig.rows(1)
    rig.operator._on_done(1, None, error)
    with pytest.raises(TidegateError, match=f"twice gave no answer.*{type(error).__name__}"):
        rig.turn()


def test_unordered_answers_of_many_requests_are_found_without_going_through_all_that_wait() -> None:
    rig = Rig(capacity=3, ordered=False)
    rig.rows(*range(1_000))
    looked = 0

    class Counting(deque[Any]):
        def popleft(self) -> Any:
            nonlocal looked
            looked += 1
            return super().popleft()

    rig.operator._queue = Counting(rig.operator._queue)
    while rig.requests.held:
        rig.answer(len(rig.requests.held) - 1)
    assert sorted(rig.given) == [2 * v for v in range(1_000)]
    assert looked < 10_000


def test_without_a_timeout_a_request_may_take_for_ever() -> None:
    rig = Rig(timeout_ms=None)
    rig.rows(1)
    assert rig.operator.next_processing_time_ms() is None


def raising(batch: pa.RecordBatch) -> pa.RecordBatch:
    raise KeyError("no such customer")


def test_what_the_function_raises_comes_out_as_it_is() -> None:
    rig = Rig(raising)
    rig.rows(1)
    with pytest.raises(KeyError, match="no such customer"):
        rig.answer()


@pytest.mark.parametrize(
    ("answer", "cause"),
    [(7, "it gave a int"), (rows(1), "columns are ['v']"), ([twice(rows(1)), 8], "it gave a int")],
)
def test_an_answer_that_is_not_of_the_schema_is_refused_by_the_name_of_the_function(answer: Any, cause: str) -> None:
    rig = Rig(lambda batch: answer)
    rig.rows(1)
    with pytest.raises(PipelineError) as refused:
        rig.answer()
    assert cause in str(refused.value) and "<lambda>" in str(refused.value)


def test_an_answer_may_be_several_batches_or_none() -> None:
    rig = Rig(lambda batch: [twice(batch), twice(batch)] if batch["v"][0].as_py() == 1 else None)
    rig.rows(1, 2)
    rig.answer()
    rig.answer()
    assert rig.given == [2, 2]


def test_rows_in_flight_are_asked_again_after_a_restore_in_front_of_new_ones() -> None:
    rig = Rig()
    rig.rows(1, 2, 3)
    rig.answer(1)
    rig.watermark(4)
    parts = rig.parts()
    restored = Rig(capacity=4, parts=parts)
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
        rig = Rig(subtask=subtask, parallelism=3)
        rig.rows(subtask * 10, subtask * 10 + 1)
        rig.watermark(100 + subtask)
        former[subtask] = rig.parts()
    found: list[list[Any]] = []
    for subtask in range(2):
        place = Rescale(3, 2, 128, subtask)
        restored = Rig(parts=redistributed(former, None, place), subtask=subtask, parallelism=2)
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
    rig = Rig(ordered=ordered, capacity=100, batch_rows=batch_rows)
    out: list[Any] = []
    number = 0
    for step, n in steps:
        if step == "rows":
            rig.rows(*range(number, number + n))
            number += n
        elif step == "watermark":
            rig.watermark(number)
        elif step == "restore":
            out += rig.given
            rig = Rig(ordered=ordered, capacity=100, batch_rows=batch_rows, parts=rig.parts())
            rig.turn()
        elif rig.requests.held:
            rig.answer(n % len(rig.requests.held))
    while rig.requests.held:
        rig.answer(len(rig.requests.held) - 1)
    out += rig.given
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
