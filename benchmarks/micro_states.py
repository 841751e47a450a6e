"""CPU time of keyed state with snapshots, for a state back end, in one process and without channels or Spark.

    python benchmarks/micro_states.py [--back-end rocksdb] [--works value,reducing,aggregates,distinct]
        [--keys 100000,1000000,4000000] [--batch-rows 65536] [--rows 3000000] [--snapshot-rows 500000]

Keys are random, and all of them have a state before the measurement, except for `distinct`. CPU time includes the
threads of the snapshots and of RocksDB, and not the creation of the rows.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import tidegate
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate, RunningAggSpec
from tidegate.operators.deduplicate_specs import DeduplicateSpec
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.processes.process_specs import KeyedProcessSpec
from tidegate.operators.stream_operator import OperatorContext
from tidegate.spark.kernel_preload import preload_kernels

INPUT = pa.schema([("k", pa.int64()), ("v", pa.int64())])
OUTPUT = pa.schema([("k", pa.int64()), ("n", pa.int64()), ("total", pa.int64())])
FILL_ROWS = 64 * 1024


class Value(tidegate.KeyedProcess):
    """Reads and replaces the value of each key."""

    states = (tidegate.value_state("last", pa.schema([("v", pa.int64())])),)

    def process(self, rows: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        """Emit the former values."""
        last = ctx.value("last")
        found = last.get(rows.keys)
        firsts = np.empty(rows.keys.size, np.int64)
        firsts[rows.owners] = np.arange(len(rows.owners))
        last.put(rows.keys, pa.record_batch([rows.batch["v"].take(pa.array(firsts))], names=["v"]))
        columns = rows.keys.columns().columns
        yield pa.record_batch([*columns, found.columns.column(0), found.columns.column(0)], schema=OUTPUT)


class Reducing(tidegate.KeyedProcess):
    """A running count and sum."""

    states = (tidegate.reducing_state("sums", {"n": "count", "v": "sum"}),)

    def process(self, rows: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        """Emit the sums of the batch's keys."""
        sums = ctx.merging("sums")
        sums.add(rows.keys, rows.owners, pa.record_batch([rows.batch["v"], rows.batch["v"]], names=["n", "v"]))
        found = sums.get(rows.keys)
        yield pa.record_batch([*rows.keys.columns().columns, *found.columns.columns], schema=OUTPUT)


def process(made: Any) -> Any:
    """Return the spec of a process."""
    return KeyedProcessSpec(made, ("k",), made.states, None, "us", INPUT, OUTPUT)


def aggregates() -> Any:
    """Return the spec of a running count and sum."""
    found = (BoundAggregate("n", "count"), BoundAggregate("total", "sum", "v"))
    return RunningAggSpec(("k",), found, INPUT, OUTPUT, "update")


WORKS: dict[str, Callable[[], Any]] = {
    "value": lambda: process(Value()),
    "reducing": lambda: process(Reducing()),
    "aggregates": aggregates,
    "distinct": lambda: DeduplicateSpec(("k",), None, "us", 0, 0, INPUT),
}


@dataclass
class Seconds:
    """CPU seconds by part. `longest_ms`: wall time of the longest synchronous part of a snapshot."""

    rows: float = 0.0
    snapshots: float = 0.0
    longest_ms: float = 0.0
    stored: int = 0


def snapshot(operator: Any, number: int, known: set[str], seconds: Seconds) -> None:
    """Take a snapshot, and read the blobs that are not `known`."""
    started = time.perf_counter()
    write = operator.snapshot(number)
    seconds.longest_ms = max(seconds.longest_ms, 1000 * (time.perf_counter() - started))
    for part in write():
        for blob in part.blobs:
            if blob.id not in known:
                known.add(blob.id)
                content = blob.read()
                seconds.stored += len(content) if isinstance(content, bytes) else content.nbytes


def run(operator: Any, batches: Iterator[pa.RecordBatch], snapshot_rows: int) -> Seconds:
    """Process the batches with a snapshot after each `snapshot_rows` rows and at the end."""
    seconds, known, since, number = Seconds(), set[str](), 0, 0
    for batch in batches:
        started = time.process_time()
        for _ in operator.process(batch, 0):
            pass
        seconds.rows += time.process_time() - started
        since += batch.num_rows
        if since >= snapshot_rows:
            started = time.process_time()
            number, since = number + 1, 0
            snapshot(operator, number, known, seconds)
            seconds.snapshots += time.process_time() - started
    return seconds


def measure(work: str, back_end: str, keys: int, args: argparse.Namespace, scratch: str) -> str:
    """Return the result as a line of text."""
    operator = create_operator(WORKS[work]())
    ctx = OperatorContext("job", "lineage", "o", 0, 1, 128, 1, "1-1", (INPUT,), lambda: 0)
    operator.open(replace(ctx, state_backend=back_end, scratch=scratch, state_memory_bytes=args.memory_mib * 2**20))
    rng = np.random.default_rng(1)
    order = rng.permutation(keys)
    if work != "distinct":
        fill = [order[at : at + FILL_ROWS] for at in range(0, keys, FILL_ROWS)]
        run(operator, (pa.record_batch([k, k], schema=INPUT) for k in fill), args.snapshot_rows)
    rows = args.rows * args.batch_rows // max(args.batch_rows, 8192)
    drawn = (rng.integers(0, keys, args.batch_rows) for _ in range(max(1, rows // args.batch_rows)))
    seconds = run(operator, (pa.record_batch([k, k], schema=INPUT) for k in drawn), args.snapshot_rows)
    operator.close()
    rows = max(1, rows // args.batch_rows) * args.batch_rows
    each, cpu_s = 1e6 / rows, seconds.rows + seconds.snapshots
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return (
        f"{work}, {back_end}, {keys:,} keys, batches of {args.batch_rows:,}: {cpu_s * each:.3f} us per row: rows "
        f"{seconds.rows * each:.3f}, snapshots {seconds.snapshots * each:.3f}; longest synchronous part "
        f"{seconds.longest_ms:.1f} ms; {seconds.stored / rows:.1f} bytes stored per row; {resident} MiB"
    )


def numbers(text: str) -> list[int]:
    """Return numbers that are separated by commas."""
    return [int(number) for number in text.split(",")]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--back-end", default="rocksdb")
    parser.add_argument("--works", default=",".join(WORKS))
    parser.add_argument("--keys", type=numbers, default=[100_000, 1_000_000, 4_000_000])
    parser.add_argument("--batch-rows", type=int, default=64 * 1024)
    parser.add_argument("--rows", type=int, default=3_000_000)
    parser.add_argument("--snapshot-rows", type=int, default=500_000, help="0: none")
    parser.add_argument("--memory-mib", type=int, default=256)
    parser.add_argument("--folder", default=str(Path(__file__).resolve().parent.parent / ".work"))
    args = parser.parse_args(arguments)
    args.snapshot_rows = args.snapshot_rows or 2**62
    Path(args.folder).mkdir(exist_ok=True)
    preload_kernels()
    for work in args.works.split(","):
        for keys in args.keys:
            with tempfile.TemporaryDirectory(dir=args.folder) as scratch:
                print(measure(work, args.back_end, keys, args, scratch), flush=True)


if __name__ == "__main__":
    main()
