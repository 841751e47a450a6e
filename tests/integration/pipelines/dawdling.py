"""The job of counting.py with a user function that takes its time as long as a file is there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate import DataGen, Parquet, Pipeline, count, sum, tumbling

KEYS = 17
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms", tz="UTC"))])


def rows(numbers: np.ndarray) -> dict[str, Any]:
    """Rows by number."""
    return {"k": numbers % KEYS, "v": numbers, "ts": pa.array(numbers).cast(pa.timestamp("ms", tz="UTC"))}


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments as of counting.build. It waits while there is a file beside `out`."""
    marker = Path(str(args["out"]) + ".wait")

    def dawdle(batches: Any) -> Any:
        for batch in batches:
            while marker.exists():
                time.sleep(0.05)
            yield batch

    p = Pipeline()
    source = DataGen(rows, SCHEMA, rows=int(args["rows"]), splits=2, rate=float(args["rate"]), batch_rows=256)
    (
        p.read(source, uid="numbers")
        .map_in_arrow(dawdle, SCHEMA, uid="dawdle")
        .with_watermark("ts", "0 s")
        .group_by("k")
        .window(tumbling("1 s"))
        .agg(n=count(), total=sum("v"), uid="per-second")
        .write(Parquet(str(args["out"])), uid="out")
    )
    return p
