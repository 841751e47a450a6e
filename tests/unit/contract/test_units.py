"""Durations and sizes with their units."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.contract.errors import OptionError
from tidegate.contract.units import ByteSize, format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("500 ms", timedelta(milliseconds=500)),
        ("10 min", timedelta(minutes=10)),
        ("2 h 30 min", timedelta(hours=2, minutes=30)),
        ("2h30min", timedelta(hours=2, minutes=30)),
        ("1.5 s", timedelta(milliseconds=1500)),
        ("0 s", timedelta(0)),
        ("1 day", timedelta(days=1)),
        ("1 hour", timedelta(hours=1)),
        (" 3 seconds ", timedelta(seconds=3)),
        ("7 us", timedelta(microseconds=7)),
    ],
)
def test_a_duration_with_its_unit_is_read_exactly(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize("value", ["10", "", "min", "10 fortnights", "-1 s", "1 s x", "0.1 us", "1e3 s", 10, 1.5, None])
def test_anything_else_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(OptionError, match='500 ms"'):
        parse_duration(value, where="option x")  # type: ignore[arg-type]


def test_negative_and_overlong_durations_are_refused() -> None:
    with pytest.raises(OptionError, match="negative"):
        parse_duration(timedelta(seconds=-1))
    with pytest.raises(OptionError, match="too long"):
        parse_duration("99999999999999 d")


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=10_000)))
def test_a_formatted_duration_is_read_back_as_itself(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("4 MiB", 4 * 2**20), ("1 GiB", 2**30), ("20KiB", 20480), ("1.5 KiB", 1536), ("0 B", 0), ("2 MB", 2_000_000)],
)
def test_a_size_with_its_unit_is_read_exactly(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("value", ["4", "4 mib", "MiB", "-1 B", "1 MiB 2 KiB", "0.3 B", 4, None])
def test_any_other_size_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(OptionError, match='4 MiB"'):
        parse_size(value)  # type: ignore[arg-type]


@given(st.integers(min_value=0, max_value=2**50))
def test_a_formatted_size_is_read_back_as_itself(size_bytes: int) -> None:
    assert parse_size(format_size(size_bytes)) == size_bytes
    assert parse_size(ByteSize(size_bytes)) == size_bytes
