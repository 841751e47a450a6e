"""A Python data source of PySpark as a sink on real Spark, while slots and drivers are killed, and over a rescale."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from conftest import RealJob
from ledger import compared

from tidegate.jobs.records import RestoreFrom

PIPELINE = Path(__file__).parent / "pipelines" / "numbers_into_batches.py"


def committed(job: RealJob) -> list[int]:
    """Numbers in the files of all committed batches: read as another program reads them."""
    out = Path(job.out)
    names = [name for path in out.glob("batches/*.json") for name in json.loads(path.read_text())]
    lines = (line for name in names for line in (out / "files" / name).read_text().splitlines())
    return sorted(json.loads(line)["n"] for line in lines)


def calls(job: RealJob) -> list[Any]:
    """Commits: batch, partitions, process."""
    path = Path(job.out) / "calls"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.slow
@pytest.mark.gate
def test_each_row_is_in_one_committed_batch(local_job: RealJob) -> None:
    """S7.4, S9.1, S9.2."""
    numbers = Path(local_job.out).parent / "numbers"

    def grow(end: int) -> None:
        numbers.with_suffix(".new").write_text(str(end))
        numbers.with_suffix(".new").replace(numbers)

    def until_committed(end: int) -> None:
        local_job.until(lambda _: len(committed(local_job)) >= end, f"{end} rows")
        assert committed(local_job) == list(range(end))

    numbers.parent.mkdir(parents=True, exist_ok=True)
    grow(10_000)
    local_job.start(rows=0, rate=0.0, pipeline=PIPELINE)
    until_committed(10_000)
    grow(20_000)
    os.kill(local_job.slot_pids()[0], signal.SIGKILL)
    grow(30_000)
    local_job.until(lambda view: view.restarts == 1 and view.status.value == "RUNNING", "the restart")
    until_committed(30_000)
    os.kill(local_job.driver_pid(), signal.SIGKILL)
    grow(40_000)
    local_job.relaunch()
    until_committed(40_000)
    command = local_job.client.send("stop", {"mode": "suspend"}, issued_by="test")
    result = local_job.client.wait_result(command.command_id, "60 s")
    assert result.ok, result
    local_job.until_status("STOPPED")
    grow(50_000)
    local_job.master = "local[3]"
    restore = RestoreFrom("savepoint", path=result.data["path"])
    local_job.start(rows=0, rate=0.0, pipeline=PIPELINE, restore=restore, parallelism=3)
    until_committed(50_000)
    command = local_job.client.send("stop", {"mode": "drain"}, issued_by="test")
    assert local_job.client.wait_result(command.command_id, "60 s").ok
    assert compared("PySparkSource, PySparkSink", range(50_000), committed(local_job)) == (0, 0)
    made = calls(local_job)
    assert [batch for batch, *_ in made] == sorted(batch for batch, *_ in made), "the numbers of batches grow"
    assert {2, 3} <= {len(partitions) for _, partitions, _ in made}, "a commit has the messages of all subtasks"
    assert len({process for *_, process in made}) > 1, "slots commit, whichever comes first"


@pytest.mark.slow
@pytest.mark.gate
@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_all_rows_of_a_job_are_one_commit(local_job: RealJob, mode: str) -> None:
    """S7.2, S8.1: with checkpoints before the end, and a slot that is killed."""
    local_job.start(rows=12_000, rate=4_000.0, function="build_bounded", pipeline=PIPELINE, execution_mode=mode)
    if mode == "streaming":
        local_job.completed(1)
        os.kill(local_job.slot_pids()[0], signal.SIGKILL)
    local_job.until_status("FINISHED")
    assert compared("DataGen, PySparkSink", range(12_000), committed(local_job)) == (0, 0)
    assert [(batch, partitions) for batch, partitions, _ in calls(local_job)] == [(0, [0, 1])]
    assert len(list((Path(local_job.out) / "files").iterdir())) == 2, "each partition is written once"
