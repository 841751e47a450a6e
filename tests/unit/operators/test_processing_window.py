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
from builders.batches import batch_of
from builders.operators import OperatorHarness

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.errors import SnapshotError
from tidegate.log_format import TextFormatter
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.snapshot.parts import StatePart
from tidegate.snapshot.redistribution import Rescale, redistributed
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


class WindowHarness(OperatorHarness[list[tuple[Any, ...]]]):
    """The operator of windows; results as (key, window start in ms, n, total)."""

    def __init__(
        self,
        spec: WindowAggSpec = SPEC,
        restored: Sequence[StatePart] | None = None,
        on_end: Any = "fire",
        place: tuple[int, int] = (0, 1),
    ) -> None:
        super().__init__(
            create_operator(spec),
            results,
            INPUT,
            restored=restored,
            subtask=place[0],
            parallelism=place[1],
            processing_time_on_end=on_end,
            **_place_of_state(),
        )

    def feed(self, *rows: tuple[int | None, int], at: int | None = None) -> None:
        self.clock.now = self.clock.now if at is None else at
        assert self.process(batch_of(INPUT, rows)) == []


def results(batches: Any) -> list[tuple[Any, ...]]:
    return [
        (row["k"], int(start) // 1000, row["n"], row["total"])
        for batch in batches
        for row, start in zip(batch.to_pylist(), batch.column("window_start").cast(pa.int64()).to_pylist())
    ]


def test_a_window_takes_the_batches_of_its_time_and_fires_once_the_clock_reaches_its_end() -> None:
    harness = WindowHarness()
    harness.feed((1, 5), (2, 7), at=10)
    harness.feed((1, 6), at=19)
    assert harness.operator.next_processing_time_ms() == 20
    assert harness.at(19) == []
    harness.feed((1, 8), at=20)
    assert harness.at(20) == [(1, 10, 2, 11), (2, 10, 1, 7)]
    assert harness.operator.next_processing_time_ms() == 30
    assert harness.at(1_000) == [(1, 20, 1, 8)]
    assert harness.operator.next_processing_time_ms() is None
    assert harness.context.counters == {}


def test_windows_that_the_clock_has_passed_all_fire_in_order() -> None:
    harness = WindowHarness()
    for ms in (25, 5, 15, 45):
        harness.feed((1, ms), at=ms)
    assert harness.at(40) == [(1, 0, 1, 5), (1, 10, 1, 15), (1, 20, 1, 25)]
    assert harness.operator.next_processing_time_ms() == 50


def test_an_end_between_two_milliseconds_waits_for_the_later_one() -> None:
    harness = WindowHarness(replace(SPEC, offset_us=500))
    harness.feed((1, 1), at=5)
    assert harness.operator.next_processing_time_ms() == 11
    assert harness.at(10) == []
    assert len(harness.at(11)) == 1


def test_null_is_a_key_and_an_empty_batch_opens_no_window() -> None:
    harness = WindowHarness()
    harness.feed()
    assert harness.operator.next_processing_time_ms() is None
    harness.feed((None, 1), (None, 2))
    assert harness.at(10) == [(None, 0, 2, 3)]


def test_a_clock_that_was_set_back_loses_nothing() -> None:
    harness = WindowHarness()
    harness.feed((1, 1), at=12)
    assert harness.at(20) == [(1, 10, 1, 1)]
    harness.feed((1, 2), at=13)
    assert harness.at(20) == [(1, 10, 1, 2)]


def test_at_the_end_open_windows_fire_once() -> None:
    """S7.6."""
    harness = WindowHarness()
    harness.feed((1, 1), at=5)
    harness.feed((1, 2), at=15)
    assert harness.finish() == [(1, 0, 1, 1), (1, 10, 1, 2)]
    assert harness.finish() == [], "finish may come again"
    assert harness.operator.next_processing_time_ms() is None
    assert harness.context.counters == {}


def test_the_results_come_in_front_of_the_last_watermark_and_other_watermarks_fire_nothing() -> None:
    """S7.6: behind MAX_WATERMARK they would be late for event-time windows downstream, and lost in silence."""
    harness = WindowHarness()
    harness.feed((1, 1), at=5)
    assert results(harness.operator.on_watermark(MAX_WATERMARK - 1)) == []
    assert results(harness.operator.on_watermark(MAX_WATERMARK)) == [(1, 0, 1, 1)]
    assert harness.finish() == []


def test_at_the_end_open_windows_are_dropped_counted_and_logged_if_the_job_says_so(caplog: Any) -> None:
    """S7.6."""
    harness = WindowHarness(on_end="drop")
    harness.feed((1, 1), (2, 1), (2, 1), at=5)
    harness.feed((1, 2), at=15)
    assert harness.at(10) == [(1, 0, 1, 1), (2, 0, 2, 2)], "a window that has ended in time fires"
    harness.feed((3, 2), at=15)
    with caplog.at_level(logging.WARNING):
        assert results(harness.operator.on_watermark(MAX_WATERMARK)) == []
        assert harness.finish() == []
    assert harness.context.counters == {"processing_time_dropped": 2}
    (record,) = caplog.records
    assert (
        "operator=op subtask=0" in TextFormatter({}).format(record)
        and "2 results of open windows are dropped" in record.message
    )
    assert harness.operator.next_processing_time_ms() is None


@pytest.mark.parametrize("on_end", ["fire", "drop"])
def test_rows_behind_the_end_are_counted_and_dropped(on_end: str) -> None:
    """S7.6: new registrations."""
    harness = WindowHarness(on_end=on_end)
    assert harness.finish() == []
    harness.feed((1, 1), (2, 2))
    assert harness.operator.next_processing_time_ms() is None
    assert harness.finish() == [] and harness.context.counters == {"processing_time_dropped": 2}


def test_an_open_window_keeps_idleness_back() -> None:
    """S4.4: its results are still to come, with no input that brings them."""
    harness = WindowHarness()
    assert not harness.operator.has_pending_rows()
    harness.feed((1, 1), at=5)
    assert harness.operator.has_pending_rows()
    harness.at(10)
    assert not harness.operator.has_pending_rows()


def test_open_windows_are_restored_with_their_ends_and_fire_when_those_have_passed() -> None:
    harness = WindowHarness()
    harness.feed((1, 1), (2, 2), at=5)
    harness.feed((1, 3), at=15)
    state = harness.state()
    harness.feed((1, 100), at=16)
    again = WindowHarness(restored=state)
    assert again.operator.next_processing_time_ms() == 10
    again.feed((1, 10), at=17)
    assert again.at(5_000) == [(1, 0, 1, 1), (2, 0, 1, 2), (1, 10, 2, 13)]


@pytest.mark.parametrize("parallelism", [1, 2, 5])
def test_rescaled_windows_go_with_their_key_groups(parallelism: int) -> None:
    """S5.5: each result once, at the subtask that owns its key, whatever windows the old ones had open."""
    rng = random.Random(parallelism)
    owner = owners(3)
    old = [WindowHarness(place=(i, 3)) for i in range(3)]
    wanted: Counter[tuple[int, int]] = Counter()
    for _ in range(400):
        key, ms = rng.randrange(50), rng.randrange(40)
        old[owner[key]].feed((key, 1), at=ms)
        wanted[key, ms // 10 * 10] += 1
    former = {i: harness.state() for i, harness in enumerate(old)}
    found: Counter[tuple[int, int]] = Counter()
    for i in range(parallelism):
        mine = redistributed(former, 0, Rescale(3, parallelism, GROUPS, i))
        harness = WindowHarness(restored=mine, place=(i, parallelism))
        for key, start, n, _ in harness.at(1_000):
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
        ({"size_us": 20_000}, "size, offset in us were 10000, 0; in the pipeline, 20000, 0"),
        ({"size_us": 5_000}, "size, offset in us were 10000, 0; in the pipeline, 5000, 0"),
        ({"offset_us": 1_000}, "size, offset in us were 10000, 0; in the pipeline, 10000, 1000"),
        ({"time_column": "v"}, "the window is over processing time; in the pipeline, over event time"),
        ({"aggregates": AGGREGATES[:1]}, "'sum:total' is no longer declared"),
    ],
)
def test_state_of_another_window_is_refused(change: dict[str, Any], text: str) -> None:
    """S5.5."""
    harness = WindowHarness()
    harness.feed((1, 1), at=5)
    with pytest.raises(SnapshotError, match="operator 'op'") as refused:
        WindowHarness(replace(SPEC, **change), restored=harness.state())
    assert text in str(refused.value)


def test_state_of_event_time_windows_is_refused() -> None:
    """S5.5."""
    harness = WindowHarness(replace(SPEC, time_column="v"))
    with pytest.raises(SnapshotError, match="the window is over event time; in the pipeline, over processing time"):
        WindowHarness(restored=harness.state())


def test_the_description_says_what_time_it_is() -> None:
    assert SPEC.describe() == "window 0.01 s of processing time by k: n=count(*), total=sum(v)"
