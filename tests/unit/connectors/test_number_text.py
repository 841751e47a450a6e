"""Numbers that a column's type would change, found in a block of text."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.connectors.files.source.character_encoding import UndecodableRecordError
from tidegate.connectors.files.source.csv_records import CsvParser
from tidegate.connectors.files.source.number_text import loses_digits, may_have_leading_zeros, may_lose_digits


@given(st.from_regex(r"\A-?[0-9]{1,20}(\.[0-9]{0,20})?([eE][+-]?[0-9]{1,3})?\Z"))
def test_the_look_at_a_block_finds_what_the_look_at_its_number_finds(text: str) -> None:
    assert may_lose_digits(f'{{"x": {text}, "y": 1}}\n'.encode()) == loses_digits(text)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_as_it_is_printed_loses_nothing(number: float) -> None:
    assert not may_lose_digits(f"{number!r},{number:.17g}\n".encode())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("007", True),
        ("a,-007", True),
        ('"00"', True),
        (" 007", True),
        ("a,\t-007", True),
        ('" 00"', True),
        ("0x00FF", True),
        ("a,-0Xff", True),
        ("0,0.5", False),
        ("2026-01-02 03:04:05", False),
        ("2026-01-02T03:04:05Z", False),
        ("100", False),
    ],
)
def test_leading_zeros_are_those_of_a_field(text: str, expected: bool) -> None:
    assert may_have_leading_zeros(text.encode()) is expected


@pytest.mark.parametrize("place", [*range(65_500, 65_600), 0, 131_050, 131_080])
def test_a_number_is_found_wherever_it_stands_in_a_block(place: int) -> None:
    before, behind = b"x" * place, b",x\n" * 30_000
    assert may_lose_digits(before + b",9007199254740993" + behind)
    assert may_lose_digits(before + b",1e400" + behind)
    assert may_have_leading_zeros(before + b",-07" + behind)
    assert may_have_leading_zeros(before + b", \t -07" + behind)
    assert not may_lose_digits(before + b",12345" + behind)
    assert not may_have_leading_zeros(before + b",10" + behind)


@pytest.mark.parametrize("number", ["1e-99999999", '"2.5E-1234567"'])
def test_a_csv_decimal_with_a_huge_negative_exponent_is_refused(number: str) -> None:
    """Arrow's own parser would end the process."""
    schema = pa.schema([("d", pa.decimal128(10, 2)), ("s", pa.string())])
    parser = CsvParser(["d", "s"], schema, [""], keeps_digits=False)
    with pytest.raises(UndecodableRecordError, match=r"column 'd' has a number too small for decimal128\(10, 2\)"):
        parser.parse(f"{number},a\n".encode())
    assert parser.parse(b"5e-2,1e-99999999\n").to_pylist() == [{"d": Decimal("0.05"), "s": "1e-99999999"}]
