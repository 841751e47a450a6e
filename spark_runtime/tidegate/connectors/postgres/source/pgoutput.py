"""Messages of PostgreSQL's logical replication (plugin pgoutput, protocol version 1). Pure.

Rows are decoded by batch: the values of a column are found in all messages at once, and no Python code runs per row.
See "Logical Replication Message Formats" in PostgreSQL's documentation.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

BEGIN, COMMIT, RELATION, TRUNCATE = ord("B"), ord("C"), ord("R"), ord("T")
INSERT, UPDATE, DELETE = ord("I"), ord("U"), ord("D")
OLD_KEY, OLD_ROW, NEW_ROW = ord("K"), ord("O"), ord("N")
NULL, UNCHANGED, TEXT = ord("n"), ord("u"), ord("t")
ABSENT = 0
"""Kind of the values of a tuple that a message does not have."""
TUPLE_AT = 6
"""Place of the first tuple in a message: after its type, the relation, and the kind of the tuple."""
_BEGIN = struct.Struct("!xQQI")
_COMMIT = struct.Struct("!xBQQQ")

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Begin:
    """Begin of a transaction. `commit_lsn` is the place of its commit record; `xid` is its 32-bit id."""

    commit_lsn: int
    xid: int

    @classmethod
    def of(cls, message: bytes) -> Begin:
        """Decode."""
        commit_lsn, _, xid = _BEGIN.unpack(message)
        return cls(commit_lsn, xid)


@dataclass(frozen=True)
class Commit:
    """End of a transaction. `end_lsn` is the place after its commit record."""

    commit_lsn: int
    end_lsn: int

    @classmethod
    def of(cls, message: bytes) -> Commit:
        """Decode."""
        _, commit_lsn, end_lsn, _ = _COMMIT.unpack(message)
        return cls(commit_lsn, end_lsn)


@dataclass(frozen=True)
class RelationColumn:
    """A column as the changes have it. `in_key`: it is part of the replica identity."""

    name: str
    type_oid: int
    modifier: int
    in_key: bool


@dataclass(frozen=True)
class Relation:
    """Columns of a table, in the order of the values of the changes that follow."""

    oid: int
    schema: str
    table: str
    replica_identity: str
    columns: tuple[RelationColumn, ...]

    @classmethod
    def of(cls, message: bytes) -> Relation:
        """Decode."""
        oid = int.from_bytes(message[1:5], "big")
        schema, at = _text(message, 5)
        table, at = _text(message, at)
        identity, count = chr(message[at]), int.from_bytes(message[at + 1 : at + 3], "big")
        at += 3
        columns = []
        for _ in range(count):
            in_key = bool(message[at] & 1)
            name, at = _text(message, at + 1)
            type_oid, modifier = struct.unpack_from("!Ii", message, at)
            columns.append(RelationColumn(name, type_oid, modifier, in_key))
            at += 8
        # pg_catalog is sent as an empty name.
        return cls(oid, schema or "pg_catalog", table, identity, tuple(columns))


def _text(message: bytes, at: int) -> tuple[str, int]:
    end = message.index(0, at)
    return message[at:end].decode(), end + 1


def truncated(message: bytes) -> tuple[int, ...]:
    """Return the tables of a TRUNCATE message, by oid."""
    count = int.from_bytes(message[1:5], "big")
    return struct.unpack_from(f"!{count}I", message, 6)


@dataclass(frozen=True)
class Tuples:
    """Values of one tuple of each message, without a copy.

    Attributes:
        kinds: message, column -> kind of the value; `ABSENT`: the message has no such tuple.
        starts, lengths: place of the value in `data`.
    """

    data: Bytes
    kinds: Bytes
    starts: Numbers
    lengths: Numbers

    def or_else(self, other: Tuples, chosen: npt.NDArray[np.bool_]) -> Tuples:
        """Return the values of `other` where `chosen`, a mask of messages and columns."""
        return Tuples(
            self.data,
            np.where(chosen, other.kinds, self.kinds),
            np.where(chosen, other.starts, self.starts),
            np.where(chosen, other.lengths, self.lengths),
        )

    def texts(self, column: int, rows: Any = slice(None)) -> pa.Array:
        """Return the values of a column as texts. Everything without a value is null."""
        kinds, starts, lengths = (part[rows, column] for part in (self.kinds, self.starts, self.lengths))
        return gathered(self.data, starts, lengths, kinds == TEXT)


@dataclass(frozen=True)
class RowMessages:
    """Decoded changes of rows of one table.

    Attributes:
        actions: INSERT, UPDATE or DELETE.
        old_kinds: OLD_KEY, OLD_ROW, or 0 without an old tuple.
    """

    actions: Bytes
    old_kinds: Bytes
    old: Tuples
    new: Tuples


def row_messages(messages: Sequence[bytes], columns: int) -> RowMessages:
    """Decode messages INSERT, UPDATE and DELETE of a table with so many columns.

    Raises:
        ValueError: a message has another number of columns.
    """
    n = len(messages)
    # Padding, because the length of a value is read before it is known whether there is one.
    data = np.frombuffer(b"".join(messages) + bytes(8), np.uint8)
    sizes = np.fromiter(map(len, messages), np.int64, n)
    starts = np.cumsum(sizes) - sizes
    actions, first = data[starts], data[starts + TUPLE_AT - 1]
    has_old = first != NEW_ROW
    old, new = _empty(data, n, columns), _empty(data, n, columns)
    ends = starts + TUPLE_AT
    ends[has_old] = _parse(old, np.flatnonzero(has_old), ends[has_old])
    has_new = actions != DELETE
    begins = np.where(has_old, ends + 1, starts + TUPLE_AT)
    _parse(new, np.flatnonzero(has_new), begins[has_new])
    return RowMessages(actions, np.where(has_old, first, 0).astype(np.uint8), old, new)


def _empty(data: Bytes, messages: int, columns: int) -> Tuples:
    shape = messages, columns
    return Tuples(data, np.zeros(shape, np.uint8), np.zeros(shape, np.int64), np.zeros(shape, np.int64))


def _parse(into: Tuples, rows: Numbers, at: Numbers) -> Numbers:
    """Parse one tuple of each of these rows, and return the places after them."""
    data, columns = into.data, into.kinds.shape[1]
    if np.any(data[at].astype(np.int64) << 8 | data[at + 1] != columns):
        raise ValueError("a message has another number of columns than its table")
    at = at + 2
    for column in range(columns):
        kinds = data[at]
        has_value = (kinds != NULL) & (kinds != UNCHANGED)
        length = np.zeros(len(at), np.int64)
        for byte in range(1, 5):
            length = length << 8 | data[at + byte]
        length[~has_value] = 0
        into.kinds[rows, column] = kinds
        into.starts[rows, column] = at + 5
        into.lengths[rows, column] = length
        at = at + np.where(has_value, 5, 1) + length
    return at


def gathered(data: Bytes, starts: Numbers, lengths: Numbers, valid: npt.NDArray[np.bool_]) -> pa.Array:
    """Return parts of `data` as texts; null where not `valid`."""
    lengths = np.where(valid, lengths, 0)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] >= 2**31:
        raise ValueError("the values of one column exceed 2 GiB")
    places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little").tobytes())
    buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data[places])]
    return pa.Array.from_buffers(pa.string(), len(lengths), buffers)
