"""Claims: of the subtasks of one run, one at a time calls the `commit` of a data source for a batch.

    .../staging/<job>/<lineage>/<uid>/0/g<generation>--<run>--0--<batch>.claim.staged

A claim belongs to a run, because the claims of dead runs must stop nobody. Its name is a staged file's, so that
whatever removes leftovers of a run also removes its claims. If the subtask that holds a claim dies, its run ends
(S9.1).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tidegate.connectors.files.sink.sink_layout import StagedName
from tidegate.connectors.pyspark.staging_place import StagingPlace
from tidegate.connectors.storage import is_local
from tidegate.connectors.transactions import SinkContext, file_name_token
from tidegate.errors import AlreadyExistsError, NotFoundError, OutageError

CLAIM_SUFFIX = ".claim"
FIRST_WAIT_S = 0.02
LONGEST_WAIT_S = 1.0
"""Wait of a subtask for the subtask that commits, seconds: doubled each time. A commit takes as long as the class
takes, so the wait has no other end than the end of the run."""


class CommitClaims:
    """Claims of one sink in one run. From any thread; may block."""

    def __init__(self, place: StagingPlace, ctx: SinkContext) -> None:
        self._store = place.store()
        self._filesystem, self._layout = place.opened(ctx)
        self._ctx = ctx
        self._closing = threading.Event()

    @contextmanager
    def turn(self, batch: int, is_done: Callable[[], bool]) -> Iterator[bool]:
        """Wait for the turn to commit a batch. Yields False if another subtask has committed it.

        Args:
            is_done: returns whether the batch is committed.

        Raises:
            OutageError: the run ends.
        """
        path = self._path(batch)
        wait_s = FIRST_WAIT_S
        while not is_done():
            if self._claimed(path):
                break
            if self._run_ends_within(wait_s):
                raise OutageError(
                    f"batch {batch} was not committed before the run ended",
                    where=f"job {self._ctx.job_id}, sink {self._ctx.uid!r}, subtask {self._ctx.subtask}",
                    cause="another subtask commits the batch",
                    remedy="Do nothing: the next start repeats the commit",
                )
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)
        else:
            yield False
            return
        try:
            # Again: the holder before may have committed between the look and the claim.
            yield not is_done()
        finally:
            # Also after an error: another subtask may try, and the run ends with the error in any case.
            self._release(path)

    def close(self) -> None:
        """End all waits."""
        self._closing.set()

    def _run_ends_within(self, wait_s: float) -> bool:
        return self._closing.wait(wait_s)

    def _claimed(self, path: str) -> bool:
        try:
            self._store.create(path, json.dumps({"subtask": self._ctx.subtask}).encode())
        except AlreadyExistsError:
            # An own claim is left if its removal failed. The writer commits one batch at a time.
            try:
                return bool(json.loads(self._store.read(path))["subtask"] == self._ctx.subtask)
            except NotFoundError:
                return False
        return True

    def _release(self, path: str) -> None:
        if not is_local(self._filesystem):
            self._store.delete(path)
            return
        # Not by the store, which also removes folders that become empty: another subtask may be about to use one.
        with suppress(FileNotFoundError):
            self._filesystem.rm_file(f"{self._layout.root}/{path}")

    def _path(self, batch: int) -> str:
        run = file_name_token(self._ctx.run_id)
        name = StagedName(self._ctx.generation, run, 0, batch, CLAIM_SUFFIX)
        return self._layout.staged(str(name), 0)[len(self._layout.root) + 1 :]
