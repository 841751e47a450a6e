"""A warning before the newest snapshot of a job expires: the sensor in a worker and deferred, and the event."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from scripted_job import Job, ScriptedDriver
from test_asset_events import again, cursor, new_sender, watch
from test_progress_sensors import found, found_deferred

from airflow_tidegate.assets import snapshot_expiring_asset
from airflow_tidegate.sensors.snapshot_expiry import TidegateSnapshotExpirySensor
from airflow_tidegate.triggers import event_triggers
from airflow_tidegate.triggers.event_kinds import SnapshotExpiringEvents
from airflow_tidegate.triggers.event_triggers import TidegateSnapshotExpiringEventTrigger
from airflow_tidegate.version_compat import AirflowException, AirflowFailException
from airflow_tidegate.waits.job_reader import JobReader
from airflow_tidegate.waits.job_waits import Payload
from airflow_tidegate.waits.snapshot_expiry import SnapshotExpiryWait
from tidegate.errors import OptionError

UNTIL = datetime(2026, 1, 10, 12, tzinfo=UTC)
LATER = UNTIL + timedelta(days=1)


@pytest.fixture
def driver(job: Job) -> ScriptedDriver:
    """The driver of a job that runs. Replaces the one that beats: the wait needs no driver."""
    job.submit()
    made = ScriptedDriver(job.client)
    made.status("RUNNING")
    return made


def sensor(**arguments: Any) -> TidegateSnapshotExpirySensor:
    return TidegateSnapshotExpirySensor(task_id="s", job_id="j1", **arguments)


def in_(hours: float) -> str:
    """A time, by the clock that the sensor uses."""
    return (datetime.now(UTC) + timedelta(hours=hours)).isoformat()


def wait_at(moment: datetime, job: Job, hours: float = 12) -> Payload | None:
    """What a wait finds at a time."""
    wait = SnapshotExpiryWait(before_s=hours * 3600, now=moment.timestamp)
    return wait.check(job.client, job.client.view())


def test_the_wait_ends_so_long_before_the_expiry_and_not_earlier(job: Job, driver: ScriptedDriver) -> None:
    """S4.2."""
    driver.checkpoint(1, readable_until=UNTIL.isoformat())
    assert wait_at(UNTIL - timedelta(hours=12, seconds=1), job) is None
    near = wait_at(UNTIL - timedelta(hours=12), job)
    assert near is not None
    assert (near["checkpoint_id"], near["readable_until"], near["expired"]) == (1, UNTIL.isoformat(), False)
    assert (near["seconds_left"], near["status"]) == (12 * 3600, "RUNNING")
    over = wait_at(UNTIL + timedelta(seconds=5), job, 0)
    assert over is not None and over["expired"] and over["seconds_left"] == -5
    assert wait_at(UNTIL - timedelta(seconds=5), job, 0) is None


def test_a_newer_checkpoint_moves_the_time_and_a_savepoint_does_not(job: Job, driver: ScriptedDriver) -> None:
    """S2.4: a restore of "latest" does not start from a savepoint."""
    driver.checkpoint(1, readable_until=UNTIL.isoformat())
    driver.checkpoint(2, "savepoint", readable_until=LATER.isoformat())
    assert wait_at(UNTIL, job) is not None
    driver.checkpoint(3, readable_until=LATER.isoformat())
    assert wait_at(UNTIL, job) is None


@pytest.mark.parametrize("status", ["RUNNING", "STOPPED", "FAILED", "CANCELED"])
def test_a_job_may_run_or_have_ended(job: Job, driver: ScriptedDriver, status: str) -> None:
    driver.checkpoint(1, readable_until=in_(100))
    driver.status(status)
    assert found(sensor(), job) is None
    result = found(sensor(before="101 h"), job)
    assert (result["job_id"], result["status"], result["checkpoint_id"]) == ("j1", status, 1)


def test_a_dead_driver_does_not_end_the_wait(job: Job, driver: ScriptedDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its snapshot is the one that expires."""
    dead: list[str] = []
    monkeypatch.setattr(
        "airflow_tidegate.waits.watch.WaitEvaluator._notice_lost_driver", lambda *_: dead.append("noticed")
    )
    driver.checkpoint(1, readable_until=in_(100))
    waiting = sensor(mode="reschedule", timeout=60)
    monkeypatch.setattr(type(job.client), "is_alive", lambda *_: dead.append("asked") or False)
    assert found(waiting, job) is None and dead == []


@pytest.mark.parametrize("limit", [None, "deleted"])
def test_a_job_that_ended_without_a_snapshot_that_expires_is_a_failure(
    job: Job, driver: ScriptedDriver, limit: str | None
) -> None:
    driver.status("FINISHED")
    job.submit("again", options={"retention": "delete"})
    second = ScriptedDriver(job.client, spec=2)
    second.status("RUNNING")
    second.checkpoint(1, readable_until=in_(1) if limit else None)
    assert (found(sensor(), job) is not None) is bool(limit), "it runs"
    second.status("CANCELED")
    with pytest.raises(AirflowException, match="no snapshot of the job will expire"):
        found(sensor(), job)


