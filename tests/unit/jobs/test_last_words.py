"""What is told of a driver that is lost: where it was launched, and what it left behind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tidegate.errors import StoreError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.desired_state import request_running
from tidegate.jobs.launch.lost_driver import lost_driver_report
from tidegate.jobs.launches import record_launch, record_process
from tidegate.jobs.records import Spec


def test_a_process_is_told_with_host_pid_log_and_its_last_lines(client: JobClient, spec: Spec, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n".join(f"line {n}" for n in range(100)))
    launch = record_launch(client.store, client.layout, spec.number, launcher="local", host="worker-3")
    record_process(client.store, client.layout, replace(launch, pid=42, log=str(tmp_path / "log")))
    place, tail = lost_driver_report(client, spec)
    assert place == f"launch 1 by local, process 42 on worker-3, log {tmp_path / 'log'}"
    assert tail.splitlines()[0] == "line 80" and tail.splitlines()[-1] == "line 99"


@pytest.mark.parametrize(
    ("launcher", "external_id", "told"),
    [
        ("yarn", "application_1_2", "launch 1 by yarn, application_1_2: `yarn logs -applicationId application_1_2`"),
        ("kubernetes", "jobs:pod-1", "launch 1 by kubernetes, pod pod-1: `kubectl logs --namespace jobs pod-1`"),
    ],
)
def test_a_clusters_driver_is_told_with_the_way_to_its_log(
    client: JobClient, spec: Spec, launcher: str, external_id: str, told: str
) -> None:
    launch = record_launch(client.store, client.layout, spec.number, launcher=launcher, host="cluster")
    record_process(client.store, client.layout, replace(launch, external_id=external_id))
    assert lost_driver_report(client, spec) == (f"{told} shows its log", "")


def test_a_launch_that_an_agent_could_not_make_is_told_in_the_agents_words(client: JobClient, spec: Spec) -> None:
    record_launch(client.store, client.layout, spec.number, launcher="spark-submit", host="edge")
    client.store.create(client.layout.launch_log(1, 1), b"spark-submit cannot be run")
    assert lost_driver_report(client, spec) == (
        "launch 1 by spark-submit, on edge: its process was never recorded",
        "spark-submit cannot be run",
    )


def test_a_job_that_waits_for_an_agent_says_so(client: JobClient, spec: Spec) -> None:
    assert lost_driver_report(client, spec) == ("no launch of the submission is recorded", "")
    request_running(client, spec, by="airflow")
    assert "check that `tidegate agent` supervises the job's root" in lost_driver_report(client, spec)[0]


def test_a_store_that_is_away_is_no_second_error(
    client: JobClient, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(path: str) -> list[str]:
        raise StoreError("away", where=path)

    monkeypatch.setattr(client.store, "list", away)
    place, tail = lost_driver_report(client, spec)
    assert "cannot be read: away" in place and tail == ""
