"""Events that start DAGs: nothing is lost or told in a flood across restarts, and what comes twice has the same key."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from airflow.models.trigger import Trigger
from airflow.triggers.base import BaseEventTrigger
from scripted_job import Job, ScriptedDriver

from airflow_tidegate.assets import (
    checkpoint_asset,
    end_of_data_asset,
    snapshot_expiring_asset,
    watermark_asset,
)
from airflow_tidegate.triggers import event_triggers
from airflow_tidegate.triggers.event_kinds import EVENTS_AT_ONCE
from airflow_tidegate.triggers.event_triggers import (
    EventSender,
    JobEventTrigger,
    TidegateCheckpointEventTrigger,
    TidegateEndOfDataEventTrigger,
    TidegateWatermarkEventTrigger,
)
from airflow_tidegate.waits.job_reader import JobObservation, JobReader
from tidegate.errors import OptionError, StoreError
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.watch_cursors import read_cursor

try:  # since 3.2
    from airflow.serialization.decoders import smart_decode_trigger_kwargs
    from airflow.serialization.encoders import encode_trigger
except ImportError:  # 3.1
    from airflow.serialization.serialized_objects import _encode_trigger as encode_trigger
    from airflow.serialization.serialized_objects import smart_decode_trigger_kwargs

HOUR_US = 3600 * 1_000_000
SIX_US = 1357020000 * 1_000_000
"""2013-01-01 06:00 UTC."""
PATIENCE_S = 60
"""For what comes at once; only a defect makes a test wait so long."""


_looks: list[str] = []
LOOKS = 4
"""So many looks begun after a change: the first may have been under way, and the last one's answer is not out yet."""


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_triggers, "RETRY_S", 0.01)
    monkeypatch.setattr(event_triggers, "DELIVERY_GRACE_S", 0.0)


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the looks that a trigger begins."""
    real = JobReader.read
    _looks.clear()

    def observed(self: JobReader) -> JobObservation:
        _looks.append(self.client.job_id)
        return real(self)

    monkeypatch.setattr(JobReader, "read", observed)


def again(trigger: JobEventTrigger) -> JobEventTrigger:
    """The trigger as a triggerer makes it."""
    _, arguments = trigger.serialize()
    return type(trigger)(**arguments)


def checkpoints(**arguments: Any) -> TidegateCheckpointEventTrigger:
    return TidegateCheckpointEventTrigger(**{"job_id": "j1", "poll_interval": "10 ms", **arguments})


def hours(**arguments: Any) -> TidegateWatermarkEventTrigger:
    return TidegateWatermarkEventTrigger(**{"job_id": "j1", "every": "1 h", "poll_interval": "10 ms", **arguments})


def new_sender(trigger: JobEventTrigger) -> EventSender:
    return EventSender(trigger.job_events(), trigger.cursor_id, least_s=trigger.least_s, poll_s=trigger.poll_s)


def cursor(job: Job, trigger: JobEventTrigger) -> Any:
    found = read_cursor(job.client.store, job.client.layout, trigger.cursor_id)
    return None if found is None else dict(found.data)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.01)


def watch(
    job: Job, trigger: JobEventTrigger, steps: list[Callable[[], None]], count: int, *, linger: bool = False
) -> list[Any]:
    """Payloads of the first `count` events of one life of the trigger; `steps` happen one after the other once it has
    begun. It dies with the last event in its hands, or, `linger`, some looks later."""
    told: list[Any] = []

    async def live() -> None:
        stream = again(trigger).run()

        async def collect() -> None:
            async for event in stream:
                told.append(event.payload)
                if len(told) >= count and not linger:
                    return

        collecting = asyncio.create_task(collect())
        await until(lambda: cursor(job, trigger) is not None or collecting.done())
        for step in steps:
            step()
        async with asyncio.timeout(PATIENCE_S):
            if count and not linger:
                await collecting
            else:
                await until(lambda: len(told) >= count)
                begun = len(_looks)
                await until(lambda: len(_looks) >= begun + LOOKS)
                collecting.cancel()
                await asyncio.gather(collecting, return_exceptions=True)
        await stream.aclose()

    asyncio.run(live())
    return told


def test_each_checkpoint_that_completes_after_the_beginning_is_told_with_its_facts(
    job: Job, driver: ScriptedDriver
) -> None:
    driver.checkpoint(1)
    steps = [lambda: driver.checkpoint(2, aborted="declined"), lambda: driver.checkpoint(3, watermark_us=SIX_US)]
    [told] = watch(job, checkpoints(), steps, 1)
    assert told == {
        "event": "checkpoint",
        "job_id": "j1",
        "dedupe_key": "j1/checkpoint/3",
        "checkpoint_id": 3,
        "kind": "checkpoint",
        "path": "j1/checkpoints/chk-3-g1",
        "duration_ms": 7,
        "completed_at": "2026-01-01T00:00:00.000+00:00",
        "watermark": "2013-01-01T06:00:00.000Z",
        "count": 1,
    }


def test_what_happened_while_no_triggerer_ran_is_told_afterwards_and_nothing_before(
    job: Job, driver: ScriptedDriver
) -> None:
    trigger = checkpoints()
    watch(job, trigger, [], 0)
    for n in (1, 2):
        driver.checkpoint(n)
    assert [t["checkpoint_id"] for t in watch(job, trigger, [], 2)] == [1, 2]


def test_an_event_that_airflow_may_not_have_written_down_is_told_again_with_the_same_key(
    job: Job, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_triggers, "DELIVERY_GRACE_S", 1000.0)
    trigger = checkpoints()
    [first] = watch(job, trigger, [lambda: driver.checkpoint(1)], 1)
    [second] = watch(job, trigger, [], 1)
    assert first == second


def test_an_event_that_airflow_has_had_for_a_while_is_not_told_again(job: Job, driver: ScriptedDriver) -> None:
    trigger = checkpoints()
    watch(job, trigger, [lambda: driver.checkpoint(1), lambda: driver.checkpoint(2)], 2, linger=True)
    assert watch(job, trigger, [], 0) == []


def test_the_cursor_follows_also_when_events_never_cease(
    job: Job, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each event settles by itself: a newer one does not put off an older one."""
    now = [0.0]
    monkeypatch.setattr(event_triggers, "DELIVERY_GRACE_S", 15.0)
    monkeypatch.setattr(event_triggers.time, "monotonic", lambda: now[0])
    trigger = checkpoints()
    sender, reader = new_sender(trigger), JobReader(job.client)
    assert sender.evaluate(job.client, reader.read()) is None
    for n in range(1, 5):
        driver.checkpoint(n)
        [event] = sender.evaluate(job.client, reader.read()) or []
        sender.on_delivered(event)
        now[0] += 10.0
    assert sender.evaluate(job.client, reader.read()) is None
    third = job.client.view().checkpoint(3)
    assert third is not None
    assert cursor(job, trigger) == {"entry": third.settled_by}


