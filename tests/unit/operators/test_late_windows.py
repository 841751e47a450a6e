"""Sliding windows and allowed lateness: when windows fire, fire again and close (S4.4)."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from typing import Any

import pyarrow as pa
import pytest
from builders.batches import batch_of
from builders.operators import open_operator
from builders.rescaling import StoredState, subtask_of
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.errors import SnapshotError
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.snapshot.streams import decode_parts, encode_parts

GROUPS = 8
INPUT = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us")), ("v", pa.int64())])
BOUNDS = [("window_start", pa.timestamp("us")), ("window_end", pa.timestamp("us"))]
OUTPUT = pa.schema([("k", pa.int64()), *BOUNDS, ("n", pa.int64()), ("texts", pa.list_(pa.int64()))])
AGGREGATES = (BoundAggregate("n", "count"), BoundAggregate("texts", "collect_set", "v"))
Result = tuple[int, int, int]
_place_of_state: Any = dict


@pytest.fixture(autouse=True, scope="module")
def in_every_back_end(place_of_state: Any) -> None:
    global _place_of_state
    _place_of_state = place_of_state


def spec(slide: int = 0, lateness: int = 0, time: str | None = "t", size: int = 10) -> WindowAggSpec:
    return WindowAggSpec(("k",), time, "us", size, 0, AGGREGATES, INPUT, OUTPUT, (), slide, lateness)


def opened(window: WindowAggSpec, subtask: int = 0, parallelism: int = 1, now_ms: Any = lambda: 0) -> Any:
    place = {"subtask": subtask, "parallelism": parallelism, "max_parallelism": GROUPS, "processing_time_ms": now_ms}
    operator = open_operator(window, INPUT, **place, **_place_of_state())
    operator.portable = True
    return operator


def batch(*pairs: tuple[int, int]) -> pa.RecordBatch:
    return batch_of(INPUT, [(k, t, t) for k, t in pairs])


def counts(out: Any) -> list[Result]:
    """(key, window start in us, rows) of each result, in order of time; within a window by key."""
    told = [
        (row["k"], int(start), row["n"])
        for b in out
        for row, start in zip(b.to_pylist(), b.column("window_start").cast(pa.int64()).to_pylist(), strict=True)
    ]
    return [row for _, window in groupby(told, key=lambda row: row[1]) for row in sorted(window)]


def feed(operator: Any, *pairs: tuple[int, int]) -> list[Result]:
    return counts(operator.process(batch(*pairs), 0))


def restored(window: WindowAggSpec, old: list[Any], parallelism: int) -> list[Any]:
    new = [opened(window, index, parallelism) for index in range(parallelism)]
    StoredState.of(old).restore(new, GROUPS)
    return new


def test_a_row_is_in_every_sliding_window_that_its_time_falls_in() -> None:
    operator = opened(spec(slide=5))
    assert feed(operator, (1, 7), (1, 12), (2, 3)) == []
    assert counts(operator.on_watermark(4)) == []
    assert counts(operator.on_watermark(5)) == [(2, -5, 1)]
    assert counts(operator.on_watermark(10)) == [(1, 0, 1), (2, 0, 1)]
    assert counts(operator.on_watermark(19)) == [(1, 5, 2)]
    assert counts(operator.on_watermark(MAX_WATERMARK)) == [(1, 10, 1)]
    assert counts(operator.on_watermark(MAX_WATERMARK)) == []


def test_a_row_that_is_late_for_some_sliding_windows_counts_in_the_others() -> None:
    operator = opened(spec(slide=5))
    list(operator.on_watermark(10))
    assert feed(operator, (1, 7), (1, 4)) == []
    assert operator.ctx.counters == {"late_dropped": 1}
    assert counts(operator.on_watermark(MAX_WATERMARK)) == [(1, 5, 1)]


def test_a_window_fires_again_for_rows_within_the_allowed_lateness_and_for_their_keys_alone() -> None:
    operator = opened(spec(lateness=5))
    feed(operator, (1, 3), (2, 4))
    assert counts(operator.on_watermark(12)) == [(1, 0, 1), (2, 0, 1)]
    assert feed(operator, (2, 5), (3, 6), (2, 9), (2, 11)) == [(2, 0, 3), (3, 0, 1)]
    assert counts(operator.on_watermark(14)) == []
    assert feed(operator, (1, 0)) == [(1, 0, 2)]
    assert counts(operator.on_watermark(15)) == []
    assert feed(operator, (1, 1)) == []
    assert operator.ctx.counters == {"late_dropped": 1}
    assert operator.snapshot(1)()[0].table.num_rows == 1, "the closed window is gone, that of time 11 is open"
    assert counts(operator.on_watermark(MAX_WATERMARK)) == [(2, 10, 1)]


def test_lateness_and_sliding_go_together() -> None:
    operator = opened(spec(slide=5, lateness=6))
    feed(operator, (1, 3), (2, 8))
    assert counts(operator.on_watermark(11)) == [(1, -5, 1), (1, 0, 1), (2, 0, 1)]
    assert feed(operator, (1, 6), (1, 2)) == [(1, 0, 3)], "of time 2 the first window, which ended at 5, has closed"
    assert counts(operator.on_watermark(MAX_WATERMARK)) == [(1, 5, 1), (2, 5, 1)]


@pytest.mark.parametrize(("slide", "lateness"), [(0, 20), (5, 0), (5, 20)])
def test_a_result_that_was_given_stays_as_it_was_when_more_rows_come(slide: int, lateness: int) -> None:
    operator = opened(spec(slide=slide, lateness=lateness))
    feed(operator, (1, 3 + slide))
    given = list(operator.on_watermark(10))
    assert (1, 0, 1) in counts(given)
    before = [result.to_pylist() for result in given]
    feed(operator, (1, 4 + slide), (1, 4 + slide))
    assert [result.to_pylist() for result in given] == before


@pytest.mark.parametrize("slide", [0, 5])
def test_what_has_fired_is_known_after_a_restore(slide: int) -> None:
    window = spec(slide, lateness=10)
    operator = opened(window)
    feed(operator, (1, 8))
    assert (1, 0, 1) in counts(operator.on_watermark(12))
    (again,) = restored(window, [operator], 1)
    assert counts(again.on_watermark(13)) == []
    assert feed(again, (1, 7)) == [(1, 0, 2)]
    assert counts(again.on_watermark(MAX_WATERMARK)) == ([(1, 5, 2)] if slide else [])


def test_more_lateness_than_before_opens_no_window_whose_state_has_gone() -> None:
    operator = opened(spec(lateness=2))
    feed(operator, (1, 8), (1, 18))
    list(operator.on_watermark(21))
    (again,) = restored(spec(lateness=100), [operator], 1)
    assert feed(again, (1, 9), (1, 19)) == [(1, 10, 2)]
    assert again.ctx.counters == {"late_dropped": 1}
    (more,) = restored(spec(lateness=100), [again], 1)
    list(more.on_watermark(60))
    assert feed(more, (1, 9), (1, 19)) == [(1, 10, 3)]


def test_more_lateness_than_before_makes_no_row_late_that_was_not_late_for_its_key_group() -> None:
    """Rescaled at the same time: what the subtask that was ahead has given up says nothing of the other's keys."""
    ahead, behind = (next(key for key in range(100) if owner(key, 2) == index) for index in (0, 1))
    operators = [opened(spec(), index, 2) for index in (0, 1)]
    list(operators[0].on_watermark(50))
    list(operators[1].on_watermark(10))
    (again,) = restored(spec(lateness=100), operators, 1)
    assert feed(again, (behind, 35), (ahead, 35)) == []
    assert again.ctx.counters == {"late_dropped": 1}
    assert counts(again.on_watermark(60)) == [(behind, 30, 1)]


