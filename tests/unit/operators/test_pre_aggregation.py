"""Batches that are aggregated before the exchange give the windows what their rows give (S4.4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders.operators import open_operator
from builders.rescaling import StoredState

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.operators.windows import pre_aggregation
from tidegate.operators.windows.pre_aggregation import BATCHES_AS_THEY_ARE, WindowPreAggregate
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.snapshot.partial_rows import count_rows, is_partial
from tidegate.state.aggregates.numbers import SumOverflowError
from tidegate.state.keys.key_hash import partition_hash

GROUPS = 8
LARGE = 64
"""Rows of a batch that is large enough here."""
INPUT = pa.schema(
    [
        ("k", pa.int64()),
        ("name", pa.string()),
        ("f", pa.float64()),
        ("t", pa.timestamp("ms")),
        ("v", pa.int64()),
        ("x", pa.float64()),
    ]
)
AGGREGATES = {
    "n": (BoundAggregate("n", "count"), pa.int64()),
    "known": (BoundAggregate("known", "count", "v"), pa.int64()),
    "total": (BoundAggregate("total", "sum", "v"), pa.int64()),
    "sum_x": (BoundAggregate("sum_x", "sum", "x"), pa.float64()),
    "least": (BoundAggregate("least", "min", "v"), pa.int64()),
    "most": (BoundAggregate("most", "max", "x"), pa.float64()),
    "average": (BoundAggregate("average", "mean", "v"), pa.float64()),
    "spread": (BoundAggregate("spread", "stddev", "x", n=1), pa.float64()),
}
EVERY = tuple(AGGREGATES)
KEYS = {"integer": ("k",), "text": ("name",), "float": ("f",), "composite": ("name", "k")}
Rows = list[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that a test can write down are aggregated."""
    monkeypatch.setattr(pre_aggregation, "MIN_ROWS", LARGE)
    monkeypatch.setattr(pre_aggregation, "MIN_ROWS_PER_PANE", 0)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large batches are aggregated even if keys hardly repeat."""
    monkeypatch.setattr(pre_aggregation, "MIN_SAMPLE_ROWS_PER_ENTRY", 0)
    monkeypatch.setattr(pre_aggregation, "MIN_ROWS_PER_ENTRY", 0)


def spec(
    keys: tuple[str, ...] = ("k",),
    aggregates: tuple[str, ...] = EVERY,
    size_ms: int = 10,
    slide_ms: int = 0,
    **facts: Any,
) -> WindowAggSpec:
    bounds = [("window_start", pa.timestamp("us")), ("window_end", pa.timestamp("us"))]
    results = [(name, AGGREGATES[name][1]) for name in aggregates]
    output = pa.schema([*(INPUT.field(key) for key in keys), *bounds, *results])
    bound = tuple(AGGREGATES[name][0] for name in aggregates)
    whole = WindowAggSpec(keys, "t", "ms", size_ms * 1000, 0, bound, INPUT, output, slide_us=slide_ms * 1000)
    return replace(whole, **facts)


def rows(rng: Random, count: int, times: range, keys: int = 3) -> pa.RecordBatch:
    """Rows of a few keys, with nulls, NaN and both zeros among them."""

    def some(values: Any) -> Any:
        return None if rng.random() < 0.1 else values

    numbers = [rng.randrange(keys) for _ in range(count)]
    columns = [
        pa.array([some(k) for k in numbers], pa.int64()),
        pa.array([some(f"key {k}") for k in numbers], pa.string()),
        pa.array([some(rng.choice([0.0, -0.0, float("nan"), 1.5])) for _ in numbers], pa.float64()),
        pa.array([rng.choice(times) for _ in numbers], pa.int64()).cast(pa.timestamp("ms")),
        pa.array([some(rng.randrange(-50, 50)) for _ in numbers], pa.int64()),
        pa.array([some(rng.uniform(-1, 1)) for _ in numbers], pa.float64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=INPUT)


def numbered(keys: np.ndarray[Any, Any], time_ms: int = 5, value: int = 1) -> pa.RecordBatch:
    count = len(keys)
    columns = [
        pa.array(keys, pa.int64()),
        pa.nulls(count, pa.string()),
        pa.nulls(count, pa.float64()),
        pa.array(np.full(count, time_ms)).cast(pa.timestamp("ms")),
        pa.array(np.full(count, value)),
        pa.nulls(count, pa.float64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=INPUT)


class Windows:
    """Two subtasks of the windows, and the sender of their rows."""

    def __init__(self, window: WindowAggSpec, sent: Callable[[pa.RecordBatch], pa.RecordBatch], **place: Any) -> None:
        self._window, self._sent, self._place = window, sent, place
        self.operators = self._opened(2)
        self.kinds: Counter[bool] = Counter()

    def _opened(self, parallelism: int) -> list[Any]:
        place = {"parallelism": parallelism, "max_parallelism": GROUPS}
        scratch = self._place.get("scratch")
        return [
            open_operator(
                self._window,
                INPUT,
                subtask=index,
                **place,
                **(self._place | ({"scratch": f"{scratch}/{parallelism}-{index}"} if scratch else {})),
            )
            for index in range(parallelism)
        ]

    def feed(self, batch: pa.RecordBatch) -> Rows:
        batch = self._sent(batch)
        self.kinds[is_partial(batch.schema)] += 1
        keys = self._window.partial_keys if is_partial(batch.schema) else self._window.keys
        found: Rows = []
        for operator, part in zip(
            self.operators, partition_hash(batch, keys, len(self.operators), GROUPS), strict=True
        ):
            if part is not None:
                found += plain(operator.process(part, 0))
        return found

    def watermark(self, time_us: int, first: int = 0) -> Rows:
        return [row for operator in self.operators[first:] for row in plain(operator.on_watermark(time_us))]

    def rescale(self, parallelism: int) -> None:
        for operator in self.operators:
            operator.portable = True
        old, self.operators = self.operators, self._opened(parallelism)
        StoredState.of(old).restore(self.operators, GROUPS)
        for operator in old:
            operator.close()

    @property
    def counters(self) -> Counter[str]:
        return sum((Counter(operator.ctx.counters) for operator in self.operators), Counter())


def plain(emission: Iterator[Any]) -> Rows:
    """Rows in the order of the emission; floats are rounded, because they are added in another order."""
    return [
        tuple(repr(v) if v != v else round(v, 6) if isinstance(v, float) else v for v in row.values())
        for batch in emission
        for row in batch.to_pylist()
    ]


def as_it_is(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("slide_ms", [0, 5])
@pytest.mark.parametrize("back_end", ["heap", "rocksdb"])
@pytest.mark.parametrize("seed", range(3))
def test_results_order_and_late_rows_are_the_same(
    keys: str, slide_ms: int, back_end: str, seed: int, tmp_path: Path
) -> None:
    """S4.4, S5.1: also with null keys, and with rows that are late for some windows."""
    rng = Random(f"{keys} {slide_ms} {seed}")
    window = spec(KEYS[keys], slide_ms=slide_ms)
    raw, partial = (
        Windows(window, sent, state_backend=back_end, scratch=str(tmp_path / name))
        for name, sent in (("raw", as_it_is), ("partial", WindowPreAggregate(window)))
    )
    found = 0
    for step in range(8):
        batch = rows(rng, rng.choice([1, LARGE, 3 * LARGE]), range(step * 8 - 40, step * 8 + 12))
        assert partial.feed(batch) == raw.feed(batch) == []
        fired = partial.watermark(step * 8_000), raw.watermark(step * 8_000)
        assert fired[0] == fired[1]
        found += len(fired[0])
    assert partial.watermark(MAX_WATERMARK) == raw.watermark(MAX_WATERMARK)
    assert partial.counters == raw.counters and raw.counters["late_dropped"] > LARGE
    assert found and partial.kinds[True] and not raw.kinds[True]


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("seed", range(6))
def test_after_a_rescale_partial_rows_are_compared_with_the_watermark_of_their_key_group(seed: int) -> None:
    """S4.4, S5.5: the subtasks had different watermarks."""
    rng = Random(seed)
    window = spec()
    raw, partial = (Windows(window, sent) for sent in (as_it_is, WindowPreAggregate(window)))
    for windows in (raw, partial):
        windows.feed(rows(Random(seed), 2 * LARGE, range(40), keys=30))
        windows.watermark(11_000)
        windows.watermark(31_000, first=1)
        windows.rescale(3)
    batch = rows(rng, 4 * LARGE, range(40), keys=30)
    assert partial.feed(batch) == raw.feed(batch) == []
    assert partial.kinds[True] and partial.counters == raw.counters and raw.counters["late_dropped"] > LARGE
    for time_us in (21_000, MAX_WATERMARK):
        assert sorted(map(repr, partial.watermark(time_us))) == sorted(map(repr, raw.watermark(time_us)))


@pytest.mark.parametrize("aggregates", [("total",), ("least", "n"), ("known",)])
def test_partial_rows_know_how_many_rows_they_stand_for(aggregates: tuple[str, ...]) -> None:
    """S4.4: late rows are counted one by one, whether the windows count rows or not."""
    window = spec(aggregates=aggregates)
    windows = Windows(window, WindowPreAggregate(window))
    windows.watermark(10_000)
    windows.feed(numbered(np.arange(LARGE) % 2))
    assert windows.kinds == {True: 1}
    assert windows.counters == {"late_dropped": LARGE}
    assert windows.watermark(MAX_WATERMARK) == []


def test_a_partial_row_for_each_key_and_pane() -> None:
    window = spec(slide_ms=5)
    batch = pa.concat_batches([numbered(np.arange(LARGE) % 2, time_ms) for time_ms in (1, 7)])
    partial = WindowPreAggregate(window)(batch)
    assert partial.num_rows == 4 and count_rows(partial) == 2 * LARGE
    assert partial.column(0).to_pylist() == [0, 0, 5_000, 5_000]


def test_small_batches_stay_as_they_are() -> None:
    pre_aggregate = WindowPreAggregate(spec())
    batch = numbered(np.zeros(LARGE, np.int64))
    assert pre_aggregate(batch.slice(1)).num_rows == LARGE - 1
    assert pre_aggregate(batch).num_rows == 1


def test_batches_stay_as_they_are_while_keys_hardly_repeat() -> None:
    """One in 64 is tried."""
    pre_aggregate = WindowPreAggregate(spec())
    different, equal = numbered(np.arange(LARGE)), numbered(np.zeros(LARGE, np.int64))
    assert pre_aggregate(different) is different
    assert all(pre_aggregate(equal) is equal for _ in range(BATCHES_AS_THEY_ARE))
    assert [pre_aggregate(equal).num_rows for _ in range(3)] == [1, 1, 1]
    # Without a sample the whole batch is aggregated before it is known that this was of no use.
    assert is_partial(pre_aggregate(different).schema)
    assert all(pre_aggregate(equal) is equal for _ in range(BATCHES_AS_THEY_ARE))


def test_batches_with_many_panes_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pre_aggregation, "MIN_ROWS_PER_PANE", 4)
    times = pa.array(np.arange(LARGE) * 10).cast(pa.timestamp("ms"))
    batch = numbered(np.zeros(LARGE, np.int64)).set_column(3, INPUT.field("t"), times)
    assert WindowPreAggregate(spec())(batch) is batch


@pytest.mark.parametrize(
    "column",
    [
        pa.array([None] + [5] * (LARGE - 1), pa.int64()).cast(pa.timestamp("ms")),
        pa.array([5] * (LARGE - 1) + [2**62 // 1000 + 1], pa.int64()).cast(pa.timestamp("ms")),
    ],
)
def test_the_operator_counts_or_refuses_rows_without_a_usable_time(column: pa.Array) -> None:
    """The next batch is aggregated again."""
    pre_aggregate = WindowPreAggregate(spec())
    equal = numbered(np.zeros(LARGE, np.int64))
    unusable = equal.set_column(3, INPUT.field("t"), column)
    assert pre_aggregate(unusable) is unusable
    assert pre_aggregate(equal).num_rows == 1


def test_the_operator_refuses_sums_that_overflow() -> None:
    window = spec()
    pre_aggregate = WindowPreAggregate(window)
    batch = numbered(np.zeros(LARGE, np.int64), value=2**62)
    assert pre_aggregate(batch) is batch
    assert pre_aggregate(numbered(np.zeros(LARGE, np.int64))).num_rows == LARGE, "the next try is after some batches"
    windows = Windows(window, WindowPreAggregate(window))
    with pytest.raises(SumOverflowError):
        windows.feed(batch)


def test_a_batch_that_was_sent_is_not_changed_by_the_next_one() -> None:
    pre_aggregate = WindowPreAggregate(spec())
    batch = numbered(np.zeros(LARGE, np.int64))
    first = pre_aggregate(batch)
    before = first.to_pylist()
    pre_aggregate(batch)
    assert first.to_pylist() == before


@pytest.mark.parametrize("function", ["count", "sum"])
def test_users_may_name_a_column_as_the_count_of_rows(always: None, function: str) -> None:
    """The name of the column that counts rows is no reserved name."""
    named = BoundAggregate("__rows", function, *(() if function == "count" else ("v",)))
    given = spec(aggregates=("total",))
    fields = [*(field for field in given.schema if field.name != "total"), pa.field("__rows", pa.int64())]
    given = replace(given, aggregates=(named,), schema=pa.schema(fields))
    batch = pa.record_batch(
        {
            "k": [1, 2] * LARGE,
            "name": ["a"] * 2 * LARGE,
            "f": [0.0] * 2 * LARGE,
            "t": pa.array([5] * 2 * LARGE, pa.timestamp("ms")),
            "v": [3] * 2 * LARGE,
            "x": [0.0] * 2 * LARGE,
        },
        schema=INPUT,
    )
    partial = WindowPreAggregate(given)(batch)
    assert is_partial(partial.schema) and partial.num_rows == 2
    assert count_rows(partial) == 2 * LARGE
