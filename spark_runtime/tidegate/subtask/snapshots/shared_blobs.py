"""What a slot knows of the blobs that completed checkpoints have, so that they are not written again (S5.2). Pure.

Only a checkpoint that has completed is relied on: files of an aborted one may be deleted at any time. And only the
newest of them: those of older ones go with their checkpoints. That is safe because the driver tells of a completion
before it triggers the next snapshot: what this slot writes for a snapshot uses no file that was given up before that
snapshot was triggered.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tidegate.snapshot.blobs import BlobFile

Place: TypeAlias = tuple[str, int]
"""(uid, index) of an operator subtask."""


class SharedBlobs:
    """Files of blobs by operator subtask. `wrote` may be called from any thread, the rest from the slot's loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._completed: Mapping[Place, Sequence[BlobFile]] = {}
        self._newest = 0
        self._restored: Mapping[Place, frozenset[str]] = {}
        self._pending: dict[int, dict[Place, Sequence[BlobFile]]] = {}

    def restored(self, files: Mapping[Place, Sequence[BlobFile]]) -> None:
        """What the restored snapshot has, as if it were the newest completed. Of inline files the ids alone: they keep
        them when they are written again."""
        self._completed = {place: [file for file in of_place if file.shared] for place, of_place in files.items()}
        self._restored = {
            place: frozenset(blob.id for file in of_place for blob in file.blobs) for place, of_place in files.items()
        }

    def restored_ids(self, place: Place) -> frozenset[str]:
        """Ids of blobs that the back end was given at the restore; handed in again, they are the same blobs."""
        return self._restored.get(place, frozenset())

    def files(self, place: Place) -> Sequence[BlobFile]:
        """Of the newest completed checkpoint."""
        return self._completed.get(place, ())

    def on_written(self, checkpoint_id: int, place: Place, files: Sequence[BlobFile]) -> None:
        """Checkpoint `checkpoint_id` uses these, if it completes. Inline ones are written again with the next: they
        would add up."""
        with self._lock:
            self._pending.setdefault(checkpoint_id, {})[place] = [file for file in files if file.shared]

    def completed(self, checkpoint_id: int) -> None:
        """It is complete; older ones are given up. May come twice."""
        with self._lock:
            if checkpoint_id > self._newest:
                self._newest = checkpoint_id
                self._completed = self._pending.get(checkpoint_id, {})
                self._pending = {n: files for n, files in self._pending.items() if n > checkpoint_id}

    def aborted(self, checkpoint_id: int) -> None:
        """It never completes."""
        with self._lock:
            self._pending.pop(checkpoint_id, None)
