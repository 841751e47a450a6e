"""Forks: separate jobs that start from another job's snapshot, to process a part of its input beside it.

A fork changes nothing of the original job: it reads the snapshot and commits none of its transactions (S7.4). Its
driver checks the requirements for that before anything runs: bounded sources, and sinks that write elsewhere.
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
    """The snapshot that a fork starts from.

    Attributes:
        job_id: id of the original job.
        path: path of the snapshot, as in the original's log.
        checkpoint_id: id of the snapshot; None: unknown.
        kind: "checkpoint", "savepoint", ...; the original deletes a checkpoint when it retains newer ones.
        spec: submission of the original that took it, or its newest submission.
        name: name of the snapshot, for readers.
        completed_at: completion time in the original's log; None: not recorded.
    """

    job_id: str
    path: str
    checkpoint_id: int | None
    kind: str
    spec: Spec
    name: str
    completed_at: str | None


def find_origin(original: JobDirectory, wanted: RestoreFrom) -> ForkOrigin:
    """Find the snapshot that `wanted` names in the job `original`, and check it.

    Raises:
        JobNotFoundError: there is no such job.
        SnapshotError: the snapshot does not exist, belongs to another job, is incomplete, was rejected, or was
            invalidated by a rewind.
    """
    view, specs = original.view(), original.specs()
    resolved = resolve_restore(original.store, original.storage_options, original.job_id, wanted, specs, view)
    path = resolved.restore.path
    if resolved.lineage is None:
        raise SnapshotError(
            f"{path} is not a snapshot of job {original.job_id}",
            where=f"fork of {original.job_id}",
            cause="the snapshot belongs to another job, and the fork could write to the sinks of that job",
            remedy="Name the job that took the snapshot as the original, or name a snapshot from "
            f"`tidegate checkpoints --job-id {original.job_id}`",
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
    """Submit a fork, or return the existing submission with the request's submission id.

    Args:
        job: job of the fork, under the same root as the original.
        request: its `restore` names a snapshot of the original. Settings that it leaves out are copied from the
            original. Its arguments override the original's.

    Raises:
        OptionError: the fork has the original's id, or the same code with the same arguments.
        JobExistsError: a job with the fork's id is active, or it has ended and the request is not `fresh`.
        JobNotFoundError, SnapshotError: see `find_origin`. SnapshotError also when the snapshot is older than
            `max_snapshot_age`. Others: see `JobClient.submit`.
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
    """Raise OptionError when a fork has the original's id, or would do the same. Does not access the store."""
    if job.job_id == original.job_id:
        raise OptionError(
            "a fork needs its own job id",
            where=f"job {job.job_id}",
            remedy="Choose another job id for the fork. To resume the original job, restore it",
        )
    if pipeline is None and not arguments:
        raise OptionError(
            "the fork would do the same as its original: it has the same code and arguments",
            where=f"job {job.job_id}, fork of {original.job_id}",
            remedy="Pass arguments that name a bounded input and a separate output, or name another pipeline",
        )


def merge_settings(before: Mapping[str, Any], given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the earlier settings, overridden by new ones."""
    return {**before, **(given or {})}