@pytest.mark.parametrize("slide", [0, 5])
def test_less_lateness_than_before_closes_windows_that_were_kept_for_it(slide: int) -> None:
    operator = opened(spec(slide, lateness=20))
    feed(operator, (1, 3))
    assert (1, 0, 1) in counts(operator.on_watermark(12))
    (again,) = restored(spec(slide), [operator], 1)
    assert again.snapshot(1)()[0].table.num_rows == 0
    assert counts(again.on_watermark(13)) == [], "it has fired"
    assert feed(again, (1, 4)) == []
    assert again.ctx.counters == {"late_dropped": 1}
    assert counts(again.on_watermark(MAX_WATERMARK)) == []


def test_a_key_of_nulls_alone_has_no_sum_nor_least_value_when_its_sliding_window_fires_again() -> None:
    output = pa.schema([("k", pa.int64()), *BOUNDS, ("sum", pa.int64()), ("min", pa.int64())])
    aggregates = (BoundAggregate("sum", "sum", "v"), BoundAggregate("min", "min", "v"))
    operator = opened(WindowAggSpec(("k",), "t", "us", 10, 0, aggregates, INPUT, output, (), 5, 20))
    first, late = batch((1, 3), (2, 3)), batch((1, 8), (2, 9))
    list(operator.process(first.set_column(2, "v", pa.array([None, 5])), 0))
    list(operator.on_watermark(12))
    (out,) = operator.process(late.set_column(2, "v", pa.array([None, 1])), 0)
    assert out.select(["k", "sum", "min"]).to_pydict() == {"k": [1, 2], "sum": [None, 6], "min": [None, 1]}


