"""Kernels over the values of one column."""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.state.numba_kernels import kernel


@kernel("i8*2(i8[])")
def extent(values: Any) -> Any:
    """Return the least and the greatest of some values."""
    low = high = values[0]
    for value in values:
        low = min(low, value)
        high = max(high, value)
    return low, high


@kernel("void(i8[], i8, u1[]!)", "void(i8[], i8, u2[]!)", "void(i8[], i8, u4[]!)")
def write_offsets(values: Any, base: Any, out: Any) -> None:
    """Write the distances of values from `base`."""
    for i in range(len(values)):
        out[i] = values[i] - base


@kernel("void(u1[], i8, i8[]!)", "void(u2[], i8, i8[]!)", "void(u4[], i8, i8[]!)")
def write_sums(offsets: Any, base: Any, out: Any) -> None:
    """Inverse of `write_offsets`."""
    for i in range(len(offsets)):
        out[i] = base + np.int64(offsets[i])
