"""Folds of numbers into arrays that others keep: the columns of a reducing state."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from tidegate.state.aggregates.numbers import Function, count_rows, number_kernel, read_values, sum_overflow
from tidegate.state.copy_on_write import Entries
from tidegate.state.keyed_state import Reduction
from tidegate.state.keys.key_bytes import Bytes


class NumberFold:
    """Counts numbers, or adds them up, or keeps the least or greatest.

    Attributes:
        dtype: of the array of results.
        start: content of an entry before its first row.
        starts_seen: 1: an entry has a result from the start, a count; 0: it is null until the first value.
    """

    def __init__(self, name: str, reduction: Reduction, type_: pa.DataType) -> None:
        """Args: name: of the column, for errors. reduction: not "first" or "last". type_: of the rows."""
        self._name = name
        self._function = cast(Function, reduction)
        self.dtype, self.start, self._kernel = number_kernel(self._function, type_)
        self.starts_seen = int(reduction == "count")

    def add(self, entries: Entries, column: pa.Array, into: npt.NDArray[Any], seen: Bytes) -> None:
        """Add row i of `column` to `entries[i]`. Nulls are ignored.

        Args:
            into: results by entry, of type `dtype`.
            seen: 0 where an entry has had no value; becomes 1.

        Raises:
            SumOverflowError: a sum of integers exceeds int64.
        """
        values = read_values(column, self._function)
        if self._function == "count":
            count_rows(entries, values, into)
            return
        assert values.numbers is not None
        numbers = values.numbers
        if values.valid is not None:
            valid_rows = np.flatnonzero(values.valid)
            entries, numbers = entries[valid_rows], numbers[valid_rows]
        seen[entries] = 1
        if self._kernel(entries, numbers, into):
            raise sum_overflow(self._name)


def folds_numbers(reduction: Reduction, type_: pa.DataType) -> bool:
    """Return whether a `NumberFold` can compute the reduction of rows of this type."""
    if reduction in ("first", "last"):
        return False
    if reduction == "count":
        return True
    return bool(pt.is_primitive(type_) and type_.bit_width in (1, 8, 16, 32, 64)) and not pt.is_float16(type_)