def test_a_checkpoint_that_a_newer_savepoint_overtakes_is_told_too(job: Job, driver: ScriptedDriver) -> None:
    def overtaken() -> None:
        for n, kind in ((1, "checkpoint"), (2, "savepoint")):
            driver.generation_log.append(
                "claim", {"checkpoint_id": n, "kind": kind, "path": f"p{n}", "triggered_at": ""}
            )
        for n, kind in ((2, "savepoint"), (1, "checkpoint")):
            facts = {"checkpoint_id": n, "kind": kind, "path": f"p{n}"}
            driver.generation_log.append("complete", {**facts, "metrics": {}, "parent": None})

    assert [t["checkpoint_id"] for t in watch(job, checkpoints(), [overtaken], 2)] == [2, 1]


def test_a_published_checkpoint_is_told_when_its_output_is_committed(job: Job, driver: ScriptedDriver) -> None:
    """S7.4."""
    trigger = checkpoints(published=True)
    assert watch(job, trigger, [lambda: driver.checkpoint(1, sinks=("out",))], 0) == []
    committed = lambda: driver.generation_log.append("committed", {"checkpoint_id": 1})  # noqa: E731
    [told] = watch(job, trigger, [committed], 1)
    assert (told["event"], told["checkpoint_id"]) == ("published_checkpoint", 1)


