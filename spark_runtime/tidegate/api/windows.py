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
"""Type of both columns; without time zone, in UTC."""
LATE = "late"
"""Side output of a window, or of a deduplication, over event time."""
MAX_YEARS = 100
"""Most years of a calendar window: windows around every event time must be valid dates."""
_UNITS_PER_YEAR = {"hour": 8760, "day": 365, "week": 52, "month": 12, "quarter": 4, "year": 1}

_NO_ZONES = frozenset({"localtime", "Factory"})
"""Names on some systems that mean another zone on each machine."""
MILLISECOND_US = 1_000
MAX_PANES = 10_000
"""Most slices of one sliding window."""

WindowTime = Literal["event", "processing"]
"""The time that decides in which windows a record is, and when a window closes."""


def calendar_of(
    size: str | timedelta, offset: str | timedelta | None, timezone: object, week_start: object, where: str
) -> Calendar:
    """Return the calendar of `tumbling(size, offset, timezone=..., week_start=...)`.

    Raises:
        PipelineError: the size is not a number of one calendar unit, hours do not divide a day, the offset is a day or
            more, the time zone does not exist, or a first day is set without weeks.
    """
    try:
        count, unit = parse_calendar_span(size)
    except OptionError as error:
        raise PipelineError(
            f"a window of {size} is not a calendar window",
            where=where,
            cause=error.what,
            remedy=f"{error.remedy}; or remove timezone for windows of a fixed length",
        ) from error
    if unit == "hour" and 24 % count:
        raise PipelineError(
            f"{count} hours do not divide a day",
            where=where,
            cause="calendar hours are counted from midnight",
            remedy="Use 1, 2, 3, 4, 6, 8, 12 or 24 hours; or remove timezone for windows of a fixed length",
        )
    if count > MAX_YEARS * _UNITS_PER_YEAR[unit]:
        raise PipelineError(f"a window of {size} is too long", where=where, remedy=f"Use at most {MAX_YEARS} years")
    if week_start is not None and (unit != "week" or week_start not in WEEKDAYS):
        raise PipelineError(
            f"week_start={week_start!r} does not apply to windows of {size}"
            if week_start in WEEKDAYS
            else f"week_start={week_start!r} is not a day of the week",
            where=where,
            remedy=f"Use one of {', '.join(WEEKDAYS)}, with a size in weeks",
        )
    return Calendar(
        count,
        unit,
        zone_name(timezone, where),
        WEEKDAYS.index(str(week_start)) if week_start is not None else 0,
        _offset_us(offset, HOUR if unit == "hour" and count == 1 else DAY, where),
    )


def zone_name(timezone: object, where: str) -> str:
    """Return the name of an existing time zone. Raises PipelineError with the nearest name for any other."""
    name = timezone if isinstance(timezone, str) else getattr(timezone, "key", None) or getattr(timezone, "name", None)
    if isinstance(timezone, str | tzinfo) and isinstance(name, str):
        known = zoneinfo.available_timezones() - _NO_ZONES
        if name in known:
            return name
        near = difflib.get_close_matches(name, known, n=1)
    else:
        near = []
    raise PipelineError(
        f"the time zone {timezone!r} is unknown" + (f", did you mean {near[0]!r}?" if near else ""),
        where=where,
        remedy='Use a name of the IANA database, such as "Europe/Berlin" or "UTC"',
    )


def _offset_us(offset: str | timedelta | None, least: timedelta, where: str) -> int:
    if offset is None:
        return 0
    try:
        found = parse_duration(offset, signed=True)
    except OptionError as error:
        raise PipelineError(
            f"offset={offset!r} is not a duration",
            where=where,
            cause=_other_cause(error, offset),
            remedy=error.remedy or 'Write it with its unit, as in "6 h", or pass a timedelta',
        ) from error
    if abs(found) >= least:
        raise PipelineError(
            f"an offset of {offset} is too long: it must be shorter than {'an hour' if least == HOUR else 'a day'}",
            where=where,
            remedy="Use a shorter offset; to start weeks on another day, set week_start",
        )
    return found // MICROSECOND


@dataclass(frozen=True)
class Tumbling:
    """Consecutive windows [start, end) without gap or overlap; created by `tumbling`.

    Attributes:
        size_us: length, microseconds, > 0; 0: the calendar decides.
        offset_us: windows start at multiples of `size_us` since the epoch plus this offset; 0 <= offset_us < size_us.
        time: "event" or "processing".
        calendar: defines the windows instead of durations.
    """

    size_us: int
    offset_us: int = 0
    time: WindowTime = "event"
    calendar: Calendar | None = None


