"""Kernels over the values of one column."""

from __future__ import annotations

from typing import Any

from tidegate.state.numba_kernels import kernel


@kernel("i8*2(i8[])")
def extent(values: Any) -> Any:
    """Return the least and the greatest of some values."""
    low = high = values[0]
    for value in values:
        low = min(low, value)
        high = max(high, value)
    return low, high