def test_a_snapshot_that_was_deleted_does_not_expire(job: Job, driver: ScriptedDriver) -> None:
    """S2.3: the job cannot be restored from it, whatever the log says."""
    driver.checkpoint(1, readable_until=in_(1))
    driver.status("STOPPED")
    assert found(sensor(), job) is not None
    folder = job.client.layout.checkpoint(1, 1)
    job.client.store.delete_folder(folder)
    with pytest.raises(AirflowException, match="no snapshot of the job will expire.*has no snapshot to restore"):
        found(sensor(), job)
    events = SnapshotExpiringEvents(before_s=7200.0)
    observed = JobReader(job.client).read()
    assert events.events_since(observed, {"checkpoint_id": None}, as_one=False) == []


def test_a_deferred_sensor_finds_the_same(job: Job, driver: ScriptedDriver) -> None:
    driver.checkpoint(1)
    result = found_deferred(sensor(), job, lambda: driver.checkpoint(2, readable_until=in_(1)))
    assert result["checkpoint_id"] == 2 and 0 < result["seconds_left"] <= 3600


@pytest.mark.parametrize("before", ["12", "soon", None, "-1 h"])
def test_a_time_that_is_none_is_refused(job: Job, driver: ScriptedDriver, before: Any) -> None:
    with pytest.raises(AirflowFailException, match="argument before"):
        found(sensor(before=before), job)
    with pytest.raises((OptionError, AttributeError)):
        snapshot_expiring_asset("j1", before=before)


# ------------------------------------------------------------ events


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_triggers, "RETRY_S", 0.01)
    monkeypatch.setattr(event_triggers, "DELIVERY_GRACE_S", 0.0)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`watch` counts the looks of `JobReader`."""
    from test_asset_events import _looks

    real = JobReader.read
    _looks.clear()

    def observed(self: JobReader) -> Any:
        _looks.append(self.client.job_id)
        return real(self)

    monkeypatch.setattr(JobReader, "read", observed)


def expiring(**arguments: Any) -> TidegateSnapshotExpiringEventTrigger:
    return TidegateSnapshotExpiringEventTrigger(**{"job_id": "j1", "poll_interval": "10 ms", **arguments})


@pytest.mark.usefixtures("looks")
def test_an_expiry_is_told_once_also_over_a_restart_of_the_triggerer(job: Job, driver: ScriptedDriver) -> None:
    driver.checkpoint(1, readable_until=in_(100))
    trigger = expiring()
    steps: list[Callable[[], None]] = [lambda: driver.checkpoint(2, readable_until=in_(11))]
    [told] = watch(job, trigger, steps, 1, linger=True)
    assert told["dedupe_key"] == "j1/snapshot_expiring/2"
    assert (told["event"], told["status"], told["expired"]) == ("snapshot_expiring", "RUNNING", False)
    assert cursor(job, trigger) == {"checkpoint_id": 2}
    assert watch(job, again(trigger), [lambda: driver.checkpoint(3, readable_until=in_(11))], 0) == []


@pytest.mark.usefixtures("looks")
def test_an_expiry_that_was_near_before_the_watcher_began_is_told(job: Job, driver: ScriptedDriver) -> None:
    driver.checkpoint(1, "stop-savepoint", readable_until=in_(-1))
    driver.status("STOPPED")
    [told] = watch(job, expiring(), [], 1)
    assert (told["status"], told["expired"]) == ("STOPPED", True)


def test_an_expiry_is_told_again_after_a_snapshot_that_was_not_near(job: Job, driver: ScriptedDriver) -> None:
    now = [UNTIL.timestamp()]
    trigger = expiring()
    sender, reader = new_sender(trigger), JobReader(job.client)
    events = SnapshotExpiringEvents(before_s=12 * 3600, now=lambda: now[0])
    sender._events = events

    def told() -> list[int]:
        found = sender.evaluate(job.client, reader.read()) or []
        for event in found:
            sender.on_delivered(event)
        return [event.payload["checkpoint_id"] for event in found]

    assert told() == [], "no snapshot yet"
    driver.checkpoint(1, readable_until=UNTIL.isoformat())
    assert told() == [1] and told() == []
    driver.checkpoint(2, readable_until=(UNTIL + timedelta(hours=1)).isoformat())
    assert told() == [], "also near, as all snapshots of this job"
    driver.checkpoint(3, readable_until=LATER.isoformat())
    assert told() == []
    now[0] = LATER.timestamp() - 12 * 3600
    assert told() == [3]
    driver.checkpoint(4)
    assert told() == [], "without a limit"
    driver.checkpoint(5, readable_until=LATER.isoformat())
    assert told() == [5]


def test_the_asset_has_names_of_its_own() -> None:
    assets = [snapshot_expiring_asset("j1"), snapshot_expiring_asset("j1", before="1 d")]
    assert {asset.name for asset in assets} == {"tidegate-j1-snapshot-expiring-12h", "tidegate-j1-snapshot-expiring-1d"}
    assert len({asset.watchers[0].trigger.cursor_id for asset in assets}) == 2
