"""Windows that follow the calendar of a time zone: hours, days, weeks, months, quarters and years (S4.4).

The boundaries equal the boundaries of Airflow's data intervals for the cron presets in that zone. Where the clock shows
a boundary twice, the second time is used. Where the clock skips a boundary, the moment of the skip is used. So days on
which the clock changes have 23 or 25 hours, and a date that a zone skipped has no window.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import cached_property

import numpy as np
import pyarrow as pa

from tidegate.errors import DataError, SnapshotError
from tidegate.snapshot.parts import StatePart
from tidegate.state.keyed_state import Mask
from tidegate.state.keys.stored_values import Int64s
from tidegate.units import CalendarUnit

CALENDAR = "calendar"
"""State: the open windows with their bounds, to detect a restore under changed rules of the time zone."""
CALENDAR_SCHEMA = pa.schema([("start_us", pa.int64()), ("end_us", pa.int64())])
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
MONTHS: dict[CalendarUnit, int] = {"month": 1, "quarter": 3, "year": 12}
MICROSECOND, HOUR, DAY = timedelta(microseconds=1), timedelta(hours=1), timedelta(days=1)
EPOCH = datetime(1970, 1, 1)
EPOCH_UTC = EPOCH.replace(tzinfo=UTC)
_THURSDAY = EPOCH.weekday()


def _us(moment: datetime) -> int:
    return (moment - EPOCH) // MICROSECOND


MIN_TIME_US, MAX_TIME_US = _us(datetime(1000, 1, 1)), _us(datetime(9000, 1, 1))
"""Calendar windows exist only for event times between these: the windows around them must be within Python's years 1 to
9999."""


@dataclass(frozen=True)
class Calendar:
    """Definition of calendar windows.

    Attributes:
        count: units in a window, > 0; for hours a divisor of 24.
        unit: counted from 1 January 1970; weeks are counted from the first `week_start` of 1970.
        timezone: IANA name.
        week_start: first day of a week, 0: Monday.
        offset_us: how much later a window starts by the clock of the zone, microseconds; may be negative.
    """

    count: int
    unit: CalendarUnit
    timezone: str
    week_start: int = 0
    offset_us: int = 0

    def __str__(self) -> str:
        many = "s" if self.count > 1 else ""
        week = f" from {WEEKDAYS[self.week_start].capitalize()}" if self.unit == "week" else ""
        offset = f" {self.offset_us / 1e6:+g} s" if self.offset_us else ""
        return f"{self.count} {self.unit}{many}{week} in {self.timezone}{offset}"

    def window_of(self, time_us: int) -> tuple[int, int]:
        """Return [start, end) of the window of a time, in microseconds since the epoch, UTC.

        Args:
            time_us: from `MIN_TIME_US` to `MAX_TIME_US`.
        """
        if self.unit == "hour" and self.count == 1:
            return self._hour_of(time_us)
        shown = EPOCH + timedelta(microseconds=time_us) + self._ahead(time_us) - self._offset
        index = self._index(shown)
        # A change of the clock can make it show a time of a neighbouring window.
        while self._start_us(index) > time_us:
            index -= 1
        while (end_us := self._start_us(index + 1)) <= time_us:
            index += 1
        return self._start_us(index), end_us

    @cached_property
    def _zone(self) -> tzinfo:
        import pendulum  # only where windows are computed: building a graph does not need it

        return pendulum.timezone(self.timezone)

    @property
    def _offset(self) -> timedelta:
        return timedelta(microseconds=self.offset_us)

    def _ahead(self, time_us: int) -> timedelta:
        """Return how far the clock of the zone is ahead of UTC at a moment."""
        moment = (EPOCH_UTC + timedelta(microseconds=time_us)).astimezone(self._zone)
        return moment.utcoffset() or timedelta()

    def _index(self, shown: datetime) -> int:
        """Return the number of the window of a date and time of the clock."""
        days = (shown - EPOCH).days
        if self.unit == "hour":
            return (days * 24 + shown.hour) // self.count
        if self.unit == "day":
            return days // self.count
        if self.unit == "week":
            return (days - self._first_week) // (7 * self.count)
        return ((shown.year - EPOCH.year) * 12 + shown.month - 1) // (MONTHS[self.unit] * self.count)

    def _start_us(self, index: int) -> int:
        """Return when window `index` starts."""
        number = index * self.count
        if self.unit == "hour":
            shown = EPOCH + number * HOUR
        elif self.unit == "day":
            shown = EPOCH + number * DAY
        elif self.unit == "week":
            shown = EPOCH + (number * 7 + self._first_week) * DAY
        else:
            years, months = divmod(number * MONTHS[self.unit], 12)
            shown = datetime.combine(date(EPOCH.year + years, months + 1, 1), EPOCH.time())
        return self._moment_us(shown + self._offset)

    @property
    def _first_week(self) -> int:
        """Return the days from 1 January 1970 to the first `week_start`."""
        return (self.week_start - _THURSDAY) % 7

    def _moment_us(self, shown: datetime) -> int:
        """Return the first moment at which the clock shows this time or a later one."""
        later = shown.replace(tzinfo=self._zone, fold=1)
        moment_us = _us(shown - (later.utcoffset() or timedelta()))
        if self._shown(moment_us) == shown:
            return moment_us
        earlier = shown.replace(
            tzinfo=self._zone, fold=0
        )  # the clock skips it: `fold` has the offsets before and after
        return self._change_us(moment_us, _us(shown - (earlier.utcoffset() or timedelta())))

    def _shown(self, time_us: int) -> datetime:
        return EPOCH + timedelta(microseconds=time_us) + self._ahead(time_us)

    def _change_us(self, before_us: int, after_us: int) -> int:
        """Return the moment, in before < moment <= after, at which the clock changes."""
        after = self._ahead(after_us)
        while after_us - before_us > 1:
            middle_us = (before_us + after_us) // 2
            if self._ahead(middle_us) == after:
                after_us = middle_us
            else:
                before_us = middle_us
        return after_us

    def _hour_of(self, time_us: int) -> tuple[int, int]:
        """Return the hour that the clock shows. Like Airflow's @hourly, an hour shown twice gives two windows."""
        ahead = self._ahead(time_us)
        shown = EPOCH + timedelta(microseconds=time_us) + ahead - self._offset
        start_us = time_us - (shown - EPOCH) % HOUR // MICROSECOND
        end_us = start_us + HOUR // MICROSECOND
        if self._ahead(start_us) != ahead:
            start_us = self._change_us(start_us, time_us)
        if self._ahead(end_us - 1) != ahead:
            end_us = self._change_us(time_us, end_us - 1)
        return start_us, end_us


