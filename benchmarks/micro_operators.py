"""Single-thread speed of partitioning, keyed windows and their snapshots, without channels or Spark.

Run it as `python benchmarks/micro_operators.py`. It prints the best of several rounds, because noise only slows it
down.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.snapshot.streams import decode_parts, encode_parts
from tidegate.spark.kernel_preload import preload_kernels
from tidegate.state.keys.key_hash import partition_hash

BATCH_ROWS = 64 * 1024
BATCHES = 160
ROUNDS = 5
KEY_COUNTS = (10, 100_000, 1_000_000)
ROWS_PER_MS = 250

INPUT = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts_ms", pa.int64())])
OUTPUT = pa.schema(
    [
        ("k", pa.int64()),
        ("window_start", pa.timestamp("us")),
        ("window_end", pa.timestamp("us")),
        ("rows", pa.int64()),
        ("total", pa.int64()),
    ]
)


def batch(number: int, keys: int) -> pa.RecordBatch:
    """Batch `number` of the stream: row i has key (i * 2654435761) mod keys, 250 rows a millisecond."""
    i = np.arange(number * BATCH_ROWS, (number + 1) * BATCH_ROWS)
    return pa.record_batch([(i * 2654435761) % keys, i % 1000, i // ROWS_PER_MS], schema=INPUT)


def window(size_us: int) -> Any:
    """Return an open count-and-sum window."""
    aggregates = (BoundAggregate("rows", "count"), BoundAggregate("total", "sum", "v"))
    operator = create_operator(WindowAggSpec(("k",), "ts_ms", "ms", size_us, 0, aggregates, INPUT, OUTPUT))
    operator.open(OperatorContext("job", "lineage", "w", 0, 1, 128, 1, "1-1", (INPUT,), lambda: 0))
    return operator


def best_s(work: Callable[[], Any]) -> float:
    """Return the seconds of the fastest round."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def aggregate(batches: list[pa.RecordBatch]) -> None:
    """Aggregate all batches in ten-second windows, which fire as time advances."""
    operator = window(10_000_000)
    for b in batches:
        list(operator.process(b, 0))
        list(operator.on_watermark(b.column(2)[-1].as_py() * 1000))
    list(operator.on_watermark(MAX_WATERMARK))


def main() -> None:
    """Print a line for each measurement."""
    preload_kernels()
    b = batch(0, 100_000)
    for parallelism in (2, 4, 16):
        seconds = best_s(lambda p=parallelism: [partition_hash(b, ["k"], p, 128) for _ in range(50)])  # type: ignore[misc]
        print(f"partition int64, {parallelism} subtasks: {50 * BATCH_ROWS / seconds / 1e6:.0f} M rows/s")
    for keys in KEY_COUNTS:
        batches = [batch(n, keys) for n in range(BATCHES)]
        seconds = best_s(lambda: aggregate(batches))  # noqa: B023
        print(f"window count + sum, {keys} keys: {BATCHES * BATCH_ROWS / seconds / 1e6:.0f} M rows/s")
    operator = window(10**15)
    for n in range(40):
        list(operator.process(batch(n, 1_000_000), 0))
    parts = operator.snapshot(1)()
    stream = encode_parts(parts)
    print(f"1 M keys: freeze {best_s(lambda: operator.snapshot(1)) * 1e3:.1f} ms")
    print(f"1 M keys: write {best_s(lambda: encode_parts(operator.snapshot(1)())) * 1e3:.0f} ms, {len(stream)} bytes")
    print(f"1 M keys: restore {best_s(lambda: window(10**15).restore(decode_parts(stream))) * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
