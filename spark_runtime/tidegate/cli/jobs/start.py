"""`tidegate start`, `tidegate restore` and `tidegate fork`: submit a job, launch its driver, wait for it."""

from __future__ import annotations

import argparse
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from tidegate.cli import arguments
from tidegate.cli.arguments import Parser
from tidegate.cli.environment import CliEnvironment
from tidegate.cli.job_lookup import job_of, same_job_arguments, show_progress
from tidegate.cli.job_output import status_text, view_document, view_lines
from tidegate.cli.pipeline_arguments import (
    PIPELINE_HELP,
    add_log_format,
    add_pipeline_settings,
    parse_arguments,
    parse_options,
)
from tidegate.cli.verb_registry import runtime
from tidegate.errors import CommandRefusedError, OptionError
from tidegate.extras import require_runtime
from tidegate.jobs.artifacts.pinned_graph import PinnedGraph, read_pinned_graph
from tidegate.jobs.client import fork as forking
from tidegate.jobs.client import submission
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.job_directory import job_remedy
from tidegate.jobs.client.waiter import failure_error
from tidegate.jobs.driver_secrets import require_driver_secrets
from tidegate.jobs.launch.driver_requirements import require_driver_machine
from tidegate.jobs.launch.local import launch_local
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Launch, RestoreFrom, Spec
from tidegate.jobs.status import JobStatus, JobView

START_ALLOWANCE = timedelta(minutes=2)
"""How long a driver may take to start, by default. The wait for slots is not included."""

_STARTED = (JobStatus.RUNNING, JobStatus.STOPPED, JobStatus.FINISHED, JobStatus.FINISHED_COMMIT_PENDING)
_ENDED = tuple(status for status in JobStatus if status.is_terminal)


def add_start(parser: Parser) -> None:
    """Add the arguments of `tidegate start`."""
    parser.description = "Checks the pipeline, pins its code, submits it, starts a driver here and waits until it runs."
    parser.add_argument("pipeline", metavar="PIPELINE", help=PIPELINE_HELP)
    arguments.add_job(parser, positional=False)
    _add_fresh(parser, "start under the id of an ended job, without its state; all input is read again.")
    _add_settings(parser)
    parser.set_defaults(run=start)


def add_restore(parser: Parser) -> None:
    """Add the arguments of `tidegate restore`."""
    parser.description = (
        "Starts a new driver from a snapshot. Arguments and options that are not passed stay as before, and so does "
        "the pinned code."
    )
    arguments.add_job(parser)
    _add_source(parser)
    parser.add_argument(
        "--on-committed-after",
        choices=("refuse", "rewind", "accept_duplicates"),
        default="refuse",
        help="what to do when output was committed after the snapshot (default: refuse)",
    )
    parser.add_argument(
        "--claim",
        action="store_true",
        help="let the job own the snapshot that --from names. The job may then share its files, and deletes the "
        "snapshot, even a savepoint, when it is no longer needed",
    )
    _add_settings(parser)
    parser.set_defaults(run=restore)


def add_fork(parser: Parser) -> None:
    """Add the arguments of `tidegate fork`."""
    parser.description = (
        "Starts a separate job from another job's snapshot. The snapshot is only read. The fork's sources must be "
        "bounded, and its sinks must not write to the original job's targets. Arguments and options that are not "
        "passed are copied from the original job."
    )
    parser.add_argument("original", metavar="ORIGINAL", help="id of the job that owns the snapshot")
    arguments.add_job(parser, positional=False)
    _add_source(parser)
    _add_fresh(parser, "fork under the id of an ended job, without its state; it starts from the snapshot again.")
    _add_settings(parser)
    parser.set_defaults(run=fork)


def _add_fresh(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--fresh",
        action="store_true",
        help=f"{what} The if_exists of each file sink decides about existing output: error (default) refuses the "
        "start, append adds to it, overwrite removes it with the first commit",
    )


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from",
        dest="source",
        default="latest",
        metavar="latest|ID|PATH",
        help="the latest recovery point (default), a checkpoint's number, or a snapshot's folder or URL",
    )
    parser.add_argument(
        "--max-snapshot-age",
        metavar="DURATION",
        help="refuse a snapshot that is older than this, before anything is submitted (default: any age)",
    )
    parser.add_argument("--pipeline", metavar="PIPELINE", help=f"replaces the pinned code: {PIPELINE_HELP}")
    parser.add_argument(
        "--allow-non-restored-state", action="store_true", help="drop state that no operator of the pipeline restores"
    )
    parser.add_argument(
        "--allow-drained",
        action="store_true",
        help="restore a savepoint that a drain took: its windows fired early and will emit again",
    )


def _add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the options of every verb that submits a pipeline."""
    add_pipeline_settings(parser)
    add_log_format(parser)
    parser.add_argument("--master", help="Spark master URL (default: local[*])")
    parser.add_argument(
        "--conf", action="append", metavar="NAME=VALUE", help="Spark setting; secrets as secret:env/NAME"
    )
    add_waiting(parser)


def add_waiting(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of every verb that ends with `run_submission`."""
    parser.add_argument("--submission-id", help="idempotency key: a second call with it returns the same submission")
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument("--detach", action="store_true", help="return when the driver's process has started")
    waiting.add_argument("--wait", action="store_true", help="wait until the job has ended")
    what = "how long to wait (default: slots_timeout and 2 min; with --wait: no limit)"
    arguments.add_timeout(parser, None, what)


