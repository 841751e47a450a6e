"""The pipeline of `benchmarks/start.py`: windows of 0.1 s per key, over an unbounded source with 2,000 rows per second.

The first result writes a file. Arguments: `first` (path of the file).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import tidegate

RATE = 2000
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("us"))])


def rows(numbers: npt.NDArray[np.int64]) -> Mapping[str, Any]:
    """Return the rows of these numbers, 2,000 in each second of event time."""
    return {"k": numbers % 100, "v": numbers, "ts": (numbers * (1_000_000 // RATE)).view("datetime64[us]")}


def build(args: Mapping[str, Any]) -> tidegate.Pipeline:
    """See the module."""
    first = Path(str(args["first"]))

    def report(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            first.touch()
            yield batch

    p = tidegate.Pipeline()
    read = p.read(tidegate.DataGen(rows, SCHEMA, rate=RATE), uid="rows")
    windows = read.with_watermark("ts", "0 s").group_by("k").window(tidegate.tumbling("100 ms"))
    totals = windows.agg(n=tidegate.count(), total=tidegate.sum("v"), uid="windows")
    totals.map_in_arrow(report, schema=totals.schema, uid="first").write(tidegate.Discard(), uid="out")
    return p
