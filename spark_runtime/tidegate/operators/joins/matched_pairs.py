"""Finds matching rows of two sides by key and, if needed, by time; as row numbers, in compiled code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate.operators.batch_sizes import MAX_BATCH_ROWS
from tidegate.state.keyed_state import KeyNumbers
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.keys.key_index import Entries
from tidegate.state.numba_kernels import kernel


class Pairs:
    """The matches of probes with elements that are stored by key.

    Attributes:
        total: number of matches.
        counts: number of matches of each probe.
    """

    def __init__(self, owners: KeyNumbers, offsets: Int64s) -> None:
        """Match every probe with all elements of its key.

        Args:
            owners: the number of each probe's key.
            offsets: key k has elements offsets[k]:offsets[k + 1].
        """
        self._order: Int64s | None = None
        self._elements = int(offsets[-1])
        self._first, self._last = offsets[:-1][owners], offsets[1:][owners]
        self._count()

    @classmethod
    def within(cls, owners: KeyNumbers, offsets: Int64s, times: Int64s, limits: tuple[Int64s, Int64s]) -> Pairs:
        """Match every probe with those elements of its key whose time is within its limits, both included.

        Elements need not be in order of time.
        """
        pairs = cls.__new__(cls)
        pairs._order = None
        pairs._elements = len(times)
        if not _is_sorted(offsets, times):
            of_keys = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
            pairs._order = np.lexsort((times, of_keys))
            times = times[pairs._order]
        pairs._first, pairs._last = np.empty(len(owners), np.int64), np.empty(len(owners), np.int64)
        _find_ranges(owners, offsets, times, *limits, pairs._first, pairs._last)
        pairs._count()
        return pairs

    def matched_elements(self) -> npt.NDArray[np.bool_]:
        """Return which elements have a match."""
        # Each probe opens a range of elements and closes it. The running sum counts the ranges that contain an element.
        opened = np.bincount(self._first, minlength=self._elements + 1)
        closed = np.bincount(self._last, minlength=self._elements + 1)
        matched = np.cumsum(opened - closed)[:-1] > 0
        if self._order is None:
            return matched
        out = np.empty(self._elements, np.bool_)
        out[self._order] = matched
        return out

    def chunks(self) -> Iterator[tuple[Int64s, Int64s]]:
        """Return probe and element numbers of all pairs, at most `MAX_BATCH_ROWS` at a time, in order of the probes."""
        ends = np.cumsum(self.counts)
        for start in range(0, self.total, MAX_BATCH_ROWS):
            size = min(MAX_BATCH_ROWS, self.total - start)
            probes, elements = np.empty(size, np.int64), np.empty(size, np.int64)
            _write_pairs(start, int(np.searchsorted(ends, start, "right")), ends, self._last, probes, elements)
            yield probes, elements if self._order is None else self._order[elements]

    def _count(self) -> None:
        self.counts = self._last - self._first
        self.total = int(self.counts.sum())


def pair_rows(matches: Entries, starts: Int64s, rows: Int64s, keep_unmatched: bool) -> tuple[Int64s, Int64s]:
    """Return every pair of a left row and a right row with its key, in the order of the left rows.

    Args:
        matches: for each left row the number of its key, or -1: no match.
        starts: key k has the right rows rows[starts[k]:starts[k + 1]].
        rows: right row numbers by key.
        keep_unmatched: keep left rows without a match, with right row -1.

    Returns:
        left and right row numbers, of the same length.
    """
    total = _count_row_pairs(matches, starts, keep_unmatched)
    left, right = np.empty(total, np.int64), np.empty(total, np.int64)
    _write_row_pairs(matches, starts, rows, keep_unmatched, left, right)
    return left, right


def last_not_after(owners: KeyNumbers, offsets: Int64s, times: Int64s, limits: Int64s) -> Int64s:
    """Return for each probe the last element of its key whose time is not after its limit, or -1.

    Elements of a key must be in order of time.
    """
    first, last = np.empty(len(owners), np.int64), np.empty(len(owners), np.int64)
    _find_ranges(owners, offsets, times, np.full(len(owners), np.iinfo(np.int64).min), limits, first, last)
    return np.where(last > first, last - 1, -1)


@kernel("b1(i8[], i8[])")
def _is_sorted(offsets: Any, times: Any) -> Any:
    for key in range(len(offsets) - 1):
        for i in range(offsets[key] + 1, offsets[key + 1]):
            if times[i] < times[i - 1]:
                return False
    return True


@kernel("void(i4[], i8[], i8[], i8[], i8[], i8[]!, i8[]!)")
def _find_ranges(owners: Any, offsets: Any, times: Any, lows: Any, highs: Any, first: Any, last: Any) -> None:
    for i in range(len(owners)):
        low = offsets[owners[i]]
        end = offsets[owners[i] + 1]
        high = end
        while low < high:  # first time >= lows[i]
            middle = (low + high) // 2
            if times[middle] < lows[i]:
                low = middle + 1
            else:
                high = middle
        first[i] = low
        high = end
        while low < high:  # first time > highs[i]
            middle = (low + high) // 2
            if times[middle] <= highs[i]:
                low = middle + 1
            else:
                high = middle
        last[i] = low


@kernel("void(i8, i8, i8[], i8[], i8[]!, i8[]!)")
def _write_pairs(start: Any, probe: Any, ends: Any, last: Any, probes: Any, elements: Any) -> None:
    for i in range(len(probes)):
        while ends[probe] <= start + i:
            probe += 1
        probes[i] = probe
        elements[i] = last[probe] - (ends[probe] - (start + i))


@kernel("i8(i4[], i8[], b1)")
def _count_row_pairs(matches: Any, starts: Any, keep_unmatched: Any) -> Any:
    total = 0
    for i in range(len(matches)):
        key = matches[i]
        if key >= 0:
            total += starts[key + 1] - starts[key]
        elif keep_unmatched:
            total += 1
    return total


@kernel("void(i4[], i8[], i8[], b1, i8[]!, i8[]!)")
def _write_row_pairs(matches: Any, starts: Any, rows: Any, keep_unmatched: Any, left: Any, right: Any) -> None:
    at = 0
    for i in range(len(matches)):
        key = matches[i]
        if key >= 0:
            for j in range(starts[key], starts[key + 1]):
                left[at] = i
                right[at] = rows[j]
                at += 1
        elif keep_unmatched:
            left[at] = i
            right[at] = -1
            at += 1
