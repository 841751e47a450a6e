"""Commit without a running job, from the transaction handles in a snapshot (S7.4, S7.8).

After a fence, commit what the log permits: with a commit gate, approved checkpoints; without one, the transactions of
the newest snapshot.

Order: verdict, data, "committed", status. Every step may be repeated. If the process dies in between, the next call or
the next run of the job repeats the steps.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from tidegate.connectors.interface import Sink, SinkWriter, SupportsQuarantine
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.sink_operator import handles_in_snapshot
from tidegate.connectors.transactions import Committable, SinkContext, job_storage, parse_transaction_id
from tidegate.coordinator.commits.ruling import AppendVerdict, decide_verdict
from tidegate.coordinator.driver_job import DriverJob
from tidegate.coordinator.events import Verdict
from tidegate.coordinator.recovery.quarantine_moves import cannot_quarantine
from tidegate.coordinator.recovery.restore import RestoreState
from tidegate.coordinator.recovery.restore_point import choose_restore_point, rejection_text
from tidegate.coordinator.stop.answers import uncommitted_text
from tidegate.errors import CommandRefusedError, SnapshotError, StoreError, TidegateError
from tidegate.jobs.history.verdicts import Verdicts, WithheldRange
from tidegate.jobs.records import Decision, Spec
from tidegate.jobs.status import CheckpointView, JobStatus
from tidegate.jobs.stop_outcomes import COMMITS_PENDING, COMMITTED, SAVEPOINT_OK
from tidegate.log_format import context
from tidegate.plan.job_graph import Node
from tidegate.snapshot.handles import SnapshotStreams
from tidegate.snapshot.location import open_location

logger = logging.getLogger("tidegate.coordinator")


@dataclass(frozen=True)
class LateCommitResult:
    """Result of a late commit.

    Attributes:
        committed: newest checkpoint that is committed now; 0: none.
        waiting: checkpoints that still wait for a verdict.
        uncommitted: `waiting`, and checkpoints that are approved and not committed.
        quarantined: checkpoints whose output is in quarantine.
    """

    committed: int
    waiting: tuple[int, ...]
    uncommitted: tuple[int, ...]
    quarantined: tuple[int, ...]


def commit_late(job: DriverJob, run_id: str, ruling: Verdict | None = None) -> LateCommitResult:
    """Apply the verdict, if there is one; commit what is approved; record the result. Blocks.

    The caller must hold the newest generation.

    Args:
        job: its generation began with a fence that only commits.
        run_id: run id of the writers; the generation has no other.

    Raises:
        CommandRefusedError: the verdict is not possible; nothing has changed.
        FencedError: a newer driver owns the job, and commits itself.
        SnapshotError: the snapshot cannot be read, or does not fit the pinned pipeline.
        TidegateError: a sink could not commit, for any reason; call again.
    """
    _apply_verdict(job, ruling)
    verdicts = job.verdicts
    if not verdicts.gated:
        return _commit_newest(job, run_id)
    # With nothing to publish, the snapshots may have been deleted.
    is_due = any(n <= verdicts.approved for n in verdicts.uncommitted)
    found = job.find_restore() if is_due else None
    if found is not None:
        _publish(job, found[1], run_id)
    job.finish_quarantine_moves(found[1] if found is not None else None, run_id)
    # Recorded after the commit: a call that dies in between repeats the commit, which is idempotent.
    newest = max((n for n in verdicts.line if n <= verdicts.approved), default=0)
    if newest > verdicts.committed:
        job.generation_log.append("committed", {"checkpoint_id": newest})
        verdicts = job.verdicts
    _record_status(job, verdicts)
    return LateCommitResult(
        verdicts.committed, verdicts.waiting, verdicts.uncommitted, tuple(sorted(verdicts.quarantined))
    )


def newest_uncommitted(
    decisions: Sequence[Decision], specs: Sequence[Spec], verdicts: Verdicts
) -> CheckpointView | None:
    """Return the snapshot that a job without a gate would be restored from, if it is not fully committed. Pure."""
    point = choose_restore_point(decisions, specs, verdicts.spec)
    view = None if point is None or point.checkpoint_id is None else verdicts.views.get(point.checkpoint_id)
    return None if view is None or view.committed or view.taken_back or not view.sinks else view


def committed_last(verdicts: Verdicts) -> int:
    """Return the newest committed checkpoint, with a gate or without; 0: none."""
    if verdicts.gated:
        return verdicts.committed
    return max((n for n, view in verdicts.views.items() if view.committed), default=0)


def _commit_newest(job: DriverJob, run_id: str) -> LateCommitResult:
    """Commit the newest snapshot of a job without a gate. The completion of a snapshot permits its commit (S7.4)."""
    pending = newest_uncommitted(job.generation_log.decisions, job.specs(), job.verdicts)
    found = job.find_restore() if pending is not None else None
    if found is not None:
        _publish(job, found[1], run_id)
    job.finish_quarantine_moves(found[1] if found is not None else None, run_id)
    if pending is not None and found is not None and not found[1].is_fork:
        job.generation_log.append("committed", {"checkpoint_id": pending.checkpoint_id})
    verdicts = job.verdicts
    _record_status(job, verdicts)
    return LateCommitResult(committed_last(verdicts), (), (), tuple(sorted(verdicts.quarantined)))


def _record_status(job: DriverJob, verdicts: Verdicts) -> None:
    status_data, rejected = last_status(job.generation_log.decisions, job.spec.number)
    status = status_after_commit(status_data, verdicts, rejected)
    if status is None:
        return
    job.generation_log.append("status", status)
    # No driver follows that would delete them (S2.3).
    if status["status"] == JobStatus.FINISHED and job.options.retention == "delete":
        try:
            job.delete_checkpoints()
        except (StoreError, SnapshotError) as error:
            place = context(job=job.spec.job_id, generation=job.generation_log.generation)
            logger.warning(
                "some checkpoints of the finished job were not deleted; delete them yourself: %s", error, extra=place
            )


def status_after_commit(
    status_data: Mapping[str, Any], verdicts: Verdicts, rejected: str = ""
) -> dict[str, Any] | None:
    """Return the new status of an ended job after a commit, or None if it does not change. Pure.

    Args:
        `status_data`: data of the last status entry of the job.
        rejected: why the job stops, if a later rejection stops it; else "".
    """
    left = list(verdicts.uncommitted)
    status, stop = status_data.get("status"), status_data.get("stop")
    if rejected and status not in (JobStatus.CANCELED, JobStatus.FAILED):
        return {"status": JobStatus.STOPPED.value, "reason": rejected}
    if status == JobStatus.FINISHED_COMMIT_PENDING:
        if not left:
            return {"status": JobStatus.FINISHED.value}
        new = {"status": status, "reason": uncommitted_text(tuple(left)), "uncommitted": left}
        return None if status_data.get("uncommitted") == left else new
    if status == JobStatus.STOPPED and stop is not None and stop.get("outcome") == COMMITS_PENDING:
        if not left:
            done = {name: value for name, value in stop.items() if name != "uncommitted"}
            return {"status": status, "stop": {**done, "outcome": COMMITTED}}
        return None if stop.get("uncommitted") == left else {"status": status, "stop": {**stop, "uncommitted": left}}
    if stop is not None and stop.get("outcome") == SAVEPOINT_OK:
        savepoint = verdicts.views.get(stop.get("checkpoint_id", 0))
        if savepoint is not None and savepoint.committed:
            return {**status_data, "stop": {**stop, "outcome": COMMITTED}}
    return None


def last_status(decisions: Sequence[Decision], spec_number: int) -> tuple[Mapping[str, Any], str]:
    """Return the data of the submission's last status entry, and the reason of a later rejection that stops the job.

    The rejection comes from this call, or from an earlier one that died before it recorded the status. Generations that
    only commit append the final status themselves.
    """
    status_data: Mapping[str, Any] = {}
    rejected = ""
    for decision in decisions:
        if decision.kind == "fence" and decision.data["spec"] != spec_number:
            status_data, rejected = {}, ""
        elif decision.kind == "status":
            # A status after the rejection shows that the stop was recorded, so that it is not recorded again.
            status_data, rejected = decision.data, ""
        elif decision.kind == "reject" and decision.data["then"] == "stop":
            data = decision.data
            rejected = rejection_text(data["checkpoint_id"], data["by"], data.get("reason", ""))
    return status_data, rejected


def _apply_verdict(job: DriverJob, ruling: Verdict | None) -> None:
    """Append the verdict to the log, unless it is already there."""
    if ruling is None:
        return
    verdicts = job.verdicts
    if ruling.approves and ruling.checkpoint_id is None and not verdicts.waiting and verdicts.uncommitted:
        return  # an earlier call approved it, and ended before its commit
    outcome = decide_verdict(ruling, verdicts, cannot_quarantine=cannot_quarantine(job.graph))
    if not isinstance(outcome, AppendVerdict):
        if not outcome.ok:
            raise CommandRefusedError(outcome.message, where=f"job {job.spec.job_id}", cause=outcome.code)
        return
    n = outcome.checkpoint_id
    data: dict[str, Any] = {"checkpoint_id": n, "by": ruling.by, "command": ruling.request_id}
    if ruling.approves:
        job.generation_log.append("approve", data)
        return
    more = {"reason": ruling.reason} if outcome.withheld is None else outcome.withheld.to_json()
    job.generation_log.append("reject", {**data, "then": ruling.then, **more})


def _publish(job: DriverJob, restore: RestoreState, run_id: str) -> None:
    """Publish the snapshot's transactions. Do nothing for a fork, which has none of its own.

    For a batch job, also remove staged output of duplicate attempts, because no later run does that.
    """
    if restore.is_fork:
        return
    publish_restored(job, restore, run_id)
    if job.options.execution_mode == "batch":
        remove_duplicate_attempts(job, restore, run_id)


def remove_duplicate_attempts(job: DriverJob, restore: RestoreState, run_id: str) -> None:
    """Remove staged output of duplicate task attempts of a batch job: tasks that Spark repeated or ran twice
    (speculation).

    Call it after `settle`. Blocks; idempotent.

    Args:
        restore: the job's checkpoint.
        run_id: id of a writer that sorts after all tasks.
    """
    checkpoint_id, verdicts = restore.metadata.checkpoint_id, job.verdicts
    waits = verdicts.gated and checkpoint_id > verdicts.approved
    for uid, sink in job.two_phase_sinks.items():
        kept = [handle for _, handle in held_transactions(job, uid, restore)] if waits else []
        job.generation_log.check()
        with _as_store_error(job.spec.job_id, uid):
            recover_sink(job, uid, sink, run_id, checkpoint_id, kept)


def recover_sink(
    job: DriverJob, uid: str, sink: Sink, run_id: str, checkpoint_id: int, kept: Sequence[Committable]
) -> None:
    """Remove output that writers before `run_id` left staged, except `kept`. One writer acts for all subtasks.

    Args:
        checkpoint_id: see `SinkWriter.recover`.
    """
    generation, schema = job.generation_log.generation, job.graph.by_uid(uid).schema
    storage = job_storage(job.store, job.spec)
    ctx = SinkContext(job.spec.job_id, job.spec.lineage, uid, 0, 1, generation, run_id, schema, storage=storage)
    with closing(sink.create_writer(ctx)) as writer:
        writer.recover(checkpoint_id, kept)


def publish_restored(job: DriverJob, restore: RestoreState, run_id: str) -> None:
    """Publish the permitted transactions of the restored snapshot for all sinks, and move withheld ones to quarantine.

    Blocks; idempotent. Raises as `commit_late` does.
    """
    for node in job.graph.nodes:
        if node.sink is not None and node.sink.two_phase:
            _publish_restored_sink(job, node, node.sink, restore, run_id)


def _publish_restored_sink(job: DriverJob, node: Node, sink: Sink, restore: RestoreState, run_id: str) -> None:
    """Publish the permitted transactions of one sink, and move withheld ones. One writer acts for all subtasks."""
    held = list(held_transactions(job, node.uid, restore))
    if not held:
        return
    ctx = SinkContext(
        job_id=job.spec.job_id,
        lineage=job.spec.lineage,
        uid=node.uid,
        subtask=0,
        parallelism=1,
        generation=job.generation_log.generation,
        run_id=run_id,
        schema=job.graph.edge_schema(node.inputs[0]),
        storage=job_storage(job.store, job.spec),
    )
    permitted = restore.metadata.checkpoint_id if restore.permitted is None else restore.permitted
    with _writer_of(sink, ctx) as writer:
        for withheld in restore.withheld:
            gone = [handle for n, handle in held if withheld.covers(n)]
            if gone and isinstance(sink, SupportsQuarantine):
                sink.quarantine(ctx, gone, Quarantine(job.store, restore.quarantine, withheld))
        due = [handle for n, handle in held if n <= permitted and not _is_withheld(n, restore.withheld)]
        if due:
            # Immediately before the commit: a newer driver commits
            # these transactions itself, and may be rewinding the sink.
            job.generation_log.check()
            writer.commit(due)


@contextmanager
def _writer_of(sink: Sink, ctx: SinkContext) -> Iterator[SinkWriter]:
    with _as_store_error(ctx.job_id, ctx.uid), closing(sink.create_writer(ctx)) as writer:
        yield writer


@contextmanager
def _as_store_error(job_id: str, uid: str) -> Iterator[None]:
    """Convert errors of disks and client libraries to TidegateError, with place and remedy."""
    try:
        yield
    except TidegateError:
        raise
    except Exception as error:
        raise TidegateError(
            "a sink could not commit approved output, or could not move rejected output",
            where=f"job {job_id}, sink {uid!r}",
            cause=f"{type(error).__name__}: {error}",
            remedy="Fix the cause, then run `tidegate commit-pending` again. Approvals and rejections stay "
            "recorded, and finished steps are not repeated",
        ) from error


def _is_withheld(checkpoint_id: int, withheld: Sequence[WithheldRange]) -> bool:
    return any(one.covers(checkpoint_id) for one in withheld)


def held_transactions(job: DriverJob, uid: str, restore: RestoreState) -> Iterator[tuple[int, Committable]]:
    """Yield (barrier, handle) of all transactions of a sink in the snapshot, oldest barrier first."""
    operator = restore.metadata.operator(uid)
    if operator is None:
        return
    store, folder = open_location(job.store, job.spec, restore.location)
    factory = SnapshotStreams(store, folder)
    found: list[Committable] = []
    for state in operator.subtasks:
        if state.handle is not None:
            where = f"snapshot {restore.location}, sink {uid!r}, subtask {state.index}"
            parts = factory.parts(state.handle, where=where)
            # Channel state of an unaligned checkpoint contains records that no sink has received, so it has no handles.
            found += handles_in_snapshot([part for part in parts if part.kind != "channel"])
    by_barrier = [(parse_transaction_id(handle.transaction_id).checkpoint_id, handle) for handle in found]
    yield from sorted(by_barrier, key=lambda pair: pair[0])
