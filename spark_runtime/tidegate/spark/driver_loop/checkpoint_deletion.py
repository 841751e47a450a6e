"""Deletion of folders of checkpoints that are no longer needed, late and on a thread of its own (S2.3)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tidegate.errors import FencedError, TidegateError, UnclearAnswerError
from tidegate.jobs.stores.store import Store

logger = logging.getLogger("tidegate.spark")

CANCELLED_WORKER_GRACE_S = 30.0
"""Time, in seconds, that a cancelled Python worker may continue to write (3-10 s seen)."""
POLL_S = 1.0
"""Interval, in seconds, of checks for due folders."""
RETRY_S = 30.0
"""Time, in seconds, until the deletion of a folder is retried after the store has failed."""
MAX_RETRIED = 1_000
"""Most folders whose deletion is retried after the store has refused it.

Beyond it, the oldest are left to the next driver and to `tidegate gc`, so that a store that never deletes does not cost
unlimited memory.
"""


@dataclass(frozen=True)
class _PendingDeletion:
    """A folder to delete.

    `counts`: this driver retired it, and the store has not refused to delete it. `refused`: the store has refused.
    """

    due_s: float
    path: str
    counts: bool
    refused: bool = False


class CheckpointDeletion:
    """Deletes folders after `grace_s` seconds, so that no zombie of an aborted attempt writes into a deleted folder.

    Only the current generation deletes: `check` is called before every folder. If it raises, because a newer generation
    runs the job, the next driver finds the remaining folders (`DriverJob.garbage`). The same applies to folders that
    are not due when the driver ends. `spared` returns the snapshots from which a newer submission starts; `delete`
    deletes a folder (`DriverJob.delete_snapshot`).
    """

    def __init__(
        self,
        store: Store,
        check: Callable[[], None],
        grace_s: float = 0.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create without a running thread.

        Args:
            check: raises FencedError or UnclearAnswerError if the generation is over (`GenerationLog.check`).
            grace_s: time from `add` to deletion, seconds.
            now_s: the clock.
        """
        self._check = check
        self._now_s = now_s
        self.grace_s = grace_s
        self.spared: Callable[[], Collection[str]] = frozenset
        self.delete: Callable[[str], None] = lambda path: store.delete_folder(path)
        self._waiting: list[_PendingDeletion] = []
        self._in_hand: list[_PendingDeletion] = []
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="retiring", daemon=True)

    def start(self) -> None:
        """Begin to delete due folders, on a thread of its own."""
        self._thread.start()

    def add(self, _checkpoint_id: int, path: str, *, at_once: bool = False, inherited: bool = False) -> None:
        """Delete the snapshot at `path` after the grace period.

        `at_once`: no writer has to be awaited. `inherited`: an earlier driver left it, so it does not count in
        `overdue`.
        """
        due_s = self._now_s() + (0.0 if at_once else self.grace_s)
        with self._lock:
            self._waiting.append(_PendingDeletion(due_s, path, not inherited))

    @property
    def overdue(self) -> int:
        """Return the number of folders retired by this driver whose grace period is over and that are not deleted yet.

        From any thread. Folders that the store has refused to delete do not count: waiting for them would not help.
        """
        now_s = self._now_s()
        with self._lock:
            return sum(entry.counts for entry in self._in_hand) + sum(
                entry.counts for entry in self._waiting if entry.due_s <= now_s
            )

    def close(self) -> None:
        """Stop deleting."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def delete_due(self) -> None:
        """Delete due folders, except snapshots from which a newer submission starts.

        Never raises a TidegateError: a failed deletion is retried after `RETRY_S`.
        """
        now_s = self._now_s()
        with self._lock:
            self._in_hand = [entry for entry in self._waiting if entry.due_s <= now_s]
            self._waiting = [entry for entry in self._waiting if entry.due_s > now_s]
        while self._in_hand:
            path = self._in_hand[0].path
            if self._over.is_set():
                return
            try:
                self._check()
                if path not in self.spared():  # called for each folder, because deletions take long
                    self.delete(path)
            except (FencedError, UnclearAnswerError):
                self._over.set()
            except TidegateError as error:
                logger.warning(
                    "the checkpoint folder %s was not deleted; next attempt in %g s: %s", path, RETRY_S, error
                )
                self._try_again(path)
            with self._lock:
                del self._in_hand[0]

    def _try_again(self, path: str) -> None:
        with self._lock:
            self._waiting.append(_PendingDeletion(self._now_s() + RETRY_S, path, counts=False, refused=True))
            refused = [entry for entry in self._waiting if entry.refused]
            if len(refused) > MAX_RETRIED:
                self._waiting.remove(refused[0])

    def _work(self) -> None:
        while not self._over.wait(POLL_S):
            self.delete_due()
