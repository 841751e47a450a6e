"""S4.3 on real Spark: a folder that keeps filling, while slots and drivers are killed, and over a rescale."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from conftest import RealJob
from ledger import compared
from pipelines.watched import deliver

from tidegate.jobs.records import RestoreFrom

WATCHED = Path(__file__).parent / "pipelines" / "watched.py"


class Arrivals:
    """A ledger of what was delivered, beside what readers of the output see."""

    def __init__(self, job: RealJob) -> None:
        self._job = job
        self._folder = Path(job.out).parent / "in"
        self.rows: list[tuple[int, int]] = []
        self._files = 0

    def deliver(self, files: int, rows: int) -> None:
        for _ in range(files):
            self.rows += deliver(self._folder, self._files, rows)
            self._files += 1

    def committed(self) -> list[tuple[int, int]]:
        table = ds.dataset(self._job.out, format="parquet").to_table()
        return sorted(zip(table["file"].to_pylist(), table["n"].to_pylist(), strict=True)) if table.num_rows else []

    def until_committed(self) -> None:
        self._job.until(lambda _: len(self.committed()) >= len(self.rows), "the rows of all files")
        assert self.committed() == sorted(self.rows)


@pytest.mark.slow
@pytest.mark.gate
def test_each_file_of_a_folder_that_keeps_filling_is_read_once(local_job: RealJob) -> None:
    """S4.3, S5.5, S9.1, S9.2."""
    arrivals = Arrivals(local_job)
    arrivals.deliver(30, 2_000)
    local_job.start(rows=0, rate=0.0, pipeline=WATCHED)
    local_job.completed(1)
    arrivals.deliver(10, 2_000)
    os.kill(local_job.slot_pids()[0], signal.SIGKILL)
    arrivals.deliver(10, 2_000)
    local_job.until(lambda view: view.restarts == 1 and view.status.value == "RUNNING", "the restart")
    arrivals.until_committed()
    arrivals.deliver(20, 2_000)
    os.kill(local_job.driver_pid(), signal.SIGKILL)
    arrivals.deliver(10, 2_000)
    local_job.relaunch()
    arrivals.until_committed()
    arrivals.deliver(20, 2_000)
    command = local_job.client.send("stop", {"mode": "suspend"}, issued_by="test")
    result = local_job.client.wait_result(command.command_id, "60 s")
    assert result.ok, result
    local_job.until_status("STOPPED")
    arrivals.deliver(5, 100)
    local_job.master = "local[3]"
    restore = RestoreFrom("savepoint", path=result.data["path"])
    local_job.start(rows=0, rate=0.0, pipeline=WATCHED, restore=restore, parallelism=3)
    arrivals.until_committed()
    command = local_job.client.send("stop", {"mode": "drain"}, issued_by="test")
    assert local_job.client.wait_result(command.command_id, "60 s").ok
    assert compared("Files, Parquet", arrivals.rows, arrivals.committed()) == (0, 0)
