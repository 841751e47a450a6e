"""The job of counting.py, in a driver whose store does not answer to writes of the decision log for some time."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate import DataGen, Parquet, Pipeline, count, sum, tumbling
from tidegate.errors import StoreError
from tidegate.jobs.stores.local_disk import LocalStore

OUTAGE_S = 8.0
"""Length of the outage, in seconds: from the first completion of a checkpoint."""
KEYS = 17
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms", tz="UTC"))])


def rows(numbers: np.ndarray) -> dict[str, Any]:
    """Rows by number."""
    return {"k": numbers % KEYS, "v": numbers, "ts": pa.array(numbers).cast(pa.timestamp("ms", tz="UTC"))}


def break_store() -> None:
    """The first "complete" is written, and like all other appends not answered until the outage is over."""
    create, began_s = LocalStore.create, [0.0]

    def unanswered(store: LocalStore, path: str, data: bytes) -> None:
        if "decisions/" in path and not began_s[0] and b'"complete"' in data:
            create(store, path, data)
            began_s[0] = time.monotonic()
        if "decisions/" in path and began_s[0] and time.monotonic() - began_s[0] < OUTAGE_S:
            raise StoreError("connection timed out", where=path)
        create(store, path, data)

    LocalStore.create = unanswered  # type: ignore[method-assign]


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments as of counting.build."""
    if "tidegate.spark.driver" in " ".join(sys.orig_argv):
        break_store()
    p = Pipeline()
    source = DataGen(rows, SCHEMA, rows=int(args["rows"]), splits=2, rate=float(args["rate"]), batch_rows=256)
    (
        p.read(source, uid="numbers")
        .with_watermark("ts", "0 s")
        .group_by("k")
        .window(tumbling("1 s"))
        .agg(n=count(), total=sum("v"), uid="per-second")
        .write(Parquet(str(args["out"])), uid="out")
    )
    return p
