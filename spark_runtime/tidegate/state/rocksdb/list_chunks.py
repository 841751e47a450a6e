"""List states in RocksDB (S5.1), in chunks, so that an append costs the same for any length of the list.

The last elements of a key are in its open chunk, which an append rewrites. A chunk that exceeds `CHUNK_BYTES` is closed
and never rewritten.

Key of closed chunk n: the database key, then n as uint32, highest byte first. Key of the open chunk: with FFFFFFFF as
number, so that chunks are in order. A chunk begins with a uint32: in the open chunk the number of closed chunks, else
0. Its elements follow as frames.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.keyed_state import Elements, KeyNumbers, KeySet, Mask
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.rocksdb.byte_rows import ByteRows, fixed_width_bytes, frame, interleave, join_bytes, unframe
from tidegate.state.rocksdb.database import RocksTable
from tidegate.state.rocksdb.database_keys import ids_of
from tidegate.state.rocksdb.state_rows import Expiry, StateRows

CHUNK_BYTES = 4096
"""Size at which an open chunk is closed."""
NUMBER_BYTES = 4
_OPEN = 2**32 - 1


class RocksList:
    """See `ListState`."""

    def __init__(self, cells: StateRows) -> None:
        """Create the state. Args: cells: rows of the state; each row is an element."""
        self._cells = cells

    def get(self, keys: KeySet) -> Elements:
        """See `ListState`."""
        rows, offsets = self._elements(ids_of(keys))
        expiry = self._cells.expiry
        if expiry.ttl is None:
            return Elements(offsets, expiry.decoded(rows))
        alive = expiry.alive(rows)
        kept = rows.take(alive)
        ends = np.concatenate([[0], np.cumsum(alive)])[offsets].astype(np.int64)
        columns = expiry.decoded(kept)
        if len(kept) < len(rows) or expiry.ttl.on_read:
            there = np.diff(offsets) > 0
            self._replace(ids_of(keys), expiry.refresh(kept) if expiry.ttl.on_read else kept, ends, there)
        return Elements(ends, columns)

    def append(self, keys: KeySet, owners: KeyNumbers, columns: pa.RecordBatch) -> None:
        """See `ListState`."""
        self.append_rows(keys, owners, self._cells.expiry.encoded(columns))

    def append_rows(self, keys: KeySet, owners: KeyNumbers, rows: ByteRows) -> None:
        """Append encoded rows; see `append`."""
        if not len(rows):
            return
        order = np.argsort(owners, kind="stable")
        touched, counts = np.unique(owners, return_counts=True)
        added = frame(rows.take(order), np.concatenate([[0], np.cumsum(counts)]))
        ids = ids_of(keys).take(touched)
        heads = self._cells.cache.get(_chunk_ids(ids, np.full(len(ids), _OPEN)))
        closed = _closed(heads)
        grown = join_bytes(_numbers(closed), _content(heads), added)
        self._write(ids, grown, closed)

    def put(self, keys: KeySet, elements: Elements) -> None:
        """See `ListState`."""
        rows = self._cells.expiry.encoded(elements.columns)
        self._replace(ids_of(keys), rows, elements.offsets, np.ones(keys.size, np.bool_))

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """See `ListState`."""
        ids = ids_of(keys) if where is None else ids_of(keys).take(where)
        heads = self._cells.cache.get(_chunk_ids(ids, np.full(len(ids), _OPEN)))
        chunks, _ = _all_chunks(ids, _closed(heads))
        self._cells.remove(chunks)

    def _replace(self, ids: ByteRows, rows: ByteRows, offsets: Int64s, where: Mask) -> None:
        heads = self._cells.cache.get(_chunk_ids(ids, np.full(len(ids), _OPEN)))
        chunks, _ = _all_chunks(ids.take(where), _closed(heads)[where])
        self._cells.remove(chunks)
        filled = np.flatnonzero((np.diff(offsets) > 0) & where)
        if len(filled):
            content = frame(rows, offsets).take(filled)
            closed = np.zeros(len(filled), np.int64)
            self._write(ids.take(filled), join_bytes(_numbers(closed), content), closed)

    def _write(self, ids: ByteRows, open_chunks: ByteRows, closed: Int64s) -> None:
        """Write open chunks, and close those that are too large."""
        full = open_chunks.lengths > CHUNK_BYTES
        self._cells.cache.put(_chunk_ids(ids.take(~full), np.full(len(ids), _OPEN)[~full]), open_chunks.take(~full))
        if full.any():
            done = closed[full]
            content = _content(open_chunks.take(full))
            self._cells.cache.put(_chunk_ids(ids.take(full), done), join_bytes(_numbers(np.zeros_like(done)), content))
            self._cells.cache.put(_chunk_ids(ids.take(full), np.full(len(done), _OPEN)), _numbers(done + 1))

    def _elements(self, ids: ByteRows) -> tuple[ByteRows, Int64s]:
        heads = self._cells.cache.get(_chunk_ids(ids, np.full(len(ids), _OPEN)))
        closed = _closed(heads)
        if not closed.any():
            return unframe(_content(heads))
        numbers = np.arange(int(closed.sum())) - np.repeat(np.cumsum(closed) - closed, closed)
        chunks = self._cells.cache.get(_chunk_ids(ids.take(np.repeat(np.arange(len(ids)), closed)), numbers))
        both = interleave(_content(chunks), _content(heads))
        ends = np.cumsum(closed)
        order = np.insert(np.arange(len(chunks)), ends, len(chunks) + np.arange(len(ids)))
        rows, offsets = unframe(both.take(order))
        return rows, offsets[np.concatenate([[0], ends + np.arange(1, len(ids) + 1)])]


def chunk_elements(chunks: ByteRows) -> tuple[ByteRows, Int64s]:
    """Return the elements in chunks, and offsets by chunk."""
    return unframe(_content(chunks))


def live_chunks(chunks: ByteRows, expiry: Expiry) -> Mask:
    """Return which chunks hold a live element, or the number of closed chunks."""
    elements, offsets = chunk_elements(chunks)
    alive: Mask = np.diff(np.concatenate([[0], np.cumsum(expiry.alive(elements))])[offsets]) > 0
    return alive | (_closed(chunks) > 0)


def stale_heads(table: RocksTable, keys: ByteRows, chunks: ByteRows, expiry: Expiry) -> ByteRows:
    """Return the keys of open chunks that are no longer needed, although `live_chunks` keeps them.

    They hold no live element, and the table has no closed chunk of their list any more: the list has expired, and the
    next list of the key starts again.
    """
    elements, offsets = chunk_elements(chunks)
    empty = np.diff(np.concatenate([[0], np.cumsum(expiry.alive(elements))])[offsets]) == 0
    heads = keys.take(empty).to_list()
    firsts = table.first_from([head[:-NUMBER_BYTES] + bytes(NUMBER_BYTES) for head in heads])
    return ByteRows.of_list([head for head, first in zip(heads, firsts, strict=True) if head == first])


def _numbers(values: npt.NDArray[np.int64]) -> ByteRows:
    return fixed_width_bytes(values.astype("<u4"))


def _chunk_ids(ids: ByteRows, numbers: npt.NDArray[np.int64]) -> ByteRows:
    return join_bytes(ids, fixed_width_bytes(numbers.astype(">u4")))


def _content(chunks: ByteRows) -> ByteRows:
    """Return the frames of each chunk; empty if missing."""
    there = chunks.present
    return ByteRows(
        chunks.data,
        np.where(there, chunks.starts + NUMBER_BYTES, 0),
        np.where(there, chunks.lengths - NUMBER_BYTES, 0),
    )


def _closed(heads: ByteRows) -> Int64s:
    """Return the number of closed chunks for each open one; 0 if that is missing."""
    closed = np.zeros(len(heads), np.int64)
    there = heads.present
    for byte in range(NUMBER_BYTES):
        closed[there] |= heads.data[heads.starts[there] + byte].astype(np.int64) << (8 * byte)
    return closed


def _all_chunks(ids: ByteRows, closed: Int64s) -> tuple[ByteRows, Int64s]:
    """Return the database keys of all chunks, and the number of each one's list in `ids`."""
    owners = np.repeat(np.arange(len(ids)), closed + 1)
    numbers = np.arange(len(owners)) - np.repeat(np.cumsum(closed + 1) - closed - 1, closed + 1)
    numbers[np.cumsum(closed + 1) - 1] = _OPEN
    return _chunk_ids(ids.take(owners), numbers), owners
