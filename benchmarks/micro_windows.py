"""CPU time of a keyed window with snapshots, for a state back end, in one process and without channels or Spark.

    python benchmarks/micro_windows.py [BACK_END] [KEYS ...]

Half of W1: one of two subtasks, so half of its keys, in windows of 2.5 million rows. A snapshot every `SNAPSHOT_ROWS`
rows: about one second of that subtask in a job at a million rows per second. CPU time includes the threads of the
snapshots and of RocksDB, and not the creation of the rows.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from typing import Any

from micro_operators import BATCH_ROWS, INPUT, OUTPUT, batch

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.spark.kernel_preload import preload_kernels

KEY_COUNTS = (100_000, 1_000_000, 5_000_000)
ROWS = 7_500_000
SNAPSHOT_ROWS = 500_000
WINDOW_US = 10_000_000


@dataclass
class Seconds:
    """CPU seconds by part. `longest`: wall time of the longest snapshot; `stored`: bytes that snapshots wrote."""

    rows: float = 0.0
    firing: float = 0.0
    snapshots: float = 0.0
    longest: float = 0.0
    stored: int = 0
    results: int = 0


def window(back_end: str, scratch: str) -> Any:
    """Return an open count-and-sum window."""
    aggregates = (BoundAggregate("rows", "count"), BoundAggregate("total", "sum", "v"))
    operator = create_operator(WindowAggSpec(("k",), "ts_ms", "ms", WINDOW_US, 0, aggregates, INPUT, OUTPUT))
    ctx = OperatorContext("job", "lineage", "w", 0, 1, 128, 1, "1-1", (INPUT,), lambda: 0)
    operator.open(replace(ctx, state_backend=back_end, scratch=scratch))
    return operator


def snapshot(operator: Any, number: int, known: set[str]) -> int:
    """Take a snapshot, and return the bytes that it writes."""
    stored = 0
    for part in operator.snapshot(number)():
        for blob in part.blobs:
            if blob.id not in known:
                known.add(blob.id)
                content = blob.read()
                stored += len(content) if isinstance(content, bytes) else content.nbytes
    return stored


def measure(operator: Any, keys: int) -> Seconds:
    """Process `ROWS` rows."""
    seconds, known = Seconds(), set[str]()
    for number in range(ROWS // BATCH_ROWS):
        rows = batch(number, keys)
        started = time.process_time()
        seconds.results += sum(out.num_rows for out in operator.process(rows, 0))
        processed = time.process_time()
        watermark_us = rows.column(2)[-1].as_py() * 1000 - 1
        seconds.results += sum(out.num_rows for out in operator.on_watermark(watermark_us))
        fired = time.process_time()
        seconds.rows += processed - started
        seconds.firing += fired - processed
        if number % (SNAPSHOT_ROWS // BATCH_ROWS) == 0:
            before = time.perf_counter()
            seconds.stored += snapshot(operator, number, known)
            seconds.longest = max(seconds.longest, time.perf_counter() - before)
            seconds.snapshots += time.process_time() - fired
    started = time.process_time()
    seconds.results += sum(out.num_rows for out in operator.on_watermark(MAX_WATERMARK))
    seconds.firing += time.process_time() - started
    return seconds


def main(back_end: str = "rocksdb", *counts: str) -> None:
    """Print a line for each number of keys."""
    preload_kernels()
    for keys in [int(count) for count in counts] or KEY_COUNTS:
        with tempfile.TemporaryDirectory() as scratch:
            operator = window(back_end, scratch)
            found = measure(operator, keys // 2)
            operator.close()
        rows = ROWS // BATCH_ROWS * BATCH_ROWS
        each, cpu_s = 1e6 / rows, found.rows + found.firing + found.snapshots
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(
            f"{back_end}, {keys:,} keys: {rows / 1e6 / cpu_s:.2f} M rows per CPU "
            f"s; us per row: rows {found.rows * each:.3f}, firing {found.firing * each:.3f}, snapshots "
            f"{found.snapshots * each:.3f}; longest snapshot {found.longest:.2f} s; {found.stored / rows:.1f} bytes "
            f"stored per row; {found.results:,} results; {resident} MiB",
            flush=True,
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
