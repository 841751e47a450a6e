"""The first rows of each entry in an order: one row is found without sorting, and is the row that sorting finds."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.state.aggregates.aggregation import Aggregation
from tidegate.state.aggregates.ordered_rows import MAX_BY, TOP_ROWS, BestRows, Order

VALUES = st.none() | st.integers(-2, 2)
ROWS = st.lists(st.tuples(st.integers(0, 5), VALUES, VALUES), min_size=1)


def folded(rows: list[tuple[int, int | None, int | None]], order: Order, orders: int, limit: int) -> list[list[int]]:
    """Return [entry, row number] of each row that is kept."""
    entries = np.array([entry for entry, _, _ in rows], np.int32)
    numbers = pa.array(range(len(rows)), pa.int64())
    columns = [pa.array([row[at] for row in rows], pa.int64()) for at in (1, 2)][:orders]
    aggregation = Aggregation(
        "best", MAX_BY if limit == 1 else TOP_ROWS, (pa.int64(),) * (1 + orders), pa.int64(), limit, orders
    )
    kept, (found, *_) = BestRows(aggregation, order, is_list=limit > 1).fold(entries, [numbers, *columns])
    return [[int(entry), number] for entry, number in zip(kept, found.to_pylist(), strict=True)]


def best(rows: list[tuple[int, int | None, int | None]], order: Order, orders: int, limit: int) -> list[list[int]]:
    """The same in plain Python. A null is last, but first if the order descends (callers leave such rows out)."""

    def key(number: int) -> list[tuple[bool, int] | int]:
        keys: list[tuple[bool, int] | int] = []
        for at in range(1, 1 + orders):
            value = rows[number][at]
            descends = order.descends and at == 1
            if value is None:
                keys.append((not descends, 0))
            else:
                keys.append((descends, -value if descends else value))
        return [*keys, -number if order.last_wins else number]

    found: dict[int, list[int]] = {}
    for number in sorted(range(len(rows)), key=key):
        found.setdefault(rows[number][0], []).append(number)
    return [[entry, number] for entry in sorted(found) for number in found[entry][:limit]]


@pytest.mark.parametrize("orders", [0, 1, 2])
@pytest.mark.parametrize("limit", [1, 2])
@given(ROWS, st.booleans(), st.booleans())
def test_the_first_rows_of_each_entry(
    orders: int, limit: int, rows: list[tuple[int, int | None, int | None]], descends: bool, last_wins: bool
) -> None:
    order = Order(descends=descends, last_wins=last_wins)
    assert folded(rows, order, orders, limit) == best(rows, order, orders, limit)


def test_entries_that_are_far_apart_are_sorted() -> None:
    """An array with a place for each entry between them would be large."""
    rows: list[tuple[int, int | None, int | None]] = [(2**31 - 1, 1, 0), (0, 2, 0), (0, 1, 0)]
    assert folded(rows, Order(), 1, 1) == [[0, 2], [2**31 - 1, 0]]
