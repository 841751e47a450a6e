"""Distinct keys of a batch, in the form for the back ends in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.copy_on_write import Entries
from tidegate.state.keyed_state import BackendContext, KeyNumbers
from tidegate.state.keys.key_bytes import key_array
from tidegate.state.keys.key_hash import hash_keys, key_groups
from tidegate.state.keys.key_index import BytesKeys, KeyReader, Keys


@dataclass
class KeyBatch:
    """Implementation of `KeySet`.

    Attributes:
        make_groups: returns the key groups of `batch`.
        keys: keys in the form for indexes, a row for each key.
        found: cache of the tables for the entries of these keys: (version of the table, entries) by table.
    """

    size: int
    rows: KeyNumbers
    make_groups: Callable[[pa.RecordBatch, Keys], npt.NDArray[np.uint16]]
    keys: Keys
    batch: pa.RecordBatch
    found: dict[int, tuple[int, Entries]] = field(default_factory=dict)

    @cached_property
    def groups(self) -> npt.NDArray[np.uint16]:
        """Return the key groups. They are computed at the first use: only a new entry needs its key group."""
        return self.make_groups(self.batch, self.keys)

    def columns(self) -> pa.RecordBatch:
        """See `KeySet`."""
        return self.batch


class DistinctKeyRows:
    """Converts batches to key sets."""

    def __init__(self, ctx: BackendContext) -> None:
        self.schema = ctx.key_schema
        self.reader = KeyReader(ctx.key_schema, ctx.key_schema.names)
        self._columns = ctx.key_columns
        self._max_parallelism = ctx.max_parallelism
        self._group_columns = ctx.group_columns

    def of(self, batch: pa.RecordBatch) -> KeyBatch:
        """Return the distinct keys of a batch's key columns."""
        return self.distinct([key_array(batch, name) for name in self._columns])

    def distinct(self, arrays: list[pa.Array]) -> KeyBatch:
        """Return the distinct keys of these columns."""
        columns = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        keys: Any = self.reader.read(columns)
        index = self.reader.new_index(columns.num_rows)
        rows = np.empty(columns.num_rows, np.int32)
        index.find_or_add(keys, 0, columns.num_rows, rows)
        if index.size < columns.num_rows:
            first = first_rows(rows)
            columns, keys = columns.take(pa.array(first)), keys.rows(first)
        return KeyBatch(columns.num_rows, rows, self._groups, keys, columns)

    def same(self, columns: pa.RecordBatch) -> KeyBatch:
        """Return a set of keys that are distinct already."""
        keys = self.reader.read(columns)
        rows = np.arange(columns.num_rows, dtype=np.int32)
        return KeyBatch(columns.num_rows, rows, self._groups, keys, columns)

    def _groups(self, columns: pa.RecordBatch, keys: Keys) -> npt.NDArray[np.uint16]:
        whole = len(self._group_columns) == len(self.schema)
        # Hashes of the whole key decide the key group only if no column is a namespace.
        hashes = keys.hashes if isinstance(keys, BytesKeys) and whole else hash_keys(columns, self._group_columns)
        return key_groups(hashes, self._max_parallelism)


def first_rows(numbers: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
    """Return the first row of each number; numbers must be in order of first occurrence."""
    if not len(numbers):
        return np.zeros(0, np.int64)
    highest = np.maximum.accumulate(numbers)
    return np.flatnonzero(np.diff(highest, prepend=-1))
