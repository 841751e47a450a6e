"""The job of `counting`, its windows appended to the table `counted` of a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate import DataGen, Pipeline, Postgres, count, sum, tumbling

KEYS = 17
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms", tz="UTC"))])


def rows(numbers: np.ndarray) -> dict[str, Any]:
    """Rows by number."""
    return {"k": numbers % KEYS, "v": numbers, "ts": pa.array(numbers).cast(pa.timestamp("ms", tz="UTC"))}


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: rows, rate (rows per second), out (connection string, without the password)."""
    p = Pipeline()
    source = DataGen(rows, SCHEMA, rows=int(args["rows"]), splits=2, rate=float(args["rate"]), batch_rows=256)
    (
        p.read(source, uid="numbers")
        .with_watermark("ts", "0 s")
        .group_by("k")
        .window(tumbling("1 s"))
        .agg(n=count(), total=sum("v"), uid="per-second")
        .select("k", "window_start", "n", "total")
        .write(Postgres(str(args["out"]), "counted", password="secret:env/TIDEGATE_TEST_POSTGRES_PASSWORD"), uid="out")
    )
    return p
