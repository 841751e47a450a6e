"""How rows that an aggregate keeps as such are folded: the best of each entry, the distinct ones, their sum, or what a
user's own aggregate makes of them. By sorting whole columns, for all entries at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tidegate.errors import PipelineError
from tidegate.state.aggregates.accumulators import SumOverflowError
from tidegate.state.aggregates.aggregation import BY_ANOTHER, LISTS, ROWS, SETS, Aggregation, ArrowAggregate, Groups
from tidegate.state.cells import Entries
from tidegate.state.keys.key_bytes import CANONICAL_NAN_BITS, Int64s, fixed_values, valid_mask
from tidegate.state.keys.key_types import stored_array

_SIGN = np.int64(-(2**63))


def order_keys(array: pa.Array) -> Int64s:
    """Larger where the value is larger, equal where it is equal: NaN is greatest, -0.0 is 0.0. Comparable within this
    call. Anything where null."""
    array = stored_array(array)
    type_ = array.type
    if pt.is_floating(type_):
        return _of_floats(array.cast(pa.float64()))
    if pt.is_boolean(type_):
        return fixed_values(array.cast(pa.int8()))
    if pt.is_uint64(type_):
        return fixed_values(array) ^ _SIGN
    if pt.is_integer(type_) or pt.is_temporal(type_):
        return fixed_values(array)
    if pt.is_decimal(type_) and type_.bit_width < 128:
        array = array.cast(pa.decimal128(type_.precision, type_.scale))
    ranks: Int64s = pc.rank(array, tiebreaker="dense").to_numpy().astype(np.int64)
    return ranks


def _of_floats(array: pa.Array) -> Int64s:
    values: Any = array.to_numpy(zero_copy_only=False) + 0.0
    bits = values.view(np.int64)
    bits[np.isnan(values)] = CANONICAL_NAN_BITS
    keys: Int64s = np.where(bits < 0, ~(bits ^ _SIGN), bits)
    return keys


Columns = list[pa.Array]
Rows = tuple[Entries, Columns]
"""Rows to keep: the entry of each, and their columns."""


class Fold(Protocol):
    """What is kept of rows, and what comes of them."""

    def rows(self, entries: Entries, columns: Sequence[pa.Array]) -> Rows:
        """What is to be kept of rows of a batch."""

    def fold(self, entries: Entries, columns: Columns) -> Rows:
        """As few rows as stand for these, ascending by entry; earlier ones come first. There is at least one."""

    def result(self, columns: Columns, offsets: Int64s) -> pa.Array:
        """A result for each of some entries; entry i has the folded rows offsets[i]:offsets[i + 1]."""


def new_fold(aggregation: Aggregation) -> Fold:
    """The fold of an aggregation that is not numeric."""
    if aggregation.function == "user":
        assert aggregation.user is not None
        return UserFold(aggregation.name, aggregation.user, aggregation.output)
    if aggregation.function == "sum":
        return DecimalSum(aggregation.name, aggregation.output)
    return Distinct(aggregation) if aggregation.function in SETS else Best(aggregation)


class Best:
    """The first rows of each entry in some order: first, last, min, max, min_by, max_by, top_n, bottom_n, and with no
    limit collect. Rows whose ordering value is null are left out; of equal rows earlier ones come first, in event time
    where that orders too, and those without one last."""

    def __init__(self, aggregation: Aggregation) -> None:
        function = aggregation.function
        self._output = aggregation.output
        by_value = function not in BY_ANOTHER or function in ("top_n", "bottom_n")
        self._orders = aggregation.orders or int(by_value)
        self._values_only = function in ("first", "last", "collect")
        self._descends = function in ("last", "max", "max_by", "top_n", "top_rows")
        self._last_wins = function == "last"
        self._limit = None if function == "collect" else aggregation.n or 1
        self._gives_lists = function in LISTS
        self._names = aggregation.columns if function in ROWS else ()

    def rows(self, entries: Entries, columns: Sequence[pa.Array]) -> Rows:
        """See `Fold`."""
        arrays = [stored_array(column) for column in columns]
        first = len(arrays) - self._orders
        wanted = arrays[first : first + 1]
        wanted += arrays[:1] if self._values_only else []
        return _without_nulls(entries, arrays, wanted)

    def fold(self, entries: Entries, columns: Columns) -> Rows:
        """See `Fold`."""
        places = np.arange(len(entries))
        keys = [_nulls_last(column) for column in columns[len(columns) - self._orders :]]
        if self._descends and keys:
            keys[0] = ~keys[0]
        by: list[npt.NDArray[np.int64]] = [-places if self._last_wins else places, *reversed(keys)]
        order = np.lexsort([*by, entries.astype(np.int64)])
        ordered = entries[order]
        if self._limit is not None:
            starts = np.flatnonzero(np.diff(ordered, prepend=-1))
            ranks = places - np.repeat(starts, np.diff(np.append(starts, len(ordered))))
            order, ordered = order[ranks < self._limit], ordered[ranks < self._limit]
        taken = pa.array(order)
        return ordered, [column.take(taken) for column in columns]

    def result(self, columns: Columns, offsets: Int64s) -> pa.Array:
        """See `Fold`."""
        if not self._gives_lists:
            return _one_or_null(columns[0], offsets)
        values = columns[0]
        if self._names:
            fields = list(self._output.value_type)
            values = pa.StructArray.from_arrays(columns[: len(fields)], fields=fields)
        return _lists(values, offsets, self._output)


class Distinct:
    """The different values of each entry, ascending: their number, or all of them."""

    def __init__(self, aggregation: Aggregation) -> None:
        self._output = aggregation.output
        self._counts = aggregation.function == "count_distinct"

    def rows(self, entries: Entries, columns: Sequence[pa.Array]) -> Rows:
        """See `Fold`."""
        arrays = [stored_array(columns[0])]
        return _without_nulls(entries, arrays, arrays)

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
        return pa.array(np.diff(offsets)) if self._counts else _lists(columns[0], offsets, self._output)


class DecimalSum:
    """An exact sum of decimals, of the widest precision of 128 bits."""

    def __init__(self, name: str, output: pa.DataType) -> None:
        self._name, self._output = name, output
        self._wide = pa.decimal256(76, output.scale)

    def rows(self, entries: Entries, columns: Sequence[pa.Array]) -> Rows:
        """See `Fold`."""
        arrays = [columns[0].cast(self._output)]
        return _without_nulls(entries, arrays, arrays)

    def fold(self, entries: Entries, columns: Columns) -> Rows:
        """See `Fold`. Raises SumOverflowError."""
        table = pa.table({"entry": pa.array(entries), "value": columns[0].cast(self._wide)})
        sums = table.group_by("entry", use_threads=False).aggregate([("value", "sum")]).sort_by("entry")
        try:
            total = sums["value_sum"].combine_chunks().cast(self._output)
        except pa.ArrowInvalid as error:
            raise SumOverflowError(
                f"The sum {self._name!r} has left the range of {self._output}",
                cause=str(error),
                remedy="Sum a float: cast the column to double first",
            ) from error
        return sums["entry"].to_numpy(), [total]

    def result(self, columns: Columns, offsets: Int64s) -> pa.Array:
        """See `Fold`."""
        return _one_or_null(columns[0], offsets)


class UserFold:
    """States of a user's own aggregate. What it gives is held against what it declares."""

    def __init__(self, name: str, user: ArrowAggregate, output: pa.DataType) -> None:
        self._user, self._output = user, output
        self._where = f"aggregate {name!r} ({type(user).__name__})"

    def rows(self, entries: Entries, columns: Sequence[pa.Array]) -> Rows:
        """See `Fold`."""
        different, groups = _numbered(entries)
        states = self._user.accumulate(list(columns), groups, len(different))
        return different, self._checked(states, "accumulate", len(different))

    def fold(self, entries: Entries, columns: Columns) -> Rows:
        """See `Fold`."""
        different, groups = _numbered(entries)
        states = pa.RecordBatch.from_arrays(columns, schema=self._user.state)
        order = np.argsort(groups, kind="stable")
        states = states.take(pa.array(order))
        merged = self._user.merge(states, groups[order], len(different))
        return different, self._checked(merged, "merge", len(different))

    def result(self, columns: Columns, offsets: Int64s) -> pa.Array:
        """See `Fold`."""
        count = len(columns[0])
        found = self._user.result(pa.RecordBatch.from_arrays(columns, schema=self._user.state)) if count else None
        if found is None:
            found = pa.nulls(0, self._output)
        if not isinstance(found, pa.Array) or found.type != self._output or len(found) != count:
            given = f"{found.type} of {len(found)}" if isinstance(found, pa.Array) else type(found).__name__
            raise self._refused("result", f"it gave {given}, wanted are {count} of {self._output}")
        return _one_or_null(found, offsets)

    def _checked(self, states: object, method: str, count: int) -> Columns:
        if not isinstance(states, pa.RecordBatch):
            raise self._refused(method, f"it gave a {type(states).__name__}")
        if states.schema.names != self._user.state.names or states.schema.types != self._user.state.types:
            raise self._refused(method, f"its columns are {states.schema}, declared are {self._user.state}")
        if states.num_rows != count:
            raise self._refused(method, f"it gave {states.num_rows} rows for {count} groups")
        return list(states.columns)

    def _refused(self, method: str, cause: str) -> PipelineError:
        return PipelineError(
            f"{method} of a user's aggregate broke its contract",
            where=self._where,
            cause=cause,
            remedy="Give one row of `state` for each group, and of the result one value for each state",
        )


def _nulls_last(column: pa.Array) -> Int64s:
    keys = order_keys(column)
    return np.where(valid_mask(column), keys, np.iinfo(np.int64).max) if column.null_count else keys


def _numbered(entries: Entries) -> tuple[Entries, Groups]:
    different, groups = np.unique(entries, return_inverse=True)
    return different, groups.astype(np.int32)


def _without_nulls(entries: Entries, arrays: Columns, wanted: Sequence[pa.Array]) -> Rows:
    if not any(array.null_count for array in wanted):
        return entries, arrays
    keep: npt.NDArray[np.bool_] = np.ones(len(entries), np.bool_)
    for array in wanted:
        keep &= valid_mask(array)
    return entries[keep], [array.filter(pa.array(keep)) for array in arrays]


def _one_or_null(values: pa.Array, offsets: Int64s) -> pa.Array:
    """The one value of each entry, null where there is none."""
    there = np.diff(offsets) > 0
    return values if there.all() else values.take(pa.array(offsets[:-1], mask=~there))


def _lists(values: pa.Array, offsets: Int64s, type_: pa.DataType) -> pa.Array:
    lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)
    return lists if lists.type == type_ else pc.cast(lists, type_)
