"""Values of Arrow columns as numpy arrays, without kernels: building a pipeline uses them, and must not load numba."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

Int64s = npt.NDArray[np.int64]


def valid_mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    """Return True where `array` is not null."""
    mask: npt.NDArray[np.bool_] = pc.is_valid(array).to_numpy(zero_copy_only=False)
    return mask


def fixed_values(array: pa.Array) -> Int64s:
    """Return the raw values of an integer, date, time, timestamp or duration column as int64; arbitrary where null.

    No copy if they are 64 bits wide. uint64 wraps around.
    """
    if array.type.bit_width == 64:
        return _as_int64s(array)
    dtype: np.dtype[Any] = np.dtype(array.type.to_pandas_dtype()) if pt.is_integer(array.type) else width_of(array.type)
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), np.int64)
    return np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize).astype(np.int64)


def plain_int64s(array: pa.Array) -> Int64s | None:
    """Return the values of an int64 column without nulls; None: it is another one. Cheap."""
    return _as_int64s(array) if array.type.id == pa.lib.Type_INT64 and not array.null_count else None


def _as_int64s(array: pa.Array) -> Int64s:
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), np.int64)
    return np.frombuffer(buffer, np.int64, len(array), array.offset * 8)


def width_of(type_: pa.DataType) -> np.dtype[Any]:
    """Return the integer type in which a date, time, timestamp or duration is stored."""
    return np.dtype(np.int32 if type_.bit_width == 32 else np.int64)
