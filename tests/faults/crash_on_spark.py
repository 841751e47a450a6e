"""The crash matrix on real Spark: a choice of kills that covers every sink, every way to end, and both victims."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from crash_matrix import Case, Outcome, report
from crash_scenarios import Found, Servers, Target, target

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.local import launch_local
from tidegate.jobs.launches import find_local_driver
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.status import JobView

HERE = Path(__file__).parent
ROWS = 2_400
RATE = 1_200.0
"""Rows a second."""
OPTIONS = {"parallelism": 2, "checkpoint_interval": "400 ms", "restart_delay": "200 ms"}
PATIENCE_S = 600.0
"""For one case, in seconds; it is stuck after that. It takes some 10 s to 20 s on a machine with nothing else to do."""
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For the JVMs, of which a case starts up to three: to start matters more than to be fast."""
MOST_DRIVERS = 6
"""For one case. It needs at most three."""

Kill = tuple[str, str, str, str, str]
"""Sink, way to end, victim, point, and the point after which the process must meet it; empty: from the start."""

_ENDED, _TOLD_END = "EndOfData out: after", "log end_of_data: after"
_STOPPING, _TOLD_STOP = "stop received: before", "stop sent: before"

KILLS: tuple[Kill, ...] = (
    ("Parquet", "natural end", "subtask", "EndOfData out: after", ""),
    ("Parquet", "natural end", "driver", "log end_of_data: after", ""),
    ("Parquet", "natural end", "subtask", "sink: os.replace: after", _ENDED),
    ("Parquet", "natural end", "driver", "log complete: after", _TOLD_END),
    ("Csv", "natural end", "subtask", "finish: before", ""),
    ("Csv", "natural end", "driver", "sink stages: after", _ENDED),
    ("JsonLines", "natural end", "subtask", "sink commits: before", _ENDED),
    ("JsonLines", "natural end", "driver", "_metadata: after", _TOLD_END),
    ("Delta", "natural end", "subtask", "sink: DeltaTable.create_write_transaction: after", _ENDED),
    ("Delta", "natural end", "driver", "sink: DeltaTable.create_write_transaction: before", _ENDED),
    ("Iceberg", "natural end", "subtask", "sink: SqlCatalog.commit_table: after", _ENDED),
    ("Iceberg", "natural end", "driver", "sink: SqlCatalog.commit_table: before", _ENDED),
    ("Postgres", "natural end", "subtask", "sink: Transaction.__exit__: before", _ENDED),
    ("Postgres", "natural end", "driver", "sink: Transaction.__exit__: after", _ENDED),
    ("Postgres", "natural end", "subtask", "sink commits: after", _ENDED),
    ("Kafka", "natural end", "subtask", "sink: MarkedProducer.begin: after", _ENDED),
    ("Kafka", "natural end", "subtask", "sink: MarkedProducer.commit: after", _ENDED),
    ("Kafka", "natural end", "driver", "sink: MarkedProducer.commit: before", _ENDED),
    ("Delta", "natural end", "driver", "log status: before", _TOLD_END),
    ("Delta", "savepoint", "subtask", "acknowledgement: before", ""),
    ("Csv", "savepoint", "driver", "complete sent: after", ""),
    ("Parquet", "suspend", "subtask", "stop received: before", ""),
    ("JsonLines", "suspend", "driver", "log complete: after", _TOLD_STOP),
    ("Postgres", "suspend", "subtask", "sink commits: before", _STOPPING),
    ("Kafka", "suspend", "driver", "sink commits: after", _STOPPING),
    ("Kafka", "drain", "subtask", "sink: MarkedProducer.commit: before", _STOPPING),
    ("Parquet", "drain", "driver", "EndOfData out: before", _STOPPING),
    ("Delta", "drain", "subtask", "sink: os.replace: before", _STOPPING),
    ("Postgres", "drain", "driver", "log committed: before", _TOLD_STOP),
    ("Iceberg", "suspend", "subtask", "sink: os.replace: after", _STOPPING),
    ("Csv", "cancel", "driver", "log status: before", "log complete: after"),
    ("Delta", "cancel", "subtask", "cancel sent: before", "log complete: after"),
    ("JsonLines", "cancel", "driver", "driver exit: before", ""),
    ("JsonLines", "SIGTERM", "subtask", "asynchronous write: before", _STOPPING),
    ("Postgres", "SIGTERM", "driver", "log status: after", _TOLD_STOP),
    ("Csv", "SIGTERM", "subtask", "EndOfPartition out: after", ""),
)


def on_spark(sinks: Sequence[str], servers: Servers, kills: Sequence[Kill] = KILLS) -> list[Outcome]:
    """The kills of jobs into these sinks, one after the other."""
    outcomes = []
    for sink, way, victim, point, after in kills:
        if sink not in sinks:
            continue
        begun = time.monotonic()
        case = Case(sink, way, victim, None, f"{point}, once it has met {after!r}" if after else point)
        outcome = run_on_spark(case, point, after, servers)
        outcomes.append(outcome)
        report(f"on Spark: {sink}, {way}, {victim} killed at {point}", [outcome], time.monotonic() - begun)
    return outcomes


