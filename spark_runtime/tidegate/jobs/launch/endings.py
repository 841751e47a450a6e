"""Whether a job whose driver is dead was about to end anyway, so that nobody starts it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.clock import parse_iso
from tidegate.errors import NotFoundError
from tidegate.jobs.records import Desired, decode

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
