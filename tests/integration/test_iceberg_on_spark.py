"""S4.3, S7.4 on real Spark: one Iceberg table copied to another while it grows, slots and drivers are killed, and other
programs compact and expire."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import RealJob
from iceberg_tables import expire_all_but_the_newest, opened
from ledger import compared
from pipelines.iceberg_copy import catalog_in

from tidegate.jobs.records import RestoreFrom

COPY = Path(__file__).parent / "pipelines" / "iceberg_copy.py"
SCHEMA = pa.schema([("file", pa.int64()), ("n", pa.int64())])


class Tables:
    """A ledger of what was appended to the first table, beside what readers of the second one see."""

    def __init__(self, job: RealJob) -> None:
        self._job = job
        self._catalog = opened(catalog_in(Path(job.out).parent))
        self._catalog.create_table("shop.source", SCHEMA)
        self.rows: list[tuple[int, int]] = []
        self._files = 0

    def append(self, files: int, rows: int) -> None:
        for _ in range(files):
            made = pa.table({"file": [self._files] * rows, "n": list(range(rows))}, schema=SCHEMA)
            self._catalog.load_table("shop.source").append(made)
            self.rows += [(self._files, n) for n in range(rows)]
            self._files += 1

    def expire_the_copy(self) -> None:
        """Expire all snapshots of the copy but the newest, as its maintenance does."""
        expire_all_but_the_newest(self._catalog.load_table("shop.copy"))

    def committed(self) -> list[tuple[int, int]]:
        if not self._catalog.table_exists("shop.copy"):
            return []
        rows = self._catalog.load_table("shop.copy").scan().to_arrow()
        return sorted(zip(rows["file"].to_pylist(), rows["n"].to_pylist(), strict=True))

    def until_committed(self) -> None:
        self._job.until(lambda _: len(self.committed()) >= len(self.rows), "the rows of all files")
        assert self.committed() == sorted(self.rows)

    def snapshots_of_checkpoints(self) -> list[str]:
        found = [snapshot.summary for snapshot in self._catalog.load_table("shop.copy").snapshots()]
        return [str(summary["tidegate.checkpoint"]) for summary in found if summary and summary["tidegate.checkpoint"]]


@pytest.mark.slow
@pytest.mark.gate
def test_each_row_of_a_table_that_grows_is_copied_once(local_job: RealJob) -> None:
    """S4.3, S5.5, S9.1, S9.2."""
    tables = Tables(local_job)
    tables.append(20, 2_000)
    local_job.start(rows=0, rate=0.0, pipeline=COPY)
    local_job.completed(1)
    tables.append(5, 2_000)
    os.kill(local_job.slot_pids()[0], signal.SIGKILL)
    tables.append(5, 2_000)
    local_job.until(lambda view: view.restarts == 1 and view.status.value == "RUNNING", "the restart")
    tables.until_committed()
    tables.append(5, 2_000)
    os.kill(local_job.driver_pid(), signal.SIGKILL)
    tables.expire_the_copy()
    tables.append(5, 2_000)
    local_job.relaunch()
    tables.until_committed()
    made = tables.snapshots_of_checkpoints()
    assert len(set(made)) > len(made) / 2, "most checkpoints are one snapshot"
    command = local_job.client.send("stop", {"mode": "suspend"}, issued_by="test")
    result = local_job.client.wait_result(command.command_id, "60 s")
    assert result.ok, result
    local_job.until_status("STOPPED")
    tables.append(5, 100)
    local_job.master = "local[3]"
    restore = RestoreFrom("savepoint", path=result.data["path"])
    local_job.start(rows=0, rate=0.0, pipeline=COPY, restore=restore, parallelism=3)
    tables.until_committed()
    command = local_job.client.send("stop", {"mode": "drain"}, issued_by="test")
    assert local_job.client.wait_result(command.command_id, "60 s").ok
    assert compared("IcebergTable, Iceberg", tables.rows, tables.committed()) == (0, 0)
