"""`on_owner_lost`: a task that waits for its job's end says that it is there."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_job import PIPELINE, Job, ScriptedDriver

from airflow_tidegate.operators.start import TidegateRunJobOperator
from airflow_tidegate.waits.job_waits import StatusWait
from airflow_tidegate.waits.step_waits import SuperviseWait
from airflow_tidegate.waits.watch import WaitRunner
from tidegate.errors import CommandRefusedError, NotFoundError, StoreError
from tidegate.jobs.records import Owner, decode

OPTIONS = {"on_owner_lost": "savepoint_then_stop", "owner_timeout": "1 min"}


def owner_of(job: Job) -> Owner | None:
    try:
        return decode(job.client.store.read(job.client.layout.owner), Owner)
    except NotFoundError:
        return None


def runs(job: Job, between_looks: list[Any], options: dict[str, Any]) -> Owner | None:
    """What `owner.json` says when the driver is launched, of a job that then ends."""
    found: list[Owner | None] = []
    drivers: list[ScriptedDriver] = []

    def on_launch(spec: int, attempt: int) -> None:
        found.append(owner_of(job))
        drivers.append(ScriptedDriver(job.client, spec, attempt))

    job.on_launch = on_launch
    between_looks.append(lambda: drivers[0].status("FINISHED"))
    TidegateRunJobOperator(task_id="run", job_id="j1", pipeline=PIPELINE, options=options).execute(job.context())
    return found[0]


def test_the_owner_is_there_before_the_driver_and_renews_while_it_waits(job: Job, between_looks: list[Any]) -> None:
    at_launch = runs(job, between_looks, OPTIONS)
    last = owner_of(job)
    assert at_launch is not None and last is not None
    assert (last.spec, last.by) == (1, "airflow:d/r1/t")
    assert last.mark != at_launch.mark


def test_a_job_that_keeps_running_has_no_owner(job: Job, between_looks: list[Any]) -> None:
    assert runs(job, between_looks, {}) is None
    assert owner_of(job) is None


def test_the_owner_renews_six_times_within_its_time_however_often_it_looks(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = job.submit(options=OPTIONS)
    marks: list[Owner | None] = []
    now_s = 0.0
    wait = StatusWait(spec=spec.number, statuses=("FINISHED",), owner="me")
    watch = WaitRunner(job.client, wait, deadline_at=None, timeout_s=0.0, monotonic=lambda: now_s)
    for _ in range(60):
        watch.poll()
        marks.append(owner_of(job))
        now_s += 1
    assert len({owner.mark for owner in marks if owner is not None}) == 6


def test_who_supervises_a_job_owns_whatever_submission_is_the_newest(job: Job) -> None:
    job.submit(options=OPTIONS)
    waits = (SuperviseWait(owner="me"), StatusWait(spec=1, statuses=("FINISHED",), owner="other"))
    supervisor, starter = (WaitRunner(job.client, wait, deadline_at=None, timeout_s=0.0) for wait in waits)
    assert starter.poll() is None and supervisor.poll() is None
    first = owner_of(job)
    assert first is not None and (first.spec, first.by) == (1, "me")
    ScriptedDriver(job.client).status("FAILED")
    job.submit("again", options=OPTIONS)
    with pytest.raises(CommandRefusedError):
        starter.poll()
    assert owner_of(job) == first
    assert supervisor.poll() is None
    second = owner_of(job)
    assert second is not None and (second.spec, second.by) == (2, "me")


def test_a_supervisor_of_a_job_that_keeps_running_writes_nothing(job: Job) -> None:
    job.submit(options={})
    watch = WaitRunner(job.client, SuperviseWait(owner="me"), deadline_at=None, timeout_s=0.0)
    assert watch.poll() is None
    assert owner_of(job) is None


def test_making_a_watch_touches_no_store(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trigger makes it on the triggerer's event loop."""
    job.submit(options=OPTIONS)
    for verb in ("read", "read_range", "list", "create", "replace", "exists"):
        monkeypatch.setattr(job.client.store, verb, None)
    wait = StatusWait(spec=1, statuses=("FINISHED",), owner="me")
    assert WaitRunner(job.client, wait, deadline_at=None, timeout_s=0.0) is not None


def test_a_store_that_does_not_take_the_renewal_ends_no_wait(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = job.submit(options=OPTIONS)
    wait = StatusWait(spec=spec.number, statuses=("FINISHED",), owner="me")
    watch = WaitRunner(job.client, wait, deadline_at=None, timeout_s=0.0, monotonic=lambda: 0.0)
    with monkeypatch.context() as away:

        def replace(path: str, data: bytes) -> None:
            raise StoreError("away", where=path)

        away.setattr(job.client.store, "replace", replace)
        assert watch.poll() is None
    assert owner_of(job) is None
    assert watch.poll() is None
    assert owner_of(job) is not None
