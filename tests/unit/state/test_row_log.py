"""Aggregates that keep rows, in batches of any size: few pieces, and the same results."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.state.aggregates.aggregation import Aggregation
from tidegate.state.aggregates.ordered_rows import COLLECT
from tidegate.state.aggregates.row_log import FOLD_ROWS, JOINED_PIECES, LoggedValues, RowLog
from tidegate.state.copy_on_write import CopyOnWriteArrays


def new_log() -> RowLog:
    made = COLLECT.accumulator(Aggregation("all", COLLECT, (pa.int64(),), pa.list_(pa.int64())), CopyOnWriteArrays(1))
    assert isinstance(made, RowLog)
    return made


def add(log: RowLog, entries: list[int], values: list[int]) -> None:
    log.add(np.array(entries, np.int32), LoggedValues((pa.array(values, pa.int64()),)), 0)


def test_batches_of_one_row_do_not_stay_apart() -> None:
    """Each result and each snapshot reads all pieces."""
    log, rows = new_log(), 5_000
    for number in range(rows):
        add(log, [number % 3], [number])
        assert len(log._more) < JOINED_PIECES * (1 + np.log(1 + number) / np.log(JOINED_PIECES))
    assert log.result(np.array([1], np.int32)).to_pylist() == [list(range(1, rows, 3))]


def test_large_batches_are_not_copied_before_they_are_folded() -> None:
    log, size = new_log(), FOLD_ROWS // JOINED_PIECES + 1
    add(log, [0] * FOLD_ROWS, [0] * FOLD_ROWS)  # all are kept, so that the next fold waits for twice as many
    for _ in range(JOINED_PIECES):
        add(log, [0] * size, [1] * size)
    assert [len(entries) for entries, _ in log._more] == [size] * JOINED_PIECES


@pytest.mark.parametrize("last", [1, FOLD_ROWS])
@given(st.lists(st.integers(1, 30)), st.integers(0, 100))
def test_the_rows_of_an_entry_keep_their_order(last: int, sizes: list[int], frozen_after: int) -> None:
    log, wanted, at = new_log(), [list[int](), list[int]()], 0
    frozen: tuple[object, list[list[int]]] | None = None
    for number, size in enumerate([*sizes, last]):
        values = list(range(at, at + size))
        add(log, [value % 2 for value in values], values)
        for value in values:
            wanted[value % 2].append(value)
        at += size
        if number == frozen_after:
            frozen = log.freeze(), [list(rows) for rows in wanted]
    for entry in (0, 1):
        assert log.result(np.array([entry], np.int32)).to_pylist() == [wanted[entry]]
    assert log.result(slice(0, 2)).to_pylist() == wanted
    if frozen is not None:
        read, then = frozen
        assert read({}, 0, 2)[0].to_pylist() == then  # type: ignore[operator]
