"""Joins of two streams against DuckDB: random order, batches, watermarks, restores at other parallelisms (S5, S4.4)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidegate as td
from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK, Watermark
from tidegate.contract.errors import SnapshotError
from tidegate.operators.contract import OperatorContext
from tidegate.operators.join_specs import StreamJoinSpec, Windows
from tidegate.snapshot.redistribution import Rescale, redistributed
from tidegate.snapshot.streams import decode_parts, encode_parts
from tidegate.state.keyhash import hash_keys, key_groups, subtask_of_key_groups

GROUPS = 32
LEFT = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us")), ("x", pa.int64())])
RIGHT = pa.schema([("k", pa.int64()), ("ms", pa.int64()), ("y", pa.string())])
KINDS = ("inner", "left", "right", "full", "semi", "anti")
BACK_ENDS = ("heap", "memory", "rocksdb")
SECOND = 1_000_000


def streams() -> tuple[td.Stream, td.Stream]:
    p = td.Pipeline()
    left = p.read(td.DataGen(lambda n: {}, LEFT, rows=1), uid="left").with_watermark("t", "0 s")
    right = p.read(td.DataGen(lambda n: {}, RIGHT, rows=1), uid="right").with_watermark("ms", "0 s", unit="ms")
    return left, right


def join_spec(**arguments: Any) -> StreamJoinSpec:
    left, right = streams()
    joined = left.join(right, uid="join", **{"on": "k", **arguments})
    spec = joined._draft._nodes[joined._node_id].spec
    assert isinstance(spec, StreamJoinSpec)
    return spec


def batch_of(side: int, rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    schema = (LEFT, RIGHT)[side]
    columns = [list(column) for column in zip(*rows)] or [[], [], []]
    if side == 1:
        columns[1] = [None if t is None else t // 1000 for t in columns[1]]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema)], schema=schema)


@dataclass
class Subtasks:
    """The subtasks of one join, driven by hand; they hold to what downstream may rely on."""

    spec: StreamJoinSpec
    back_end: str
    scratch: Path
    parallelism: int = 1
    time_column: str | None = None
    out: list[tuple[Any, ...]] = field(default_factory=list)
    operators: list[Any] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._runs = 0
        self.operators = self._opened(self.parallelism)

    def _opened(self, parallelism: int) -> list[Any]:
        self._runs += 1
        self.told = [MIN_WATERMARK] * parallelism
        found = []
        for index in range(parallelism):
            operator: Any = self.spec.create()
            scratch = self.scratch / f"{self._runs}-{index}"
            scratch.mkdir()
            place = ("job", "l", "op", index, parallelism, GROUPS, 1, "r", (LEFT, RIGHT), lambda: 0)
            operator.open(OperatorContext(*place, scratch=str(scratch), state_backend=self.back_end))  # type: ignore[arg-type]
            found.append(operator)
        return found

    def take(self, index: int, emission: Iterator[Any]) -> None:
        for element in emission:
            if isinstance(element, Watermark):
                assert element.time_us >= self.told[index], "a watermark went back"
                self.told[index] = element.time_us
                continue
            assert element.num_rows and element.schema.equals(self.spec.schema)
            if self.time_column is not None:
                times = element.column(self.time_column).cast(pa.int64()).to_numpy()
                times = times * (1000 if self.time_column == "ms" else 1)
                assert (times >= self.told[index]).all(), "a row came out behind the watermark"
            plain = pa.RecordBatch.from_arrays(
                [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in element.columns],
                names=element.schema.names,
            )
            self.out += [tuple(row.values()) for row in plain.to_pylist()]

    def feed(self, side: int, rows: Sequence[tuple[Any, ...]]) -> None:
        batch = batch_of(side, rows)
        groups = key_groups(hash_keys(batch, ["k"]), GROUPS)
        owners = subtask_of_key_groups(self.parallelism, GROUPS)[groups]
        for index, operator in enumerate(self.operators):
            part = batch.filter(pa.array(owners == index))
            if part.num_rows:
                self.take(index, operator.process(part, side))

    def watermark(self, watermark_us: int) -> None:
        for index, operator in enumerate(self.operators):
            self.take(index, operator.on_watermark(watermark_us))

    def end(self, side: int) -> None:
        for index, operator in enumerate(self.operators):
            self.take(index, operator.end_input(side))

    def restart(self, parallelism: int, *, portable: bool = True) -> None:
        streams = []
        for operator in self.operators:
            operator.portable = portable
            streams.append(encode_parts(operator.snapshot(1)()))
        self.close()
        old, self.parallelism = self.parallelism, parallelism
        self.operators = self._opened(parallelism)
        for index, operator in enumerate(self.operators):
            former = {i: decode_parts(stream) for i, stream in enumerate(streams)}
            operator.restore(redistributed(former, 0, Rescale(old, parallelism, GROUPS, index)))

    def finish(self) -> list[tuple[Any, ...]]:
        self.watermark(MAX_WATERMARK)
        self.end(0)
        self.end(1)
        for index, operator in enumerate(self.operators):
            self.take(index, operator.finish())
        self.close()
        return self.out

    def close(self) -> None:
        for operator in self.operators:
            self.counters.update(operator.ctx.counters)
            operator.close()


def expected(spec: StreamJoinSpec, left: Sequence[Any], right: Sequence[Any], condition: str) -> list[tuple[Any, ...]]:
    """What DuckDB gives; times are microseconds on the left and milliseconds on the right."""
    l = pa.table(pa.record_batch([pa.array(c, pa.int64()) for c in _columns(left)], names=["k", "t", "x"]))  # noqa: E741, F841
    columns = _columns(right)
    ms = [None if t is None else t // 1000 for t in columns[1]]
    r = pa.table(  # noqa: F841
        pa.record_batch(
            [pa.array(columns[0], pa.int64()), pa.array(ms, pa.int64()), pa.array(columns[2], pa.string())],
            names=["k", "ms", "y"],
        )
    )
    picked = "l.k, l.t, l.x" if spec.how in ("semi", "anti") else "coalesce(l.k, r.k), l.t, l.x, r.ms, r.y"
    return duckdb.sql(f"select {picked} from l {spec.how} join r on l.k = r.k and {condition}").fetchall()


def _columns(rows: Sequence[Any], width: int = 3) -> list[list[Any]]:
    return [list(column) for column in zip(*rows)] or [[] for _ in range(width)]


def time_of_output(how: str) -> str | None:
    return {"right": "ms", "full": None}.get(how, "t")


def play(
    subtasks: Subtasks, sides: tuple[list[Any], list[Any]], seed: int, most_rows: int = 5, restarts: bool = True
) -> list[tuple[Any, ...]]:
    """Feed both sides in order of their lists, in random batches, with watermarks as late as may be or earlier, and
    restores in between."""
    chance = random.Random(seed)
    at, passed = [0, 0], MIN_WATERMARK
    while at[0] < len(sides[0]) or at[1] < len(sides[1]):
        side = chance.choice([s for s in (0, 1) if at[s] < len(sides[s])])
        size = chance.randint(1, most_rows)
        subtasks.feed(side, sides[side][at[side] : at[side] + size])
        at[side] += size
        if chance.random() < 0.5:
            coming = [row[1] for s in (0, 1) for row in sides[s][at[s] :] if row[1] is not None]
            last = min(coming, default=100 * SECOND)
            watermark_us = chance.choice([last, last - chance.randint(0, 5 * SECOND)])
            if watermark_us > passed:
                passed = watermark_us
                subtasks.watermark(watermark_us)
        if restarts and chance.random() < 0.2:
            subtasks.restart(chance.choice([1, 2, 3]))
            passed = MIN_WATERMARK
    return subtasks.finish()


KEY = st.one_of(st.none(), st.integers(0, 3))
TIME = st.one_of(st.integers(0, 60).map(lambda n: n * SECOND // 2), st.integers(0, 30_000).map(lambda n: n * 1000))
LEFT_ROWS = st.lists(st.tuples(KEY, st.one_of(TIME, TIME, TIME, st.none()), st.integers(0, 9)), max_size=25)
RIGHT_ROWS = st.lists(st.tuples(KEY, st.one_of(TIME, TIME, TIME, st.none()), st.sampled_from("abc")), max_size=25)
PROPERTY = settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))


def in_some_order(rows: list[Any], chance: random.Random) -> list[Any]:
    """Out of order, but not wildly."""
    return sorted(rows, key=lambda row: (0 if row[1] is None else row[1]) + chance.randint(0, 8 * SECOND))


@pytest.fixture
def scratches(tmp_path: Path) -> Iterator[Any]:
    numbers = iter(range(10**6))

    def scratch() -> Path:
        folder = tmp_path / f"{next(numbers)}"
        folder.mkdir()
        return folder

    yield scratch


@pytest.mark.parametrize("back_end", BACK_ENDS)
@PROPERTY
@given(
    left=LEFT_ROWS,
    right=RIGHT_ROWS,
    how=st.sampled_from(KINDS),
    bounds=st.sampled_from([(0, 0), (-5, 10), (0, 3), (-3, 0), (2, 4), (-4, -2), (-20, 0.5)]),
    condition=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_an_interval_join_equals_duckdb(
    scratches: Any, back_end: str, left: list[Any], right: list[Any], how: Any, bounds: Any, condition: bool, seed: int
) -> None:
    between = tuple(f"{bound} s" for bound in bounds)
    where = pc.field("x") > pc.if_else(pc.equal(pc.field("y"), "a"), 4, 1) if condition else None
    spec = join_spec(how=how, between=between, where=where)
    subtasks = Subtasks(spec, back_end, scratches(), time_column=None if how == "full" else None)
    times = any(row[1] is None for row in (*left, *right))
    if not times and how != "full":
        subtasks.time_column = time_of_output(how)
    chance = random.Random(seed)
    out = play(subtasks, (in_some_order(left, chance), in_some_order(right, chance)), seed)
    lower, upper = (int(bound * SECOND) for bound in bounds)
    matches = f"r.ms * 1000 between l.t + {lower} and l.t + {upper}"
    if condition:
        matches += " and l.x > case when r.y = 'a' then 4 else 1 end"
    assert Counter(out) == Counter(expected(spec, left, right, matches))
    assert not subtasks.counters


def in_windows(rows: Sequence[Any], bounds: Windows) -> list[Any]:
    """Rows with the starts of their windows; those without a time are in none."""
    found = []
    for row in rows:
        if row[1] is not None:
            start = (row[1] - bounds.offset_us) // bounds.slide_us * bounds.slide_us + bounds.offset_us
            while start + bounds.size_us > row[1]:
                found.append((*row, start))
                start -= bounds.slide_us
    return found


@pytest.mark.parametrize("back_end", BACK_ENDS)
@PROPERTY
@given(
    left=LEFT_ROWS,
    right=RIGHT_ROWS,
    how=st.sampled_from(KINDS),
    bounds=st.sampled_from([(5, 5, 0), (5, 5, 2), (6, 2, 1), (5, 3, 0)]),
    condition=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_window_join_equals_duckdb(
    scratches: Any, back_end: str, left: list[Any], right: list[Any], how: Any, bounds: Any, condition: bool, seed: int
) -> None:
    windows = Windows(*(bound * SECOND for bound in bounds))
    where = pc.field("x") > 4 if condition else None
    spec = replace(join_spec(how=how, window=td.tumbling("5 s"), where=where), bounds=windows)
    subtasks = Subtasks(spec, back_end, scratches(), time_column=time_of_output(how))
    chance = random.Random(seed)
    out = play(subtasks, (in_some_order(left, chance), in_some_order(right, chance)), seed)
    l = pa.table(dict(zip("ktxw", _columns(in_windows(left, windows), 4)))).cast(  # noqa: E741, F841
        pa.schema([(name, pa.int64()) for name in "ktxw"])
    )
    r = pa.table(dict(zip("ktyw", _columns(in_windows(right, windows), 4)))).cast(  # noqa: F841
        pa.schema([("k", pa.int64()), ("t", pa.int64()), ("y", pa.string()), ("w", pa.int64())])
    )
    picked = "l.k, l.t, l.x, l.w" if how in ("semi", "anti") else "coalesce(l.k, r.k), l.t, l.x, r.t // 1000, r.y, "
    picked += "" if how in ("semi", "anti") else "coalesce(l.w, r.w)"
    matches = "l.k = r.k and l.w = r.w" + (" and l.x > 4" if condition else "")
    rows = duckdb.sql(f"select {picked} from l {how} join r on {matches}").fetchall()
    assert Counter(out) == Counter((*row, row[-1] + windows.size_us) for row in rows)
    timeless = sum(row[1] is None for row in (*left, *right))
    assert subtasks.counters == ({"null_event_time_dropped": timeless} if timeless else {})


@pytest.mark.parametrize("back_end", BACK_ENDS)
@PROPERTY
@given(
    left=LEFT_ROWS,
    right=RIGHT_ROWS,
    how=st.sampled_from(KINDS),
    condition=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_a_join_at_any_time_equals_duckdb(
    scratches: Any, back_end: str, left: list[Any], right: list[Any], how: Any, condition: bool, seed: int
) -> None:
    spec = join_spec(how=how, where=pc.field("x") > 4 if condition else None)
    subtasks = Subtasks(spec, back_end, scratches())
    chance = random.Random(seed)
    sides = left, right
    at, ended = [0, 0], [False, False]
    while not all(ended):
        side = chance.choice([s for s in (0, 1) if not ended[s]])
        if at[side] >= len(sides[side]):
            subtasks.end(side)
            ended[side] = True
        else:
            size = chance.randint(1, 6)
            subtasks.feed(side, sides[side][at[side] : at[side] + size])
            at[side] += size
        if chance.random() < 0.2:
            subtasks.restart(chance.choice([1, 2, 3]))
            for one in (0, 1):
                if ended[one] and chance.random() < 0.5:  # a restored input tells its end once more, sooner or later
                    subtasks.end(one)
    out = subtasks.finish()
    matches = "l.x > 4" if condition else "true"
    assert Counter(out) == Counter(expected(spec, left, right, matches))


@pytest.mark.parametrize("arguments", [{"between": ("-5 s", "10 s")}, {"window": td.tumbling("10 s")}, {"ttl": "7 s"}])
@pytest.mark.parametrize("how", KINDS)
def test_nothing_is_kept_that_the_watermark_has_made_useless(scratches: Any, how: Any, arguments: Any) -> None:
    spec = join_spec(how=how, **arguments)
    subtasks = Subtasks(spec, "heap", scratches())
    subtasks.feed(0, [(n % 3, n * SECOND, n) for n in range(50)])
    subtasks.feed(1, [(n % 3, n * SECOND, "a") for n in range(0, 50, 2)])
    (operator,) = subtasks.operators
    subtasks.watermark(49 * SECOND)
    kept = {part.name: part.table.num_rows for part in operator.snapshot(1)()}
    assert 0 < kept["right"] <= 25
    subtasks.watermark(80 * SECOND)
    kept = {part.name: part.table.num_rows for part in operator.snapshot(2)()}
    assert {name: n for name, n in kept.items() if n} == {"watermark:passed": GROUPS, "join:form": GROUPS}
    subtasks.close()


def test_a_row_stands_alone_as_soon_as_the_watermark_says_that_no_match_can_come(scratches: Any) -> None:
    subtasks = Subtasks(join_spec(how="left", between=("-5 s", "10 s")), "heap", scratches(), time_column="t")
    subtasks.feed(0, [(1, 20 * SECOND, 1), (1, 21 * SECOND, 2)])
    subtasks.watermark(30 * SECOND)
    assert subtasks.out == [], "a match at 30 s may still come"
    subtasks.watermark(30 * SECOND + 1)
    assert subtasks.out == [(1, 20 * SECOND, 1, None, None)]
    subtasks.feed(1, [(1, 31 * SECOND, "a")])
    assert subtasks.out[1:] == [(1, 21 * SECOND, 2, 31_000, "a")]
    subtasks.watermark(100 * SECOND)
    assert len(subtasks.out) == 2
    subtasks.close()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"between": ("-5 s", "10 s")}, 22),
        ({"between": ("-5 s", "-1 s")}, 32),
        ({"between": ("-5 s", "10 s"), "how": "right"}, 27),
        ({"between": ("-5 s", "10 s"), "how": "full"}, 22),
        ({"ttl": "3 s", "how": "semi"}, 29),
        ({"window": td.tumbling("10 s", "5 s")}, 25),
        ({}, 32),
    ],
)
def test_the_watermark_is_held_back_as_far_as_rows_may_come_out_behind_it(
    scratches: Any, arguments: Any, told: int
) -> None:
    subtasks = Subtasks(join_spec(**arguments), "heap", scratches())
    subtasks.watermark(32 * SECOND)
    assert subtasks.told == [told * SECOND]
    subtasks.close()


def test_late_rows_are_counted_and_dropped_also_after_a_restore(scratches: Any) -> None:
    subtasks = Subtasks(join_spec(how="full", between=("-5 s", "5 s")), "heap", scratches())
    subtasks.watermark(10 * SECOND)
    subtasks.feed(0, [(1, 10 * SECOND - 1, 1), (1, 10 * SECOND, 2)])
    subtasks.restart(2)
    subtasks.feed(1, [(1, 9 * SECOND, "a"), (2, 9 * SECOND, "b"), (1, 11 * SECOND, "c")])
    assert subtasks.finish() == [(1, 10 * SECOND, 2, 11_000, "c")]
    assert subtasks.counters == {"late_dropped": 3}


def test_a_row_of_an_open_window_is_not_late(scratches: Any) -> None:
    subtasks = Subtasks(join_spec(how="left", window=td.tumbling("10 s")), "heap", scratches())
    subtasks.watermark(19 * SECOND)
    subtasks.feed(0, [(1, 10 * SECOND, 1), (1, 9 * SECOND, 2)])
    assert subtasks.finish() == [(1, 10 * SECOND, 1, None, None, 10 * SECOND, 20 * SECOND)]
    assert subtasks.counters == {"late_dropped": 1}


def test_many_matches_come_in_bounded_batches(scratches: Any) -> None:
    spec = join_spec(between=("-1 h", "1 h"))
    subtasks = Subtasks(spec, "heap", scratches())
    subtasks.feed(0, [(1, n, n) for n in range(500)])
    (operator,) = subtasks.operators
    sizes = [b.num_rows for b in operator.process(batch_of(1, [(1, n * 1000, "a") for n in range(300)]), 1)]
    assert sum(sizes) == 150_000 and max(sizes) == 65536
    subtasks.close()


def test_state_of_other_bounds_is_refused(scratches: Any) -> None:
    subtasks = Subtasks(join_spec(between=("-1 h", "1 h")), "heap", scratches())
    subtasks.feed(0, [(1, 0, 1)])
    subtasks.spec = join_spec(between=("-2 h", "1 h"))
    with pytest.raises(SnapshotError, match="between -3600 s and 3600 s, now between -7200 s and 3600 s"):
        subtasks.restart(1)


def test_a_further_column_of_one_side_is_filled_with_nulls(scratches: Any) -> None:
    """S5.5."""
    subtasks = Subtasks(join_spec(how="left", between=("-1 h", "1 h")), "heap", scratches())
    subtasks.feed(1, [(1, 0, "a")])
    spec = subtasks.spec
    more = replace(
        spec.inputs[1],
        schema=spec.inputs[1].schema.append(pa.field("z", pa.int64())),
        columns=(*spec.inputs[1].columns, ("z", "z")),
    )
    schema = spec.schema.append(pa.field("z", pa.int64()))
    subtasks.spec = replace(spec, inputs=(spec.inputs[0], more), pairs=schema, schema=schema)
    subtasks.restart(2)
    subtasks.feed(0, [(1, 0, 7)])
    assert subtasks.finish() == [(1, 0, 7, 0, "a", None)]
