"""The subtasks of a join of two streams, driven by hand, and what to feed them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from builders.operators import open_operator
from builders.rescaling import StoredState, rows_by_subtask
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import tidegate as td
from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK, Watermark
from tidegate.operators.joins.join_specs import StreamJoinSpec

GROUPS = 32
LEFT = pa.schema([("k", pa.int64()), ("t", pa.timestamp("us")), ("x", pa.int64())])
RIGHT = pa.schema([("k", pa.int64()), ("ms", pa.int64()), ("y", pa.string())])
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
    return spec_of(joined)


def spec_of(joined: td.Stream) -> StreamJoinSpec:
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
            scratch = self.scratch / f"{self._runs}-{index}"
            scratch.mkdir()
            place = {"subtask": index, "parallelism": parallelism, "max_parallelism": GROUPS}
            facts = {"scratch": str(scratch), "state_backend": self.back_end}
            found.append(open_operator(self.spec, LEFT, RIGHT, **place, **facts))
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
        for index, part in rows_by_subtask(batch, ["k"], self.parallelism, GROUPS):
            self.take(index, self.operators[index].process(part, side))

    def watermark(self, watermark_us: int) -> None:
        for index, operator in enumerate(self.operators):
            self.take(index, operator.on_watermark(watermark_us))

    def end(self, side: int) -> None:
        for index, operator in enumerate(self.operators):
            self.take(index, operator.end_input(side))

    def restart(self, parallelism: int, *, portable: bool = True) -> None:
        for operator in self.operators:
            operator.portable = portable
        stored = StoredState.of(self.operators)
        self.close()
        self.parallelism = parallelism
        self.operators = self._opened(parallelism)
        stored.restore(self.operators, GROUPS)

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
