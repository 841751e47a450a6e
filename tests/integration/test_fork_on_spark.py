"""S7.4 on real Spark: a fork beside its running original, from a savepoint, into a place of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import RealJob
from pipelines.counting import expected

from tidegate.jobs.client.fork import fork
from tidegate.jobs.client.submission import SubmissionRequest
from tidegate.jobs.launch.local import launch_local
from tidegate.jobs.records import RestoreFrom

ROWS = 40_000


@pytest.fixture
def forks(tmp_path: Path, local_job: RealJob) -> Iterator[Callable[..., RealJob]]:
    """Makes forks of `local_job` with other arguments."""
    made: list[RealJob] = []

    def make(job_id: str, restore: RestoreFrom, **arguments: Any) -> RealJob:
        beside = RealJob(tmp_path, "local[2]", job_id)
        beside.out = str(arguments["out"])
        request = SubmissionRequest(None, arguments, None, None, None, restore, None, None, job_id, "test")
        spec = fork(beside.client, local_job.client, request)
        launch_local(beside.client, spec)
        made.append(beside)
        return beside

    yield make
    for beside in made:
        beside.end()


@pytest.mark.slow
def test_a_fork_works_off_the_rest_beside_its_original(
    local_job: RealJob, forks: Callable[..., RealJob], tmp_path: Path
) -> None:
    """S7.4: it commits none of the original's rows, and its driver refuses what would never end or mix its output."""
    original = local_job
    original.start(rows=ROWS, rate=400.0)
    original.until(lambda view: sum(source.records or 0 for source in view.sources) > 2_500, "2,500 rows read")
    command = original.client.send("savepoint", {}, issued_by="test")
    result = original.client.wait_result(command.command_id, "2 min")
    assert result.ok, result
    restore = RestoreFrom("savepoint", result.data["path"])

    endless = forks("endless", restore, rows=0, rate=1.0, out=str(tmp_path / "endless"))
    view = endless.until_status("FAILED")
    assert view.failure is not None and "these sources are unbounded: 'numbers'" in view.failure.message
    live = forks("live", restore, out=original.out, rate=9_000.0)
    view = live.until_status("FAILED")
    assert view.failure is not None and "writes to the same place as sink 'out'" in view.failure.message

    beside = forks("beside", restore, rate=50_000.0, out=str(tmp_path / "beside"))
    view = beside.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert original.client.view().status.value == "RUNNING"
    forked = beside.output()
    assert forked and len(forked) == len(set(forked)), "each row once"
    assert set(forked) < set(expected(ROWS)), "right sums, but not of the windows in front of the savepoint"
    assert max(forked, key=lambda row: row[1])[1] == ROWS // 1000 * 1000 - 1000, "up to the end"
    first = min(window for _, window, _, _ in forked)
    in_front = {row for row in expected(ROWS) if row[1] < first}
    assert in_front <= set(original.output()), "those are the original's"
