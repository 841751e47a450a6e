"""Conditions that an Airflow task can wait for, as serialisable objects.

Operators, sensors and triggers share them. A `Wait` is pure data with one method, `check`, on the job's derived view
and the store. `watch.py` calls it repeatedly, in a worker or in the triggerer, and detects a dead driver.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from tidegate.clock import parse_iso
from tidegate.errors import CommandRefusedError, OptionError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.client.waiter import ended_error
from tidegate.jobs.records import CommandResult
from tidegate.jobs.status import CheckpointView, JobStatus, JobView, SourceView
from tidegate.jobs.stop_outcomes import NEXT_OF_REFUSED, STOP_OUTCOMES

Payload = dict[str, Any]
"""Result of a wait, JSON-able."""
NEXT_ACTIONS = {
    **{code: outcome.next_action for code, outcome in STOP_OUTCOMES.items() if not outcome.stopped},
    **NEXT_OF_REFUSED,
    "superseded": "Retry the task, to send the command to the job's current submission",
    "expired": "No driver read the command in time. Check that the job's driver runs, then retry the task",
    "job_failed": "Restore the job from its latest snapshot",
    "job_ended": "The job has ended, and accepts no commands. Check how it ended; to run it again, restore it",
}
"""Code of a negative answer -> what to do next (S7.7, S9.4)."""

ENDED_WELL = frozenset({JobStatus.FINISHED, JobStatus.FINISHED_COMMIT_PENDING, JobStatus.STOPPED})


@dataclass(frozen=True, kw_only=True)
class Wait(ABC):
    """A condition about a job."""

    kind: ClassVar[str]
    """Name of the wait in serialised form; each kind has its own trigger class."""
    what: ClassVar[str]
    """Description of the condition, for messages."""
    needs_driver: ClassVar[bool] = True
    """A dead driver ends the wait with an error, because only a driver can make the condition true."""

    @abstractmethod
    def check(self, client: JobClient, view: JobView) -> Payload | None:
        """Return the result, or None: not yet. May read the store.

        Args:
            client: the job's client.
            view: read just before.

        Raises:
            TidegateError: the condition can no longer become true.
        """

    def raise_if_over(self, view: JobView) -> None:
        """Raise the error that says why the job has ended, with its root cause; return if it has not ended."""
        if view.is_terminal:
            raise ended_error(view, view.spec_number, self.what)

    def fields(self) -> dict[str, Any]:
        """Return JSON-able keyword arguments that create the same wait again."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}


@dataclass(frozen=True, kw_only=True)
class StatusWait(Wait):
    """Wait until submission `spec` has one of `statuses`.

    Attributes:
        spec: number of the submission.
        statuses: job statuses that end the wait.
        after_generation: reports of drivers up to this generation are ignored: they belong to an earlier try.
        owner: the waiting task, if it owns the submission (`on_owner_lost`): `owner.json` is renewed during the wait;
            "": it does not.
    """

    kind: ClassVar[str] = "status"
    what: ClassVar[str] = "the requested status of the job"
    spec: int
    statuses: tuple[str, ...]
    after_generation: int = 0
    owner: str = ""

    def check(self, client: JobClient, view: JobView) -> Payload | None:
        """Return the job's summary once its status is one of `statuses`."""
        if view.spec_number > self.spec:
            raise ended_error(view, self.spec, self.what)
        if view.spec_number < self.spec or (self.after_generation and view.generation <= self.after_generation):
            return None
        if view.status.value in self.statuses:
            return result_summary(view)
        self.raise_if_over(view)
        return None


@dataclass(frozen=True, kw_only=True)
class JobStatusWait(Wait):
    """Wait until the job has one of `statuses`; fail if the job ends with another status.

    A start that was refused before anything ran does not change the status of the job (`JobView.settled`).
    """

    kind: ClassVar[str] = "job_status"
    what: ClassVar[str] = "the requested status of the job"
    statuses: tuple[str, ...]

    def check(self, client: JobClient, view: JobView) -> Payload | None:
        """Return the job's summary once its status is one of `statuses`."""
        if view.settled.status.value in self.statuses:
            return result_summary(view.settled)
        self.raise_if_over(view)
        return None


@dataclass(frozen=True, kw_only=True)
class CommandWait(Wait):
    """Wait until command `command_id` is answered; a refusal is an error."""

    kind: ClassVar[str] = "command"
    what: ClassVar[str] = "the driver's answer to the command"
    command_id: str

    def check(self, client: JobClient, view: JobView) -> Payload | None:
        """Return the answer's data with `answered_at`."""
        result = client.result(self.command_id)
        if result is None:
            return self._without_answer(view)
        if not result.ok:
            raise refusal_error(view, result)
        return {**result.data, "answered_at": result.at}

    def _without_answer(self, view: JobView) -> Payload | None:
        self.raise_if_over(view)
        return None


