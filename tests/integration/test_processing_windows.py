"""S7.6 on real Spark: windows over processing time fire by the clock of their slots, stay in a savepoint, and end."""

from __future__ import annotations

import pytest
from conftest import RealJob
from pipelines.counting import KEYS

from tidegate.jobs.records import RestoreFrom

ROWS = 24_000
RATE = 4_000.0


@pytest.mark.slow
def test_windows_by_the_clock_fire_while_the_job_runs_after_a_restore_and_at_the_end(local_job: RealJob) -> None:
    """S7.6: each record is in one result, whatever window it came to."""
    local_job.start(rows=ROWS, rate=RATE, function="by_clock")
    local_job.completed(2)
    local_job.until(lambda view: len(local_job.output()) >= 3 * KEYS, "three windows committed")
    result = local_job.client.wait_result(
        local_job.client.send("stop", {"mode": "suspend"}, issued_by="test").command_id, "60 s"
    )
    assert result.ok
    local_job.until_status("STOPPED")
    assert sum(n for _, _, n, _ in local_job.output()) < ROWS, "stopped half-way"
    restore = RestoreFrom("savepoint", path=str(result.data["path"]))
    local_job.start(rows=ROWS, rate=50_000.0, function="by_clock", restore=restore)
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    output = local_job.output()
    assert len({(k, start) for k, start, _, _ in output}) == len(output), "no window twice"
    assert all(start % 500 == 0 for _, start, _, _ in output)
    for key in range(KEYS):
        mine = range(key, ROWS, KEYS)
        results = [(n, total) for k, _, n, total in output if k == key]
        assert (sum(n for n, _ in results), sum(total for _, total in results)) == (len(mine), sum(mine))
    assert view.counters == {}


@pytest.mark.slow
def test_a_drain_that_drops_open_windows_says_how_many(local_job: RealJob) -> None:
    """S7.6: counted and logged, where people look."""
    local_job.start(rows=0, rate=RATE, function="by_clock", processing_time_on_end="drop")
    local_job.completed(2)
    command = local_job.client.send("stop", {"mode": "drain"}, issued_by="test")
    assert local_job.client.wait_result(command.command_id, "60 s").ok
    view = local_job.until_status("STOPPED", "FAILED")
    assert 0 < view.counters["by-clock"]["processing_time_dropped"] <= 2 * KEYS
    assert "are dropped, because processing_time_on_end='drop' is set; nothing to do" in local_job.logs()
