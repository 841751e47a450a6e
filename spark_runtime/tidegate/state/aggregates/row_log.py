"""Aggregates that keep rows: what is added is appended, and folded whenever that has doubled it (S5.1).

Rows are Arrow columns that never change, so a frozen version is a reference to them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.state.aggregates.aggregation import LISTS, Aggregation, Selection, StateColumns
from tidegate.state.aggregates.folds import Columns, Fold, Rows, new_fold
from tidegate.state.arrow.array_limits import ArrayTooLarge
from tidegate.state.cells import Entries
from tidegate.state.keys.key_bytes import Int64s, valid_mask

FOLD_ROWS = 1 << 16
"""Rows are folded when as many have come since, or as many as were left by the last time if that is more."""


@dataclass(frozen=True)
class LoggedValues:
    """The columns of an aggregate, of some rows of a batch."""

    columns: tuple[pa.Array, ...]

    def part(self, start: int, stop: int) -> LoggedValues:
        """Rows start..stop."""
        return LoggedValues(tuple(column.slice(start, stop - start) for column in self.columns))


class RowLog:
    """See the module and `Accumulating`. State columns are lists where an entry may have several rows; else they are
    null where it has none."""

    def __init__(self, aggregation: Aggregation) -> None:
        self.state_schema = aggregation.state_schema()
        self._name = aggregation.name
        self._fold: Fold = new_fold(aggregation)
        self._is_list = aggregation.function in LISTS
        self._is_always_there = aggregation.function == "user"
        empty = [pa.nulls(0, type_) for type_ in _types(self.state_schema, self._is_list)]
        self._folded: Rows = (np.zeros(0, np.int32), empty)
        self._more: list[Rows] = []
        self._more_rows = 0

    def read(self, columns: Sequence[pa.Array]) -> LoggedValues:
        """The columns as they are."""
        return LoggedValues(tuple(columns))

    def add(self, entries: Entries, values: LoggedValues, known: int) -> None:
        """See `Accumulating`."""
        self._append(self._fold.rows(entries, values.columns))

    def merge(self, entries: Entries, columns: Sequence[pa.Array], known: int) -> None:
        """See `Accumulating`."""
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
        """See `Accumulating`."""
        columns, offsets = _selected(self._rows_of(entries), entries)
        return self._state_columns(columns, offsets)

    def result(self, entries: Selection) -> pa.Array:
        """See `Accumulating`."""
        return self._fold.result(*_selected(self._rows_of(entries), entries))

    def freeze(self) -> StateColumns:
        """See `Accumulating`. Folded by who reads it."""
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
        self._more_rows += count
        if self._more_rows >= max(FOLD_ROWS, len(self._folded[0])):
            self._all()

    def _rows_of(self, entries: Selection) -> Rows:
        """Folded rows, at least those of some entries. Few entries do not cost a fold of all."""
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
            self._folded = self._together(self._folded, self._more)
            self._more, self._more_rows = [], 0
        return self._folded

    def _together(self, folded: Rows, more: Sequence[Rows]) -> Rows:
        """Rows that were folded, and what came after them, folded."""
        every = [folded, *more] if len(folded[0]) else list(more)
        entries = np.concatenate([entries for entries, _ in every])
        try:
            columns = [
                pa.concat_arrays(list(arrays)) for arrays in zip(*(columns for _, columns in every), strict=True)
            ]
        except pa.ArrowInvalid as error:
            raise ArrayTooLarge(
                f"The rows that the aggregate {self._name!r} keeps do not fit into one array",
                cause=f"{error}; they are those of all keys of one window",
                remedy="Cast text and binary columns to large ones first: pc.field(...).cast(pa.large_string())",
            ) from error
        return self._fold.fold(entries, columns)

    def _state_columns(self, columns: Columns, offsets: Int64s) -> list[pa.Array]:
        if self._is_list:
            starts = pa.array(offsets.astype(np.int32))
            return [pa.ListArray.from_arrays(starts, column) for column in columns]
        there = np.diff(offsets) > 0
        if there.all():
            return columns
        rows = pa.array(offsets[:-1], mask=~there)
        return [column.take(rows) for column in columns]


def _types(schema: pa.Schema, is_list: bool) -> list[pa.DataType]:
    return [type_.value_type for type_ in schema.types] if is_list else list(schema.types)


def _selected(rows: Rows, entries: Selection) -> tuple[Columns, Int64s]:
    """Rows of some entries, one entry after the other, and where each entry's begin and end among them."""
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
