"""CPU time of a job that uses 2 of the 20 columns of its Parquet file, in one process without Spark.

Run it as `python benchmarks/micro_columns.py`. Three ways are interleaved, and the best of several rounds is printed:
without pruning, as earlier versions ran the job; with it; and with `columns=`, by which the user names the two columns.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tidegate as td
from tidegate import Discard, Files, Pipeline
from tidegate.plan import execution_plan
from tidegate.spark.kernel_preload import preload_kernels
from tidegate.testing.in_process_job import InProcessJob

ROWS = 2_000_000
KEYS = 100_000
ROUNDS = 5
UNUSED_NUMBERS, UNUSED_TEXTS = 10, 8


def write_input(path: str) -> None:
    """Write 20 columns: key and value, ten numbers, and eight texts of 12 characters."""
    rng = np.random.default_rng(1)
    columns = {"k": pa.array((np.arange(ROWS) * 2654435761) % KEYS), "v": pa.array(np.arange(ROWS) % 1000)}
    for n in range(UNUSED_NUMBERS):
        columns[f"number{n}"] = pa.array(rng.integers(0, 1 << 40, ROWS))
    words = pa.array([f"word{n:08d}" for n in range(5_000)])
    for n in range(UNUSED_TEXTS):
        columns[f"text{n}"] = words.take(pa.array(rng.integers(0, 5_000, ROWS)))
    pq.write_table(pa.table(columns), path, row_group_size=1 << 18)


def cpu_s(path: str, columns: Sequence[str] | None) -> float:
    """Return the CPU seconds of one run: read, exchange between two subtasks, count and sum by key."""

    def build() -> Pipeline:
        p = Pipeline()
        rows = p.read(Files(path, columns=columns), uid="rows")
        totals = rows.group_by("k").agg(n=td.count(), total=td.sum("v"), output="final", uid="totals")
        totals.write(Discard(), uid="out")
        return p

    run = InProcessJob(build, {"parallelism": 2}).submit()
    started = time.process_time()
    run.to_end()
    return time.process_time() - started


@contextmanager
def without_pruning() -> Iterator[None]:
    """Plan jobs whose edges carry every column."""
    with patch.object(execution_plan, "prune_columns", lambda graph: graph):
        yield


def main() -> None:
    """Print a line for each way, and the ratio that issue 19 sets a goal for."""
    preload_kernels()
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "rows.parquet")
        write_input(path)

        def whole() -> float:
            with without_pruning():
                return cpu_s(path, None)

        ways: dict[str, Callable[[], float]] = {
            "not pruned": whole,
            "pruned": lambda: cpu_s(path, None),
            "columns=": lambda: cpu_s(path, ["k", "v"]),
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, run in ways.items():
                times[name].append(run())
    for name, found in times.items():
        shown = ", ".join(f"{seconds:.2f}" for seconds in found)
        print(f"{name}: {ROWS / min(found) / 1e6:.2f} M rows per CPU second ({shown} s)")
    print(f"pruned={min(times['columns=']) / min(times['pruned']):.2f} of the speed of reading two columns")


if __name__ == "__main__":
    main()
