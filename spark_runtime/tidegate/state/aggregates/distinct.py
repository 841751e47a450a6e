"""Distinct values of each entry, kept as rows: `count_distinct` and `collect_set`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidegate.state.aggregates.aggregation import AggregateFunction, Aggregation, is_sortable
from tidegate.state.aggregates.row_log import (
    Columns,
    RowLog,
    Rows,
    as_lists,
    kept_lists,
    order_keys,
    without_nulls,
)
from tidegate.state.copy_on_write import CopyOnWriteArrays, Entries
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.keys.key_types import stored_array, stored_type


class DistinctValues:
    """The distinct values of each entry, ascending: their number, or all of them."""

    def __init__(self, output: pa.DataType, *, counts: bool) -> None:
        self._output = output
        self._counts = counts

    def rows(self, entries: Entries, columns: Sequence[pa.Array]) -> Rows:
        """See `Fold`."""
        arrays = [stored_array(columns[0])]
        return without_nulls(entries, arrays, arrays)

    def fold(self, entries: Entries, columns: Columns) -> Rows:
        """See `Fold`."""
        keys = order_keys(columns[0])
        order = np.lexsort((keys, entries))
        ordered, keys = entries[order], keys[order]
        differs = np.ones(len(order), np.bool_)
        differs[1:] = (ordered[1:] != ordered[:-1]) | (keys[1:] != keys[:-1])
        return ordered[differs], [columns[0].take(pa.array(order[differs]))]

    def result(self, columns: Columns, offsets: Int64s) -> pa.Array:
        """See `Fold`."""
        return pa.array(np.diff(offsets)) if self._counts else as_lists(columns[0], offsets, self._output)


def _counted(aggregation: Aggregation, cells: CopyOnWriteArrays) -> RowLog:
    return RowLog(aggregation, DistinctValues(aggregation.output, counts=True), is_list=True)


def _listed(aggregation: Aggregation, cells: CopyOnWriteArrays) -> RowLog:
    return RowLog(aggregation, DistinctValues(aggregation.output, counts=False), is_list=True)


COUNT_DISTINCT = AggregateFunction(
    name="count_distinct",
    result_type=lambda types, _: pa.int64() if is_sortable(types[0]) else None,
    state_schema=kept_lists,
    accumulator=_counted,
    any_order=True,
)
COLLECT_SET = AggregateFunction(
    name="collect_set",
    result_type=lambda types, _: pa.list_(stored_type(types[0])) if is_sortable(types[0]) else None,
    state_schema=kept_lists,
    accumulator=_listed,
    any_order=True,
)
