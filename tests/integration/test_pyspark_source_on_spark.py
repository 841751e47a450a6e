"""A Python data source of PySpark on real Spark, while slots and drivers are killed, and over a rescale."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow.dataset as ds
import pytest
from conftest import RealJob
from ledger import compared

from tidegate.jobs.records import RestoreFrom

PIPELINE = Path(__file__).parent / "pipelines" / "numbers_stream.py"


@pytest.mark.slow
@pytest.mark.gate
def test_each_row_of_a_python_data_source_is_read_once(local_job: RealJob) -> None:
    """S4.1, S4.3, S5.5, S9.1, S9.2."""
    numbers = Path(local_job.out).parent / "numbers"

    def grow(end: int) -> None:
        numbers.with_suffix(".new").write_text(str(end))
        numbers.with_suffix(".new").replace(numbers)

    def committed() -> list[int]:
        table = ds.dataset(local_job.out, format="parquet").to_table(columns=["n"])
        return sorted(table["n"].to_pylist()) if table.num_rows else []

    def until_committed(end: int) -> None:
        local_job.until(lambda _: len(committed()) >= end, f"{end} rows")
        assert committed() == list(range(end))

    numbers.parent.mkdir(parents=True, exist_ok=True)
    grow(20_000)
    local_job.start(rows=0, rate=0.0, pipeline=PIPELINE)
    local_job.completed(1)
    grow(40_000)
    os.kill(local_job.slot_pids()[0], signal.SIGKILL)
    local_job.until(lambda view: view.restarts == 1 and view.status.value == "RUNNING", "the restart")
    grow(60_000)
    until_committed(60_000)
    os.kill(local_job.driver_pid(), signal.SIGKILL)
    grow(80_000)
    local_job.relaunch()
    until_committed(80_000)
    command = local_job.client.send("stop", {"mode": "suspend"}, issued_by="test")
    result = local_job.client.wait_result(command.command_id, "60 s")
    assert result.ok, result
    local_job.until_status("STOPPED")
    grow(100_000)
    local_job.master = "local[3]"
    restore = RestoreFrom("savepoint", path=result.data["path"])
    local_job.start(rows=0, rate=0.0, pipeline=PIPELINE, restore=restore, parallelism=3)
    until_committed(100_000)
    local_job.until(lambda _: 100_000 in commits(numbers), "the commit of the last offset")
    assert commits(numbers) == sorted(commits(numbers))
    command = local_job.client.send("stop", {"mode": "drain"}, issued_by="test")
    assert local_job.client.wait_result(command.command_id, "60 s").ok
    assert compared("PySparkSource, Parquet", range(100_000), committed()) == (0, 0)


def commits(numbers: Path) -> list[int]:
    """Offsets that all runs have committed, in order."""
    return [int(line) for line in numbers.with_suffix(".commits").read_text().split()]
