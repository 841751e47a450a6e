"""A set of keys of one or more columns, and the rows and files that may hold one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

Bounds = Mapping[str, tuple[Any, Any]]
"""Column -> smallest and largest value of it in a file, as Python values; of dates, days since 1970-01-01."""


class KeySet:
    """Keys, found by a number for each prefix of columns, so that no values are combined and no hash can collide.

    Args:
        keys: a column for each key column, without nulls; keys may be repeated.

    Attributes:
        names, types: of the key columns.
    """

    def __init__(self, keys: pa.Table) -> None:
        self.names: Sequence[str] = keys.column_names
        self.types: Sequence[pa.DataType] = keys.schema.types
        columns = {name: keys[name].combine_chunks() for name in self.names}
        self._ordered = {name: ordered(values) for name, values in columns.items() if has_plain_order(values.type)}
        self._values: list[pa.Array] = []
        self._numbers: list[npt.NDArray[np.int64]] = []
        codes = np.zeros(keys.num_rows, np.int64)
        for name in self.names:
            values = pc.unique(columns[name])
            codes = codes * len(values) + _numbers_of(columns[name], values)
            # Numbered densely again, so that the codes of the next prefix do not overflow.
            known, codes = np.unique(codes, return_inverse=True)
            self._values.append(values)
            self._numbers.append(known)
        self.count = len(self._numbers[-1])
        self._ends = self.bounds()

    def holds(self, columns: Sequence[pa.Array]) -> npt.NDArray[np.bool_]:
        """Return which rows have a key of the set. A row with a null has none.

        Args:
            columns: the key columns in the order of `names`, with `types`.
        """
        rows = len(columns[0])
        found = np.ones(rows, bool)
        codes = np.zeros(rows, np.int64)
        for column, values, known in zip(columns, self._values, self._numbers, strict=True):
            numbers = _numbers_of(column, values)
            found &= numbers >= 0
            codes = codes * len(values) + numbers
            at = np.minimum(np.searchsorted(known, codes), max(len(known) - 1, 0))
            found &= known[at] == codes if len(known) else False
            codes = at.astype(np.int64)
        return found

    def overlaps(self, other: pa.Table) -> bool:
        """Return whether one of these keys is in the set."""
        return bool(self.holds([other[name].combine_chunks() for name in self.names]).any())

    def bounds(self) -> Bounds:
        """Return the smallest and largest value of each column whose values have a plain order."""
        found = {}
        for name, values in self._ordered.items():
            if len(values):
                ends = pc.min_max(values)
                found[name] = (ends["min"].as_py(), ends["max"].as_py())
        return found

    def may_be_within(self, bounds: Bounds) -> bool:
        """Return whether a file with these bounds may have a key of the set. Columns without bounds exclude nothing.

        Args:
            bounds: only of columns whose values have a plain order.
        """
        # Compared with the bounds of all keys first: most files of a large table differ there.
        ends = ((self._ends[name], bounds[name]) for name in bounds if name in self._ends)
        if any(high < smallest or low > largest for (smallest, largest), (low, high) in ends):
            return False
        inside: pa.Array | None = None
        for name, (low, high) in bounds.items():
            column = self._ordered[name]
            kind = column.type
            here = pc.and_(pc.greater_equal(column, pa.scalar(low, kind)), pc.less_equal(column, pa.scalar(high, kind)))
            inside = here if inside is None else pc.and_(inside, here)
        return inside is None or bool(pc.any(inside).as_py())


def has_plain_order(kind: pa.DataType) -> bool:
    """Return whether files state bounds for this type that every writer means in the same way."""
    return pt.is_integer(kind) or pt.is_date(kind) or pt.is_string(kind) or pt.is_large_string(kind)


def ordered(values: pa.Array | pa.ChunkedArray) -> Any:
    """Return values as bounds hold them: dates as days, because Python's calendar lacks years that files may have."""
    return values.cast(pa.int32()) if pt.is_date32(values.type) else values


def _numbers_of(column: pa.Array, values: pa.Array) -> npt.NDArray[np.int64]:
    """Return the index in `values` for each value of the column; -1: it is not there."""
    found: npt.NDArray[np.int64] = (
        pc.fill_null(pc.index_in(column, value_set=values), -1).to_numpy(zero_copy_only=False).astype(np.int64)
    )
    return found
