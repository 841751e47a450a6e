"""Calendars of windows, as a pipeline says them."""

from __future__ import annotations

import difflib
import zoneinfo
from datetime import timedelta, tzinfo

from tidegate.errors import OptionError, PipelineError
from tidegate.units import parse_calendar_span, parse_duration
from tidegate.operators.time.calendar import DAY, HOUR, MICROSECOND, WEEKDAYS, Calendar

LONGEST_YEARS = 100
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
    if count > LONGEST_YEARS * _UNITS_PER_YEAR[unit]:
        raise PipelineError(
            f"a window of {size} is too long", where=where, remedy=f"Give at most {LONGEST_YEARS} years"
        )
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
