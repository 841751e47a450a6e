"""States in RocksDB: a row for each key, or key and map key; and sorted runs (S5.1)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidegate.state.aggregates.merging_state import fold
from tidegate.state.keyed_state import (
    Elements,
    Found,
    KeyedStateBackend,
    KeyNumbers,
    KeySet,
    Mask,
    StateDescriptor,
)
from tidegate.state.keys.key_bytes import canonical_bytes
from tidegate.state.rocksdb.byte_rows import ByteRows, join_bytes
from tidegate.state.rocksdb.database_keys import GROUP_BYTES, ids_of
from tidegate.state.rocksdb.key_columns import key_columns, key_ends
from tidegate.state.rocksdb.sorted_runs import Combine, NewRows, SortedRuns
from tidegate.state.rocksdb.state_rows import StateRows


class RocksValue:
    """See `ValueState`."""

    def __init__(self, cells: StateRows) -> None:
        """Create the state. Args: cells: rows of the state."""
        self._cells = cells

    def get(self, keys: KeySet) -> Found:
        """See `ValueState`."""
        rows = self._cells.get(ids_of(keys))
        return Found(rows.present, self._cells.expiry.decoded(rows))

    def put(self, keys: KeySet, columns: pa.RecordBatch, where: Mask | None = None) -> None:
        """See `ValueState`."""
        if where is None:
            self._cells.put(ids_of(keys), columns)
        else:
            self._cells.put(ids_of(keys).take(where), columns.filter(pa.array(where)))

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """See `ValueState`."""
        self._cells.remove(ids_of(keys) if where is None else ids_of(keys).take(where))


class RocksMerging:
    """See `MergingState`."""

    def __init__(self, cells: StateRows, descriptor: StateDescriptor) -> None:
        """Create the state. Args: cells: rows of the state. descriptor: how it folds."""
        self._cells = cells
        self._descriptor = descriptor

    def add(self, keys: KeySet, owners: KeyNumbers, columns: pa.RecordBatch) -> None:
        """See `MergingState`."""
        if not columns.num_rows:
            return
        ids = ids_of(keys)
        rows = self._cells.get(ids)
        found = Found(rows.present, self._cells.expiry.decoded(rows))
        touched, folded = fold(self._descriptor, found, owners, columns)
        self._cells.put(ids if len(touched) == len(ids) else ids.take(touched), folded)

    def get(self, keys: KeySet) -> Found:
        """See `MergingState`."""
        rows = self._cells.get(ids_of(keys))
        return Found(rows.present, self._cells.expiry.decoded(rows))

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """See `MergingState`."""
        self._cells.remove(ids_of(keys) if where is None else ids_of(keys).take(where))


class RocksMap:
    """See `MapState`. Entries of a key are adjacent in the database: its key, then the canonical map key."""

    def __init__(self, cells: StateRows, descriptor: StateDescriptor, key_columns_: int) -> None:
        """Create the state.

        Args:
            cells: rows of the state.
            descriptor: descriptor with the map key.
            key_columns_: number of columns of a key.
        """
        self._cells = cells
        self._map_key = descriptor.map_key
        self._key_columns = key_columns_

    def get(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch) -> Found:
        """See `MapState`."""
        rows = self._cells.get(self._ids(keys, owners, map_keys))
        return Found(rows.present, self._cells.expiry.decoded(rows))

    def put(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch, columns: pa.RecordBatch) -> None:
        """See `MapState`."""
        self._cells.put(self._ids(keys, owners, map_keys), columns)

    def remove(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch) -> None:
        """See `MapState`."""
        self._cells.remove(self._ids(keys, owners, map_keys))

    def entries(self, keys: KeySet) -> Elements:
        """See `MapState`."""
        ids, rows, counts = self._scan(ids_of(keys))
        expiry = self._cells.expiry
        alive = expiry.alive(rows)
        if expiry.ttl is not None and expiry.ttl.on_read and alive.any():
            self._cells.cache.put(ids.take(alive), expiry.refresh(rows.take(alive)))
        owners = np.repeat(np.arange(keys.size), counts)[alive]
        offsets = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=keys.size))]).astype(np.int64)
        ids, rows = ids.take(alive), rows.take(alive)
        ends = key_ends(ids, self._key_columns, GROUP_BYTES)
        map_keys, _ = key_columns(ByteRows(ids.data, ends, ids.lengths), self._map_key)
        columns = expiry.decoded(rows)
        schema = pa.schema([*map_keys.schema, *columns.schema])
        return Elements(offsets, pa.RecordBatch.from_arrays([*map_keys.columns, *columns.columns], schema=schema))

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """See `MapState`."""
        ids, _, _ = self._scan(ids_of(keys) if where is None else ids_of(keys).take(where))
        self._cells.remove(ids)

    def _ids(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch) -> ByteRows:
        names = self._map_key.names
        return join_bytes(ids_of(keys).take(owners), ByteRows.of(*canonical_bytes(map_keys, names)))

    def _scan(self, ids: ByteRows) -> tuple[ByteRows, ByteRows, list[int]]:
        # The scan reads the table, which lacks the changes that are only in the cache.
        self._cells.cache.flush()
        order = ids.order()
        found, rows, counts = self._cells.table.scan_prefixes(ids.take(order).to_list())
        back = np.argsort(order)
        firsts = np.cumsum(counts) - counts
        numbers = [np.arange(firsts[i], firsts[i] + counts[i]) for i in back.tolist()]
        wanted = np.concatenate([np.zeros(0, np.int64), *numbers]).astype(np.int64)
        return found.take(wanted), rows.take(wanted), [counts[i] for i in back.tolist()]


class RunsBackend(KeyedStateBackend):
    """A back end that also keeps sorted runs."""

    @abstractmethod
    def runs(self, descriptor: StateDescriptor, combine: Combine | None) -> RocksRuns:
        """Return rows by start and key that are only appended. The last key column is the start, in microseconds.

        Args:
            descriptor: name and columns; the kind does not matter.
            combine: see `SortedRuns`; called with the key columns without the start, then the columns of the state.
        """


class RocksRuns:
    """Rows by start and key that are only appended; see `SortedRuns`. All calls come from the slot's loop."""

    def __init__(self, runs: SortedRuns, before_use: Callable[[], None]) -> None:
        """Create the state.

        Args:
            runs: the rows.
            before_use: called before they are read or written, so that a snapshot in progress gets its rows first.
        """
        self._runs = runs
        self._before_use = before_use
        self._later: list[NewRows] = []

    def append(self, new: Sequence[NewRows]) -> None:
        """Write rows now."""
        self._before_use()
        for rows in new:
            self._runs.append(rows)

    def append_later(self, new: Sequence[NewRows]) -> None:
        """Let the next snapshot, which must follow at once, write rows. They must not change any more."""
        self._later += new

    def take_later(self) -> list[NewRows]:
        """Return the rows that the snapshot has to write."""
        later, self._later = self._later, []
        return later

    def starts_us(self) -> list[int]:
        """Return the starts that have written rows."""
        self._before_use()
        return self._runs.starts_us()

    def delete(self, start_us: int) -> None:
        """Delete the rows of a start, if there are any."""
        self._before_use()
        self._runs.delete(start_us)

    def read(
        self, starts_us: Sequence[int], groups: Mask | None = None
    ) -> Iterator[tuple[int, list[list[pa.RecordBatch]]]]:
        """See `SortedRuns.read`. Nothing may be written meanwhile."""
        self._before_use()
        return self._runs.read(starts_us, groups)
