"""Numbers, a few at a time: a job that is there to be started, asked and stopped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tidegate import DataGen, Parquet, Pipeline


def build(args: Mapping[str, Any]) -> Pipeline:
    """The pipeline.

    Args:
        args: `out`: folder of the table; `rows`: how many, None: no end; `rate`: rows per second.
    """
    p = Pipeline()
    schema = pa.schema([("n", pa.int64())])
    numbers = DataGen(lambda n: {"n": n}, schema, rows=args.get("rows"), rate=float(args["rate"]), batch_rows=20)
    p.read(numbers, uid="numbers").write(Parquet(args["out"]), uid="table")
    return p
