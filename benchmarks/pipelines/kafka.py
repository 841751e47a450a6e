"""The pipelines of row `kafka`: from topic to topic, to the end that the topic has at the start.

Arguments: `servers`, `source` and `target` (topics), `work`: "windows" (counts and sums per key and second, values in
JSON) or "copy" (the bytes of each value).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tidegate
from tidegate.formats import Json


def build(args: Mapping[str, Any]) -> tidegate.Pipeline:
    """See the module."""
    p = tidegate.Pipeline()
    servers, windows = str(args["servers"]), args["work"] == "windows"
    value = Json({"k": "int64", "v": "int64", "ts": "timestamp[us]"}) if windows else None
    topic = tidegate.Kafka(str(args["source"]), servers=servers, value=value, until="latest")
    rows = p.read(topic, uid="rows")
    if windows:
        grouped = rows.with_watermark("ts", "0 s").group_by("k").window(tidegate.tumbling("1 s"))
        rows = grouped.agg(n=tidegate.count(), total=tidegate.sum("v"), uid="windows")
        rows = rows.select("k", "window_start", "n", "total")
    out = Json(rows.schema) if windows else "value"
    rows.write(tidegate.KafkaSink(str(args["target"]), servers=servers, value=out), uid="out")
    return p
