"""S7.8: how far a rejection into quarantine reaches: to what its line has staged, not to what lineages before have."""

from __future__ import annotations

from test_commit_gate_jobs import Gated
from test_quarantine_jobs import rows_of, to_quarantine

from tidegate.coordinator import events as ev
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.collect_sink import collected


def cancelled(job: Gated) -> None:
    job.run.crash()
    job.job.generation_log.append("status", {"status": "CANCELED"})


def first_output_rejected_after_a_fresh_start(job: Gated) -> None:
    """In lineage 2, and of the moment that the job dies: nothing has moved."""
    job.job.lineage, job.job.options = "lineage-2", {**job.job.options, "commit": "on_request"}
    job.run = job.job.submit()
    job.run.pump(10)
    n = job.checkpoint()
    job.run.writers.held = True
    assert to_quarantine(job, n).ok
    job.run.crash()


def of_lineage(job: Gated, where: str, lineage: str) -> list[str]:
    return [transaction for transaction in getattr(collected(job.sink), where) if f",{lineage}," in transaction]


def test_what_a_savepoint_of_the_lineage_before_holds_is_none_of_it() -> None:
    """S7.8, S7.4: the savepoint's own part is committed with the next approval behind its restore."""
    job = Gated()
    job.approve(job.checkpoint())
    job.run.pump(6)
    saved = job.run.ask(ev.SnapshotRequest("savepoint", request_id="s"))
    assert saved is not None and saved.ok, saved
    held = of_lineage(job, "staged", "lineage-1")
    assert held
    cancelled(job)
    first_output_rejected_after_a_fresh_start(job)
    job.job.lineage = "lineage-1"
    job.again(RestoreFrom("savepoint", path=saved.data["path"]))
    assert of_lineage(job, "quarantined", "lineage-2") and not of_lineage(job, "quarantined", "lineage-1")
    job.approve(job.checkpoint())
    assert set(held) <= set(of_lineage(job, "committed", "lineage-1"))


def test_what_was_permitted_in_the_lineage_before_is_committed_by_a_restore() -> None:
    """S7.4: the run died between the completion of its checkpoint and the commit."""
    job = Gated(commit="automatic", retained_checkpoints=3)
    job.run.run.handle_command(ev.SnapshotRequest("checkpoint", request_id="c"))
    while not any(d.kind == "complete" for d in job.job.log.read()):
        job.run.slot.run_round()
        job.run._deliver()
    held = of_lineage(job, "staged", "lineage-1")
    assert held and not rows_of(job, "committed")
    cancelled(job)
    first_output_rejected_after_a_fresh_start(job)
    job.job.lineage, job.job.options = "lineage-1", {**job.job.options, "commit": "automatic"}
    job.again(RestoreFrom("checkpoint", checkpoint_id=1, on_committed_after="accept_duplicates"))
    assert set(held) <= set(of_lineage(job, "committed", "lineage-1"))
    assert not of_lineage(job, "quarantined", "lineage-1")


def test_what_a_savepoint_in_front_of_the_line_holds_is_part_of_it() -> None:
    """S7.8: it waits for the verdict on the checkpoint behind its restore."""
    job = Gated()
    saved = job.run.ask(ev.SnapshotRequest("savepoint", request_id="s"))
    assert saved is not None and saved.ok, saved
    held = of_lineage(job, "staged", "lineage-1")
    assert held
    job.run.crash()
    job.again(RestoreFrom("savepoint", path=saved.data["path"]))
    assert to_quarantine(job, job.checkpoint()).ok
    assert set(held) < set(of_lineage(job, "quarantined", "lineage-1"))
