"""Submissions: a spec from a pipeline and its settings, once for each submission id (S9.3, S9.4)."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from tidegate.clock import iso
from tidegate.errors import (
    AlreadyExistsError,
    CommandRefusedError,
    JobExistsError,
    OptionError,
    RecordError,
    StoreError,
)
from tidegate.jobs.artifacts.artifact import artifact_exists, copy_artifact, pack, resolve_pipeline, upload
from tidegate.jobs.client.argument_names import check_argument_names
from tidegate.jobs.client.final_deletion import delete_checkpoints, deletes_checkpoints
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.client.savepoint_folder import check_savepoint_folder
from tidegate.jobs.driver_secrets import check_driver_secrets
from tidegate.jobs.history.submissions import entries_by_submission, is_discarded
from tidegate.jobs.launches import find_local_driver
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import RelativePaths, RestoreFrom, Spec, canonical, decode, encode
from tidegate.jobs.restore.snapshot_lookup import ResolvedRestore, refuse_older_than, resolve_restore
from tidegate.jobs.secrets import check_no_plain_secrets
from tidegate.jobs.status import JobStatus, JobView

MAX_SUBMIT_CONFLICTS = 20
"""Number of specs that other submitters may create first, until this one gives up."""
DEFAULT_MASTER = "local[*]"
CLAIM_MODES = ("no_claim", "claim")
ON_COMMITTED_AFTER = ("refuse", "rewind", "accept_duplicates")


@dataclass(frozen=True, slots=True)
class SubmissionRequest:
    """A request to submit a job. `pipeline`, `arguments`, `options`, `master`, `spark_conf` and `secrets` that are None
    are copied from the submission that a restore follows. A fresh start needs a pipeline.

    Attributes:
        like: submission to copy missing settings from, of this or another job of the root; None: the newest, without
            submissions that changed nothing (`JobView.followed`).
        max_snapshot_age: greatest age of the snapshot, by its recorded completion; None: any.
        fresh: start or fork without the state of the earlier submissions under this id.
        relative_paths: base of the pipeline's relative paths, used if `pipeline` or `arguments` is set. None: as in the
            submission that a restore follows, so that a path has one meaning in the life of a job. For a fresh start:
            the working directory of this process.
        secrets: see `Spec.secrets`.
    """

    pipeline: str | None
    arguments: Mapping[str, Any] | None
    options: JobOptions | None
    master: str | None
    spark_conf: Mapping[str, Any] | None
    restore: RestoreFrom | None
    code_root: str | None
    owner_dag: str | None
    submission_id: str
    submitted_by: str
    max_snapshot_age: timedelta | None = None
    like: Spec | None = None
    fresh: bool = False
    relative_paths: RelativePaths | None = None
    secrets: Mapping[str, str] | None = None

    @property
    def is_fresh(self) -> bool:
        """Return whether the submission does not continue the job's own state."""
        return self.restore is None or self.restore.fork_of is not None


def submit(job: JobDirectory, request: SubmissionRequest) -> Spec:
    """Submit a job. See `JobClient.submit`. Everything is checked, and the code is pinned, before the spec is created.
    The creation of the spec is the submission."""
    for _ in range(MAX_SUBMIT_CONFLICTS):
        specs = job.specs()
        # First, and again in every round: a repeated call must find
        # its submission, even if its settings would now be refused.
        for spec in specs:
            if spec.submission_id == request.submission_id:
                return spec
        check_settings(job, request)
        view = job.view() if specs else None
        if view is not None:
            _refuse_if_job_exists(job, view, specs[-1], fresh=request.is_fresh)
            if request.is_fresh and not request.fresh:
                _refuse_second_start(job, view, what="start" if request.restore is None else "fork")
        resolved = _resolved(job, request, specs, view)
        if view is not None and resolved is not None and resolved.lineage is None:
            _refuse_to_drop_output(job, view)
        before = specs[view.followed - 1] if view is not None and resolved is not None else None
        spec, pin = _spec(job, request, len(specs) + 1, request.like or before, resolved)
        path, written = job.layout.spec(spec.number), encode(spec)
        spec = decode(written, Spec, path)  # a spec that cannot be read would block the job
        try:
            job.store.create(path, written)
        except AlreadyExistsError:
            # Everything is checked again, because the other submission may have changed what this one may do.
            continue
        if not artifact_exists(job.store, job.layout, spec.artifact):
            pin()  # `tidegate gc` may just have deleted the code as unused; now the spec names it, so it stays
        return spec
    raise StoreError(
        "another process keeps submitting this job",
        where=f"job {job.job_id}",
        remedy="Look for a second DAG run or CLI session that submits the job, end it, and submit again",
    )


