"""Windows over event time or processing time."""

from __future__ import annotations

import difflib
import math
import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta, tzinfo
from typing import Literal, TypeAlias, get_args

import pyarrow as pa

from tidegate.api.draft.call_site import user_location
from tidegate.errors import OptionError, PipelineError
from tidegate.operators.time.calendar import DAY, HOUR, MICROSECOND, MONTHS, WEEKDAYS, Calendar
from tidegate.units import parse_calendar_span, parse_duration

WINDOW_START = "window_start"
WINDOW_END = "window_end"
WINDOW_BOUND = pa.timestamp("us")
"""Type of both columns, the bounds of a window; without zone, in UTC."""
LATE = "late"
"""Side output of a window, and of a deduplication, over event time."""
MAX_YEARS = 100
"""A calendar window may have so many years: windows around every event time must be dates."""
_UNITS_PER_YEAR = {"hour": 8760, "day": 365, "week": 52, "month": 12, "quarter": 4, "year": 1}

_NO_ZONES = frozenset({"localtime", "Factory"})
"""Names that some systems list: each machine would mean another zone."""


def calendar_of(
    size: str | timedelta, offset: str | timedelta | None, timezone: object, week_start: object, where: str
) -> Calendar:
    """What cuts `tumbling(size, offset, timezone=..., week_start=...)`.

    Raises:
        PipelineError: a size that is not a number of one calendar unit, hours that do not divide a day, an offset of a
            day or more, no such time zone, or a first day without weeks.
    """
    try:
        count, unit = parse_calendar_span(size)
    except OptionError as error:
        raise PipelineError(
            f"a window of {size} is not one of a calendar",
            where=where,
            cause=error.what,
            remedy=f"{error.remedy}; or leave out timezone for windows of a fixed length",
        ) from error
    if unit == "hour" and 24 % count:
        raise PipelineError(
            f"{count} hours do not divide a day",
            where=where,
            cause="hours of a calendar are counted from midnight",
            remedy="Give 1, 2, 3, 4, 6, 8, 12 or 24 hours; or leave out timezone for windows of a fixed length",
        )
    if count > MAX_YEARS * _UNITS_PER_YEAR[unit]:
        raise PipelineError(f"a window of {size} is too long", where=where, remedy=f"Give at most {MAX_YEARS} years")
    if week_start is not None and (unit != "week" or week_start not in WEEKDAYS):
        raise PipelineError(
            f"week_start={week_start!r} does not apply to windows of {size}"
            if week_start in WEEKDAYS
            else f"week_start={week_start!r} is not a day of the week",
            where=where,
            remedy=f"Give one of {', '.join(WEEKDAYS)}, with a size in weeks",
        )
    return Calendar(
        count,
        unit,
        zone_name(timezone, where),
        WEEKDAYS.index(str(week_start)) if week_start is not None else 0,
        _offset_us(offset, HOUR if unit == "hour" and count == 1 else DAY, where),
    )


def zone_name(timezone: object, where: str) -> str:
    """The name of a time zone that there is; PipelineError naming the nearest one when there is none."""
    name = timezone if isinstance(timezone, str) else getattr(timezone, "key", None) or getattr(timezone, "name", None)
    if isinstance(timezone, str | tzinfo) and isinstance(name, str):
        known = zoneinfo.available_timezones() - _NO_ZONES
        if name in known:
            return name
        near = difflib.get_close_matches(name, known, n=1)
    else:
        near = []
    raise PipelineError(
        f"{timezone!r} is not a time zone" + (f", did you mean {near[0]!r}?" if near else ""),
        where=where,
        remedy='Give the name of one of the IANA database, such as "Europe/Berlin" or "UTC"',
    )


def _offset_us(offset: str | timedelta | None, least: timedelta, where: str) -> int:
    if offset is None:
        return 0
    try:
        found = parse_duration(offset, signed=True)
    except OptionError as error:
        raise PipelineError(
            f"offset is not a duration: {offset!r}", where=where, cause=error.cause or error.what, remedy=error.remedy
        ) from error
    if abs(found) >= least:
        raise PipelineError(
            f"an offset of {offset} is not within the window's first {'hour' if least == HOUR else 'day'}",
            where=where,
            remedy="Give a shorter one; weeks start on week_start",
        )
    return found // MICROSECOND


MILLISECOND_US = 1_000
MAX_PANES = 10_000
"""Slices that one sliding window may be put together of."""

WindowTime = Literal["event", "processing"]
"""What decides in which window a record is, and when the window is over."""


@dataclass(frozen=True)
class Tumbling:
    """Windows [start, end) that follow one another without gap; made by `tumbling`.

    Attributes:
        size_us: length, microseconds, > 0; 0: as the calendar says.
        offset_us: windows start at multiples of `size_us` since the epoch plus this; 0 <= offset_us < size_us.
        time: "event" or "processing".
        calendar: what cuts the windows in the place of durations.
    """

    size_us: int
    offset_us: int = 0
    time: WindowTime = "event"
    calendar: Calendar | None = None


