"""What a job is meant to be doing, as its job directory says it (`desired.json`): for launchers that supervise, which
launch for others (`tidegate agent`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.clock import iso
from tidegate.errors import NotFoundError
from tidegate.jobs.launches import newest_attempt
from tidegate.jobs.records import Desired, Spec, decode, encode

if TYPE_CHECKING:
    from tidegate.jobs.client.job_client import JobClient


from typing import TYPE_CHECKING

from tidegate.clock import parse_iso

if TYPE_CHECKING:
    from tidegate.jobs.client.job_client import JobClient


ENDING_VERBS = ("stop", "cancel")
"""Commands after which a job is over."""


def meant_to_end_by(client: JobClient, spec: int) -> str:
    """Who wants submission `spec` to be over: by `desired.json`, or by a stop or cancel that no driver has answered and
    that is neither withdrawn nor expired; "" when it is to run."""
    path = client.layout.desired
    try:
        desired = decode(client.store.read(path), Desired, path)
    except NotFoundError:
        desired = None
    if desired is not None and (desired.state, desired.spec) == ("stopped", spec):
        return desired.by
    commands = [client.command(i) for i in client.layout.unanswered(client.store.list(client.layout.commands))]
    open_ones = [c for c in commands if c is not None and c.spec == spec and c.verb in ENDING_VERBS]
    return next((c.issued_by for c in open_ones if parse_iso(c.expires_at) > client.now()), "")


def desired_of(client: JobClient) -> Desired | None:
    """What is wanted; None: nobody has said so, and no agent touches the job."""
    path = client.layout.desired
    try:
        return decode(client.store.read(path), Desired, path)
    except NotFoundError:
        return None


def want_running(client: JobClient, spec: Spec, by: str, *, anew: bool = False) -> Desired:
    """Say that a driver of `spec` is wanted: for a caller that knows of none alive. Saying so again before one is
    launched changes nothing; afterwards it is a new wish, for which an agent has its whole budget again.

    Args:
        by: for people.
        anew: one newer than all that were launched, as after a driver that began and is no more; False: the newest
            launch will do when it is on its way, which the agent judges.
    """
    before = desired_of(client)
    newest = newest_attempt(client.store, client.layout, spec.number)
    launch = newest + 1 if anew or newest == 0 else newest
    if newest < launch and before is not None:
        if (before.state, before.spec, before.launch) == ("running", spec.number, launch):
            return before
    return _say(client, Desired("running", spec.number, iso(client.now()), by, launch))


def want_stopped(client: JobClient, by: str) -> Desired:
    """Say that no driver is to be launched any more. One that runs goes on: it is stopped by a command."""
    return _say(client, Desired("stopped", client.specs()[-1].number, iso(client.now()), by))


def _say(client: JobClient, desired: Desired) -> Desired:
    client.store.replace(client.layout.desired, encode(desired))
    return desired
