"""Every built-in aggregate passes the suite for aggregates."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
from test_every_aggregate import AGGREGATES, INPUT, Row

from tidegate.api.aggregates import Aggregate
from tidegate.testing import AggregateConformance
from tidegate.testing.aggregate_conformance import Rows

COLUMNS = pa.schema([INPUT.field(name) for name in "ifsdb"])
NUMBERS = [None, -5, 3, 3, 0, 4, -1]
FLOATS = [1.5, None, math.nan, -2.5, math.inf, 0.0]
TEXTS = ["", "x", None, "yy", "zzz", "x", "b"]
DECIMALS = [Decimal(cents).scaleb(-2) for cents in (-500, 17, 17, 230)] + [None]


class BuiltIn(AggregateConformance):
    """One of `AGGREGATES`."""

    name: str

    def make_aggregate(self) -> Aggregate:
        """See `AggregateConformance`."""
        made: Aggregate = AGGREGATES[self.name][0]
        return made

    def make_input(self) -> pa.RecordBatch:
        """See `AggregateConformance`."""
        values = (NUMBERS, FLOATS, TEXTS, DECIMALS, [True, None, False, True])
        arrays = [
            pa.array([column[n % len(column)] for n in range(30)], field.type)
            for column, field in zip(values, COLUMNS, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=COLUMNS)

    def expected(self, rows: Rows) -> object:
        """See `AggregateConformance`."""
        numbered: Any = enumerate(rows)
        return AGGREGATES[self.name][1]([Row(n, None, row["time"], *(row[c] for c in "ifsdb")) for n, row in numbered])


for _name in AGGREGATES:
    _class = f"Test{_name.title().replace('_', '')}"
    globals()[_class] = type(_class, (BuiltIn,), {"name": _name})
