"""When the snapshot that lets every ended subtask finish is asked for (S1.2, S7.3). Pure."""

from __future__ import annotations

FINAL_RETRY_MS = 1_000
"""Back-off before a final snapshot that failed is asked for again; doubles with every further failure."""
MAX_FINAL_RETRY_MS = 30_000
"""Longest back-off."""


class FinalSnapshot:
    """One final snapshot serves all subtasks; a failed one is asked for again, later every time.

    Attributes:
        needed: False: with no interval and nothing to commit, the job ends without one.
        due_ms: when to ask; None: nothing to ask for now.
        done: a snapshot that started after everything had ended has completed, or subtasks were told that none is to
            come.
    """

    def __init__(self, *, needed: bool) -> None:
        self.needed = needed
        self.due_ms: int | None = None
        self.done = False
        self._failures = 0

    def request(self, now_ms: int) -> None:
        """Nothing reads any more: at once."""
        self.due_ms = now_ms

    def failed(self, now_ms: int) -> None:
        """One failed: again after the back-off."""
        self.due_ms = now_ms + min(MAX_FINAL_RETRY_MS, FINAL_RETRY_MS << min(self._failures, 16))
        self._failures += 1

    def take_due(self, now_ms: int) -> bool:
        """True once when it is time to ask."""
        if self.due_ms is None or now_ms < self.due_ms:
            return False
        self.due_ms = None
        return True