def check_settings(job: JobDirectory, request: SubmissionRequest) -> None:
    """Check everything in a request that does not depend on the job. Raises OptionError, StoreError."""
    job.store.probe()
    check_no_plain_secrets(job.storage_options, where="storage_options", storage=True)
    check_no_plain_secrets(request.arguments, where="arguments")
    check_no_plain_secrets(request.spark_conf, where="spark_conf")
    check_driver_secrets(request.secrets)
    answer = request.restore.on_committed_after if request.restore is not None else "refuse"
    if answer not in ON_COMMITTED_AFTER:
        raise OptionError(
            f"on_committed_after={answer!r} is not one of refuse, rewind, accept_duplicates",
            where="on_committed_after",
            remedy="Write refuse, rewind or accept_duplicates",
        )
    _check_claim(request.restore)
    for where, values in (("arguments", request.arguments), ("spark_conf", request.spark_conf)):
        if values is not None and not isinstance(values, Mapping):
            raise OptionError(
                f"{where} must be a mapping, not {type(values).__name__}",
                where=where,
                remedy='Pass a mapping of names to values, such as {"rows": 10}',
            )
        try:
            canonical(dict(values or {}))
        except RecordError as error:
            raise OptionError(
                f"{where} cannot be written as JSON", where=where, cause=error.cause, remedy=error.remedy
            ) from error


def _check_claim(restore: RestoreFrom | None) -> None:
    mode = restore.claim_mode if restore is not None else CLAIM_MODES[0]
    if mode not in CLAIM_MODES:
        raise OptionError(
            f"claim_mode={mode!r} is not one of no_claim, claim", where="claim_mode", remedy="Write no_claim or claim"
        )
    if restore is None or mode == "no_claim":
        return
    if restore.kind == "latest" or restore.fork_of is not None:
        what = (
            "a fork only reads the snapshot, which stays with the original job"
            if restore.fork_of
            else "the restore names the job's latest recovery point, which the job owns already"
        )
        raise OptionError(
            "claim_mode='claim' takes over the snapshot of a path, but this restore names no such snapshot",
            where="claim_mode",
            cause=what,
            remedy="Leave claim_mode out",
        )


def _refuse_if_job_exists(job: JobDirectory, view: JobView, last: Spec, *, fresh: bool) -> None:
    """Raise JobExistsError while a driver runs, or is about to run, this job. A fresh start also requires that the last
    submission has ended and that none of its checkpoints waits for a commit."""
    where = f"job {job.job_id}"
    if view.status is JobStatus.CREATED:
        living = find_local_driver(job.store, job.layout, last.number)
        if living is not None:
            raise JobExistsError(
                f"job {job.job_id!r} is being started already",
                where=where,
                cause=f"process {living.pid} is the driver of submission {last.number}",
                remedy="Wait until the job runs, stop it, or choose another job id",
            )
    if view.is_active and job.is_alive():
        raise JobExistsError(
            f"job {job.job_id!r} is {view.status}",
            where=where,
            cause=f"the driver of submission {view.spec_number} by {last.submitted_by}, generation {view.generation}, "
            "is alive",
            remedy="Stop the job first (`tidegate stop`), or choose another job id",
        )
    if view.is_active and fresh:
        raise JobExistsError(
            f"job {job.job_id!r} was {view.status} when its driver died",
            where=where,
            cause="a fresh start would lose the state of the job",
            remedy="Restore the job (`tidegate restore`), or cancel it first (`tidegate cancel`)",
        )
    if fresh:
        _refuse_to_drop_output(job, view)


def check_may_start(
    job: JobDirectory, submission_id: str | None, *, fresh: bool, what: Literal["start", "fork"] = "start"
) -> bool:
    """Return whether a start or fork would create a submission; False when one with this submission id exists.

    Raises:
        JobExistsError: the start would be refused because of the job's current or former state.
    """
    specs = job.specs()
    if any(spec.submission_id == submission_id for spec in specs):
        return False
    if specs:
        view = job.view()
        _refuse_if_job_exists(job, view, specs[-1], fresh=True)
        if not fresh:
            _refuse_second_start(job, view, what=what)
    return True


def _refuse_second_start(job: JobDirectory, view: JobView, *, what: Literal["start", "fork"]) -> None:
    """Raise JobExistsError for a start or fork under the id of an ended job, unless no submission of it ever ran. It
    would silently start without the job's state, and write all output a second time."""
    if is_discarded(entries_by_submission(job.decisions()), view.spec_number):
        return
    raise JobExistsError(
        f"job {job.job_id!r} exists, and is {view.settled.status}",
        where=f"job {job.job_id}, submission {view.spec_number}",
        cause=f"a {what} does not use the state of the job: it would read all input and write all output again",
        remedy=f"Restore the job (`tidegate restore`), choose another job id, or {what} with --fresh (fresh=True). "
        "With --fresh, if_exists of each file sink decides about existing output (error, append, overwrite)",
    )


def _refuse_to_drop_output(job: JobDirectory, view: JobView) -> None:
    """Raise JobExistsError for a start in a new lineage while checkpoints wait for their commit."""
    if view.uncommitted:
        raise JobExistsError(
            f"the output of checkpoints {list(view.uncommitted)} of job {job.job_id!r} is not committed yet",
            where=f"job {job.job_id}",
            cause="a start without the state of the job would lose this output",
            remedy="Approve or reject the checkpoints (`tidegate commit-pending --approve`, `--reject ID`), or restore "
            "the job",
        )


