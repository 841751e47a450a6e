"""Real Spark: jobs started through the job directory, on local masters and on a standalone cluster on loopback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from ledger import deaths, note
from postgres_server import PostgresServer

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.launch.local import launch_local
from tidegate.jobs.launches import find_local_driver
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.status import JobView

PIPELINE = Path(__file__).parent / "pipelines" / "counting.py"
PATIENCE_S = 120.0


class RealJob:
    """A job on real Spark and the ways to look at it."""

    def __init__(self, tmp_path: Path, master: str, job_id: str = "counting") -> None:
        self.root = str(tmp_path / "jobs")
        self.out = str(tmp_path / "out")
        self.master = master
        self.client = JobClient(self.root, job_id)
        self.options: dict[str, Any] = {
            "parallelism": 2,
            "checkpoint_interval": "400 ms",
            "tolerable_checkpoint_failures": 0,
            "restart_strategy": "fixed_delay",
            "restart_delay": "200 ms",
        }
        self._pids: list[int] = []

    def start(
        self,
        *,
        rows: int,
        rate: float,
        function: str = "build",
        pipeline: Path = PIPELINE,
        restore: RestoreFrom | None = None,
        fresh: bool = False,
        conf: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        """Submit and launch."""
        spec = self.client.submit(
            pipeline=f"{pipeline}:{function}",
            arguments={"rows": rows, "rate": rate, "out": self.out},
            options={**self.options, **options},
            master=self.master,
            spark_conf=conf or {},
            restore=restore,
            fresh=fresh,
        )
        launch_local(self.client, spec)
        self._pids.append(self.driver_pid())

    def relaunch(self) -> None:
        """Another driver for the newest submission, whose last one has been killed."""
        spec = self.client.specs()[-1]
        self.until(
            lambda _: find_local_driver(self.client.store, self.client.layout, spec.number) is None,
            "the death of the driver",
        )
        launch_local(self.client, spec)
        self._pids.append(self.driver_pid())

    def adopt_driver(self) -> None:
        """End the newest driver with the test, too: another driver has started it."""
        self._pids.append(self.driver_pid())

    def driver_pid(self) -> int:
        """Of the newest driver."""
        running = find_local_driver(self.client.store, self.client.layout, self.client.specs()[-1].number)
        assert running is not None
        return running.pid

    def until(self, condition: Callable[[JobView], Any], what: str, patience_s: float = PATIENCE_S) -> JobView:
        """Poll the job directory until `condition`; the log's tail when it does not come."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            view = self.client.view()
            if condition(view):
                return view
            time.sleep(0.1)
        raise AssertionError(f"waited {patience_s} s for {what}: {self.client.view()}\n{self.logs()[-6000:]}")

    def until_status(self, *statuses: str) -> JobView:
        """Wait for one of `statuses`."""
        return self.until(lambda view: view.status.value in statuses, f"status {statuses}")

    def completed(self, at_least: int) -> JobView:
        """Wait for so many completed checkpoints."""
        return self.until(lambda view: len(view.completed) >= at_least, f"{at_least} completed checkpoints")

    def slot_pids(self) -> list[int]:
        """Processes of the slots, as soon as the hint, which lags by a heartbeat, tells all of them."""
        self.until(
            lambda _: all(slot["pid"] for slot in self.hint().get("slots", [{"pid": 0}])), "the slots' processes"
        )
        return [slot["pid"] for slot in self.hint()["slots"]]

    def hint(self) -> dict[str, Any]:
        """The newest status hint's data."""
        hint = self.client.hint(self.client.view().generation)
        assert hint is not None
        return dict(hint.data)

    def logs(self) -> str:
        """Driver log, as far as there is one."""
        try:
            return "\n".join(self.client.logs().values())
        except Exception as error:
            return f"(no log: {error})"

    def output(self) -> list[tuple[int, int, int, int]]:
        """Committed rows, sorted."""
        table = ds.dataset(self.out, format="parquet").to_table()
        if not table.column_names:  # no file is committed yet
            return []
        starts = [start // 1000 for start in pc.cast(table["window_start"], pa.int64()).to_pylist()]
        return sorted(
            zip(table["k"].to_pylist(), starts, table["n"].to_pylist(), table["total"].to_pylist(), strict=True)
        )

    def end(self) -> None:
        """End what is left of the drivers this job started."""
        with suppress(Exception):  # a job that was never submitted has no log
            died, interrupted = deaths(self.client.decisions())
            note(kind="deaths", died=died, interrupted=interrupted)
        for pid in self._pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


@pytest.fixture
def local_job(tmp_path: Path) -> Iterator[RealJob]:
    """A job on local[2]."""
    job = RealJob(tmp_path, "local[2]")
    yield job
    job.end()


@pytest.fixture(scope="session")
def standalone_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Spark standalone cluster from pip's pyspark: one Master, two Workers of one core, on loopback."""
    import pyspark

    home = Path(pyspark.__file__).parent
    logs = tmp_path_factory.mktemp("cluster")
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    processes: list[subprocess.Popen[bytes]] = []

    def launch(name: str, *arguments: str) -> None:
        with open(logs / f"{name}.log", "wb") as log:
            command = [str(home / "bin" / "spark-class"), *arguments]
            processes.append(
                subprocess.Popen(
                    command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            )

    master = "org.apache.spark.deploy.master.Master"
    worker = "org.apache.spark.deploy.worker.Worker"
    launch("master", master, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    [url] = _told(logs / "master.log", r"Starting Spark master at (spark://\S+)", 1)
    for i in range(2):
        folder = str(logs / f"work{i}")
        launch(
            f"worker{i}", worker, "--host", "127.0.0.1", "-c", "1", "-m", "2g", "-d", folder, "--webui-port", "0", url
        )
    _told(logs / "master.log", "Registering worker", 2)
    yield url
    for process in reversed(processes):
        os.killpg(process.pid, signal.SIGTERM)
    for process in processes:
        process.wait(PATIENCE_S)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server; tests that ask for it are left out where it is not installed (tests/conftest.py)."""
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _told(log: Path, words: str, n: int) -> list[str]:
    """What a log says, once it does so `n` times. Args: words: a regular expression."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found: list[str] = re.findall(words, log.read_text())
        if len(found) >= n:
            return found
        time.sleep(0.2)
    raise AssertionError(f"the cluster did not come up: {log.read_text()}")


@pytest.fixture
def cluster_job(standalone_cluster: str, tmp_path: Path) -> Iterator[RealJob]:
    """A job on the standalone cluster."""
    job = RealJob(tmp_path, standalone_cluster)
    yield job
    job.end()
