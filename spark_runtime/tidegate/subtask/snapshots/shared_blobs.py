"""The blobs in completed checkpoints that a slot knows, so that it does not write them again (S5.2). Pure.

Only the newest completed checkpoint is used. Files of an aborted checkpoint may be deleted at any time, and files of
older checkpoints are deleted with their checkpoints. This is safe because the driver reports a completion before it
triggers the next snapshot: a snapshot of this slot never uses a file that was released before the snapshot was
triggered.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tidegate.snapshot.blobs import BlobFile

Place: TypeAlias = tuple[str, int]
"""(uid, index) of an operator subtask."""


class SharedBlobs:
    """Files of blobs by operator subtask.

    `on_written` may be called from any thread, all other methods only from the slot's loop.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._completed: Mapping[Place, Sequence[BlobFile]] = {}
        self._newest = 0
        self._restored: Mapping[Place, frozenset[str]] = {}
        self._pending: dict[int, dict[Place, Sequence[BlobFile]]] = {}

    def restored(self, files: Mapping[Place, Sequence[BlobFile]]) -> None:
        """Register the files of the restored snapshot as if it were the newest completed one.

        For inline files only the blob ids are kept: the blobs keep their ids when they are written again.
        """
        self._completed = {place: [file for file in of_place if file.shared] for place, of_place in files.items()}
        self._restored = {
            place: frozenset(blob.id for file in of_place for blob in file.blobs) for place, of_place in files.items()
        }

    def restored_ids(self, place: Place) -> frozenset[str]:
        """Return the ids of blobs that the backend received at the restore.

        Under these ids, it returns the same blobs.
        """
        return self._restored.get(place, frozenset())

    def files(self, place: Place) -> Sequence[BlobFile]:
        """Return the files of the newest completed checkpoint."""
        return self._completed.get(place, ())

    def on_written(self, checkpoint_id: int, place: Place, files: Sequence[BlobFile]) -> None:
        """Record the files that checkpoint `checkpoint_id` uses if it completes.

        Inline files are left out and written again with the next checkpoint, because they would accumulate.
        """
        with self._lock:
            self._pending.setdefault(checkpoint_id, {})[place] = [file for file in files if file.shared]

    def completed(self, checkpoint_id: int) -> None:
        """Record that the checkpoint is complete, and forget older ones. May be repeated."""
        with self._lock:
            if checkpoint_id > self._newest:
                self._newest = checkpoint_id
                self._completed = self._pending.get(checkpoint_id, {})
                self._pending = {n: files for n, files in self._pending.items() if n > checkpoint_id}

    def aborted(self, checkpoint_id: int) -> None:
        """Forget a checkpoint that will never complete."""
        with self._lock:
            self._pending.pop(checkpoint_id, None)
