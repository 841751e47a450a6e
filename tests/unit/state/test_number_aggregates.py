"""Aggregates as SQL has them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.state.aggregates.numbers import Accumulator, SumOverflowError, read_values
from tidegate.state.copy_on_write import CopyOnWriteArrays


def aggregate(function: Any, array: pa.Array, output: pa.DataType, entries: list[int] | None = None) -> list[Any]:
    entries = [0] * len(array) if entries is None else entries
    accumulator = Accumulator("x", function, array.type, output)
    accumulator.grow(max(entries) + 1)
    accumulator.add(np.array(entries, np.int32), read_values(array, function), 0)
    return accumulator.result(slice(0, max(entries) + 1)).to_pylist()


def test_nulls_are_ignored_and_no_values_give_null_but_count_gives_zero() -> None:
    array = pa.array([None, 3, None, 4], pa.int64())
    entries = [0, 1, 1, 1]
    assert aggregate("count", array, pa.int64(), entries) == [0, 2]
    assert aggregate("sum", array, pa.int64(), entries) == [None, 7]
    assert aggregate("min", array, pa.int64(), entries) == [None, 3]
    assert aggregate("max", array, pa.int64(), entries) == [None, 4]
    assert aggregate("mean", array, pa.float64(), entries) == [None, 3.5]


def test_a_null_after_values_does_not_make_earlier_entries_null() -> None:
    accumulator = Accumulator("x", "sum", pa.int64(), pa.int64())
    accumulator.grow(3)
    accumulator.add(np.array([0], np.int32), read_values(pa.array([5]), "sum"), 0)
    accumulator.add(np.array([1], np.int32), read_values(pa.array([None], pa.int64()), "sum"), 1)
    accumulator.add(np.array([2], np.int32), read_values(pa.array([6]), "sum"), 2)
    assert accumulator.result(slice(0, 3)).to_pylist() == [5, None, 6]


@pytest.mark.parametrize("values", [[2**63 - 1, 1], [-(2**63), -1]])
def test_a_sum_beyond_64_bits_fails_and_names_the_column(values: list[int]) -> None:
    with pytest.raises(SumOverflowError, match="'x'.*double"):
        aggregate("sum", pa.array(values, pa.int64()), pa.int64())


def test_a_sum_of_unsigned_numbers_beyond_64_bits_fails() -> None:
    assert aggregate("sum", pa.array([2**62, 2**62 - 1], pa.uint64()), pa.int64()) == [2**63 - 1]
    with pytest.raises(SumOverflowError):
        aggregate("sum", pa.array([2**63], pa.uint64()), pa.int64())


def test_unsigned_numbers_are_compared_as_unsigned() -> None:
    array = pa.array([1, 2**64 - 1], pa.uint64())
    assert aggregate("max", array, pa.uint64()) == [2**64 - 1]
    assert aggregate("min", array, pa.uint64()) == [1]


@pytest.mark.parametrize("order", [[1.0, math.nan, 2.0], [math.nan, 1.0, 2.0], [1.0, 2.0, math.nan]])
def test_nan_is_greater_than_every_number(order: list[float]) -> None:
    assert math.isnan(aggregate("max", pa.array(order), pa.float64())[0])
    assert aggregate("min", pa.array(order), pa.float64()) == [1.0]
    assert math.isnan(aggregate("min", pa.array([math.nan]), pa.float64())[0])


@pytest.mark.parametrize(
    "array",
    [
        pa.array([1, 5], pa.int8()),
        pa.array([1.5, 2.5], pa.float32()),
        pa.array([1, 5], pa.timestamp("ms", "UTC")),
        pa.array([1, 5], pa.date32()),
        pa.array([1, 5], pa.date64()).cast(pa.date64()),
    ],
    ids=lambda array: str(array.type),
)
def test_min_and_max_keep_the_type(array: pa.Array) -> None:
    low, high = array.to_pylist()
    assert aggregate("min", array, array.type) == [low]
    assert aggregate("max", array, array.type) == [high]


@pytest.mark.parametrize("function", ["count", "sum", "min", "max", "mean"])
@pytest.mark.parametrize("values", [[1.5, None, 4.0], [math.nan, None, -math.inf]])
def test_restored_aggregates_go_on_where_the_frozen_ones_were(function: Any, values: list[float | None]) -> None:
    def rows(array: pa.Array) -> Any:
        return read_values(array, function)

    output = pa.int64() if function == "count" else pa.float64()
    entries = np.array([0, 1, 2], np.int32)
    more = pa.array([2.0, None, 8.0])
    cells = CopyOnWriteArrays(3)
    going = Accumulator("x", function, pa.float64(), output, cells)
    going.add(entries, rows(pa.array(values)), 0)
    frozen = cells.freeze(3)
    cells.touch(entries)
    going.add(entries, rows(more), 3)
    state = going.freeze()(frozen.read(0), 0, 3)
    restored = Accumulator("x", function, pa.float64(), output)
    restored.grow(8)
    restored.merge(np.arange(3, dtype=np.int32), state, 0)
    restored.add(entries, rows(more), 3)
    assert restored.result(slice(0, 3)).to_pylist() == pytest.approx(going.result(slice(0, 3)).to_pylist(), nan_ok=True)
    assert [c.type for c in state] == restored.state_schema.types
