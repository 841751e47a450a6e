"""Deletes the folders of checkpoints that are no longer needed, late and off the driver's loop (S2.3)."""

from __future__ import annotations

import threading
import time
from collections import deque

from tidegate.contract.errors import TidegateError
from tidegate.contract.store import Store

ZOMBIE_LIFE_S = 30.0
"""How long a cancelled Python worker may go on writing, seconds (3-10 s seen)."""


class Retiring:
    """Folders wait for `grace_s` before they go, so that no zombie of an aborted attempt writes into what is gone."""

    def __init__(self, store: Store, grace_s: float = 0.0) -> None:
        self._store = store
        self.grace_s = grace_s
        self._waiting: deque[tuple[float, str]] = deque()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, name="retiring", daemon=True)
        self._thread.start()

    def add(self, _checkpoint_id: int, path: str) -> None:
        """Delete folder `path`, below the root, when its grace is over."""
        self._waiting.append((time.monotonic() + self.grace_s, path))

    def close(self, *, all_now: bool = False) -> None:
        """Stop; with `all_now` (no run and no zombie is left) delete what waits."""
        self._over.set()
        self._thread.join(10.0)
        if all_now:
            while self._waiting:
                self._delete(self._waiting.popleft()[1])

    def _work(self) -> None:
        while not self._over.wait(1.0):
            while self._waiting and self._waiting[0][0] <= time.monotonic():
                self._delete(self._waiting.popleft()[1])

    def _delete(self, path: str) -> None:
        try:
            self._store.delete_folder(path)
        except TidegateError as error:
            print(f"tidegate: {path} could not be deleted: {error}", flush=True)
