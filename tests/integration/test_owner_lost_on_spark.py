"""A job whose owner falls silent stops by itself, with a savepoint."""

from __future__ import annotations

import time

import pytest
from conftest import RealJob
from pipelines.counting import expected

from tidegate.jobs.records import RestoreFrom

ROWS = 24_000


@pytest.mark.slow
def test_a_job_whose_owner_is_lost_stops_with_a_savepoint_and_goes_on_from_it(local_job: RealJob) -> None:
    """S7.7: as by a command, which the job's directory shows."""
    local_job.start(rows=ROWS, rate=2_000.0, on_owner_lost="savepoint_then_stop", owner_timeout="3 s")
    began = time.monotonic()
    while time.monotonic() - began < 6.0 or not local_job.client.view().completed:
        local_job.client.renew_owner(1, "test")
        time.sleep(0.2)
    assert local_job.client.view().status.value == "RUNNING"
    view = local_job.until_status("STOPPED", "FINISHED", "FAILED")
    assert view.status.value == "STOPPED" and view.stop is not None and view.stop["mode"] == "suspend", view.failure
    layout, store = local_job.client.layout, local_job.client.store
    (result,) = [name for name in store.list(layout.commands) if name.endswith(".result.json")]
    command = local_job.client.command(result.removesuffix(".result.json"))
    assert command is not None and command.issued_by.startswith("on_owner_lost=savepoint_then_stop")
    local_job.start(rows=ROWS, rate=50_000.0, restore=RestoreFrom("latest"))
    assert local_job.until_status("FINISHED", "FAILED").status.value == "FINISHED"
    assert local_job.output() == expected(ROWS)
