"""Value, reducing and aggregating states of the heap back end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.aggregates.merging_state import fold
from tidegate.state.arrow.array_limits import in_parts
from tidegate.state.arrow.arrow_columns import ALL, Chosen
from tidegate.state.copy_on_write import Entries
from tidegate.state.heap.frozen_state import FrozenState
from tidegate.state.heap.heap_table import GROUP, LIVE, USED, HeapTable, live_rows
from tidegate.state.heap.number_columns import number_columns
from tidegate.state.keyed_state import Found, KeyNumbers, KeySet, Mask, StateDescriptor, TimeToLive
from tidegate.state.keys.key_sets import DistinctKeyRows, KeyBatch
from tidegate.state.state_layout import part_schema, result_schema

Numbers: TypeAlias = npt.NDArray[np.int32] | npt.NDArray[np.int64]
"""Numbers of distinct keys in a set."""
Used: TypeAlias = npt.NDArray[np.int64] | None
"""Times of the last use of restored rows; None: now."""


class Lifetime:
    """The TTL of one state against the injected clock."""

    def __init__(self, ttl: TimeToLive, now_ms: Callable[[], int]) -> None:
        self.on_read = ttl.on_read
        self._duration_ms = ttl.duration_ms
        self.now_ms = now_ms

    def alive(self, used_ms: npt.NDArray[Any]) -> Mask:
        """Return whether rows that were last used at these times are alive."""
        alive: Mask = used_ms.astype(np.int64, copy=False) > self.now_ms() - self._duration_ms
        return alive


class HeapState:
    """Base of the states of the heap back end: a table with a row for each key, and a lifetime."""

    def __init__(
        self, descriptor: StateDescriptor, keyed: DistinctKeyRows, now_ms: Callable[[], int], table: HeapTable
    ) -> None:
        self.descriptor = descriptor
        self.schema = part_schema(descriptor, keyed.schema)
        self.columns = result_schema(descriptor)
        self.table = table
        self.lifetime = None if descriptor.ttl is None else Lifetime(descriptor.ttl, now_ms)
        self.keyed = keyed
        self.key_width = len(keyed.schema)
        self._swept = 0

    def entries_of(self, keys: KeySet) -> Entries:
        """Return the entry of each key, or -1; includes expired entries."""
        assert isinstance(keys, KeyBatch), "keys of another back end"
        version, entries = keys.found.get(id(self.table), (-1, None))
        if entries is None or version != self.table.version:
            entries = self.table.find(keys.keys)
            keys.found[id(self.table)] = self.table.version, entries
        return entries

    def find_or_add(self, keys: KeySet, numbers: Numbers) -> Entries:
        """Return the entries of some keys of the set; a key without one gets an entry that holds only the key."""
        assert isinstance(keys, KeyBatch)
        entries = self.entries_of(keys)
        missing = numbers[entries[numbers] < 0].astype(np.int64)
        if len(missing):
            entries[missing] = self.table.add(keys.keys, missing, keys.batch.columns, keys.groups)
            # Stored under the new version: adding rows moves no other entry, so that the found ones stay right.
            keys.found[id(self.table)] = self.table.version, entries
        return entries[numbers]

    def all_keys(self, limit: int) -> Iterator[KeyBatch]:
        """Yield the keys with live rows."""
        for start in range(0, self.table.size, limit):
            entries = self.table.live(start, start + limit)
            entries = entries[self._holds(entries)]
            if len(entries):
                columns = self.table.take(0, self.key_width, entries)
                yield self.keyed.same(pa.RecordBatch.from_arrays(columns, schema=self.keyed.schema))

    def sweep(self, limit: int) -> None:
        """Remove expired rows among the next `limit` entries."""
        if self.lifetime is None or not self.table.size:
            return
        start = self._swept if self._swept < self.table.size else 0
        self._swept = start + limit
        self._sweep(self.table.live(start, start + limit))

    def _sweep(self, entries: Entries) -> None:
        self.table.remove(entries[~self._holds(entries)])

    def _holds(self, entries: Entries) -> Mask:
        if self.lifetime is None:
            return np.ones(len(entries), np.bool_)
        return self.lifetime.alive(self.table.values.arrays[USED][entries])


class HeapValue(HeapState):
    """See `ValueState`."""

    def __init__(self, descriptor: StateDescriptor, keyed: DistinctKeyRows, now_ms: Callable[[], int]) -> None:
        values = result_schema(descriptor).types
        table = HeapTable(keyed.reader, keyed.schema.types, values, has_ttl=descriptor.ttl is not None)
        super().__init__(descriptor, keyed, now_ms, table)

    def get(self, keys: KeySet) -> Found:
        """See `ValueState`."""
        entries = self.entries_of(keys)
        present = entries >= 0
        if self.lifetime is not None:
            present &= self._holds(entries)
            if self.lifetime.on_read:
                self._use(entries[present])
        if not present.all():
            entries = np.where(present, entries, np.int32(-1))
        arrays = self.table.take(self.key_width, None, entries)
        return Found(present, pa.RecordBatch.from_arrays(arrays, schema=self.columns))

    def put(self, keys: KeySet, columns: pa.RecordBatch, where: Mask | None = None) -> None:
        """See `ValueState`."""
        if where is None:
            self.write(keys, np.arange(keys.size), columns.columns)
        elif where.any():
            numbers = np.flatnonzero(where)
            self.write(keys, numbers, columns.take(pa.array(numbers)).columns)

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """See `ValueState`."""
        entries = self.entries_of(keys)
        self.table.remove(entries[entries >= 0 if where is None else (entries >= 0) & where])

    def write(self, keys: KeySet, numbers: Numbers, arrays: Sequence[pa.Array], used: Used = None) -> None:
        """Set the rows of some keys of the set; without `used`, the time of use is now."""
        entries = self.find_or_add(keys, numbers)
        self.table.put(entries, arrays)
        if self.lifetime is not None:
            self.table.values.arrays[USED][entries] = self.lifetime.now_ms() if used is None else used

    def take_back(self, keys: KeyBatch, columns: pa.RecordBatch, used: Used) -> None:
        """Add rows of a snapshot: row i belongs to key `keys.rows[i]`; keys are unique."""
        assert keys.size == columns.num_rows, f"duplicate key in state {self.descriptor.name!r}"
        values = columns.columns[1 + self.key_width :][: len(self.columns)]
        self.write(keys, keys.rows, values, used)

    def freeze(self) -> FrozenState:
        """Return the present state."""
        return frozen_table(self.table, self.descriptor.name, self.schema)

    def _use(self, entries: Entries) -> None:
        assert self.lifetime is not None
        self.table.values.touch(entries)
        self.table.values.arrays[USED][entries] = self.lifetime.now_ms()


class HeapMerging(HeapValue):
    """See `MergingState`. Numbers are changed in place; other columns are folded outside, and written."""

    def __init__(self, descriptor: StateDescriptor, keyed: DistinctKeyRows, now_ms: Callable[[], int]) -> None:
        super().__init__(descriptor, keyed, now_ms)
        self._numbers = number_columns(descriptor, self.table)

    def add(self, keys: KeySet, owners: KeyNumbers, columns: pa.RecordBatch) -> None:
        """See `MergingState`."""
        if self._numbers is None:
            numbers, rows = fold(self.descriptor, self.get(keys), owners, columns)
            self.write(keys, numbers, rows.columns)
            return
        found = self.entries_of(keys)
        # Each key of a set has rows. Other owners may leave keys out.
        held = ALL if owners is keys.rows else np.flatnonzero(np.bincount(owners, minlength=keys.size))
        fresh = found[held] < 0
        if fresh.any():
            self.find_or_add(keys, np.arange(keys.size)[held][fresh])
            found = self.entries_of(keys)
        entries = found[held]
        if self.lifetime is not None:
            fresh |= ~self._holds(entries)
        values = self.table.values
        values.touch(entries)
        begun, of_rows = entries[fresh], found[owners]
        for number, column in zip(self._numbers, columns.columns, strict=True):
            if len(begun):
                number.begin(values.arrays, begun)
            number.add(values.arrays, of_rows, column)
        if self.lifetime is not None:
            values.arrays[USED][entries] = self.lifetime.now_ms()


def frozen_table(table: HeapTable, name: str, schema: pa.Schema) -> FrozenState:
    """Return a frozen state with a row for each row of a table."""
    frozen = table.freeze()

    def rows(chunk: int) -> pa.Table:
        arrays = frozen.read(chunk)

        def made(at: Chosen) -> pa.Table:
            columns = [pa.array(arrays[GROUP][at]), *(take(arrays, at) for take in frozen.takes)]
            if USED in arrays:
                columns.append(pa.array(arrays[USED][at]))
            return pa.Table.from_arrays(columns, schema=schema)

        return pa.concat_tables(in_parts(made, live_rows(arrays), len(arrays[LIVE])))

    return FrozenState(name, schema, frozen.size, frozen.stamps, rows, table.row_bytes)
