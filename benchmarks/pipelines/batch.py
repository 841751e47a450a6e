"""The pipeline of `benchmarks/batch.py`: windows of one second per key, from Parquet to Parquet.

Arguments: `input` and `output` (folders), `text` (whether keys are text).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

import tidegate


def build(args: Mapping[str, Any]) -> tidegate.Pipeline:
    """See the module."""
    key = pa.string() if args["text"] else pa.int64()
    schema = pa.schema([("k", key), ("v", pa.int64()), ("ts", pa.timestamp("us"))])
    p = tidegate.Pipeline()
    rows = p.read(tidegate.Files(str(args["input"]), schema=schema), uid="rows")
    windows = rows.with_watermark("ts", "0 s").group_by("k").window(tidegate.tumbling("1 s"))
    totals = windows.agg(n=tidegate.count(), total=tidegate.sum("v"), uid="windows")
    totals.write(tidegate.Parquet(str(args["output"])), uid="out")
    return p
