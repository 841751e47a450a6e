"""Calendar windows at work: in memory and in RocksDB, over both times, across restores, and zones whose rules change
(S4.4, S5.2, S5.5); and windows that leave times out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from driven_aggregates import Subtasks
from driven_join import SECOND, join_spec
from driven_join import Subtasks as JoinSubtasks
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tidegate as td
from tidegate.channel.elements import MAX_WATERMARK
from tidegate.errors import SnapshotError, TidegateError
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.operators.time.calendar import EPOCH, EPOCH_UTC, MICROSECOND, Calendar
from tidegate.operators.time.watermark_specs import TimeUnit
from tidegate.operators.windows.window_specs import WindowAggSpec

HOUR = 3_600_000_000
BACK_ENDS = ["heap", "rocksdb"]
BERLIN = Calendar(1, "day", "Europe/Berlin")
BOUNDS = [("window_start", pa.timestamp("us")), ("window_end", pa.timestamp("us"))]
OUTPUT = pa.schema([("k", pa.string()), *BOUNDS, ("n", pa.int64())])
Row = tuple[str, int]


def spec(
    calendar: Calendar | None = BERLIN,
    lateness: int = 0,
    time: str | None = "t",
    size: int = 0,
    slide: int = 0,
    unit: TimeUnit = "us",
) -> WindowAggSpec:
    input_ = pa.schema([("k", pa.string()), ("t", pa.timestamp(unit))])
    return WindowAggSpec(
        ("k",), time, unit, size, 0, (BoundAggregate("n", "count"),), input_, OUTPUT, (), slide, lateness, calendar
    )


def batch(rows: list[Row], unit: TimeUnit = "us") -> pa.RecordBatch:
    times = pa.array([t for _, t in rows], pa.int64()).cast(pa.timestamp("us")).cast(pa.timestamp(unit))
    return pa.record_batch({"k": pa.array([k for k, _ in rows], pa.string()), "t": times})


def at(text: str, zone: str = "Europe/Berlin", fold: int = 0) -> int:
    """Microseconds since the epoch at a time of a zone's clock."""
    moment = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return (moment - EPOCH_UTC) // MICROSECOND


