"""Aggregates that keep rows: new rows are appended, and folded when their number has doubled or tripled (S5.1).

Rows are Arrow columns that never change, so a frozen version is a reference to them. A `Fold` decides which rows of an
entry are kept: the best of them, the distinct ones, their sum, or the states of a user aggregate. It works on whole
columns, for all entries at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tidegate.state.aggregates.aggregation import Aggregation, Selection, StateColumns
from tidegate.state.arrow.array_limits import ArrayTooLarge
from tidegate.state.copy_on_write import Entries
from tidegate.state.keys.key_bytes import CANONICAL_NAN_BITS, Int64s, fixed_values, valid_mask
from tidegate.state.keys.key_types import stored_array, stored_type

FOLD_ROWS = 1 << 16
"""New rows that cause a fold; more are needed if the last fold left more rows."""
KEEPS_MOST = 0.75
"""Share of rows that a fold keeps from which the next one waits for twice as many new rows: it copies them all, and
saves little memory."""
JOINED_PIECES = 8
"""Small pieces of rows that are joined to one, of at most `FOLD_ROWS` rows. A fold, a result or a snapshot reads all
pieces, so thousands of batches of a few rows must not stay apart. A row is joined five times at most, a large batch
never."""
_SIGN = np.int64(-(2**63))

Columns = list[pa.Array]
Rows = tuple[Entries, Columns]
"""Rows to keep: the entry of each, and their columns."""


class Fold(Protocol):
    """Decides which rows are kept, and computes results from them."""

    def rows(self, entries: Entries, columns: Sequence[pa.Array]) -> Rows:
        """Return the rows to keep from the rows of a batch."""

    def fold(self, entries: Entries, columns: Columns) -> Rows:
        """Return the fewest rows that represent these, ascending by entry; earlier rows come first. There is at least
        one.
        """

    def result(self, columns: Columns, offsets: Int64s) -> pa.Array:
        """Return a result for each of some entries; entry i has the folded rows offsets[i]:offsets[i + 1]."""


@dataclass(frozen=True)
class LoggedValues:
    """Columns of an aggregate, for some rows of a batch."""

    columns: tuple[pa.Array, ...]

    def part(self, start: int, stop: int) -> LoggedValues:
        """Return rows start..stop."""
        return LoggedValues(tuple(column.slice(start, stop - start) for column in self.columns))


class RowLog:
    """See the module and `AggregateState`.

    State columns are lists if an entry may have several rows; else they are null for an entry without a row.
    """

    reads = "columns"

    def __init__(self, aggregation: Aggregation, fold: Fold, *, is_list: bool, state_may_be_null: bool = False) -> None:
        """Create an empty log.

        Args:
            fold: decides which rows are kept.
            is_list: an entry may have several rows.
            state_may_be_null: a row of the state counts even if all its columns are null.
        """
        self.state_schema = aggregation.state_schema()
        self._name = aggregation.name
        self._fold = fold
        self._is_list = is_list
        self._is_always_there = state_may_be_null
        empty = [pa.nulls(0, type_) for type_ in _types(self.state_schema, self._is_list)]
        self._folded: Rows = (np.zeros(0, np.int32), empty)
        self._more: list[Rows] = []
        self._levels: list[int] = []  # of each piece in `_more`: how many times it was joined
        self._more_rows = 0
        self._next_fold_rows = FOLD_ROWS

    def read(self, columns: Sequence[pa.Array]) -> LoggedValues:
        """Return the columns unchanged."""
        return LoggedValues(tuple(columns))

    def add(self, entries: Entries, values: LoggedValues, known: int) -> None:
        """See `AggregateState`."""
        self._append(self._fold.rows(entries, values.columns))

    def merge(self, entries: Entries, columns: Sequence[pa.Array], known: int) -> None:
        """See `AggregateState`."""
        if self._is_list:
            lengths = columns[0].value_lengths().fill_null(0).to_numpy()
            self._append((np.repeat(entries, lengths), [column.flatten() for column in columns]))
            return
        there = np.full(len(entries), self._is_always_there)
        for column in columns:
            there |= valid_mask(column)
        if there.all():
            self._append((entries, list(columns)))
        else:
            self._append((entries[there], [column.filter(pa.array(there)) for column in columns]))

    def state(self, entries: Selection) -> list[pa.Array]:
        """See `AggregateState`."""
        columns, offsets = _selected(self._rows_of(entries), entries)
        return self._state_columns(columns, offsets)

    def result(self, entries: Selection) -> pa.Array:
        """See `AggregateState`."""
        return self._fold.result(*_selected(self._rows_of(entries), entries))

    def freeze(self) -> StateColumns:
        """See `AggregateState`. The reader folds the rows."""
        folded, more, lock = [self._folded], list(self._more), threading.Lock()

        def read(arrays: object, start: int, stop: int) -> list[pa.Array]:
            with lock:
                if more:
                    folded[0] = self._together(folded[0], more)
                    more.clear()
            columns, offsets = _selected(folded[0], slice(start, stop))
            return self._state_columns(columns, offsets)

        return read

    def _append(self, rows: Rows) -> None:
        count = len(rows[0])
        if not count:
            return
        self._more.append(rows)
        self._levels.append(0)
        self._more_rows += count
        if self._more_rows >= self._next_fold_rows:
            self._all()
        else:
            self._join_pieces()

    def _join_pieces(self) -> None:
        more, levels = self._more, self._levels
        while len(levels) >= JOINED_PIECES and levels[-JOINED_PIECES] == levels[-1]:
            if sum(len(entries) for entries, _ in more[-JOINED_PIECES:]) > FOLD_ROWS:
                return
            more[-JOINED_PIECES:] = [self._joined(more[-JOINED_PIECES:])]
            levels[-JOINED_PIECES:] = [levels[-1] + 1]

    def _rows_of(self, entries: Selection) -> Rows:
        """Return folded rows of some entries, and perhaps of others. For few entries, it does not fold all rows."""
        if isinstance(entries, slice) or not self._more or not len(entries):
            return self._all()
        wanted = np.unique(entries)
        columns, offsets = _selected(self._folded, wanted)
        rows: list[Rows] = [(np.repeat(wanted, np.diff(offsets)), columns)]
        for held, more in self._more:
            mine = np.isin(held, wanted)
            if mine.any():
                rows.append((held[mine], [column.filter(pa.array(mine)) for column in more]))
        return self._together(rows[0], rows[1:]) if len(rows) > 1 else rows[0]

    def _all(self) -> Rows:
        if self._more:
            rows = len(self._folded[0]) + self._more_rows
            self._folded = self._together(self._folded, self._more)
            self._more, self._levels, self._more_rows = [], [], 0
            kept = len(self._folded[0])
            self._next_fold_rows = max(FOLD_ROWS, 2 * kept if kept > KEEPS_MOST * rows else kept)
        return self._folded

    def _together(self, folded: Rows, more: Sequence[Rows]) -> Rows:
        """Return the fold of folded rows and the rows added since."""
        every = [folded, *more] if len(folded[0]) else list(more)
        return self._fold.fold(*self._joined(every))

    def _joined(self, pieces: Sequence[Rows]) -> Rows:
        """Return the rows of all pieces, in their order."""
        entries = np.concatenate([entries for entries, _ in pieces])
        try:
            columns = [
                pa.concat_arrays(list(arrays)) for arrays in zip(*(columns for _, columns in pieces), strict=True)
            ]
        except pa.ArrowInvalid as error:
            raise ArrayTooLarge(
                f"the rows that aggregate {self._name!r} stores do not fit into one Arrow array",
                cause=f"the rows of all keys of one window must fit into one array: {error}",
                remedy="Cast text and binary columns to large types first: pc.field(...).cast(pa.large_string())",
            ) from error
        return entries, columns

    def _state_columns(self, columns: Columns, offsets: Int64s) -> list[pa.Array]:
        if self._is_list:
            starts = pa.array(offsets.astype(np.int32))
            return [pa.ListArray.from_arrays(starts, column) for column in columns]
        there = np.diff(offsets) > 0
        if there.all():
            return columns
        rows = pa.array(offsets[:-1], mask=~there)
        return [column.take(rows) for column in columns]


def kept_columns(aggregation: Aggregation) -> pa.Schema:
    """Return the columns of a state of one row for each entry: its value, then the ordering columns. Null: no row."""
    return _kept(aggregation, [f"{aggregation.function.name}:{aggregation.name}"], is_list=False)


def kept_lists(aggregation: Aggregation) -> pa.Schema:
    """Return the columns of a state of several rows for each entry: lists."""
    return _kept(aggregation, [f"{aggregation.function.name}:{aggregation.name}"], is_list=True)


def kept_rows(aggregation: Aggregation) -> pa.Schema:
    """Return the columns of a state of several rows of several columns for each entry: lists."""
    prefix = f"{aggregation.function.name}:{aggregation.name}"
    return _kept(aggregation, [f"{prefix}:{column}" for column in aggregation.columns], is_list=True)


def _kept(aggregation: Aggregation, names: list[str], *, is_list: bool) -> pa.Schema:
    parts = ("by", "then")[: aggregation.orders]
    names = [*names, *(f"{aggregation.function.name}_{part}:{aggregation.name}" for part in parts)]
    types = [stored_type(type_) for type_ in aggregation.types]
    return pa.schema(zip(names, [pa.list_(type_) for type_ in types] if is_list else types, strict=True))


def order_keys(array: pa.Array) -> Int64s:
    """Return keys that are larger where the value is larger, and equal where it is equal: NaN is greatest, -0.0 is 0.0.

    Keys are comparable within one call only. Arbitrary where null.
    """
    array = stored_array(array)
    type_ = array.type
    if pt.is_floating(type_):
        return _of_floats(array.cast(pa.float64()))
    if pt.is_boolean(type_):
        return fixed_values(array.cast(pa.int8()))
    if pt.is_uint64(type_):
        # With the highest bit flipped, unsigned numbers have the order of signed ones.
        return fixed_values(array) ^ _SIGN
    if pt.is_integer(type_) or pt.is_temporal(type_):
        return fixed_values(array)
    if pt.is_decimal(type_) and type_.bit_width < 128:
        array = array.cast(pa.decimal128(type_.precision, type_.scale))
    ranks: Int64s = pc.rank(array, tiebreaker="dense").to_numpy().astype(np.int64)
    return ranks


def _of_floats(array: pa.Array) -> Int64s:
    # -0.0 + 0.0 is 0.0, so that both zeros have the same bits. The sum is also a copy that may be changed.
    values: Any = array.to_numpy(zero_copy_only=False) + 0.0
    bits = values.view(np.int64)
    bits[np.isnan(values)] = CANONICAL_NAN_BITS
    # The bits of negative floats ascend with their magnitude, so that their order has to be reversed.
    keys: Int64s = np.where(bits < 0, ~(bits ^ _SIGN), bits)
    return keys


def without_nulls(entries: Entries, arrays: Columns, wanted: Sequence[pa.Array]) -> Rows:
    """Return the rows in which none of `wanted` is null."""
    if not any(array.null_count for array in wanted):
        return entries, arrays
    keep: npt.NDArray[np.bool_] = np.ones(len(entries), np.bool_)
    for array in wanted:
        keep &= valid_mask(array)
    return entries[keep], [array.filter(pa.array(keep)) for array in arrays]


def one_or_null(values: pa.Array, offsets: Int64s) -> pa.Array:
    """Return the one value of each entry, null for an entry without one."""
    there = np.diff(offsets) > 0
    return values if there.all() else values.take(pa.array(offsets[:-1], mask=~there))


def as_lists(values: pa.Array, offsets: Int64s, type_: pa.DataType) -> pa.Array:
    """Return a list of the values of each entry, of type `type_`."""
    lists = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)
    return lists if lists.type == type_ else pc.cast(lists, type_)


def _types(schema: pa.Schema, is_list: bool) -> list[pa.DataType]:
    return [type_.value_type for type_ in schema.types] if is_list else list(schema.types)


def _selected(rows: Rows, entries: Selection) -> tuple[Columns, Int64s]:
    """Return the rows of some entries, one entry after the other, and the bounds of each entry among them."""
    held, columns = rows
    if isinstance(entries, slice):
        first, last = np.searchsorted(held, [entries.start, entries.stop])
        counts = np.bincount(held[first:last] - entries.start, minlength=entries.stop - entries.start)
        return [column.slice(first, last - first) for column in columns], _offsets(counts)
    starts, ends = np.searchsorted(held, entries, "left"), np.searchsorted(held, entries, "right")
    counts = ends - starts
    offsets = _offsets(counts)
    picked = pa.array(np.arange(offsets[-1]) + np.repeat(starts - offsets[:-1], counts))
    return [column.take(picked) for column in columns], offsets


def _offsets(counts: Int64s) -> Int64s:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
