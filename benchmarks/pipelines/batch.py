"""The pipeline of `benchmarks/bench.py`: windows per key, from Parquet to Parquet.

Arguments: `input` and `output` (folders), `variant` ("declared": the source names the columns that are needed),
`window_s` (seconds of a window).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tidegate


def build(args: Mapping[str, Any]) -> tidegate.Pipeline:
    """See the module."""
    columns = ["k", "v", "ts"] if args["variant"] == "declared" else None
    p = tidegate.Pipeline()
    rows = p.read(tidegate.Files(str(args["input"]), columns=columns), uid="rows")
    windows = rows.with_watermark("ts", "0 s").group_by("k").window(tidegate.tumbling(f"{int(args['window_s'])} s"))
    totals = windows.agg(n=tidegate.count(), total=tidegate.sum("v"), uid="windows")
    totals.write(tidegate.Parquet(str(args["output"])), uid="out")
    return p
