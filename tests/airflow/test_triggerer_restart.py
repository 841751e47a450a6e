"""kill -9 of the triggerer in the middle of every wait that it holds; another one takes over, and nothing is lost.

Drivers are frozen while the triggerer is replaced, so that none of the waits can have ended before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from airflow_home import Standalone
from dag_run import DagRun
from driving import ClientOf, checkpoint_now, effects, frozen, is_held, launch_and_freeze, run_to_end, until

from tidegate.jobs.client.job_client import JobClient

pytestmark = [pytest.mark.standalone, pytest.mark.slow, pytest.mark.timeout(600)]

STREAMING, GATED, BOUNDED, THIRD = (f"deferred-{name}" for name in ("streaming", "gated", "bounded", "third"))
JOBS = (STREAMING, GATED, BOUNDED, THIRD)


class Deferred:
    """Tasks that wait in the triggerer, each in a run of its own.

    Attributes:
        runs: (job, verb) -> its run.
    """

    def __init__(self, airflow: Standalone, client_of: ClientOf) -> None:
        self._airflow, self._client_of = airflow, client_of
        self.runs: dict[tuple[str, str], DagRun] = {}

    def trigger(self, job: str, verb: str, **conf: Any) -> None:
        """Begin; the run is named for the job."""
        run = DagRun(self._airflow, f"triggerer_{verb}", job)
        run.trigger({"job_id": job, "commit": "on_request" if job == GATED else "automatic", **conf})
        self.runs[job, verb] = run

    def replace_triggerer(self) -> None:
        """In the middle of all waits."""
        for (job, verb), run in self.runs.items():
            until(f"{verb} of {job} to be deferred", lambda r=run, v=verb: is_held(self._airflow, r, v))
        self._airflow.replace_triggerer()

    def ended(self) -> dict[tuple[str, str], tuple[str, str]]:
        """(job, verb) -> (state, what there is to say of it); begins anew."""
        told = {}
        for (job, verb), run in self.runs.items():
            state = run_to_end(run)[verb]
            told[job, verb] = (state, "" if state == "success" else run.log(verb, run.tasks()[verb]["try_number"]))
        self.runs = {}
        return told


@pytest.fixture(scope="module")
def deferred(airflow: Standalone, client_of: ClientOf) -> Deferred:
    return Deferred(airflow, client_of)


@pytest.fixture(scope="module")
def started(airflow: Standalone, deferred: Deferred, client_of: ClientOf) -> Iterator[dict[Any, Any]]:
    """All jobs, started by tasks whose triggerer died; what became of these tasks."""
    with ExitStack() as thawing:
        for job in JOBS:
            deferred.trigger(job, "run" if job == BOUNDED else "start")
        for job in JOBS:
            thawing.callback(launch_and_freeze(client_of(job)))
        deferred.trigger(BOUNDED, "sees_end")
        deferred.replace_triggerer()
    yield deferred.ended()


def all_well(told: Mapping[tuple[str, str], tuple[str, str]]) -> None:
    assert {what: log[-3000:] for what, (state, log) in told.items() if state != "success"} == {}


def added(before: Mapping[str, Counter[str]], client: JobClient) -> dict[str, int]:
    """What has been done to a job since, but for the periodic or last snapshots."""
    found = effects(client) - before[client.job_id]
    return {k: n for k, n in found.items() if not k.startswith("completed")}


def test_starts_and_runs_and_the_wait_for_the_end_of_data_outlive_the_triggerer(
    started: dict[Any, Any], client_of: ClientOf
) -> None:
    all_well(started)
    for job in JOBS:
        assert added({job: Counter()}, client_of(job)) == {"submissions": 1, "launches": 1, "decided fence": 1}
    assert client_of(BOUNDED).view().status.value == "FINISHED"


def test_snapshots_verdicts_stops_and_the_sensors_outlive_the_triggerer(
    started: dict[Any, Any], deferred: Deferred, client_of: ClientOf
) -> None:
    all_well(started)
    streaming, gated, third = (client_of(job) for job in (STREAMING, GATED, THIRD))
    newest = checkpoint_now(streaming)
    to_commit, to_reject = checkpoint_now(gated), checkpoint_now(gated)
    before = {client.job_id: effects(client) for client in (streaming, gated, third)}
    with frozen(streaming), frozen(gated), frozen(third):
        deferred.trigger(STREAMING, "savepoint")
        deferred.trigger(STREAMING, "sees_checkpoint", checkpoint_id=newest)
        deferred.trigger(GATED, "commit", checkpoint_id=to_commit)
        deferred.trigger(GATED, "reject", checkpoint_id=to_reject)
        deferred.trigger(GATED, "sees_staged", checkpoint_id=to_reject)
        deferred.trigger(GATED, "checkpoint")
        deferred.trigger(THIRD, "supervise")
        deferred.trigger(THIRD, "suspend")
        deferred.replace_triggerer()
    all_well(deferred.ended())
    assert added(before, streaming) == {"savepoint": 1}
    verdicts = {"commit": 1, "reject": 1, "decided approve": 1, "decided reject": 1}
    assert added(before, gated) == {**verdicts, "checkpoint": 1}
    assert added(before, third) == {"stop": 1}
    assert third.view().status.value == "STOPPED"


def test_restores_upgrades_forks_and_cancels_outlive_the_triggerer(
    started: dict[Any, Any], deferred: Deferred, client_of: ClientOf
) -> None:
    all_well(started)
    streaming, gated, third = (client_of(job) for job in (STREAMING, GATED, THIRD))
    assert third.view().status.value == "STOPPED", "the test before stops it"
    fork = client_of(f"{THIRD}-fork")
    before = {client.job_id: effects(client) for client in (streaming, gated, third, fork)}
    with ExitStack() as thawing:
        thawing.enter_context(frozen(streaming))
        thawing.enter_context(frozen(gated))
        deferred.trigger(STREAMING, "upgrade")
        deferred.trigger(GATED, "cancel")
        deferred.trigger(THIRD, "restore")
        thawing.callback(launch_and_freeze(third, before[THIRD]["launches"]))
        deferred.trigger(fork.job_id, "fork", from_job=THIRD, path="latest")
        thawing.callback(launch_and_freeze(fork))
        deferred.replace_triggerer()
    all_well(deferred.ended())
    one_job = {"submissions": 1, "launches": 1, "decided fence": 1}
    assert added(before, streaming) == {**one_job, "stop": 1}
    assert added(before, gated) == {"cancel": 1}
    assert added(before, third) == added(before, fork) == one_job
    ends = [client.view().status.value for client in (streaming, gated, third, fork)]
    assert ends == ["RUNNING", "CANCELED", "RUNNING", "FINISHED"]


def test_drains_outlive_the_triggerer(started: dict[Any, Any], deferred: Deferred, client_of: ClientOf) -> None:
    all_well(started)
    running = [client for client in map(client_of, (STREAMING, THIRD)) if client.view().status.value == "RUNNING"]
    assert running, "the tests before leave them running"
    before = {client.job_id: effects(client) for client in running}
    with ExitStack() as thawing:
        for client in running:
            thawing.enter_context(frozen(client))
            deferred.trigger(client.job_id, "drain")
        deferred.replace_triggerer()
    all_well(deferred.ended())
    assert [added(before, client) for client in running] == [{"stop": 1}] * len(running)
