"""kill -9 of the process of an Airflow task, at every verb, in the middle: one job, one effect.

The middle is made, not met: the driver is frozen (SIGSTOP) before it is asked, the task's process dies while it waits,
and the driver thaws when Airflow has begun the second try. Jobs live side by side.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pyarrow.dataset
import pytest
from airflow_home import AirflowFailed, Standalone
from dag_run import DagRun
from driving import (
    ClientOf,
    checkpoint_now,
    driver_of,
    effects,
    freeze,
    kill_task,
    launch_and_freeze,
    run_to_end,
    second_try_runs,
    until,
)

from tidegate.jobs.client.job_client import JobClient

pytestmark = [pytest.mark.standalone, pytest.mark.slow, pytest.mark.gate, pytest.mark.timeout(1200)]

ROWS = 60_000
"""Of a job that the tests stop before its end, ten minutes at its rate; its fork has no rate to speak of."""
ONE_JOB = {"submissions": 1, "launches": 1, "decided fence": 1}
EFFECTS: Mapping[str, Mapping[str, int]] = {
    "start": ONE_JOB,
    "run": ONE_JOB,
    "restore": ONE_JOB,
    "checkpoint": {"checkpoint": 1, "completed checkpoint": 1},
    "savepoint": {"savepoint": 1, "completed savepoint": 1},
    "commit": {"commit": 1, "decided approve": 1},
    "reject": {"reject": 1, "decided reject": 1},
    "suspend": {"stop": 1},
    "drain": {"stop": 1},
    "cancel": {"cancel": 1},
    "fork": ONE_JOB,
    "upgrade": {**ONE_JOB, "stop": 1},
    "upgrade@launched": {**ONE_JOB, "stop": 1},
    "rescale": {**ONE_JOB, "stop": 1},
    "supervise": {"launches": 1, "decided fence": 1, "cancel": 1},
}
"""What one verb adds to a job's directory, done once."""
LIVES: Mapping[str, tuple[str, ...]] = {
    "streaming": (
        "start",
        "checkpoint",
        "savepoint",
        "fork",
        "suspend",
        "restore",
        "upgrade",
        "upgrade@launched",
        "rescale",
        "drain",
    ),
    "gated": ("start", "commit", "reject", "cancel"),
    "bounded": ("run",),
    "watched": ("start", "supervise"),
}
"""Jobs, and what is done to each in turn. `@launched`: killed when a driver was launched, not when one is asked."""
LAUNCHING = ("start", "run", "restore", "fork", "upgrade@launched")


@dataclass(frozen=True)
class Killed:
    """A verb whose Airflow task was killed.

    Attributes:
        states: of the task, in the end.
        tries: of the task.
        added: what it did to the job's directory.
        answer: the XCom.
        log: of the last try.
    """

    state: str
    tries: int
    added: Counter[str]
    answer: Any
    log: str


def kill_in_the_middle(airflow: Standalone, client: JobClient, verb: str, conf: Mapping[str, Any]) -> Killed:
    """Trigger the DAG of one verb, kill its task while it waits, and follow the second try."""
    before = effects(client)
    task_id, _, at = verb.partition("@")
    run = DagRun(airflow, f"worker_{task_id}", f"{client.job_id}{at}")
    thaw: Callable[[], object] = freeze(client) if verb not in (*LAUNCHING, "supervise") else lambda: None
    try:
        run.trigger({"job_id": client.job_id, **conf})
        if verb in LAUNCHING:
            thaw = launch_and_freeze(client, before["launches"])
        elif verb != "supervise":
            until(f"{verb} to ask", lambda: effects(client) != before)
        kill_task(run, task_id)
        until(f"Airflow to try {verb} again", lambda: second_try_runs(run, task_id))
    finally:
        thaw()
    if verb == "supervise":
        lose_the_driver(client)
    state = run_to_end(run)[task_id]
    tries = run.tasks()[task_id]["try_number"]
    answer = run.xcom(task_id) if state == "success" else None
    return Killed(state, tries, effects(client) - before, answer, run.log(task_id, tries)[-3000:])


def lose_the_driver(client: JobClient) -> None:
    """kill -9 of the driver; when another one runs the job, it is cancelled."""
    generation, driver = client.view().generation, driver_of(client)
    assert driver is not None
    driver.kill(signal.SIGKILL)

    def runs_again() -> bool:
        view = client.view()
        return view.generation > generation and view.status.value == "RUNNING"

    until("the driver to be relaunched", runs_again)
    client.send("cancel", issued_by="test")


def live(airflow: Standalone, client_of: ClientOf, job: str) -> dict[str, Killed]:
    """One job's whole life; what was not come to is missing."""
    client, verbs = client_of(f"killed-{job}"), LIVES[job]
    told: dict[str, Killed] = {}
    conf: dict[str, Any] = {"commit": "on_request" if "commit" in verbs else "automatic"}
    for verb in verbs:
        if verb in ("commit", "reject"):
            conf["checkpoint_id"] = checkpoint_now(client)
        about = client
        if verb == "fork":
            about = client_of(f"{client.job_id}-fork")
            conf |= {"from_job": client.job_id, "path": told["savepoint"].answer["path"]}
        try:
            told[verb] = kill_in_the_middle(airflow, about, verb, conf)
        except (AssertionError, AirflowFailed) as error:
            told[verb] = Killed("not killed", 0, Counter(), None, str(error))
        if told[verb].state != "success":
            break
    return told


@pytest.fixture(scope="module")
def killed(airflow: Standalone, client_of: ClientOf) -> dict[str, dict[str, Killed]]:
    """Job -> verb -> what came of it."""
    with ThreadPoolExecutor(len(LIVES)) as pool:
        lives = {job: pool.submit(live, airflow, client_of, job) for job in LIVES}
    return {job: future.result() for job, future in lives.items()}


@pytest.mark.parametrize(("job", "verb"), [(job, verb) for job, verbs in LIVES.items() for verb in verbs])
def test_a_task_that_is_killed_while_it_waits_does_in_two_tries_what_one_does(
    killed: dict[str, dict[str, Killed]], job: str, verb: str
) -> None:
    """S9.2, S9.4."""
    assert verb in killed[job], f"not come to: {[(v, k.state, k.log) for v, k in killed[job].items()][-1:]}"
    found = killed[job][verb]
    assert (found.state, found.tries) == ("success", 2), found.log
    expected = dict(EFFECTS[verb])
    assert {k: n for k, n in found.added.items() if k in expected or not k.startswith("completed")} == expected


def test_jobs_whose_tasks_were_all_killed_have_each_number_once(
    airflow: Standalone, killed: dict[str, dict[str, Killed]], client_of: ClientOf
) -> None:
    assert killed["streaming"]["drain"].answer["outcome"] == "committed"
    assert client_of("killed-gated").view().status.value == "CANCELED"

    def numbers(job: str) -> list[int]:
        out = client_of(f"killed-{job}").specs()[0].arguments["out"]
        return sorted(pyarrow.dataset.dataset(out, format="parquet").to_table()["n"].to_pylist())

    streamed, forked = numbers("streaming"), numbers("streaming-fork")
    assert numbers("bounded") == list(range(300))
    assert streamed == list(range(len(streamed)))
    assert forked == list(range(ROWS - len(forked), ROWS))
    assert 0 < len(forked) < ROWS, "the fork was to begin in the middle"
