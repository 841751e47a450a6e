"""Windows and aggregates of every kind give the same rows in streaming, in batch and in DuckDB (S8.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from builders.sinks import new_sink_name
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate import Files, Pipeline, Stream, count, count_distinct, max, session, sliding, sum, tumbling
from tidegate.testing.batch import InProcessBatch
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob

EVENTS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("ts", pa.timestamp("ms"))])
LATEST_MS = 500_000
SETTINGS = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

drawn = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.integers(-1000, 1000), st.integers(0, LATEST_MS)), min_size=1, max_size=80
)
Draw = Callable[[Stream], Stream]

PIPELINES: dict[str, tuple[Draw, str]] = {
    "sliding": (
        lambda s: s.group_by("k").window(sliding("2 min", "1 min")).agg(n=count(), total=sum("v"), uid="w"),
        """select k, s, s + interval 2 minute, count(*), sum(v)::bigint from (select *, unnest([time_bucket(interval 1
        minute, ts), time_bucket(interval 1 minute, ts) - interval 1 minute]) s from events) group by k, s""",
    ),
    "session": (
        lambda s: s.group_by("k").window(session("20 s")).agg(n=count(), top=max("v"), uid="w"),
        """select k, min(ts), max(ts) + interval 20 second, count(*), max(v) from (select *, count(*) filter (where new)
        over (partition by k order by ts rows unbounded preceding) g from (select *, coalesce(ts - lag(ts) over (
        partition by k order by ts) > interval 20 second, true) as new from events)) group by k, g""",
    ),
    "of the whole stream": (
        lambda s: s.window_all(tumbling("1 min")).agg(n=count(), keys=count_distinct("k"), uid="w"),
        """select s, s + interval 1 minute, count(*), count(distinct k) from (select *, time_bucket(interval 1
        minute, ts) s from events) group by s""",
    ),
    "final groups": (
        lambda s: s.group_by("k").agg(n=count(), total=sum("v"), output="final", uid="g"),
        "select k, count(*), sum(v)::bigint from events group by k",
    ),
    "final of everything": (
        lambda s: s.agg(n=count(), total=sum("v"), output="final", uid="g"),
        "select count(*), sum(v)::bigint from events",
    ),
    "tumbling": (
        lambda s: s.group_by("k").window(tumbling("1 min")).agg(n=count(), uid="w").select("k", "n"),
        "select k, count(*) from events group by k, time_bucket(interval 1 minute, ts)",
    ),
}


@pytest.mark.parametrize("name", PIPELINES)
@SETTINGS
@given(rows=drawn)
def test_both_modes_agree_with_duckdb(
    name: str, rows: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    draw, query = PIPELINES[name]
    keys, values, times = zip(*rows, strict=True)
    table = pa.table([pa.array(keys), pa.array(values), pa.array(times).cast(EVENTS.field("ts").type)], schema=EVENTS)
    folder = tmp_path_factory.mktemp("in")
    half = table.num_rows // 2
    for number, part in enumerate([table.slice(0, half), table.slice(half)]):
        pq.write_table(part, folder / f"{number}.parquet")
    found: list[Counter[Any]] = []
    for mode in ("streaming", "batch"):
        sink = new_sink_name()

        def build(sink: str = sink) -> Pipeline:
            p = Pipeline()
            source = p.read(Files(str(folder)), uid="events").with_watermark("ts", f"{LATEST_MS} ms")
            draw(source).write(CollectSink(sink), uid="out")
            return p

        if mode == "streaming":
            InProcessJob(build, {"parallelism": 2}).submit().to_end()
        else:
            job = InProcessBatch(build, {"parallelism": 3}, batch_rows=7)
            job.run()
            job.commit()
        found.append(Counter(collected(sink).rows()))
    expected = Counter(duckdb.connect().register("events", table).execute(query).fetchall())
    assert found[1] == found[0] == expected


CALENDARS: dict[str, tuple[Draw, Callable[[datetime], tuple[datetime, datetime] | None]]] = {
    "days": (
        lambda s: s.group_by("k").window(tumbling("1 day", timezone="Europe/Berlin")).agg(n=count(), uid="w"),
        lambda moment: _dates(moment.date(), moment.date() + timedelta(days=1)),
    ),
    "months from six o'clock": (
        lambda s: s.group_by("k").window(tumbling("P1M", "6 h", timezone="Europe/Berlin")).agg(n=count(), uid="w"),
        lambda moment: _dates(*_months((moment.replace(tzinfo=None) - timedelta(hours=6)).date()), hour=6),
    ),
    "weeks from Sunday of the whole stream": (
        lambda s: (
            s.with_columns(k=pc.scalar("all"))
            .window_all(tumbling("1 week", timezone="Europe/Berlin", week_start="sunday"))
            .agg(k=max("k"), n=count(), uid="w")
            .select("k", "window_start", "window_end", "n")
        ),
        lambda moment: _dates(*_weeks(moment.date())),
    ),
    "an hour of each day": (
        lambda s: s.group_by("k").window(sliding("PT1H", "P1D", "-PT15H")).agg(n=count(), uid="w"),
        lambda moment: _ninth_hour(moment.astimezone(UTC)),
    ),
}
"""Draws windows; those that a moment of Berlin's clock is in, or None."""


