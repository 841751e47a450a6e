"""The states and timers of the reference back end, a row at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from state_suites.model_cells import Cell, ModelCells, ModelKeys, ids_of, one_batch, row_ids
from tidegate.state.aggregates.numbers import SumOverflowError
from tidegate.state.keyed_state import DueTimers, Elements, Found, KeyNumbers, KeySet, Mask

TIMES = pa.schema([("time_us", pa.int64())])


class ModelValue:
    """See `ValueState`."""

    def __init__(self, cells: ModelCells) -> None:
        self._cells = cells

    def get(self, keys: KeySet) -> Found:
        """See `ValueState`."""
        return found([self._cells.read(key, None) for key in ids_of(keys)], self._cells.columns)

    def put(self, keys: KeySet, columns: pa.RecordBatch, where: Mask | None = None) -> None:
        """See `ValueState`."""
        for i, key in enumerate(ids_of(keys)):
            if where is None or where[i]:
                self._cells.write(key, None, columns.slice(i, 1))

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """See `ValueState`."""
        self._cells.clear(keys, where)


class ModelList:
    """See `ListState`."""

    def __init__(self, cells: ModelCells) -> None:
        self._cells = cells

    def get(self, keys: KeySet) -> Elements:
        """See `ListState`."""
        return elements([self._cells.read_all(key) for key in ids_of(keys)], self._cells.columns)

    def append(self, keys: KeySet, owners: KeyNumbers, columns: pa.RecordBatch) -> None:
        """See `ListState`."""
        ids = ids_of(keys)
        for row, owner in enumerate(owners):
            self._cells.append(ids[owner], columns.slice(row, 1))

    def put(self, keys: KeySet, elements: Elements) -> None:
        """See `ListState`."""
        self._cells.clear(keys, None)
        for i, key in enumerate(ids_of(keys)):
            for row in range(elements.offsets[i], elements.offsets[i + 1]):
                self._cells.append(key, elements.columns.slice(row, 1))

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """See `ListState`."""
        self._cells.clear(keys, where)


class ModelMap:
    """See `MapState`."""

    def __init__(self, cells: ModelCells) -> None:
        self._cells = cells

    def get(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch) -> Found:
        """See `MapState`."""
        ids = ids_of(keys)
        pairs = zip(owners, row_ids(map_keys), strict=True)
        return found([self._cells.read(ids[owner], at) for owner, at in pairs], self._cells.columns)

    def put(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch, columns: pa.RecordBatch) -> None:
        """See `MapState`."""
        ids = ids_of(keys)
        for row, (owner, at) in enumerate(zip(owners, row_ids(map_keys), strict=True)):
            self._cells.write(ids[owner], at, columns.slice(row, 1), map_keys.slice(row, 1))

    def remove(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch) -> None:
        """See `MapState`."""
        ids = ids_of(keys)
        for owner, at in zip(owners, row_ids(map_keys), strict=True):
            self._cells.of(ids[owner]).pop(at, None)

    def entries(self, keys: KeySet) -> Elements:
        """See `MapState`."""
        cells = [self._cells.read_all(key) for key in ids_of(keys)]
        flat = [cell for of_key in cells for cell in of_key]
        maps = one_batch([cell.map_key for cell in flat if cell.map_key is not None], self._cells.descriptor.map_key)
        values = one_batch([cell.columns for cell in flat], self._cells.columns)
        schema = pa.schema([*maps.schema, *values.schema])
        return Elements(offsets(cells), pa.RecordBatch.from_arrays(maps.columns + values.columns, schema=schema))

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """See `MapState`."""
        self._cells.clear(keys, where)


class ModelMerging:
    """See `MergingState`."""

    def __init__(self, cells: ModelCells) -> None:
        self._cells = cells

    def add(self, keys: KeySet, owners: KeyNumbers, columns: pa.RecordBatch) -> None:
        """See `MergingState`."""
        ids = ids_of(keys)
        for row, owner in enumerate(owners):
            cell = self._cells.of(ids[owner]).get(None)
            merge = self._merged if self._cells.descriptor.kind == "aggregating" else self._reduced
            self._cells.write(ids[owner], None, merge(None if cell is None else cell.columns, columns.slice(row, 1)))

    def get(self, keys: KeySet) -> Found:
        """See `MergingState`."""
        return found([self._cells.read(key, None) for key in ids_of(keys)], self._cells.columns)

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """See `MergingState`."""
        self._cells.clear(keys, where)

    def _merged(self, old: pa.RecordBatch | None, row: pa.RecordBatch) -> pa.RecordBatch:
        if old is None:
            return row
        merge = self._cells.descriptor.merge
        assert merge is not None
        return merge(one_batch([old, row], self._cells.columns), np.array([0, 2], np.int64))

    def _reduced(self, old: pa.RecordBatch | None, row: pa.RecordBatch) -> pa.RecordBatch:
        arrays: list[pa.Array] = []
        for i, reduction in enumerate(self._cells.descriptor.reductions):
            field = self._cells.columns.field(i)
            before = None if old is None else old.column(i)[0].as_py()
            value = reduced(reduction, before, row.column(i)[0].as_py(), field)
            arrays.append(pa.array([value], field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._cells.columns)


class ModelTimers:
    """See `TimerService`. `held` are (time, key) pairs."""

    def __init__(self, keys_of_ids: Callable[[Sequence[bytes]], ModelKeys]) -> None:
        self.held: set[tuple[int, bytes]] = set()
        self._keys_of_ids = keys_of_ids

    def register(self, keys: KeySet, owners: KeyNumbers, times_us: npt.NDArray[np.int64]) -> None:
        """See `TimerService`."""
        self.held |= self._pairs(keys, owners, times_us)

    def delete(self, keys: KeySet, owners: KeyNumbers, times_us: npt.NDArray[np.int64]) -> None:
        """See `TimerService`."""
        self.held -= self._pairs(keys, owners, times_us)

    def of(self, keys: KeySet) -> Elements:
        """See `TimerService`."""
        times = [sorted(time_us for time_us, held in self.held if held == key) for key in ids_of(keys)]
        column = pa.array([time_us for of_key in times for time_us in of_key], pa.int64())
        return Elements(offsets(times), pa.RecordBatch.from_arrays([column], schema=TIMES))

    def next_us(self) -> int | None:
        """See `TimerService`."""
        return min((time_us for time_us, _ in self.held), default=None)

    def due(self, until_us: int, limit: int) -> DueTimers | None:
        """See `TimerService`."""
        due = sorted(pair for pair in self.held if pair[0] <= until_us)[:limit]
        if not due:
            return None
        self.held -= set(due)
        numbers: dict[bytes, int] = {}
        owners = [numbers.setdefault(key, len(numbers)) for _, key in due]
        times = np.array([time_us for time_us, _ in due], np.int64)
        return DueTimers(self._keys_of_ids(list(numbers)), np.array(owners, np.int32), times)

    def _pairs(self, keys: KeySet, owners: KeyNumbers, times_us: npt.NDArray[np.int64]) -> set[tuple[int, bytes]]:
        ids = ids_of(keys)
        return {(int(time_us), ids[owner]) for owner, time_us in zip(owners, times_us, strict=True)}


def found(cells: Sequence[Cell | None], schema: pa.Schema) -> Found:
    """The cells as `Found`; null rows where there is none."""
    none = pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in schema], schema=schema)
    present = np.array([cell is not None for cell in cells], np.bool_)
    return Found(present, one_batch([none if cell is None else cell.columns for cell in cells], schema))


def elements(cells: Sequence[Sequence[Cell]], schema: pa.Schema) -> Elements:
    """The cells of each key as `Elements`."""
    return Elements(offsets(cells), one_batch([cell.columns for of_key in cells for cell in of_key], schema))


def offsets(of_keys: Sequence[Sequence[Any]]) -> npt.NDArray[np.int64]:
    """Where the rows of each key start, and the end."""
    return np.cumsum([0, *(len(of_key) for of_key in of_keys)], dtype=np.int64)


def reduced(reduction: str, before: Any, value: Any, field: pa.Field) -> Any:
    """One more value in one column of a reducing state."""
    if reduction == "count":
        return (before or 0) + (value is not None)
    if value is None or (reduction == "first" and before is not None):
        return before
    if before is None or reduction == "last":
        return value
    if reduction == "sum":
        total = before + value
        if isinstance(total, int) and not -(2**63) <= total < 2**63:
            raise SumOverflowError(f"sum {field.name!r} exceeds the range of 64-bit integers")
        return total
    if isinstance(value, float) and math.isnan(value):
        return value if reduction == "max" else before
    if isinstance(before, float) and math.isnan(before):
        return before if reduction == "max" else value
    return min(before, value) if reduction == "min" else max(before, value)
