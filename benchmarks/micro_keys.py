"""CPU time per row of keys in one process: hash, partition, index, and the path from a key to its window.

    python benchmarks/micro_keys.py [--shape NAME] [--quick]

Keys are int64 or text of 6, 20 or 60 characters, with 1k, 100k or 1M distinct values in random order, in batches of 64k
and of 10 rows. The path is the hash exchange of two subtasks, the wire format of half of the parts, and a window with
count and sum in each subtask. Figures are nanoseconds of CPU per row, the least of several rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.channel.tcp.wire_format import BatchDecoder, encode_batch
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.spark.kernel_preload import preload_kernels
from tidegate.state.keys.key_hash import hash_keys, partition_hash
from tidegate.state.keys.key_index import KeyReader

ROUNDS = 5
ROWS = 2**21
SUBTASKS = 2


def texts(form: str, numbers: np.ndarray) -> pa.Array:
    """Return the numbers as text."""
    return pa.array([form % number for number in numbers.tolist()])


SHAPES: dict[str, Callable[[np.ndarray], pa.Array]] = {
    "int64": lambda numbers: pa.array(numbers),
    "text6": lambda numbers: texts("%06x", numbers),
    "text20": lambda numbers: texts("customer-%011d", numbers),
    "text60": lambda numbers: texts("eu-west-1/production/customers/by-number/%019d", numbers),
    "text20+int64": lambda numbers: texts("customer-%011d", numbers),
    "dictionary20": lambda numbers: texts("customer-%011d", numbers),
}


def schema_of(shape: str, key: pa.DataType) -> pa.Schema:
    """Return the schema of the rows: key columns, a value, and the event time."""
    more = [("k2", pa.int64())] if shape.endswith("+int64") else []
    return pa.schema([("k", key), *more, ("v", pa.int64()), ("ts_ms", pa.int64())])


def batches_of(shape: str, distinct: int, batch_rows: int, rows: int) -> list[pa.RecordBatch]:
    """Return `rows` rows in batches, with keys in random order."""
    numbers = np.random.default_rng(1).permutation(rows) % distinct
    known = SHAPES[shape](np.arange(min(distinct, rows)))
    keys = known.take(pa.array(numbers))
    if shape == "dictionary20":
        keys = keys.dictionary_encode()
    values, times = pa.array(numbers % 1000), pa.array(np.arange(rows) // 250)
    more = [pa.array(numbers % 7)] if shape.endswith("+int64") else []
    whole = pa.RecordBatch.from_arrays([keys, *more, values, times], schema=schema_of(shape, keys.type))
    cut = [whole.slice(start, batch_rows) for start in range(0, rows, batch_rows)]
    if batch_rows < 1000:  # small batches of a job have buffers of their own
        cut = [pa.ipc.read_record_batch(b.serialize(), b.schema) if shape != "dictionary20" else b for b in cut]
    return cut


def window(schema: pa.Schema, keys: list[str], subtask: int) -> Any:
    """Return an open count-and-sum window that never fires."""
    fields = [schema.field(key) for key in keys]
    stored = KeyReader(schema, keys).schema
    bounds = [("window_start", pa.timestamp("us")), ("window_end", pa.timestamp("us"))]
    assert len(fields) == len(stored)
    results = pa.schema([*stored, *bounds, ("rows", pa.int64()), ("total", pa.int64())])
    aggregates = (BoundAggregate("rows", "count"), BoundAggregate("total", "sum", "v"))
    spec = WindowAggSpec(tuple(keys), "ts_ms", "ms", 10**15, 0, aggregates, schema, results)
    operator = create_operator(spec)
    operator.open(OperatorContext("job", "lineage", "w", subtask, SUBTASKS, 128, 1, "1-1", (schema,), lambda: 0))
    return operator


def best_ns(work: Callable[[], Any], rows: int) -> float:
    """Return the CPU nanoseconds per row of the cheapest round."""
    spent = []
    for _ in range(ROUNDS):
        started = time.process_time_ns()
        work()
        spent.append(time.process_time_ns() - started)
    return min(spent) / rows


def measure(shape: str, distinct: int, batch_rows: int, rows: int) -> dict[str, float]:
    """Return CPU nanoseconds per row by step."""
    batches = batches_of(shape, distinct, batch_rows, rows)
    schema = batches[0].schema
    keys = [name for name in schema.names if name.startswith("k")]
    reader = KeyReader(schema, keys)
    read = [reader.read(b) for b in batches]
    sizes = [b.num_rows for b in batches]
    out = np.empty(max(sizes), np.int32)
    warm = reader.new_index()
    for part, size in zip(read, sizes, strict=True):
        warm.find_or_add(part, 0, size, out)

    def each(work: Callable[[pa.RecordBatch], Any]) -> None:
        for b in batches:
            work(b)

    def index(target: Any) -> None:
        for part, size in zip(read, sizes, strict=True):
            target.find_or_add(part, 0, size, out)

    def path() -> None:
        windows = [window(schema, keys, subtask) for subtask in range(SUBTASKS)]
        for number, batch in enumerate(batches):
            for subtask, part in enumerate(partition_hash(batch, keys, SUBTASKS, 128)):
                if part is not None:
                    if (number + subtask) % 2:
                        part = BatchDecoder(schema).decode(*encode_batch(part))
                    list(windows[subtask].process(part, 0))

    operator = window(schema, keys, 0)
    return {
        "hash": best_ns(lambda: each(lambda b: hash_keys(b, keys)), rows),
        "partition": best_ns(lambda: each(lambda b: partition_hash(b, keys, SUBTASKS, 128)), rows),
        "read": best_ns(lambda: each(reader.read), rows),
        "index new": best_ns(lambda: index(reader.new_index()), rows),
        "index known": best_ns(lambda: index(warm), rows),
        "window": best_ns(lambda: each(lambda b: list(operator.process(b, 0))), rows),
        "path": best_ns(path, rows),
    }


def main() -> None:
    """Print a row for each measurement."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--shape", choices=SHAPES, action="append")
    parser.add_argument("--quick", action="store_true", help="only 100k keys, and fewer rows")
    options = parser.parse_args()
    preload_kernels()
    shapes = options.shape or list(SHAPES)
    cases = [(100_000, 65_536, ROWS // 2), (100_000, 10, ROWS // 256)]
    if not options.quick:
        cases += [(1_000, 65_536, ROWS), (1_000_000, 65_536, ROWS), (ROWS, 65_536, ROWS)]
    print("| keys | distinct | batch | hash | partition | read | index new | index known | window | path |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for distinct, batch_rows, rows in cases:
        for shape in shapes:
            figures = measure(shape, distinct, batch_rows, rows)
            cells = " | ".join(f"{figure:,.1f}" for figure in figures.values())
            print(f"| {shape} | {distinct:,} | {batch_rows:,} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
