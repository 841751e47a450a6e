"""Deletes the folders of checkpoints that are no longer needed, late and off the driver's loop (S2.3)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from tidegate.errors import FencedError, TidegateError, UnclearAnswerError
from tidegate.jobs.stores.store import Store

CANCELLED_WORKER_GRACE_S = 30.0
"""How long a cancelled Python worker may go on writing, seconds (3-10 s seen)."""
POLL_S = 1.0
"""How often it is looked whether something is due, seconds."""
RETRY_S = 30.0
"""After which time a folder is tried again that the store did not delete, seconds."""
MAX_RETRIED = 1_000
"""Folders that the store refused to delete and that are tried again; of more the oldest are left to the next driver and
to `tidegate gc`, so that a store that never deletes costs no memory without limit."""


@dataclass(frozen=True)
class _PendingDeletion:
    """A folder to delete. `counts`: it was retired under this driver, and the store has not refused it. `refused`: the
    store has."""

    due_s: float
    path: str
    counts: bool
    refused: bool = False


class CheckpointDeletion:
    """Folders wait for `grace_s` before they go, so that no zombie of an aborted attempt writes into what is gone.

    Only the current generation deletes: `check` is asked before every folder, and what is left when it says that the
    reign is over is for the next driver to find (`Job.garbage`). So is what has not come to its time when the driver
    ends. `spared` says what a newer submission starts from; `delete` does it (`Job.delete_snapshot`).
    """

    def __init__(
        self,
        store: Store,
        check: Callable[[], None],
        grace_s: float = 0.0,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: check: raises FencedError or UnclearAnswerError when the reign is over (`Reign.check`). grace_s: from
        `add` to deletion, seconds. now_s: the clock."""
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
        """Begin deleting what is due, on a thread of its own."""
        self._thread.start()

    def add(self, _checkpoint_id: int, path: str, *, at_once: bool = False, inherited: bool = False) -> None:
        """Delete the snapshot at `path` when its grace is over. `at_once`: there is nobody to wait for. `inherited`: an
        earlier driver left it, so that it says nothing about how fast the store deletes."""
        due_s = self._now_s() + (0.0 if at_once else self.grace_s)
        with self._lock:
            self._waiting.append(_PendingDeletion(due_s, path, not inherited))

    @property
    def overdue(self) -> int:
        """Folders retired under this driver whose grace is over and that the store has not come to delete. From any
        thread. One that the store has refused is not among them: waiting for it would help nobody."""
        now_s = self._now_s()
        with self._lock:
            return sum(entry.counts for entry in self._in_hand) + sum(
                entry.counts for entry in self._waiting if entry.due_s <= now_s
            )

    def close(self) -> None:
        """Stop."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def delete_due(self) -> None:
        """Delete what is due now, but for what a newer submission starts from. Never raises a TidegateError: what could
        not be deleted is tried again after `RETRY_S`."""
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
                if path not in self.spared():  # asked anew: deleting takes long
                    self.delete(path)
            except (FencedError, UnclearAnswerError):
                self._over.set()
            except TidegateError as error:
                print(f"tidegate: {path} could not be deleted now: {error}", flush=True)
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
