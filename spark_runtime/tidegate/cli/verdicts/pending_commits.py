"""`tidegate commit-pending`: what is permitted and not committed, committed with no job running (S7.4, S7.8)."""

from __future__ import annotations

import argparse
import dataclasses
import os
import secrets
import tempfile

from tidegate.api.loader.pipeline_loader import load_pipeline
from tidegate.cli.environment import CliEnvironment
from tidegate.cli.job_lookup import job_of
from tidegate.cli.verdicts.verdict_verbs import NEWEST
from tidegate.clock import iso
from tidegate.coordinator.driver_job import DriverJob
from tidegate.coordinator.events import Verdict
from tidegate.coordinator.late_commit import (
    LateCommitResult,
    commit_late,
    committed_last,
    last_status,
    newest_uncommitted,
    status_after_commit,
)
from tidegate.coordinator.recovery.source_schemas import schemas_in_effect
from tidegate.errors import CommandRefusedError
from tidegate.jobs.artifacts.artifact import unpack_artifact
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.decision_log import last_fence
from tidegate.jobs.history.verdicts import Verdicts, find_verdicts
from tidegate.jobs.launches import find_local_driver
from tidegate.jobs.options import JobOptions
from tidegate.plan.execution_plan import make_execution_plan


def run(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Give a verdict, commit what is approved, and say what is left."""
    client = job_of(JobDirectory, args, around)
    around.output.progress(f"{client.job_id}: looking for its driver")
    words = (("approve", args.approve), ("stop", args.reject), ("quarantine", args.quarantine))
    given = next(((then, n) for then, n in words if n is not None), None)
    ruling = None
    if given is not None:
        then, n = given
        approves = then == "approve"
        ruling = Verdict(
            args.id or f"commit-pending-{secrets.token_hex(8)}",
            approves,
            None if n == NEWEST else n,
            around.caller,
            "quarantine" if then == "quarantine" else "stop",
            args.reason,
        )
    result = commit_pending(client, ruling)
    view = client.view()
    committed = f"committed up to checkpoint {result.committed}" if result.committed else "nothing is committed"
    waiting = f"; waiting for a verdict: {', '.join(map(str, result.waiting))}" if result.waiting else ""
    gone = f"; in quarantine: {', '.join(map(str, result.quarantined))}" if result.quarantined else ""
    around.output.print(f"{client.job_id}: {view.status}; {committed}{waiting}{gone}")
    around.output.document({"job_id": client.job_id, "status": str(view.status), **dataclasses.asdict(result)})
    return 0


def commit_pending(client: JobDirectory, ruling: Verdict | None = None) -> LateCommitResult:
    """Commit what is approved, after `ruling` if there is one, from the pinned pipeline and the latest recovery point;
    of a job that commits by itself what that point covers.

    It takes a fence in the decision log, so that no driver of before can decide anything any more, and is itself
    fenced off by the next. The job's status stays what it was until all is done. Idempotent; to be called again when it
    was interrupted, whenever that was. Runs the user's code that the submission pinned, in this process.

    Args:
        ruling: verdict to give first; rejections: `stop` and `quarantine`.

    Raises:
        JobNotFoundError: no such job.
        CommandRefusedError: a driver is alive, or has not begun yet; or the verdict cannot be given, as where there is
            no commit gate.
        PipelineError, RecordError: the pinned pipeline cannot be built.
        See `commit_late` for others.
    """
    verdicts = _checked(client)
    spec = client.spec(verdicts.spec)  # another one may have been submitted since
    if ruling is not None and not verdicts.gated:
        raise CommandRefusedError(
            "this job commits by itself: nothing of it waits for a verdict",
            where=f"job {client.job_id}",
            cause="its option commit is 'automatic'",
            remedy="Leave the verdict out: then what its newest snapshot covers is committed",
        )
    due: object = [n for n in verdicts.uncommitted if n <= verdicts.approved]
    if not verdicts.gated:
        due = newest_uncommitted(client.decisions(), client.specs(), verdicts)
    told, rejected = last_status(client.decisions(), spec.number)
    unsaid = status_after_commit(told, verdicts, rejected) is not None  # by a call that died before it did
    if ruling is None and not due and not verdicts.withheld and not unsaid:
        return LateCommitResult(committed_last(verdicts), verdicts.waiting, verdicts.uncommitted, ())
    fence = last_fence(client.decisions())
    assert fence is not None, "a job with checkpoints had a driver"
    with tempfile.TemporaryDirectory(prefix="tidegate-commit-") as scratch:
        code = os.path.join(scratch, "artifact")
        unpack_artifact(client.store, client.layout, spec.artifact, code)
        graph = load_pipeline(
            code,
            spec.pipeline,
            dict(spec.arguments),
            check_sinks=False,
            paths=spec.relative_paths,
            schemas=schemas_in_effect(client.store, client.layout, spec, client.specs(), client.log),
        )
        options = JobOptions.from_mapping(spec.options)
        execution = make_execution_plan(graph, options.parallelism, options.max_parallelism)
        job = DriverJob(
            root=client.root,
            storage_options=client.storage_options,
            store=client.store,
            layout=client.layout,
            spec=spec,
            options=options,
            graph=graph,
            plan=execution,
            log=client.log,
            generation_log=client.log.begin_generation(
                spec=spec.number, launch=fence.data["launch"], only_commits=True
            ),
            now_iso=lambda: iso(client.now()),
            specs=client.specs,
        )
        return commit_late(job, f"commit-{secrets.token_hex(4)}", ruling)


def _checked(client: JobDirectory) -> Verdicts:
    view = client.view()
    spec = client.spec(view.spec_number)
    where = f"job {client.job_id}"
    verdicts = find_verdicts(client.specs(), client.decisions(), spec.number)
    beyond = sorted(set(view.uncommitted) - set(verdicts.uncommitted if verdicts.gated else ()))
    if view.is_terminal and view.followed != spec.number and beyond:
        raise CommandRefusedError(
            f"checkpoints {beyond} are of submission {view.followed}",
            where=where,
            cause=f"submission {spec.number} has come after it, was refused before it ran, and does not hold them",
            remedy="Restore the latest with commit=on_request (`tidegate restore` takes it from there), and let that "
            "run approve or reject them",
        )
    if not view.is_terminal and (
        client.is_alive() or find_local_driver(client.store, client.layout, spec.number) is not None
    ):
        remedy = "Approve or reject it with `tidegate approve` or `reject`; or wait for its end"
        raise CommandRefusedError("the driver is alive", where=where, remedy=remedy)
    if not view.is_terminal and not view.is_active:
        remedy = "Start it with `tidegate restore`, or end it with `tidegate cancel`"
        raise CommandRefusedError("its driver has not begun yet", where=where, remedy=remedy)
    return verdicts
