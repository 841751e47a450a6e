"""Kernels of the stored rows of a join; see `span_table`.

Rows have numbers, in order of arrival. `heads`, by entry of an index of keys, and `following` chain the rows of a key,
the last to arrive first. `positions` are their times, or the starts of their windows.

Links let a search skip rows of a long chain. `jumps` leads from a row to an older row of its chain, in such steps that
any older row is a logarithmic number of steps away (a skew-binary list); `depths` is the number of rows from here to
the end of the chain. `least` is the least position of the rows that a jump skips, the row itself included, and
`greatest` the greatest position from the row to the end of its chain. Without links, these arrays are empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tidegate.state.numba_kernels import kernel

NEW_PROBE = -2
"""In a cursor: the probe has not begun."""


@kernel("void(i4[], i8, i4[]!, i4[]!)")
def chain_rows(entries: Any, first: Any, heads: Any, following: Any) -> None:
    """Put rows first, first + 1, ... to the fronts of the chains of their keys."""
    for i in range(len(entries)):
        following[first + i] = heads[entries[i]]
        heads[entries[i]] = np.int32(first + i)


@kernel("void(i8, i8, i4[], i8[], i4[]!, i4[]!, i8[]!, i8[]!)")
def link_rows(
    start: Any, stop: Any, following: Any, positions: Any, jumps: Any, depths: Any, least: Any, greatest: Any
) -> None:
    """Set the links of rows start..stop, which are chained. All older rows have links."""
    for row in range(start, stop):
        older = following[row]
        position = positions[row]
        least[row] = position
        greatest[row] = position
        jumps[row] = older
        depths[row] = 1
        if older >= 0:
            depths[row] = depths[older] + 1
            greatest[row] = max(position, greatest[older])
            middle = jumps[older]
            if middle >= 0:
                end = jumps[middle]
                end_depth = depths[end] if end >= 0 else np.int32(0)
                # Two jumps of one length become one of their sum.
                if depths[older] - depths[middle] == depths[middle] - end_depth:
                    jumps[row] = end
                    least[row] = min(position, min(least[older], least[middle]))


@kernel("i8(i4[], i8[], i8[], i4[], i4[], i8[], i4[], i8[], i8[], b1, i8[]!, i8[]!, i8[]!)")
def find_pairs(
    entries: Any,
    lows: Any,
    highs: Any,
    heads: Any,
    following: Any,
    positions: Any,
    jumps: Any,
    least: Any,
    greatest: Any,
    only_first: Any,
    cursor: Any,
    probes: Any,
    rows: Any,
) -> Any:
    """Write pairs of a probe and a row of its key whose position is in lows..highs, both included.

    Args:
        entries: entry of each probe's key, or -1.
        only_first: write at most one pair for each probe.
        cursor: next probe, next row of its chain or `NEW_PROBE`, number of rows that were visited. If `probes` is full,
            the next call continues from there.

    Returns:
        number of pairs. All are found if the next probe is len(entries).
    """
    room = len(probes)
    linked = len(jumps) > 0
    probe, row, visited = cursor[0], cursor[1], cursor[2]
    found = 0
    while probe < len(entries):
        if row == NEW_PROBE:
            row = np.int64(heads[entries[probe]]) if entries[probe] >= 0 else np.int64(-1)
        low, high = lows[probe], highs[probe]
        while row >= 0:
            visited += 1
            if linked:
                if greatest[row] < low:
                    break
                if least[row] > high:
                    row = np.int64(jumps[row])
                    continue
            if low <= positions[row] <= high:
                if found == room:
                    cursor[0], cursor[1], cursor[2] = probe, row, visited
                    return found
                probes[found] = probe
                rows[found] = row
                found += 1
                if only_first:
                    break
            row = np.int64(following[row])
        probe += 1
        row = np.int64(NEW_PROBE)
    cursor[0], cursor[1], cursor[2] = probe, row, visited
    return found


@kernel("i8(i4[]!, i8[]!, i8[]!)")
def merge_ranges(entries: Any, lows: Any, highs: Any) -> Any:
    """Merge overlapping ranges of one entry, in place. They are ordered by entry, then by low. Returns how many
    remain."""
    kept = 0
    for i in range(len(entries)):
        if kept > 0 and entries[i] == entries[kept - 1] and lows[i] <= highs[kept - 1]:
            highs[kept - 1] = max(highs[kept - 1], highs[i])
        else:
            entries[kept], lows[kept], highs[kept] = entries[i], lows[i], highs[i]
            kept += 1
    return kept
