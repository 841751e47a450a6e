"""State handles: the location of a state stream, and the checks that it is the stream that was written (S5.4)."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Self

from tidegate.errors import NotFoundError, SnapshotError
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.stores.store import Store
from tidegate.snapshot.blobs import BlobFile, PackedBlobs, Pieces, StoredBlob, checked_name, matches
from tidegate.snapshot.local_copies import LocalCopies
from tidegate.snapshot.parts import StateFormat, StateKind, StatePart
from tidegate.snapshot.streams import decode_parts

OpenLocation = Callable[[str], "tuple[Store, str]"]
"""Maps a snapshot location (folder relative to the root, or URL) to a store and a folder in it."""

DEFAULT_THRESHOLD_BYTES = 20 * 1024
"""Default of `state_size_threshold`: smaller streams are stored in `_metadata` (S5.4)."""


@dataclass(frozen=True)
class StateHandle:
    """One state stream. Exactly one of `path` and `inline` is set.

    Attributes:
        path: path of the file relative to the snapshot's folder, so that the folder can be moved; never outside of it.
        inline: the stream itself.
        size_bytes: size of the stream.
        sha256: checksum of the stream, hexadecimal.
        kinds: kinds of its parts, so that a rescale loads only what it needs (S5.5); None: not recorded.
        files: the blobs of its parts, each blob once.
        formats: formats of its parts that belong to a state backend; all other parts are rows.
        staged: the output that its transactions have staged, as `jobs.client.staged_data.StagedData.to_json()`, so that
            audits need not read the state (S7.8).
        readable_until_ms: time until which a source can continue from the positions in it, milliseconds since the
            epoch; None: no limit is known.
    """

    path: str | None
    inline: bytes | None
    size_bytes: int
    sha256: str
    kinds: tuple[StateKind, ...] | None = None
    staged: tuple[Mapping[str, Any], ...] = ()
    files: tuple[BlobFile, ...] = ()
    formats: tuple[StateFormat, ...] = ()
    readable_until_ms: int | None = None

    def __post_init__(self) -> None:
        assert (self.path is None) != (self.inline is None), "a state handle is either a path or inline"

    @property
    def full_bytes(self) -> int:
        """Size of the stream and of all its blobs, whichever snapshot wrote them."""
        return self.size_bytes + sum(file.used_bytes for file in self.files)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, as in acknowledgements and `_metadata`."""
        document: dict[str, Any] = {"size_bytes": self.size_bytes, "sha256": self.sha256}
        if self.inline is not None:
            document["inline"] = base64.b64encode(self.inline).decode("ascii")
        else:
            document["path"] = self.path
        if self.kinds is not None:
            document["kinds"] = list(self.kinds)
        if self.formats:
            document["formats"] = list(self.formats)
        if self.staged:
            document["staged"] = list(self.staged)
        if self.files:
            document["files"] = [file.to_json() for file in self.files]
        if self.readable_until_ms is not None:
            document["readable_until_ms"] = self.readable_until_ms
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> StateHandle:
        """Inverse of `to_json`. Raises SnapshotError for anything else, also for a path outside the folder."""
        try:
            path, inline = document.get("path"), document.get("inline")
            data = None if inline is None else base64.b64decode(inline, validate=True)
            size_bytes, sha256 = int(document["size_bytes"]), str(document["sha256"])
            kinds = None if document.get("kinds") is None else tuple(document["kinds"])
            staged = tuple(dict(entry) for entry in document.get("staged", ()))
            files = tuple(BlobFile.from_json(file) for file in document.get("files", ()))
            formats = tuple(document.get("formats", ()))
            until = document.get("readable_until_ms")
            until_ms = None if until is None else int(until)
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
            where = str(document)[:200]
            raise SnapshotError(
                "the metadata of the snapshot has a damaged entry for the state of a subtask",
                where=where,
                cause=repr(error),
                remedy="Restore another snapshot",
            ) from error
        if (path is None) == (data is None):
            raise SnapshotError(
                "the metadata of the snapshot must have either the path or the content of a subtask's state",
                where=str(document)[:200],
                remedy="Restore another snapshot",
            )
        return cls(
            None if path is None else checked_name(path),
            data,
            size_bytes,
            sha256,
            kinds,
            staged,
            files,
            formats,
            until_ms,
        )


