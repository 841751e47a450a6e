"""S3.1, S3.7, S4.4 on real Spark: side outputs, exchanges between slots, asynchronous calls, aligned sources."""

from __future__ import annotations

import os
import signal

import pytest
from conftest import RealJob
from pipelines.counting import expected

from tidegate.jobs.records import RestoreFrom

ROWS = 60_000


@pytest.mark.slow
def test_rows_of_a_side_output_and_of_three_exchanges_are_counted_once_though_slot_and_driver_die(
    local_job: RealJob,
) -> None:
    """S3.7, S9.1, S9.2: and go on at another parallelism."""
    options = {"function": "rerouted", "unaligned_checkpoints": True}
    local_job.start(rows=ROWS, rate=6_000.0, **options)
    local_job.completed(2)
    os.kill(local_job.slot_pids()[0], signal.SIGKILL)
    view = local_job.until(lambda view: view.restarts == 1, "the restart")
    local_job.completed(len(view.completed) + 2)
    os.kill(local_job.driver_pid(), signal.SIGKILL)
    local_job.until(lambda _: not local_job.client.is_alive(), "the driver's death to be seen")
    assert local_job.output() != expected(ROWS), "it should have been killed half-way"
    local_job.master = "local[3]"
    local_job.start(rows=ROWS, rate=50_000.0, parallelism=3, restore=RestoreFrom("latest"), **options)
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert local_job.output() == expected(ROWS)
