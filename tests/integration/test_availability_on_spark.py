"""Adversaries from outside, on real Spark: silent strangers, a damaged state file, a frozen driver that keeps its
cores. Each of them ended or blocked a job in an earlier version."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

import psutil
import pytest
from conftest import RealJob
from pipelines.counting import expected

from tidegate.jobs.launch.launcher import LauncherSettings
from tidegate.jobs.launch.local import LocalLauncher
from tidegate.jobs.launches import find_local_driver

ROWS = 24_000
OUTAGE = Path(__file__).parent / "pipelines" / "outage.py"
STRANGERS = 1_400
"""Open connections to each port that never say anything. In an earlier version, 256 of them were being authenticated
for 5 s each, and the slots waited in the queue after them."""


class Strangers:
    """Keeps STRANGERS silent connections open to each port on which driver and slots listen, also of new runs. They are
    replaced when the listener closes them.

    Spark's own ports in the same processes are spared: PySpark accepts no more connections after a few silent ones.
    """

    def __init__(self, driver: int) -> None:
        """Call it while a run is active: the slots are connected to the driver's port."""
        self._driver = psutil.Process(driver)
        connections = self._driver.net_connections("tcp")
        in_use = {c.laddr.port for c in connections if c.status == psutil.CONN_ESTABLISHED}
        self._spared = self._listening_of(self._driver) - in_use
        self._over = threading.Event()
        self._open: dict[int, list[socket.socket]] = defaultdict(list)
        self.opened = 0
        self.ports: set[int] = set()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for connection in chain.from_iterable(self._open.values()):
            connection.close()

    def _run(self) -> None:
        while not self._over.wait(0.01):
            for port in self._listening():
                self._open[port] = [connection for connection in self._open[port] if _is_open(connection)]
                for number in range(STRANGERS - len(self._open[port])):
                    self._connect(port, f"127.0.0.{number % 3 + 1}")

    def _listening(self) -> set[int]:
        found = self._listening_of(self._driver)
        with suppress(psutil.Error):  # slots end at any time
            for process in self._driver.children(recursive=True):
                parent = process.parent()
                # PySpark's daemon is a child of the JVM, and slots are children of the daemon.
                if process.name().startswith("python") and parent is not None and parent.name() != "java":
                    found |= self._listening_of(process)
        found -= self._spared
        self.ports |= found
        return found

    @staticmethod
    def _listening_of(process: psutil.Process) -> set[int]:
        with suppress(psutil.Error):
            return {c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        return set()

    def _connect(self, port: int, source: str) -> None:
        connection = socket.socket()
        connection.setblocking(False)
        connection.bind((source, 0))
        connection.connect_ex(("127.0.0.1", port))
        self._open[port].append(connection)
        self.opened += 1


def _is_open(connection: socket.socket) -> bool:
    try:
        is_open = connection.recv(100) != b""
    except BlockingIOError:
        return True
    except OSError:
        is_open = False
    if not is_open:
        connection.close()
    return is_open


def test_a_job_restarts_while_strangers_hold_1400_silent_connections(local_job: RealJob) -> None:
    """S9.1: they cost no restart beyond the one of the failure."""
    job = local_job
    job.start(rows=ROWS, rate=800.0, restart_attempts=1)
    job.completed(1)
    strangers = Strangers(job.driver_pid())
    try:
        job.until(lambda _: strangers.opened >= 3 * STRANGERS, "the strangers")
        ports = set(strangers.ports)
        os.kill(job.slot_pids()[0], signal.SIGKILL)
        view = job.until_status("FINISHED", "FAILED")
    finally:
        strangers.close()
    assert view.status.value == "FINISHED", view.failure
    assert view.restarts == 1
    assert strangers.ports > ports, "they have found the ports of the new run, too"
    print(f"{strangers.opened:,} silent connections to {len(strangers.ports)} ports")
    assert job.output() == expected(ROWS)


def test_a_damaged_state_file_fails_the_job_at_once_and_is_named(local_job: RealJob) -> None:
    """S9.1, S9.3: an earlier version restarted without end."""
    job = local_job
    job.start(rows=0, rate=4_000.0, checkpoint_interval="10 min", state_size_threshold="0 KiB")
    job.until_status("RUNNING")
    job.until(lambda _: job.hint().get("watermark_us"), "rows in the state")
    command = job.client.send("checkpoint", issued_by="test")
    assert job.client.wait_result(command.command_id, "60 s").ok
    folder = Path(job.root, job.client.layout.checkpoints)
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "_metadata")
    assert files != []
    for path in files:
        data = path.read_bytes()
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    os.kill(job.slot_pids()[0], signal.SIGKILL)
    view = job.until_status("FAILED")
    assert view.restarts == 1, "the kill of the slot; the restore is not repeated"
    assert view.failure is not None
    assert "a restart cannot fix a snapshot that is damaged or does not fit: " in view.reason
    assert any(path.name in view.reason for path in files), view.reason
    assert "does not match its checksum" in view.reason


def test_an_outage_of_the_store_longer_than_heartbeat_timeout_costs_no_restart(local_job: RealJob) -> None:
    """S9.2: the driver waits, the slots work on, and the ambiguous write that had succeeded counts once."""
    job = local_job
    job.start(
        rows=ROWS,
        rate=1_500.0,
        pipeline=OUTAGE,
        heartbeat_interval="500 ms",
        heartbeat_timeout="2 s",
    )
    view = job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert view.restarts == 0
    log = job.logs()
    assert "the store does not report whether it wrote entry" in log
    assert "(complete) of the decision log is written, after" in log
    assert job.output() == expected(ROWS)


@pytest.fixture
def cluster_job(tmp_path: Path, standalone_cluster: str) -> Iterator[RealJob]:
    job = RealJob(tmp_path, standalone_cluster)
    yield job
    job.end()


@pytest.mark.slow
def test_the_driver_that_replaces_a_frozen_one_gets_its_cores(cluster_job: RealJob) -> None:
    """S9.2: all cores of the cluster belong to the frozen driver's application until it is killed."""
    job = cluster_job
    job.start(rows=ROWS, rate=4_000.0, slots_timeout="90 s")
    job.completed(1)
    frozen = psutil.Process(job.driver_pid())
    frozen.suspend()
    spec = job.client.specs()[-1]
    LocalLauncher(LauncherSettings()).launch(job.client, spec)
    view = job.until(lambda view: view.generation == 2 and view.status.value == "RUNNING", "the next driver")
    running = find_local_driver(job.client.store, job.client.layout, spec.number)
    assert running is not None and running.pid != frozen.pid
    job.adopt_driver()
    assert "ended the replaced driver of launch 1" in job.logs()
    view = job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert view.restarts == 0
    assert job.output() == expected(ROWS)
    assert not frozen.is_running() or frozen.status() == psutil.STATUS_ZOMBIE
