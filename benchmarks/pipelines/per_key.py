"""The pipeline of row `perkey` of `benchmarks/bench.py`: a running count and sum per key, from Parquet to Parquet.

It uses PySpark's `StatefulProcessor`, whose peer `engines/per_key_spark.py` runs the same processors, or a
`KeyedProcess`, whose peer is `engines/per_key_flink.py`.

Arguments: `input` and `output` (folders), `variant` ("rows", "pandas" or "process").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import tidegate

RESULT = "k BIGINT, n BIGINT, total BIGINT"
SCHEMA = pa.schema([pa.field(name, pa.int64()) for name in ("k", "n", "total")])


class RowTotals(StatefulProcessor):
    """A running count and sum of each key, from `Row` objects. Emits one result for each call."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self.totals = handle.getValueState("totals", "n BIGINT, total BIGINT")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Add the rows, and emit the totals."""
        n, total = self.totals.get() or (0, 0)
        for row in rows:
            n, total = n + 1, total + row.v
        self.totals.update((n, total))
        yield Row(k=key[0], n=n, total=total)


class FrameTotals(RowTotals):
    """The same from pandas frames."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Add the rows, and emit the totals."""
        n, total = self.totals.get() or (0, 0)
        for frame in rows:
            n, total = n + len(frame), total + int(frame["v"].sum())
        self.totals.update((n, total))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "total": [total]})


class BatchTotals(tidegate.KeyedProcess):
    """The same from whole batches. Emits one result for each row, as PyFlink's function does."""

    states = (tidegate.reducing_state("totals", {"n": "sum", "total": "sum"}),)

    def process(self, rows: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        """Add a batch, and emit the totals of each row's key."""
        totals = ctx.merging("totals")
        ones = pa.repeat(1, rows.batch.num_rows)
        totals.add(rows.keys, rows.owners, pa.record_batch([ones, rows.batch["v"]], names=["n", "total"]))
        found = totals.get(rows.keys).columns
        owners = pa.array(rows.owners)
        columns = [rows.batch["k"], found["n"].take(owners), found["total"].take(owners)]
        yield pa.record_batch(columns, schema=SCHEMA)


def build(args: Mapping[str, Any]) -> tidegate.Pipeline:
    """See the module."""
    p = tidegate.Pipeline()
    grouped = p.read(tidegate.Files(str(args["input"])), uid="rows").group_by("k")
    if args["variant"] == "process":
        totals = grouped.process(BatchTotals(), schema=SCHEMA, uid="totals")
    elif args["variant"] == "pandas":
        totals = grouped.transform_with_state_in_pandas(FrameTotals(), RESULT, "Update", "None", uid="totals")
    else:
        totals = grouped.transform_with_state(RowTotals(), RESULT, "Update", "None", uid="totals")
    totals.write(tidegate.Parquet(str(args["output"])), uid="out")
    return p
