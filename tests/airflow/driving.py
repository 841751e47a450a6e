"""What tests of this layer do to Airflow, to its tasks' processes and to drivers; and what they count afterwards."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow.dataset
from airflow_home import Standalone
from dag_run import DagRun

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launches import LocalDriver, find_local_driver

RUN_TIMEOUT_S = 300.0

ClientOf = Callable[[str], JobClient]


def run_to_end(run: DagRun) -> dict[str, str]:
    """Task id -> final state."""
    for _ in run.follow(RUN_TIMEOUT_S):
        pass
    return {task_id: task["state"] for task_id, task in run.tasks().items()}


def ran(airflow: Standalone, dag_id: str, run_id: str, conf: dict[str, Any]) -> DagRun:
    """A run that has ended well."""
    run = DagRun(airflow, dag_id, run_id)
    run.trigger(conf)
    failed = {t: run.log(t, run.tasks()[t]["try_number"])[-3000:] for t, s in run_to_end(run).items() if s == "failed"}
    assert not failed
    return run


def states(run: DagRun) -> dict[str, str]:
    """Task id -> state now."""
    return {task_id: task["state"] for task_id, task in run.tasks().items()}


def until(what: str, condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    """Wait for something outside; this layer has no clock of its own to inject."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.1)


def driver_of(client: JobClient) -> LocalDriver | None:
    """The process of the job's newest submission; None: no job, or none alive."""
    specs = client.specs()
    return find_local_driver(client.store, client.layout, specs[-1].number) if specs else None


def launch_and_freeze(client: JobClient, launches: int = 0) -> Callable[[], object]:
    """Wait for one more launch than `launches`, and `freeze` its driver before it can have come far."""
    until("a driver to be launched", lambda: len(client.launches()) > launches and driver_of(client) is not None)
    return freeze(client)


def freeze(client: JobClient) -> Callable[[], object]:
    """Stop the job's driver between two instructions: what it is asked stays unanswered. Returns what lets it go on."""
    driver = driver_of(client)
    assert driver is not None, f"job {client.job_id} has no driver to freeze"
    assert driver.kill(signal.SIGSTOP)
    return lambda: driver.kill(signal.SIGCONT)


@contextmanager
def frozen(client: JobClient) -> Iterator[None]:
    """`freeze`, for a while."""
    thaw = freeze(client)
    try:
        yield
    finally:
        thaw()


def checkpoint_now(client: JobClient) -> int:
    """Take a checkpoint without Airflow; its id."""
    command = client.send("checkpoint", issued_by="test")
    answer = client.wait_result(command.command_id, "1 min").raise_if_refused()
    return int(answer.data["checkpoint_id"])


def questions(client: JobClient) -> Counter[str]:
    """Verb -> commands that the job was ever sent."""
    folder = client.layout.commands
    names = [name for name in client.store.list(folder) if name.endswith(".json") and name.count(".") == 1]
    sent = [client.command(name.removesuffix(".json")) for name in names]
    return Counter(command.verb for command in sent if command is not None)


def effects(client: JobClient) -> Counter[str]:
    """All that was ever done to the job, by its directory: what was asked, and what came of it."""
    specs = client.specs()
    if not specs:
        return Counter()
    found = Counter({"submissions": len(specs), "launches": len(client.launches())})
    found += questions(client)
    found += Counter(f"decided {d.kind}" for d in client.decisions() if d.kind in ("fence", "approve", "reject"))
    found += Counter(f"completed {c.kind}" for c in client.view().completed if c.kind in ("checkpoint", "savepoint"))
    return found


def kill_task(run: DagRun, task_id: str) -> None:
    """kill -9 of the process that runs the first try of a task."""
    until(f"{task_id} to run", lambda: bool(run.tasks()[task_id]["pid"]))
    task = run.tasks()[task_id]
    assert (task["state"], task["try_number"]) == ("running", 1), f"{task_id} was to be killed while it waits: {task}"
    os.kill(task["pid"], signal.SIGKILL)


def second_try_runs(run: DagRun, task_id: str) -> bool:
    """Airflow has noticed the death and begun again."""
    task = run.tasks()[task_id]
    return (task["try_number"], task["state"]) == (2, "running")


def is_held(airflow: Standalone, run: DagRun, task_id: str) -> bool:
    """The triggerer runs the task's trigger, and has begun a log of it. A task is deferred some seconds before: a mark
    as failed in between is one that no trigger hears of."""
    folder = f"dag_id={run.dag_id}/run_id={run.run_id}/task_id={task_id}"
    logs = (airflow.home.folder / "logs" / folder).glob("*.trigger.*")
    return run.tasks()[task_id]["state"] == "deferred" and any(logs)


def mark(airflow: Standalone, run: DagRun, task_id: str, state: str) -> None:
    """What "Mark task as ..." does."""
    path = f"/api/v2/dags/{run.dag_id}/dagRuns/{run.run_id}/taskInstances/{task_id}"
    airflow.call("PATCH", path, {"new_state": state})


def clear(airflow: Standalone, run: DagRun, task_ids: list[str]) -> None:
    """What "Clear task" does: the run goes on with these."""
    body: Mapping[str, Any] = {
        "dry_run": False,
        "dag_run_id": run.run_id,
        "task_ids": task_ids,
        "only_failed": False,
        "reset_dag_runs": True,
    }
    airflow.call("POST", f"/api/v2/dags/{run.dag_id}/clearTaskInstances", body)


def assert_windy_hours(airflow: Standalone, job_id: str) -> None:
    """What `windy_hours` has written is what its source holds."""
    flights = airflow.home.flights
    out = pyarrow.dataset.dataset([str(p) for p in (flights / "out" / job_id).glob("*.parquet")]).to_table()
    weather = pyarrow.dataset.dataset(str(flights / "data" / "weather.parquet")).to_table()
    expected = weather.filter(pyarrow.dataset.field("wind_speed") > 20).select(out.column_names)
    order = [("origin", "ascending"), ("time_hour", "ascending")]
    assert out.num_rows > 0
    assert out.sort_by(order).to_pylist() == expected.sort_by(order).to_pylist()
