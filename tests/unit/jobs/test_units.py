"""Durations and sizes with their units."""

from __future__ import annotations

from datetime import timedelta

import pendulum
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import OptionError
from tidegate.units import ByteSize, format_duration, format_size, parse_calendar_span, parse_duration, parse_size


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
        ("2 weeks", timedelta(weeks=2)),
        ("1w 1d", timedelta(days=8)),
        ("PT10S", timedelta(seconds=10)),
        ("P1D", timedelta(days=1)),
        ("P2W", timedelta(weeks=2)),
        ("P1DT2H30M", timedelta(days=1, hours=2, minutes=30)),
        ("PT0.000001S", timedelta(microseconds=1)),
        ("PT1M", timedelta(minutes=1)),
        ("P0.001D", timedelta(seconds=86.4)),
        ("PT1.001H", timedelta(seconds=3603.6)),
        ("P1.23D", timedelta(days=1.23)),
        ("PT4294967306S", timedelta(seconds=4294967306)),
        ("PT1,5S", timedelta(seconds=1.5)),
        ("+5 min", timedelta(minutes=5)),
    ],
)
def test_a_duration_with_its_unit_is_read_exactly(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


NO_DURATIONS = [
    "P",
    "PT",
    "P1DT",
    "10S",
    "P1",
    "pt10s",
    "PT10",
    "PT0.0000001S",
    "P1D1W",
    "-PT10S",
    "--1 s",
    "1 h -5 min",
]


@pytest.mark.parametrize(
    "value", ["10", "", "min", "10 fortnights", "-1 s", "1 s x", "0.1 us", "1e3 s", 10, 1.5, None, *NO_DURATIONS]
)
def test_anything_else_is_refused_with_an_example(value: object) -> None:
    with pytest.raises(OptionError, match='500 ms"'):
        parse_duration(value, where="option x")  # type: ignore[arg-type]


def test_negative_and_overlong_durations_are_refused() -> None:
    with pytest.raises(OptionError, match="negative"):
        parse_duration(timedelta(seconds=-1))
    with pytest.raises(OptionError, match="too long"):
        parse_duration("99999999999999 d")


@pytest.mark.parametrize("text", ["-5 min", "- 5 min", "-PT5M", timedelta(minutes=-5), pendulum.duration(minutes=-5)])
def test_a_sign_is_read_where_it_may_stand(text: str | timedelta) -> None:
    assert parse_duration(text, signed=True) == timedelta(minutes=-5)
    with pytest.raises(OptionError, match="negative"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("value", "unit"),
    [
        ("1 month", "month"),
        ("P1M", "month"),
        ("2 years", "year"),
        ("1 quarter", "quarter"),
        ("1 month 2 days", "month"),
        ("P1Y2M", "month"),
        (pendulum.duration(months=1), "month"),
    ],
)
def test_a_calendar_unit_is_no_fixed_duration(value: str | timedelta, unit: str) -> None:
    with pytest.raises(OptionError, match="is not a fixed duration") as caught:
        parse_duration(value, where="option checkpoint_interval")
    assert caught.value.cause == f"a {unit} has no fixed length" and caught.value.remedy is not None
    assert "checkpoint_interval" in str(caught.value)


@pytest.mark.parametrize(
    ("value", "span"),
    [
        ("1 day", (1, "day")),
        ("P1D", (1, "day")),
        ("24 h", (24, "hour")),
        (timedelta(days=1), (1, "day")),
        (timedelta(hours=6), (6, "hour")),
        ("2 weeks", (2, "week")),
        ("P2W", (2, "week")),
        ("3 months", (3, "month")),
        ("P3M", (3, "month")),
        (pendulum.duration(months=3), (3, "month")),
        ("1 quarter", (1, "quarter")),
        ("P1Y", (12, "month")),
        ("1 year", (1, "year")),
    ],
)
def test_a_number_of_one_calendar_unit_is_read(value: str | timedelta, span: tuple[int, str]) -> None:
    assert parse_calendar_span(value) == span


@pytest.mark.parametrize("value", ["1 month 2 days", "1.5 days", "10 min", "-1 day", "0 days", "P1M2D", "1 day 2 h"])
def test_anything_else_is_no_calendar_unit(value: str) -> None:
    with pytest.raises(OptionError, match="whole number of one calendar unit"):
        parse_calendar_span(value)


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


def test_an_iso_duration_beyond_all_bounds_is_too_long() -> None:
    with pytest.raises(OptionError, match="is too long"):
        parse_duration("P99999999999D")
