"""Deletion vectors: which rows of a data file are deleted.

Source: PROTOCOL.md of delta-io/delta, "Deletion Vector Format"; and the RoaringFormatSpec of the Roaring bitmaps, for
bitmaps of 32-bit numbers.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tidegate.connectors.delta.log.log_files import LogFiles
from tidegate.errors import PipelineError

Rows = npt.NDArray[np.int64]
"""Numbers of rows in a file, from 0, sorted."""

_MAGIC = 1_681_511_377
"""First number of a bitmap array in the portable format, the only one that tables contain."""
_WITH_RUNS, _WITHOUT_RUNS = 12_347, 12_346
_NO_OFFSETS = 4
"""With fewer containers, a bitmap with runs has no offsets."""
_MOST_IN_ARRAY = 4_096
"""Containers with more numbers are bitmaps of 65,536 bits."""
_BITMAP_BYTES = 8_192
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_UUID_CHARACTERS = 20


def vector_path(log: LogFiles, vector: Mapping[str, Any]) -> str | None:
    """Return the path of the file that holds a deletion vector, as the log would name it; None: it is in the log."""
    text = str(vector["pathOrInlineDv"])
    if vector["storageType"] == "i":
        return None
    if vector["storageType"] == "p":
        return text
    folder, encoded = text[:-_UUID_CHARACTERS], text[-_UUID_CHARACTERS:]
    name = f"deletion_vector_{uuid.UUID(bytes=_decoded(encoded))}.bin"
    return f"{folder}/{name}" if folder else name


def deleted_rows(log: LogFiles, vector: Mapping[str, Any]) -> Rows:
    """Return the rows that a deletion vector names. Blocks.

    Args:
        vector: as the log describes it.

    Raises:
        PipelineError: the vector is damaged, or of an unknown format.
        FileNotFoundError: its file is missing.
        OSError: the storage does not answer.
    """
    path = vector_path(log, vector)
    size = int(vector["sizeInBytes"])
    try:
        if path is None:
            content = _decoded(str(vector["pathOrInlineDv"]))[:size]
        else:
            content = _from_file(log, path, int(vector.get("offset") or 0), size)
        rows = parse_bitmap_array(content)
    except (ValueError, struct.error) as e:
        raise _damaged(log, path, str(e)) from e
    if len(rows) != int(vector["cardinality"]):
        raise _damaged(log, path, f"it has {len(rows)} rows, and the log says {vector['cardinality']}")
    return rows


def _from_file(log: LogFiles, path: str, offset: int, size: int) -> bytes:
    filesystem, where = log.locate(path)
    # The length before the bitmap, and the checksum after it, are big-endian; all else is little-endian.
    content: bytes = filesystem.cat_file(where, start=offset, end=offset + size + 8)
    if len(content) < size + 8 or struct.unpack(">I", content[:4])[0] != size:
        raise ValueError("its length differs from the length in the log")
    if struct.unpack(">I", content[-4:])[0] != zlib.crc32(content[4:-4]):
        raise ValueError("its checksum does not match")
    return content[4:-4]


def _damaged(log: LogFiles, path: str | None, cause: str) -> PipelineError:
    return PipelineError(
        "a deletion vector of the Delta table cannot be read",
        where=f"{log.url}, {path or 'in the log'}",
        cause=cause,
        remedy="Restore the file from a backup",
    )


def _decoded(text: str) -> bytes:
    """Return the bytes of a text in Z85."""
    out = bytearray()
    for first in range(0, len(text), 5):
        number = 0
        for character in text[first : first + 5]:
            number = number * 85 + _Z85.index(character)
        out += struct.pack(">I", number)
    return bytes(out)


def parse_bitmap_array(content: bytes) -> Rows:
    """Return the sorted numbers of a bitmap array: bitmaps of 32-bit numbers, each with its upper half.

    Raises:
        ValueError, struct.error: the content is no such array.
    """
    magic, count = struct.unpack_from("<Iq", content)
    if magic != _MAGIC:
        raise ValueError(f"its format {magic} is unknown")
    at = 12
    parts: list[Rows] = []
    for _ in range(count):
        (upper,) = struct.unpack_from("<I", content, at)
        numbers, at = _parse_bitmap(content, at + 4)
        parts.append(numbers + (upper << 32))
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _parse_bitmap(content: bytes, at: int) -> tuple[Rows, int]:
    """Return the numbers of one bitmap, and the place after it."""
    (cookie,) = struct.unpack_from("<I", content, at)
    at += 4
    runs: Any = None
    if cookie & 0xFFFF == _WITH_RUNS:
        containers = (cookie >> 16) + 1
        flags = np.frombuffer(content, np.uint8, (containers + 7) // 8, at)
        runs = np.unpackbits(flags, bitorder="little")[:containers].astype(bool)
        at += len(flags)
    elif cookie == _WITHOUT_RUNS:
        (containers,) = struct.unpack_from("<I", content, at)
        at += 4
    else:
        raise ValueError(f"its bitmap has the unknown cookie {cookie}")
    heads = np.frombuffer(content, "<u2", 2 * containers, at).reshape(containers, 2).astype(np.int64)
    at += 4 * containers
    if runs is None or containers >= _NO_OFFSETS:
        at += 4 * containers  # the containers follow each other, so their offsets are not needed
    parts: list[Rows] = []
    for n in range(containers):
        key, cardinality = int(heads[n, 0]), int(heads[n, 1]) + 1
        numbers, at = _parse_container(content, at, cardinality, runs is not None and bool(runs[n]))
        parts.append(numbers + (key << 16))
    return np.concatenate(parts) if parts else np.empty(0, np.int64), at


def _parse_container(content: bytes, at: int, cardinality: int, has_runs: bool) -> tuple[Rows, int]:
    if has_runs:
        (count,) = struct.unpack_from("<H", content, at)
        runs = np.frombuffer(content, "<u2", 2 * count, at + 2).reshape(count, 2).astype(np.int64)
        found = [np.arange(first, first + more + 1, dtype=np.int64) for first, more in runs]
        return np.concatenate(found) if found else np.empty(0, np.int64), at + 2 + 4 * count
    if cardinality > _MOST_IN_ARRAY:
        bits = np.unpackbits(np.frombuffer(content, np.uint8, _BITMAP_BYTES, at), bitorder="little")
        return np.flatnonzero(bits).astype(np.int64), at + _BITMAP_BYTES
    return np.frombuffer(content, "<u2", cardinality, at).astype(np.int64), at + 2 * cardinality
