"""The asynchronous phase of a snapshot: write frozen states as streams and files of blobs (S3.6, S5.2, S5.4).

It has two rounds on the writer threads. First, each operator's state is created and its stream written, in parallel.
Then the blobs that no completed checkpoint contains are written, each file of blobs separately and in parallel.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial

from tidegate.errors import StoreError
from tidegate.jobs.options import SnapshotCompression
from tidegate.snapshot.blobs import BlobFile, Pieces, plan_blob_files, reused_files
from tidegate.snapshot.handles import OpenLocation, SnapshotStreams, StateHandle
from tidegate.snapshot.local_copies import LocalCopies
from tidegate.snapshot.parts import AsyncSnapshot, Blob, StatePart
from tidegate.snapshot.streams import encode_parts
from tidegate.subtask.snapshots.shared_blobs import SharedBlobs
from tidegate.subtask.snapshots.writer_threads import run_concurrently


@dataclass(frozen=True)
class SnapshotPlace:
    """The destination of one snapshot.

    Attributes:
        checkpoint_id: id of the snapshot.
        location: location of its folder.
        self_contained: it is a savepoint: it uses no file outside its folder, and no other snapshot uses its files.
    """

    checkpoint_id: int
    location: str
    self_contained: bool


@dataclass(frozen=True)
class WrittenSnapshot:
    """The durable part of a subtask in a snapshot.

    Attributes:
        handles: handles by operator uid.
        metrics: `async_ms`, `bytes` of all state and `persisted_bytes` written for this snapshot (S2.5).
    """

    handles: Mapping[str, StateHandle]
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class _UnwrittenState:
    """An operator's state whose stream is written. `unwritten`: packs of blobs that are still to be written."""

    uid: str
    handle: StateHandle
    unwritten: Sequence[Sequence[Blob]]


