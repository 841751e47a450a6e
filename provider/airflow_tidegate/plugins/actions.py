"""What the buttons do: a command to the job's driver, or a new submission that restores a snapshot."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from airflow_tidegate.hooks.tidegate import JobRoot
from airflow_tidegate.launchers import ensure_driver
from airflow_tidegate.plugins.access import Right
from airflow_tidegate.plugins.job_cache import JobState
from airflow_tidegate.plugins.restore_permission import refuse_foreign_code, refuse_without_launcher
from tidegate.errors import CommandRefusedError, OptionError, SnapshotError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.submission import ON_COMMITTED_AFTER
from tidegate.jobs.launch.launcher_registry import AGENT
from tidegate.jobs.layout import stable_id
from tidegate.jobs.records import RestoreFrom, Spec

RIGHTS: Mapping[str, Right] = {
    "checkpoint": "operate",
    "savepoint": "operate",
    "commit": "operate",
    "stop": "control",
    "cancel": "control",
    "reject": "control",
    "restore": "control",
}
"""Verb of the page -> what it asks of the user."""

_ARGUMENTS: Mapping[str, Mapping[str, type]] = {
    "checkpoint": {},
    "savepoint": {},
    "stop": {"mode": str, "timeout": str, "on_timeout": str},
    "cancel": {},
    "commit": {"checkpoint_id": int},
    "reject": {"checkpoint_id": int, "then": str, "reason": str},
    "restore": {
        "checkpoint_id": int,
        "allow_non_restored_state": bool,
        "allow_drained": bool,
        "on_committed_after": str,
    },
}
_NONCE = re.compile(r"[A-Za-z0-9-]{8,64}")
FOLLOW_UPS = ("stop", "replay", "quarantine")
MAX_REASON_CHARACTERS = 500
"""Characters of a reason for a rejection."""


@dataclass(frozen=True, slots=True)
class PageAction:
    """One press of a button.

    Attributes:
        verb: a key of `RIGHTS`.
        nonce: made by the page for the press: a second click, and a request that is sent again, are the same press.
        spec: the submission that the user saw.
        arguments: by verb; checked.
        by: who.
    """

    verb: str
    nonce: str
    spec: int
    arguments: Mapping[str, Any]
    by: str

    @classmethod
    def of(cls, verb: str, body: Mapping[str, Any], by: str) -> PageAction:
        """From what the page sent. Raises OptionError naming what is wrong."""
        allowed = {"nonce": str, "spec": int, **_ARGUMENTS[verb]}
        for name, value in body.items():
            if name not in allowed:
                raise OptionError(f"{verb} takes no {name!r}", where=verb, remedy=f"Send {', '.join(allowed)}")
            if type(value) is not allowed[name]:
                raise OptionError(f"{name} must be of type {allowed[name].__name__}", where=verb)
        for name in ("nonce", "spec", *(["checkpoint_id"] if verb in ("commit", "reject") else [])):
            if name not in body:
                raise OptionError(f"there is no {name}", where=verb, remedy="Reload the page")
        if not _NONCE.fullmatch(body["nonce"]):
            raise OptionError("the nonce is not 8 to 64 letters, digits and dashes", where=verb)
        arguments = {name: value for name, value in body.items() if name not in ("nonce", "spec")}
        if verb == "reject" and arguments.setdefault("then", FOLLOW_UPS[0]) not in FOLLOW_UPS:
            raise OptionError(
                f"then={arguments['then']!r} is unknown", where=verb, remedy=f"Use {', '.join(FOLLOW_UPS)}"
            )
        if len(arguments.get("reason", "")) > MAX_REASON_CHARACTERS:
            raise OptionError(f"the reason is longer than {MAX_REASON_CHARACTERS} characters", where=verb)
        if arguments.get("on_committed_after", ON_COMMITTED_AFTER[0]) not in ON_COMMITTED_AFTER:
            known = ", ".join(ON_COMMITTED_AFTER)
            raise OptionError("on_committed_after is unknown", where=verb, remedy=f"Use {known}")
        return cls(verb, body["nonce"], body["spec"], arguments, by)

    @property
    def command_id(self) -> str:
        """The same for the same press of the same user."""
        return stable_id("ui", self.verb, self.by, self.nonce)


def perform_action(client: JobClient, root: JobRoot, look: JobState, it: PageAction) -> dict[str, Any]:
    """Do it. Gives `{"command_id"}` of what the driver will answer, or `{"done"}`: what has been done already.

    Raises:
        CommandRefusedError: the job has ended, or is not what the user saw.
        JobExistsError, SnapshotError, EnvironmentProblemError: why it cannot be restored.
        StoreError: the job root cannot be written.
    """
    if it.verb == "restore":
        return _restore(client, root, look, it)
    if it.spec != look.view.spec_number and client.command(it.command_id) is None:
        raise CommandRefusedError(
            f"the job has been submitted anew meanwhile: submission {look.view.spec_number}",
            where=f"job {client.job_id}",
            remedy="Look at it as it is now, then press again",
        )
    if it.verb == "cancel" and look.is_silent and not client.is_alive():
        with suppress(CommandRefusedError):  # silent, but its process is there: it is asked
            client.cancel_dead(it.by)
            return {"done": "The driver was dead: the job is cancelled without it."}
    client.send(it.verb, it.arguments, command_id=it.command_id, spec=it.spec, issued_by=it.by)
    return {"command_id": it.command_id}


def _restore(client: JobClient, root: JobRoot, look: JobState, it: PageAction) -> dict[str, Any]:
    """A submission that continues the one before, with its code, options and owner DAG; then its driver."""
    refuse_foreign_code(client, root)
    spec = next((spec for spec in look.specs if spec.submission_id == it.command_id), None)
    if spec is None:
        spec = _submit(client, root, look, it)
    ensure_driver(client, spec, root)
    chosen = it.arguments.get("checkpoint_id")
    from_ = "the latest recovery point" if chosen is None else f"snapshot {chosen}"
    starts = "an agent is to start its driver" if root.launcher == AGENT else "its driver is starting"
    return {"done": f"Submission {spec.number} restores {from_}; {starts}."}


def _submit(client: JobClient, root: JobRoot, look: JobState, it: PageAction) -> Spec:
    where = f"job {client.job_id}"
    if it.spec != look.view.spec_number:
        raise CommandRefusedError("the job has been submitted anew meanwhile", where=where, remedy="Look at it again")
    chosen = it.arguments.get("checkpoint_id")
    known = look.view.checkpoint(chosen) if chosen is not None else None
    if chosen is not None and (known is None or known.status != "completed"):
        raise SnapshotError(f"there is no completed snapshot {chosen}", where=where)
    refuse_without_launcher(client, root, look.specs)
    flags = {name: value for name, value in it.arguments.items() if name != "checkpoint_id"}
    return client.submit(
        submission_id=it.command_id,
        restore=RestoreFrom(
            kind="latest" if known is None else "savepoint" if "savepoint" in known.kind else "checkpoint",
            path=None if known is None else known.path,
            **flags,
        ),
        owner_dag=look.spec.owner_dag,
        submitted_by=it.by,
    )
