"""Where the blobs of a state lie: in files that hold several of them, and that several checkpoints may use (S5.2).

A blob is written once. Small ones lie together in one file, so that many subtasks do not make very many objects; a
snapshot names for each file the blobs that it uses, and where in the file each begins. A checkpoint's files lie in the
job's `shared` folder, a savepoint's in its own.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tidegate.errors import SnapshotError
from tidegate.snapshot.parts import Blob

PACK_BYTES = 16 * 2**20
"""Target size of a file of blobs, bytes: no further blob joins a file that has so many. Large enough that objects are
few, small enough that a writer thread can hold one in memory."""
ASSUMED_BLOB_BYTES = 1 * 2**20
"""Of a blob that does not tell its size, bytes."""
SMALL_FILE_BYTES = PACK_BYTES // 4
"""Files of which a snapshot uses less than so many bytes are small ones."""
MAX_SMALL_FILES = 16
"""Small files of one operator subtask that a snapshot uses; beyond it their blobs are written anew, together."""
MIN_LIVE_SHARE = 0.5
"""Of a file's bytes, in use; below it what is in use is written anew, so that the rest can go."""
_CRC32 = "crc32:"

Pieces: TypeAlias = Sequence[Any]
"""Buffers of bytes that follow one another."""


@dataclass(frozen=True)
class StoredBlob:
    """One blob in its file. `id`: of the blob. `checksum`: of its bytes, as `matches` knows it."""

    id: str
    offset: int
    size_bytes: int
    checksum: str


@dataclass(frozen=True)
class BlobFile:
    """A file of blobs, as one state handle uses it. Exactly one of `name` and `inline` is set.

    Attributes:
        name: of the file; below the snapshot's folder, or `shared`: in the folder that the job's checkpoints share.
        inline: the file's bytes, when they are few.
        size_bytes: of the whole file.
        blobs: that the handle uses, by offset; the file may hold others.
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
        """Of the blobs in use."""
        return sum(blob.size_bytes for blob in self.blobs)

    def to_json(self) -> dict[str, Any]:
        """JSON form, within a state handle's."""
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
            raise SnapshotError("A file of blobs is not readable", where=where, cause=repr(error)) from error
        if (name is None) == (data is None):
            raise SnapshotError("A file of blobs has neither name nor bytes", where=str(document)[:200])
        return cls(name, data, shared, size_bytes, blobs)


def checked_name(name: str) -> str:
    """`name` when it is a relative path of plain segments; else SnapshotError."""
    segments = name.split("/") if isinstance(name, str) else [""]
    if any(segment in ("", ".", "..") or "\\" in segment or ":" in segment for segment in segments):
        raise SnapshotError(
            f"A state file must lie within its snapshot's folder, {name!r} does not",
            cause="the metadata was changed by hand or by somebody else",
            remedy="Restore another snapshot",
        )
    return name


def plan_blob_files(blobs: Iterable[Blob]) -> list[list[Blob]]:
    """The blobs that go into one file each, by what they tell of their size, in order; as few files as that makes, all
    of about one size, since the largest one is what a snapshot waits for."""
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


def pack_blobs(blobs: Iterable[tuple[str, Pieces]]) -> tuple[Pieces, tuple[StoredBlob, ...]]:
    """A file of these (id, bytes in pieces), in pieces, and where each lies in it."""
    stored: list[StoredBlob] = []
    pieces: list[Any] = []
    offset = 0
    for blob_id, of_blob in blobs:
        size_bytes = sum(len(piece) for piece in of_blob)
        stored.append(StoredBlob(blob_id, offset, size_bytes, checksum(of_blob)))
        pieces += of_blob
        offset += size_bytes
    return pieces, tuple(stored)


def checksum(pieces: Pieces) -> str:
    """What tells damage to the bytes: "crc32:" and eight hexadecimal digits."""
    crc32 = 0
    for piece in pieces:
        crc32 = zlib.crc32(piece, crc32)
    return f"{_CRC32}{crc32:08x}"


def matches(data: bytes, expected: str) -> bool:
    """Whether bytes are those of a checksum: one that `checksum` gave, or a SHA-256 in hexadecimal digits, as blobs had
    it before version 3 of the metadata and streams have it."""
    if expected.startswith(_CRC32):
        return checksum((data,)) == expected
    return hashlib.sha256(data).hexdigest() == expected


def reused_files(files: Sequence[BlobFile], wanted: Collection[str]) -> tuple[BlobFile, ...]:
    """Of the files that a completed checkpoint has, those that the next one uses again, with the `wanted` blobs alone.
    Left out, for their blobs to be written anew: files mostly out of use, and small ones when they are many."""
    kept: list[BlobFile] = []
    for file in files:
        used = replace(file, blobs=tuple(blob for blob in file.blobs if blob.id in wanted))
        if used.blobs and used.used_bytes >= MIN_LIVE_SHARE * used.size_bytes:
            kept.append(used)
    small = [file for file in kept if file.used_bytes < SMALL_FILE_BYTES]
    return tuple(kept if len(small) <= MAX_SMALL_FILES else [f for f in kept if f.used_bytes >= SMALL_FILE_BYTES])
