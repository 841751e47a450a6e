"""Rows of a batch, grouped by window: the same rows in the same order, whether the times are in order or not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.operators.windows.row_groups import group_by_window

SIZE, OFFSET = 10, 3


LEAST, GREATEST = -(2**63), 2**63 - 1
ANY_TIME = st.sampled_from([LEAST, LEAST + 1, -1, 0, GREATEST - 1, GREATEST]) | st.integers(LEAST, GREATEST)


def grouped(times: list[int], size: int = SIZE, offset: int = OFFSET) -> dict[int, list[int]]:
    """Return the row numbers of each window, from the runs."""
    found = group_by_window(np.array(times, np.int64), size, offset)
    order = range(len(times)) if found.order is None else found.order.tolist()
    assert [start for _, start, _ in found.runs] == [0, *(end for _, _, end in found.runs[:-1])]
    assert found.runs[-1][2] == len(times)
    assert [number for number, _, _ in found.runs] == sorted({number for number, _, _ in found.runs})
    return {number: [order[at] for at in range(start, end)] for number, start, end in found.runs}


def expected(times: list[int], size: int = SIZE, offset: int = OFFSET) -> dict[int, list[int]]:
    rows: dict[int, list[int]] = {}
    for row, time in enumerate(times):
        rows.setdefault((time - offset) // size, []).append(row)
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


@given(
    st.lists(ANY_TIME, min_size=1), st.booleans(), st.sampled_from([10, 3_600 * 10**9, 365 * 86_400 * 10**9]), st.data()
)
def test_times_at_the_limits_of_int64(times: list[int], ordered: bool, size: int, data: st.DataObject) -> None:
    """As nanoseconds, `pandas.Timestamp.max` is a usual placeholder: windows must not overflow, nor write too much."""
    times = sorted(times) if ordered else times
    offset = data.draw(st.integers(-size, size))
    assert grouped(times, size, offset) == expected(times, size, offset)


@pytest.mark.parametrize("size", [3_600 * 10**9, 30 * 86_400 * 10**9])
def test_many_rows_at_the_last_time_are_in_one_window(size: int) -> None:
    times = [1_700_000_000 * 10**9] * 10 + [GREATEST] * 5_000
    assert grouped(times, size, 0) == expected(times, size, 0)