class CalendarTable:
    """The windows of the times seen so far, as a table, so that a whole batch is looked up at once. Not thread-safe."""

    def __init__(self, calendar: Calendar) -> None:
        self._calendar = calendar
        self._starts = self._ends = np.zeros(0, np.int64)

    def starts(self, times_us: Int64s) -> Int64s:
        """Return the start of the window of each time."""
        self._load(times_us)
        return self._starts[np.searchsorted(self._starts, times_us, "right") - 1]

    def ends(self, times_us: Int64s) -> Int64s:
        """Return the end of the window of each time."""
        self._load(times_us)
        return self._ends[np.searchsorted(self._starts, times_us, "right") - 1]

    def forget(self, closed_us: int) -> None:
        """Delete windows that end by `closed_us`: they accept no more rows."""
        open_ = self._ends > closed_us
        if not open_.all():
            self._starts, self._ends = self._starts[open_], self._ends[open_]

    def part(self, closed_us: int) -> StatePart:
        """Return the state of the windows that may be open: those that end after `closed_us`."""
        self.forget(closed_us)
        return StatePart(CALENDAR, "list", pa.table([self._starts, self._ends], schema=CALENDAR_SCHEMA))

    def restore(self, table: pa.Table, uid: str) -> None:
        """Restore the windows of a snapshot.

        Raises:
            SnapshotError: the time zone's rules on this machine give other bounds, and the windows' contents cannot be
                divided again.
        """
        starts, ends = (table.column(name).to_numpy() for name in CALENDAR_SCHEMA.names)
        for start_us, end_us in zip(starts.tolist(), ends.tolist(), strict=True):
            now = self._calendar.window_of(start_us)
            if now != (start_us, end_us):
                raise SnapshotError(
                    f"the rules of time zone {self._calendar.timezone} differ from the snapshot's rules",
                    where=f"state {CALENDAR!r} of operator {uid!r}",
                    cause=f"an open window was {_text(start_us, end_us)}, and with the rules of this machine it is "
                    f"{_text(*now)}",
                    remedy="Restore with the tzdata version of the snapshot, stop the job with drain, and start it "
                    "with the new tzdata version; or give the operator a new uid",
                )
        self._load(starts)

    def _load(self, times_us: Int64s) -> None:
        """Add the windows of these times to the table."""
        missing = times_us[~self._is_known(times_us)]
        while len(missing):
            # One time of each hour, because most windows are longer. The loop finds windows that this leaves out.
            _, first = np.unique(missing // (HOUR // MICROSECOND), return_index=True)
            for time_us in missing[first].tolist():
                if not self._is_known(np.array([time_us])).all():
                    self._add(*self._calendar.window_of(time_us))
            missing = missing[~self._is_known(missing)]

    def _is_known(self, times_us: Int64s) -> Mask:
        if not len(self._starts):
            return np.zeros(len(times_us), np.bool_)
        at = np.searchsorted(self._starts, times_us, "right") - 1
        known: Mask = (at >= 0) & (times_us < self._ends[at])
        return known

    def _add(self, start_us: int, end_us: int) -> None:
        at = int(np.searchsorted(self._starts, start_us))
        self._starts, self._ends = np.insert(self._starts, at, start_us), np.insert(self._ends, at, end_us)


def check_calendar_range(column: str, low_us: int, high_us: int, where: str) -> None:
    """Raise DataError if times are not in `MIN_TIME_US`..`MAX_TIME_US`."""
    if low_us < MIN_TIME_US or high_us > MAX_TIME_US:
        raise DataError(
            f"column {column!r} has an event time that is out of range: "
            f"{low_us if low_us < MIN_TIME_US else high_us} us since 1970",
            where=where,
            cause="calendar windows support the years 1000 to 8999; the column has another unit than declared, or "
            "the value is a placeholder for a missing time",
            remedy="Pass the right unit to with_watermark, or filter out such rows before it",
        )


def _text(start_us: int, end_us: int) -> str:
    return " to ".join(f"{EPOCH + timedelta(microseconds=us)} UTC" for us in (start_us, end_us))
