"""Groups the row numbers of a batch by window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.keys.key_hash import scatter_index
from tidegate.state.numba_kernels import kernel
from tidegate.state.value_kernels import extent

_DENSE_GROUPS = 65536
"""Batches with at most this many windows are ordered by counting, others by sorting."""
_LEAST, _GREATEST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class WindowRuns:
    """Rows of a batch, grouped by tumbling window.

    Attributes:
        order: row numbers, ordered by window, stable; None: the rows are already in that order.
        runs: (window number, first, end) of each window with rows, in positions of `order`, ascending. Window number w
            covers w * size + offset <= time < (w + 1) * size + offset.
    """

    order: npt.NDArray[Any] | None
    runs: list[tuple[int, int, int]]


def group_by_window(times: Int64s, size: int, offset: int) -> WindowRuns:
    """Group rows by window. If all rows are in one window, this takes one pass only.

    Args:
        times: of each row; at least one; any int64.
        size: of a window, in the unit of the times, > 0.
        offset: windows start at multiples of `size` plus this offset.
    """
    low, high = extent(times)
    first, last = (low - offset) // size, (high - offset) // size
    if first == last:
        return WindowRuns(None, [(first, 0, len(times))])
    begin = first * size + offset
    if begin < _LEAST or high - begin > _GREATEST:
        # The kernels compute with distances from the first window, which would overflow.
        return group_by_number(times // size + (times % size - offset % size) // size - offset // size)
    # Rows in order, the usual case, need no number of their own.
    most = min(len(times), last - first + 1)
    numbers, starts = np.empty(most, np.int64), np.empty(most, np.int64)
    runs = _ordered_runs(times, size, offset, first, numbers, starts)
    if runs:
        begins = starts[:runs].tolist()
        return WindowRuns(None, list(zip(numbers[:runs].tolist(), begins, [*begins[1:], len(times)], strict=True)))
    numbers = np.empty(len(times), np.int64)
    _number_windows(times, size, offset, first, numbers)
    if last - first < _DENSE_GROUPS:
        groups = numbers.astype(np.uint16)
        order: npt.NDArray[Any] = scatter_index(groups, np.bincount(groups, minlength=last - first + 1))
    else:
        order = np.argsort(numbers, kind="stable")
    return WindowRuns(order, [(number + first, start, end) for number, start, end in _runs(numbers[order])])


def group_by_number(numbers: Int64s) -> WindowRuns:
    """Group rows by window numbers without a regular pattern. Args: numbers: of each row; at least one."""
    if numbers[0] == numbers[-1] and (numbers == numbers[0]).all():
        return WindowRuns(None, [(int(numbers[0]), 0, len(numbers))])
    order: npt.NDArray[Any] | None = None
    if (numbers[1:] < numbers[:-1]).any():
        order = _ordered(numbers)
        numbers = numbers[order]
    return WindowRuns(order, _runs(numbers))


def _ordered(numbers: Int64s) -> npt.NDArray[Any]:
    """Return row numbers ordered by window, stable."""
    low, high = extent(numbers)
    if high - low < _DENSE_GROUPS:
        groups = (numbers - low).astype(np.uint16)
        return scatter_index(groups, np.bincount(groups, minlength=high - low + 1))
    known, groups = np.unique(numbers, return_inverse=True)
    if len(known) < _DENSE_GROUPS:
        return scatter_index(groups.astype(np.uint16), np.bincount(groups, minlength=len(known)))
    return np.argsort(numbers, kind="stable")


def _runs(numbers: Int64s) -> list[tuple[int, int, int]]:
    """Return (number, first, end) of ordered numbers."""
    starts = np.concatenate([[0], np.flatnonzero(numbers[1:] != numbers[:-1]) + 1])
    ends = np.append(starts[1:], len(numbers))
    return list(zip(numbers[starts].tolist(), starts.tolist(), ends.tolist(), strict=True))


@kernel("i8(i8[], i8, i8, i8, i8[]!, i8[]!)")
def _ordered_runs(times: Any, size: Any, offset: Any, first: Any, numbers: Any, starts: Any) -> Any:
    """Write the number and the first row of each window, and return how many there are.

    Returns 0 if a row is in an earlier window than the row before.
    """
    runs = np.int64(0)
    number = first
    low = first * size + offset
    for i in range(len(times)):
        ahead = times[i] - low
        if ahead < 0:
            return np.int64(0)
        if ahead >= size:  # skip the division: most rows are in the same window as the row before
            steps = ahead // size
            number += steps
            low += steps * size
        elif i:
            continue
        if runs == len(numbers):
            return np.int64(0)
        numbers[runs] = number
        starts[runs] = i
        runs += 1
    return runs


@kernel("void(i8[], i8, i8, i8, i8[]!)")
def _number_windows(times: Any, size: Any, offset: Any, first: Any, numbers: Any) -> None:
    """Write the number of the window of each row, minus `first`."""
    number = np.int64(0)
    low = first * size + offset
    for i in range(len(times)):
        ahead = times[i] - low
        if ahead < 0 or ahead >= size:
            steps = ahead // size
            number += steps
            low += steps * size
        numbers[i] = number
