"""What a job is meant to be doing, as its job directory says it (`desired.json`): for launchers that supervise, which
launch for others (`tidegate agent`)."""

from __future__ import annotations

from tidegate.clock import iso, parse_iso
from tidegate.errors import NotFoundError
from tidegate.jobs.client.job_directory import JobDirectory
from tidegate.jobs.launches import newest_attempt
from tidegate.jobs.records import Desired, Spec, decode, encode

ENDING_VERBS = ("stop", "cancel")
"""Commands after which a job is over."""


def stop_requested_by(job: JobDirectory, spec: int) -> str:
    """Who wants submission `spec` to be over: by `desired.json`, or by a stop or cancel that no driver has answered and
    that is neither withdrawn nor expired; "" when it is to run."""
    path = job.layout.desired
    try:
        desired = decode(job.store.read(path), Desired, path)
    except NotFoundError:
        desired = None
    if desired is not None and (desired.state, desired.spec) == ("stopped", spec):
        return desired.by
    commands = [job.command(i) for i in job.layout.unanswered(job.store.list(job.layout.commands))]
    open_ones = [c for c in commands if c is not None and c.spec == spec and c.verb in ENDING_VERBS]
    return next((c.issued_by for c in open_ones if parse_iso(c.expires_at) > job.now()), "")


def read_desired(job: JobDirectory) -> Desired | None:
    """What is wanted; None: nobody has said so, and no agent touches the job."""
    path = job.layout.desired
    try:
        return decode(job.store.read(path), Desired, path)
    except NotFoundError:
        return None


def request_running(job: JobDirectory, spec: Spec, by: str, *, anew: bool = False) -> Desired:
    """Say that a driver of `spec` is wanted: for a caller that knows of none alive. Saying so again before one is
    launched changes nothing; afterwards it is a new wish, for which an agent has its whole budget again.

    Args:
        by: for people.
        anew: one newer than all that were launched, as after a driver that began and is no more; False: the newest
            launch will do when it is on its way, which the agent judges.
    """
    before = read_desired(job)
    newest = newest_attempt(job.store, job.layout, spec.number)
    launch = newest + 1 if anew or newest == 0 else newest
    if newest < launch and before is not None:
        if (before.state, before.spec, before.launch) == ("running", spec.number, launch):
            return before
    return _write_desired(job, Desired("running", spec.number, iso(job.now()), by, launch))


def request_stopped(job: JobDirectory, by: str) -> Desired:
    """Say that no driver is to be launched any more. One that runs goes on: it is stopped by a command."""
    return _write_desired(job, Desired("stopped", job.specs()[-1].number, iso(job.now()), by))


def _write_desired(job: JobDirectory, desired: Desired) -> Desired:
    job.store.replace(job.layout.desired, encode(desired))
    return desired
