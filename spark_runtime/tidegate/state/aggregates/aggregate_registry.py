"""Makes the accumulator of an aggregation."""

from __future__ import annotations

from typing import cast

from tidegate.state.aggregates.accumulators import Accumulator, Function
from tidegate.state.aggregates.aggregation import Accumulating, Aggregation
from tidegate.state.aggregates.moments import Moments
from tidegate.state.aggregates.row_log import RowLog
from tidegate.state.cells import Cells


def new_accumulator(aggregation: Aggregation, cells: Cells) -> Accumulating:
    """An empty one, with its numbers, where it keeps some, in `cells`."""
    if not aggregation.is_numeric:
        return RowLog(aggregation)
    if aggregation.function in ("var", "stddev"):
        return Moments(aggregation, cells)
    type_ = aggregation.types[0] if aggregation.types else None
    return Accumulator(aggregation.name, cast(Function, aggregation.function), type_, aggregation.output, cells)
