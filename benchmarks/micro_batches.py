"""Fixed cost of a batch in single operators and in the state API, without channels or Spark.

Run it as `python benchmarks/micro_batches.py`. It prints CPU microseconds per batch, for batches of 10,
1,000 and 65,536 rows: the best of several rounds, because noise only slows a round down.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import tidegate
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.processes.process_specs import KeyedProcessSpec
from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.spark.kernel_preload import preload_kernels

ROUNDS = 7
ROWS = (10, 1_000, 65_536)
BATCHES = {10: 1_000, 1_000: 1_000, 65_536: 100}
KEYS = 100
INPUT = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts_ms", pa.int64())])
TEXT = pa.schema([("k", pa.string()), ("v", pa.int64()), ("ts_ms", pa.int64())])
OUTPUT = pa.schema([("k", pa.int64()), ("total", pa.int64())])
WINDOWS = pa.schema(
    [("k", pa.int64()), ("window_start", pa.timestamp("us")), ("window_end", pa.timestamp("us")), ("n", pa.int64()),
     ("total", pa.int64())]
)  # fmt: skip


class Nothing(tidegate.KeyedProcess):
    """Reads and writes no state."""

    def process(self, rows: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        """Emit the rows."""
        yield pa.RecordBatch.from_arrays([rows.batch["k"], rows.batch["v"]], names=["k", "total"])


class Reducing(tidegate.KeyedProcess):
    """Adds to a reducing state, and reads it."""

    states = (tidegate.reducing_state("total", {"v": "sum"}),)

    def process(self, rows: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        """Emit the total of each row's key."""
        totals = ctx.merging("total")
        totals.add(rows.keys, rows.owners, pa.record_batch([rows.batch["v"]], names=["v"]))
        found = totals.get(rows.keys).columns["v"].take(pa.array(rows.owners))
        yield pa.record_batch([rows.batch["k"], found], schema=OUTPUT)


class Value(tidegate.KeyedProcess):
    """Reads and replaces a value."""

    states = (tidegate.value_state("last", pa.schema([("v", pa.int64())])),)

    def process(self, rows: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        """Emit the rows."""
        last = ctx.value("last")
        last.get(rows.keys)
        values = rows.batch["v"].take(pa.array(np.arange(rows.keys.size)))
        last.put(rows.keys, pa.record_batch([values], names=["v"]))
        yield pa.RecordBatch.from_arrays([rows.batch["k"], rows.batch["v"]], names=["k", "total"])


class List(tidegate.KeyedProcess):
    """Appends to a list, and reads and clears it after each tenth batch."""

    states = (tidegate.list_state("waiting", pa.schema([("v", pa.int64())])),)

    def __init__(self) -> None:
        self.number = 0

    def process(self, rows: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        """Emit the rows."""
        waiting = ctx.list("waiting")
        self.number += 1
        waiting.append(rows.keys, rows.owners, pa.record_batch([rows.batch["v"]], names=["v"]))
        if self.number % 10 == 0:
            waiting.get(rows.keys)
            waiting.clear(rows.keys)
        yield pa.RecordBatch.from_arrays([rows.batch["k"], rows.batch["v"]], names=["k", "total"])


class Map(tidegate.KeyedProcess):
    """Reads and replaces an entry of a map for each row."""

    states = (tidegate.map_state("last", pa.schema([("n", pa.int64())]), pa.schema([("v", pa.int64())])),)

    def process(self, rows: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        """Emit the rows."""
        last, entries = ctx.map("last"), pa.record_batch([pc.bit_wise_and(rows.batch["v"], 3)], names=["n"])
        last.get(rows.keys, rows.owners, entries)
        last.put(rows.keys, rows.owners, entries, pa.record_batch([rows.batch["v"]], names=["v"]))
        yield pa.RecordBatch.from_arrays([rows.batch["k"], rows.batch["v"]], names=["k", "total"])


class Timers(tidegate.KeyedProcess):
    """Registers a timer for each row."""

    def process(self, rows: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        """Emit the rows."""
        ctx.event_timers.register(rows.keys, rows.owners, rows.batch["ts_ms"].to_numpy() * 1000)
        yield pa.RecordBatch.from_arrays([rows.batch["k"], rows.batch["v"]], names=["k", "total"])

    def on_timers(self, due: Any, ctx: Any) -> None:
        """Do nothing."""


def process_operator(process: Any, schema: pa.Schema) -> Any:
    """Return an open operator for a process keyed by k."""
    output = pa.schema([schema.field("k"), ("total", pa.int64())])
    spec = KeyedProcessSpec(process, ("k",), process.states, None, "us", schema, output)
    return opened(spec, schema)


def opened(spec: Any, schema: pa.Schema) -> Any:
    """Return an open operator."""
    operator = create_operator(spec)
    operator.open(OperatorContext("job", "lineage", "o", 0, 1, 128, 1, "1-1", (schema,), lambda: 0))
    return operator


def batches(rows: int, schema: pa.Schema) -> list[pa.RecordBatch]:
    """Return batches whose keys repeat, with slowly rising times."""
    made = []
    for number in range(BATCHES[rows]):
        i = np.arange(number * rows, (number + 1) * rows)
        keys = i * 2654435761 % KEYS
        column = pa.array(keys) if schema is INPUT else pa.array([f"key-{k:016d}" for k in keys])
        made.append(pa.record_batch([column, i % 1000, i // 100], schema=schema))
    return made


def us_per_batch(make: Callable[[], Any], given: list[pa.RecordBatch]) -> float:
    """Return the CPU microseconds per batch of the fastest round."""
    best = float("inf")
    for _ in range(ROUNDS):
        operator = make()
        for batch in given[:50]:
            list(operator.process(batch, 0))
        start = time.process_time()
        for batch in given[50:]:
            for _ in operator.process(batch, 0):
                pass
        best = min(best, (time.process_time() - start) / (len(given) - 50))
        operator.close()
    return best * 1e6


def main() -> int:
    """Print the table."""
    preload_kernels()
    window = WindowAggSpec(
        ("k",), "ts_ms", "ms", 1_000_000, 0, (BoundAggregate("n", "count"), BoundAggregate("total", "sum", "v")), INPUT,
        WINDOWS,
    )  # fmt: skip
    subjects: dict[str, tuple[Callable[[], Any], pa.Schema]] = {
        "KeyedProcess, no state": (lambda: process_operator(Nothing(), INPUT), INPUT),
        "KeyedProcess, reducing state": (lambda: process_operator(Reducing(), INPUT), INPUT),
        "KeyedProcess, value state": (lambda: process_operator(Value(), INPUT), INPUT),
        "KeyedProcess, list state": (lambda: process_operator(List(), INPUT), INPUT),
        "KeyedProcess, map state": (lambda: process_operator(Map(), INPUT), INPUT),
        "KeyedProcess, timers": (lambda: process_operator(Timers(), INPUT), INPUT),
        "value state, text keys": (lambda: process_operator(Value(), TEXT), TEXT),
        "window: count, sum": (lambda: opened(window, INPUT), INPUT),
    }
    print(f"{'us per batch of':32}" + "".join(f"{rows:>8,} rows" for rows in ROWS))
    for name, (make, schema) in subjects.items():
        figures = [us_per_batch(make, batches(rows, schema)) for rows in ROWS]
        print(f"{name:32}" + "".join(f"{figure:13.1f}" for figure in figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    raise SystemExit(main())
