"""Folding of rows into a reducing or aggregating state, for any back end."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.state.aggregates.number_folds import NumberFold, folds_numbers
from tidegate.state.aggregates.numbers import read_values, typed_numbers
from tidegate.state.keyed_state import Found, KeyNumbers, Reduction, StateDescriptor
from tidegate.state.keys.key_bytes import valid_mask
from tidegate.state.state_layout import reduced_type, result_schema

Int64s = npt.NDArray[np.int64]


def fold(
    descriptor: StateDescriptor, stored: Found, owners: KeyNumbers, columns: pa.RecordBatch
) -> tuple[Int64s, pa.RecordBatch]:
    """Return the content of the state after row i of `columns` was added to key `owners[i]`, in order.

    Args:
        descriptor: descriptor of a reducing or aggregating state.
        stored: present content for each key of the set, with the columns of `result_schema`.
        owners: key numbers.
        columns: rows with the columns of the descriptor.

    Returns:
        The numbers of the keys with new rows, ascending, and a row for each of them.

    Raises:
        SumOverflowError: a sum of integers exceeds int64.
    """
    numbers = np.flatnonzero(np.bincount(owners, minlength=len(stored.present)))
    if descriptor.kind == "aggregating":
        return numbers, _aggregated(descriptor, stored, owners, columns, numbers)
    schema = result_schema(descriptor)
    dense = np.zeros(len(stored.present), np.int32)
    dense[numbers] = np.arange(len(numbers), dtype=np.int32)
    entries, present = dense[owners], stored.present[numbers]
    arrays = [
        _reduced(field, reduction, _masked(stored.columns.column(i).take(pa.array(numbers)), present), entries, column)
        for i, (field, reduction, column) in enumerate(
            zip(descriptor.columns, descriptor.reductions, columns.columns, strict=True)
        )
    ]
    return numbers, pa.RecordBatch.from_arrays(arrays, schema=schema)


def _reduced(
    field: pa.Field, reduction: Reduction, stored: pa.Array, entries: npt.NDArray[np.int32], column: pa.Array
) -> pa.Array:
    """Return one column, a row for each entry; `stored` is null for a new key."""
    if reduction in ("first", "last"):
        return _first_or_last(reduction, stored, entries, column)
    if not folds_numbers(reduction, field.type):
        return _extreme(reduction, stored, entries, column)
    numbers = NumberFold(field.name, reduction, field.type)
    # "min" reads the numbers unchanged, whichever function they are a result of.
    before = read_values(stored, "min")
    assert before.numbers is not None
    into = before.numbers.astype(numbers.dtype)
    seen = np.ones(len(into), np.uint8) if before.valid is None else before.valid.copy()
    into[seen == 0] = numbers.start
    seen |= numbers.starts_seen
    numbers.add(entries, column, into, seen)
    return typed_numbers(into, None if seen.all() else seen == 0, reduced_type(reduction, field.type))


def _first_or_last(reduction: str, stored: pa.Array, entries: npt.NDArray[np.int32], column: pa.Array) -> pa.Array:
    size = len(stored)
    rows = np.flatnonzero(valid_mask(column))
    at = np.arange(size)
    if reduction == "first":
        rows = rows[::-1]
        rows = rows[~valid_mask(stored)[entries[rows]]]
    # If an entry occurs several times, numpy keeps the last assignment. For "first" the rows are reversed above.
    at[entries[rows]] = rows + size
    return pa.concat_arrays([stored, column]).take(pa.array(at))


def _extreme(reduction: str, stored: pa.Array, entries: npt.NDArray[np.int32], column: pa.Array) -> pa.Array:
    owners = np.concatenate([np.arange(len(stored), dtype=np.int32), entries])
    table = pa.table({"owner": pa.array(owners), "value": pa.concat_arrays([stored, column])})
    least = table.group_by("owner").aggregate([("value", reduction)]).sort_by("owner")
    array: pa.Array = least.column(f"value_{reduction}").combine_chunks()
    return array


def _aggregated(
    descriptor: StateDescriptor, stored: Found, owners: KeyNumbers, columns: pa.RecordBatch, numbers: Int64s
) -> pa.RecordBatch:
    assert descriptor.merge is not None, f"state {descriptor.name!r} has no merge"
    held = numbers[stored.present[numbers]]
    of_rows = np.concatenate([held, owners.astype(np.int64)])
    rows = np.concatenate([held, np.arange(columns.num_rows) + len(stored.present)])
    # Stable: the stored accumulator stays before the new rows of its key, and these keep their order.
    order = np.argsort(of_rows, kind="stable")
    both = pa.Table.from_batches([stored.columns.cast(descriptor.columns), columns.cast(descriptor.columns)])
    batch = both.take(pa.array(rows[order])).combine_chunks().to_batches()
    counts = np.bincount(of_rows, minlength=len(stored.present))[numbers]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    if not len(numbers):
        return columns.cast(descriptor.columns)
    merged = descriptor.merge(batch[0], offsets)
    assert merged.num_rows == len(numbers), (
        f"merge of state {descriptor.name!r} returned {merged.num_rows} rows for {len(numbers)} keys"
    )
    return merged.cast(descriptor.columns)


def _masked(array: pa.Array, present: npt.NDArray[np.bool_]) -> pa.Array:
    return array if present.all() else pc.if_else(pa.array(present), array, pa.scalar(None, array.type))
