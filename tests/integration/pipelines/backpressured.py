"""The counting job with an operator that is slow in one subtask after the exchange: the other slot fills its input
channels, and keeps them full."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate import DataGen, Parquet, Pipeline, count, sum, tumbling

KEYS = 17
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms", tz="UTC"))])
SLOWNESS_S = 0.2
"""For the windows that one watermark closes, in the subtask that has the key SLOW_KEY."""
SLOW_KEY = 0


def rows(numbers: np.ndarray) -> dict[str, Any]:
    """Rows by number."""
    return {"k": numbers % KEYS, "v": numbers, "ts": pa.array(numbers).cast(pa.timestamp("ms", tz="UTC"))}


def slow(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: rows, out (folder)."""
    return _build(args, SLOWNESS_S)


def fast(args: Mapping[str, Any]) -> Pipeline:
    """The same graph without the slowness."""
    return _build(args, 0.0)


def _build(args: Mapping[str, Any], slowness_s: float) -> Pipeline:
    def linger(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if SLOW_KEY in batch["k"].to_pylist():
                time.sleep(slowness_s)
            yield batch

    p = Pipeline()
    windows = (
        p.read(DataGen(rows, SCHEMA, rows=int(args["rows"]), splits=2, batch_rows=256), uid="numbers")
        .with_watermark("ts", "0 s")
        .group_by("k")
        .window(tumbling("1 s"))
        .agg(n=count(), total=sum("v"), uid="per-second")
    )
    windows.map_in_arrow(linger, windows.schema, uid="linger").write(Parquet(str(args["out"])), uid="out")
    return p