@dataclass(frozen=True)
class Sliding:
    """Windows [start, end) that overlap or leave gaps between them; created by `sliding`.

    Attributes:
        size_us: length, microseconds, > 0.
        slide_us: from the start of one window to the next; > 0.
        offset_us: windows start at multiples of `slide_us` since the epoch plus this offset; 0 <= offset_us < slide_us.
        time: "event" or "processing".
    """

    size_us: int
    slide_us: int
    offset_us: int = 0
    time: WindowTime = "event"


@dataclass(frozen=True)
class Session:
    """Windows of rows that are at most a gap apart; created by `session`.

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
    """Create consecutive windows of one length, such as "1 day"; with a time zone, windows of its calendar.

    Over event time, a record is in the window that contains its event time. The window closes when the watermark has
    passed its end; this needs `with_watermark` upstream. Over processing time, a record is in the window that contains
    the time of the machine's clock when the record is processed. The window closes when the clock has passed its end.
    Such results come early and need no event time, and no record is late, but another run of the same input gives
    other results (S8.2). The job option `processing_time_on_end` decides what happens to processing-time windows that
    are open when the input ends (S7.6).

    Without `timezone`, a day has 24 hours, counted from the epoch in UTC. With it, windows follow the calendar of the
    zone, including clock changes and leap years: "1 day", "1 week", "1 month", "1 quarter", "1 year", several of them,
    or hours that divide a day. The boundaries equal Airflow's data intervals for @daily, @weekly and so on in that
    zone. Several units are counted from 1 January 1970, weeks from the first `week_start` of 1970.

    Args:
        size: length of a window; with a time zone a whole number of one calendar unit.
        offset: how much later than the epoch (1970-01-01 00:00 UTC) windows start; default 0. With "5 hours" a window
            of "1 day" lasts from 05:00 UTC to 05:00 UTC. It may be negative ("-8 hours"). With a time zone it is
            measured by the clock of the zone, and must be shorter than a day.
        time: "event" or "processing".
        timezone: IANA name, such as "Europe/Berlin", or an object of pendulum or zoneinfo.
        week_start: first day of a week, with a time zone only: "monday" (the default), "sunday" and so on.

    Raises:
        PipelineError: a duration is invalid, the size is not positive or, over processing time, not in whole
            milliseconds; `time` is invalid; the time zone does not exist; or a calendar unit has no time zone.
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
            cause="without a time zone, weeks of 7 times 24 hours are counted from 1 January 1970, a Thursday",
            remedy='Set the zone: timezone="UTC"; or remove week_start',
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
    """Create windows of one length that start at a regular interval, such as "1 h" every "5 min". They may overlap.

    A record is stored once, however many windows contain it. The state consists of slices, of the longest duration that
    divides both `size` and `slide`; slices are merged when a window closes. If `slide` is longer than `size`, records
    between two windows are dropped and counted (`outside_windows_dropped`).

    Args:
        size: length of a window.
        slide: from the start of one window to the next.
        offset: how much later than the epoch (1970-01-01 00:00 UTC) windows start; default 0; may be negative.
        time: "event" or "processing"; see `tumbling`.
        timezone: refused: calendar windows do not overlap.

    Raises:
        PipelineError: as for `tumbling`; or a window would need too many slices; or a time zone is set.
    """
    where = f"window at {user_location()}"
    if timezone is not None:
        raise PipelineError(
            "sliding windows do not support a time zone",
            where=where,
            cause="sliding windows consist of slices of equal length, but calendar days and months differ in length",
            remedy=f'Write tumbling("1 day", timezone={str(timezone)!r}), or remove timezone',
        )
    size_us, slide_us = _positive_us(size, "size", where), _positive_us(slide, "slide", where)
    offset_us = signed_us(offset, "offset", where) % slide_us if offset is not None else 0
    _check_time(time, {"size": (size, size_us), "slide": (slide, slide_us), "offset": (offset, offset_us)}, where)
    panes = size_us // math.gcd(size_us, slide_us)
    if panes > MAX_PANES and slide_us < size_us:
        raise PipelineError(
            f"a sliding window of {size} every {slide} would consist of {panes} slices, which is too many",
            where=where,
            cause=f"the longest duration that divides both is {math.gcd(size_us, slide_us)} us; at most {MAX_PANES} "
            "slices are allowed",
            remedy="Use durations with a larger common divisor, such as a size that is a multiple of the slide",
        )
    return Sliding(size_us, slide_us, offset_us, time)


