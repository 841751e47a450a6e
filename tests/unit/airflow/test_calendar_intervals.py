"""Calendar windows have the boundaries of Airflow's data intervals, zone by zone and over years (S4.4)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pendulum
import pytest
from airflow.timetables.interval import CronDataIntervalTimetable
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.operators.time.calendar import Calendar

ZONES = {
    "Europe/Berlin": 2020,
    "America/New_York": 2006,
    "Australia/Sydney": 2008,
    "Australia/Lord_Howe": 2019,
    "Asia/Kolkata": 2024,
    "Pacific/Apia": 2011,
    "America/Sao_Paulo": 2018,
    "Asia/Beirut": 2023,
    "America/Havana": 2022,
    "Asia/Kathmandu": 1986,
    "America/St_Johns": 2010,
    "UTC": 2000,
}
"""Each with a year in which its clock does something that others do not, such as to leave out a date or a midnight."""
PRESETS = {
    "@daily": ("0 0 * * *", Calendar(1, "day", "")),
    "@weekly": ("0 0 * * 0", Calendar(1, "week", "", 6)),
    "weeks from Monday": ("0 0 * * 1", Calendar(1, "week", "")),
    "@monthly": ("0 0 1 * *", Calendar(1, "month", "")),
    "@quarterly": ("0 0 1 */3 *", Calendar(1, "quarter", "")),
    "@yearly": ("0 0 1 1 *", Calendar(1, "year", "")),
    "two months": ("0 0 1 */2 *", Calendar(2, "month", "")),
    "days from six": ("0 6 * * *", Calendar(1, "day", "", 0, 6 * 3_600_000_000)),
    "six hours": ("0 */6 * * *", Calendar(6, "hour", "")),
}


def us(moment: datetime) -> int:
    return round(moment.timestamp()) * 1_000_000


def check(preset: str, zone: str, since: datetime, intervals: int) -> None:
    """Compare the windows that follow a moment with Airflow's intervals."""
    cron, calendar = PRESETS[preset]
    calendar = replace(calendar, timezone=zone)
    timetable = CronDataIntervalTimetable(cron, timezone=pendulum.timezone(zone))
    start = timetable._get_next(pendulum.instance(since))
    for _ in range(intervals):
        end = timetable._get_next(start)
        window = (us(start), us(end))
        for time_us in (window[0], (window[0] + window[1]) // 2, window[1] - 1):
            assert calendar.window_of(time_us) == window, (preset, zone, str(start))
        start = end


INTERVALS = {"@daily": 370, "@yearly": 14, "days from six": 370}
"""From the start of the year; 54 of all others."""


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("preset", [preset for preset in PRESETS if preset != "six hours"])
def test_windows_of_the_years_in_which_a_clock_is_changed_are_airflows_intervals(preset: str, zone: str) -> None:
    # a date that Apia left out has no six o'clock either: Airflow takes that of the next day, a window the change
    since = datetime(ZONES[zone] + (preset == "days from six" and zone == "Pacific/Apia"), 1, 1, tzinfo=UTC)
    check(preset, zone, since, INTERVALS.get(preset, 54))


@pytest.mark.parametrize("zone", sorted(ZONES.keys() - {"Pacific/Apia"}))
def test_hours_of_the_days_on_which_a_clock_is_changed_are_airflows_intervals(zone: str) -> None:
    for day in range(370):
        start = datetime(ZONES[zone], 1, 1, tzinfo=UTC) + timedelta(days=day)
        before, after = ((start + timedelta(days=n)).astimezone(pendulum.timezone(zone)).utcoffset() for n in range(2))
        if before != after:
            check("six hours", zone, start - timedelta(hours=12), 10)


@settings(deadline=None, max_examples=60)
@given(
    preset=st.sampled_from(["@daily", "@weekly", "@monthly", "@yearly", "weeks from Monday"]),
    zone=st.sampled_from(sorted(ZONES)),
    since=st.datetimes(datetime(1970, 2, 1), datetime(2037, 1, 1)),
)
def test_windows_at_any_time_are_airflows_intervals(preset: str, zone: str, since: datetime) -> None:
    check(preset, zone, since.replace(microsecond=0, tzinfo=UTC), 3)
