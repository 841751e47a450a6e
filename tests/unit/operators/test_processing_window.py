"""Windows over processing time: the clock stamps batches and ends windows."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.errors import SnapshotError
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.snapshot.parts import StatePart
from tidegate.snapshot.redistribution import Rescale, redistributed
from tidegate.snapshot.streams import decode_parts, encode_parts
from tidegate.state.keys.key_hash import hash_keys, key_groups, subtask_of_key_groups

GROUPS = 128
INPUT = pa.schema([("k", pa.int64()), ("v", pa.int64())])
BOUNDS = [("window_start", pa.timestamp("us")), ("window_end", pa.timestamp("us"))]
RESULT = pa.schema([("k", pa.int64()), *BOUNDS, ("n", pa.int64()), ("total", pa.int64())])
AGGREGATES = (BoundAggregate("n", "count"), BoundAggregate("total", "sum", "v"))
SPEC = WindowAggSpec(("k",), None, "us", 10_000, 0, AGGREGATES, INPUT, RESULT)
"""Windows of 10 ms."""
_place_of_state: Any = dict


@pytest.fixture(autouse=True, scope="module")
def in_every_back_end(place_of_state: Any) -> None:
    global _place_of_state
    _place_of_state = place_of_state


class Clock:
    def __init__(self) -> None:
        self.ms = 0

    def __call__(self) -> int:
        return self.ms


class Rig:
    """One operator with a clock of its own; results as (key, window start in ms, n, total)."""

    def __init__(
        self,
        spec: WindowAggSpec = SPEC,
        restored: Sequence[StatePart] | None = None,
        on_end: Any = "fire",
        place: tuple[int, int] = (0, 1),
    ) -> None:
        self.clock = Clock()
        self.operator = create_operator(spec)
        self.context = OperatorContext(
            *("job", "l", "op", *place, GROUPS, 1, "r", (INPUT,), self.clock),  # type: ignore[arg-type]
            processing_time_on_end=on_end,
            **_place_of_state(),
        )
        self.operator.portable = True
        self.operator.open(self.context)
        if restored is not None:
            self.operator.restore(restored)

    def feed(self, *rows: tuple[int | None, int], at: int | None = None) -> None:
        self.clock.ms = self.clock.ms if at is None else at
        columns = [pa.array([row[i] for row in rows], pa.int64()) for i in range(2)]
        assert list(self.operator.process(pa.record_batch(columns, schema=INPUT), 0)) == []

    def at(self, now_ms: int) -> list[tuple[Any, ...]]:
        """What the loop does when the clock is at `now_ms`."""
        self.clock.ms = now_ms
        due = self.operator.next_processing_time_ms()
        return results(self.operator.on_processing_time(now_ms)) if due is not None and due <= now_ms else []

    def finish(self) -> list[tuple[Any, ...]]:
        return results(self.operator.finish())

    def state(self) -> list[StatePart]:
        made = self.operator.snapshot(1)
        assert made is not None
        return list(decode_parts(encode_parts(made())))


def results(batches: Any) -> list[tuple[Any, ...]]:
    return [
        (row["k"], int(start) // 1000, row["n"], row["total"])
        for batch in batches
        for row, start in zip(batch.to_pylist(), batch.column("window_start").cast(pa.int64()).to_pylist())
    ]


def test_a_window_takes_the_batches_of_its_time_and_fires_once_the_clock_reaches_its_end() -> None:
    rig = Rig()
    rig.feed((1, 5), (2, 7), at=10)
    rig.feed((1, 6), at=19)
    assert rig.operator.next_processing_time_ms() == 20
    assert rig.at(19) == []
    rig.feed((1, 8), at=20)
    assert rig.at(20) == [(1, 10, 2, 11), (2, 10, 1, 7)]
    assert rig.operator.next_processing_time_ms() == 30
    assert rig.at(1_000) == [(1, 20, 1, 8)]
    assert rig.operator.next_processing_time_ms() is None
    assert rig.context.counters == {}


def test_windows_that_the_clock_has_passed_all_fire_in_order() -> None:
    rig = Rig()
    for ms in (25, 5, 15, 45):
        rig.feed((1, ms), at=ms)
    assert rig.at(40) == [(1, 0, 1, 5), (1, 10, 1, 15), (1, 20, 1, 25)]
    assert rig.operator.next_processing_time_ms() == 50


def test_an_end_between_two_milliseconds_waits_for_the_later_one() -> None:
    rig = Rig(replace(SPEC, offset_us=500))
    rig.feed((1, 1), at=5)
    assert rig.operator.next_processing_time_ms() == 11
    assert rig.at(10) == []
    assert len(rig.at(11)) == 1


def test_null_is_a_key_and_an_empty_batch_opens_no_window() -> None:
    rig = Rig()
    rig.feed()
    assert rig.operator.next_processing_time_ms() is None
    rig.feed((None, 1), (None, 2))
    assert rig.at(10) == [(None, 0, 2, 3)]


def test_a_clock_that_was_set_back_loses_nothing() -> None:
    rig = Rig()
    rig.feed((1, 1), at=12)
    assert rig.at(20) == [(1, 10, 1, 1)]
    rig.feed((1, 2), at=13)
    assert rig.at(20) == [(1, 10, 1, 2)]


def test_at_the_end_open_windows_fire_once() -> None:
    """S7.6."""
    rig = Rig()
    rig.feed((1, 1), at=5)
    rig.feed((1, 2), at=15)
    assert rig.finish() == [(1, 0, 1, 1), (1, 10, 1, 2)]
    assert rig.finish() == [], "finish may come again"
    assert rig.operator.next_processing_time_ms() is None
    assert rig.context.counters == {}


def test_the_results_come_in_front_of_the_last_watermark_and_other_watermarks_fire_nothing() -> None:
    """S7.6: behind MAX_WATERMARK they would be late for event-time windows downstream, and lost in silence."""
    rig = Rig()
    rig.feed((1, 1), at=5)
    assert results(rig.operator.on_watermark(MAX_WATERMARK - 1)) == []
    assert results(rig.operator.on_watermark(MAX_WATERMARK)) == [(1, 0, 1, 1)]
    assert rig.finish() == []


def test_at_the_end_open_windows_are_dropped_counted_and_logged_if_the_job_says_so(caplog: Any) -> None:
    """S7.6."""
    rig = Rig(on_end="drop")
    rig.feed((1, 1), (2, 1), (2, 1), at=5)
    rig.feed((1, 2), at=15)
    assert rig.at(10) == [(1, 0, 1, 1), (2, 0, 2, 2)], "a window that has ended in time fires"
    rig.feed((3, 2), at=15)
    with caplog.at_level(logging.WARNING):
        assert results(rig.operator.on_watermark(MAX_WATERMARK)) == []
        assert rig.finish() == []
    assert rig.context.counters == {"processing_time_dropped": 2}
    (record,) = caplog.records
    assert "'op', subtask 0" in record.message and "2 results, are dropped" in record.message
    assert rig.operator.next_processing_time_ms() is None


@pytest.mark.parametrize("on_end", ["fire", "drop"])
def test_rows_behind_the_end_are_counted_and_dropped(on_end: str) -> None:
    """S7.6: new registrations."""
    rig = Rig(on_end=on_end)
    assert rig.finish() == []
    rig.feed((1, 1), (2, 2))
    assert rig.operator.next_processing_time_ms() is None
    assert rig.finish() == [] and rig.context.counters == {"processing_time_dropped": 2}


def test_an_open_window_keeps_idleness_back() -> None:
    """S4.4: its results are still to come, with no input that brings them."""
    rig = Rig()
    assert not rig.operator.has_pending_rows()
    rig.feed((1, 1), at=5)
    assert rig.operator.has_pending_rows()
    rig.at(10)
    assert not rig.operator.has_pending_rows()


def test_open_windows_are_restored_with_their_ends_and_fire_when_those_have_passed() -> None:
    rig = Rig()
    rig.feed((1, 1), (2, 2), at=5)
    rig.feed((1, 3), at=15)
    state = rig.state()
    rig.feed((1, 100), at=16)
    again = Rig(restored=state)
    assert again.operator.next_processing_time_ms() == 10
    again.feed((1, 10), at=17)
    assert again.at(5_000) == [(1, 0, 1, 1), (2, 0, 1, 2), (1, 10, 2, 13)]


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_rescaled_windows_go_with_their_key_groups(parallelism: int) -> None:
    """S5.5: each result once, at the subtask that owns its key, whatever windows the old ones had open."""
    rng = random.Random(parallelism)
    owner = owners(3)
    old = [Rig(place=(i, 3)) for i in range(3)]
    wanted: Counter[tuple[int, int]] = Counter()
    for _ in range(400):
        key, ms = rng.randrange(50), rng.randrange(40)
        old[owner[key]].feed((key, 1), at=ms)
        wanted[key, ms // 10 * 10] += 1
    former = {i: rig.state() for i, rig in enumerate(old)}
    found: Counter[tuple[int, int]] = Counter()
    for i in range(parallelism):
        mine = redistributed(former, 0, Rescale(3, parallelism, GROUPS, i))
        rig = Rig(restored=mine, place=(i, parallelism))
        for key, start, n, _ in rig.at(1_000):
            assert owners(parallelism)[key] == i and (key, start) not in found
            found[key, start] = n
    assert found == wanted


def owners(parallelism: int) -> list[int]:
    """Of the keys 0 to 49."""
    groups = key_groups(hash_keys(pa.record_batch({"k": range(50)}), ["k"]), GROUPS)
    return [int(i) for i in subtask_of_key_groups(parallelism, GROUPS)[groups]]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"size_us": 20_000}, "size, offset in us were 10000, 0, now 20000, 0"),
        ({"size_us": 5_000}, "size, offset in us were 10000, 0, now 5000, 0"),
        ({"offset_us": 1_000}, "size, offset in us were 10000, 0, now 10000, 1000"),
        ({"time_column": "v"}, "it was over processing time, now over event time"),
        ({"aggregates": AGGREGATES[:1]}, "'sum:total' is no longer there"),
    ],
)
def test_state_of_another_window_is_refused(change: dict[str, Any], text: str) -> None:
    """S5.5."""
    rig = Rig()
    rig.feed((1, 1), at=5)
    with pytest.raises(SnapshotError, match="operator 'op'") as refused:
        Rig(replace(SPEC, **change), restored=rig.state())
    assert text in str(refused.value)


def test_state_of_event_time_windows_is_refused() -> None:
    """S5.5."""
    rig = Rig(replace(SPEC, time_column="v"))
    with pytest.raises(SnapshotError, match="it was over event time, now over processing time"):
        Rig(restored=rig.state())


def test_the_description_says_what_time_it_is() -> None:
    assert SPEC.describe() == "window 0.01 s of processing time by k: n=count(*), total=sum(v)"