@pytest.mark.parametrize("slide", [0, 5])
def test_rows_that_come_after_the_last_watermark_fire_at_the_end(slide: int) -> None:
    operator = opened(spec(slide))
    feed(operator, (1, 3))
    list(operator.on_watermark(MAX_WATERMARK))
    assert feed(operator, (2, 7)) == []
    assert counts(operator.finish()) == ([(2, 0, 1), (2, 5, 1)] if slide else [(2, 0, 1)])
    assert counts(operator.finish()) == []


@pytest.mark.parametrize("slide", [0, 5])
def test_a_closed_window_that_a_row_behind_the_end_of_time_opens_anew_fires_once_also_after_a_crash(slide: int) -> None:
    """S7.2: it fired at once, since it was within the allowed lateness, and in the run behind the crash again."""
    window = spec(slide, lateness=20)
    operator = opened(window)
    feed(operator, (1, 7))
    list(operator.on_watermark(12))
    list(operator.on_watermark(MAX_WATERMARK))
    assert feed(operator, (1, 8)) == []
    (again,) = restored(window, [operator], 1)
    of_the_row = [(1, 0, 1), (1, 5, 1)] if slide else [(1, 0, 1)]
    assert counts(operator.finish()) == of_the_row
    assert counts(again.on_watermark(MAX_WATERMARK)) == of_the_row
    assert counts(again.finish()) == []


def test_another_slide_is_refused_with_what_changed() -> None:
    operator = opened(spec(slide=5))
    feed(operator, (1, 8))
    parts = operator.snapshot(1)()
    with pytest.raises(SnapshotError, match=r"size, offset, slide in us were 10, 0, 5; in the pipeline, 10, 0, 2"):
        opened(spec(slide=2)).restore(parts)
    with pytest.raises(
        SnapshotError, match=r"size, offset, slide in us were 10, 0, 5; in the pipeline, size, offset in us 10, 0"
    ):
        opened(spec()).restore(parts)


