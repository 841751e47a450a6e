"""A real triggerer by itself - no scheduler, no workers - that is killed while it watches a job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from airflow_home import AirflowHome
from scripted_job import ScriptedDriver

from tidegate.clock import now_iso
from tidegate.jobs.client.job_client import JobClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

HERE = Path(__file__).resolve().parent
MIDNIGHT_US = 1_356_998_400 * 1_000_000
STEP_US = 480 * 1_000_000
"""Event time that passes with each checkpoint, every half second: an hour lasts 4 s."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[AirflowHome]:
    """An Airflow with a database, one DAG folder, and a job that lives."""
    dags = tmp_path / "dags"
    dags.mkdir()
    shutil.copy(HERE / "standalone_dags" / "waits.py", dags)
    unpaused = {"AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False"}
    made = AirflowHome(tmp_path / "home", tmp_path / "jobs", tmp_path / "flights", dags=dags, extra=unpaused)
    made.prepare()
    connection = ("connections", "add", "in_the_database", "--conn-type", "tidegate", "--conn-host")
    for arguments in (("db", "migrate"), (*connection, str(made.job_root)), ("dags", "reserialize")):
        command = [sys.executable, "-m", "airflow", *arguments]
        done = subprocess.run(
            command, env=made.environment(), cwd=made.folder, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    pipeline = tmp_path / "played.py"
    pipeline.write_text("def build(args):\n    raise AssertionError('never run')\n")
    JobClient(str(made.job_root), "watched").submit(pipeline=f"{pipeline}:build", submission_id="s")
    over = threading.Event()

    def live() -> None:
        driver = ScriptedDriver(JobClient(str(made.job_root), "watched"))
        driver.status("RUNNING")
        number = 0
        while not over.wait(0.5):
            number += 1
            mark_us = MIDNIGHT_US + number * STEP_US
            driver.beat(watermark_us=mark_us)
            driver.checkpoint(number, triggered_at=now_iso(), watermark_us=mark_us)

    thread = threading.Thread(target=live)
    thread.start()
    yield made
    over.set()
    thread.join()


def live_until(home: AirflowHome, condition: Callable[[], bool]) -> None:
    """A triggerer's life, which ends by a kill."""
    with (home.folder / "triggerer.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "airflow", "triggerer"],
            env=home.environment(),
            cwd=home.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + 150
    try:
        while not condition():
            assert time.monotonic() < deadline, (home.folder / "triggerer.log").read_text()[-3000:]
            time.sleep(1.0)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def hours(home: AirflowHome) -> list[Any]:
    """Payloads of the hours that Airflow has in its database, oldest first."""
    with closing(sqlite3.connect(f"file:{home.folder}/airflow.db?mode=ro", uri=True, timeout=30)) as database:
        rows = database.execute("select extra from asset_event order by id").fetchall()
    told = [json.loads(extra)["payload"] for (extra,) in rows]
    return [payload for payload in told if payload["event"] == "watermark"]


def cursor_us(home: AirflowHome) -> int:
    """How far the hours are that are written down as told."""
    cursors = (home.job_root / "watched" / "airflow" / "cursors").glob("*.json")
    return max((json.loads(path.read_text())["data"].get("boundary_us", 0) for path in cursors), default=0)


def test_a_killed_triggerer_loses_no_hour_and_tells_again_only_what_it_had_told_just_before(home: AirflowHome) -> None:
    live_until(home, lambda: cursor_us(home) > MIDNIGHT_US)
    before = hours(home)
    live_until(home, lambda: len({h["dedupe_key"] for h in hours(home)}) >= len(before) + 8)
    told = hours(home)
    distinct = {h["dedupe_key"]: (h["interval_start"], h["interval_end"]) for h in told}
    starts, ends = (sorted(times) for times in zip(*distinct.values(), strict=True))
    assert starts[0] == "2013-01-01T00:00:00.000Z"
    assert starts[1:] == ends[:-1], "an hour is missing"
    again = [h["dedupe_key"] for h in told[len(before) :] if h["dedupe_key"] in {b["dedupe_key"] for b in before}]
    assert again == [h["dedupe_key"] for h in before[len(before) - len(again) :]]
    assert len(again) < len(before), "it began anew instead of at its cursor"
