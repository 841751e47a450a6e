"""S3.7 on real Spark: checkpoints of a backpressured job."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from conftest import RealJob
from pipelines.counting import expected

from tidegate.jobs.records import RestoreFrom

PIPELINE = Path(__file__).parent / "pipelines" / "backpressured.py"
ROWS = 480_000


def durations_ms(job: RealJob, kind: str) -> list[float]:
    """Trigger to completion, of every completed snapshot of `kind`."""
    return [
        d.data["metrics"]["duration_ms"]
        for d in job.client.decisions()
        if d.kind == "complete" and d.data["kind"] == kind
    ]


def in_flight_bytes(job: RealJob) -> float:
    """Of the newest completed checkpoint."""
    last = [d for d in job.client.decisions() if d.kind == "complete" and d.data["kind"] == "checkpoint"][-1]
    return float(sum(metrics["in_flight_bytes"] for metrics in last.data["subtasks"].values()))


@pytest.mark.slow
@pytest.mark.gate
def test_under_backpressure_checkpoints_overtake_what_a_savepoint_waits_for_and_a_restore_is_exact(
    local_job: RealJob,
) -> None:
    """S3.7, S9.1, S9.2: a slot is killed, then the driver; what was in flight is processed by the next run."""
    options = {"unaligned_checkpoints": True, "channel_capacity": "128 KiB", "checkpoint_interval": "300 ms"}
    local_job.start(rows=ROWS, rate=1.0, pipeline=PIPELINE, function="slow", **options)
    local_job.completed(3)
    saved = local_job.client.send("savepoint", issued_by="test")
    assert local_job.client.wait_result(saved.command_id, "60 s").ok
    (aligned_ms,) = durations_ms(local_job, "savepoint")
    unaligned_ms = sorted(durations_ms(local_job, "checkpoint"))
    assert aligned_ms > 2 * unaligned_ms[len(unaligned_ms) // 2], (aligned_ms, unaligned_ms)
    assert in_flight_bytes(local_job) > 64 * 1024
    os.kill(local_job.slot_pids()[0], signal.SIGKILL)
    view = local_job.until(lambda view: view.restarts == 1, "the restart")
    local_job.completed(len(view.completed) + 2)
    os.kill(local_job.driver_pid(), signal.SIGKILL)
    local_job.until(lambda _: not local_job.client.is_alive(), "the driver's death to be seen")
    assert in_flight_bytes(local_job) > 64 * 1024
    assert local_job.output() != expected(ROWS), "it should have been killed half-way"
    local_job.start(
        rows=ROWS, rate=1.0, pipeline=PIPELINE, function="fast", parallelism=1, restore=RestoreFrom("latest"), **options
    )
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert local_job.output() == expected(ROWS)