def test_sliding_windows_over_processing_time_follow_the_clock_and_a_restore_repeats_none() -> None:
    now = [0]
    window = spec(slide=5_000, time=None, size=10_000)
    operator = opened(window, now_ms=lambda: now[0])
    feed(operator, (1, 0))
    now[0] = 6
    feed(operator, (1, 0), (2, 0))
    assert operator.next_processing_time_ms() == 5
    assert counts(operator.on_processing_time(6)) == [(1, -5_000, 1)]
    parts = decode_parts(encode_parts(operator.snapshot(1)()))
    again = opened(window, now_ms=lambda: now[0])
    again.restore(parts)
    assert again.next_processing_time_ms() == 10
    assert counts(again.on_processing_time(10)) == [(1, 0, 2), (2, 0, 1)]
    now[0] = 3
    feed(again, (3, 0))
    assert (3, 0, 1) in counts(again.on_processing_time(10)), "the clock was set back: its windows fire for it"
    assert counts(again.on_watermark(MAX_WATERMARK)) == [(1, 5_000, 1), (2, 5_000, 1)]
    assert again.next_processing_time_ms() is None


BATCHES = st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60)), min_size=1, max_size=8), max_size=6)


def owner(key: int, parallelism: int) -> int:
    return subtask_of(key, parallelism, GROUPS)


@settings(deadline=None, max_examples=50)
@given(
    batches=BATCHES,
    slide=st.sampled_from([0, 5, 4]),
    lateness=st.sampled_from([0, 3, 20]),
    rescales=st.lists(st.sampled_from([0, 1, 2, 3]), min_size=6, max_size=6),
    apart=st.lists(st.integers(0, 15), min_size=6, max_size=6),
)
def test_fired_and_updated_results_equal_a_model_that_sees_row_by_row(
    batches: list[list[tuple[int, int]]], slide: int, lateness: int, rescales: list[int], apart: list[int]
) -> None:
    """Subtasks have watermarks of their own, and are rescaled between batches. The model knows what has fired for each
    key; it takes the latest watermark that a key's group has seen."""
    window = spec(slide, lateness)
    step = slide or 10
    operators, marks = [opened(window)], [-100]
    passed: dict[int, int] = {}
    held: Counter[tuple[int, int]] = Counter()
    fired: dict[tuple[int, int], int] = {}
    expected: Counter[Result] = Counter()
    found: Counter[Result] = Counter()
    latest = -100
    for number, rows in enumerate(batches):
        if rescales[number]:
            operators = restored(window, operators, rescales[number])
            marks = [
                min((passed.get(k, -100) for k in every_key_of(i, len(operators))), default=-100)
                for i in range(len(operators))
            ]
        late_updates = counted(rows, step, lateness, passed, held)
        expected.update((key, start, n) for (key, start), n in late_updates.items())
        fired.update(late_updates)
        for i, operator in enumerate(operators):
            mine = [row for row in rows if owner(row[0], len(operators)) == i]
            if mine:
                found.update(feed(operator, *mine))
        latest = max([latest, *(t for _, t in rows)])
        for i, operator in enumerate(operators):
            marks[i] = max(marks[i], latest - apart[(number + i) % 6])
            found.update(counts(operator.on_watermark(marks[i])))
            for key in every_key_of(i, len(operators)):
                before, passed[key] = passed.get(key, -100), max(passed.get(key, -100), marks[i])
                for (k, start), n in list(held.items()):
                    if k == key and before < start + 10 <= passed[key]:
                        expected[key, start, n] += 1
    for operator in operators:
        found.update(counts(operator.on_watermark(MAX_WATERMARK)))
    expected.update((k, s, n) for (k, s), n in held.items() if s + 10 > passed.get(k, -100))
    assert found == expected


def counted(
    rows: list[tuple[int, int]], step: int, lateness: int, passed: dict[int, int], held: Counter[tuple[int, int]]
) -> dict[tuple[int, int], int]:
    """The model's way to count rows into windows. Gives the new counts of those that have fired for a key."""
    late_updates: dict[tuple[int, int], int] = {}
    for key, time in rows:
        mark = passed.get(key, -100)
        start = time // step * step
        while start + 10 > time:
            if start + 10 + lateness > mark:
                held[key, start] += 1
                if start + 10 <= mark:
                    late_updates[key, start] = held[key, start]
            start -= step
    return late_updates


def every_key_of(subtask: int, parallelism: int) -> list[int]:
    return [key for key in range(6) if owner(key, parallelism) == subtask]
