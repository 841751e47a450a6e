"""Decide, from the decision log, about commands that approve or reject a checkpoint (S7.8). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tidegate.coordinator.events import CommandAnswer, Verdict
from tidegate.coordinator.topology import Topology
from tidegate.jobs.history.verdicts import Verdicts, WithheldRange
from tidegate.jobs.records import Decision


@dataclass(frozen=True, slots=True)
class AppendVerdict:
    """Append the verdict, then send the answer. `withheld`: checkpoints without which the job continues."""

    checkpoint_id: int
    answer: CommandAnswer
    withheld: WithheldRange | None = None


Outcome: TypeAlias = AppendVerdict | CommandAnswer
"""A CommandAnswer alone means: append nothing."""


def decide_verdict(
    ruling: Verdict, verdicts: Verdicts, *, cannot_quarantine: Sequence[str] = (), closing: bool = False
) -> Outcome:
    """Return what to do with a verdict. A repeated verdict on the same checkpoint receives the same answer.

    Args:
        cannot_quarantine: uids of two-phase-commit sinks that cannot move staged output to quarantine.
        closing: the newest snapshot of the line ends the job, so that subtasks may have finished.
    """
    if not verdicts.gated:
        text = "this job commits without approval, because its option commit is not 'on_request'"
        return _refuse(ruling, "no_commit_gate", text)
    # A command may be repeated after a crash. "The newest that waits" must then mean the checkpoint of the first time.
    known = verdicts.carried_out.get(ruling.request_id)
    wanted = known if known is not None else ruling.checkpoint_id
    if wanted is None and verdicts.waiting and ruling.approves:
        wanted = verdicts.waiting[-1]
    if wanted is None:
        return _refuse(ruling, "nothing_waits", "no checkpoint waits for approval or rejection")
    if wanted in verdicts.waiting and ruling.then == "quarantine" and not ruling.approves:
        return _quarantine_verdict(ruling, wanted, verdicts, cannot_quarantine, closing)
    if wanted in verdicts.waiting:
        return _on_waiting(ruling, wanted, verdicts)
    view = verdicts.views.get(wanted)
    if wanted in verdicts.rejected.union(verdicts.quarantined) and view is not None and view.is_recovery_point:
        if ruling.approves:
            text = f"checkpoint {wanted} was rejected, or was taken after a rejected one; its output is never committed"
            return _refuse(ruling, "rejected", text)
        return _done(ruling, "rejected", f"checkpoint {wanted} was rejected before", wanted)
    if wanted in verdicts.line and wanted <= verdicts.approved:
        if ruling.approves:
            return _done(ruling, "approved", f"checkpoint {wanted} was approved before", wanted)
        text = f"checkpoint {wanted} was approved, as were all up to {verdicts.approved}; it may be committed already"
        return _refuse(ruling, "approved", text)
    return _refuse(ruling, *_refusal_reason(wanted, verdicts))


def _on_waiting(ruling: Verdict, wanted: int, verdicts: Verdicts) -> Outcome:
    if ruling.approves:
        text = (
            f"checkpoint {wanted} is approved, with all earlier checkpoints that waited; the sinks commit their output"
        )
        return AppendVerdict(
            wanted, CommandAnswer(ruling.request_id, True, "approved", text, {"checkpoint_id": wanted})
        )
    later = [n for n in verdicts.waiting if n > wanted]
    newest = verdicts.views[verdicts.line[-1]]
    if ruling.then == "replay" and newest.kind == "stop-savepoint" and newest.spec == verdicts.spec:
        text = (
            f"the job is stopping with savepoint {newest.checkpoint_id}. Reject the checkpoint with then=stop, then "
            "restore the job"
        )
        return _refuse(ruling, "job_stops", text)
    data = {"checkpoint_id": wanted, "then": ruling.then, "rejected": [wanted, *later]}
    text = f"checkpoint {wanted} is rejected" + (f", with all later checkpoints: {_id_list(later)}" if later else "")
    goes = "the job stops" if ruling.then == "stop" else f"the job is restored from the checkpoint before {wanted}"
    return AppendVerdict(wanted, CommandAnswer(ruling.request_id, True, "rejected", f"{text}; {goes}", data))


def _quarantine_verdict(
    ruling: Verdict, wanted: int, verdicts: Verdicts, cannot: Sequence[str], closing: bool
) -> Outcome:
    if cannot:
        text = (
            f"sink {', '.join(map(repr, cannot))} cannot move its staged output to quarantine/. "
            "Reject with then=stop or then=replay"
        )
        return _refuse(ruling, "cannot_quarantine", text)
    if closing:
        text = f"the job is ending. When it has ended, run `tidegate commit-pending --quarantine {wanted}` to reject it"
        return _refuse(ruling, "job_ends", text)
    rejected = tuple(n for n in verdicts.waiting if n >= wanted)
    after = max((n for n in verdicts.line if n < wanted), default=verdicts.begins_after)
    goes = "the sinks move its staged output to quarantine/, and the job continues"
    text = f"checkpoint {_id_list(rejected)} is rejected; {goes}"
    data = {"checkpoint_id": wanted, "then": ruling.then, "rejected": list(rejected)}
    answer = CommandAnswer(ruling.request_id, True, "rejected", text, data)
    return AppendVerdict(wanted, answer, WithheldRange(after, rejected, ruling.by, ruling.reason))


def _refusal_reason(wanted: int, verdicts: Verdicts) -> tuple[str, str]:
    """Return code and text of the refusal of a verdict on checkpoint `wanted`."""
    view = verdicts.views.get(wanted)
    waiting = (
        f"; waiting for approval or rejection: {_id_list(verdicts.waiting)}"
        if verdicts.waiting
        else "; no checkpoint waits"
    )
    if view is None:
        return "unknown_checkpoint", f"there is no checkpoint {wanted}{waiting}"
    if view.status == "pending":
        return "not_completed", f"checkpoint {wanted} is not complete yet. Repeat the request when it is complete"
    if view.status == "aborted":
        return "aborted", f"checkpoint {wanted} was aborted; its output is part of the next checkpoint{waiting}"
    if view.kind == "savepoint":
        return "savepoint", f"snapshot {wanted} is a savepoint, which commits nothing. Name a checkpoint{waiting}"
    return "abandoned", f"checkpoint {wanted} is not among the snapshots that this submission continues{waiting}"


def ends_lineage(verdicts: Verdicts, decisions: Sequence[Decision], topology: Topology) -> bool:
    """Return whether the newest snapshot of the submission's line ends the submission.

    It does if it is the submission's own stop-savepoint or final checkpoint, or if every operator had finished in it.
    In the latter case it may be the previous submission's snapshot, and no subtask runs again.
    """
    newest = verdicts.views[verdicts.line[-1]] if verdicts.line else None
    if newest is None:
        return False
    of = (d for d in decisions if d.kind == "complete" and d.data["checkpoint_id"] == newest.checkpoint_id)
    finished = set(next(of).data.get("finished_operators") or ())
    everything = {uid for chain in topology.chains for uid in chain.operators}
    own = newest.spec == verdicts.spec
    return (own and newest.kind in ("stop-savepoint", "final")) or everything <= finished


def _refuse(ruling: Verdict, code: str, text: str) -> CommandAnswer:
    return CommandAnswer(ruling.request_id, False, code, text)


def _done(ruling: Verdict, code: str, text: str, checkpoint_id: int) -> CommandAnswer:
    return CommandAnswer(ruling.request_id, True, code, text, {"checkpoint_id": checkpoint_id})


def _id_list(ids: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, ids))
