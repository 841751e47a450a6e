"""One real `airflow standalone` for all tests of this layer, with the checkout's DAGs and some of its own."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tidegate.errors import TidegateError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.job_directory import list_jobs
from tidegate.jobs.launches import find_local_driver

if TYPE_CHECKING:
    from airflow_home import Standalone

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
# Before the test modules are imported: they use the tools of `make demo`, the audit of its DAG, and a scripted driver.
sys.path += [str(REPOSITORY / folder) for folder in ("tools", "dags", "tests/unit/airflow")]

DAYS = 15
"""Days of flights in the tests: some 12,700 rows."""


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """Airflow, ready; afterwards no process of it and no driver is left."""
    from airflow_home import AirflowHome, Standalone
    from flight_data import write

    folder = tmp_path_factory.mktemp("airflow")
    dags = folder / "dags"
    shutil.copytree(REPOSITORY / "dags", dags)
    shutil.copytree(HERE / "standalone_dags", dags, dirs_exist_ok=True)
    home = AirflowHome(
        folder=folder / "home",
        job_root=folder / "jobs",
        flights=folder / "flights",
        dags=dags,
        # After so many seconds the triggers of a dead triggerer are taken over.
        extra={"AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "12"},
    )
    write(home.flights / "data", DAYS)
    with Standalone(home) as standalone:
        try:
            standalone.wait_until_ready()
            yield standalone
        finally:
            end_drivers(str(home.job_root))


@pytest.fixture(scope="session")
def client_of(airflow: Standalone) -> Callable[[str], JobClient]:
    """Clients of the jobs that Airflow's tasks start."""
    return lambda job_id: JobClient(str(airflow.home.job_root), job_id)


def end_drivers(root: str) -> None:
    """Kill the drivers of all jobs below `root`."""
    with suppress(TidegateError):
        for job_id in list_jobs(root):
            client = JobClient(root, job_id)
            for spec in client.specs():
                driver = find_local_driver(client.store, client.layout, spec.number)
                if driver is not None:
                    driver.kill()