@dataclass(frozen=True)
class Sliding:
    """Windows [start, end) that overlap, or leave times out between them; made by `sliding`.

    Attributes:
        size_us: length, microseconds, > 0.
        slide_us: from the start of one to the next; > 0.
        offset_us: windows start at multiples of `slide_us` since the epoch plus this; 0 <= offset_us < slide_us.
        time: "event" or "processing".
    """

    size_us: int
    slide_us: int
    offset_us: int = 0
    time: WindowTime = "event"


@dataclass(frozen=True)
class Session:
    """Windows of rows that are at most a gap apart; made by `session`.

    Attributes:
        gap_us: microseconds, > 0.
        time: "event" or "processing".
    """

    gap_us: int
    time: WindowTime = "event"


Window: TypeAlias = Tumbling | Sliding | Session


def tumbling(
    size: str | timedelta,
    offset: str | timedelta | None = None,
    *,
    time: WindowTime = "event",
    timezone: str | tzinfo | None = None,
    week_start: str | None = None,
) -> Tumbling:
    """Windows of one length, such as "1 day", without gap or overlap; with a time zone those of its calendar.

    Over event time a record is in the window that its event time falls in, and the window is over when the watermark
    has passed its end; `with_watermark` is needed upstream. Over processing time it is in the window in which the clock
    of the machine is when the record is processed, and the window is over when that clock has passed its end: results
    are quick and need no event time, and no record is late, but another run of the same input gives others (S8.2).
    What happens to processing-time windows that are open when the input ends, job option `processing_time_on_end` says
    (S7.6).

    Without `timezone` a day has 24 hours from the epoch in UTC. With it windows follow the calendar of the zone across
    changes of its clock and leap years: "1 day", "1 week", "1 month", "1 quarter", "1 year", several of them, or hours
    that divide a day. The boundaries are those of Airflow's data intervals for @daily, @weekly and so on in that zone.
    Several units are counted from 1 January 1970, weeks from the first `week_start` of 1970.

    Args:
        size: length of a window; with a time zone a whole number of one calendar unit.
        offset: how much later than the epoch (1970-01-01 00:00 UTC) windows start; default none. With "5 hours" a
            window of "1 day" runs from 05:00 UTC to 05:00 UTC. It may be negative ("-8 hours"). With a time zone it is
            by the clock of the zone, and shorter than a day.
        time: "event" or "processing".
        timezone: IANA name, such as "Europe/Berlin", or pendulum's or zoneinfo's object of one.
        week_start: first day of a week, with a time zone only: "monday" (the default), "sunday" and so on.

    Raises:
        PipelineError: not a duration, a size that is not positive or, over processing time, not in whole milliseconds;
            another time, no such time zone, or a calendar unit without one.
    """
    where = f"window at {user_location()}"
    if timezone is not None:
        calendar = calendar_of(size, offset, timezone, week_start, where)
        _check_time(time, {"size": (size, 0), "offset": (offset, calendar.offset_us)}, where)
        return Tumbling(0, 0, time, calendar)
    if week_start is not None:
        raise PipelineError(
            "week_start needs a time zone",
            where=where,
            cause="without one a week has 7 days of 24 hours from the epoch, a Thursday",
            remedy='Say which: timezone="UTC"; or leave out week_start',
        )
    size_us = _positive_us(size, "size", where)
    offset_us = signed_us(offset, "offset", where) % size_us if offset is not None else 0
    _check_time(time, {"size": (size, size_us), "offset": (offset, offset_us)}, where)
    return Tumbling(size_us, offset_us, time)


def sliding(
    size: str | timedelta,
    slide: str | timedelta,
    offset: str | timedelta | None = None,
    *,
    time: WindowTime = "event",
    timezone: str | tzinfo | None = None,
) -> Sliding:
    """Windows of one length that overlap: one of "1 h" begins every "5 min". A record is in all that its time falls in.

    A record is kept once however many windows it is in: in slices of the longest duration that both `size` and `slide`
    are made of, which are put together when a window is over. Where `slide` is longer than `size` records that fall
    between two windows are dropped and counted (`outside_windows_dropped`).

    Args:
        size: length of a window.
        slide: from the start of one window to the next.
        offset: how much later than the epoch (1970-01-01 00:00 UTC) windows start; default none; may be negative.
        time: "event" or "processing"; see `tumbling`.
        timezone: refused: calendar windows do not overlap.

    Raises:
        PipelineError: as `tumbling`; a slide that has too little in common with the size; or a time zone.
    """
    where = f"window at {user_location()}"
    if timezone is not None:
        raise PipelineError(
            "sliding windows follow no calendar",
            where=where,
            cause="units of a calendar differ in length, so there is no slice that all windows are made of",
            remedy=f'Write tumbling("1 day", timezone={str(timezone)!r}), or leave out timezone',
        )
    size_us, slide_us = _positive_us(size, "size", where), _positive_us(slide, "slide", where)
    offset_us = signed_us(offset, "offset", where) % slide_us if offset is not None else 0
    _check_time(time, {"size": (size, size_us), "slide": (slide, slide_us), "offset": (offset, offset_us)}, where)
    panes = size_us // math.gcd(size_us, slide_us)
    if panes > MAX_PANES and slide_us < size_us:
        raise PipelineError(
            f"a window of {size} every {slide} would be put together of {panes} slices",
            where=where,
            cause=f"the longest duration that both are made of is {math.gcd(size_us, slide_us)} us; {MAX_PANES} "
            "slices are the most",
            remedy="Give durations that have more in common, such as a size that is a multiple of the slide",
        )
    return Sliding(size_us, slide_us, offset_us, time)


