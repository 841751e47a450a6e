"""Answers to commands that request snapshots (S1.2, S7.5)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidegate.channel.elements import StopMode
from tidegate.coordinator import events as ev
from tidegate.coordinator.events import Action, SnapshotRequest
from tidegate.jobs.stop_outcomes import CLAIM_FAILED, COMMITS_PENDING, COMMITTED, SAVEPOINT_FAILED


def answer_to(
    request: SnapshotRequest, ok: bool, code: str, message: str, data: dict[str, object] | None = None
) -> list[Action]:
    """Return the answer, if a command waits for one.

    If a stop was refused before the trigger of its savepoint, the answer is that its savepoint failed, whatever the
    cause: no data has ended (S7.7).
    """
    if request.request_id is None:
        return []
    if request.kind == "stop-savepoint" and code in (CLAIM_FAILED, "too_many_requests"):
        data = {"outcome": SAVEPOINT_FAILED, "mode": request.stop, "reason": message, **(data or {})}
        code, message = SAVEPOINT_FAILED, f"{message}; the job continues"
    return [ev.CommandAnswer(request.request_id, ok, code, message, data or {})]


def stop_result(
    request_id: str, mode: StopMode, checkpoint_id: int, path: str, uncommitted: Sequence[int] = ()
) -> ev.CommandAnswer:
    """Return the answer to a stop after the whole job has ended (S7.5).

    `uncommitted`: checkpoints that a commit gate did not let commit (S7.8).
    """
    if uncommitted:
        data = {"outcome": COMMITS_PENDING, "mode": mode, "checkpoint_id": checkpoint_id, "path": path}
        text = f"the job stopped ({mode}) with savepoint {path}; {uncommitted_text(uncommitted)}"
        return ev.CommandAnswer(request_id, True, COMMITS_PENDING, text, {**data, "uncommitted": list(uncommitted)})
    data = {"outcome": COMMITTED, "mode": mode, "checkpoint_id": checkpoint_id, "path": path}
    return ev.CommandAnswer(request_id, True, COMMITTED, f"the job stopped ({mode}) with savepoint {path}", data)


def uncommitted_text(uncommitted: Sequence[int]) -> str:
    """Return the text about uncommitted checkpoints of a job that ended with a commit gate."""
    ids = ", ".join(map(str, uncommitted))
    return f"output not committed, because it waits for approval or was approved too late: checkpoints {ids}"


def job_ended(pending: Iterable[SnapshotRequest], waiting: Iterable[SnapshotRequest]) -> list[Action]:
    """Return the answers to snapshot requests after every subtask has finished.

    `waiting`: requests not triggered yet.
    """
    actions: list[Action] = []
    for request in pending:
        actions += answer_to(request, False, "job_ended", "the job ended before the snapshot completed")
    for request in waiting:
        actions += answer_to(request, False, "job_ended", "the job ended before the snapshot was triggered")
    return actions


def split_carried_over(requests: Iterable[SnapshotRequest], reason: str) -> tuple[list[Action], list[SnapshotRequest]]:
    """Return the answers at the end of a run, and the user requests that the next run repeats (S7.7)."""
    actions: list[Action] = []
    keep: list[SnapshotRequest] = []
    for request in requests:
        if request.kind == "stop-savepoint":
            text = f"the stop failed; its savepoint committed nothing, and the job restarts: {reason}"
            data: dict[str, object] = {"outcome": SAVEPOINT_FAILED, "mode": request.stop, "reason": reason}
            actions += answer_to(request, False, SAVEPOINT_FAILED, text, data)
        elif request.request_id is not None:
            keep.append(request)
    return actions, keep
