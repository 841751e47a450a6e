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
    dtype: np.dtype[Any] = np.dtype(array.type.to_pandas_dtype()) if pt.is_integer(array.type) else width_of(array.type)
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), np.int64)
    values = np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)
    return values.view(np.int64) if dtype.itemsize == 8 else values.astype(np.int64)


def width_of(type_: pa.DataType) -> np.dtype[Any]:
    """Return the integer type in which a date, time, timestamp or duration is stored."""
    return np.dtype(np.int32 if type_.bit_width == 32 else np.int64)