def start(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Submit a pipeline and start it without a snapshot."""
    require_runtime("`tidegate start`")
    client = job_of(JobClient, args, around)
    options = JobOptions.from_mapping(parse_options(args) or {})
    given = parse_arguments(args) or {}
    timeout = arguments.duration(args.timeout, "--timeout")
    is_new = submission.check_may_start(client, args.submission_id, fresh=args.fresh)
    around.output.progress("checking the pipeline")
    effects = runtime("start")(args.pipeline, args.code_root, given, options, starts=client.job_id if is_new else "")
    if args.fresh and client.specs():
        for uid, effect in effects:
            around.output.note(f"fresh start: sink {uid!r}: {effect}")
    spark_conf = arguments.pairs(args.conf, "--conf")
    if is_new:
        (around.require or require_driver_machine)(args.master, spark_conf, options, around.environment)
    around.output.progress("submitting")
    spec = client.submit(
        pipeline=args.pipeline,
        arguments=given,
        options=options,
        submission_id=args.submission_id,
        master=args.master,
        spark_conf=spark_conf,
        submitted_by=around.caller,
        code_root=args.code_root,
        fresh=args.fresh,
    )
    return run_submission(args, around, client, spec, timeout)


def restore(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Submit a job and start it from a snapshot. Options and arguments override the previous submission's."""
    require_runtime("`tidegate restore`")
    client = job_of(JobClient, args, around)
    before = client.spec(client.view().followed) if client.specs() else None
    if before is None and args.pipeline is None:
        hint = "To restore another job's savepoint under a new id, name the code: --pipeline file.py:build"
        remedy = job_remedy(client.store, client.job_id, hint)
        raise client.not_found(f"there is no job with the id {client.job_id!r}", remedy)
    options = merge_settings(before.options if before else {}, parse_options(args))
    checked = None if options is None else JobOptions.from_mapping(options)
    given = merge_settings(before.arguments if before else {}, parse_arguments(args))
    timeout = arguments.duration(args.timeout, "--timeout")
    if args.pipeline is not None:
        around.output.progress("checking the pipeline")
        in_effect = checked or JobOptions.from_mapping(before.options if before else None)
        in_use = given if given is not None else before.arguments if before else {}
        paths, pinned = (before.relative_paths, _pinned(client, before)) if before else (None, None)
        runtime("restore")(args.pipeline, args.code_root, in_use, in_effect, paths=paths, pinned=pinned)
    spark_conf = merge_settings(before.spark_conf if before else {}, arguments.pairs(args.conf, "--conf") or None)
    _require(args, around, before, spark_conf, checked or JobOptions.from_mapping(before.options if before else None))
    around.output.progress("submitting")
    request = submission.SubmissionRequest(
        pipeline=args.pipeline,
        arguments=given,
        options=checked,
        submission_id=args.submission_id or secrets.token_hex(16),
        master=args.master,
        spark_conf=spark_conf,
        restore=replace(
            restore_from(args.source, args.allow_non_restored_state, args.on_committed_after, args.allow_drained),
            claim_mode="claim" if args.claim else "no_claim",
        ),
        owner_dag=None,
        submitted_by=around.caller,
        code_root=args.code_root,
        max_snapshot_age=arguments.duration(args.max_snapshot_age, "--max-snapshot-age"),
    )
    return run_submission(args, around, client, submission.submit(client, request), timeout)


def _pinned(client: JobClient, before: Spec) -> PinnedGraph | None:
    """Read the graph that was recorded for the previous submission; None when there is none."""
    return read_pinned_graph(client.store, client.layout, before.number)


def fork(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Submit and start a fork. Options and arguments override the settings of the submission that took the snapshot."""
    require_runtime("`tidegate fork`")
    client = job_of(JobClient, args, around)
    where = arguments.root(args, around.environment), arguments.storage_options(args, around.environment)
    original = around.connect(JobClient, where[0], args.original, where[1])
    given = parse_arguments(args)
    forking.check_settings_differ(client, original, args.pipeline, given)
    submission.check_may_start(client, args.submission_id, fresh=args.fresh, what="fork")
    wanted = restore_from(args.source, args.allow_non_restored_state, "refuse", args.allow_drained)
    known = next((s for s in client.specs() if s.submission_id == args.submission_id), None)
    before = known or forking.find_origin(original, wanted).spec
    options = JobOptions.from_mapping(merge_settings(before.options, parse_options(args)) or before.options)
    timeout = arguments.duration(args.timeout, "--timeout")
    if args.pipeline is not None:
        around.output.progress("checking the pipeline")
        in_use = {**before.arguments, **(given or {})}
        pinned = _pinned(client if known else original, before)
        runtime("fork")(args.pipeline, args.code_root, in_use, options, paths=before.relative_paths, pinned=pinned)
    spark_conf = merge_settings(before.spark_conf, arguments.pairs(args.conf, "--conf") or None)
    _require(args, around, before, spark_conf, options)
    around.output.progress("submitting")
    request = submission.SubmissionRequest(
        pipeline=args.pipeline,
        arguments=given,
        options=options,
        submission_id=args.submission_id or secrets.token_hex(16),
        master=args.master,
        spark_conf=spark_conf,
        restore=wanted,
        owner_dag=None,
        submitted_by=around.caller,
        code_root=args.code_root,
        max_snapshot_age=arguments.duration(args.max_snapshot_age, "--max-snapshot-age"),
        fresh=args.fresh,
    )
    return run_submission(args, around, client, forking.fork(client, original, request), timeout)


def _require(
    args: argparse.Namespace,
    around: CliEnvironment,
    before: Spec | None,
    spark_conf: Mapping[str, Any] | None,
    options: JobOptions,
) -> None:
    """Check that a driver can run here. `spark_conf` None: the setting of the previous submission."""
    if before is not None and before.submission_id == args.submission_id:
        return  # the submission exists already, and its driver may hold the ports that the check needs
    master = args.master or (before.master if before else None)
    conf = spark_conf if spark_conf is not None else before.spark_conf if before else {}
    (around.require or require_driver_machine)(master, conf, options, around.environment)
    if before is not None:
        where = f"job {before.job_id}, submission {before.number}"
        require_driver_secrets(before.secrets, around.environment, where=where)


def restore_from(
    source: str,
    allow_non_restored_state: bool = False,
    on_committed_after: Any = "refuse",
    allow_drained: bool = False,
) -> RestoreFrom:
    """Parse --from: `latest`, a checkpoint's number, or a snapshot's folder.

    A folder is a URL, an absolute path, or a path below the root. If a snapshot exists at the path below the working
    directory, that one is used. Raises OptionError for an empty text.
    """
    make: Callable[..., RestoreFrom] = RestoreFrom
    more: Mapping[str, Any] = {
        "allow_non_restored_state": allow_non_restored_state,
        "on_committed_after": on_committed_after,
        "allow_drained": allow_drained,
    }
    if source == "latest":
        return make("latest", **more)
    # `isdigit` alone is also true for digits that `int` cannot read, such as superscripts.
    if source.isascii() and source.isdigit():
        return make("checkpoint", checkpoint_id=int(source), **more)
    if not source.strip():
        raise OptionError(
            "--from names no snapshot", where="--from", remedy="Pass latest, a checkpoint's number, or a path"
        )
    path = os.path.expanduser(source).rstrip("/") or source
    if "://" not in path and os.path.isfile(os.path.join(path, "_metadata")):
        path = os.path.abspath(path)
    return make("savepoint", path=path, **more)


def run_submission(
    args: argparse.Namespace, around: CliEnvironment, client: JobClient, spec: Spec, timeout: timedelta | None
) -> int:
    """Launch the driver of a submission, wait as the arguments say, and print the result. Returns the exit code."""
    output = around.output
    launch = (around.launch or launch_local)(client, spec)
    if args.detach:
        view = client.view()
        output.print(f"{client.job_id}: submission {spec.number} started, process {launch.pid}")
        _print_next_steps(args, around, client.job_id)
    else:
        output.progress(f"{client.job_id}: waiting for the driver")
        if timeout is None and not args.wait:
            timeout = JobOptions.from_mapping(spec.options).slots_timeout + START_ALLOWANCE
        wanted = _ENDED if args.wait else _STARTED
        view = client.wait_status(
            wanted, timeout, around.poll_s, lambda seen: show_progress(around, seen), spec=spec.number
        )
        if args.wait:
            view = _succeeded(client, view)
            for line in view_lines(view):
                output.print(line)
        else:
            output.print(
                f"{client.job_id}: {status_text(view)}, submission {spec.number}, generation {view.generation}"
            )
            if not view.is_terminal:
                _print_next_steps(args, around, client.job_id)
    output.document({**view_document(view), "launch": _launch_document(launch)})
    return 0


def _succeeded(client: JobClient, view: JobView) -> JobView:
    """Return the view of a job that ended well. Raises JobFailedError or CommandRefusedError otherwise."""
    if view.status is JobStatus.FAILED:
        raise failure_error(view)
    if view.status is JobStatus.CANCELED:
        raise CommandRefusedError(
            "the job was cancelled",
            where=f"job {client.job_id}",
            cause=view.reason,
            remedy="To resume the job, restore it (`tidegate restore`)",
        )
    return view


def _print_next_steps(args: argparse.Namespace, around: CliEnvironment, job_id: str) -> None:
    place = same_job_arguments(args, job_id)
    around.output.print(f"next: tidegate status --watch {place}")
    around.output.print(f"      tidegate stop {place}")


def _launch_document(launch: Launch) -> dict[str, Any]:
    return {"attempt": launch.attempt, "host": launch.host, "pid": launch.pid, "log": launch.log}


def merge_settings(before: Mapping[str, Any], given: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the earlier settings, overridden by new ones; None when there are no new ones."""
    return None if given is None else {**before, **given}
