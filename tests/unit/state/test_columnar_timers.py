"""Columnar timers: the timer part of the conformance suite, and random use beside a set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_suites.model_backend import ModelBackend
from state_suites.time_conformance import TimerTests

from tidegate.state.heap.heap_timers import ColumnarTimers
from tidegate.state.keyed_state import BackendContext, TimerKind, TimerService
from tidegate.state.keys.key_sets import DistinctKeyRows
from tidegate.state.state_layout import timer_schema

SCHEMAS = {"int": pa.schema([("k", pa.int64())]), "pair": pa.schema([("k", pa.string()), ("n", pa.int32())])}
KEYS: dict[str, list[tuple[Any, ...]]] = {
    "int": [(None,), *((n,) for n in range(12))],
    "pair": [(None, None), *((text, n) for text in ("", "a", "ü") for n in (None, 0, 1))],
}
TIMES = st.integers(-3, 12)
STEP = st.tuples(st.sampled_from(["register", "register", "delete", "due"]), st.integers(0, 2**30), TIMES)


def keyed_rows(schema: pa.Schema) -> DistinctKeyRows:
    return DistinctKeyRows(BackendContext("u", schema, tuple(schema.names), 16, range(16), lambda: 0))


class WithColumnarTimers(ModelBackend):
    """The reference with these timers: they take key sets of any back end."""

    def open(self, ctx: BackendContext) -> None:
        super().open(ctx)
        self._columnar: dict[TimerKind, ColumnarTimers] = {
            kind: ColumnarTimers(kind, DistinctKeyRows(ctx)) for kind in ("event", "processing")
        }

    def timers(self, kind: TimerKind) -> TimerService:
        return self._columnar[kind]


class TestColumnarTimers(TimerTests):
    def make_backend(self) -> ModelBackend:
        return WithColumnarTimers()


class Driven:
    """Timers beside a set of (time, key)."""

    def __init__(self, case: str) -> None:
        self.keys = KEYS[case]
        self.keyed = keyed_rows(SCHEMAS[case])
        self.timers = ColumnarTimers("event", self.keyed)
        self.expected: set[tuple[int, str]] = set()

    def key_set(self, numbers: list[int]) -> Any:
        columns = [[self.keys[n][i] for n in numbers] for i in range(len(self.keyed.schema))]
        return self.keyed.of(
            pa.RecordBatch.from_arrays(
                [pa.array(c, t) for c, t in zip(columns, self.keyed.schema.types)], schema=self.keyed.schema
            )
        )

    def step(self, what: str, seed: int, time: int) -> None:
        rng = np.random.default_rng(seed)
        if what == "due":
            self.take_due(time, int(rng.integers(1, 6)))
            return
        count = int(rng.integers(0, 200))
        numbers = rng.integers(0, len(self.keys), count).tolist()
        times = rng.integers(time, time + 8, count)
        keys = self.key_set(numbers)
        pairs = {(int(t), repr(self.keys[n])) for t, n in zip(times, numbers)}
        getattr(self.timers, what)(keys, keys.rows, times)
        self.expected = self.expected | pairs if what == "register" else self.expected - pairs

    def take_due(self, until: int, limit: int) -> None:
        due = {pair for pair in self.expected if pair[0] <= until}
        found: list[tuple[int, str]] = []
        while (taken := self.timers.due(until, limit)) is not None:
            columns = [column.to_pylist() for column in taken.keys.columns().columns]
            keys = [repr(tuple(values[owner] for values in columns)) for owner in taken.owners]
            found += zip(taken.times_us.tolist(), keys)
        assert [time for time, _ in found] == sorted(time for time, _ in due)
        assert set(found) == due
        self.expected -= due

    def check(self) -> None:
        assert self.timers.next_us() == min((time for time, _ in self.expected), default=None)
        found = self.timers.of(self.key_set(list(range(len(self.keys)))))
        times = found.columns.column(0).to_pylist()
        for i, key in enumerate(map(repr, self.keys)):
            expected = sorted(time for time, other in self.expected if other == key)
            assert times[found.offsets[i] : found.offsets[i + 1]] == expected

    def rows(self, table: pa.Table) -> set[tuple[int, str]]:
        columns = [table.column(f"key:{name}").to_pylist() for name in self.keyed.schema.names]
        keys = [repr(key) for key in zip(*columns)]
        return set(zip(table.column("time_us").to_pylist(), keys))


@pytest.mark.parametrize("case", SCHEMAS)
@settings(deadline=None, max_examples=30)
@given(steps=st.lists(STEP, max_size=12), frozen_at=st.integers(0, 12))
def test_timers_are_a_set_whatever_happens_and_a_frozen_version_stays(
    case: str, steps: list[tuple[str, int, int]], frozen_at: int
) -> None:
    driven = Driven(case)
    frozen, held = driven.timers.freeze(), set(driven.expected)
    for i, step in enumerate(steps):
        if i == frozen_at:
            frozen, held = driven.timers.freeze(), set(driven.expected)
        driven.step(*step)
        driven.check()
    table = frozen.table()
    assert table.schema.equals(timer_schema(driven.keyed.schema))
    assert driven.rows(table) == held and table.num_rows == len(held)
    again = Driven(case)
    for batch in table.to_batches():
        again.timers.take_back(again.keyed.distinct(batch.columns[1:-1]), batch)
    again.expected = held
    again.check()
    again.take_due(100, 7)


def test_only_chunks_with_changed_timers_have_other_stamps() -> None:
    keyed = keyed_rows(SCHEMAS["int"])
    timers = ColumnarTimers("event", keyed)
    count = 100_000
    keys = keyed.of(pa.record_batch({"k": pa.array(range(count), pa.int64())}))
    timers.register(keys, keys.rows, np.arange(count)[::-1].copy())
    before = timers.freeze()
    assert before.table().num_rows == count
    few = keyed.of(pa.record_batch({"k": pa.array([5, 6], pa.int64())}))
    timers.register(few, few.rows, np.array([count - 6, count - 7]))
    timers.delete(few, few.rows, np.array([77, 78]))
    assert (timers.freeze().stamps == before.stamps).sum() >= len(before.stamps) - 1, "nothing new was registered"
    timers.delete(few, few.rows, np.array([count - 6, count - 7]))
    changed = timers.freeze()
    assert (changed.stamps != before.stamps).sum() <= 2
    assert changed.table().num_rows == count - 2
