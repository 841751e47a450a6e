"""Batch mode aggregates before the exchange, and gives the same rows as streaming, which does not (S8.1, S8.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_batch_jobs import Row, drawn, events, in_both_modes, write

import tidegate
from tidegate import Files, Pipeline, collect_set, count, count_distinct, max, mean, min, stddev, sum, tumbling
from tidegate.operators.aggregates import running_aggregate
from tidegate.operators.windows import partial_windows
from tidegate.plan.batch_plan import plan_batch
from tidegate.testing.batch import InProcessBatch
from tidegate.testing.collect_sink import CollectSink

AGGREGATES: dict[str, Any] = {
    "n": count(),
    "known": count("v"),
    "total": sum("v"),
    "least": min("v"),
    "top_key": max("k"),
    "average": mean("v"),
    "spread": stddev("v"),
    "kinds": count_distinct("v"),
}
WINDOWS = {
    "tumbling": tumbling("1 min"),
    "sliding": tidegate.sliding("3 min", "1 min"),
    "with gaps": tidegate.sliding("20 s", "1 min"),
    "calendar": tidegate.tumbling("1 day", timezone="Europe/Berlin"),
}


def rounded(rows: Counter[Row]) -> Counter[Row]:
    """Floats may differ in the last digits, because they are added in another order."""
    return Counter(
        {tuple(round(v, 6) if isinstance(v, float) else v for v in row): times for row, times in rows.items()}
    )


def has_partial(draw: Callable[[Pipeline, str], None]) -> bool:
    p = Pipeline()
    draw(p, "unused")
    return any(node.uid.endswith(".partial") for node in plan_batch(p.build(), 2, 128).graph.nodes)


@pytest.mark.parametrize("limit", [1, 1 << 20])
@pytest.mark.parametrize("window", WINDOWS)
@settings(max_examples=6, deadline=None)
@given(rows=drawn, files=st.integers(1, 3))
def test_windows_are_the_same_however_often_the_memory_is_full(
    window: str, limit: int, rows: list[Any], files: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(tmp_path_factory.mktemp("in"), events(rows), files)

    def draw(p: Pipeline, name: str) -> None:
        windows = p.read(Files(path), uid="events").with_watermark("ts", "10 min").group_by("k").window(WINDOWS[window])
        windows.agg(**AGGREGATES, uid="w").write(CollectSink(name), uid="out")

    assert has_partial(draw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial_windows, "MAX_ENTRIES", limit)
        streaming, batch = in_both_modes(draw)
    assert rounded(batch) == rounded(streaming)
    assert batch or window == "with gaps"


@pytest.mark.parametrize("limit", [1, 1 << 20])
@settings(max_examples=6, deadline=None)
@given(rows=drawn, files=st.integers(1, 3))
def test_aggregates_without_windows_are_the_same(
    limit: int, rows: list[Any], files: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(tmp_path_factory.mktemp("in"), events(rows), files)

    def draw(p: Pipeline, name: str) -> None:
        groups = p.read(Files(path), uid="events").group_by("k")
        groups.agg(**AGGREGATES, output="final", uid="g").write(CollectSink(name), uid="out")

    assert has_partial(draw)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running_aggregate, "MAX_ENTRIES", limit)
        streaming, batch = in_both_modes(draw)
    assert rounded(batch) == rounded(streaming) != Counter()


def test_an_aggregate_that_depends_on_the_order_of_rows_gets_all_of_them(tmp_path: Any) -> None:
    path = write(tmp_path, events([("a", 1, 5), ("a", 2, 3)]), 1)

    def draw(p: Pipeline, name: str, last: Any = None) -> None:
        windows = p.read(Files(path), uid="events").with_watermark("ts", "1 s").group_by("k").window(tumbling("1 min"))
        windows.agg(last=last or tidegate.last("v"), n=count(), uid="w").write(CollectSink(name), uid="out")

    assert not has_partial(draw)
    assert has_partial(lambda p, name: draw(p, name, collect_set("v")))


def test_rows_that_belong_to_no_window_are_counted_under_the_users_uid(tmp_path: Any) -> None:
    table = pa.table({"k": ["a", "a"], "v": [1, 2], "ts": pa.array([None, 30_000], pa.timestamp("ms"))})
    path = write(tmp_path, table, 1)

    def build() -> Pipeline:
        p = Pipeline()
        rows = p.read(Files(path), uid="events").with_watermark("ts", "1 s")
        windows = rows.group_by("k").window(tidegate.sliding("20 s", "1 min"))
        windows.agg(n=count(), uid="w").write(CollectSink("counted"), uid="out")
        return p

    job = InProcessBatch(build, {"parallelism": 2})
    job.run()
    assert job.counters["w"] == {"null_event_time_dropped": 1, "outside_windows_dropped": 1}


def test_a_sum_that_does_not_fit_names_the_users_operator(tmp_path: Any) -> None:
    path = write(tmp_path, events([("a", 2**62, 5), ("a", 2**62, 6)]), 1)

    def build() -> Pipeline:
        p = Pipeline()
        windows = p.read(Files(path), uid="events").with_watermark("ts", "1 s").group_by("k").window(tumbling("1 min"))
        windows.agg(total=sum("v"), uid="w").write(CollectSink("overflow"), uid="out")
        return p

    with pytest.raises(Exception, match=r"(?s)w.*total|total.*w") as raised:
        InProcessBatch(build, {"parallelism": 2}).run()
    assert ".partial" not in str(raised.value)
