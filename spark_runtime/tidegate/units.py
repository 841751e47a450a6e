"""Durations and sizes in the form that users write, with a unit. Bare numbers are refused."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction
from typing import Literal, get_args

from tidegate.errors import OptionError

CalendarUnit = Literal["hour", "day", "week", "month", "quarter", "year"]
"""Units whose length depends on a time zone, a month or a year."""

_MICROSECONDS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_WEEK = "w"
_UNFIXED = ("month", "quarter", "year")
_DURATION_NAMES = {
    **{name: name for name in _MICROSECONDS},
    "microsecond": "us",
    "microseconds": "us",
    "millisecond": "ms",
    "milliseconds": "ms",
    "sec": "s",
    "second": "s",
    "seconds": "s",
    "minute": "min",
    "minutes": "min",
    "hour": "h",
    "hours": "h",
    "day": "d",
    "days": "d",
    _WEEK: _WEEK,
    "week": _WEEK,
    "weeks": _WEEK,
    **{name: name for name in _UNFIXED},
    **{f"{name}s": name for name in _UNFIXED},
}
_FIXED = {**_MICROSECONDS, _WEEK: 7 * _MICROSECONDS["d"]}
_CALENDAR: dict[str, CalendarUnit] = {"h": "hour", "d": "day", _WEEK: "week"}
_SIZES = {
    "B": 1,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
}
_BINARY_SIZES = ("TiB", "GiB", "MiB", "KiB", "B")
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)")

_ISO = re.compile(r"P(?=.*\d)[0-9A-Z.,]+(?<!T)")
_ISO_WEEKS = re.compile(r"P[\d.,]+W")
_ISO_PART = re.compile(r"(\d+(?:[.,]\d+)?)([A-Z])")
_ISO_DATE = {"Y": (12, "month"), "M": (1, "month"), "W": (1, _WEEK), "D": (1, "d")}
_ISO_TIME = {"H": (1, "h"), "M": (1, "min"), "S": (1, "s")}

DURATION_FORM = (
    'a duration with its unit, such as "500 ms", "10 min" or "2 h 30 min" (us, ms, s, min, h, d, w), or in ISO 8601, '
    'such as "PT10M"'
)
SIZE_FORM = 'a size with its unit, such as "20 KiB", "4 MiB" or "1 GiB"'


class ByteSize(int):
    """A number of bytes that was written with a unit."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(format_size(self))


def parse_duration(value: str | timedelta, *, where: str = "", signed: bool = False) -> timedelta:
    """Parse a fixed duration, exact to the microsecond. A day has 24 hours, a week has 7 days.

    Args:
        value: timedelta (also pendulum's), text with numbers and units, which are added up, or ISO 8601 ("PT10S",
            "P1D", "P2W").
        where: the place that errors name.
        signed: accept a sign before the text ("-5 min", "-PT5M"), and a negative timedelta. Without it the duration
            must be zero or more.

    Raises:
        OptionError: the value is anything else. Bare numbers are refused, and so are months, quarters and years,
            because they have no fixed length.
    """
    sign, amounts = _amounts(value, where)
    for number, unit in amounts:
        if unit in _UNFIXED and number:
            raise OptionError(
                f"{value!r} is not a fixed duration",
                where=where,
                cause=f"a {unit} has no fixed length",
                remedy=f"Give {DURATION_FORM}; write a {unit} as a number of days",
            )
    # Fractions, because floats are inexact: 0.1 s must be 100,000
    # us, and "finer than a microsecond" must be decided exactly.
    total = sign * sum((number * _FIXED[unit] for number, unit in amounts if unit in _FIXED), Fraction(0))
    if total < 0 and not signed:
        raise OptionError(f"{value!r} is negative", where=where, remedy=f"Give {DURATION_FORM}")
    if total.denominator != 1:
        raise OptionError(f"{value!r} is finer than a microsecond", where=where, remedy=f"Give {DURATION_FORM}")
    try:
        return timedelta(microseconds=int(total))
    except OverflowError as error:
        raise OptionError(f"{value!r} is too long", where=where, remedy=f"Give {DURATION_FORM}") from error


def parse_calendar_span(value: str | timedelta, *, where: str = "") -> tuple[int, CalendarUnit]:
    """Parse a whole number of one calendar unit: "1 day", "2 weeks", "P3M", timedelta(days=1).

    Raises:
        OptionError: the value is anything else, such as "1 month 2 days", "1.5 days" or "10 min".
    """
    sign, amounts = _amounts(value, where)
    amounts = [(number, unit) for number, unit in amounts if number]
    if len(amounts) == 1 and sign > 0:
        ((number, short),) = amounts
        unit = next((unit for unit in get_args(CalendarUnit) if unit in (short, _CALENDAR.get(short))), None)
        if unit is not None and number.denominator == 1:
            return int(number), unit
    raise OptionError(
        f"{value!r} is not a whole number of one calendar unit",
        where=where,
        remedy=f'Give a number of one of {", ".join(get_args(CalendarUnit))}, such as "1 day" or "3 months"',
    )