def relative_location(folder: str, name: str) -> str:
    """Return the path of `name` in `folder` of a store. An empty `folder` is the store's root."""
    return f"{folder.rstrip('/')}/{name}" if folder else name


def full_location(store: Store, folder: str, name: str = "") -> str:
    """Return the path or URL of `name` in `folder`, or of the folder, for readers. `folder` alone may be one word of an
    absolute path: a snapshot outside the root is opened in a store of its parent folder."""
    path = relative_location(folder, name) if name else folder
    return f"{store.url.rstrip('/')}/{path}" if path else store.url


class SnapshotStreams:
    """Writes and reads the state streams of one snapshot folder, as files or inline (S5.4).

    Blocks on the store: call it on snapshot writer threads and in restores, never on the loop. Safe from several
    threads if its store is.
    """

    def __init__(
        self,
        store: Store,
        folder: str,
        threshold_bytes: int = DEFAULT_THRESHOLD_BYTES,
        shared: Callable[[], tuple[Store, str]] | None = None,
        copies: LocalCopies | None = None,
    ) -> None:
        """Create the streams of a folder.

        Args:
            folder: folder of the snapshot, relative to the store's root.
            threshold_bytes: smaller streams are stored inline; 0: none.
            shared: opens the folder of shared files; None: there is none.
            copies: local copies. Every written file is also stored there, and reads try them first (S5.4).
        """
        self._store = store
        self._folder = folder
        self._threshold_bytes = threshold_bytes
        self._shared = shared
        self._copies = copies

    @classmethod
    def at(
        cls,
        location: str,
        open_location: OpenLocation,
        threshold_bytes: int = DEFAULT_THRESHOLD_BYTES,
        copies: LocalCopies | None = None,
    ) -> Self:
        """Return the streams of the snapshot at `location`."""
        store, folder = open_location(location)
        return cls(store, folder, threshold_bytes, partial(open_location, JobLayout.shared_of(location)), copies)

    def store(self, name: str, data: bytes, kinds: tuple[StateKind, ...] | None = None) -> StateHandle:
        """Store a stream durably, create-only.

        Args:
            name: file name in the folder. It must be new: include generation, run and a nonce.
            data: the stream.
            kinds: kinds of the parts in it.

        Raises:
            AlreadyExistsError: a file with this name exists.
            StoreError: the store cannot write.
        """
        sha256 = hashlib.sha256(data).hexdigest()
        if len(data) < self._threshold_bytes:
            return StateHandle(None, bytes(data), len(data), sha256, kinds)
        self._create(self._store, self._folder, name, (data,))
        return StateHandle(name, None, len(data), sha256, kinds)

    def store_blobs(self, name: str, blobs: Iterable[tuple[str, Pieces]], *, shared: bool) -> BlobFile:
        """Store blobs durably in one file, or inline if they are small.

        Args:
            name: as in `store`.
            blobs: (id, bytes in pieces).
            shared: use the folder that all checkpoints of the job share; else the snapshot's own folder.

        Raises:
            AlreadyExistsError: a file with this name exists.
            StoreError: the store cannot write.
        """
        packed = PackedBlobs(blobs)
        pieces = iter(packed)
        first: list[Any] = []
        held_bytes = 0
        while held_bytes < self._threshold_bytes and (piece := next(pieces, None)) is not None:
            first.append(piece)
            held_bytes += len(piece)
        if held_bytes < self._threshold_bytes:
            return BlobFile(None, b"".join(first), False, held_bytes, tuple(packed.stored))
        store, folder = self._folder_of(shared)
        # Each blob is written before the next one is read: its rows are still in the processor's cache, and memory
        # holds only one. A local copy needs all pieces a second time.
        rest = chain(first, pieces)
        self._create(store, folder, name, rest if self._copies is None else tuple(rest))
        return BlobFile(name, None, shared, sum(blob.size_bytes for blob in packed.stored), tuple(packed.stored))

    def parts(self, handle: StateHandle, *, where: str = "") -> list[StatePart]:
        """Return the parts of `handle`, checked. Blobs are loaded and checked when they are read.

        Args:
            where: the place to name in errors.

        Raises:
            SnapshotError: the stream is missing, damaged or of a newer version; names the file. Reading a blob may
                raise it, too.
            StoreError: the store cannot read.
        """
        found = {blob.id: (file, blob) for file in handle.files for blob in file.blobs}

        def read(blob_id: str) -> bytes:
            if blob_id not in found:
                raise SnapshotError(
                    f"the state needs the piece {blob_id}, which the metadata of the snapshot does not list",
                    where=where,
                    remedy="Restore another snapshot",
                )
            return self.load_blob(*found[blob_id])

        return decode_parts(self.load(handle), where=where, read_blob=read)

    def load_blob(self, file: BlobFile, blob: StoredBlob) -> bytes:
        """Return one blob, checked for size and checksum. Raises as `load` does."""
        if file.inline is not None:
            data, where = file.inline[blob.offset : blob.offset + blob.size_bytes], self._inline_location()
        else:
            assert file.name is not None
            if (copy := self._copy(file.name, blob.offset, blob.size_bytes, blob.checksum)) is not None:
                return copy
            where, data = self._read(file.name, shared=file.shared, part=blob)
        return _checked(data, blob.size_bytes, blob.checksum, f"blob {blob.id} in {file.name or '(inline)'}", where)

    def load(self, handle: StateHandle) -> bytes:
        """Return the stream of `handle`, checked for size and checksum.

        Raises:
            SnapshotError: the stream is missing or damaged; names the file.
            StoreError: the store cannot read.
        """
        what = f"state file {handle.path or '(inline)'}"
        if handle.inline is not None:
            return _checked(handle.inline, handle.size_bytes, handle.sha256, what, self._inline_location())
        assert handle.path is not None
        if (copy := self._copy(handle.path, 0, handle.size_bytes, handle.sha256)) is not None:
            return copy
        where, data = self._read(handle.path)
        return _checked(data, handle.size_bytes, handle.sha256, what, where)

    def local_size(self, name: str, *, shared: bool = False) -> int | None:
        """Return the size of a file on this machine's file system, or None if it is missing or the store is remote."""
        store, folder = self._folder_of(shared)
        path = store.local_path(relative_location(folder, checked_name(name)))
        return Path(path).stat().st_size if path is not None and Path(path).is_file() else None

    def _inline_location(self) -> str:
        return f"{full_location(self._store, self._folder, '_metadata')}, inline state"

    def _create(self, store: Store, folder: str, name: str, pieces: Iterable[Any]) -> None:
        """Args: pieces: with local copies, something that can be iterated twice."""
        store.create_from_pieces(relative_location(folder, checked_name(name)), pieces)
        if self._copies is not None:
            self._copies.put(name, pieces)

    def _copy(self, name: str, offset: int, size_bytes: int, checksum: str) -> bytes | None:
        """Return bytes of the local copy if they match the checksum, else None."""
        data = None if self._copies is None else self._copies.read(checked_name(name), offset, size_bytes)
        return data if data is not None and matches(data, checksum) else None

    def _folder_of(self, shared: bool) -> tuple[Store, str]:
        if not shared:
            return self._store, self._folder
        if self._shared is None:
            raise SnapshotError(
                "the checkpoint needs files in the shared folder of its job, but that folder does not exist",
                where=full_location(self._store, self._folder),
                cause="the folder of the checkpoint was copied without the shared folder",
                remedy="Restore a savepoint instead: savepoints can be copied",
            )
        return self._shared()

    def _read(self, name: str, *, shared: bool = False, part: StoredBlob | None = None) -> tuple[str, bytes]:
        """Return the location of a file, for errors, and its bytes, or the bytes of one blob in it."""
        store, folder = self._folder_of(shared)
        path = relative_location(folder, checked_name(name))
        where = full_location(store, folder, name)
        try:
            return where, store.read(path) if part is None else store.read_range(path, part.offset, part.size_bytes)
        except NotFoundError as error:
            raise SnapshotError(
                f"the state file {name} is missing",
                where=where,
                cause="the file was deleted, or the snapshot's folder was copied only in part",
                remedy="Restore another snapshot",
            ) from error


def _checked(data: bytes, size_bytes: int, checksum: str, name: str, where: str) -> bytes:
    if len(data) != size_bytes:
        what = f"has {len(data)} bytes instead of {size_bytes}"
    elif not matches(data, checksum):
        what = "does not match its checksum"
    else:
        return data
    raise SnapshotError(
        f"the {name} is damaged: it {what}",
        where=where,
        cause="the data was changed after it was written",
        remedy="Restore another snapshot",
    )
