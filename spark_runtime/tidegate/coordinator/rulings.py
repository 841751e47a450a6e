"""What becomes of a command that approves or rejects a checkpoint, judged from the decision log (S7.8). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tidegate.contract.verdicts import Verdicts
from tidegate.coordinator.events import Answer, Ruling


@dataclass(frozen=True, slots=True)
class Decide:
    """Append the decision, then give the answer."""

    checkpoint_id: int
    answer: Answer


Outcome: TypeAlias = Decide | Answer
"""An Answer alone: nothing is to be decided."""


def judge_ruling(ruling: Ruling, verdicts: Verdicts) -> Outcome:
    """What to do. The same word on the same checkpoint again is answered as the first one was."""
    if not verdicts.gated:
        text = "this job commits by itself: its option commit is not 'on_request'"
        return _refuse(ruling, "no_commit_gate", text)
    known = verdicts.carried_out.get(ruling.request_id)
    wanted = known if known is not None else ruling.checkpoint_id
    if wanted is None and verdicts.waiting and ruling.approves:
        wanted = verdicts.waiting[-1]
    if wanted is None:
        return _refuse(ruling, "nothing_waits", "no checkpoint waits for a verdict")
    if wanted in verdicts.waiting:
        return _on_waiting(ruling, wanted, verdicts)
    view = verdicts.views.get(wanted)
    if wanted in verdicts.rejected and view is not None and view.is_recovery_point:
        if ruling.approves:
            text = f"checkpoint {wanted} was rejected, or came after one that was; its data is never committed"
            return _refuse(ruling, "rejected", text)
        return _done(ruling, "rejected", f"checkpoint {wanted} was rejected before", wanted)
    if wanted in verdicts.line and wanted <= verdicts.approved:
        if ruling.approves:
            return _done(ruling, "approved", f"checkpoint {wanted} was approved before", wanted)
        text = f"checkpoint {wanted} was approved, with all up to {verdicts.approved}: it may be committed already"
        return _refuse(ruling, "approved", text)
    return _refuse(ruling, *_why_not(wanted, verdicts))


def _on_waiting(ruling: Ruling, wanted: int, verdicts: Verdicts) -> Outcome:
    if ruling.approves:
        text = f"checkpoint {wanted} is approved, and with it all in front of it that waited; the sinks commit it"
        return Decide(wanted, Answer(ruling.request_id, True, "approved", text, {"checkpoint_id": wanted}))
    later = [n for n in verdicts.waiting if n > wanted]
    newest = verdicts.views[verdicts.line[-1]]
    if ruling.then == "replay" and newest.kind == "stop-savepoint" and newest.spec == verdicts.spec:
        text = f"the job is stopping with savepoint {newest.checkpoint_id}; reject with then=stop, then restore the job"
        return _refuse(ruling, "job_stops", text)
    data = {"checkpoint_id": wanted, "then": ruling.then, "rejected": [wanted, *later]}
    text = f"checkpoint {wanted} is rejected" + (f", and what came after it: {_listed(later)}" if later else "")
    goes = "the job stops" if ruling.then == "stop" else "the job goes back to what is in front of it"
    return Decide(wanted, Answer(ruling.request_id, True, "rejected", f"{text}; {goes}", data))


def _why_not(wanted: int, verdicts: Verdicts) -> tuple[str, str]:
    """Code and text for one that no verdict can be given on."""
    view = verdicts.views.get(wanted)
    waiting = f"; waiting: {_listed(verdicts.waiting)}" if verdicts.waiting else "; none waits"
    if view is None:
        return "unknown_checkpoint", f"there is no checkpoint {wanted}{waiting}"
    if view.status == "pending":
        return "not_completed", f"checkpoint {wanted} is not complete yet; ask again when it is"
    if view.status == "aborted":
        return "aborted", f"checkpoint {wanted} was aborted; what it held is part of the next one{waiting}"
    if view.kind == "savepoint":
        return "savepoint", f"{wanted} is a savepoint, which commits nothing: approve a checkpoint{waiting}"
    return "abandoned", f"checkpoint {wanted} is no part of what this submission goes on from{waiting}"


def _refuse(ruling: Ruling, code: str, text: str) -> Answer:
    return Answer(ruling.request_id, False, code, text)


def _done(ruling: Ruling, code: str, text: str, checkpoint_id: int) -> Answer:
    return Answer(ruling.request_id, True, code, text, {"checkpoint_id": checkpoint_id})


def _listed(ids: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, ids))
