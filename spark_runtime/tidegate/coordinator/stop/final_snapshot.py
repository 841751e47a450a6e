"""Decide when to request the final snapshot, with which every ended subtask finishes (S1.2, S7.3). Pure."""

from __future__ import annotations

FINAL_RETRY_MS = 1_000
"""Wait before a failed final snapshot is requested again; doubles with every further failure."""
MAX_FINAL_RETRY_MS = 30_000
"""Longest wait."""


class FinalSnapshot:
    """The schedule of final snapshots. One serves all subtasks; a failed one is requested again with growing waits.

    Attributes:
        needed: False: with no interval and nothing to commit, the job ends without a final snapshot.
        due_ms: time of the next request; None: no request is due.
        done: a snapshot that started after all data had ended has completed, or subtasks were notified that none is
            coming.
    """

    def __init__(self, *, needed: bool) -> None:
        self.needed = needed
        self.due_ms: int | None = None
        self.done = False
        self._failures = 0

    def request(self, now_ms: int) -> None:
        """Schedule the snapshot for now, because no subtask reads any more."""
        self.due_ms = now_ms

    def failed(self, now_ms: int) -> None:
        """Schedule the next attempt after a failure."""
        # The shift is limited so that the number stays small. `MAX_FINAL_RETRY_MS` is reached long before 16 failures.
        self.due_ms = now_ms + min(MAX_FINAL_RETRY_MS, FINAL_RETRY_MS << min(self._failures, 16))
        self._failures += 1

    def take_due(self, now_ms: int) -> bool:
        """Return True once when the request is due."""
        if self.due_ms is None or now_ms < self.due_ms:
            return False
        self.due_ms = None
        return True
