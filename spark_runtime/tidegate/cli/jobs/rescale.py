"""`tidegate rescale`: suspend a running job and restore it at another parallelism (S5.5)."""

from __future__ import annotations

import argparse

from tidegate.cli import arguments
from tidegate.cli.arguments import Parser
from tidegate.cli.environment import CliEnvironment
from tidegate.cli.job_lookup import job_of, same_job_arguments
from tidegate.cli.jobs.commands import send_command
from tidegate.cli.jobs.start import add_waiting, run_submission
from tidegate.cli.pipeline_arguments import add_log_format
from tidegate.errors import CommandRefusedError, OptionError
from tidegate.extras import require_runtime
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.driver_secrets import require_driver_secrets
from tidegate.jobs.launch.driver_requirements import drop_port_settings, require_driver_machine
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.status import JobStatus, JobView
from tidegate.jobs.stop_outcomes import answer_timeout, stop_arguments


def add_rescale(parser: Parser) -> None:
    """Add the arguments of `tidegate rescale`."""
    parser.description = (
        "Suspends a job with a savepoint and restores it at another parallelism; everything else stays the same. "
        "If the job is suspended already, it is only restored. If the restored job fails, restore it again at the old "
        "parallelism."
    )
    arguments.add_job(parser)
    parser.add_argument("--parallelism", type=int, metavar="N", required=True, help="new number of slots")
    parser.add_argument("--stop-timeout", metavar="DURATION", help="how long the job may take to suspend")
    add_log_format(parser)
    add_waiting(parser)
    parser.set_defaults(run=rescale)


def rescale(args: argparse.Namespace, around: CliEnvironment) -> int:
    """Suspend the job, submit it and start it. A job that runs at this parallelism already is not touched."""
    require_runtime("`tidegate rescale`")
    client = job_of(JobClient, args, around)
    timeout = arguments.duration(args.timeout, "--timeout")
    view = client.view()
    before = client.spec(view.settled.spec_number)
    _check(args.parallelism, JobOptions.from_mapping(before.options))
    if view.is_active and before.options["parallelism"] == args.parallelism:
        around.output.print(f"{client.job_id}: already runs at parallelism {args.parallelism}")
        around.output.document({"job_id": client.job_id, "spec": view.spec_number, "parallelism": args.parallelism})
        return 0
    log_format = {} if args.log_format is None else {"log_format": args.log_format}
    options = JobOptions.from_mapping({**before.options, **log_format, "parallelism": args.parallelism})
    # the job's driver still holds its ports, so a check that they are free would fail
    conf = before.spark_conf if view.is_terminal else drop_port_settings(before.spark_conf)
    (around.require or require_driver_machine)(before.master, conf, options, around.environment)
    where = f"job {client.job_id}, submission {before.number}"
    require_driver_secrets(before.secrets, around.environment, where=where)
    path = _suspended(args, around, client, view)
    around.output.note(f"{client.job_id}: suspended with savepoint {path}")
    spec = client.submit(
        pipeline=None,
        options=options,
        restore=RestoreFrom("savepoint", path=path),
        submission_id=args.submission_id,
        submitted_by=around.caller,
    )
    job = same_job_arguments(args, client.job_id)
    back = f"tidegate restore {job} --option parallelism={before.options['parallelism']}"
    around.output.note(f"if the job does not start, restore it with the old parallelism: {back}")
    return run_submission(args, around, client, spec, timeout)


def _suspended(args: argparse.Namespace, around: CliEnvironment, client: JobClient, view: JobView) -> str:
    """Suspend the job unless it is suspended. Return the path of its savepoint."""
    if not view.is_terminal:
        limit = arguments.duration(args.stop_timeout, "--stop-timeout")
        given = stop_arguments({"mode": "suspend", "timeout": limit})
        if limit is None:
            limit = JobOptions.from_mapping(client.spec(view.spec_number).options).stop_timeout
        send_command(client, around, "stop", given, answer_timeout(limit))
        view = client.view()
    view = view.settled
    stop = view.stop or {}
    if view.status is not JobStatus.STOPPED or stop.get("mode") != "suspend" or not stop.get("path"):
        raise CommandRefusedError(
            f"the job cannot be rescaled: it is {view.status}, not suspended",
            where=f"job {client.job_id}",
            remedy=f"Restore the job: tidegate restore {client.job_id} --option parallelism={args.parallelism}",
        )
    return str(stop["path"])


def _check(parallelism: int, options: JobOptions) -> None:
    """Check the new parallelism, before the job is stopped. Raises OptionError."""
    if 1 <= parallelism <= options.max_parallelism:
        return
    raise OptionError(
        f"parallelism {parallelism} is not between 1 and the job's max_parallelism, {options.max_parallelism}",
        where="--parallelism",
        cause="keyed state is divided into max_parallelism key groups, and their number never changes",
        remedy=f"Pass a number from 1 to {options.max_parallelism}",
    )
