"""The job of counting.py with a user function that once does not return."""

from __future__ import annotations

import threading
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
    """Arguments as of counting.build. The folder of `out` remembers that it has hung."""
    marker = Path(str(args["out"]) + ".hung")

    def hang_once(batches: Any) -> Any:
        for batch in batches:
            if 5_000 in batch["v"].to_pylist() and not marker.exists():
                marker.touch()
                threading.Event().wait()
            yield batch

    p = Pipeline()
    source = DataGen(rows, SCHEMA, rows=int(args["rows"]), splits=2, rate=float(args["rate"]), batch_rows=256)
    (
        p.read(source, uid="numbers")
        .map_in_arrow(hang_once, SCHEMA, uid="hang")
        .with_watermark("ts", "0 s")
        .group_by("k")
        .window(tumbling("1 s"))
        .agg(n=count(), total=sum("v"), uid="per-second")
        .write(Parquet(str(args["out"])), uid="out")
    )
    return p
