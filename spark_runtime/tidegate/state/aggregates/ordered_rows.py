"""The first rows of each entry in some order: `first`, `last`, `min_by`, `max_by`, `top_n`, `collect`, and the rows of
`.top_n(...)`.

`numbers` uses it for min and max of strings, binary and decimals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import PipelineError
from tidegate.state.aggregates.aggregation import (
    AggregateArguments,
    AggregateFunction,
    Aggregation,
    is_sortable,
)
from tidegate.state.aggregates.row_log import (
    Columns,
    RowLog,
    Rows,
    as_lists,
    kept_columns,
    kept_lists,
    kept_rows,
    one_or_null,
    order_keys,
    without_nulls,
)
from tidegate.state.copy_on_write import CopyOnWriteArrays, Entries
from tidegate.state.keys.key_bytes import Int64s, valid_mask
from tidegate.state.keys.key_types import stored_array, stored_type
from tidegate.state.numba_kernels import kernel

SPREAD = 8
"""Entries from the first to the last, for each row, up to which the best rows are found without sorting."""


@dataclass(frozen=True)
class Order:
    """Order of rows, and the number of rows to keep.

    Attributes:
        by_value: without an ordering column, the value orders.
        has_values: rows without a value are left out.
        descends: the first ordering column is descending.
        last_wins: of equal rows, the last to arrive comes first.
        keeps_all: there is no limit.
    """

    by_value: bool = False
    has_values: bool = False
    descends: bool = False
    last_wins: bool = False
    keeps_all: bool = False


class BestRows:
    """The first rows of each entry in an order.

    Rows whose ordering value is null are left out. Equal rows are ordered by event time, if it orders too, then by
    arrival; rows without event time come last.
    """

    def __init__(self, aggregation: Aggregation, order: Order, *, is_list: bool) -> None:
        """Create the fold. Args: is_list: an entry may have several rows."""
        self._output = aggregation.output
        self._order = order
        self._orders = aggregation.orders or int(order.by_value)
        self._limit = None if order.keeps_all else aggregation.n or 1
        self._is_list = is_list

    def rows(self, entries: Entries, columns: Sequence[pa.Array]) -> Rows:
        """See `Fold`."""
        arrays = [stored_array(column) for column in columns]
        first = len(arrays) - self._orders
        wanted = arrays[first : first + 1]
        wanted += arrays[:1] if self._order.has_values else []
        return without_nulls(entries, arrays, wanted)

    def fold(self, entries: Entries, columns: Columns) -> Rows:
        """See `Fold`."""
        keys = [_nulls_last(column) for column in columns[len(columns) - self._orders :]]
        if self._order.descends and keys:
            # The complement reverses the order. A negation would overflow for the lowest int64.
            keys[0] = ~keys[0]
        order = self._best(entries, keys) if self._limit == 1 else None
        if order is None:
            order = self._sorted(entries, keys)
        ordered = entries[order]
        taken = pa.array(order)
        return ordered, [column.take(taken) for column in columns]

    def result(self, columns: Columns, offsets: Int64s) -> pa.Array:
        """See `Fold`."""
        return as_lists(columns[0], offsets, self._output) if self._is_list else one_or_null(columns[0], offsets)

    def _best(self, entries: Entries, keys: Sequence[Int64s]) -> Int64s | None:
        """Return the first row of each entry, ascending by entry, without sorting. None: the entries are far apart."""
        low, high = int(entries.min()), int(entries.max())
        if high - low >= SPREAD * len(entries) or len(keys) > 2:
            return None
        no_key = np.zeros(0, np.int64)
        first, second = (*keys, no_key, no_key)[:2]
        best = np.full(high - low + 1, -1, np.int64)
        _first_rows(np.asarray(entries, np.int32), low, first, second, self._order.last_wins, best)
        return best[best >= 0]

    def _sorted(self, entries: Entries, keys: Sequence[Int64s]) -> Int64s:
        """Return the first rows of each entry in their order, ascending by entry."""
        places = np.arange(len(entries))
        # lexsort sorts by its last key first, and keeps the order of equal rows.
        by: list[npt.NDArray[Any]] = [*reversed(keys), entries]
        order = np.lexsort([-places, *by] if self._order.last_wins else by)
        if self._limit is None:
            return order
        starts = np.flatnonzero(np.diff(entries[order], prepend=-1))
        ranks = places - np.repeat(starts, np.diff(np.append(starts, len(order))))
        return order[ranks < self._limit]


class BestStructs(BestRows):
    """The first rows as a list of structs, for rows of several columns."""

    def result(self, columns: Columns, offsets: Int64s) -> pa.Array:
        """See `Fold`."""
        fields = list(self._output.value_type)
        rows = pa.StructArray.from_arrays(columns[: len(fields)], fields=fields)
        return as_lists(rows, offsets, self._output)


@kernel("void(i4[], i8, i8[], i8[], b1, i8[]!)")
def _first_rows(entries: Any, low: Any, first: Any, second: Any, last_wins: Any, best: Any) -> None:
    """Write the row with the least keys of each entry, minus `low`. Empty keys do not order; of equal rows, the first
    or the last to arrive is taken."""
    for i in range(len(entries)):
        entry = entries[i] - low
        j = best[entry]
        if j < 0:
            best[entry] = i
            continue
        ahead = np.int64(0)
        if len(first):
            ahead = np.int64(first[i] < first[j]) - np.int64(first[i] > first[j])
        if ahead == 0 and len(second):
            ahead = np.int64(second[i] < second[j]) - np.int64(second[i] > second[j])
        if ahead > 0 or (ahead == 0 and last_wins):
            best[entry] = i


def _nulls_last(column: pa.Array) -> Int64s:
    keys = order_keys(column)
    return np.where(valid_mask(column), keys, np.iinfo(np.int64).max) if column.null_count else keys


def _one(name: str, order: Order, *, by_time: bool = False) -> AggregateFunction:
    def accumulator(aggregation: Aggregation, cells: CopyOnWriteArrays) -> RowLog:
        return RowLog(aggregation, BestRows(aggregation, order, is_list=False), is_list=False)

    return AggregateFunction(
        name=name,
        result_type=lambda types, _: stored_type(types[0]),
        state_schema=kept_columns,
        accumulator=accumulator,
        by="optional" if by_time else "required",
        by_time=by_time,
    )


def _top(name: str, order: Order) -> AggregateFunction:
    def result_type(types: Sequence[pa.DataType], arguments: AggregateArguments) -> pa.DataType | None:
        return pa.list_(stored_type(types[0])) if arguments.orders or is_sortable(types[0]) else None

    def accumulator(aggregation: Aggregation, cells: CopyOnWriteArrays) -> RowLog:
        return RowLog(aggregation, BestRows(aggregation, order, is_list=True), is_list=True)

    def check(arguments: AggregateArguments) -> None:
        if not isinstance(arguments.n, int) or arguments.n < 1:
            raise PipelineError(
                f"top_n cannot keep {arguments.n!r} rows", remedy='Pass a positive integer: top_n("price", 3)'
            )

    return AggregateFunction(
        name=name,
        result_type=result_type,
        state_schema=kept_lists,
        accumulator=accumulator,
        check=check,
        word="top_n",
        by="optional",
    )


def _rows(name: str, order: Order) -> AggregateFunction:
    def accumulator(aggregation: Aggregation, cells: CopyOnWriteArrays) -> RowLog:
        return RowLog(aggregation, BestStructs(aggregation, order, is_list=True), is_list=True)

    def refuse(arguments: AggregateArguments) -> None:
        raise PipelineError(
            f"{name} cannot be used as an aggregate", remedy='Write group_by("shop").top_n(3, by="price")'
        )

    return AggregateFunction(
        name=name,
        result_type=lambda types, _: None,  # `.top_n(...)` sets it, because the rows keep the names of its columns
        state_schema=kept_rows,
        accumulator=accumulator,
        check=refuse,
    )


def _collected(aggregation: Aggregation, cells: CopyOnWriteArrays) -> RowLog:
    return RowLog(aggregation, BestRows(aggregation, _ALL, is_list=True), is_list=True)


_ALL = Order(has_values=True, keeps_all=True)

FIRST = _one("first", Order(has_values=True), by_time=True)
LAST = _one("last", Order(has_values=True, descends=True, last_wins=True), by_time=True)
MIN_BY = _one("min_by", Order())
MAX_BY = _one("max_by", Order(descends=True))
TOP_N = _top("top_n", Order(by_value=True, descends=True))
BOTTOM_N = _top("bottom_n", Order(by_value=True))
TOP_ROWS = _rows("top_rows", Order(descends=True))
BOTTOM_ROWS = _rows("bottom_rows", Order())
COLLECT = AggregateFunction(
    name="collect",
    result_type=lambda types, _: pa.list_(stored_type(types[0])),
    state_schema=kept_lists,
    accumulator=_collected,
    by="optional",
    by_time=True,
)
