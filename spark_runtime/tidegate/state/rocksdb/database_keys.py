"""Database keys of a batch: two bytes key group, highest first, then the canonical key bytes.

Keys of one group are adjacent, so a database can be divided at key groups.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.keyed_state import BackendContext, KeyNumbers, KeySet
from tidegate.state.keys.key_bytes import canonical_bytes
from tidegate.state.keys.key_hash import Hashes, KeyGroups, hash_keys, hash_rows, key_groups
from tidegate.state.keys.key_index_kernels import FREE, add_bytes
from tidegate.state.keys.key_sets import first_rows
from tidegate.state.rocksdb.byte_rows import ByteRows, fixed_width_bytes, join_bytes
from tidegate.state.rocksdb.key_columns import key_columns

GROUP_BYTES = 2


class RocksKeys:
    """A KeySet of known database keys."""

    def __init__(self, ids: ByteRows, rows: KeyNumbers, groups: KeyGroups, schema: pa.Schema) -> None:
        """Create the set.

        Args:
            ids: database key of each distinct key.
            rows, groups: see `KeySet`.
            schema: schema of the key columns.
        """
        self.ids = ids
        self.size = len(ids)
        self.rows = rows
        self.groups = groups
        self._schema = schema

    @classmethod
    def of_ids(cls, ids: ByteRows, schema: pa.Schema) -> RocksKeys:
        """Return the set of distinct keys read from a database, each with a row of its own."""
        return cls(ids, np.arange(len(ids), dtype=np.int32), groups_of(ids), schema)

    def columns(self) -> pa.RecordBatch:
        """See `KeySet`."""
        return key_columns(self.ids, self._schema, GROUP_BYTES)[0]


def read_keys(columns: pa.RecordBatch, ctx: BackendContext) -> RocksKeys:
    """Return the distinct keys of the rows of key columns, in order of first occurrence."""
    found, rows, hashes = distinct(ByteRows.of(*canonical_bytes(columns, columns.schema.names)))
    if ctx.namespace_columns:
        hashes = hash_keys(columns, ctx.group_columns)[first_rows(rows)]
    groups = key_groups(hashes, ctx.max_parallelism)
    return RocksKeys(join_bytes(fixed_width_bytes(groups.astype(">u2")), found), rows, groups, columns.schema)


def distinct(keys: ByteRows) -> tuple[ByteRows, KeyNumbers, Hashes]:
    """Return the distinct `keys` in order of first occurrence, the number of each row's key, and each key's hash."""
    data, offsets = keys.packed()
    hashes = np.empty(len(keys), np.uint64)
    hash_rows(data, offsets, hashes)
    rows, added = np.empty(len(keys), np.int32), np.empty(len(keys), np.int64)
    # Everything has room for all keys, so that the kernel never stops early.
    slots = np.full(4 << max(len(keys), 1).bit_length(), FREE, np.int64)
    cursor, known = np.zeros(2, np.int64), np.empty(len(keys), np.uint64)
    ends, arena = np.zeros(len(keys) + 1, np.int64), np.empty(len(data), np.uint8)
    add_bytes(data, offsets[:-1], offsets[1:], hashes, slots, known, ends, arena, cursor, rows, added)
    size = int(cursor[1])
    return ByteRows.of(arena, ends[: size + 1]), rows, known[:size]


def ids_of(keys: KeySet) -> ByteRows:
    """Return the database keys of a KeySet of this back end."""
    assert isinstance(keys, RocksKeys), "keys come from the back end that they are used with"
    return keys.ids


def groups_of(ids: ByteRows) -> npt.NDArray[np.uint16]:
    """Return the key group of each database key."""
    high = ids.data[ids.starts].astype(np.uint16)
    return (high << 8 | ids.data[ids.starts + 1]).astype(np.uint16)


def group_key(group: int) -> bytes:
    """Return a bound below all database keys of `group` and above all keys of `group` - 1."""
    return group.to_bytes(GROUP_BYTES, "big")
