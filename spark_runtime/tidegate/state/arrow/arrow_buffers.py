"""Conversion between Arrow arrays and plain ones: raw values, ranges and validity."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from tidegate.errors import PipelineError
from tidegate.state.arrow.array_limits import is_large
from tidegate.state.keys.key_bytes import valid_mask
from tidegate.state.numba_kernels import kernel

MAX_VALUE_BYTES = 2**31 - 1
"""Most bytes or elements of one value in state."""


def fixed_width(type_: pa.DataType) -> int | None:
    """Return the bytes of a value if all values have the same number, 1 for booleans; else None."""
    if pt.is_boolean(type_):
        return 1
    if pt.is_primitive(type_) or pt.is_decimal(type_) or pt.is_fixed_size_binary(type_):
        return int(type_.bit_width) // 8
    return None


def raw_fixed(array: pa.Array, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the raw values of a column of a fixed width; arbitrary where null. Copies only booleans."""
    if pt.is_boolean(array.type):
        array = array.cast(pa.uint8())
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)


def ranges_of(array: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32], Any]:
    """Return starts, lengths (-1 where null) and the values they point into: bytes, or an array of elements.

    Raises:
        PipelineError: a value is larger than `MAX_VALUE_BYTES`.
    """
    wide = is_large(array.type)
    dtype = np.dtype(np.int64 if wide else np.int32)
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        offsets = np.zeros(len(array) + 1, np.int64)
    else:
        offsets = np.frombuffer(buffer, dtype, len(array) + 1, array.offset * dtype.itemsize).astype(np.int64)
    sizes = np.diff(offsets)
    if array.null_count:
        sizes[~valid_mask(array)] = -1
    if wide and sizes.max(initial=0) > MAX_VALUE_BYTES:
        raise PipelineError(
            f"a value of type {array.type} is too large for state",
            cause=f"the value has {sizes.max()} bytes or elements, the limit is {MAX_VALUE_BYTES}",
            remedy="Divide the value into several, or store the value outside the state and its URL in the state",
        )
    lengths = sizes.astype(np.int32)
    # A slice keeps the whole buffers of its array. Only this part of them belongs to the slice.
    first, end = int(offsets[0]), int(offsets[-1])
    starts = offsets[:-1] - first
    if is_binary_like(array.type):
        data = array.buffers()[2]
        return starts, lengths, np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[first:end]
    return starts, lengths, array.values.slice(first, end - first)


def ranged_array(type_: pa.DataType, lengths: npt.NDArray[np.int64], values: Any, valid: npt.NDArray[np.bool_]) -> Any:
    """Inverse of `ranges_of` for values without gaps, which fit into one array."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if not is_large(type_):
        offsets = offsets.astype(np.int32)
    buffers = [bitmap(valid), pa.py_buffer(offsets)]
    if is_binary_like(type_):
        return pa.Array.from_buffers(type_, len(lengths), [*buffers, pa.py_buffer(values)])
    return pa.Array.from_buffers(type_, len(lengths), buffers, children=[values])


def expand_ranges(starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return all numbers of each range start..start + length, one range after the other."""
    out = np.empty(int(lengths.sum()), np.int64)
    _expand(starts, lengths, out)
    return out


def bitmap(valid: npt.NDArray[Any]) -> pa.Buffer | None:
    """Return Arrow's validity bitmap of zeros and non-zeros; None if all are valid."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid != 0, bitorder="little"))


def fixed_column_array(type_: pa.DataType, values: npt.NDArray[Any], valid: npt.NDArray[Any] | None) -> pa.Array:
    """Inverse of `raw_fixed`; `valid` is 0 where null; None: nothing is null."""
    if pt.is_boolean(type_):
        return pa.array(values != 0, mask=None if valid is None or valid.all() else valid == 0)
    mask = None if valid is None else bitmap(valid)
    return pa.Array.from_buffers(type_, len(values), [mask, pa.py_buffer(values)])


def is_binary_like(type_: pa.DataType) -> bool:
    """Return whether the type is string or binary of variable width."""
    return bool(pt.is_string(type_) or pt.is_large_string(type_) or pt.is_binary(type_) or pt.is_large_binary(type_))


def has_offsets(type_: pa.DataType) -> bool:
    """Return whether values are ranges of bytes or elements."""
    return is_binary_like(type_) or bool(pt.is_list(type_) or pt.is_large_list(type_) or pt.is_map(type_))


@kernel("void(i8[], i8[], i8[]!)")
def _expand(starts: Any, lengths: Any, out: Any) -> None:
    at = 0
    for i in range(len(starts)):
        for j in range(lengths[i]):
            out[at] = starts[i] + j
            at += 1
