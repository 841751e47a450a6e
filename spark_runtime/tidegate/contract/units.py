"""Durations and sizes as people write them, with their unit. Bare numbers are refused."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction

from tidegate.contract.errors import OptionError

_MICROSECONDS = {
    "us": 1,
    "ms": 1_000,
    "s": 1_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
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
}
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

DURATION_FORM = 'a duration with its unit, such as "500 ms", "10 min" or "2 h 30 min" (us, ms, s, min, h, d)'
SIZE_FORM = 'a size with its unit, such as "20 KiB", "4 MiB" or "1 GiB"'


class ByteSize(int):
    """A number of bytes that came with its unit."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(format_size(self))


def parse_duration(value: str | timedelta, *, where: str = "") -> timedelta:
    """`value` as a duration of zero or more, exact to the microsecond.

    Args:
        value: timedelta, or text: numbers with units, added up.
        where: what to name in errors.

    Raises:
        OptionError: anything else; bare numbers too.
    """
    if isinstance(value, timedelta):
        if value < timedelta(0):
            raise OptionError(f"{value} is negative", where=where, remedy=f"Give {DURATION_FORM}")
        return value
    total = sum((number * _MICROSECONDS[unit] for number, unit in _parts(value, where)), Fraction(0))
    if total.denominator != 1:
        raise OptionError(f"{value!r} is finer than a microsecond", where=where, remedy=f"Give {DURATION_FORM}")
    try:
        return timedelta(microseconds=int(total))
    except OverflowError as error:
        raise OptionError(f"{value!r} is too long", where=where, remedy=f"Give {DURATION_FORM}") from error


def format_duration(duration: timedelta) -> str:
    """Text that `parse_duration` turns back into `duration`: "2 h 30 min", "0 s"."""
    rest = duration // timedelta(microseconds=1)
    texts: list[str] = []
    for unit in reversed(_MICROSECONDS):
        count, rest = divmod(rest, _MICROSECONDS[unit])
        if count:
            texts.append(f"{count} {unit}")
    return " ".join(texts) or "0 s"


def parse_size(value: str | ByteSize, *, where: str = "") -> ByteSize:
    """`value` as a number of bytes. Raises OptionError for anything but a number with a unit; bare numbers too."""
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
    """Text that `parse_size` turns back into `size_bytes`, in the largest unit that fits: "4 MiB"."""
    for unit in _BINARY_SIZES:
        if size_bytes % _SIZES[unit] == 0 and size_bytes >= _SIZES[unit]:
            return f"{size_bytes // _SIZES[unit]} {unit}"
    return "0 B"


def _parts(value: object, where: str) -> list[tuple[Fraction, str]]:
    parts: list[tuple[Fraction, str]] = []
    text = value.strip() if isinstance(value, str) else ""
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None or match[2] not in _DURATION_NAMES:
            break
        parts.append((Fraction(match[1]), _DURATION_NAMES[match[2]]))
        position = match.end()
    if not parts or position < len(text):
        raise OptionError(f"{value!r} is not a duration", where=where, remedy=f"Give {DURATION_FORM}")
    return parts