@dataclass(frozen=True, kw_only=True)
class StopWait(CommandWait):
    """Wait until the job has stopped; a job that ended by itself meanwhile counts as stopped (S7.5, S7.7)."""

    kind: ClassVar[str] = "stop"
    what: ClassVar[str] = "the end of the job after the stop command"

    def check(self, client: JobClient, view: JobView) -> Payload | None:
        """Return the answer's data.

        A driver answers `job_ended` if its job ends by itself, possibly just before the log records the end.
        """
        result = client.result(self.command_id)
        if result is None or result.code != "job_ended":
            return super().check(client, view)
        if view.settled.status in ENDED_WELL:
            return stop_result_of_ended_job(view.settled)
        command = client.command(self.command_id)
        is_ending = not view.is_terminal and command is not None and command.spec == view.spec_number
        return None if is_ending else super().check(client, view)

    def _without_answer(self, view: JobView) -> Payload | None:
        if view.settled.status not in ENDED_WELL:
            self.raise_if_over(view)
            return None
        return stop_result_of_ended_job(view.settled)


@dataclass(frozen=True, kw_only=True)
class CancelWait(CommandWait):
    """Wait until the job is cancelled, or has ended otherwise."""

    kind: ClassVar[str] = "cancel"
    what: ClassVar[str] = "the end of the job after the cancel command"

    def check(self, client: JobClient, view: JobView) -> Payload | None:
        """Return the job's summary once it has ended."""
        if view.is_terminal:
            return result_summary(view.settled)
        result = client.result(self.command_id)
        if result is not None and not result.ok:
            raise refusal_error(view, result)
        return None


@dataclass(frozen=True, kw_only=True)
class CheckpointWait(Wait):
    """Wait until a completed snapshot exists.

    Attributes:
        checkpoint_id: this one; if it is aborted, the wait fails.
        newer_than: any with a greater id.
        count: this many, of the current submission.
        triggered_after: ISO 8601; any that was triggered later, by the driver's clock, so that it contains earlier
            input.
    """

    kind: ClassVar[str] = "checkpoint"
    what: ClassVar[str] = "a completed checkpoint"
    checkpoint_id: int | None = None
    newer_than: int | None = None
    count: int | None = None
    triggered_after: str | None = None

    def check(self, client: JobClient, view: JobView) -> Payload | None:
        """Return the newest completed snapshot that fits."""
        completed: Sequence[CheckpointView] = view.completed
        if self.checkpoint_id is not None:
            refuse_aborted(view, self.checkpoint_id)
            completed = [c for c in completed if c.checkpoint_id == self.checkpoint_id]
        if self.newer_than is not None:
            completed = [c for c in completed if c.checkpoint_id > self.newer_than]
        if self.triggered_after is not None:
            after = parse_iso(self.triggered_after)
            completed = [c for c in completed if parse_iso(c.triggered_at) > after]
        if self.count is not None:
            completed = [c for c in completed if c.spec == view.spec_number]
        if len(completed) >= (self.count or 1):
            return {**checkpoint_facts(completed[-1]), "count": len(completed)}
        self.raise_if_over(view)
        return None


@dataclass(frozen=True, kw_only=True)
class StagedWait(Wait):
    """Wait until a checkpoint waits for a verdict of the commit gate (S7.8). With neither attribute: any checkpoint.

    Attributes:
        checkpoint_id: this one; also found if it was approved since. If it is aborted or rejected, the wait fails.
        newer_than: any that waits with a greater id.
    """

    kind: ClassVar[str] = "staged"
    what: ClassVar[str] = "a checkpoint that waits for approval or rejection"
    checkpoint_id: int | None = None
    newer_than: int | None = None

    def check(self, client: JobClient, view: JobView) -> Payload | None:
        """Return the newest staged checkpoint that fits; a job that has ended may still have some."""
        self._refuse_ungated(client, view)
        if self.checkpoint_id is not None:
            refuse_aborted(view, self.checkpoint_id)
        for checkpoint in reversed(view.completed):
            if self._is_wanted(checkpoint):
                self._refuse_settled(view, checkpoint)
                return {
                    **checkpoint_facts(checkpoint),
                    "verdict": checkpoint.verdict,
                    "waiting": list(view.waiting),
                }
        self.raise_if_over(view)
        return None

    def _is_wanted(self, checkpoint: CheckpointView) -> bool:
        if self.checkpoint_id is not None:
            return checkpoint.checkpoint_id == self.checkpoint_id
        return checkpoint.verdict == "waiting" and checkpoint.checkpoint_id > (self.newer_than or 0)

    def _refuse_settled(self, view: JobView, checkpoint: CheckpointView) -> None:
        """Fail for a checkpoint that was rejected or never waits: savepoints, and snapshots abandoned by a later
        restore."""
        if checkpoint.verdict in ("waiting", "approved"):
            return
        what = "was rejected" if checkpoint.verdict == "rejected" else f"({checkpoint.kind}) never waits for approval"
        raise CommandRefusedError(
            f"checkpoint {checkpoint.checkpoint_id} {what}",
            where=f"job {view.job_id}",
            remedy="Wait for a newer checkpoint: set newer_than= to this id",
        )

    def _refuse_ungated(self, client: JobClient, view: JobView) -> None:
        if client.spec(view.spec_number).options.get("commit") != "on_request":
            raise OptionError(
                "the job commits its output without approval, so no checkpoint ever waits for approval",
                where=f"job {view.job_id}",
                remedy='Remove the task, or submit the job with the option commit="on_request"',
            )