def run_on_spark(case: Case, point: str, after: str, servers: Servers) -> Outcome:
    """One case, from submission to the end of the last submission."""
    folder = Path(tempfile.mkdtemp(prefix="crash-matrix-"))
    try:
        with target(case.sink, folder / "out", "", servers) as out:
            fault = {"point": point, "victim": case.victim, "after": after, "folder": str(folder / "fault")}
            job = SparkJob(folder, out, fault)
            try:
                stuck = job.drive(case.way)
            finally:
                job.end()
            if not stuck and not (folder / "fault" / "struck").exists():
                stuck = "nobody was killed: no process met the point"
            found = Found(0, 0, stuck) if stuck else out.judge("", fired_early=case.way == "drain", total=ROWS)
            story = (*job.story, job.log_tail()) if not found.is_right else tuple(job.story)
            return Outcome(case, found, story)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class SparkJob:
    """A job on local[2], its drivers launched again when they die."""

    def __init__(self, folder: Path, out: Target, fault: dict[str, str]) -> None:
        self.story: list[str] = []
        self._client = JobClient(str(folder / "jobs"), "crash")
        self._arguments = {"target": out.arguments(), "fault": fault, "rows": ROWS, "rate": RATE}
        self._deadline_s = time.monotonic() + PATIENCE_S
        self._drivers = 0
        paths = [
            str(HERE),
            str(HERE.parent),
            str(HERE.parent / "support"),
            *filter(None, [os.environ.get("PYTHONPATH")]),
        ]
        self._env = {
            "PYTHONPATH": os.pathsep.join(paths),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "JAVA_TOOL_OPTIONS": SHORT_LIVED,
        }

    def drive(self, way: str) -> str:
        """Until the job has come to its natural end; else why it did not."""
        try:
            self._submit(way, None)
            self._wait(lambda view: view.completed or view.is_terminal)
            self._ask(way)
            for _ in range(3):
                status = self._wait(lambda view: view.is_terminal and not self._lives()).status.value
                self.story.append(f"{status} after {self._drivers} drivers")
                if status == "FINISHED":
                    return ""
                if status not in ("STOPPED", "CANCELED") and not (status == "FAILED" and way == "SIGTERM"):
                    return f"the job is {status}: {self._client.view().failure}"
                self._submit(way, RestoreFrom("latest", allow_drained=way == "drain"))
        except TimeoutError as error:
            return str(error)
        return "three restores did not end it"

    def _submit(self, way: str, restore: RestoreFrom | None) -> None:
        self._client.submit(
            pipeline=f"{HERE / 'crash_pipeline.py'}:build",
            arguments=self._arguments,
            options=OPTIONS,
            master="local[2]",
            spark_conf={"spark.ui.enabled": "false"},
            restore=restore,
        )
        self._launch()

    def _launch(self) -> None:
        self._drivers += 1
        if self._drivers > MOST_DRIVERS:
            raise TimeoutError(f"{MOST_DRIVERS} drivers did not end it: {self._client.view()}")
        launch_local(self._client, self._client.specs()[-1], env=self._env)

    def _lives(self) -> bool:
        return find_local_driver(self._client.store, self._client.layout, self._client.specs()[-1].number) is not None

    def _ask(self, way: str) -> None:
        """What the way to end wants, of a job that still runs."""
        view = self._client.view()
        if view.is_terminal:
            return
        running = find_local_driver(self._client.store, self._client.layout, self._client.specs()[-1].number)
        if way in ("suspend", "drain"):
            self._client.send("stop", {"mode": way}, issued_by="crash matrix")
        elif way in ("cancel", "savepoint"):
            self._client.send(way, issued_by="crash matrix")
        elif way == "SIGTERM" and running is not None:
            running.kill()

    def _wait(self, condition: Callable[[JobView], object]) -> JobView:
        """Poll; a driver that has died before the job's end gets a successor."""
        while time.monotonic() < self._deadline_s:
            lives = self._lives()
            view = self._client.view()
            if condition(view):
                return view
            if not lives and not view.is_terminal:
                self.story.append("the driver is dead; a successor is launched")
                self._launch()
            time.sleep(0.1)
        raise TimeoutError(f"not over in {PATIENCE_S:.0f} s: {self._client.view()}")

    def log_tail(self) -> str:
        """The end of the drivers' logs."""
        try:
            return "\n".join(self._client.logs().values())[-3000:]
        except Exception as error:
            return f"(no log: {error})"

    def end(self) -> None:
        """Leave no driver behind."""
        running = find_local_driver(self._client.store, self._client.layout, self._client.specs()[-1].number)
        if running is not None:
            running.kill(signal.SIGKILL)