class SnapshotWriter:
    """Writes the frozen states of a slot's subtasks.

    The caller must report completed and aborted checkpoints to `blobs`.
    """

    def __init__(
        self,
        run_id: str,
        generation: int,
        open_location: OpenLocation,
        threshold_bytes: int,
        writers: Executor,
        copies: LocalCopies | None = None,
        compression: SnapshotCompression = "none",
    ) -> None:
        """Create a writer.

        Args:
            threshold_bytes: the option `state_size_threshold`.
            copies: local copies of state, with `local_recovery` (S5.4).
            compression: compression of blobs of rows, the option `snapshot_compression`.
        """
        self._run_id = run_id
        self._generation = generation
        self._open_location = open_location
        self._threshold_bytes = threshold_bytes
        self._writers = writers
        self._copies = copies
        self._compression = compression
        self.blobs = SharedBlobs()

    def write(
        self,
        index: int,
        place: SnapshotPlace,
        parts: Sequence[tuple[str, AsyncSnapshot]],
        written: Callable[[WrittenSnapshot], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Write the operators' states of subtask `index`. Does not block.

        Args:
            parts: (operator uid, its state).
            written: called once, on a writer thread, when everything is durable.
            failed: called instead with the first error.
        """
        started = time.monotonic()

        def made(drafts: Sequence[_UnwrittenState]) -> None:
            works = [partial(self._pack, index, place, draft.uid, pack) for draft in drafts for pack in draft.unwritten]
            if works:
                run_concurrently(self._writers, works, partial(packed, drafts), failed)
            else:
                packed(drafts, ())

        def packed(drafts: Sequence[_UnwrittenState], new: Sequence[BlobFile]) -> None:
            # `new` is in the order of `works`, so that each draft takes as many files as it has packs.
            rest = iter(new)
            handles: dict[str, StateHandle] = {}
            for draft in drafts:
                files = (*draft.handle.files, *(next(rest) for _ in draft.unwritten))
                handles[draft.uid] = replace(draft.handle, files=files)
                # Before the acknowledgement in `written`: the driver may report the completion immediately after it.
                if files and not place.self_contained:
                    self.blobs.on_written(place.checkpoint_id, (draft.uid, index), files)
                if self._copies is not None and not place.self_contained:
                    names = (handles[draft.uid].path, *(file.name for file in files))
                    self._copies.on_written(place.checkpoint_id, {name for name in names if name is not None})
            persisted = sum(h.size_bytes for h in handles.values()) + sum(file.size_bytes for file in new)
            metrics = {
                "async_ms": (time.monotonic() - started) * 1000,
                "bytes": float(sum(handle.full_bytes for handle in handles.values())),
                "persisted_bytes": float(persisted),
            }
            written(WrittenSnapshot(handles, metrics))

        works = []
        for uid, snapshot in parts:
            completed = () if place.self_contained else self.blobs.files((uid, index))
            works.append(partial(self._make, index, place, uid, snapshot, completed))
        run_concurrently(self._writers, works, made, failed)

    def completed(self, checkpoint_id: int) -> None:
        """Record that a checkpoint has completed. Call it from the slot's loop; does not block."""
        self.blobs.completed(checkpoint_id)
        if self._copies is not None:
            self._writers.submit(self._copies.completed, checkpoint_id)

    def _make(
        self, index: int, place: SnapshotPlace, uid: str, snapshot: AsyncSnapshot, completed: Sequence[BlobFile]
    ) -> _UnwrittenState:
        parts = [self._named(part, uid, index) for part in snapshot()]
        handle = self._folder(place).store(
            self._name(uid, index, "state"), encode_parts(parts), tuple(sorted({part.kind for part in parts}))
        )
        blobs = {blob.id: blob for part in parts for blob in part.blobs}
        used = reused_files(completed, blobs.keys())
        there = {blob.id for file in used for blob in file.blobs}
        staged = tuple(data for part in parts for data in part.staged)
        unwritten = plan_blob_files(blob for blob in blobs.values() if blob.id not in there)
        formats = tuple(sorted({part.format for part in parts if part.format != "rows"}))
        until_ms = min((part.readable_until_ms for part in parts if part.readable_until_ms is not None), default=None)
        handle = replace(handle, staged=staged, files=used, formats=formats, readable_until_ms=until_ms)
        return _UnwrittenState(uid, handle, unwritten)

    def _pack(self, index: int, place: SnapshotPlace, uid: str, pack: Sequence[Blob]) -> BlobFile:
        unread: list[OSError] = []

        def read() -> Iterator[tuple[str, Pieces]]:
            for blob in pack:
                try:
                    pieces = blob.pieces(self._compression)
                except OSError as error:
                    unread.append(error)
                    raise
                yield blob.id, pieces

        name = self._name(uid, index, "blobs")
        try:
            return self._folder(place).store_blobs(name, read(), shared=not place.self_contained)
        except StoreError as error:
            # Blobs are read while the store writes: it takes an error of the state's own disk for one of its disk.
            raise (unread[0] if unread else error) from None

    def _named(self, part: StatePart, uid: str, index: int) -> StatePart:
        """Return the part with blob ids that are unique over runs and subtasks. Restored blobs keep their ids."""
        if not part.blobs:
            return part
        restored, prefix = self.blobs.restored_ids((uid, index)), f"{index}-{self._run_id}-"
        ids = (blob.id if blob.id in restored else prefix + blob.id for blob in part.blobs)
        return replace(part, blobs=tuple(replace(blob, id=i) for blob, i in zip(part.blobs, ids, strict=True)))

    def _folder(self, place: SnapshotPlace) -> SnapshotStreams:
        copies = None if place.self_contained else self._copies
        return SnapshotStreams.at(place.location, self._open_location, self._threshold_bytes, copies)

    def _name(self, uid: str, index: int, suffix: str) -> str:
        """Return a new file name that no other attempt has used."""
        nonce = secrets.token_hex(4)
        return f"{_safe_file_name(uid)}-{index}-g{self._generation}-{self._run_id}-{nonce}.{suffix}"


def _safe_file_name(uid: str) -> str:
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in uid)
