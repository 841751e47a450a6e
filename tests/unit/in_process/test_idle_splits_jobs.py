"""S4.4 in whole jobs: silent splits, silent sources, and rows that are kept back when a source falls silent."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from fed_splits import SCHEMA, Fed, passed

from tidegate import count, tumbling
from tidegate.api.pipeline import Pipeline
from tidegate.api.stream import Stream
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.in_process_job import InProcessJob
from tidegate.testing.inline_requests import HeldRequests

_sinks = itertools.count()


@pytest.fixture
def sink() -> Iterator[str]:
    name = f"idle-{next(_sinks)}"
    yield name
    clear_collected(name)


def counted(stream: Stream, sink: str) -> None:
    stream.group_by("k").window(tumbling("1 s")).agg(n=count(), uid="windows").write(CollectSink(sink), uid="out")


def fired(sink: str) -> int:
    """Windows that came out."""
    return collected(sink).rows_written


@pytest.mark.parametrize(("idle_after", "wanted"), [(None, 0), ("1 s", 1)])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_window_need_not_wait_for_a_silent_split(sink: str, idle_after: Any, wanted: int, parallelism: int) -> None:
    """With one subtask the split is left out of its minimum, with two the subtask that reads it is idle."""
    source, p = Fed("busy", "silent"), Pipeline()
    counted(p.read(source, uid="fed").with_watermark("ts", "0 s", idle_after=idle_after), sink)
    run = InProcessJob(lambda: p, {"parallelism": parallelism}).submit()
    source.feed("busy", 100, 200, 1_500)
    passed(run, 500)
    source.feed("busy", 1_600)
    assert fired(sink) == 0
    passed(run, 900)
    assert fired(sink) == wanted
    run.crash()


@pytest.mark.parametrize("option", [{"idle_after": "1 s"}, {}])
def test_the_jobs_own_option_counts_for_whole_sources(sink: str, option: dict[str, Any]) -> None:
    """Of two sources one never brings anything."""
    busy, silent, p = Fed("a"), Fed("b"), Pipeline()
    streams = [p.read(s, uid=f"fed-{n}").with_watermark("ts", "0 s") for n, s in enumerate((busy, silent))]
    counted(streams[0].union(streams[1]), sink)
    run = InProcessJob(lambda: p, {"parallelism": 1, **option}).submit()
    busy.feed("a", 100, 1_500)
    passed(run, 500)
    busy.feed("a", 1_600)
    assert fired(sink) == 0
    passed(run, 900)
    assert fired(sink) == (1 if option else 0)
    run.crash()


def test_a_row_of_a_source_that_woke_is_not_late_for_that(sink: str) -> None:
    """It says that it is active before its row comes: the watermark waits for it again."""
    a, b, p = Fed("a"), Fed("b"), Pipeline()
    streams = [p.read(s, uid=f"fed-{n}").with_watermark("ts", "0 s", idle_after="1 s") for n, s in enumerate((a, b))]
    counted(streams[0].union(streams[1]), sink)
    run = InProcessJob(lambda: p, {"parallelism": 1}).submit()
    a.feed("a", 100)
    passed(run, 2_000)
    b.feed("b", 300)
    passed(run, 50)
    a.feed("a", 2_500)
    passed(run, 500)
    assert fired(sink) == 0, "b is at 300 and active"
    b.feed("b", 999, 1_000)
    passed(run, 50)
    assert fired(sink) == 1
    run.crash()


def test_a_source_that_falls_silent_is_not_idle_while_its_rows_wait_for_an_answer(sink: str) -> None:
    """S4.4: they would come out behind a watermark that did not wait for them."""
    services: list[HeldRequests] = []

    def service(*what: Any) -> HeldRequests:
        services.append(HeldRequests(*what))
        return services[-1]

    a, b, p = Fed("a"), Fed("b"), Pipeline()
    asked = p.read(a, uid="asked").with_watermark("ts", "0 s", idle_after="1 s")
    answered = asked.map_async(lambda batch: batch, SCHEMA, timeout=None, uid="ask")
    counted(answered.union(p.read(b, uid="plain").with_watermark("ts", "0 s")), sink)
    run = InProcessJob(lambda: p, {"parallelism": 1}, requests=service).submit()
    a.feed("a", 100)
    b.feed("b", 150, 1_500)
    passed(run, 3_000)
    assert fired(sink) == 0 and services[0].held
    services[0].answer()
    passed(run, 200)
    assert fired(sink) == 1
    run.crash()
