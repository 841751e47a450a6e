"""Windows over event time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from tidegate.contract.errors import OptionError, PipelineError
from tidegate.contract.options import parse_duration
from tidegate.pipeline.location import user_location

MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True)
class Tumbling:
    """Windows [start, end) that follow one another without gap; made by `tumbling`.

    Attributes:
        size_us: length, microseconds, > 0.
        offset_us: windows start at multiples of `size_us` since the epoch plus this; 0 <= offset_us < size_us.
    """

    size_us: int
    offset_us: int = 0


def tumbling(size: str | timedelta, offset: str | timedelta | None = None) -> Tumbling:
    """Windows of one length, such as "1 day", without gap or overlap.

    Args:
        size: length of a window.
        offset: how much later than the epoch (1970-01-01 00:00 UTC) windows start; default none. With "5 hours" a
            window of "1 day" runs from 05:00 UTC to 05:00 UTC.

    Raises:
        PipelineError: not a duration, or a size that is not positive.
    """
    where = f"window at {user_location()}"
    size_us = duration_us(size, "size", where)
    if size_us <= 0:
        raise PipelineError(f"a window of {size} is empty", where=where, remedy='Give a size such as "1 day"')
    return Tumbling(size_us, duration_us(offset, "offset", where) % size_us if offset is not None else 0)


def duration_us(value: str | timedelta, name: str, where: str) -> int:
    """A duration in microseconds; PipelineError naming the parameter when it is none. Bare numbers are refused."""
    try:
        return parse_duration(value) // MICROSECOND
    except OptionError as error:
        raise PipelineError(
            f"{name} is not a duration: {value!r}",
            where=where,
            cause=error.cause or error.what,
            remedy=error.remedy or 'Write it with its unit, as in "10 min", or give a timedelta',
        ) from error
