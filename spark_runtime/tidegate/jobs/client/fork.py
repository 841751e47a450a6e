"""Forks: a job of its own that begins with another job's snapshot, to work off a part of its input beside it.

Nothing of the original is touched: the fork reads its snapshot and commits none of its transactions (S7.4). What the
pipeline must be like for that - bounded sources, sinks that write elsewhere - its driver checks before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tidegate.errors import OptionError, SnapshotError
from tidegate.jobs.client import submission
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import RestoreFrom, Spec
from tidegate.jobs.restore.snapshot_lookup import refuse_older_than, resolve_restore


@dataclass(frozen=True, slots=True)
class ForkOrigin:
    """Where a fork begins.

    Attributes:
        job_id: of the original.
        path: of the snapshot, as its log has it.
        checkpoint_id: None: not known.
        kind: "checkpoint", "savepoint", ...; a checkpoint is deleted when the original retains newer ones.
        spec: the original's submission that took it, or its newest.
        name: of the snapshot, for people.
        completed_at: as the original recorded it; None: not recorded.
    """

    job_id: str
    path: str
    checkpoint_id: int | None
    kind: str
    spec: Spec
    name: str
    completed_at: str | None


def find_origin(original: JobDirectory, wanted: RestoreFrom) -> ForkOrigin:
    """What `wanted` names among the snapshots of `original`, checked.

    Raises:
        JobNotFoundError: there is no such job.
        SnapshotError: no such snapshot, another job's, not complete, rejected, or taken back.
    """
    view, specs = original.view(), original.specs()
    resolved = resolve_restore(original.store, original.storage_options, original.job_id, wanted, specs, view)
    path = resolved.restore.path
    if resolved.lineage is None:
        raise SnapshotError(
            f"{path} is no snapshot of job {original.job_id}",
            where=f"fork of {original.job_id}",
            cause="it is another job's, whose sinks the fork would not be kept away from",
            remedy="Name the job that took it as the original, or a snapshot of this one (`tidegate checkpoints`)",
        )
    point = view.latest_recovery_point if path is None else next((c for c in view.completed if c.path == path), None)
    if path is None:
        assert point is not None, "a latest recovery point was resolved"
        path = point.path
    number = point.spec if point is not None and point.spec else view.spec_number
    kind = point.kind if point is not None else wanted.kind
    n = point.checkpoint_id if point is not None else None
    return ForkOrigin(original.job_id, path, n, kind, specs[number - 1], resolved.name, resolved.completed_at)


def fork(job: JobDirectory, original: JobDirectory, request: submission.SubmissionRequest) -> Spec:
    """Submit `job`'s job as a fork, or find what was submitted under the request's submission id.

    Args:
        job: of the fork's own id, under the original's root.
        request: its `restore` names a snapshot of the original. What it does not give is the original's; its arguments
            are laid over the original's.

    Raises:
        OptionError: it is the original itself, or the same code with the same arguments.
        JobExistsError: a job of the fork's id is active; or it is over, and the request is not `fresh`.
        JobNotFoundError, SnapshotError: see `find_origin`; or it is older than `max_snapshot_age`. Others: see
            `JobClient.submit`.
    """
    for spec in job.specs():
        if spec.submission_id == request.submission_id:
            return spec
    check_settings_differ(job, original, request.pipeline, request.arguments)
    assert request.restore is not None, "a fork begins with a snapshot"
    origin = find_origin(original, request.restore)
    if request.max_snapshot_age is not None:
        where = f"job {job.job_id}, fork of {original.job_id}"
        refuse_older_than(origin.name, origin.completed_at, request.max_snapshot_age, job.now(), where=where)
    restore = replace(
        request.restore,
        kind="savepoint",
        path=origin.path,
        checkpoint_id=None,
        on_committed_after="refuse",
        fork_of=original.job_id,
    )
    made = replace(
        request,
        restore=restore,
        arguments=merge_settings(origin.spec.arguments, request.arguments),
        options=request.options or JobOptions.from_mapping(origin.spec.options),
        like=origin.spec,
        max_snapshot_age=None,
    )
    return submission.submit(job, made)


def check_settings_differ(
    job: JobDirectory, original: JobDirectory, pipeline: str | None, arguments: Mapping[str, Any] | None
) -> None:
    """Raise OptionError when a fork would be its original, or do the same: see `fork`. Touches no store."""
    if job.job_id == original.job_id:
        raise OptionError(
            "a fork needs a job id of its own", where=f"job {job.job_id}", remedy="To go on with a job, restore it"
        )
    if pipeline is None and not arguments:
        raise OptionError(
            "the fork would do what its original does: the same code with the same arguments",
            where=f"job {job.job_id}, fork of {original.job_id}",
            remedy="Give arguments that name a bounded input and an output of its own, or another pipeline",
        )


def merge_settings(before: Mapping[str, Any], given: Mapping[str, Any] | None) -> dict[str, Any]:
    """`before`, with what is given in the place of what it replaces."""
    return {**before, **(given or {})}
