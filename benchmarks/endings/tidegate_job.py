"""The job on tidegate, on real Spark: `pipeline.py`, submitted by a JobClient and launched as a detached driver with
master local[1] and one slot, as `tidegate start` does.

    python tidegate_job.py FOLDER [ENDS KINDS]     # adds to FOLDER/lives.json
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pyspark
from scenarios import ENDS, KINDS, WallClock, play
from workload import EVENT_WINDOW_MS, PROCESSING_WINDOW_S, Emitted

import tidegate
from tidegate.errors import JobFailedError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.local import launch_local
from tidegate.jobs.launches import find_local_driver
from tidegate.jobs.records import RestoreFrom, Spec

PIPELINE = f"{Path(__file__).with_name('pipeline.py')}:build"
CHECKPOINT_INTERVAL = "500 ms"
PATIENCE = timedelta(minutes=10)
POLL_S = 0.1
EXIT_TIMEOUT_S = 15.0
TELLING = re.compile(r"timer|window.*dropp|dropp.*window", re.IGNORECASE)
ENDED = {"FINISHED", "STOPPED", "CANCELED", "FAILED"}


def result_rows(work: Path) -> list[Emitted]:
    """Return all rows that tidegate's sink has committed below `work`/out."""
    paths = [path for path in (work / "out").glob("*.jsonl") if path.name[0] not in "._"]
    rows = [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    return [Emitted(row["k"], row["window_start"], row["n"], row["total"]) for row in rows]


def arguments(kind: str, work: Path, *, bounded: bool) -> dict[str, object]:
    """Return the arguments of the pipeline's function."""
    size = f"{EVENT_WINDOW_MS} ms" if kind == "event" else f"{PROCESSING_WINDOW_S} s"
    return {"kind": kind, "window": size, "bounded": bounded, "in": str(work / "in"), "out": str(work / "out")}


class TidegateRun:
    """One submission of a job."""

    def __init__(self, client: JobClient, spec: Spec) -> None:
        self._client = client
        self._before = max((c.checkpoint_id for c in client.view().checkpoints), default=0)
        launch_local(client, spec, env={"PYSPARK_PYTHON": sys.executable})

    def ended(self) -> bool:
        """Return whether the job has finished; raises the error that made it fail."""
        view = self._client.view()
        if view.failure is not None:
            raise JobFailedError(view.failure.message, where=self._client.job_id)
        return view.status.value in ENDED

    def rows_at_window(self) -> int:
        """Return how many rows the source has emitted. Only at the next checkpoint are they surely in their windows."""
        source = self._client.view().source("feed")
        return (source.records or 0) if source else 0

    def checkpoint(self) -> tuple[int, str]:
        """Return (number, folder) of this submission's newest completed checkpoint; 0 if there is none."""
        mine = [c for c in self._client.view().completed if c.checkpoint_id > self._before]
        return (mine[-1].checkpoint_id, mine[-1].path or "") if mine else (0, "")

    def stop(self, *, drain: bool) -> str:
        """Stop with a savepoint; return its folder."""
        command = self._client.send("stop", {"mode": "drain" if drain else "suspend"}, issued_by="benchmark")
        result = self._client.wait_result(command.command_id, PATIENCE, POLL_S)
        if not result.ok or result.data["outcome"] != "committed":
            raise JobFailedError(f"the stop did not end in a commit: {result}", where=self._client.job_id)
        self._client.wait_status({"STOPPED"}, PATIENCE, POLL_S)
        return str(result.data["path"])

    def cancel(self) -> str:
        """Cancel; return the folder of the remaining checkpoint."""
        command = self._client.send("cancel", issued_by="benchmark")
        self._client.wait_result(command.command_id, PATIENCE, POLL_S)
        self._client.wait_status({"CANCELED"}, PATIENCE, POLL_S)
        return self.checkpoint()[1]


class Tidegate(WallClock):
    """tidegate, as a system for `scenarios`."""

    def start(self, kind: str, work: Path, *, bounded: bool, restore: str | None, allow_drained: bool) -> TidegateRun:
        """Submit the job, or a restore of it, and launch a driver."""
        client = _client(work)
        if restore is not None:
            source = RestoreFrom("savepoint", path=restore, allow_drained=allow_drained)
            return TidegateRun(client, client.submit(restore=source))
        spec = client.submit(
            pipeline=PIPELINE,
            arguments=arguments(kind, work, bounded=bounded),
            options={"parallelism": 1, "checkpoint_interval": CHECKPOINT_INTERVAL, "restart_attempts": 0},
            master="local[1]",
            submitted_by="benchmark",
        )
        return TidegateRun(client, spec)

    def refusal(self, work: Path, restore: str) -> str:
        """Try to restore the snapshot of a drain without `allow_drained`; return the error of the job."""
        client = _client(work)
        launch_local(client, client.submit(restore=RestoreFrom("savepoint", path=restore)))
        view = client.wait_status(ENDED | {"RUNNING"}, PATIENCE, POLL_S)
        return view.failure.message if view.failure is not None else ""

    def output(self, work: Path) -> list[Emitted]:
        """Return all committed result rows."""
        return result_rows(work)

    def warnings(self, work: Path) -> list[str]:
        """Return warnings from the logs of driver and slots."""
        lines = [line for text in _client(work).logs().values() for line in text.splitlines()]
        return [line for line in lines if TELLING.search(line)]

    def leave(self, work: Path) -> None:
        """End drivers that still run."""
        client = _client(work)
        for spec in client.specs():
            driver = find_local_driver(client.store, client.layout, spec.number)
            if driver is not None and not driver_gone(driver.is_running):
                driver.kill()


def driver_gone(is_running: Callable[[], bool]) -> bool:
    """Return whether a driver ends by itself; it still writes a last hint after its job has ended."""
    by = time.monotonic() + EXIT_TIMEOUT_S
    while is_running() and time.monotonic() < by:
        time.sleep(POLL_S)
    return not is_running()


def _client(work: Path) -> JobClient:
    return JobClient(str(work / "jobs"), "endings")


if __name__ == "__main__":
    folder, *only = sys.argv[1:]
    ends, kinds = (only[0].split(","), only[1].split(",")) if only else (ENDS, KINDS)
    runs_on = f"{tidegate.__version__} on Spark {pyspark.__version__}, master local[1]"
    play(Tidegate(), runs_on, Path(folder), ends, kinds)
