"""Cost of a batch in a join of two streams, and memory of its stored rows, without channels or Spark.

Run it as `python benchmarks/micro_joins.py [kind]`. It prints the resident bytes of a stored row, and CPU microseconds
per batch with the watermark after it: the fastest of several rounds, because noise only slows a round down.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

import tidegate as td
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.stream_operator import OperatorContext
from tidegate.spark.kernel_preload import preload_kernels

ROUNDS = 5
ROWS = (25, 100, 1_000, 16_384)
BATCHES = {25: 1_500, 100: 1_500, 1_000: 1_000, 16_384: 100}
INPUT = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("due_us", pa.int64()), ("ts", pa.timestamp("us"))])
US_PER_ROW = 100
STORED = 2_000_000


def operator(how: str, **bounds: Any) -> Any:
    """Return an open join."""
    p = td.Pipeline()
    sides = [
        p.read(td.DataGen(lambda n: {}, INPUT, rows=1), uid=uid).with_watermark("ts", "0 s")
        for uid in ("left", "right")
    ]
    joined = sides[0].join(sides[1], on="k", how=how, suffix="_right", uid="join", **bounds)  # type: ignore[arg-type]
    spec = joined._draft._nodes[joined._node_id].spec
    made = create_operator(spec)
    made.open(OperatorContext("job", "lineage", "o", 0, 1, 128, 1, "1-1", (INPUT, INPUT), lambda: 0))
    return made


def batches(rows: int, number: int, keys: int) -> Iterator[tuple[int, pa.RecordBatch, int]]:
    """Yield (side, batch, watermark): each batch of numbers first from the left, then from the right."""
    for n in range(number):
        i = np.arange(n * rows, (n + 1) * rows)
        times = i * US_PER_ROW
        batch = pa.record_batch(
            [i % keys, np.ones(rows, np.int64), times, pa.array(times).view(pa.timestamp("us"))], schema=INPUT
        )
        yield 0, batch, int(times[0])
        yield 1, batch, int(times[-1])


def us_per_batch(how: str, rows: int, keys: int, bounds: dict[str, Any]) -> float:
    """Return the CPU microseconds per batch of the fastest round."""
    best = float("inf")
    given = list(batches(rows, BATCHES[rows] // 2, keys))
    for _ in range(ROUNDS):
        made = operator(how, **bounds)
        for at, (side, batch, watermark) in enumerate(given):
            if at == 50:
                start = time.process_time()
            for _ in made.process(batch, side):
                pass
            for _ in made.on_watermark(watermark):
                pass
        best = min(best, (time.process_time() - start) / (len(given) - 50))
        made.close()
    return best * 1e6


def resident_bytes() -> int:
    """Return the resident size of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * 4096


def bytes_per_row(how: str) -> float:
    """Return the resident bytes of a stored row, both sides with the same keys and no row expired."""
    made = operator(how, ttl="1 h")
    before = resident_bytes()
    for side, batch, _ in batches(16_384, STORED // 2 // 16_384, 1 << 60):
        for _ in made.process(batch, side):
            pass
    used = (resident_bytes() - before) / (STORED // 2 // 16_384 * 16_384 * 2)
    made.close()
    return used


def main() -> int:
    """Print the tables."""
    preload_kernels()
    kind = sys.argv[1] if len(sys.argv) > 1 else "inner"
    print(f"resident bytes of a stored row of 32 bytes, {kind} join: {bytes_per_row(kind):.0f}")
    subjects: dict[str, tuple[str, int, dict[str, Any]]] = {
        "inner, ttl, distinct keys": ("inner", 1 << 60, {"ttl": "2 s"}),
        "inner, ttl, 1000 keys": ("inner", 1000, {"ttl": "20 ms"}),
        "left, interval": ("left", 1 << 60, {"between": ("-1 s", "1 s")}),
        "semi, ttl": ("semi", 1 << 60, {"ttl": "2 s"}),
        "inner, window of 1 s": ("inner", 1 << 60, {"window": td.tumbling("1 s")}),
        "inner, window of 6 s every 1 s": ("inner", 1 << 60, {"window": td.sliding("6 s", "1 s")}),
    }
    print(f"{'us per batch of':32}" + "".join(f"{rows:>8,} rows" for rows in ROWS))
    for name, (how, keys, bounds) in subjects.items():
        figures = [us_per_batch(how, rows, keys, bounds) for rows in ROWS]
        print(f"{name:32}" + "".join(f"{figure:13.1f}" for figure in figures), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
