"""The status hint: what it shows is asked for when it is written, not with every heartbeat of a slot."""

from __future__ import annotations

import secrets
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from tidegate.api.pipeline import Pipeline
from tidegate.channel.control.protocol import SlotMetrics, SourceMetrics, SubtaskMetrics
from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.clock import parse_iso
from tidegate.connectors.datagen import DataGen
from tidegate.connectors.discard import Discard
from tidegate.coordinator.enumeration import SearchOutage
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import StatusHint, decode
from tidegate.jobs.stores.in_memory import MemoryStore
from tidegate.spark.driver_loop.attempt import SlotState
from tidegate.spark.driver_loop.status_hint import HintWriter, job_metrics, job_watermark_us

LAYOUT = JobLayout("job")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(secrets.token_hex(8))


def written(store: MemoryStore) -> StatusHint:
    return decode(store.read(LAYOUT.status(1)), StatusHint)


def test_what_is_shown_is_asked_for_at_each_write(store: MemoryStore) -> None:
    hint = HintWriter(store, LAYOUT, 1, 1.0, lambda: "now")
    asked: list[int] = []

    def look() -> dict[str, Any]:
        asked.append(1)
        return {"asked": len(asked)}

    for _ in range(1_000):
        hint.set_source(look)
    assert asked == []
    hint.update(restarts=2)
    for n in (1, 2):
        hint.write_now()
        assert (written(store).heartbeat, dict(written(store).data)) == (n, {"restarts": 2, "asked": n})


