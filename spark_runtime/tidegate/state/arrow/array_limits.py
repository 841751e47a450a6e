"""What one Arrow array holds: offsets of strings, binary, lists and maps have 32 bits, but for the large types.

Values of a state that do not fit together into one array are found out before they are gathered. Where it does not
matter in how many arrays they come, they come in several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from tidegate.errors import PipelineError

MAX_ARRAY_BYTES = 2**31 - 1
"""Bytes or elements that the values of one array have together, if it is not of a large type."""

T = TypeVar("T")


class ArrayTooLarge(PipelineError):
    """Values of state do not fit into one Arrow array."""


def is_large(type_: pa.DataType) -> bool:
    """Offsets have 64 bits."""
    return bool(pt.is_large_string(type_) or pt.is_large_binary(type_) or pt.is_large_list(type_))


def require_fits(type_: pa.DataType, size: int) -> None:
    """Refuse `size` bytes or elements for one array. Raises ArrayTooLarge."""
    if size > MAX_ARRAY_BYTES and not is_large(type_):
        raise ArrayTooLarge(
            f"Values of type {type_} in state do not fit into one batch",
            cause=f"those that are read at once have {size} bytes or elements, Arrow's limit is {MAX_ARRAY_BYTES}",
            remedy=f"Declare the column as large_{type_}, where that is a type, or make the batches smaller",
        )


def in_parts(make: Callable[[Any], T], numbers: Any, size: int | None = None) -> Iterator[T]:
    """What `make` gives for all numbers; or for each half of them, and so on, where it raises ArrayTooLarge. A single
    value fits, as it came in an array.

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