def format_duration(duration: timedelta) -> str:
    """Format a duration so that `parse_duration` returns it again: "2 h 30 min", "0 s"."""
    rest = duration // timedelta(microseconds=1)
    texts: list[str] = []
    for unit in reversed(_MICROSECONDS):
        count, rest = divmod(rest, _MICROSECONDS[unit])
        if count:
            texts.append(f"{count} {unit}")
    return " ".join(texts) or "0 s"


def parse_size(value: str | ByteSize, *, where: str = "") -> ByteSize:
    """Parse a number of bytes. Raises OptionError unless `value` is a number with a unit."""
    if isinstance(value, ByteSize):
        return value
    match = _PART.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or match[2] not in _SIZES:
        raise OptionError(f"{value!r} is not a size", where=where, remedy=f"Give {SIZE_FORM}")
    size = Fraction(match[1]) * _SIZES[match[2]]
    if size.denominator != 1:
        raise OptionError(f"{value!r} is not a whole number of bytes", where=where, remedy=f"Give {SIZE_FORM}")
    return ByteSize(size)


def format_size(size_bytes: int) -> str:
    """Format a size so that `parse_size` returns it again, in the largest unit that divides it: "4 MiB"."""
    for unit in _BINARY_SIZES:
        if size_bytes % _SIZES[unit] == 0 and size_bytes >= _SIZES[unit]:
            return f"{size_bytes // _SIZES[unit]} {unit}"
    return "0 B"


def _amounts(value: object, where: str) -> tuple[int, list[tuple[Fraction, str]]]:
    """Return the sign of a duration, and its numbers with their units. Raises OptionError."""
    if isinstance(value, timedelta):
        return _of_timedelta(value)
    text = value.strip() if isinstance(value, str) else ""
    sign = -1 if text.startswith("-") else 1
    text = text[1:].strip() if text[:1] in ("+", "-") else text
    if _ISO.fullmatch(text):
        import pendulum  # here, because clients that only read a job directory do not need it

        try:
            # ISO 8601 does not allow weeks beside other units, but pendulum accepts some such texts ("P1D1W").
            parsed = pendulum.parse(text) if "W" not in text or _ISO_WEEKS.fullmatch(text) else None
        except OverflowError as error:
            raise OptionError(f"{value!r} is too long", where=where, remedy=f"Give {DURATION_FORM}") from error
        except ValueError:
            parsed = None
        if isinstance(parsed, pendulum.Duration):
            return sign, _of_iso(text)
    parts: list[tuple[Fraction, str]] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None or match[2] not in _DURATION_NAMES:
            break
        parts.append((Fraction(match[1]), _DURATION_NAMES[match[2]]))
        position = match.end()
    if not parts or position < len(text):
        raise OptionError(f"{value!r} is not a duration", where=where, remedy=f"Give {DURATION_FORM}")
    return sign, parts


def _of_iso(text: str) -> list[tuple[Fraction, str]]:
    """Return the numbers and units of an ISO 8601 text that pendulum accepts.

    pendulum's Duration is not used: it rounds fractions of days and hours, and has 32 bits for seconds.
    """
    date, _, time = text.removeprefix("P").partition("T")
    found = [(number, _ISO_DATE[letter]) for number, letter in _ISO_PART.findall(date)]
    found += [(number, _ISO_TIME[letter]) for number, letter in _ISO_PART.findall(time)]
    return [(Fraction(number.replace(",", ".")) * count, unit) for number, (count, unit) in found]


def _of_timedelta(value: timedelta) -> tuple[int, list[tuple[Fraction, str]]]:
    """Return the sign, and the numbers with their units.

    A timedelta of whole days or hours is returned in days or hours. pendulum's durations also have months and years.
    """
    total_us = timedelta.__floordiv__(value, timedelta(microseconds=1))  # pendulum's own takes only durations
    months, years = (int(getattr(value, name, 0)) for name in ("months", "years"))
    if months or years:
        rest_us = total_us - (months * 30 + years * 365) * _MICROSECONDS["d"]  # what pendulum counts for them
        found = [(Fraction(abs(months + 12 * years)), "month"), (Fraction(abs(rest_us)), "us")]
        return (-1 if total_us < 0 else 1), found
    unit = next(unit for unit in ("d", "h", "us") if total_us % _MICROSECONDS[unit] == 0)
    return (-1 if total_us < 0 else 1), [(Fraction(abs(total_us), _MICROSECONDS[unit]), unit)]
