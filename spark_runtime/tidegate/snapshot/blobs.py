"""Storage of the blobs of a state: in files that hold several blobs, and that several checkpoints may use (S5.2).

A blob is written once. Small blobs share a file, so that many subtasks do not create too many objects. For each file, a
snapshot records the blobs that it uses, and where in the file each begins. Files of checkpoints are in the job's
`shared` folder, files of a savepoint in its own folder.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tidegate.errors import SnapshotError
from tidegate.snapshot.parts import Blob

PACK_BYTES = 64 * 2**20
"""Target size of a file of blobs, bytes. A file that has reached it receives no more blobs. Files are written side by
side: smaller ones would cost twice the processor time, because their threads displace each other's data from its
cache. Small enough that a writer thread can hold one in memory, which stores of objects need."""
ASSUMED_BLOB_BYTES = 1 * 2**20
"""Size of a blob that does not report its size, bytes."""
SMALL_FILE_BYTES = 4 * 2**20
"""A file counts as small if a snapshot uses fewer bytes of it than this."""
MAX_SMALL_FILES = 16
"""Most small files of one operator subtask that a snapshot uses. Beyond it, their blobs are written again, together."""
MIN_LIVE_SHARE = 0.5
"""Least share of a file's bytes in use.

Below it, the blobs in use are written again, so that the file can be deleted.
"""
_CRC32 = "crc32:"

Pieces: TypeAlias = Sequence[Any]
"""Buffers of bytes in order."""


@dataclass(frozen=True)
class StoredBlob:
    """One blob in its file. `id`: the blob's id. `checksum`: checksum of its bytes, as `matches` takes it."""

    id: str
    offset: int
    size_bytes: int
    checksum: str


@dataclass(frozen=True)
class BlobFile:
    """A file of blobs, as one state handle uses it. Exactly one of `name` and `inline` is set.

    Attributes:
        name: name of the file, in the snapshot's folder or, if `shared`, in the folder that the job's checkpoints
            share.
        inline: the file's bytes, if they are few.
        size_bytes: size of the whole file.
        blobs: blobs that the handle uses, by offset. The file may hold others.
    """

    name: str | None
    inline: bytes | None
    shared: bool
    size_bytes: int
    blobs: tuple[StoredBlob, ...]

    def __post_init__(self) -> None:
        assert (self.name is None) != (self.inline is None), "a file of blobs has either a name or its bytes"

    @property
    def used_bytes(self) -> int:
        """Total size of the blobs in use."""
        return sum(blob.size_bytes for blob in self.blobs)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, as part of a state handle."""
        document: dict[str, Any] = {"size_bytes": self.size_bytes}
        if self.inline is not None:
            document["inline"] = base64.b64encode(self.inline).decode("ascii")
        else:
            document["name"] = self.name
        if self.shared:
            document["shared"] = True
        document["blobs"] = [[blob.id, blob.offset, blob.size_bytes, blob.checksum] for blob in self.blobs]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> BlobFile:
        """Inverse of `to_json`. Raises SnapshotError for anything else."""
        try:
            blobs = tuple(StoredBlob(str(i), int(at), int(size), str(sum_)) for i, at, size, sum_ in document["blobs"])
            inline = document.get("inline")
            data = None if inline is None else base64.b64decode(inline, validate=True)
            shared, size_bytes = bool(document.get("shared", False)), int(document["size_bytes"])
            name = None if document.get("name") is None else checked_name(document["name"])
        except (KeyError, TypeError, ValueError, AttributeError, binascii.Error) as error:
            where = str(document)[:200]
            raise SnapshotError(
                "the metadata of the snapshot has a damaged entry for a state file",
                where=where,
                cause=repr(error),
                remedy="Restore another snapshot",
            ) from error
        if (name is None) == (data is None):
            raise SnapshotError(
                "the metadata of the snapshot has a damaged entry: it needs the name of a state file, or its content",
                where=str(document)[:200],
                remedy="Restore another snapshot",
            )
        return cls(name, data, shared, size_bytes, blobs)


def checked_name(name: str) -> str:
    """Return `name` if it is a relative path of plain segments, else raise SnapshotError."""
    segments = name.split("/") if isinstance(name, str) else [""]
    if any(segment in ("", ".", "..") or "\\" in segment or ":" in segment for segment in segments):
        raise SnapshotError(
            f"the state file {name!r} is outside the folder of its snapshot",
            cause="the metadata was changed after the snapshot was written",
            remedy="Restore another snapshot",
        )
    return name


def plan_blob_files(blobs: Iterable[Blob]) -> list[list[Blob]]:
    """Distribute blobs to files, by their reported sizes and in order.

    Creates as few files as possible, all of about the same size, because a snapshot waits for the largest one.
    """
    all_blobs = list(blobs)
    total = sum(map(_reported_bytes, all_blobs))
    target = total / max(1, -(-total // PACK_BYTES))
    found: list[list[Blob]] = []
    room = 0.0
    for blob in all_blobs:
        if room <= 0:
            found.append([])
            room = target
        found[-1].append(blob)
        room -= _reported_bytes(blob)
    return found


def _reported_bytes(blob: Blob) -> int:
    return blob.size_bytes or ASSUMED_BLOB_BYTES


class PackedBlobs:
    """A file of blobs (id, bytes in pieces), in pieces. Iterate once: each blob is read when its pieces are needed.

    Attributes:
        stored: place of each blob in the file, as far as it has been read.
    """

    def __init__(self, blobs: Iterable[tuple[str, Pieces]]) -> None:
        self.stored: list[StoredBlob] = []
        self._blobs = blobs

    def __iter__(self) -> Iterator[Any]:
        offset = 0
        for blob_id, of_blob in self._blobs:
            size_bytes = sum(len(piece) for piece in of_blob)
            self.stored.append(StoredBlob(blob_id, offset, size_bytes, checksum(of_blob)))
            yield from of_blob
            offset += size_bytes


def checksum(pieces: Pieces) -> str:
    """Return a checksum of the bytes: "crc32:" and eight hexadecimal digits."""
    crc32 = 0
    for piece in pieces:
        crc32 = zlib.crc32(piece, crc32)
    return f"{_CRC32}{crc32:08x}"


def matches(data: bytes, expected: str) -> bool:
    """Return whether bytes have a checksum: a result of `checksum`, or a SHA-256 in hexadecimal digits.

    Streams use SHA-256. Blobs used it before version 3 of the metadata.
    """
    if expected.startswith(_CRC32):
        return checksum((data,)) == expected
    return hashlib.sha256(data).hexdigest() == expected


def reused_files(files: Sequence[BlobFile], wanted: Collection[str]) -> tuple[BlobFile, ...]:
    """Return the files of a completed checkpoint that the next one uses again, with only the `wanted` blobs.

    Left out are files that are mostly unused, and small files if there are many. Their blobs are written again.
    """
    kept: list[BlobFile] = []
    for file in files:
        used = replace(file, blobs=tuple(blob for blob in file.blobs if blob.id in wanted))
        if used.blobs and used.used_bytes >= MIN_LIVE_SHARE * used.size_bytes:
            kept.append(used)
    small = [file for file in kept if file.used_bytes < SMALL_FILE_BYTES]
    return tuple(kept if len(small) <= MAX_SMALL_FILES else [f for f in kept if f.used_bytes >= SMALL_FILE_BYTES])
