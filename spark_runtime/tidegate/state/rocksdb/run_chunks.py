"""Sorted runs in RocksDB: the keys and values of their chunks.

A run is a set of rows that were written at once, sorted by rank. The rank of a row is the key group of its key in the
highest 16 bits, then the highest 48 bits of the key's hash. A run is cut into chunks at multiples of a power of two, so
that all rows of a chunk have the same bits at the top. Database keys, big endian::

    chunk   key group  uint16, start  8 bytes as `time_bytes`, lowest rank  uint64, run  uint32
    head    key group, start; the value is `COUNTS`: numbers of runs, rows and bytes with this key group and start

The value of a chunk is its rows (`row_codec`: key columns, then value columns), each after its length as uint32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.keys.key_hash import hash_keys, key_groups
from tidegate.state.rocksdb.byte_rows import ByteRows, fixed_width_bytes, frame, unframe
from tidegate.state.rocksdb.row_codec import RowCodec

Ranks: TypeAlias = npt.NDArray[np.uint64]

HASH_BITS = 48
LAST_RANK = 2**64 - 1
"""No row has this rank."""
CHUNK_BYTES = 8192
"""Approximate size of a chunk: a Python call for each of them, and what a read of one key costs."""
COUNTS = np.dtype([("next_run", "<u4"), ("runs", "<u4"), ("rows", "<u8"), ("base", "<u8"), ("bytes", "<u8")])
"""Counts of one key group and start. next_run: number of the next run. base: rows when they were last combined."""
_HEAD = np.dtype([("group", ">u2"), ("start", ">u8")])
_CHUNK = np.dtype([("group", ">u2"), ("start", ">u8"), ("rank", ">u8"), ("run", ">u4")])
_SIGN = 1 << 63


@dataclass(frozen=True)
class RunLayout:
    """Columns of the rows of runs.

    Attributes:
        schema: key columns, then value columns.
        key_names: names of the key columns that are hashed.
        max_parallelism: number of key groups.
    """

    schema: pa.Schema
    key_names: tuple[str, ...]
    max_parallelism: int

    def ranks(self, rows: pa.RecordBatch) -> Ranks:
        """Return the rank of each row. Args: rows: contain the key columns."""
        hashes = hash_keys(rows, self.key_names)
        groups = key_groups(hashes, self.max_parallelism).astype(np.uint64)
        return (groups << np.uint64(HASH_BITS)) | (hashes >> np.uint64(64 - HASH_BITS))


def groups_of_ranks(ranks: Ranks) -> Int64s:
    """Return the key group of each rank."""
    return (ranks >> np.uint64(HASH_BITS)).astype(np.int64)


def cut(ranks: Ranks, chunk_rows: int) -> tuple[Int64s, Ranks]:
    """Return the first row of each chunk, and its lowest possible rank.

    Args:
        ranks: ascending, at least one.
        chunk_rows: about the most rows of a chunk.
    """
    groups = ranks >> np.uint64(HASH_BITS)
    firsts = np.concatenate([[0], np.flatnonzero(groups[1:] != groups[:-1]) + 1])
    counts = np.diff(np.append(firsts, len(ranks)))
    depths = np.clip(np.ceil(np.log2(np.maximum(counts / chunk_rows, 1))), 0, HASH_BITS).astype(np.uint64)
    free = np.repeat(np.uint64(HASH_BITS) - depths, counts)
    lowest = ranks >> free << free
    starts = np.concatenate([[0], np.flatnonzero(lowest[1:] != lowest[:-1]) + 1])
    return starts, lowest[starts]


def chunk_keys(start_us: int, lowest: Ranks, runs: npt.NDArray[Any]) -> ByteRows:
    """Return the database keys of chunks of one start. Args: lowest: rank of each. runs: number of each one's run."""
    keys = np.empty(len(lowest), _CHUNK)
    keys["group"], keys["start"] = groups_of_ranks(lowest), start_us + _SIGN
    keys["rank"], keys["run"] = lowest, runs
    return fixed_width_bytes(keys)


def head_keys(groups: npt.NDArray[Any], start_us: int) -> ByteRows:
    """Return the database keys of the counts of these key groups and a start."""
    keys = np.empty(len(groups), _HEAD)
    keys["group"], keys["start"] = groups, start_us + _SIGN
    return fixed_width_bytes(keys)


def head_key(group: int, start_us: int) -> bytes:
    """Return the database key of the counts of a key group and start."""
    return group.to_bytes(2, "big") + (start_us + _SIGN).to_bytes(8, "big")


def read_head(key: bytes) -> tuple[int, int]:
    """Return key group and start of the database key of counts."""
    assert len(key) == _HEAD.itemsize, "counts precede their chunks"
    return int.from_bytes(key[:2], "big"), int.from_bytes(key[2:], "big") - _SIGN


def chunk_bounds(head: bytes) -> tuple[bytes, bytes]:
    """Return bounds of the database keys of all chunks of a head: lower <= key < upper."""
    return head + b"\0", head + b"\xff" * (_CHUNK.itemsize - _HEAD.itemsize + 1)


@dataclass(frozen=True)
class Chunks:
    """Chunks that were read from the database.

    Attributes:
        keys: group, start, rank and run of each, as a structured array.
        values: encoded rows of each.
    """

    keys: npt.NDArray[Any]
    values: ByteRows

    @classmethod
    def of(cls, keys: ByteRows, values: ByteRows) -> Chunks:
        """Read database keys and values, and ignore counts."""
        chunks = keys.lengths == _CHUNK.itemsize
        if not chunks.all():
            keys, values = keys.take(chunks), values.take(chunks)
        return cls(keys.packed()[0].view(_CHUNK), values)

    def take(self, chunks: Any) -> Chunks:
        """Return the chunks of these numbers."""
        return Chunks(self.keys[chunks], self.values.take(chunks))

    def rows(self, codec: RowCodec) -> tuple[pa.RecordBatch, Int64s]:
        """Return all rows, and the number of each row's chunk."""
        encoded, offsets = unframe(self.values)
        return codec.decode(encoded), np.repeat(np.arange(len(self.keys)), np.diff(offsets))

    def starts_us(self) -> Int64s:
        """Return the start of each chunk."""
        starts: Int64s = (self.keys["start"].astype(np.uint64) ^ np.uint64(_SIGN)).view(np.int64)
        return starts


def chunk_values(codec: RowCodec, rows: pa.RecordBatch, firsts: Int64s) -> ByteRows:
    """Return the encoded rows of each chunk. Args: firsts: first row of each chunk, from 0."""
    return frame(codec.encode(rows), np.append(firsts, rows.num_rows))
