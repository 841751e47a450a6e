"""A job root with a connection that Airflow finds, launches that are only noted, and scripted sleep."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.clock import ManualClock
from scripted_job import NOW, Job, ScriptedDriver

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.local import LocalLauncher
from tidegate.jobs.records import Launch


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """A job root, a pipeline file beside a DAG file, and launches that only call `on_launch`."""
    root = tmp_path / "root"
    root.mkdir()
    dag_file = tmp_path / "dags" / "d.py"
    dag_file.parent.mkdir()
    dag_file.write_text("")
    (dag_file.parent / "pipe.py").write_text("def build(args):\n    raise AssertionError('not run by Airflow')\n")
    connection = {"conn_type": "tidegate", "host": str(root), "extra": {"master": "local[2]"}}
    monkeypatch.setenv("AIRFLOW_CONN_TIDEGATE_DEFAULT", json.dumps(connection))
    made = Job(root, dag_file, JobClient(str(root), "j1"))

    def launch(self: LocalLauncher, client: JobClient, spec: Any, attempt: int | None = None) -> Launch:
        made.launches.append(spec.number)
        number = made.launches.count(spec.number)
        made.on_launch(spec.number, number)
        return Launch(spec.number, number, "local", "elsewhere", NOW, (), "n", pid=1)

    monkeypatch.setattr(LocalLauncher, "launch", launch)
    monkeypatch.setattr("airflow_tidegate.launchers.local.find_local_driver_settled", lambda *_: None)
    monkeypatch.setattr("airflow_tidegate.launchers.driver_launch.find_local_driver", lambda *_: None)
    return made


@pytest.fixture
def driver(job: Job) -> ScriptedDriver:
    """The driver of a job that runs."""
    job.submit()
    made = ScriptedDriver(job.client)
    made.status("RUNNING")
    made.beat()
    return made


@pytest.fixture
def clock() -> ManualClock[float]:
    """Seconds, for what looks at the page's clock."""
    return ManualClock(0.0)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has what a driver needs; Java is not looked for."""
    monkeypatch.setattr("airflow_tidegate.launchers.driver_launch.require_driver_machine", lambda *_: None)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triggers look again as soon as the test asks them to."""
    monkeypatch.setattr("airflow_tidegate.waits.shared_reader.MIN_PAUSE_S", 0.0)


@pytest.fixture
def between_looks(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What happens while an operator sleeps between two looks, in order; one too many means the wait does not end."""
    steps: list[Callable[[], None]] = []

    def sleep(_: float) -> None:
        assert steps, "the operator waits although nothing more will happen"
        steps.pop(0)()

    monkeypatch.setattr("airflow_tidegate.operators.job_operator.JobOperator.sleep", staticmethod(sleep))
    return steps