def _dates(start: date, end: date, hour: int = 0) -> tuple[datetime, datetime]:
    return datetime(start.year, start.month, start.day, hour), datetime(end.year, end.month, end.day, hour)


def _months(day: date) -> tuple[date, date]:
    first = day.replace(day=1)
    return first, (first + timedelta(days=31)).replace(day=1)


def _weeks(day: date) -> tuple[date, date]:
    sunday = day - timedelta(days=day.isoweekday() % 7)
    return sunday, sunday + timedelta(days=7)


def _ninth_hour(moment: datetime) -> tuple[datetime, datetime] | None:
    start = moment.replace(hour=9, minute=0, second=0, microsecond=0)
    end = start + timedelta(hours=1)
    return (start, end) if start <= moment < end else None


@pytest.mark.parametrize("name", CALENDARS)
@SETTINGS
@given(times=st.lists(st.datetimes(datetime(2023, 10, 1), datetime(2024, 4, 30)), min_size=1, max_size=60))
def test_windows_of_a_calendar_agree_with_the_clock_in_both_modes(
    name: str, times: list[datetime], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """S4.4, S8.2: over two changes of the clock and a 29 February."""
    draw, windows = CALENDARS[name]
    times = [time.replace(microsecond=0) for time in times]
    keys = ["all" if "whole" in name else "abc"[number % 3] for number in range(len(times))]
    folder = tmp_path_factory.mktemp("in")
    columns = [pa.array(keys), pa.array(range(len(times)), pa.int64()), pa.array(times).cast(EVENTS.field("ts").type)]
    pq.write_table(pa.table(columns, schema=EVENTS), folder / "all.parquet")
    berlin = ZoneInfo("Europe/Berlin")
    wanted: Counter[Any] = Counter()
    for key, time in zip(keys, times, strict=True):
        window = windows(time.replace(tzinfo=UTC).astimezone(berlin))
        if window is not None:
            bounds = (b if b.tzinfo else b.replace(tzinfo=berlin) for b in window)
            wanted[key, *(bound.astimezone(UTC).replace(tzinfo=None) for bound in bounds)] += 1
    for mode in ("streaming", "batch"):
        sink = new_sink_name()

        def build(sink: str = sink) -> Pipeline:
            p = Pipeline()
            draw(p.read(Files(str(folder)), uid="in").with_watermark("ts", "300 days")).write(
                CollectSink(sink), uid="o"
            )
            return p

        if mode == "streaming":
            InProcessJob(build, {"parallelism": 2}).submit().to_end()
        else:
            job = InProcessBatch(build, {"parallelism": 3}, batch_rows=7)
            job.run()
            job.commit()
        assert {row[:3]: row[3] for row in collected(sink).rows()} == wanted
