"""States as a process sees them: the states of its back end, with checks of the arguments that the process passes.

A back end does not check its arguments: it reads columns by position and takes their bytes as they are. A column of
another type or a missing row would become other values, or crash the worker. These classes refuse such calls (S5.1).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import PipelineError
from tidegate.operators.user_functions.keyed_process import KeyedState
from tidegate.state.keyed_state import (
    Elements,
    Found,
    KeyedStateBackend,
    KeyNumbers,
    KeySet,
    ListState,
    MapState,
    Mask,
    MergingState,
    StateDescriptor,
    ValueState,
)


def checked_state(
    back_end: KeyedStateBackend, descriptor: StateDescriptor, where: str
) -> tuple[StateDescriptor, KeyedState]:
    """Return the state of `descriptor` for a process, and the descriptor to pass to the back end.

    If an argument is not as declared, the state's methods raise PipelineError with the user's line, and the state does
    not change. The same holds for methods of the back end that call `merge`.

    Args:
        where: operator and subtask, for errors.
    """
    given = _StateInput(descriptor, f"{where}, state {descriptor.name!r}")
    if descriptor.kind == "value":
        return descriptor, CheckedValue(back_end.value(descriptor), given)
    if descriptor.kind == "list":
        return descriptor, CheckedList(back_end.list(descriptor), given)
    if descriptor.kind == "map":
        return descriptor, CheckedMap(back_end.map(descriptor), given)
    if descriptor.merge is not None:
        descriptor = replace(descriptor, merge=given.merge(descriptor.merge))
    return descriptor, CheckedMerging(back_end.merging(descriptor), given)


class CheckedValue:
    """A `ValueState` with checks; see the module."""

    def __init__(self, state: ValueState, given: _StateInput) -> None:
        self._state = state
        self._given = given

    def get(self, keys: KeySet) -> Found:
        """See `ValueState`."""
        return self._state.get(keys)

    def put(self, keys: KeySet, columns: pa.RecordBatch, where: Mask | None = None) -> None:
        """See `ValueState`. Raises PipelineError."""
        columns = self._given.columns(columns, keys.size, "keys of the set")
        self._state.put(keys, columns, self._given.mask(where, keys))

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """See `ValueState`. Raises PipelineError."""
        self._state.clear(keys, self._given.mask(where, keys))


class CheckedList:
    """A `ListState` with checks; see the module."""

    def __init__(self, state: ListState, given: _StateInput) -> None:
        self._state = state
        self._given = given

    def get(self, keys: KeySet) -> Elements:
        """See `ListState`."""
        return self._state.get(keys)

    def append(self, keys: KeySet, owners: KeyNumbers, columns: pa.RecordBatch) -> None:
        """See `ListState`. Raises PipelineError."""
        owners = self._given.owners(owners, keys)
        self._state.append(keys, owners, self._given.columns(columns, len(owners), "owners"))

    def put(self, keys: KeySet, elements: Elements) -> None:
        """See `ListState`. Raises PipelineError."""
        self._state.put(keys, self._given.elements(elements, keys))

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """See `ListState`. Raises PipelineError."""
        self._state.clear(keys, self._given.mask(where, keys))


class CheckedMap:
    """A `MapState` with checks; see the module."""

    def __init__(self, state: MapState, given: _StateInput) -> None:
        self._state = state
        self._given = given

    def get(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch) -> Found:
        """See `MapState`. Raises PipelineError."""
        owners = self._given.owners(owners, keys)
        return self._state.get(keys, owners, self._given.map_keys(map_keys, len(owners)))

    def put(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch, columns: pa.RecordBatch) -> None:
        """See `MapState`. Raises PipelineError."""
        owners = self._given.owners(owners, keys)
        map_keys = self._given.map_keys(map_keys, len(owners))
        self._state.put(keys, owners, map_keys, self._given.columns(columns, len(owners), "owners"))

    def remove(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch) -> None:
        """See `MapState`. Raises PipelineError."""
        owners = self._given.owners(owners, keys)
        self._state.remove(keys, owners, self._given.map_keys(map_keys, len(owners)))

    def entries(self, keys: KeySet) -> Elements:
        """See `MapState`."""
        return self._state.entries(keys)

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """See `MapState`. Raises PipelineError."""
        self._state.clear(keys, self._given.mask(where, keys))


class CheckedMerging:
    """A `MergingState` with checks; see the module."""

    def __init__(self, state: MergingState, given: _StateInput) -> None:
        self._state = state
        self._given = given

    def add(self, keys: KeySet, owners: KeyNumbers, columns: pa.RecordBatch) -> None:
        """See `MergingState`. Raises PipelineError."""
        owners = self._given.owners(owners, keys)
        self._state.add(keys, owners, self._given.columns(columns, len(owners), "owners"))

    def get(self, keys: KeySet) -> Found:
        """See `MergingState`."""
        return self._state.get(keys)

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """See `MergingState`. Raises PipelineError."""
        self._state.clear(keys, self._given.mask(where, keys))


class _StateInput:
    """Checks the arguments of the user's code for one state against its descriptor."""

    def __init__(self, descriptor: StateDescriptor, where: str) -> None:
        self._descriptor = descriptor
        self._where = where
        declared = (descriptor.columns, descriptor.map_key)
        self._nullable = [schema for schema in declared if all(field.nullable for field in schema)]

    def columns(self, batch: object, rows: int, counted: str) -> pa.RecordBatch:
        """Return the declared columns. Args: rows: expected number of rows, one for each of `counted`."""
        return self._fitting(batch, self._descriptor.columns, "columns", rows, counted)

    def map_keys(self, batch: object, rows: int) -> pa.RecordBatch:
        """Return the declared columns of the map key, a row for each owner."""
        return self._fitting(batch, self._descriptor.map_key, "columns of the map key", rows, "owners")

    def owners(self, owners: KeyNumbers, keys: KeySet) -> KeyNumbers:
        """Return the numbers of keys in the set, as int32."""
        if owners is keys.rows:
            return owners
        numbers = np.asarray(owners)
        if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
            raise self._refused(
                f"the argument owners is {numbers.dtype}{list(numbers.shape)}, but must be one column of integers",
                "Pass for each row the number of its key, such as rows.owners",
            )
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < keys.size):
            raise self._refused(
                f"owners are from {numbers.min()} to {numbers.max()}, but the set has {keys.size} keys, counted from 0",
                "Pass owners and keys of the same rows",
            )
        return numbers.astype(np.int32, copy=False)

    def mask(self, where: Mask | None, keys: KeySet) -> Mask | None:
        """Return a boolean for each key, or None."""
        if where is None:
            return None
        mask = np.asarray(where)
        if mask.dtype != np.bool_ or mask.shape != (keys.size,):
            raise self._refused(
                f"the argument where is {mask.dtype}{list(mask.shape)}, but must be bool[{keys.size}]",
                "Pass a boolean for each key",
            )
        return mask

    def elements(self, elements: object, keys: KeySet) -> Elements:
        """Return rows for each key, with the offsets that divide them."""
        if not isinstance(elements, Elements):
            raise self._refused(
                f"elements must be an Elements, but is a {type(elements).__name__}", "Pass Elements(offsets, columns)"
            )
        offsets = np.asarray(elements.offsets)
        if offsets.shape != (keys.size + 1,) or offsets.dtype.kind not in "iu":
            raise self._refused(
                f"offsets is {offsets.dtype}{list(offsets.shape)}, but must be int64[{keys.size + 1}]",
                "Pass one offset more than there are keys",
            )
        offsets = offsets.astype(np.int64, copy=False)
        if offsets[0] != 0 or (np.diff(offsets) < 0).any():
            raise self._refused(
                "offsets must begin with 0 and not decrease",
                "Set offsets so that key i has the rows offsets[i] to offsets[i + 1]",
            )
        return Elements(offsets, self.columns(elements.columns, int(offsets[-1]), "offsets, by the last of them"))

    def merge(
        self, merge: Callable[[pa.RecordBatch, npt.NDArray[np.int64]], pa.RecordBatch]
    ) -> Callable[[pa.RecordBatch, npt.NDArray[np.int64]], pa.RecordBatch]:
        """Return `merge` with a check of its result."""
        code = getattr(merge, "__code__", None)
        line = repr(merge) if code is None else f"{code.co_filename}:{code.co_firstlineno}"
        schema = self._descriptor.columns

        def checked(accumulators: pa.RecordBatch, offsets: npt.NDArray[np.int64]) -> pa.RecordBatch:
            merged = merge(accumulators, offsets)
            return self._fitting(merged, schema, "merged columns", len(offsets) - 1, "keys passed to merge", line)

        return checked

    def _fitting(
        self, batch: Any, schema: pa.Schema, what: str, rows: int, counted: str, line: str | None = None
    ) -> pa.RecordBatch:
        if not isinstance(batch, pa.RecordBatch):
            raise self._refused(
                f"{what} must be a pyarrow.RecordBatch, but are a {type(batch).__name__}",
                "Pass a pyarrow.RecordBatch",
                line,
            )
        if batch.num_rows == rows and batch.schema.equals(schema, check_metadata=True):
            # Only columns that are declared not null have to be read.
            if any(schema is nullable for nullable in self._nullable):
                return batch
        if batch.schema.names != schema.names:
            if sorted(batch.schema.names) != sorted(schema.names):
                raise self._refused(
                    f"{what} are {batch.schema.names}, but {schema.names} are declared",
                    "Pass exactly the declared columns",
                    line,
                )
            batch = batch.select(schema.names)
        for field, array in zip(schema, batch.columns, strict=True):
            if array.type != field.type:
                raise self._refused(
                    f"column {field.name!r} is {array.type}, but {field.type} is declared",
                    f"Cast {field.name!r}, or declare {array.type}",
                    line,
                )
            if not field.nullable and array.null_count:
                raise self._refused(
                    f"column {field.name!r} has nulls, but is declared not null", "Declare the column nullable", line
                )
        if batch.num_rows != rows:
            raise self._refused(
                f"{what} have {batch.num_rows} rows, but there are {rows} {counted}", "Pass as many rows", line
            )
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    def _refused(self, cause: str, remedy: str, line: str | None = None) -> PipelineError:
        return PipelineError(
            f"the argument does not fit state {self._descriptor.name!r}",
            where=f"{self._where}, {line or _calling_line()}",
            cause=cause,
            remedy=remedy,
        )


def _calling_line() -> str:
    """Return `file:line` of the call into this module."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
