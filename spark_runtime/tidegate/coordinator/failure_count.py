"""How many checkpoints may fail in a row (S2.2). Pure."""

from __future__ import annotations

from tidegate.coordinator import events as ev
from tidegate.coordinator.events import Action, Request


class FailureCount:
    """Counts failed checkpoints. A checkpoint that was triggered after the last failure, and completes, ends the row:
    one from before it proves nothing, and neither does a savepoint, which goes to another place."""

    def __init__(self, tolerable: int) -> None:
        """Args: tolerable: `tolerable_checkpoint_failures`."""
        self._tolerable = tolerable
        self._in_a_row = 0
        self._newest_id = 0
        self._failed_id = 0

    def claimed(self, checkpoint_id: int) -> None:
        """`checkpoint_id` is on its way; ids grow."""
        self._newest_id = checkpoint_id

    def failed(self, checkpoint_id: int | None, reason: str) -> list[Action]:
        """A checkpoint failed; FailRun when it is one too many. `checkpoint_id`: None: before it had an id."""
        self._in_a_row += 1
        self._failed_id = max(self._failed_id, self._newest_id if checkpoint_id is None else checkpoint_id)
        if self._in_a_row <= self._tolerable:
            return []
        limit = f"tolerable_checkpoint_failures={self._tolerable}"
        return [ev.FailRun(f"more than {limit} checkpoints failed in a row: {reason}")]

    def completed(self, checkpoint_id: int, request: Request) -> None:
        """A snapshot completed."""
        if request.kind == "checkpoint" and checkpoint_id > self._failed_id:
            self._in_a_row = 0
