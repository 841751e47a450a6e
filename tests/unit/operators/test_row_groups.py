"""Rows of a batch, grouped by window: the same rows in the same order, whether the times are in order or not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.operators.windows.row_groups import group_by_window

SIZE, OFFSET = 10, 3


def grouped(times: list[int]) -> dict[int, list[int]]:
    """Return the row numbers of each window, from the runs."""
    found = group_by_window(np.array(times, np.int64), SIZE, OFFSET)
    order = range(len(times)) if found.order is None else found.order.tolist()
    assert [start for _, start, _ in found.runs] == [0, *(end for _, _, end in found.runs[:-1])]
    assert found.runs[-1][2] == len(times)
    assert [number for number, _, _ in found.runs] == sorted({number for number, _, _ in found.runs})
    return {number: [order[at] for at in range(start, end)] for number, start, end in found.runs}


def expected(times: list[int]) -> dict[int, list[int]]:
    rows: dict[int, list[int]] = {}
    for row, time in enumerate(times):
        rows.setdefault((time - OFFSET) // SIZE, []).append(row)
    return dict(sorted(rows.items()))


@given(st.lists(st.integers(-100, 100), min_size=1), st.booleans())
def test_each_row_is_in_its_window(times: list[int], ordered: bool) -> None:
    times = sorted(times) if ordered else times
    assert grouped(times) == expected(times)


@pytest.mark.parametrize("times", [[2, 3, 13, 12], [3, 13, 3], [500, 3], [3, 10**12, 10**15], [10**12, 3]])
def test_windows_far_apart_and_steps_back(times: list[int]) -> None:
    assert grouped(times) == expected(times)


def test_rows_in_the_order_of_their_windows_are_not_reordered() -> None:
    """Times within a window may be in any order."""
    assert group_by_window(np.array([9, 3, 12, 22, 14, 90], np.int64), SIZE, OFFSET).order is None
