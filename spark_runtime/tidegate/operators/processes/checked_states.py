"""The states that a process sees: those of its back end, behind checks of what the process hands them.

A back end trusts its caller: it takes columns by position and their bytes as they lie, so that a column of another type
or a row too few would become other values, or end the worker. Here such a call is refused instead (S5.1).
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
from tidegate.operators.functions.keyed_process import KeyedState
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
    """The state of `descriptor` for a process, and the descriptor that the back end knows it by.

    Args:
        where: operator and subtask, for errors.

    The state's methods, and those of the back end that call `merge`, raise PipelineError, naming the user's line, when
    what they are given is not as declared; the state is as before then.
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
    """A `ValueState`; see the module."""

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
    """A `ListState`; see the module."""

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
    """A `MapState`; see the module."""

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
    """A `MergingState`; see the module."""

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
    """Holds what the user's code gives for one state against its descriptor."""

    def __init__(self, descriptor: StateDescriptor, where: str) -> None:
        self._descriptor = descriptor
        self._where = where

    def columns(self, batch: object, rows: int, counted: str) -> pa.RecordBatch:
        """The declared columns; `rows` is how many there must be, one for each of `counted`."""
        return self._fitting(batch, self._descriptor.columns, "columns", rows, counted)

    def map_keys(self, batch: object, rows: int) -> pa.RecordBatch:
        """The declared columns of the map key, a row for each owner."""
        return self._fitting(batch, self._descriptor.map_key, "columns of the map key", rows, "owners")

    def owners(self, owners: KeyNumbers, keys: KeySet) -> KeyNumbers:
        """Numbers of keys in the set, as int32."""
        numbers = np.asarray(owners)
        if numbers.ndim != 1 or (len(numbers) and numbers.dtype.kind not in "iu"):
            raise self._refused(
                f"owners are {numbers.dtype}{list(numbers.shape)}, one column of whole numbers is needed",
                "Give for each row the number of its key, such as rows.owners",
            )
        if len(numbers) and not (numbers.min() >= 0 and numbers.max() < keys.size):
            raise self._refused(
                f"owners are from {numbers.min()} to {numbers.max()}, the set has {keys.size} keys, counted from 0",
                "Give owners and keys of the same rows",
            )
        return numbers.astype(np.int32, copy=False)

    def mask(self, where: Mask | None, keys: KeySet) -> Mask | None:
        """A boolean for each key, or None."""
        if where is None:
            return None
        mask = np.asarray(where)
        if mask.dtype != np.bool_ or mask.shape != (keys.size,):
            raise self._refused(
                f"where is {mask.dtype}{list(mask.shape)}, needed is bool[{keys.size}]", "Give a boolean for each key"
            )
        return mask

    def elements(self, elements: object, keys: KeySet) -> Elements:
        """Rows for each key, with offsets that cut them."""
        if not isinstance(elements, Elements):
            raise self._refused(f"elements are a {type(elements).__name__}", "Give Elements(offsets, columns)")
        offsets = np.asarray(elements.offsets)
        if offsets.shape != (keys.size + 1,) or offsets.dtype.kind not in "iu":
            raise self._refused(
                f"offsets are {offsets.dtype}{list(offsets.shape)}, needed is int64[{keys.size + 1}]",
                "Give one offset more than there are keys",
            )
        offsets = offsets.astype(np.int64, copy=False)
        if offsets[0] != 0 or (np.diff(offsets) < 0).any():
            raise self._refused(
                "offsets do not ascend from 0", "Let rows offsets[i] to offsets[i + 1] be those of key i"
            )
        return Elements(offsets, self.columns(elements.columns, int(offsets[-1]), "offsets, by the last of them"))

    def merge(
        self, merge: Callable[[pa.RecordBatch, npt.NDArray[np.int64]], pa.RecordBatch]
    ) -> Callable[[pa.RecordBatch, npt.NDArray[np.int64]], pa.RecordBatch]:
        """`merge`, with its result checked."""
        code = getattr(merge, "__code__", None)
        line = repr(merge) if code is None else f"{code.co_filename}:{code.co_firstlineno}"
        schema = self._descriptor.columns

        def checked(accumulators: pa.RecordBatch, offsets: npt.NDArray[np.int64]) -> pa.RecordBatch:
            merged = merge(accumulators, offsets)
            return self._fitting(merged, schema, "merged columns", len(offsets) - 1, "keys that merge had", line)

        return checked

    def _fitting(
        self, batch: Any, schema: pa.Schema, what: str, rows: int, counted: str, line: str | None = None
    ) -> pa.RecordBatch:
        if not isinstance(batch, pa.RecordBatch):
            raise self._refused(f"{what} are a {type(batch).__name__}", "Give a pyarrow.RecordBatch", line)
        if batch.schema.names != schema.names:
            if sorted(batch.schema.names) != sorted(schema.names):
                raise self._refused(
                    f"{what} are {batch.schema.names}, declared are {schema.names}",
                    "Give exactly the declared columns",
                    line,
                )
            batch = batch.select(schema.names)
        for field, array in zip(schema, batch.columns, strict=True):
            if array.type != field.type:
                raise self._refused(
                    f"column {field.name!r} is {array.type}, declared is {field.type}",
                    f"Cast {field.name!r}, or declare {array.type}",
                    line,
                )
            if not field.nullable and array.null_count:
                raise self._refused(
                    f"column {field.name!r} has nulls, declared is not null", "Declare it nullable", line
                )
        if batch.num_rows != rows:
            raise self._refused(
                f"{what} have {batch.num_rows} rows for {rows} {counted}", "Give one row for each", line
            )
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    def _refused(self, cause: str, remedy: str, line: str | None = None) -> PipelineError:
        return PipelineError(
            f"state {self._descriptor.name!r} cannot take what it was given",
            where=f"{self._where}, {line or _calling_line()}",
            cause=cause,
            remedy=remedy,
        )


def _calling_line() -> str:
    """`file:line` of the call into this module."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
