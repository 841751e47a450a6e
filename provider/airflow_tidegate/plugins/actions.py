"""Actions of the buttons: a command to the job's driver, or a new submission that restores a snapshot."""

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
"""Verb of the page -> the right that it needs."""

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
"""Most characters of a reason for a rejection."""


@dataclass(frozen=True, slots=True)
class PageAction:
    """One press of a button.

    Attributes:
        verb: a key of `RIGHTS`.
        nonce: created by the page for each press: a second click or a repeated request has the same nonce.
        spec: the submission that the user saw.
        arguments: by verb; checked.
        by: the user.
    """

    verb: str
    nonce: str
    spec: int
    arguments: Mapping[str, Any]
    by: str

    @classmethod
    def of(cls, verb: str, body: Mapping[str, Any], by: str) -> PageAction:
        """Create from the page's request. Raises OptionError that names an invalid value."""
        allowed = {"nonce": str, "spec": int, **_ARGUMENTS[verb]}
        for name, value in body.items():
            if name not in allowed:
                raise OptionError(
                    f"action {verb} has no argument {name!r}", where=verb, remedy=f"Send only {', '.join(allowed)}"
                )
            if type(value) is not allowed[name]:
                raise OptionError(
                    f"{name} must be of type {allowed[name].__name__}, but is {value!r}",
                    where=verb,
                    remedy="Reload the page",
                )
        for name in ("nonce", "spec", *(["checkpoint_id"] if verb in ("commit", "reject") else [])):
            if name not in body:
                raise OptionError(f"argument {name} is missing in the request", where=verb, remedy="Reload the page")
        if not _NONCE.fullmatch(body["nonce"]):
            raise OptionError(
                "the nonce must be 8 to 64 letters, digits and dashes", where=verb, remedy="Reload the page"
            )
        arguments = {name: value for name, value in body.items() if name not in ("nonce", "spec")}
        if verb == "reject" and arguments.setdefault("then", FOLLOW_UPS[0]) not in FOLLOW_UPS:
            raise OptionError(
                f"then={arguments['then']!r} is unknown", where=verb, remedy=f"Use {', '.join(FOLLOW_UPS)}"
            )
        if len(arguments.get("reason", "")) > MAX_REASON_CHARACTERS:
            raise OptionError(
                f"the reason is longer than {MAX_REASON_CHARACTERS} characters", where=verb, remedy="Shorten the reason"
            )
        if arguments.get("on_committed_after", ON_COMMITTED_AFTER[0]) not in ON_COMMITTED_AFTER:
            known = ", ".join(ON_COMMITTED_AFTER)
            raise OptionError(
                f"on_committed_after={arguments['on_committed_after']!r} is unknown",
                where=verb,
                remedy=f"Use {known}",
            )
        return cls(verb, body["nonce"], body["spec"], arguments, by)

    @property
    def command_id(self) -> str:
        """Return the command id: the same for the same press of the same user."""
        return stable_id("ui", self.verb, self.by, self.nonce)


def perform_action(client: JobClient, root: JobRoot, job_state: JobState, it: PageAction) -> dict[str, Any]:
    """Perform the action. Returns `{"command_id"}` of the command to the driver, or `{"done"}` with a completed action.

    Raises:
        CommandRefusedError: the job has ended, or has changed since the user saw it.
        JobExistsError, SnapshotError, EnvironmentProblemError: it cannot be restored.
        StoreError: the job root cannot be written.
    """
    if it.verb == "restore":
        return _restore(client, root, job_state, it)
    if it.spec != job_state.view.spec_number and client.command(it.command_id) is None:
        raise CommandRefusedError(
            f"after the page was loaded, the job was submitted again as submission {job_state.view.spec_number}",
            where=f"job {client.job_id}",
            remedy="Check the new submission on the page, then press the button again",
        )
    if it.verb == "cancel" and job_state.is_silent and not client.is_alive():
        with suppress(CommandRefusedError):  # the driver is silent, but its process exists: send it the command
            client.cancel_dead(it.by)
            return {"done": "The driver was dead: the job was cancelled without it."}
    client.send(it.verb, it.arguments, command_id=it.command_id, spec=it.spec, issued_by=it.by)
    return {"command_id": it.command_id}


def _restore(client: JobClient, root: JobRoot, job_state: JobState, it: PageAction) -> dict[str, Any]:
    """Submit a continuation of the last submission, with its code, options and owner DAG; then start its driver."""
    refuse_foreign_code(client, root)
    spec = next((spec for spec in job_state.specs if spec.submission_id == it.command_id), None)
    if spec is None:
        spec = _submit(client, root, job_state, it)
    ensure_driver(client, spec, root)
    chosen = it.arguments.get("checkpoint_id")
    from_ = "the latest recovery point" if chosen is None else f"snapshot {chosen}"
    starts = "an agent will start its driver" if root.launcher == AGENT else "its driver is starting"
    return {"done": f"Submission {spec.number} restores {from_}; {starts}."}


def _submit(client: JobClient, root: JobRoot, job_state: JobState, it: PageAction) -> Spec:
    where = f"job {client.job_id}"
    if it.spec != job_state.view.spec_number:
        raise CommandRefusedError(
            f"after the page was loaded, the job was submitted again as submission {job_state.view.spec_number}",
            where=where,
            remedy="Check the new submission on the page, then press the button again",
        )
    chosen = it.arguments.get("checkpoint_id")
    known = job_state.view.checkpoint(chosen) if chosen is not None else None
    if chosen is not None and (known is None or known.status != "completed"):
        raise SnapshotError(
            f"the job has no completed snapshot {chosen}", where=where, remedy="Choose a snapshot that the page lists"
        )
    refuse_without_launcher(client, root, job_state.specs)
    flags = {name: value for name, value in it.arguments.items() if name != "checkpoint_id"}
    return client.submit(
        submission_id=it.command_id,
        restore=RestoreFrom(
            kind="latest" if known is None else "savepoint" if "savepoint" in known.kind else "checkpoint",
            path=None if known is None else known.path,
            **flags,
        ),
        owner_dag=job_state.spec.owner_dag,
        submitted_by=it.by,
    )
