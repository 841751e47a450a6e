"""The state that a job should have, recorded in its job directory (`desired.json`). Launchers that supervise jobs and
`tidegate agent` use it."""

from __future__ import annotations

from tidegate.clock import iso, parse_iso
from tidegate.errors import NotFoundError
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.launches import newest_attempt
from tidegate.jobs.records import Desired, Spec, encode, read_record

ENDING_VERBS = ("stop", "cancel")
"""Commands that end a job."""


def stop_requested_by(job: JobDirectory, spec: int) -> str:
    """Return who requested the end of submission `spec`; "" when it should run.

    The end is requested by `desired.json`, or by a stop or cancel without an answer that is neither withdrawn nor
    expired.
    """
    path = job.layout.desired
    try:
        desired = read_record(job.store, path, Desired)
    except NotFoundError:
        desired = None
    if desired is not None and (desired.state, desired.spec) == ("stopped", spec):
        return desired.by
    commands = [job.command(i) for i in job.layout.unanswered(job.store.list(job.layout.commands))]
    open_ones = [c for c in commands if c is not None and c.spec == spec and c.verb in ENDING_VERBS]
    return next((c.issued_by for c in open_ones if parse_iso(c.expires_at) > job.now()), "")


def read_desired(job: JobDirectory) -> Desired | None:
    """Return the requested state; None: there is none, and no agent supervises the job."""
    path = job.layout.desired
    try:
        return read_record(job.store, path, Desired)
    except NotFoundError:
        return None


def request_running(job: JobDirectory, spec: Spec, by: str, *, anew: bool = False) -> Desired:
    """Request a driver for `spec`. For callers that know of no living driver.

    A repeated request before the launch changes nothing. After the launch it is a new request, for which an agent has
    its whole relaunch budget again.

    Args:
        by: name of the caller, for readers.
        `anew`: request a launch newer than all others, for example after a driver that began and died. False: the
            newest launch is sufficient if it is under way; the agent decides that.
    """
    before = read_desired(job)
    newest = newest_attempt(job.store, job.layout, spec.number)
    launch = newest + 1 if anew or newest == 0 else newest
    if newest < launch and before is not None:
        if (before.state, before.spec, before.launch) == ("running", spec.number, launch):
            return before
    return _write_desired(job, Desired("running", spec.number, iso(job.now()), by, launch))


def request_stopped(job: JobDirectory, by: str) -> Desired:
    """Request that no driver is launched any more. A running driver continues; stop it with a command."""
    return _write_desired(job, Desired("stopped", job.specs()[-1].number, iso(job.now()), by))


def _write_desired(job: JobDirectory, desired: Desired) -> Desired:
    job.store.replace(job.layout.desired, encode(desired))
    return desired
