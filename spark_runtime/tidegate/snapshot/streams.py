"""The state stream: all parts of one operator subtask as one sequence of bytes (S3.6, S5.3).

The version is 5 if a part has blobs of rows, else 3 if a part has another format than "rows", else 2 if a part has the
kind "channel", else 1. Before integers in blobs were narrowed (see `row_streams`), 5 was 4. Layout, integers little
endian::

    magic     8 bytes  b"TGSTATE\\n"
    version   u16
    length    u32      of the header, bytes
    crc32     u32      of the header
    header    JSON     meta information: {"key_bytes": 1, "parts": [...]}, per part its name, kind, fields, rows,
                       length in bytes, crc32 and, when keyed, [key group, first row] of each group that has rows;
                       since version 3 its format and the ids of its blobs, which are stored elsewhere
    parts     one Arrow IPC stream (lz4) each, in the header's order, nothing between them and nothing after them

Meta information precedes data, so that a restore checks names, kinds and types before it reads a row. Rows of keyed
parts in the stream are sorted by key group, so that a rescale reads one contiguous range (S5.5). Rows in blobs are in
any order since version 4; before, they were sorted too. Reading runs no code from the stream.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import SnapshotError
from tidegate.jobs.json_documents import MAX_METADATA_BYTES, JsonDocumentError, parse_json
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, Blob, StateFormat, StateKind, StatePart
from tidegate.snapshot.row_streams import ROWS_PER_PIECE

MAGIC = b"TGSTATE\n"
STREAM_VERSION = 5
"""Newest version that can be read."""
_VERSION_OF_ROW_BLOBS = 5
_VERSION_OF_FILES = 3
_VERSION_OF_CHANNELS = 2
_VERSION = 1
KEY_BYTES_VERSION = 1
"""Version of the canonical key bytes from which key groups are computed (S5.1). Keys of other versions need to be
hashed again."""
COMPRESSED_BYTES = 4 << 10
"""Smaller parts are not compressed: it saves few bytes, and doubles the time of writing them."""
THREADED_BYTES = 1 << 20
"""Smaller parts are compressed and read on the calling thread: other threads would cost ten times the work."""

_PREFIX = struct.Struct("<8sHII")
_KINDS: frozenset[str] = frozenset({"keyed", "list", "union", "broadcast", "channel"})
_FORMATS: frozenset[str] = frozenset({"rows", "rocksdb"})


@dataclass(frozen=True)
class PartHeader:
    """Meta information of one part.

    Attributes:
        name: state name.
        kind: how a restore distributes it.
        fields: (column, Arrow type as text) in order.
        rows: number of rows.
        size_bytes: size of the part's Arrow stream.
        crc32: checksum of the part's Arrow stream.
        key_groups: (key group, first row) of each group that has rows, ascending; empty unless keyed and in rows.
        format: format of the blobs.
        blobs: ids of the blobs, in order.
    """

    name: str
    kind: StateKind
    fields: tuple[tuple[str, str], ...]
    rows: int
    size_bytes: int
    crc32: int
    key_groups: tuple[tuple[int, int], ...] = ()
    format: StateFormat = "rows"
    blobs: tuple[str, ...] = ()


def encode_parts(parts: Sequence[StatePart]) -> bytes:
    """Return the stream of `parts`, without their blobs. Deterministic for the same tables.

    Raises AssertionError for a keyed part without a uint16 key-group column, or a name used twice: bugs of an operator.
    """
    names = [part.name for part in parts]
    assert len(set(names)) == len(names), f"state names are not unique: {names}"
    headers: list[dict[str, Any]] = []
    payloads: list[pa.Buffer] = []
    for part in parts:
        table, key_groups = _by_key_group(part)
        payload = _to_ipc(table)
        payloads.append(payload)
        headers.append(
            {
                "name": part.name,
                "kind": part.kind,
                "fields": [[field.name, str(field.type)] for field in table.schema],
                "rows": table.num_rows,
                "size_bytes": payload.size,
                "crc32": zlib.crc32(payload),
                "key_groups": key_groups,
                **({"format": part.format, "blobs": [blob.id for blob in part.blobs]} if _is_in_pieces(part) else {}),
            }
        )
    header = json.dumps({"key_bytes": KEY_BYTES_VERSION, "parts": headers}, separators=(",", ":")).encode()
    # The lowest version that can express the parts.
    version = _VERSION_OF_CHANNELS if any(part.kind == "channel" for part in parts) else _VERSION
    version = _VERSION_OF_FILES if any(_is_in_pieces(part) for part in parts) else version
    version = _VERSION_OF_ROW_BLOBS if any(part.blobs and part.format == "rows" for part in parts) else version
    prefix = _PREFIX.pack(MAGIC, version, len(header), zlib.crc32(header))
    return b"".join([prefix, header, *payloads])


def read_header(data: bytes | memoryview, *, where: str = "") -> tuple[PartHeader, ...]:
    """Return the meta information of a stream, without reading rows.

    Args:
        data: the stream; its first bytes up to the end of the header are enough.
        where: the place to name in errors: path, operator uid, subtask.

    Raises:
        SnapshotError: the data is not a state stream, is damaged or truncated, or has a newer version.
    """
    return _header(data, where)[0]


def decode_parts(data: bytes, *, where: str = "", read_blob: Callable[[str], bytes] | None = None) -> list[StatePart]:
    """Inverse of `encode_parts`. Keyed rows of tables are sorted by key group.

    All or nothing: every part is checked before the first one is decoded.

    Args:
        data: the whole stream.
        where: the place to name in errors.
        read_blob: returns the bytes of a blob by id, when it is read; None: blobs cannot be read.

    Raises:
        SnapshotError: the data is not a state stream, is damaged or truncated, or has a newer version.
    """
    headers, start = _header(data, where)
    expected = start + sum(header.size_bytes for header in headers)
    if len(data) != expected:
        what = "is truncated" if len(data) < expected else "has bytes after its end"
        raise _damaged(f"the state data of a subtask {what}: {len(data)} bytes instead of {expected}", where)
    view = memoryview(data)
    payloads: list[memoryview] = []
    for header in headers:
        payload = view[start : start + header.size_bytes]
        start += header.size_bytes
        if zlib.crc32(payload) != header.crc32:
            raise _damaged(f"state {header.name!r} does not match its checksum", where)
        payloads.append(payload)
    read = read_blob or partial(_unreadable, where)
    return [_decode_part(header, payload, where, read) for header, payload in zip(headers, payloads, strict=True)]


def _by_key_group(part: StatePart) -> tuple[pa.Table, list[list[int]]]:
    if part.kind != "keyed" or part.format != "rows":
        return part.table, []
    index = part.table.schema.get_field_index(KEY_GROUP_COLUMN)
    assert index >= 0 and part.table.schema.field(index).type == pa.uint16(), f"state {part.name!r} has no key groups"
    groups = part.table.column(index).to_numpy()
    table = part.table
    if len(groups) and np.any(groups[1:] < groups[:-1]):
        order = np.argsort(groups, kind="stable")
        table, groups = table.take(pa.array(order)), groups[order]
    present, first = np.unique(groups, return_index=True)
    return table, [[int(group), int(row)] for group, row in zip(present, first, strict=True)]


def _to_ipc(table: pa.Table) -> pa.Buffer:
    out = pa.BufferOutputStream()
    held_bytes = table.get_total_buffer_size()
    options = pa.ipc.IpcWriteOptions(
        compression="lz4" if held_bytes >= COMPRESSED_BYTES else None, use_threads=held_bytes >= THREADED_BYTES
    )
    with pa.ipc.new_stream(out, table.schema, options=options) as writer:
        # Combined, so that the batches in the stream do not depend on the chunks of the table.
        writer.write_table(table.combine_chunks(), max_chunksize=ROWS_PER_PIECE)
    return out.getvalue()


def _is_in_pieces(part: StatePart) -> bool:
    return bool(part.blobs) or part.format != "rows"


def _unreadable(where: str, blob_id: str) -> bytes:
    raise SnapshotError(
        f"internal error: the piece {blob_id} of a subtask's state was not loaded",
        where=where,
        remedy="Report this error",
    )


def _decode_part(header: PartHeader, payload: memoryview, where: str, read: Callable[[str], bytes]) -> StatePart:
    options = pa.ipc.IpcReadOptions(use_threads=len(payload) >= THREADED_BYTES)
    try:
        with pa.ipc.open_stream(pa.py_buffer(payload), options=options) as reader:
            table = reader.read_all()
    except (pa.ArrowException, OSError) as error:
        raise _damaged(f"state {header.name!r} is not a readable Arrow stream ({error})", where) from error
    fields = tuple((field.name, str(field.type)) for field in table.schema)
    if table.num_rows != header.rows or fields != header.fields:
        raise _damaged(f"state {header.name!r} does not match its header", where)
    blobs = tuple(Blob(blob_id, partial(read, blob_id)) for blob_id in header.blobs)
    return StatePart(header.name, header.kind, table, (), blobs, header.format)


def _header(data: bytes | memoryview, where: str) -> tuple[tuple[PartHeader, ...], int]:
    if len(data) < _PREFIX.size:
        raise _damaged(f"the state data of a subtask is truncated: {len(data)} bytes", where)
    magic, version, length, crc32 = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise _damaged("the data is not the state of a subtask", where)
    if version > STREAM_VERSION:
        raise SnapshotError(
            f"the state data of a subtask has version {version}, but this tidegate reads only up to {STREAM_VERSION}",
            where=where,
            cause="a newer tidegate wrote it",
            remedy="Upgrade tidegate, or restore an older snapshot",
        )
    start = _PREFIX.size + length
    text = bytes(memoryview(data)[_PREFIX.size : start])
    if version < 1 or len(text) < length or zlib.crc32(text) != crc32:
        raise _damaged("the header of a subtask's state data is damaged or truncated", where)
    try:
        document = parse_json(text, max_bytes=MAX_METADATA_BYTES)
    except JsonDocumentError as error:
        raise _damaged(f"the header of a subtask's state data cannot be read: {error}", where) from error
    if document["key_bytes"] > KEY_BYTES_VERSION:
        raise SnapshotError(
            f"the keys in the snapshot have format version {document['key_bytes']}, but this tidegate reads up to "
            f"{KEY_BYTES_VERSION}",
            where=where,
            remedy="Upgrade tidegate, or restore an older snapshot",
        )
    return tuple(_part_header(part, where) for part in document["parts"]), start


def _part_header(part: Mapping[str, Any], where: str) -> PartHeader:
    if part["kind"] not in _KINDS:
        raise _damaged(f"state {part['name']!r} has the unknown kind {part['kind']!r}", where)
    if part.get("format", "rows") not in _FORMATS:
        raise _damaged(f"state {part['name']!r} has the unknown format {part['format']!r}", where)
    return PartHeader(
        name=part["name"],
        kind=part["kind"],
        fields=tuple((name, type_) for name, type_ in part["fields"]),
        rows=part["rows"],
        size_bytes=part["size_bytes"],
        crc32=part["crc32"],
        key_groups=tuple((group, row) for group, row in part["key_groups"]),
        format=part.get("format", "rows"),
        blobs=tuple(part.get("blobs", ())),
    )


def _damaged(what: str, where: str) -> SnapshotError:
    return SnapshotError(
        what,
        where=where,
        cause="the file was changed, truncated or replaced after it was written",
        remedy="Restore another snapshot",
    )
