"""Windows and aggregates of every kind give the same rows in streaming, in batch and in DuckDB (S8.2)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate import Files, Pipeline, Stream, count, count_distinct, max, session, sliding, sum, tumbling
from tidegate.testing.batch import InProcessBatch
from tidegate.testing.collect import CollectSink, collected
from tidegate.testing.in_process import InProcessJob

EVENTS = pa.schema([("k", pa.string()), ("v", pa.int64()), ("ts", pa.timestamp("ms"))])
LATEST_MS = 500_000
SETTINGS = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
_names = itertools.count()

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
        sink = f"batch-windows-{next(_names)}"

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
