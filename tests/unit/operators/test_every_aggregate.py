"""Every aggregate in every kind of window, against plain Python: out of order, cut anywhere, restored at another
parallelism in the middle (S4.4, S5.5)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders.operators import open_operator
from builders.rescaling import StoredState
from hypothesis import given, settings
from hypothesis import strategies as st

import tidegate as td
from tidegate.channel.elements import MAX_WATERMARK
from tidegate.errors import PipelineError
from tidegate.operators.operator_spec import OperatorSpec
from tidegate.state.aggregates.aggregation import Aggregation
from tidegate.state.aggregates.numbers import SumOverflowError
from tidegate.state.aggregates.ordered_rows import COLLECT
from tidegate.state.arrow.array_limits import ArrayTooLarge
from tidegate.state.copy_on_write import CopyOnWriteArrays
from tidegate.state.keys.key_hash import hash_keys, key_groups, subtask_of_key_groups

GROUPS = 16
INPUT = pa.schema(
    [
        ("k", pa.string()),
        ("t", pa.timestamp("us")),
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("d", pa.decimal128(6, 2)),
        ("b", pa.bool_()),
    ]
)


class Weighted(td.ArrowAggregate):
    """Sum of products, and the longest text, of a group: two columns in, one out."""

    state = pa.schema([("total", pa.int64()), ("longest", pa.int64())])
    result_type = pa.string()

    def accumulate(self, columns: Sequence[pa.Array], groups: Any, count: int) -> pa.RecordBatch:
        numbers, texts = columns
        total = np.bincount(groups, numbers.fill_null(0).to_numpy(), count).astype(np.int64)
        longest = np.zeros(count, np.int64)
        np.maximum.at(longest, groups, texts.fill_null("").to_pandas().str.len().to_numpy().astype(np.int64))
        return pa.record_batch([pa.array(total), pa.array(longest)], schema=self.state)

    def merge(self, states: pa.RecordBatch, groups: Any, count: int) -> pa.RecordBatch:
        longest = np.zeros(count, np.int64)
        np.maximum.at(longest, groups, states["longest"].to_numpy())
        total = np.bincount(groups, states["total"].to_numpy(), count).astype(np.int64)
        return pa.record_batch([pa.array(total), pa.array(longest)], schema=self.state)

    def result(self, states: pa.RecordBatch) -> pa.Array:
        return pa.array([f"{row['total']}/{row['longest']}" for row in states.to_pylist()], pa.string())


@dataclass(frozen=True)
class Row:
    """A row of the input; `n` is its place in the order of arrival."""

    n: int
    k: str | None
    t: int
    i: int | None
    f: float | None
    s: str | None
    d: Decimal | None
    b: bool | None


def some(rows: list[Row], column: str) -> list[Any]:
    return [getattr(row, column) for row in rows if getattr(row, column) is not None]


def extreme(values: list[Any], best: Callable[..., Any]) -> Any:
    return best(values, key=order) if values else None


def order(value: Any) -> Any:
    """NaN is greatest."""
    return (math.isnan(value), 0.0 if math.isnan(value) else value) if isinstance(value, float) else value


def by_time(rows: list[Row], column: str) -> list[Any]:
    return some(sorted(rows, key=lambda row: (row.t, row.n)), column)


def variance(values: list[int], ddof: int) -> float | None:
    if len(values) <= ddof:
        return None
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - ddof)


def best_rows(rows: list[Row], by: str, *, largest: bool) -> list[Row]:
    held = [row for row in rows if getattr(row, by) is not None]
    held.sort(key=lambda row: (row.t, row.n))
    return sorted(held, key=lambda row: order(getattr(row, by)), reverse=largest)


def distinct(values: list[Any]) -> list[Any]:
    return [value for _, value in sorted({str(value): value for value in values}.items(), key=lambda v: order(v[1]))]


AGGREGATES: dict[str, tuple[Any, Callable[[list[Row]], Any]]] = {
    "rows": (td.count(), len),
    "values": (td.count("s"), lambda rows: len(some(rows, "s"))),
    "total": (td.sum("i"), lambda rows: sum(some(rows, "i")) if some(rows, "i") else None),
    "money": (td.sum("d"), lambda rows: sum(some(rows, "d")) if some(rows, "d") else None),
    "low": (td.min("f"), lambda rows: extreme(some(rows, "f"), min)),
    "high": (td.max("f"), lambda rows: extreme(some(rows, "f"), max)),
    "low_text": (td.min("s"), lambda rows: extreme(some(rows, "s"), min)),
    "high_text": (td.max("s"), lambda rows: extreme(some(rows, "s"), max)),
    "cheap": (td.min("d"), lambda rows: extreme(some(rows, "d"), min)),
    "dear": (td.max("d"), lambda rows: extreme(some(rows, "d"), max)),
    "every": (td.bool_and("b"), lambda rows: all(some(rows, "b")) if some(rows, "b") else None),
    "any": (td.bool_or("b"), lambda rows: any(some(rows, "b")) if some(rows, "b") else None),
    "average": (td.mean("i"), lambda rows: sum(some(rows, "i")) / len(some(rows, "i")) if some(rows, "i") else None),
    "var": (td.var("i"), lambda rows: variance(some(rows, "i"), 1)),
    "spread": (td.stddev("i", ddof=0), lambda rows: None if (v := variance(some(rows, "i"), 0)) is None else v**0.5),
    "texts": (td.count_distinct("s"), lambda rows: len(set(some(rows, "s")))),
    "floats": (td.collect_set("f"), lambda rows: distinct(some(rows, "f"))),
    "all_texts": (td.collect("s"), lambda rows: by_time(rows, "s")),
    "first": (td.first("i"), lambda rows: (by_time(rows, "i") or [None])[0]),
    "last": (td.last("s"), lambda rows: (by_time(rows, "s") or [None])[-1]),
    "of_least": (td.min_by("s", by="i"), lambda rows: next((r.s for r in best_rows(rows, "i", largest=False)), None)),
    "of_most": (td.max_by("d", by="f"), lambda rows: next((r.d for r in best_rows(rows, "f", largest=True)), None)),
    "top": (td.top_n("i", 2), lambda rows: [r.i for r in best_rows(rows, "i", largest=True)[:2]]),
    "top_by": (td.top_n("s", 3, by="d"), lambda rows: [r.s for r in best_rows(rows, "d", largest=True)[:3]]),
    "bottom": (td.top_n("f", 2, ascending=True), lambda rows: [r.f for r in best_rows(rows, "f", largest=False)[:2]]),
    "own": (
        td.user_aggregate(Weighted(), "i", "s"),
        lambda rows: f"{sum(some(rows, 'i'))}/{max([0, *map(len, some(rows, 's'))])}",
    ),
}


def spec_of(draw: Callable[[td.Stream], td.Stream]) -> OperatorSpec:
    """The spec of the last operator that `draw` makes of a stream of INPUT."""
    pipeline = td.Pipeline()
    source = pipeline.read(td.DataGen(lambda n: {}, INPUT, rows=1), uid="in").with_watermark("t", "0 s")
    draw(source).write(td.Discard(), uid="out")
    spec = pipeline.build().nodes[-2].spec
    assert spec is not None
    return spec


def windowed(window: Any, names: Sequence[str] = tuple(AGGREGATES)) -> OperatorSpec:
    wanted = {name: AGGREGATES[name][0] for name in names}
    return spec_of(lambda stream: stream.group_by("k").window(window).agg(uid="w", **wanted))


def opened(spec: OperatorSpec, subtask: int, parallelism: int) -> Any:
    return open_operator(spec, INPUT, subtask=subtask, parallelism=parallelism, max_parallelism=GROUPS)


class Subtasks:
    """All subtasks of one operator."""

    def __init__(self, spec: OperatorSpec) -> None:
        self.spec = spec
        self.operators = [opened(spec, 0, 1)]
        self.out: list[dict[str, Any]] = []

    def feed(self, rows: Sequence[Row]) -> None:
        batch = pa.RecordBatch.from_arrays(
            [pa.array([getattr(row, f.name) for row in rows], f.type) for f in INPUT], schema=INPUT
        )
        groups = key_groups(hash_keys(batch, ["k"]), GROUPS)
        owners = subtask_of_key_groups(len(self.operators), GROUPS)[groups]
        for subtask, operator in enumerate(self.operators):
            mine = batch.filter(pa.array(owners == subtask))
            if mine.num_rows:
                self._take(operator.process(mine, 0))

    def advance(self, watermark_us: int) -> None:
        for operator in self.operators:
            self._take(operator.on_watermark(watermark_us))

    def rescale(self, parallelism: int) -> None:
        """Crash, and go on at another parallelism."""
        stored = StoredState.of(self.operators)
        self.operators = [opened(self.spec, index, parallelism) for index in range(parallelism)]
        stored.restore(self.operators, GROUPS)

    def count(self, counter: str) -> int:
        return sum(operator.ctx.counters.get(counter, 0) for operator in self.operators)

    def _take(self, batches: Any) -> None:
        for batch in batches:
            assert batch.schema.equals(self.spec.schema)  # type: ignore[attr-defined]
            batch.validate(full=True)
            self.out += batch.to_pylist()


def rows_of(drawn: list[list[tuple[Any, ...]]]) -> list[list[Row]]:
    """Batches of rows, numbered in order of arrival."""
    numbered, n = [], 0
    for batch in drawn:
        numbered.append([Row(n + i, *values) for i, values in enumerate(batch)])
        n += len(batch)
    return numbered


def same(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, float) and isinstance(theirs, (int, float)):
        return bool(mine == pytest.approx(theirs, nan_ok=True, rel=1e-9, abs=1e-9))
    if isinstance(mine, list) and isinstance(theirs, list):
        return len(mine) == len(theirs) and all(map(same, mine, theirs))
    return bool(mine == theirs)


def micros(value: Any) -> int:
    return int(np.datetime64(value, "us").astype(np.int64))


ROW = st.tuples(
    st.sampled_from([None, "a", "b", "c"]),
    st.integers(-30, 60),
    st.one_of(st.none(), st.integers(-5, 5)),
    st.one_of(st.none(), st.sampled_from([0.0, 1.5, -2.5, math.inf, math.nan])),
    st.one_of(st.none(), st.sampled_from(["", "x", "yy", "zzz"])),
    st.one_of(st.none(), st.integers(-500, 500).map(lambda cents: Decimal(cents).scaleb(-2))),
    st.one_of(st.none(), st.booleans()),
)
BATCHES = st.lists(st.lists(ROW, min_size=1, max_size=12), min_size=1, max_size=5).map(rows_of)
RESCALES = st.lists(st.one_of(st.none(), st.integers(1, 3)), min_size=5, max_size=5)

NAMES = st.lists(st.sampled_from(sorted(AGGREGATES)), min_size=1, max_size=7, unique=True)

Windows = Callable[[list[Row]], dict[tuple[int, int], list[Row]]]


def fixed(size: int, slide: int, offset: int = 0) -> Windows:
    """Rows of one key by the windows of `size` that begin at multiples of `slide` plus `offset`."""

    def cut(rows: list[Row]) -> dict[tuple[int, int], list[Row]]:
        found: dict[tuple[int, int], list[Row]] = {}
        for row in rows:
            start = (row.t - offset) // slide * slide + offset
            while start + size > row.t:
                found.setdefault((start, start + size), []).append(row)
                start -= slide
        return found

    return cut


def sessions(gap: int) -> Windows:
    """Rows of one key by runs of times at most `gap` apart."""

    def cut(rows: list[Row]) -> dict[tuple[int, int], list[Row]]:
        runs: list[list[Row]] = []
        for row in sorted(rows, key=lambda row: (row.t, row.n)):
            if runs and row.t - runs[-1][-1].t <= gap:
                runs[-1].append(row)
            else:
                runs.append([row])
        return {(run[0].t, run[-1].t + gap): sorted(run, key=lambda row: row.n) for run in runs}

    return cut


def us(n: int) -> Any:
    return timedelta(microseconds=n)


KINDS: dict[str, tuple[Any, Windows]] = {
    "tumbling": (td.tumbling(us(10), us(3)), fixed(10, 10, 3)),
    "sliding": (td.sliding(us(12), us(4)), fixed(12, 4)),
    "session": (td.session(us(6)), sessions(6)),
    "sliding by what is no divisor": (td.sliding(us(10), us(4), us(3)), fixed(10, 4, 3)),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=25)
@given(batches=BATCHES, rescales=RESCALES, names=NAMES)
def test_every_aggregate_of_every_window_equals_plain_python(
    kind: str, batches: list[list[Row]], rescales: list[int | None], names: list[str]
) -> None:
    window, cut = KINDS[kind]
    subtasks = Subtasks(windowed(window, names))
    for number, rows in enumerate(batches):
        if (parallelism := rescales[number]) is not None:
            subtasks.rescale(parallelism)
        subtasks.feed(rows)
        coming = [row.t for batch in batches[number + 1 :] for row in batch]
        subtasks.advance(min(coming, default=100))
    subtasks.advance(MAX_WATERMARK)
    found = {(r["k"], micros(r["window_start"]), micros(r["window_end"])): r for r in subtasks.out}
    assert len(found) == len(subtasks.out), "a window fires once"
    every = [row for rows in batches for row in rows]
    expected = {
        (key, *bounds): held
        for key in {row.k for row in every}
        for bounds, held in cut([row for row in every if row.k == key]).items()
    }
    assert set(found) == set(expected)
    for place, rows in expected.items():
        for name in names:
            assert same(found[place][name], AGGREGATES[name][1](rows)), f"{name} of {rows}"
    assert subtasks.count("late_dropped") == 0


@pytest.mark.parametrize("name", sorted(AGGREGATES.keys() - {"own"}))
def test_an_output_column_may_have_another_name_after_a_restore(name: str) -> None:
    aggregate, expected = AGGREGATES[name]
    rows = [Row(n, "a", n, n % 5, n / 2, "xyz"[n % 3], Decimal(n), n > 3) for n in range(12)]
    subtasks = Subtasks(windowed(td.tumbling("1 s"), [name]))
    subtasks.feed(rows[:7])
    subtasks.spec = spec_of(
        lambda stream: (
            stream.group_by("k").window(td.tumbling("1 s")).agg(uid="w", renamed={name: "other"}, other=aggregate)
        )
    )
    subtasks.rescale(2)
    subtasks.feed(rows[7:])
    subtasks.advance(MAX_WATERMARK)
    assert len(subtasks.out) == 1 and same(subtasks.out[0]["other"], expected(rows))


def test_a_sum_of_decimals_that_needs_more_digits_fails_and_names_the_column() -> None:
    schema = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us")), ("d", pa.decimal128(38, 0))])
    pipeline = td.Pipeline()
    stream = pipeline.read(td.DataGen(lambda n: {}, schema, rows=1), uid="in").with_watermark("t", "0 s")
    stream.group_by("k").window(td.tumbling("1 s")).agg(sum=td.sum("d"), uid="w").write(td.Discard(), uid="out")
    spec = pipeline.build().nodes[-2].spec
    assert spec is not None
    operator = opened(spec, 0, 1)
    big = Decimal(9 * 10**37)
    batch = pa.record_batch(
        [pa.array([1, 1]), pa.array([0, 0]).cast(pa.timestamp("us")), pa.array([big, big])], schema=schema
    )
    list(operator.process(batch, 0))
    with pytest.raises(SumOverflowError, match="'sum'.*decimal128"):
        list(operator.on_watermark(MAX_WATERMARK))


class Careless(Weighted):
    """Forgets a group."""

    def accumulate(self, columns: Sequence[pa.Array], groups: Any, count: int) -> pa.RecordBatch:
        return super().accumulate(columns, groups, count).slice(1)


def test_what_a_users_aggregate_gives_is_held_against_its_contract() -> None:
    spec = spec_of(
        lambda stream: (
            stream.group_by("k").window(td.tumbling("1 s")).agg(own=td.user_aggregate(Careless(), "i", "s"), uid="w")
        )
    )
    with pytest.raises(
        PipelineError, match=r"accumulate\(\) of a user aggregate.*'own'.*Careless.*0 rows for 1 groups"
    ):
        Subtasks(spec).feed([Row(0, "a", 1, 1, None, "x", None, None)])


def test_kept_text_of_more_than_two_gibibytes_is_refused_with_the_aggregate_and_the_remedy() -> None:
    log: Any = Aggregation("texts", COLLECT, (pa.string(),), pa.list_(pa.string())).accumulator(CopyOnWriteArrays(1))
    size = 3 * 2**29
    untouched = pa.py_buffer(np.zeros(size, np.uint8))
    text = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, size], np.int32)), untouched)
    for key in (0, 1):
        log.add(np.array([key], np.int32), log.read([text]), key)
    for use in (log.result, lambda part: log.freeze()(None, part.start, part.stop)):
        with pytest.raises(ArrayTooLarge, match=r"rows that aggregate 'texts'.*large_string"):
            use(slice(0, 2))


def test_an_aggregate_that_keeps_rows_folds_them_while_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.state.aggregates.row_log.FOLD_ROWS", 4)
    subtasks = Subtasks(windowed(td.tumbling("1 s"), ["texts", "top", "own", "money"]))
    rows = [Row(n, "a", n, n, None, "xyz"[n % 3], Decimal(n), None) for n in range(30)]
    for row in rows:
        subtasks.feed([row])
    subtasks.advance(MAX_WATERMARK)
    (found,) = subtasks.out
    assert all(same(found[name], AGGREGATES[name][1](rows)) for name in ("texts", "top", "own", "money"))