def test_a_stop_savepoint_that_the_next_submission_commits_is_told_as_published_when_that_runs(
    job: Job, driver: ScriptedDriver
) -> None:
    """S7.4: the driver ended before its sinks had committed; the next one's restore did, which no other entry tells."""
    trigger = checkpoints(published=True)

    def stop() -> None:
        driver.checkpoint(1, "stop-savepoint", sinks=("out",))
        driver.status("FAILED", reason="no disk")

    assert watch(job, trigger, [stop], 0) == []
    path = job.client.view().checkpoints[0].path
    job.submit("again", restore=RestoreFrom("latest"))
    second = ScriptedDriver(job.client, spec=2)
    assert watch(job, trigger, [lambda: second.status("WAITING_FOR_SLOTS")], 0) == []
    [told] = watch(job, trigger, [lambda: second.status("RUNNING", run_id="r", restored_from=path)], 1, linger=True)
    assert (told["event"], told["checkpoint_id"]) == ("published_checkpoint", 1)
    assert watch(job, trigger, [lambda: second.generation_log.append("committed", {"checkpoint_id": 1})], 0) == []


def test_with_a_least_interval_what_happens_in_between_is_told_as_one(
    job: Job, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(event_triggers.time, "time", lambda: now[0])
    trigger = checkpoints(min_interval="10 min")
    sender, reader = new_sender(trigger), JobReader(job.client)
    sender.evaluate(job.client, reader.read())
    driver.checkpoint(1)
    [first] = sender.evaluate(job.client, reader.read()) or []
    sender.on_delivered(first)
    for n in range(2, 6):
        driver.checkpoint(n)
    now[0] += 599.0
    assert sender.evaluate(job.client, reader.read()) is None
    now[0] += 1.0
    [rest] = sender.evaluate(job.client, reader.read()) or []
    assert (rest.payload["checkpoint_id"], rest.payload["count"]) == (5, 4)


def test_each_hour_that_the_watermark_passes_is_told_once_with_its_interval(job: Job, driver: ScriptedDriver) -> None:
    """S4.4."""
    trigger = hours()
    driver.beat(watermark_us=SIX_US + 1)
    passed = [lambda: driver.beat(watermark_us=SIX_US + 2 * HOUR_US)]
    told = watch(job, trigger, passed, 2, linger=True)
    intervals = [(t["interval_start"], t["interval_end"], t["intervals"]) for t in told]
    assert intervals == [
        ("2013-01-01T06:00:00.000Z", "2013-01-01T07:00:00.000Z", 1),
        ("2013-01-01T07:00:00.000Z", "2013-01-01T08:00:00.000Z", 1),
    ]
    assert len({t["dedupe_key"] for t in told}) == 2
    driver.beat(watermark_us=SIX_US)
    assert watch(job, trigger, [lambda: driver.beat(watermark_us=SIX_US + HOUR_US)], 0) == [], "told before a restart"


def test_hours_may_begin_at_a_chosen_time_and_come_in_bounded_portions(job: Job, driver: ScriptedDriver) -> None:
    driver.beat(watermark_us=SIX_US + 100 * HOUR_US)
    told = watch(job, hours(start="2013-01-01T06:30:00Z"), [], 100)
    assert told[0]["interval_start"] == "2013-01-01T06:00:00.000Z"
    assert [t["intervals"] for t in told] == [1] * 100
    trigger = hours(start="2013-01-01T06:30:00Z").job_events()
    observed = JobReader(job.client).read()
    begun = trigger.initial_cursor(observed)
    assert begun is not None
    assert len(trigger.events_since(observed, begun, as_one=False)) == EVENTS_AT_ONCE
    [all_of_it] = trigger.events_since(observed, begun, as_one=True)
    assert all_of_it.payload["intervals"] == 100


def test_a_job_begun_afresh_has_hours_of_its_own(job: Job, driver: ScriptedDriver) -> None:
    trigger = hours(start="2013-01-01T06:00:00Z")
    driver.beat(watermark_us=SIX_US + HOUR_US)
    [before] = watch(job, trigger, [], 1, linger=True)
    driver.status("FINISHED")
    job.submit("afresh")
    second = ScriptedDriver(job.client, spec=2)
    second.status("RUNNING")
    second.beat(watermark_us=SIX_US + HOUR_US)
    [after] = watch(job, trigger, [], 1)
    assert before["interval_end"] == after["interval_end"]
    assert before["dedupe_key"] != after["dedupe_key"]


def test_a_durable_hour_is_told_when_a_published_checkpoint_has_passed_it(job: Job, driver: ScriptedDriver) -> None:
    driver.beat(watermark_us=SIX_US + 9 * HOUR_US)
    trigger = hours(durable=True, start="2013-01-01T06:00:00Z")
    assert watch(job, trigger, [], 0) == []
    [told] = watch(job, trigger, [lambda: driver.checkpoint(1, watermark_us=SIX_US + HOUR_US)], 1)
    assert told["interval_end"] == "2013-01-01T07:00:00.000Z"


def test_the_end_of_data_is_told_once_a_submission_also_when_it_is_there_already(
    job: Job, driver: ScriptedDriver
) -> None:
    trigger = TidegateEndOfDataEventTrigger(job_id="j1", sources="flights", poll_interval="10 ms")
    driver.generation_log.append("end_of_data", {"source": "flights"})
    [told] = watch(job, trigger, [], 1)
    assert (told["dedupe_key"], told["sources"]["flights"]["end_of_data"]) == ("j1/end_of_data/1", True)
    assert cursor(job, trigger) == {"spec": 0}, "it died before that was written down"
    assert watch(job, trigger, [], 1, linger=True) == [told]
    assert watch(job, trigger, [], 0) == []


def test_a_job_that_is_not_there_yet_is_waited_for_and_a_failing_store_too(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [8]
    store = type(job.client.store)
    read = store.read_range

    def failing(self: Any, path: str, *span: int) -> bytes:
        if failures[0]:
            failures[0] -= 1
            raise StoreError("503")
        return read(self, path, *span)

    trigger, told = checkpoints(), []

    async def live() -> None:
        stream = trigger.run()
        first = asyncio.create_task(anext(stream))
        await asyncio.sleep(0.05)
        job.submit()
        monkeypatch.setattr(store, "read_range", failing)
        await until(lambda: job.client.store.exists(job.client.layout.watch_cursor(trigger.cursor_id)))
        driver = ScriptedDriver(job.client)
        driver.status("RUNNING")
        driver.checkpoint(1)
        told.append((await asyncio.wait_for(first, PATIENCE_S)).payload)
        await stream.aclose()

    asyncio.run(live())
    assert [t["checkpoint_id"] for t in told] == [1]


@pytest.mark.parametrize(
    "asset",
    [
        checkpoint_asset("j1"),
        checkpoint_asset("j1", published=True, min_interval="10 min"),
        watermark_asset("j1", every="1 h", durable=True, start="2013-01-01T00:00:00Z"),
        end_of_data_asset("j1", sources="flights, weather"),
        snapshot_expiring_asset("j1", before="2 d"),
    ],
)
def test_an_asset_watches_by_a_trigger_that_survives_serialisation(asset: Any) -> None:
    [watcher] = asset.watchers
    path, arguments = watcher.trigger.serialize()
    twin = again(watcher.trigger)
    assert twin.serialize() == (path, arguments)
    assert twin.cursor_id == watcher.trigger.cursor_id
    assert BaseEventTrigger.hash(path, arguments) == BaseEventTrigger.hash(*twin.serialize())
    # As the DAG processor compares a DAG's trigger with the one in the database: other hashes would make it a new one.
    encoded = encode_trigger(watcher.trigger)
    stored = Trigger(classpath=encoded["classpath"], kwargs=encoded["kwargs"])
    assert BaseEventTrigger.hash(path, encoded["kwargs"]) == BaseEventTrigger.hash(stored.classpath, stored.kwargs)
    read = {name: smart_decode_trigger_kwargs(value) for name, value in stored.kwargs.items()}
    assert type(watcher.trigger)(**read).serialize() == (path, arguments)


def test_assets_of_other_arguments_have_other_names_and_other_cursors() -> None:
    assets = [
        checkpoint_asset("j1"),
        checkpoint_asset("j2"),
        checkpoint_asset("j1", published=True),
        watermark_asset("j1", every="1 h"),
        watermark_asset("j1", every="1 d"),
        end_of_data_asset("j1"),
        end_of_data_asset("j1", sources="a"),
        snapshot_expiring_asset("j1"),
    ]
    assert len({asset.name for asset in assets}) == len({asset.uri for asset in assets}) == len(assets)
    cursors = {(a.watchers[0].trigger.job_id, a.watchers[0].trigger.cursor_id) for a in assets}
    assert len(cursors) == len(assets)


def test_wrong_arguments_are_refused_when_the_dag_is_read() -> None:
    for wrong, words in [
        ({"every": "0 s"}, "must be longer than 0"),
        ({"every": "hourly"}, "every"),
        ({"every": "1 h", "start": "2013-01-01"}, "argument start"),
        ({"every": "1 h", "min_interval": "10"}, "min_interval"),
    ]:
        with pytest.raises(OptionError, match=words):
            watermark_asset("j1", **wrong)


def test_a_watcher_without_start_tells_the_hours_of_a_job_that_is_begun_afresh(
    job: Job, driver: ScriptedDriver
) -> None:
    """Where the new lineage's hours begin is kept, also over a restart of the triggerer."""
    trigger = hours()
    driver.beat(watermark_us=SIX_US + 3 * HOUR_US)
    sender, reader = new_sender(trigger), JobReader(job.client)
    assert sender.evaluate(job.client, reader.read()) is None
    driver.status("FINISHED")
    job.submit("afresh")
    second = ScriptedDriver(job.client, spec=2)
    second.status("RUNNING")
    second.beat(watermark_us=SIX_US + 1)
    assert sender.evaluate(job.client, reader.read()) is None
    for alive in (sender, new_sender(trigger)):
        second.beat(watermark_us=SIX_US + HOUR_US)
        [told] = alive.evaluate(job.client, reader.read()) or []
        assert told.payload["interval_start"] == "2013-01-01T06:00:00.000Z"


def test_a_watcher_with_a_least_interval_loses_nothing_to_one_without(job: Job, driver: ScriptedDriver) -> None:
    """One Airflow may have both on a job; each goes on where it was itself."""
    fast, slow = checkpoints(), checkpoints(min_interval="1 ms")
    reader, tellers = JobReader(job.client), [new_sender(fast), new_sender(slow)]
    for sender in tellers:
        assert sender.evaluate(job.client, reader.read()) is None
    driver.checkpoint(1)
    [told] = tellers[0].evaluate(job.client, reader.read()) or []
    tellers[0].on_delivered(told)
    assert tellers[0].evaluate(job.client, reader.read()) is None
    time.sleep(0.01)
    [late] = new_sender(slow).evaluate(job.client, reader.read()) or []
    assert late.payload["checkpoint_id"] == 1
