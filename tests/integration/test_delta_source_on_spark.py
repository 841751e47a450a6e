"""S4.3, S7.4 on real Spark: one Delta table copied to another while a writer appends to it, slots and drivers are
killed, and other programs compact and vacuum."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from conftest import RealJob
from deltalake import DeltaTable, write_deltalake
from ledger import compared

from tidegate.jobs.records import RestoreFrom

COPY = Path(__file__).parent / "pipelines" / "delta_copy.py"
SCHEMA = pa.schema([("file", pa.int64()), ("n", pa.int64())])


class Tables:
    """A ledger of what was appended to the first table, beside what readers of the second one see."""

    def __init__(self, job: RealJob) -> None:
        self._job = job
        self._folder = str(Path(job.out).parent / "in")
        write_deltalake(self._folder, SCHEMA.empty_table())
        self.rows: list[tuple[int, int]] = []
        self._files = 0

    def append(self, files: int, rows: int) -> None:
        for _ in range(files):
            made = pa.table({"file": [self._files] * rows, "n": list(range(rows))}, schema=SCHEMA)
            write_deltalake(self._folder, made, mode="append")
            self.rows += [(self._files, n) for n in range(rows)]
            self._files += 1

    @contextmanager
    def growing(self, rows: int) -> Iterator[None]:
        """Append files without a pause until the end of the context."""
        ended = threading.Event()

        def appending() -> None:
            while not ended.is_set():
                self.append(1, rows)
                ended.wait(0.05)

        writer = threading.Thread(target=appending)
        writer.start()
        try:
            yield
        finally:
            ended.set()
            writer.join()

    def maintain(self) -> None:
        """Compact both tables, and remove the old files of the copy, as their maintenance does."""
        DeltaTable(self._folder).optimize.compact()
        copy = DeltaTable(self._job.out)
        copy.optimize.compact()
        copy.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)

    def committed(self) -> list[tuple[int, int]]:
        if not DeltaTable.is_deltatable(self._job.out):
            return []
        table = DeltaTable(self._job.out).to_pyarrow_table()
        return sorted(zip(table["file"].to_pylist(), table["n"].to_pylist(), strict=True))

    def until_committed(self) -> None:
        self._job.until(lambda _: len(self.committed()) >= len(self.rows), "the rows of all files")
        assert self.committed() == sorted(self.rows)


@pytest.mark.slow
def test_each_row_of_a_table_that_grows_is_copied_once(local_job: RealJob) -> None:
    """S4.3, S5.5, S9.1, S9.2."""
    tables = Tables(local_job)
    tables.append(20, 2_000)
    local_job.start(rows=0, rate=0.0, pipeline=COPY)
    local_job.completed(1)
    with tables.growing(500):
        os.kill(local_job.slot_pids()[0], signal.SIGKILL)
        local_job.until(lambda view: view.restarts == 1 and view.status.value == "RUNNING", "the restart")
        local_job.completed(3)
    tables.until_committed()
    tables.append(5, 2_000)
    os.kill(local_job.driver_pid(), signal.SIGKILL)
    tables.append(5, 2_000)
    local_job.relaunch()
    tables.until_committed()
    tables.maintain()
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
    assert compared("DeltaTable, Delta", tables.rows, tables.committed()) == (0, 0)