def told(out: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Results without the late rows: key, bounds, count."""
    return [row[1:] for row in out if row[0] == ""]


@pytest.fixture(params=BACK_ENDS)
def back_end(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_days_have_23_24_or_25_hours_as_the_clock_is_changed(tmp_path: Path, back_end: str, unit: TimeUnit) -> None:
    """S4.4: and a record at midnight is in the day that begins."""
    subtasks = Subtasks(spec(unit=unit), tmp_path, back_end)
    days = ["2024-03-30", "2024-03-31", "2024-04-01", "2024-10-27", "2024-10-28"]
    starts = [at(day) for day in days]
    rows = [("a", start + shift) for start in starts for shift in (0, 12 * HOUR, -1_000_000)]
    subtasks.feed(batch(rows, unit))
    out = told(subtasks.watermark(MAX_WATERMARK))
    lengths = {
        day: next(((row[2] - row[1]) // HOUR, row[3]) for row in out if row[1] == start)
        for day, start in zip(days, starts)
    }
    assert lengths == {
        "2024-03-30": (24, 3),
        "2024-03-31": (23, 3),
        "2024-04-01": (24, 2),
        "2024-10-27": (25, 3),
        "2024-10-28": (24, 2),
    }
    assert out == sorted(out, key=lambda row: row[1]) and len(out) == 7
    subtasks.close()


@pytest.mark.parametrize(
    ("calendar", "bounds"),
    [
        (Calendar(1, "week", "Europe/Berlin"), ("2024-02-26", "2024-03-04")),
        (Calendar(1, "week", "Europe/Berlin", 6), ("2024-02-25", "2024-03-03")),
        (Calendar(2, "week", "Europe/Berlin"), ("2024-02-19", "2024-03-04")),
        (Calendar(1, "month", "Europe/Berlin"), ("2024-02-01", "2024-03-01")),
        (Calendar(2, "month", "Europe/Berlin"), ("2024-01-01", "2024-03-01")),
        (Calendar(1, "quarter", "Europe/Berlin"), ("2024-01-01", "2024-04-01")),
        (Calendar(1, "year", "Europe/Berlin"), ("2024-01-01", "2025-01-01")),
        (Calendar(10, "year", "Europe/Berlin"), ("2020-01-01", "2030-01-01")),
        (Calendar(2, "day", "Europe/Berlin"), ("2024-02-29", "2024-03-02")),
        (Calendar(6, "hour", "Europe/Berlin"), ("2024-02-29T12:00", "2024-02-29T18:00")),
        (Calendar(1, "day", "Europe/Berlin", 0, -2 * HOUR), ("2024-02-28T22:00", "2024-02-29T22:00")),
        (Calendar(1, "hour", "Asia/Kolkata"), ("2024-02-29T11:30", "2024-02-29T12:30")),
    ],
)
def test_every_unit_has_the_bounds_of_the_calendar(calendar: Calendar, bounds: tuple[str, str]) -> None:
    """In a leap year, at 12:00 on 29 February in Berlin."""
    zone = "Europe/Berlin"
    assert calendar.window_of(at("2024-02-29T12:00")) == (at(bounds[0], zone), at(bounds[1], zone))


def test_an_hour_that_the_clock_shows_twice_is_two_windows_and_six_hours_are_one_of_seven() -> None:
    hour, six = Calendar(1, "hour", "Europe/Berlin"), Calendar(6, "hour", "Europe/Berlin")
    first, second = (at("2024-10-27T02:30", fold=fold) for fold in (0, 1))
    assert hour.window_of(first) == (first - HOUR // 2, first + HOUR // 2)
    assert hour.window_of(second) == (first + HOUR // 2, first + HOUR // 2 + HOUR)
    assert six.window_of(first) == six.window_of(second) == (at("2024-10-27"), at("2024-10-27") + 7 * HOUR)
    lord_howe = Calendar(1, "hour", "Australia/Lord_Howe")  # set back by half an hour, at 2
    before = at("2024-04-07T01:15", "Australia/Lord_Howe")
    assert lord_howe.window_of(before) == (before - HOUR // 4, before + 3 * HOUR // 4)
    assert lord_howe.window_of(before + HOUR) == (before + 3 * HOUR // 4, before + 5 * HOUR // 4)


def test_a_date_that_a_zone_left_out_has_no_window() -> None:
    apia = Calendar(1, "day", "Pacific/Apia")
    last = at("2011-12-29T23:00", "Pacific/Apia")
    assert apia.window_of(last) == (last - 23 * HOUR, last + HOUR)
    assert apia.window_of(last + HOUR) == (last + HOUR, last + 25 * HOUR)


ZONES = ["Europe/Berlin", "America/Sao_Paulo", "America/Havana", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kolkata"]
CALENDARS = st.builds(
    Calendar,
    st.sampled_from([1, 2, 3]),
    st.sampled_from(["hour", "day", "week", "month", "year"]),
    st.sampled_from(ZONES),
    st.integers(0, 6),
    st.sampled_from([0, HOUR // 4, -HOUR // 4]),
)


@settings(deadline=None, max_examples=150)
@given(calendar=CALENDARS, moment=st.datetimes(datetime(1950, 1, 1), datetime(2080, 1, 1)))
def test_windows_follow_one_another_without_gap_or_overlap(calendar: Calendar, moment: datetime) -> None:
    time_us = (moment - EPOCH) // MICROSECOND
    start, end = calendar.window_of(time_us)
    assert start <= time_us < end
    assert calendar.window_of(start) == calendar.window_of(end - 1) == (start, end)
    assert calendar.window_of(end)[0] == end and calendar.window_of(start - 1)[1] == start


STEPS = st.lists(
    st.one_of(
        st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 400 * 24)), min_size=1, max_size=8),
        st.tuples(st.just("watermark"), st.integers(0, 400 * 24)),
        st.tuples(st.just("restart"), st.integers(1, 3), st.booleans()),
    ),
    max_size=10,
)


@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(steps=STEPS, calendar=CALENDARS, lateness=st.sampled_from([0, 30 * 24 * HOUR]))
def test_batches_watermarks_and_restores_give_what_plain_python_gives(
    scratches: Any, steps: Any, calendar: Calendar, lateness: int
) -> None:
    """S8.2: the windows of rows that were not late, one key and window at a time; both back ends say the same."""
    since = at("2011-06-01", "UTC")
    both = [Subtasks(spec(calendar, lateness), scratches(), back_end) for back_end in BACK_ENDS]
    outs: list[list[tuple[Any, ...]]] = [[], []]
    lates = [0, 0]
    wanted: Counter[tuple[str, int, int]] = Counter()
    passed, late = -MAX_WATERMARK, 0
    for step in steps:
        if isinstance(step, list):
            rows = [(key, since + hour * HOUR) for key, hour in step]
            for key, time_us in rows:
                window = calendar.window_of(time_us)
                if window[1] + lateness <= passed:
                    late += 1
                else:
                    wanted[key, *window] += 1
            for number, subtasks in enumerate(both):
                found = subtasks.feed(batch(rows))
                outs[number] += told(found)
                lates[number] += sum(row[0] == "late" for row in found)
        elif step[0] == "watermark":
            passed = max(passed, since + step[1] * HOUR)
            for out, subtasks in zip(outs, both):
                out += told(subtasks.watermark(since + step[1] * HOUR))
        else:
            for subtasks, back_end in zip(both, BACK_ENDS):
                subtasks.restart(step[1], back_end, portable=step[2])
    for out, subtasks in zip(outs, both):
        out += told(subtasks.watermark(MAX_WATERMARK))
        subtasks.close()
        most: Counter[tuple[str, int, int]] = Counter()
        for key, start, end, count in out:
            most[key, start, end] = max(most[key, start, end], count)
        assert most == wanted
    assert lates == [late, late]


@pytest.mark.parametrize("portable", [True, False])
def test_other_rules_of_the_zone_are_refused_at_the_restore_where_a_window_is_open(
    tmp_path: Path, back_end: str, portable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5.5: as if a government had put off the change of its clock; windows that are over do not matter."""
    subtasks = Subtasks(spec(), tmp_path, back_end)
    subtasks.feed(batch([("a", at("2024-03-31T12:00")), ("b", at("2024-03-30T12:00"))]))
    subtasks.watermark(at("2024-03-31"))
    real = Calendar._ahead
    winter = timedelta(hours=1)
    monkeypatch.setattr(Calendar, "_ahead", lambda self, us: real(self, us) if us < at("2024-03-31T01:00") else winter)
    monkeypatch.setattr(Calendar, "_zone", property(lambda self: ZoneInfo("Etc/GMT-1")))
    with pytest.raises(
        SnapshotError, match="rules of time zone Europe/Berlin differ from the snapshot's rules"
    ) as caught:
        subtasks.restart(2, back_end, portable=portable)
    assert "was 2024-03-30 23:00:00 UTC to 2024-03-31 22:00:00 UTC, and with the rules of this machine it is" in str(
        caught.value
    )
    assert "2024-03-31 23:00:00 UTC" in str(caught.value) and "'op'" in str(caught.value)


def test_rules_that_change_no_open_window_do_not_matter(tmp_path: Path, back_end: str, monkeypatch: Any) -> None:
    subtasks = Subtasks(spec(), tmp_path, back_end)
    subtasks.feed(batch([("a", at("2024-03-31T12:00")), ("b", at("2024-01-30T12:00"))]))
    assert len(subtasks.watermark(at("2024-04-02"))) == 2
    subtasks.feed(batch([("a", at("2024-01-30T12:00")), ("b", at("2024-12-30T12:00"))]))
    monkeypatch.setattr(Calendar, "_zone", property(lambda self: ZoneInfo("Etc/GMT-1")))
    subtasks.restart(1, back_end)
    assert [row[0] for row in told(subtasks.watermark(MAX_WATERMARK))] == ["b"]
    subtasks.close()


def test_another_calendar_is_another_window(tmp_path: Path, back_end: str) -> None:
    """S5.5."""
    for other in (spec(replace(BERLIN, timezone="Asia/Kolkata")), spec(None, size=24 * HOUR)):
        subtasks = Subtasks(spec(), tmp_path / f"{other.shape}"[:12], back_end)
        subtasks.feed(batch([("a", at("2024-03-31T12:00"))]))
        with pytest.raises(SnapshotError, match="1 day in Europe/Berlin; in the pipeline"):
            subtasks.restart(1, back_end, spec=other)


def test_a_time_of_no_year_that_can_be_a_date_is_refused(tmp_path: Path) -> None:
    subtasks = Subtasks(spec(), tmp_path)
    with pytest.raises(TidegateError, match="years 1000 to 8999"):
        subtasks.feed(batch([("a", at("9999-12-31T12:00", "UTC"))]))


@pytest.mark.parametrize("how", ["inner", "left", "full"])
def test_a_join_in_windows_of_a_calendar(scratches: Any, back_end: str, how: str) -> None:
    """S4.4: rows of one day of Berlin match, restarts or not; ends come out with them."""
    day = at("2024-03-31")
    joined = JoinSubtasks(
        join_spec(how=how, window=td.tumbling("1 day", timezone="Europe/Berlin")), back_end, scratches()
    )
    joined.feed(0, [(1, day, 1), (2, day - SECOND, 2)])
    joined.restart(2, portable=False)
    joined.feed(1, [(1, day + 23 * HOUR - SECOND, "a"), (2, day, "b")])
    joined.watermark(day + 23 * HOUR - 1)
    joined.restart(1)
    bounds = (day, day + 23 * HOUR)
    pair = (1, day, 1, (day + 23 * HOUR - SECOND) // 1000, "a", *bounds)
    left = (2, day - SECOND, 2, None, None, day - 24 * HOUR, day)
    right = (2, None, None, day // 1000, "b", *bounds)
    wanted = {"inner": [pair], "left": [pair, left], "full": [pair, left, right]}[how]
    assert Counter(joined.finish()) == Counter(wanted)


def test_a_join_refuses_other_rules_of_its_zone(scratches: Any, back_end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S5.5."""
    window = td.tumbling("1 day", timezone="Europe/Berlin")
    joined = JoinSubtasks(join_spec(how="left", window=window), back_end, scratches())
    joined.feed(0, [(1, at("2024-07-01T12:00"), 1)])
    monkeypatch.setattr(Calendar, "_zone", property(lambda self: ZoneInfo("Etc/GMT-1")))
    with pytest.raises(SnapshotError, match="rules of time zone"):
        joined.restart(1, portable=False)


# ------------------------------------------------------------ windows that leave times out


def test_rows_between_two_windows_are_dropped_and_counted(tmp_path: Path, back_end: str) -> None:
    """S4.4: windows of 10 every 25."""
    subtasks = Subtasks(spec(None, size=10, slide=25), tmp_path, back_end)
    rows = [("a", t) for t in (-25, -16, -15, 0, 9, 10, 24, 25, 34, 35, 59)]
    subtasks.feed(batch(rows))
    subtasks.restart(2, back_end)
    first = told(subtasks.watermark(20))
    assert first == [("a", -25, -15, 2), ("a", 0, 10, 2)]
    assert [row[0] for row in subtasks.feed(batch([("a", 5), ("a", 12), ("a", 26)]))] == ["late"]
    assert told(subtasks.watermark(MAX_WATERMARK)) == [("a", 25, 35, 3), ("a", 50, 60, 1)]
    subtasks.close()
    assert subtasks.counters == {"outside_windows_dropped": 5}


def test_rows_of_a_join_between_two_windows_are_dropped_and_counted(scratches: Any, back_end: str) -> None:
    joined = JoinSubtasks(join_spec(how="full", window=td.sliding("1 s", "5 s")), back_end, scratches())
    joined.feed(0, [(1, 0, 1), (1, 2 * SECOND, 2)])
    joined.feed(1, [(1, SECOND - 1000, "a"), (1, 3 * SECOND, "b"), (1, 5 * SECOND, "c")])
    wanted = [(1, 0, 1, 999, "a", 0, SECOND), (1, None, None, 5000, "c", 5 * SECOND, 6 * SECOND)]
    assert Counter(joined.finish()) == Counter(wanted)
    assert joined.counters == {"outside_windows_dropped": 2}
