"""`tidegate commit-pending`: commit approved output of a job that is not running (S7.4, S7.8)."""

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
    """Give a verdict, commit approved checkpoints, and print what still waits."""
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
    waiting = f"; waiting for approval or rejection: {', '.join(map(str, result.waiting))}" if result.waiting else ""
    gone = f"; in quarantine: {', '.join(map(str, result.quarantined))}" if result.quarantined else ""
    around.output.print(f"{client.job_id}: {view.status}; {committed}{waiting}{gone}")
    around.output.document({"job_id": client.job_id, "status": str(view.status), **dataclasses.asdict(result)})
    return 0


def commit_pending(client: JobDirectory, ruling: Verdict | None = None) -> LateCommitResult:
    """Commit approved checkpoints, after `ruling` if there is one, with the pinned pipeline and the latest recovery
    point. If the job has no commit gate, commit everything that this recovery point covers.

    The call begins a generation in the decision log. Earlier drivers can no longer decide anything, and the next
    generation fences off this call. The job's status changes only when all is done. The call is idempotent: repeat it
    after an interruption at any point. It runs the pinned code of the submission in this process.

    Args:
        ruling: verdict to give first. A rejection is `stop` or `quarantine`.

    Raises:
        JobNotFoundError: there is no such job.
        CommandRefusedError: a driver is alive or has not started yet, or the verdict cannot be given, for example
            because the job has no commit gate.
        PipelineError, RecordError: the pinned pipeline cannot be built.
        Others: see `commit_late`.
    """
    verdicts = _checked(client)
    spec = client.spec(verdicts.spec)  # not the newest: another may have been submitted since
    if ruling is not None and not verdicts.gated:
        raise CommandRefusedError(
            "the job commits without approval, and no checkpoint waits for approval or rejection",
            where=f"job {client.job_id}",
            cause="the job's option commit is 'automatic'",
            remedy="Leave out --approve, --reject and --quarantine: the output before the newest snapshot is then "
            "committed",
        )
    due: object = [n for n in verdicts.uncommitted if n <= verdicts.approved]
    if not verdicts.gated:
        due = newest_uncommitted(client.decisions(), client.specs(), verdicts)
    status, rejected = last_status(client.decisions(), spec.number)
    # a call that died after its commits may have left the job's status as it was
    status_missing = status_after_commit(status, verdicts, rejected) is not None
    if ruling is None and not due and not verdicts.withheld and not status_missing:
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
            # This process is no launch. With the number of the last one, the next launch is newer than this fence.
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
            f"checkpoints {beyond} belong to submission {view.followed}, not to the newest submission {spec.number}",
            where=where,
            cause=f"submission {spec.number} was refused before it ran, so it does not continue these checkpoints",
            remedy="Restore the latest recovery point with `tidegate restore --option commit=on_request`, "
            "and approve or reject the checkpoints in that run",
        )
    if not view.is_terminal and (
        client.is_alive() or find_local_driver(client.store, client.layout, spec.number) is not None
    ):
        remedy = "Use `tidegate approve` or `tidegate reject`, or wait until the job has ended"
        raise CommandRefusedError("the job's driver is alive, and commits itself", where=where, remedy=remedy)
    if not view.is_terminal and not view.is_active:
        remedy = "Start the driver with `tidegate restore`, or end the job with `tidegate cancel`"
        raise CommandRefusedError("the job's driver has not started yet", where=where, remedy=remedy)
    return verdicts
