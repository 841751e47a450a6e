"""What a proof of an operator is made of: random rows, a pipeline over them, and the same by DuckDB or plain Python."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa

from tidegate import DataGen, Pipeline, Stream
from tidegate.testing.collect_sink import CollectSink

BLOCK = 8
"""Rows of a block are as many milliseconds out of order at most: times of a block stay in it, and splits are whole
blocks, so that equal times are of one split and keep their order of arrival."""
DELAY = f"{BLOCK} ms"
ROWS = 30 * BLOCK
KEYS = 9

Row: TypeAlias = tuple[Any, ...]
LEFT = pa.schema(
    [
        ("k", pa.string()),
        ("id", pa.int64()),
        ("v", pa.int64()),
        ("f", pa.float64()),
        ("b", pa.bool_()),
        ("s", pa.string()),
        ("ms", pa.int64()),
    ]
)
RIGHT = pa.schema([("k", pa.string()), ("rid", pa.int64()), ("y", pa.int64()), ("ms", pa.int64())])
NAMES = pa.schema([("k", pa.string()), ("name", pa.string())])


def tables(seed: int) -> dict[str, pa.Table]:
    """`l` and `r`, out of order within DELAY, with nulls and equal times; `o`, the rows of `l` in order and without
    equal times; `names`, of some keys, some of them twice."""
    rng = np.random.default_rng(seed)

    def some(values: Any, share: float = 0.15) -> pa.Array:
        return pa.array(values.tolist(), mask=rng.random(len(values)) < share)

    def keys(rows: int) -> pa.Array:
        return some(np.array([f"key {n}" for n in rng.integers(0, KEYS, rows)]), 0.05)

    def times(rows: int) -> Any:
        return np.arange(rows) // BLOCK * BLOCK + rng.integers(0, BLOCK, rows)

    n = np.arange(ROWS)
    values = [some(rng.integers(-9, 9, ROWS)), some(rng.integers(-20, 20, ROWS) / 2), some(rng.random(ROWS) < 0.7)]
    columns = [keys(ROWS), pa.array(n), *values, some(np.array(list("abcde"))[rng.integers(0, 5, ROWS)])]
    left = pa.table([*columns, pa.array(times(ROWS))], schema=LEFT)
    right = pa.table([keys(ROWS), pa.array(n), pa.array(rng.integers(-9, 9, ROWS)), times(ROWS)], schema=RIGHT)
    named = [f"key {i}" for i in rng.integers(0, KEYS + 2, KEYS)]
    names = pa.table([pa.array(named), pa.array([f"name {i}" for i in range(KEYS)])], schema=NAMES)
    return {"l": left, "r": right, "o": left.set_column(6, "ms", pa.array(n * 3)), "names": names}


@dataclass
class Drawing:
    """A pipeline that is being drawn over the tables.

    Attributes:
        paced: rows come by the clock, so that batches are cut by its ticks; otherwise as fast as can be.
        delay: of the watermarks of `left` and `right`.
    """

    tables: Mapping[str, pa.Table]
    sink: str
    rng: random.Random
    paced: bool
    pipeline: Pipeline = field(default_factory=Pipeline)
    delay: str = DELAY

    def read(self, name: str, uid: str = "", splits: int = 2) -> Stream:
        """A table, in batches of a random size."""
        table = self.tables[name]
        rate = 2_000 if self.paced else None
        source = DataGen(
            lambda numbers: table.take(pa.array(numbers)).combine_chunks().to_batches()[0],
            table.schema,
            rows=table.num_rows,
            splits=splits,
            batch_rows=self.rng.randint(1, 30),
            rate=rate,
        )
        return self.pipeline.read(source, uid=uid or name)

    @cached_property
    def left(self) -> Stream:
        """`l` with watermarks."""
        return self.read("l").with_watermark("ms", self.delay, unit="ms")

    @cached_property
    def right(self) -> Stream:
        """`r` with watermarks, in other splits."""
        return self.read("r", splits=3).with_watermark("ms", self.delay, unit="ms")

    @cached_property
    def ordered(self) -> Stream:
        """`o` with watermarks, in one split."""
        return self.read("o", splits=1).with_watermark("ms", "0 s", unit="ms")

    @cached_property
    def names(self) -> Stream:
        """`names`, without event time."""
        return self.read("names")

    def into(self, name: str) -> CollectSink:
        """The sink of a result."""
        return CollectSink(f"{self.sink}-{name}")


@dataclass(frozen=True)
class Result:
    """A stream, and what it is to give.

    Attributes:
        stream: what is written; a schema: the pipeline has written it itself, to `Drawing.into`.
        expected: the rows by DuckDB, over the tables by their names; or by plain Python.
        read: what of the stream's rows, `out`, is compared.
    """

    stream: Stream | pa.Schema
    expected: str | Callable[[Mapping[str, pa.Table]], Counter[Row]]
    read: str = "from out"

    @property
    def schema(self) -> pa.Schema:
        """Of what is written."""
        return self.stream if isinstance(self.stream, pa.Schema) else self.stream.schema

    def wanted(self, given: Mapping[str, pa.Table]) -> Counter[Row]:
        """By the independent calculation."""
        return rows_of(self.expected, given) if isinstance(self.expected, str) else self.expected(given)

    def found(self, out: pa.Table) -> Counter[Row]:
        """In what was committed."""
        return rows_of(self.read, {"out": out if out.num_columns else self.schema.empty_table()})


@dataclass(frozen=True)
class Case:
    """A pipeline with results that are known.

    Attributes:
        draw: draws it, and says what each of its results is to be.
        depends_on_mode: batch mode refuses it without leave; with it the results compared are the same.
        rescales: False: its result depends on the parallelism.
        delay: of its watermarks; less than rows are out of order: some are late, in streaming.
    """

    draw: Callable[[Drawing], Mapping[str, Result]]
    depends_on_mode: bool = False
    rescales: bool = True
    delay: str = DELAY


def rows_of(query: str, given: Mapping[str, pa.Table]) -> Counter[Row]:
    """What DuckDB gives, as a multiset."""
    connection = duckdb.connect()
    for name, table in given.items():
        connection.register(name, table)
    return Counter(tuple(map(_hashable, row)) for row in connection.execute(query).fetchall())


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(map(_hashable, value.values()))
    return tuple(map(_hashable, value)) if isinstance(value, list) else value