def test_a_look_that_fails_does_not_stop_the_heartbeat(store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    hint = HintWriter(store, LAYOUT, 1, 1.0, lambda: "now")
    hint.update(restarts=2)
    hint.set_source(lambda: {}["nothing"])
    hint.write_now()
    assert written(store).heartbeat == 1 and dict(written(store).data) == {"restarts": 2}
    assert "KeyError" in caplog.text


def slot(*watermarks: int, source: int | None = None) -> SlotState:
    """A slot whose subtasks have told these watermarks; `source`: that of its source's chain."""
    told = [SubtaskMetrics((chain, 0), 0, 0, mark) for chain, mark in enumerate(watermarks)]
    if source is not None:
        told.append(SubtaskMetrics((9, 0), 0, 0, source, source=SourceMetrics("flights", 3, False)))
    return SlotState(metrics=SlotMetrics(1, tuple(told)))


@pytest.mark.parametrize(
    ("slots", "watermark_us"),
    [
        ((slot(7, 5), slot(6, 9)), 5),
        ((slot(7, 5), SlotState()), None),
        ((slot(7, MIN_WATERMARK), slot(6, 9)), None),
        ((slot(7, MAX_WATERMARK), slot(MAX_WATERMARK, 9)), 7),
        ((slot(MAX_WATERMARK), slot(MAX_WATERMARK)), None),
    ],
)
def test_the_watermark_of_a_job_is_one_that_every_subtask_has_passed(
    slots: tuple[SlotState, ...], watermark_us: int | None
) -> None:
    """S4.4: while one slot has told nothing, none is known."""
    assert job_watermark_us(dict(enumerate(slots))) == watermark_us


def test_the_watermark_of_a_source_is_told_once_all_its_subtasks_have_told_theirs() -> None:
    graph: Any = SimpleNamespace(nodes=[SimpleNamespace(uid="flights", source=SimpleNamespace(boundedness="bounded"))])
    told = [
        job_metrics(graph, dict(enumerate(slots)))["sources"]["flights"]["watermark_us"]
        for slots in ((slot(7, source=7), slot(8, source=8)), (slot(7, source=7), SlotState()))
    ]
    assert told == [7, None]


def test_what_a_source_has_skipped_is_counted_over_its_subtasks_beside_what_operators_count() -> None:
    """Counts of a source are those of its positions, over all runs."""
    p = Pipeline()
    p.read(DataGen(lambda n: {"n": n}, pa.schema([("n", pa.int64())]), rows=1), uid="lines").write(Discard(), uid="out")
    views = {
        slot: SlotState(metrics=SlotMetrics(1, (SubtaskMetrics((0, slot), 0, 0, 0, source=source, counters=counts),)))
        for slot, source, counts in (
            (0, SourceMetrics("lines", 5, False, counters={"bad_records": 1}), {"parse": {"late_dropped": 4}}),
            (1, SourceMetrics("lines", 5, False, counters={"bad_records": 2}), {}),
        )
    }
    metrics = job_metrics(p.build(), views)
    assert metrics["counters"] == {"lines": {"bad_records": 3}, "parse": {"late_dropped": 4}}
    assert metrics["sources"]["lines"]["records"] == 10


def test_details_of_a_source_are_added_up_when_all_its_subtasks_report_them() -> None:
    """Such as the lag of a topic: a sum of only some partitions would mislead."""
    graph: Any = SimpleNamespace(nodes=[SimpleNamespace(uid="topic", source=SimpleNamespace(boundedness="unbounded"))])

    def details(*told: dict[str, Any] | None) -> Any:
        slots = {}
        for number, one in enumerate(told):
            source = None if one is None else SourceMetrics("topic", 0, False, details=one)
            metrics = SlotMetrics(1, (SubtaskMetrics((0, number), 0, 0, 0, source=source),))
            slots[number] = SlotState(metrics=metrics)
        return job_metrics(graph, slots)["sources"]["topic"]["details"]

    assert details({"lag": 3, "partitions": 1}, {"lag": 4, "partitions": 2}) == {"lag": 7, "partitions": 3}
    assert details({"lag": 3, "partitions": 1}, {"partitions": 2}) == {"partitions": 3}
    assert details({"paused": "alignment"}, {"paused": "alignment"}) == {"paused": "alignment"}
    assert details({"lag": 3}, None) == {}
    assert details({"copying": False, "lag_bytes": 0}, {"copying": True}) == {"copying": True}
    assert details({"copying": False, "lag_bytes": 0}, {"copying": False, "lag_bytes": 7})["lag_bytes"] == 7


def test_an_outage_of_one_subtask_is_shown_from_when_the_first_one_waits() -> None:
    """Also while others have not reported, and if the search for splits fails."""
    graph: Any = SimpleNamespace(nodes=[SimpleNamespace(uid="topic", source=SimpleNamespace(boundedness="unbounded"))])
    since = [f"2026-01-01T00:00:0{n}.000Z" for n in range(3)]
    outages = [{"since": one, "until": "2026-01-01T00:10:00.000Z", "cause": f"c{n}"} for n, one in enumerate(since)]

    def details(*told: dict[str, Any], searches: Any = None) -> Any:
        sources = [SourceMetrics("topic", 0, False, details=one) for one in told]
        slots = {
            n: SlotState(metrics=SlotMetrics(1, (SubtaskMetrics((0, n), 0, 0, 0, source=source),)))
            for n, source in enumerate(sources)
        }
        slots[len(slots)] = SlotState()
        return job_metrics(graph, slots, {}, searches)["sources"]["topic"]["details"]

    assert details({"lag": 3}, {"outage": outages[2]}, {"outage": outages[1]}) == {"outage": outages[1]}
    assert details({"lag": 3}) == {}
    begun = SearchOutage(round(parse_iso(since[0]).timestamp() * 1_000), "no broker")
    found = details({"outage": outages[2]}, searches={"topic": begun})
    assert found == {"outage": {"since": since[0], "until": None, "cause": "no broker"}}


def test_counts_of_sources_that_had_ended_before_the_run_are_shown_with_the_others() -> None:
    graph: Any = SimpleNamespace(nodes=[SimpleNamespace(uid="flights", source=SimpleNamespace(boundedness="bounded"))])
    source = SourceMetrics("flights", 3, False, counters={"bad_records": 2})
    told = SlotState(metrics=SlotMetrics(1, (SubtaskMetrics((0, 0), 0, 0, 0, source=source),)))
    ended = {"flights": {"bad_records": 5}, "airlines": {"new_fields": 1}}
    counters = job_metrics(graph, {0: told}, ended)["counters"]
    assert counters == {"flights": {"bad_records": 7}, "airlines": {"new_fields": 1}}