def session(gap: str | timedelta, *, time: WindowTime = "event") -> Session:
    """Create session windows: for each key, records at most `gap` apart form one window.

    A window lasts from the time of its first record to the time of its last record plus `gap`. A record may merge two
    windows. A window closes when the watermark has passed its end, because a record exactly at its end still belongs to
    it (S4.4).

    Args:
        gap: such as "30 min".
        time: "event" or "processing"; see `tumbling`.

    Raises:
        PipelineError: the gap is not a duration, not positive or, over processing time, not in whole milliseconds; or
            `time` is invalid.
    """
    where = f"window at {user_location()}"
    gap_us = _positive_us(gap, "gap", where)
    _check_time(time, {"gap": (gap, gap_us)}, where)
    return Session(gap_us, time)


def lateness_us(value: str | timedelta | None, time: WindowTime, where: str) -> int:
    """Return `allowed_lateness` in microseconds. Raises PipelineError if it is invalid or the windows do not support
    it."""
    if value is None:
        return 0
    if time == "processing":
        raise PipelineError(
            "windows over processing time do not support lateness",
            where=where,
            cause="no record is late over processing time",
            remedy="Remove allowed_lateness",
        )
    return duration_us(value, "allowed_lateness", where)


def _positive_us(value: str | timedelta, name: str, where: str) -> int:
    if name == "size" and _is_calendar_unit(value):
        raise PipelineError(
            f"a window of {value} has no fixed length",
            where=where,
            cause="months and years differ in length",
            remedy=f'Name the time zone of its calendar: tumbling({value!r}, timezone="UTC"); or use days',
        )
    found = duration_us(value, name, where)
    if found <= 0:
        what = f"a window of {value} is empty" if name == "size" else f"a {name} of {value} is not positive"
        raise PipelineError(what, where=where, remedy=f'Pass a {name} such as "1 day"')
    return found


def _is_calendar_unit(value: str | timedelta) -> bool:
    try:
        return parse_calendar_span(value)[1] in MONTHS
    except OptionError:
        return False


def _check_time(time: object, durations: Mapping[str, tuple[object, int]], where: str) -> None:
    if time not in get_args(WindowTime):
        raise PipelineError(
            f"time={time!r} of a window is unknown",
            where=where,
            remedy='Write time="event" (set by with_watermark) or time="processing" (the clock)',
        )
    if time == "processing" and any(us % MILLISECOND_US for _, us in durations.values()):
        (_, (first, _)), *others = durations.items()
        texts = "".join(f", {name} {value}" for name, (value, _) in others if value is not None)
        raise PipelineError(
            f"a window of {first}{texts} over processing time is not in whole milliseconds",
            where=where,
            cause="processing time is measured in whole milliseconds",
            remedy=f"Use {' and '.join(durations)} in whole milliseconds",
        )


def _other_cause(error: OptionError, value: object) -> str:
    """Return why `value` is refused, without the statement that it is not a duration: the caller's message says
    this."""
    cause = error.cause or error.what
    return "" if cause in (f"{value!r} is not a duration", f"{value!r} is negative") else cause


def duration_us(value: str | timedelta, name: str, where: str, *, signed: bool = False) -> int:
    """Return a fixed duration in microseconds.

    Bare numbers are refused, and months and years, which have no fixed length.

    Raises:
        PipelineError: it is not a duration; names the parameter.
    """
    try:
        return parse_duration(value, signed=signed) // MICROSECOND
    except OptionError as error:
        said = "is negative" if error.what.endswith("is negative") else "is not a duration"
        raise PipelineError(
            f"{name}={value!r} {said}",
            where=where,
            cause=_other_cause(error, value),
            remedy=error.remedy or 'Write it with its unit, as in "10 min", or pass a timedelta',
        ) from error


def signed_us(value: object, name: str, where: str) -> int:
    """Return a fixed duration in microseconds, which may be negative; see `duration_us`."""
    return duration_us(value, name, where, signed=True)  # type: ignore[arg-type]