@dataclass(frozen=True, kw_only=True)
class CommitWait(CommandWait):
    """Wait until every sink has committed the checkpoint that a `commit` command approved (S7.8)."""

    kind: ClassVar[str] = "commit"
    what: ClassVar[str] = "the commit of the checkpoint"

    def check(self, client: JobClient, view: JobView) -> Payload | None:
        """Return the answer's data once the checkpoint is committed; with `committed` False if the job ended before."""
        found = super().check(client, view)
        if found is None:
            return None
        committed = found["checkpoint_id"] not in view.uncommitted
        return {**found, "committed": committed} if committed or view.is_terminal else None


@dataclass(frozen=True, kw_only=True)
class EndOfDataWait(Wait):
    """Wait until sources have ended.

    Attributes:
        sources: uids of sources of which every subtask must have ended; both attributes empty: all sources of the job.
        played_all: uids of replaying sources that must have played all their rows; they stay open after that.
    """

    kind: ClassVar[str] = "end_of_data"
    what: ClassVar[str] = "the end of data"
    sources: tuple[str, ...] = ()
    played_all: tuple[str, ...] = ()

    def check(self, client: JobClient, view: JobView) -> Payload | None:
        """Return the sources' facts once all have ended."""
        refuse_unknown_sources(view, (*self.sources, *self.played_all))
        found = self.found(view)
        if found is None:
            self.raise_if_over(view)
        return found

    def found(self, view: JobView) -> Payload | None:
        """Return the sources' facts once all have ended; None: not yet, or never."""
        known = {s.uid: s for s in view.sources}
        ended = {uid for uid, s in known.items() if s.end_of_data}
        played = {uid for uid, s in known.items() if s.played_all or s.end_of_data}
        needed = set(self.sources) or (set() if self.played_all else set(known))
        view = view.settled
        finished = view.status in (JobStatus.FINISHED, JobStatus.FINISHED_COMMIT_PENDING)
        if finished or (known and needed <= ended and set(self.played_all) <= played):
            return {
                "job_id": view.job_id,
                "status": view.status.value,
                "sources": {uid: _source_facts(s) for uid, s in known.items()},
            }
        return None


def refuse_unknown_sources(view: JobView, uids: Sequence[str]) -> None:
    """Raise OptionError for a uid that the running job does not have: the wait would never end."""
    known = {source.uid for source in view.sources}
    # The first hints of a generation have no sources yet. Then only those are known that ended before.
    hinted = any(source.boundedness != "unknown" for source in view.sources)
    if view.status is not JobStatus.RUNNING or not hinted or view.hint_generation != view.generation:
        return
    for uid in uids:
        if uid not in known:
            near = difflib.get_close_matches(uid, known, 1)
            raise OptionError(
                f"the job has no source {uid!r}",
                where=f"job {view.job_id}",
                cause=f"the sources of the job are {', '.join(sorted(known))}",
                remedy=f"Did you mean {near[0]!r}" if near else "Name one of these sources",
            )


def refuse_aborted(view: JobView, checkpoint_id: int) -> None:
    """Raise CommandRefusedError if the checkpoint was aborted: it will never complete."""
    checkpoint = view.checkpoint(checkpoint_id)
    if checkpoint is not None and checkpoint.status == "aborted":
        raise CommandRefusedError(
            f"checkpoint {checkpoint_id} was aborted",
            where=f"job {view.job_id}",
            cause=checkpoint.reason or "the decision log has no reason",
            remedy="Wait for a newer checkpoint with newer_than=, or trigger a checkpoint",
        )


def _source_facts(source: SourceView) -> Payload:
    return {"records": source.records, "end_of_data": source.end_of_data, "played_all": source.played_all}


def stop_result_of_ended_job(view: JobView) -> Payload:
    """Return the result of a stop if the job has already ended: the outcome of the stop that ended it, or
    "finished"."""
    return {"outcome": "finished", "mode": None, "path": None, "checkpoint_id": None, **(view.stop or {})}


def refusal_error(view: JobView, result: CommandResult) -> CommandRefusedError:
    """Return a negative answer as an error, with the next action if the answer's code has one."""
    return CommandRefusedError(
        result.message or "the job's driver refused the command",
        where=f"job {view.job_id}, status {view.status.value}",
        cause=f"the code of the answer is {result.code}",
        remedy=NEXT_ACTIONS.get(str(result.data.get("outcome", result.code)), ""),
    )


def result_summary(view: JobView) -> Payload:
    """Return a summary of a job."""
    return {
        "job_id": view.job_id,
        "spec": view.spec_number,
        "generation": view.generation,
        "status": view.status.value,
    }


def checkpoint_facts(checkpoint: CheckpointView) -> Payload:
    """Return a completed snapshot, JSON-able."""
    return {
        "checkpoint_id": checkpoint.checkpoint_id,
        "kind": checkpoint.kind,
        "path": checkpoint.path,
        "duration_ms": checkpoint.duration_ms,
        "completed_at": checkpoint.completed_at,
    }
