"""The pipeline of row `perkey` of `benchmarks/bench.py`: a running count and sum per key by PySpark's
`StatefulProcessor`, from Parquet to Parquet. The peer `engines/per_key_spark.py` runs the same processors.

Arguments: `input` and `output` (folders), `variant` ("rows" or "pandas").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import tidegate

RESULT = "k BIGINT, n BIGINT, total BIGINT"


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


def build(args: Mapping[str, Any]) -> tidegate.Pipeline:
    """See the module."""
    p = tidegate.Pipeline()
    grouped = p.read(tidegate.Files(str(args["input"])), uid="rows").group_by("k")
    if args["variant"] == "pandas":
        totals = grouped.transform_with_state_in_pandas(FrameTotals(), RESULT, "Update", "None", uid="totals")
    else:
        totals = grouped.transform_with_state(RowTotals(), RESULT, "Update", "None", uid="totals")
    totals.write(tidegate.Parquet(str(args["output"])), uid="out")
    return p
