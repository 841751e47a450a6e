"""Cost of a row in `transform_with_state`, without channels or Spark, by the number of rows of a key in each batch.

Run it as `python benchmarks/micro_processors.py`. It prints CPU microseconds per row and million rows per CPU second:
the best of several rounds, because noise only slows a round down.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from tidegate.compat.pyspark_stateful.processor_specs import StatefulProcessorSpec
from tidegate.compat.pyspark_stateful.spark_ddl import schema_of
from tidegate.compat.pyspark_stateful.spark_values import arrow_schema
from tidegate.compat.pyspark_stateful.state_declarations import declared
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.stream_operator import OperatorContext
from tidegate.spark.kernel_preload import preload_kernels

INPUT = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("t", pa.timestamp("us", "UTC"))])
OUTPUT = "k BIGINT, n BIGINT, total BIGINT"
KEYS = 100_000
SECONDS = 2.0
"""CPU seconds of a round, about."""


class Rows(StatefulProcessor):
    """A running count and sum of each key, from `Row` objects."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.sums = handle.getValueState("sums", "n BIGINT, total BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Add the rows, and emit the sums."""
        n, total = self.sums.get() or (0, 0)
        for row in rows:
            n, total = n + 1, total + row.v
        self.sums.update((n, total))
        yield Row(k=key[0], n=n, total=total)


class Frames(Rows):
    """The same, from pandas frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Add the rows, and emit the sums."""
        import pandas as pd

        n, total = self.sums.get() or (0, 0)
        for frame in rows:
            n, total = n + len(frame), total + int(frame["v"].sum())
        self.sums.update((n, total))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})


def opened(pandas: bool, back_end: Any, scratch: str) -> Any:
    """Return an open operator."""
    processor = Frames() if pandas else Rows()
    found = declared(processor, "none", "here")
    schema = arrow_schema(schema_of(OUTPUT, "it", "here"), "it", "here", nullable=True)
    states = (processor, pandas, found.states, found.deleted, "none")
    spec = StatefulProcessorSpec(*states, ("k",), None, "us", INPUT, None, (), schema, None, "us")
    operator = create_operator(spec)
    ctx = OperatorContext("job", "lineage", "o", 0, 1, 128, 1, "1-1", (INPUT,), lambda: 0)
    ctx.state_backend, ctx.scratch = back_end, scratch
    operator.open(ctx)
    return operator


def batches(rows: int, keys: int) -> Iterator[pa.RecordBatch]:
    """Yield batches whose keys repeat, each about `rows / keys` times, and change over all `KEYS` keys."""
    number = 0
    while True:
        i = np.arange(number * rows, (number + 1) * rows)
        k = (i * 2654435761 % keys + number * keys) % KEYS
        yield pa.record_batch([pa.array(k), i % 1000, pa.array(i).cast(INPUT.field("t").type)], schema=INPUT)
        number += 1


def us_per_row(pandas: bool, back_end: str, rows: int, keys: int, rounds: int) -> float:
    """Return the CPU microseconds per row of the fastest round."""
    best = float("inf")
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as scratch:
            operator = opened(pandas, back_end, scratch)
            source, done, spent = batches(rows, keys), 0, 0.0
            list(operator.process(next(source), 0))
            gc.collect()
            while spent < SECONDS:
                batch = next(source)
                start = time.process_time()
                for _ in operator.process(batch, 0):
                    pass
                spent += time.process_time() - start
                done += batch.num_rows
            operator.close()
        best = min(best, spent / done)
    return best * 1e6


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--variant", choices=["rows", "pandas"])
    parser.add_argument("--back-end", choices=["heap", "rocksdb"])
    args = parser.parse_args()
    preload_kernels()
    gc.freeze()  # as a slot does
    print(f"{'variant':8} {'back end':8} {'rows':>7} {'a key':>6} {'us/row':>8} {'us/call':>8} {'M rows/s':>9}")
    for variant in [args.variant] if args.variant else ["rows", "pandas"]:
        for back_end in [args.back_end] if args.back_end else ["heap", "rocksdb"]:
            for rows, keys in ((10, 10), (1_000, 1_000), (65_536, 65_536), (65_536, 10_923), (65_536, 1_311)):
                us, per_key = us_per_row(variant == "pandas", back_end, rows, keys, args.rounds), rows / keys
                figures = f"{us:>8.2f} {us * per_key:>8.1f} {1 / us:>9.3f}"
                print(f"{variant:8} {back_end:8} {rows:>7,} {per_key:>6.0f} {figures}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
