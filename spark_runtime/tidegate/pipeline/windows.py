"""Windows over event time or processing time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

from tidegate.contract.errors import OptionError, PipelineError
from tidegate.contract.options import parse_duration
from tidegate.pipeline.location import user_location

MICROSECOND = timedelta(microseconds=1)
MILLISECOND_US = 1_000

WindowTime = Literal["event", "processing"]
"""What decides in which window a record is, and when the window is over."""


@dataclass(frozen=True)
class Tumbling:
    """Windows [start, end) that follow one another without gap; made by `tumbling`.

    Attributes:
        size_us: length, microseconds, > 0.
        offset_us: windows start at multiples of `size_us` since the epoch plus this; 0 <= offset_us < size_us.
        time: "event" or "processing".
    """

    size_us: int
    offset_us: int = 0
    time: WindowTime = "event"


def tumbling(size: str | timedelta, offset: str | timedelta | None = None, *, time: WindowTime = "event") -> Tumbling:
    """Windows of one length, such as "1 day", without gap or overlap.

    Over event time a record is in the window that its event time falls in, and the window is over when the watermark
    has passed its end; `with_watermark` is needed upstream. Over processing time it is in the window in which the clock
    of the machine is when the record is processed, and the window is over when that clock has passed its end: results
    are quick and need no event time, and no record is late, but another run of the same input gives others (S8.2).
    What becomes of processing-time windows that are open when the input ends, job option `processing_time_on_end` says
    (S7.6).

    Args:
        size: length of a window.
        offset: how much later than the epoch (1970-01-01 00:00 UTC) windows start; default none. With "5 hours" a
            window of "1 day" runs from 05:00 UTC to 05:00 UTC.
        time: "event" or "processing".

    Raises:
        PipelineError: not a duration, a size that is not positive or, over processing time, not in whole milliseconds;
            or another time.
    """
    where = f"window at {user_location()}"
    size_us = duration_us(size, "size", where)
    if size_us <= 0:
        raise PipelineError(f"a window of {size} is empty", where=where, remedy='Give a size such as "1 day"')
    if time not in get_args(WindowTime):
        raise PipelineError(
            f"{time!r} is not a time of windows",
            where=where,
            remedy='Write time="event" (which with_watermark assigns) or time="processing" (the clock)',
        )
    offset_us = duration_us(offset, "offset", where) % size_us if offset is not None else 0
    if time == "processing" and (size_us % MILLISECOND_US or offset_us % MILLISECOND_US):
        raise PipelineError(
            f"the clock cannot end a window of {size}" + (f", offset {offset}" if offset is not None else ""),
            where=where,
            cause="processing time is in whole milliseconds",
            remedy="Give size and offset in whole milliseconds",
        )
    return Tumbling(size_us, offset_us, time)


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
