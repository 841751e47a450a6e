"""What is added to a reducing or aggregating state, folded into the row of each key: pure, a batch at a time (S5.1)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.state.accumulators import Accumulator, Function, read_values
from tidegate.state.contract import Found, KeyNumbers, Reduction, StateDescriptor
from tidegate.state.keybytes import valid_mask
from tidegate.state.layout import result_schema


def folded(descriptor: StateDescriptor, current: Found, owners: KeyNumbers, columns: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of all keys after `columns` were added.

    Args:
        descriptor: of a reducing or aggregating state.
        current: what each key has, with the columns of `result_schema`.
        owners: row i goes to key owners[i]; every key gets one row at least.
        columns: rows to add, in order.

    Raises:
        SumOverflowError: a sum of integers left int64.
    """
    if descriptor.kind == "aggregating":
        return _merged(descriptor, current, owners, columns)
    schema = result_schema(descriptor)
    arrays = [
        _reduced(reduction, result, current.present, current.columns.column(number), owners, columns.column(number))
        for number, (reduction, result) in enumerate(zip(descriptor.reductions, schema, strict=True))
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _merged(descriptor: StateDescriptor, current: Found, owners: KeyNumbers, columns: pa.RecordBatch) -> pa.RecordBatch:
    assert descriptor.merge is not None, f"aggregating state {descriptor.name!r} has no merge"
    there = np.flatnonzero(current.present)
    rows = pa.Table.from_batches([current.columns.take(pa.array(there)), columns.cast(current.columns.schema)])
    of_rows = np.concatenate([there, owners])
    counts = np.bincount(of_rows, minlength=len(current.present))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    ordered = rows.take(pa.array(np.argsort(of_rows, kind="stable"))).combine_chunks().to_batches()
    return descriptor.merge(ordered[0], offsets)


def _reduced(
    reduction: Reduction,
    result: pa.Field,
    present: npt.NDArray[np.bool_],
    current: pa.Array,
    owners: KeyNumbers,
    values: pa.Array,
) -> pa.Array:
    if reduction in ("first", "last"):
        return _picked(reduction, present, current, owners, values)
    function: Function = reduction  # type: ignore[assignment]
    accumulator = Accumulator(result.name, function, values.type, result.type)
    start = read_values(current, "sum" if reduction == "count" else function)
    assert start.numbers is not None
    held = present.copy() if start.valid is None else present & (start.valid != 0)
    if reduction == "count":
        state = pa.array(np.where(held, start.numbers, 0))
    else:
        state = pa.array(start.numbers, mask=~held)
    accumulator.restore([state], len(present))
    accumulator.add(np.ascontiguousarray(owners, np.int32), read_values(values, function), len(present))
    return accumulator.result(0, len(present))


def _picked(
    reduction: Reduction, present: npt.NDArray[np.bool_], current: pa.Array, owners: KeyNumbers, values: pa.Array
) -> pa.Array:
    """The first or last value that is not null."""
    held = present & valid_mask(current)
    rows = np.flatnonzero(valid_mask(values))
    chosen = np.full(len(held), -1, np.int64)
    if reduction == "first":
        chosen[owners[rows[::-1]]] = rows[::-1]
        chosen[held] = -1
    else:
        chosen[owners[rows]] = rows
    numbers = np.where(chosen >= 0, len(held) + chosen, np.arange(len(held)))
    both = pa.concat_arrays([current, values.cast(current.type)])
    missing = ~held & (chosen < 0)
    return both.take(pa.array(numbers, mask=missing)) if missing.any() else pc.take(both, pa.array(numbers))
