"""Windows per key from a topic to a topic, values in JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidegate import Kafka, KafkaSink, Pipeline, count, sum, tumbling
from tidegate.formats import Json

VALUE = {"k": "int64", "v": "int64", "ts": "timestamp[us]"}


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: out; a file `kafka.json` beside it names `servers`, `source` and `target`."""
    given = json.loads((Path(str(args["out"])).parent / "kafka.json").read_text())
    p = Pipeline()
    source = Kafka(given["source"], servers=given["servers"], value=Json(VALUE), discover_every="500 ms")
    windows = p.read(source, uid="in").with_watermark("ts", "0 s").group_by("k").window(tumbling("1 s"))
    totals = windows.agg(n=count(), total=sum("v"), uid="windows").select("k", "window_start", "n", "total")
    sink = KafkaSink(
        given["target"], servers=given["servers"], key="k", key_format=Json({"k": "int64"}), value=Json(totals.schema)
    )
    totals.write(sink, uid="out")
    return p