def session(gap: str | timedelta, *, time: WindowTime = "event") -> Session:
    """For each key, windows of records that follow one another at most `gap` apart: from the time of the first to
    the time of the last plus `gap`. A record may join two windows to one. A window is over when the watermark has
    passed its end: a record at its end still belongs to it (S4.4).

    Args:
        gap: such as "30 min".
        time: "event" or "processing"; see `tumbling`.

    Raises:
        PipelineError: not a duration, one that is not positive or, over processing time, not in whole milliseconds; or
            another time.
    """
    where = f"window at {user_location()}"
    gap_us = _positive_us(gap, "gap", where)
    _check_time(time, {"gap": (gap, gap_us)}, where)
    return Session(gap_us, time)


def lateness_us(value: str | timedelta | None, time: WindowTime, where: str) -> int:
    """`allowed_lateness` in microseconds; PipelineError when it is no duration, or the windows have no lateness."""
    if value is None:
        return 0
    if time == "processing":
        raise PipelineError(
            "windows over processing time allow no lateness",
            where=where,
            cause="no record is late there",
            remedy="Leave allowed_lateness away",
        )
    return duration_us(value, "allowed_lateness", where)


def _positive_us(value: str | timedelta, name: str, where: str) -> int:
    if name == "size" and _is_calendar_unit(value):
        raise PipelineError(
            f"a window of {value} has no fixed length",
            where=where,
            cause="months and years differ in length",
            remedy=f'Say whose calendar it follows: tumbling({value!r}, timezone="UTC"); or give days',
        )
    found = duration_us(value, name, where)
    if found <= 0:
        what = f"a window of {value} is empty" if name == "size" else f"a {name} of {value} is none"
        raise PipelineError(what, where=where, remedy=f'Give a {name} such as "1 day"')
    return found


def _is_calendar_unit(value: str | timedelta) -> bool:
    try:
        return parse_calendar_span(value)[1] in MONTHS
    except OptionError:
        return False


def _check_time(time: object, durations: Mapping[str, tuple[object, int]], where: str) -> None:
    if time not in get_args(WindowTime):
        raise PipelineError(
            f"{time!r} is not a time of windows",
            where=where,
            remedy='Write time="event" (which with_watermark assigns) or time="processing" (the clock)',
        )
    if time == "processing" and any(us % MILLISECOND_US for _, us in durations.values()):
        (_, (first, _)), *others = durations.items()
        told = "".join(f", {name} {value}" for name, (value, _) in others if value is not None)
        raise PipelineError(
            f"the clock cannot end a window of {first}{told}",
            where=where,
            cause="processing time is in whole milliseconds",
            remedy=f"Give {' and '.join(durations)} in whole milliseconds",
        )


def _other_cause(error: OptionError, value: object) -> str:
    """Why `value` is refused, without the statement that it is no duration, which the caller makes."""
    cause = error.cause or error.what
    return "" if cause in (f"{value!r} is not a duration", f"{value!r} is negative") else cause


def duration_us(value: str | timedelta, name: str, where: str, *, signed: bool = False) -> int:
    """A fixed duration in microseconds; PipelineError naming the parameter when it is none. Bare numbers are refused,
    and months and years, which have no fixed length."""
    try:
        return parse_duration(value, signed=signed) // MICROSECOND
    except OptionError as error:
        said = "is negative" if error.what.endswith("is negative") else "is not a duration"
        raise PipelineError(
            f"{name} {said}: {value!r}",
            where=where,
            cause=_other_cause(error, value),
            remedy=error.remedy or 'Write it with its unit, as in "10 min", or give a timedelta',
        ) from error


def signed_us(value: object, name: str, where: str) -> int:
    """As `duration_us`, of a duration that may be negative."""
    return duration_us(value, name, where, signed=True)  # type: ignore[arg-type]
