"""Columns of any type, read and written by entry."""

from __future__ import annotations

import datetime as dt
import decimal
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.errors import PipelineError
from tidegate.state.arrow import arrow_columns
from tidegate.state.arrow.arrow_buffers import ranges_of
from tidegate.state.arrow.arrow_columns import new_column
from tidegate.state.copy_on_write import CopyOnWriteArrays

CASES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [1, -1, None]),
    "float16": (pa.float16(), [np.float16(1.5), None]),
    "bool": (pa.bool_(), [True, False, None]),
    "decimal": (pa.decimal128(20, 2), [decimal.Decimal("1.25"), None]),
    "date": (pa.date32(), [dt.date(2013, 1, 1), None]),
    "fixed binary": (pa.binary(3), [b"abc", None]),
    "string": (pa.string(), ["", "x" * 70, None, "ü"]),
    "large binary": (pa.large_binary(), [b"", b"\x00" * 9, None]),
    "list": (pa.list_(pa.int32()), [[], [1, None, 3], None]),
    "list of strings": (pa.large_list(pa.string()), [[], ["a", None, "bcd"], None, [""]]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1), ("b", None)], [], None]),
    "struct": (
        pa.struct([("a", pa.int64()), ("b", pa.list_(pa.struct([("c", pa.string())])))]),
        [{"a": 1, "b": [{"c": "x"}, None]}, None, {"a": None, "b": None}],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_entries_are_overwritten_and_read_in_any_order(case: str) -> None:
    type_, values = CASES[case]
    cells = CopyOnWriteArrays(16)
    column = new_column(cells, "c", type_)
    held: list[Any] = [None] * 16
    choose = random.Random(7)
    for _ in range(60):
        entries = choose.sample(range(16), choose.randint(0, 16))
        chosen = [choose.choice(values) for _ in entries]
        padded = pa.array([values[0], *chosen, values[0]], type_).slice(1, len(chosen))
        column.put(np.array(entries, np.int32), padded)
        for entry, value in zip(entries, chosen, strict=True):
            held[entry] = value
        asked = [choose.randrange(-1, 16) for _ in range(20)]
        found = column.take(cells.arrays, np.array(asked, np.int32))
        found.validate(full=True)
        assert found.equals(pa.array([None if n < 0 else held[n] for n in asked], type_))


@pytest.mark.parametrize("case", ["string", "list of strings", "map", "struct"])
def test_a_log_that_is_mostly_dead_is_written_anew_and_what_was_frozen_stays(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_columns, "COMPACT_BYTES", 100)
    type_, values = CASES[case]
    cells = CopyOnWriteArrays(64)
    column = new_column(cells, "c", type_)
    entries = np.arange(64, dtype=np.int32)
    frozen: list[Any] = []
    for step in range(40):
        array = pa.array([values[(n + step) % len(values)] for n in range(64)], type_)
        cells.touch(entries)
        column.put(entries, array)
        frozen.append((array, cells.freeze(64), column.pin()))
    for array, version, take in reversed(frozen):
        assert take(version.read(0), entries).equals(array)
    log = getattr(column, "_log", None)
    assert log is None or log.size < 64 * 80 * 3


def test_a_type_that_state_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(PipelineError, match="'c'.*dictionary"):
        new_column(CopyOnWriteArrays(1), "c", pa.dictionary(pa.int8(), pa.string()))


def test_a_value_of_2_to_the_31_is_refused_and_the_limit_is_named() -> None:
    """Elements of type null take no room."""
    offsets = np.array([0, 2**31 - 1, 2**32 - 1, 2**32 + 1], np.int64)
    elements = pa.nulls(2**32 + 1)

    def array(size: int, validity: bytes | None = None) -> pa.Array:
        buffers = [None if validity is None else pa.py_buffer(validity), pa.py_buffer(offsets)]
        return pa.Array.from_buffers(pa.large_list(pa.null()), size, buffers, children=[elements])

    assert ranges_of(array(1))[1].tolist() == [2**31 - 1]
    assert ranges_of(array(3, b"\x05"))[1].tolist() == [2**31 - 1, -1, 2], "null, whatever is under it"
    with pytest.raises(PipelineError, match=r"2147483648 bytes or elements, the limit is 2147483647"):
        ranges_of(array(3))
