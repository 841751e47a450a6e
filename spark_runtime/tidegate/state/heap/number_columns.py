"""Columns of a reducing state of the heap back end whose numbers are changed where they are stored."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
import pyarrow as pa

from tidegate.state.aggregates.number_folds import NumberFold, folds_numbers
from tidegate.state.arrow.arrow_columns import FixedColumn
from tidegate.state.copy_on_write import Arrays, Entries
from tidegate.state.heap.heap_table import HeapTable
from tidegate.state.keyed_state import StateDescriptor


class NumberColumn:
    """One column. A `FixedColumn` of eight bytes, which reads and freezes it, has the content."""

    def __init__(self, fold: NumberFold, column: FixedColumn) -> None:
        self._fold = fold
        self._values, self._valid = column.array_names

    def begin(self, arrays: Arrays, entries: Entries) -> None:
        """Set entries to their content before the first row."""
        self._of(arrays)[entries] = self._fold.start
        arrays[self._valid][entries] = self._fold.starts_seen

    def add(self, arrays: Arrays, entries: Entries, column: pa.Array) -> None:
        """Add row i of `column` to `entries[i]`. Raises SumOverflowError."""
        self._fold.add(entries, column, self._of(arrays), arrays[self._valid])

    def _of(self, arrays: Arrays) -> npt.NDArray[Any]:
        return arrays[self._values].view(self._fold.dtype)


def number_columns(descriptor: StateDescriptor, table: HeapTable) -> list[NumberColumn] | None:
    """Return the columns of a state in `table`; None: at least one of them must be folded outside."""
    found: list[NumberColumn] = []
    for field, reduction, column in zip(descriptor.columns, descriptor.reductions, table.value_columns, strict=False):
        eight_bytes = isinstance(column, FixedColumn) and column.width == 8
        if not eight_bytes or not folds_numbers(reduction, field.type):
            return None
        assert isinstance(column, FixedColumn)
        found.append(NumberColumn(NumberFold(field.name, reduction, field.type), column))
    return found or None
