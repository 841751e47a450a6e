"""S7.8 on real Spark: staged, looked at, approved or rejected, and committed after the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conftest import RealJob
from pipelines.counting import expected

from tidegate.jobs.launch.local import launch_local
from tidegate.jobs.records import CommandResult, RestoreFrom
from tidegate.jobs.status import JobView

ROWS = 24_000
"""More than play while two checkpoints complete on a busy machine; what is due when the sources go on comes at once."""
ENDS = ("FINISHED_COMMIT_PENDING", "FINISHED", "FAILED")


def say(job: RealJob, verb: str, **arguments: Any) -> CommandResult:
    """Give a verdict."""
    command = job.client.send(verb, arguments, issued_by="the auditor")
    return job.client.wait_result(command.command_id, "60 s")


def shown(job: RealJob) -> int:
    """Files that readers see."""
    return len(list(Path(job.out).glob("*.parquet")))


def approve_until_the_end(job: RealJob) -> JobView:
    """Whatever waits, while the job runs."""
    view = job.client.view()
    while view.status.value not in ENDS:
        view = job.until(lambda v: v.waiting or v.status.value in ENDS, "a checkpoint that waits, or the end")
        if view.status.value not in ENDS:
            job.client.send("commit", {"checkpoint_id": view.waiting[-1]}, issued_by="the auditor")
            last = view.waiting[-1]
            view = job.until(lambda v, n=last: n not in v.waiting or v.status.value in ENDS, "the verdict")  # type: ignore[misc]
    return view


def test_nothing_is_visible_that_was_not_approved_and_everything_in_the_end(local_job: RealJob) -> None:
    """S7.8."""
    job = local_job
    gate = {"commit": "on_request", "max_uncommitted_checkpoints": 2}
    job.start(rows=ROWS, rate=4_000.0, **gate)
    view = job.until(lambda v: v.sources_paused, "sources to pause")
    assert len(view.waiting) == 2 and shown(job) == 0
    rejected = say(job, "reject", checkpoint_id=view.waiting[-1], then="replay")
    assert rejected.ok and rejected.data["rejected"] == [view.waiting[-1]]
    assert say(job, "commit", checkpoint_id=view.waiting[-1]).code == "rejected"
    assert say(job, "commit", checkpoint_id=view.waiting[0]).ok
    view = approve_until_the_end(job)
    assert view.status.value == "FINISHED_COMMIT_PENDING", view.failure
    assert view.uncommitted and job.output() != expected(ROWS)
    spec = job.client.submit(restore=RestoreFrom("latest"))
    # It has nothing left to read, and ends at once: the approval waits for its driver, not the other way round.
    approval = job.client.send("commit", {"checkpoint_id": view.uncommitted[-1]}, issued_by="test")
    launch_local(job.client, spec)
    job._pids.append(job.driver_pid())
    assert job.client.wait_result(approval.command_id, "60 s").ok
    view = job.until_status(*ENDS)
    assert view.status.value == "FINISHED", view.failure
    assert job.output() == expected(ROWS)
