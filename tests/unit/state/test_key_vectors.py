"""Keys of every type: their bytes, hashes and groups are the same everywhere and for ever (S5.1)."""

from __future__ import annotations

import decimal
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from state_suites.key_vectors import arrays, vectors

from tidegate.state.keys.decimal_keys import decimal_array, decimal_bytes
from tidegate.state.keys.key_bytes import is_key_type, valid_mask
from tidegate.state.keys.key_index import KeyReader
from tidegate.state.keys.key_types import stored_array, stored_type

GOLDEN = Path(__file__).parent / "golden" / "key_bytes.v1.json"
SUPPORT = Path(__file__).parents[2] / "support"


def test_keys_of_every_type_have_the_golden_bytes_hashes_and_groups() -> None:
    """Never change this file but by adding types: key groups in snapshots were made from it."""
    assert vectors() == json.loads(GOLDEN.read_text(encoding="utf-8"))


@pytest.mark.parametrize("seed", ["0", "4711"])
def test_another_process_with_another_hash_seed_gives_the_same(seed: str) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "state_suites.key_vectors"],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(SUPPORT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == GOLDEN.read_text(encoding="utf-8")


def test_equal_keys_of_different_types_have_equal_bytes() -> None:
    golden = vectors()
    for alike in (
        ["int8", "int16", "int32", "int64", "dictionary of int16"],
        ["string", "large_string", "string_view", "dictionary of string"],
        ["binary", "large_binary", "binary_view"],
        ["timestamp[ms]", "timestamp[us]", "timestamp[ns]", "timestamp[us, zone]"],
        ["date32", "date64"],
        ["time32[ms]", "time64[us]"],
        ["duration[ms]", "duration[us]", "duration[ns]"],
    ):
        assert all(golden[name] == golden[alike[0]] for name in alike)
    assert golden["decimal64"][:10] == golden["decimal128"][:10] == golden["decimal256"][:10]
    assert golden["decimal128 of tens"][0] == golden["decimal64"][3]


def test_types_that_could_be_mistaken_for_each_other_have_different_bytes() -> None:
    """A key column of a state never holds two types, but composite keys stand next to each other."""
    golden = vectors()
    firsts = [golden[name][0][0] for name in ("int8", "bool", "timestamp[us]", "time64[us]", "duration[us]", "string")]
    firsts += [golden[name][0][0] for name in ("binary", "decimal64", "float64", "date32")]
    assert len(set(firsts)) == len(firsts)


@pytest.mark.parametrize("name", arrays())
def test_an_index_gives_keys_of_every_type_back_as_they_were(name: str) -> None:
    array = arrays()[name]
    assert is_key_type(array.type) and is_key_type(stored_type(array.type))
    for columns in ([array], [array, array]):
        names = [str(i) for i in range(len(columns))]
        batch = pa.RecordBatch.from_arrays(columns, names)
        reader = KeyReader(batch.schema, names)
        index = reader.new_index()
        entries = np.empty(len(array), np.int32)
        index.find_or_add(reader.read(batch), 0, len(array), entries)
        assert index.size == len({row[0] for row in vectors()[name]})
        again = np.empty(len(array), np.int32)
        index.find(reader.read(batch.slice(2)), 0, len(array) - 2, again)
        assert again[: len(array) - 2].tolist() == entries[2:].tolist()
        held = index.key_columns(0, index.size).column(0)
        assert held.type == stored_type(array.type)
        if not pa.types.is_floating(array.type):
            assert held.take(pa.array(entries)).equals(stored_array(array))


def model(number: decimal.Decimal | None) -> bytes:
    """Canonical bytes of a decimal in plain Python."""
    if number is None or number == 0:
        return b"" if number is None else b"\x00\x00"
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    whole = int("".join(map(str, digits)))
    while whole % 10 == 0:
        whole, exponent = whole // 10, exponent + 1
    whole = -whole if sign else whole
    length = next(n for n in range(1, 33) if -(2 ** (8 * n - 1)) <= whole < 2 ** (8 * n - 1))
    return (-exponent).to_bytes(2, "little", signed=True) + whole.to_bytes(length, "little", signed=True)


@pytest.mark.parametrize(
    ("type_", "digits"), [(pa.decimal64(18, 3), 18), (pa.decimal128(38, 10), 38), (pa.decimal256(76, 40), 76)]
)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_decimals_have_the_bytes_of_the_model_and_come_back(type_: Any, digits: int, data: st.DataObject) -> None:
    limit = 10**digits - 1
    whole = st.integers(-limit, limit) | st.integers(-300, 300).map(lambda n: n * 10 ** (digits // 3))
    numbers = data.draw(st.lists(st.none() | whole, max_size=20))
    with decimal.localcontext(prec=100):
        values = [None if n is None else decimal.Decimal(n).scaleb(-type_.scale) for n in numbers]
        array = pa.array([None, *values], type_).slice(1)
        found, offsets = decimal_bytes(array, valid_mask(array))
        assert [found[a:b].tobytes() for a, b in zip(offsets, offsets[1:])] == [model(v) for v in values]
    is_null = np.array([n is None for n in numbers], np.bool_)
    back = decimal_array(found, offsets[:-1], np.diff(offsets), is_null if is_null.any() else None, type_)
    assert back.equals(array)
