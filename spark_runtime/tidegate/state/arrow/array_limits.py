"""Size limits of one Arrow array: offsets of strings, binary, lists and maps have 32 bits, except in the large types.

Values of a state that do not fit into one array are detected before they are gathered. Where the number of arrays does
not matter, they are returned in several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from tidegate.errors import PipelineError

MAX_ARRAY_BYTES = 2**31 - 1
"""Most bytes or elements of the values of one array together, unless it has a large type."""

T = TypeVar("T")


class ArrayTooLarge(PipelineError):
    """Values of state do not fit into one Arrow array."""


def is_large(type_: pa.DataType) -> bool:
    """Return whether offsets have 64 bits."""
    return bool(pt.is_large_string(type_) or pt.is_large_binary(type_) or pt.is_large_list(type_))


def require_fits(type_: pa.DataType, size: int) -> None:
    """Refuse `size` bytes or elements for one array. Raises ArrayTooLarge."""
    if size > MAX_ARRAY_BYTES and not is_large(type_):
        raise ArrayTooLarge(
            f"values of type {type_} in state do not fit into one batch",
            cause=f"the values of one read have {size} bytes or elements; Arrow's limit is {MAX_ARRAY_BYTES}",
            remedy=f"Declare the column as large_{type_}, if that type exists, or make the batches smaller",
        )


def in_parts(make: Callable[[Any], T], numbers: Any, size: int | None = None) -> Iterator[T]:
    """Yield the results of `make` for all numbers; if it raises ArrayTooLarge, for each half of them, and so on.

    A single value always fits, because it arrived in an array.

    Args:
        numbers: an array; or a slice that `make` understands as all numbers from 0 to `size` - 1.
    """
    try:
        made = make(numbers)
    except ArrayTooLarge:
        if isinstance(numbers, slice):
            assert size is not None
            numbers = np.arange(size)
        if len(numbers) < 2:
            raise
    else:
        yield made
        return
    half = len(numbers) // 2
    yield from in_parts(make, numbers[:half])
    yield from in_parts(make, numbers[half:])
