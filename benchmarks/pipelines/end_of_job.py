"""The pipeline of `benchmarks/end_of_job.py`: two source subtasks and a chain of two-phase Parquet sinks.

One file, so that it can be pinned as the job's artifact. Arguments: `stages`, `rows` (integers), `out`, a folder with
one subfolder for each stage, and `report`, a local folder where each source subtask notes when it made its last record.
"""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pyarrow as pa

import tidegate

SOURCES = 2
ROWS_PER_S = 20_000
"""Over both subtasks."""
SCHEMA = pa.schema([pa.field("k", pa.int64()), pa.field("v", pa.float64())])


class Rows:
    """Makes rows of their numbers; notes when it has made a source subtask's last."""

    def __init__(self, rows: int, report: str) -> None:
        self._last = {(s + 1) * rows // SOURCES - 1: s for s in range(SOURCES)}
        self._report = report

    def __call__(self, numbers: Any) -> dict[str, Any]:
        """Row numbers to columns."""
        made = {"k": numbers % 1000, "v": np.sqrt(numbers)}
        if int(numbers[-1]) in self._last:
            now_ns = time.time_ns()
            with open(os.path.join(self._report, f"source-{self._last[int(numbers[-1])]}"), "w") as file:
                file.write(str(now_ns))
        return made


def build(args: dict[str, Any]) -> tidegate.Pipeline:
    """See the module."""
    rows = int(args["rows"])
    p = tidegate.Pipeline()
    source = tidegate.DataGen(
        Rows(rows, str(args["report"])), SCHEMA, rows=rows, splits=SOURCES, rate=ROWS_PER_S, batch_rows=1024
    )
    stream = p.read(source, uid="numbers")
    for n in range(int(args["stages"])):
        stream = stream.write_through(tidegate.Parquet(os.path.join(str(args["out"]), f"stage-{n}")), uid=f"stage-{n}")
    return p
