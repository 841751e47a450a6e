"""Answers to the commands that asked for snapshots (S1.2, S7.5)."""

from __future__ import annotations

from tidegate.channel.elements import StopMode
from tidegate.coordinator import events as ev
from tidegate.coordinator.events import Action, Request


def answer_to(
    request: Request, ok: bool, code: str, message: str, data: dict[str, object] | None = None
) -> list[Action]:
    """The answer, when somebody waits for one."""
    if request.request_id is None:
        return []
    return [ev.Answer(request.request_id, ok, code, message, data or {})]


def stop_answer(request_id: str, mode: StopMode, checkpoint_id: int, path: str) -> ev.Answer:
    """The answer to a stop once the whole job has ended (S7.5)."""
    data = {"outcome": "committed", "mode": mode, "checkpoint_id": checkpoint_id, "path": path}
    return ev.Answer(request_id, True, "committed", f"the job stopped ({mode}) with savepoint {path}", data)
