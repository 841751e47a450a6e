"""S7.7 on real Spark: a drain that does not end in time."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import RealJob
from pipelines.counting import expected

from tidegate.jobs.records import RestoreFrom

PIPELINE = Path(__file__).parent / "pipelines" / "dawdling.py"
ROWS = 24_000


@pytest.mark.slow
@pytest.mark.parametrize("on_timeout", ["suspend", "cancel", "keep_running"])
def test_a_drain_that_is_held_up_is_given_up_and_names_the_operator(local_job: RealJob, on_timeout: str) -> None:
    """S7.5, S7.7: then the job is as the answer says, and its output is exact."""
    local_job.start(rows=ROWS, rate=2_000.0, pipeline=PIPELINE)
    local_job.completed(2)
    marker = Path(f"{local_job.out}.wait")
    marker.touch()
    arguments = {"mode": "drain", "timeout": "8 s", "on_timeout": on_timeout}
    command = local_job.client.send("stop", arguments, issued_by="test")
    local_job.until(lambda view: view.status.value != "RUNNING", "the end of the stop's time")
    marker.unlink()
    result = local_job.client.wait_result(command.command_id, "300 s")
    assert {tuple(held["at_work"]) for held in result.data["held_up_by"]} == {("dawdle",)}
    assert "operator dawdle of numbers -> dawdle" in result.message
    aborts = [d.data for d in local_job.client.decisions() if d.kind == "abort" and d.data["code"] == "stop_timeout"]
    assert len(aborts) == 1 and "dawdle" in aborts[0]["reason"]
    match on_timeout:
        case "suspend":
            assert (result.ok, result.code, result.data["mode"]) == (True, "committed", "suspend")
            assert local_job.until_status("STOPPED").stop == result.data
        case "cancel":
            assert (result.ok, result.code) == (False, "savepoint_failed_job_canceled")
            view = local_job.until_status("CANCELED")
            assert view.latest_recovery_point is not None
            assert result.data["path"] == view.latest_recovery_point.path
        case "keep_running":
            assert (result.ok, result.code) == (False, "savepoint_failed_job_continues")
            assert local_job.client.view().status.value in ("RUNNING", "FINISHED")
    if on_timeout != "keep_running":
        local_job.start(rows=ROWS, rate=50_000.0, pipeline=PIPELINE, restore=RestoreFrom("latest"))
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert local_job.output() == expected(ROWS)