def _resolved(
    job: JobDirectory, request: SubmissionRequest, specs: tuple[Spec, ...], view: JobView | None
) -> ResolvedRestore | None:
    if request.restore is None:
        return None
    found = resolve_restore(job.store, job.storage_options, job.job_id, request.restore, specs, view)
    if request.max_snapshot_age is not None:
        limit, now, where = request.max_snapshot_age, job.now(), f"job {job.job_id}"
        refuse_older_than(found.name, found.completed_at, limit, now, where=where)
    origin = next((s.restore for s in reversed(specs) if s.lineage == found.lineage), None)
    if origin is not None and found.restore.fork_of is None:
        return replace(found, restore=replace(found.restore, fork_of=origin.fork_of))
    return found


def _pinned(
    job: JobDirectory, request: SubmissionRequest, before: Spec | None
) -> tuple[str, str, Callable[[], object]]:
    """Pin the code of the next spec. Returns `module:function`, the artifact, and a function that pins it again."""
    if request.pipeline is not None:
        path, pipeline = resolve_pipeline(request.pipeline, request.code_root)
        code = pack(path)
        pin = partial(upload, job.store, job.layout, code)
        return pipeline, pin(), pin
    if before is None:
        raise OptionError("no pipeline is named", where="pipeline", remedy="Write path/to/file.py:build")
    if before.job_id == job.job_id:
        return before.pipeline, before.artifact, lambda: None  # an existing spec names it, so `tidegate gc` keeps it
    copy = partial(copy_artifact, job.store, JobLayout(before.job_id), job.layout, before.artifact)
    copy()
    return before.pipeline, before.artifact, copy


def _spec(
    job: JobDirectory, request: SubmissionRequest, number: int, before: Spec | None, resolved: ResolvedRestore | None
) -> tuple[Spec, Callable[[], object]]:
    """Make spec `number` and pin its code. `before` has the settings that the request leaves out.

    Returns the spec, and a function that pins the code again.
    """
    arguments = _overridden(request.arguments, before.arguments if before is not None else None)
    if request.pipeline is not None:
        check_argument_names(request.pipeline, request.code_root, arguments)
    pipeline, artifact, pin = _pinned(job, request, before)
    lineage = resolved.lineage if resolved is not None else None
    options = request.options
    if options is None:
        options = JobOptions.from_mapping(before.options if before is not None else None)
    spec = Spec(
        job_id=job.job_id,
        number=number,
        submission_id=request.submission_id,
        pipeline=pipeline,
        artifact=artifact,
        arguments=arguments,
        options=_checked(job, options).to_mapping(),
        master=request.master or (before.master if before is not None else DEFAULT_MASTER),
        spark_conf=_overridden(request.spark_conf, before.spark_conf if before is not None else None),
        storage_options=dict(job.storage_options),
        restore=resolved.restore if resolved is not None else None,
        lineage=lineage or secrets.token_hex(8),
        owner_dag=request.owner_dag,
        submitted_at=iso(job.now()),
        submitted_by=request.submitted_by,
        relative_paths=_relative_paths(request, before),
        secrets=_overridden(request.secrets, before.secrets if before is not None else None),
    )
    return spec, pin


def _relative_paths(request: SubmissionRequest, before: Spec | None) -> RelativePaths | None:
    changes = request.pipeline is not None or request.arguments is not None
    if request.relative_paths is not None and (before is None or changes):
        return request.relative_paths
    return RelativePaths(os.getcwd()) if before is None else before.relative_paths


def _checked(job: JobDirectory, options: JobOptions) -> JobOptions:
    if options.savepoint_directory is not None:
        where = "option savepoint_directory"
        check_savepoint_folder(job.root, job.layout, options.savepoint_directory, where=where)
    return options


def _overridden(given: Mapping[str, Any] | None, before: Mapping[str, Any] | None) -> dict[str, Any]:
    return dict(given if given is not None else before or {})


def cancel_dead(job: JobDirectory, by: str) -> JobView:
    """End a job without its driver. See `JobClient.cancel_dead`."""
    view = job.view()
    last = job.specs()[-1]
    if view.is_terminal:
        if deletes_checkpoints(view.settled, last):  # an earlier call may have ended before the deletion
            delete_checkpoints(job, last, lambda: None)
        return view
    if job.is_alive() or find_local_driver(job.store, job.layout, last.number) is not None:
        raise CommandRefusedError(
            "the job's driver is alive, so the job cannot be ended without it",
            where=f"job {job.job_id}",
            remedy="Send the driver the command: `tidegate cancel`",
        )
    # Greater than every launch that is recorded or fenced: a driver
    # that starts late is then older than this fence, and ends.
    used = [attempt for number, attempt in job.launches() if number == last.number]
    used += [d.data["launch"] for d in job.decisions() if d.kind == "fence" and d.data["spec"] == last.number]
    generation_log = job.log.begin_generation(spec=last.number, launch=max(used, default=0) + 1)
    generation_log.append(
        "status", {"status": JobStatus.CANCELED.value, "reason": f"cancelled by {by} after its driver had died"}
    )
    view = job.view()
    if deletes_checkpoints(view, last):
        delete_checkpoints(job, last, generation_log.check)
    return view
