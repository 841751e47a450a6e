"""Writes the rows of batches straight to where each of their targets reads them: one copy, whatever the number."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.byte_words import store_half, store_word
from tidegate.state.numba_kernels import kernel

Targets = npt.NDArray[np.uint16]
Addresses = npt.NDArray[np.int64]
"""Where the next value of each target is written."""


def scatter_rows(batches: Sequence[tuple[pa.RecordBatch, Targets]], addresses: Iterable[Addresses]) -> None:
    """Write the values of all batches, in order.

    Args:
        batches: of one schema, without nulls, with the target of each row. Values have four or eight bytes.
        addresses: of each column. They are advanced. Nothing checks them, and the memory must live on.
    """
    for number, ends in enumerate(addresses):
        for batch, targets in batches:
            values = _words(batch.column(number))
            if values.dtype.itemsize == 8:
                _scatter_words(values, targets, ends)
            else:
                _scatter_halves(values, targets, ends)


def _words(column: pa.Array) -> npt.NDArray[Any]:
    """Return the bytes of each value as an unsigned number."""
    width = column.type.bit_width // 8
    values = column.buffers()[1]
    return np.frombuffer(values, f"u{width}", len(column), column.offset * width)


@kernel("void(u8[], u2[], i8[]!)")
def _scatter_words(values: Any, targets: Any, addresses: Any) -> None:
    for i in range(len(values)):
        target = targets[i]
        at = addresses[target]
        store_word(at, values[i])
        addresses[target] = at + 8


@kernel("void(u4[], u2[], i8[]!)")
def _scatter_halves(values: Any, targets: Any, addresses: Any) -> None:
    for i in range(len(values)):
        target = targets[i]
        at = addresses[target]
        store_half(at, np.uint64(values[i]))
        addresses[target] = at + 4
