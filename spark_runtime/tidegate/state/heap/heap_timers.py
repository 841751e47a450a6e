"""Timers in columns, for millions of them, as a component of back ends (S5.1).

A timer is a time and the entry number of its key in a table of the keys with timers; a key is removed with its last
timer. A timer needs about 40 bytes, plus a row of the table for each key. Registering, deleting and removing due timers
are loops without the interpreter (`timer_kernels`); the earliest time is one read.

`freeze` returns a `FrozenState` like other states of the heap back end: rows as in `state_layout`, in chunks, and an
unchanged chunk with the same stamp. One thread writes and freezes; any thread may read the frozen state.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.arrow.array_limits import in_parts
from tidegate.state.arrow.arrow_columns import Positions
from tidegate.state.copy_on_write import Arrays, CopyOnWriteArrays, Entries, FrozenArrays
from tidegate.state.heap.frozen_state import FrozenState
from tidegate.state.heap.heap_table import GROUP, FrozenTable, HeapTable
from tidegate.state.heap.timer_kernels import (
    chain_timers,
    count_chains,
    enter_timers,
    fill_slots,
    find_timers,
    forget_timers,
    pop_timers,
    queue_timers,
    unqueue_timers,
    walk_chains,
)
from tidegate.state.keyed_state import DueTimers, Elements, KeyNumbers, KeySet, TimerKind
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.keys.key_sets import DistinctKeyRows, KeyBatch
from tidegate.state.state_layout import TIME_COLUMN, timer_part, timer_schema

MIN_TIMERS = 64
"""Initial room for timers; a power of two."""
MAX_TIMERS = 2**29
"""Most timers of one kind in one subtask: numbers are int32, and there are twice as many slots."""

_TIMES = "time"
_OWNERS = "owner"
_OF = pa.schema([(TIME_COLUMN, pa.int64())])


class ColumnarTimers:
    """See `TimerService` and the module. Accepts key sets of any back end."""

    def __init__(self, kind: TimerKind, keyed: DistinctKeyRows) -> None:
        """Create without timers. Args: kind: determines the name of the part. keyed: of the back end's context."""
        self.kind = kind
        self._keyed = keyed
        self.schema = timer_schema(keyed.schema)
        self._keys = HeapTable(keyed.reader, keyed.schema.types, has_ttl=False)
        self._heads = np.full(self._keys.index.capacity, -1, np.int32)
        self._cells = CopyOnWriteArrays(MIN_TIMERS)
        self._cells.add(_TIMES, np.int64)
        self._cells.add(_OWNERS, np.int32, -1)
        self._slots = np.full(2 * MIN_TIMERS, -1, np.int32)
        self._links = _Links(MIN_TIMERS)
        self._size = 0  # numbers below are, or were, in use
        self._count = 0
        self._freed = 0

    def register(self, keys: KeySet, owners: KeyNumbers, times_us: Int64s) -> None:
        """See `TimerService`."""
        if not len(owners):
            return
        entries = self._obtain(self._read(keys), owners)
        numbers = self._candidates(len(owners))
        self._cells.touch(numbers)
        arrays, links = self._cells.arrays, self._links
        times_us = np.ascontiguousarray(times_us, np.int64)
        entered = enter_timers(entries, times_us, numbers, self._slots, arrays[_TIMES], arrays[_OWNERS])
        # Timers that are registered already need no number, so that only some of the candidates are used.
        numbers = numbers[:entered]
        again = min(entered, self._freed)
        self._freed -= again
        self._size += entered - again
        chain_timers(numbers, arrays[_OWNERS], self._heads, links.following, links.former)
        queue_timers(numbers, arrays[_TIMES], self._count, links.queue, links.queue_times, links.places)
        self._count += entered

    def delete(self, keys: KeySet, owners: KeyNumbers, times_us: Int64s) -> None:
        """See `TimerService`."""
        entries = self._keys.find(self._read(keys).keys)[owners]
        found = np.empty(len(owners), np.int32)
        arrays, links = self._cells.arrays, self._links
        times_us = np.ascontiguousarray(times_us, np.int64)
        count = find_timers(entries, times_us, self._slots, arrays[_TIMES], arrays[_OWNERS], found)
        # A timer may be named twice, but must be removed once.
        numbers = np.unique(found[:count])
        unqueue_timers(numbers, self._count, links.queue, links.queue_times, links.places)
        self._forget(numbers)

    def of(self, keys: KeySet) -> Elements:
        """See `TimerService`."""
        entries = self._keys.find(self._read(keys).keys)
        heads = np.where(entries >= 0, self._heads[entries], np.int32(-1))
        counts = np.zeros(len(heads), np.int64)
        count_chains(heads, self._links.following, counts)
        times = np.empty(int(counts.sum()), np.int64)
        walk_chains(heads, self._links.following, self._cells.arrays[_TIMES], times)
        times = times[np.lexsort((times, np.repeat(np.arange(len(counts)), counts)))]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        return Elements(offsets, pa.RecordBatch.from_arrays([pa.array(times)], schema=_OF))

    def next_us(self) -> int | None:
        """See `TimerService`."""
        return int(self._links.queue_times[0]) if self._count else None

    def due(self, until_us: int, limit: int) -> DueTimers | None:
        """See `TimerService`."""
        if not self._count or self._links.queue_times[0] > until_us:
            return None
        numbers = np.empty(min(limit, self._count), np.int32)
        links = self._links
        popped = pop_timers(until_us, self._count, links.queue, links.queue_times, links.places, numbers)
        numbers = numbers[:popped]
        times = self._cells.arrays[_TIMES][numbers]
        entries, owners = np.unique(self._cells.arrays[_OWNERS][numbers], return_inverse=True)
        columns = self._keys.take(0, len(self._keyed.schema), entries)
        keys = self._keyed.same(pa.RecordBatch.from_arrays(columns, schema=self._keyed.schema))
        # Last, because a key is removed from the table with its last timer.
        self._forget(numbers)
        return DueTimers(keys, owners.astype(np.int32), times)

    def freeze(self) -> FrozenState:
        """Return the present timers."""
        timers = self._cells.freeze(self._size)
        rows = _FrozenRows(self.schema, timers, self._keys.freeze())
        entry_bytes = self._cells.entry_bytes + self._keys.row_bytes
        return FrozenState(timer_part(self.kind), self.schema, self._size, timers.stamps, rows.chunk, entry_bytes)

    def take_back(self, keys: KeySet, batch: pa.RecordBatch) -> None:
        """Register timers of a snapshot: row i of `batch`, in the columns of `schema`, is for key `keys.rows[i]`."""
        self.register(keys, keys.rows, batch.column(TIME_COLUMN).to_numpy())

    def _read(self, keys: KeySet) -> KeyBatch:
        return keys if isinstance(keys, KeyBatch) else self._keyed.same(keys.columns())

    def _obtain(self, keys: KeyBatch, owners: KeyNumbers) -> Entries:
        entries = self._keys.find(keys.keys)
        wanted = np.zeros(keys.size, np.bool_)
        wanted[owners] = True
        missing = np.flatnonzero(wanted & (entries < 0))
        if len(missing):
            entries[missing] = self._keys.add(keys.keys, missing, keys.batch.columns, keys.groups)
            if self._keys.index.capacity > len(self._heads):
                self._heads = _longer(self._heads, self._keys.index.capacity, -1)
            self._heads[entries[missing]] = -1
        of_owners: Entries = entries[owners]
        return of_owners

    def _candidates(self, count: int) -> Entries:
        """Return numbers for as many timers, the last freed first, and make room for them."""
        again = min(count, self._freed)
        fresh = np.arange(self._size, self._size + count - again, dtype=np.int32)
        if self._size + len(fresh) > self._cells.capacity:
            self._grow(self._size + len(fresh))
        freed = self._links.freed[self._freed - again : self._freed][::-1]
        return np.concatenate([freed, fresh])

    def _grow(self, wanted: int) -> None:
        capacity = 1 << (wanted - 1).bit_length()
        assert capacity <= MAX_TIMERS, f"one subtask holds at most {MAX_TIMERS} timers of a kind"
        self._cells.grow(capacity)
        self._links.grow(capacity)
        arrays = self._cells.arrays
        self._slots = np.full(2 * capacity, -1, np.int32)
        held = np.flatnonzero(arrays[_OWNERS][: self._size] >= 0).astype(np.int32)
        fill_slots(held, arrays[_TIMES], arrays[_OWNERS], self._slots)

    def _forget(self, numbers: Entries) -> None:
        """Remove timers that are no longer in the queue."""
        if not len(numbers):
            return
        arrays, links = self._cells.arrays, self._links
        self._cells.touch(numbers)
        entries = np.unique(arrays[_OWNERS][numbers])
        forget_timers(numbers, self._slots, arrays[_TIMES], arrays[_OWNERS], self._heads, links.following, links.former)
        self._keys.remove(entries[self._heads[entries] < 0])
        self._count -= len(numbers)
        links.freed[self._freed : self._freed + len(numbers)] = numbers
        self._freed += len(numbers)
        if not self._count:
            self._size = self._freed = 0


class _Links:
    """Arrays that are not part of snapshots; see `timer_kernels`."""

    def __init__(self, capacity: int) -> None:
        self.following, self.former = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
        self.queue, self.places = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
        self.queue_times = np.empty(capacity, np.int64)
        self.freed = np.empty(capacity, np.int32)

    def grow(self, capacity: int) -> None:
        for name, array in vars(self).items():
            setattr(self, name, _longer(array, capacity, 0))


class _FrozenRows:
    """Rows of frozen timers. The first chunk reads the keys of all timers, because any chunk may refer to any key."""

    def __init__(self, schema: pa.Schema, timers: FrozenArrays, keys: FrozenTable) -> None:
        self._schema = schema
        self._timers = timers
        self._frozen_keys = keys
        self._keys: Arrays = {}
        self._lock = threading.Lock()

    def chunk(self, chunk: int) -> pa.Table:
        """Return the rows of a chunk; call it once for each."""
        arrays = self._timers.read(chunk)
        owners = arrays[_OWNERS]
        with self._lock:
            keys = self._read_keys()

        def made(rows: Positions) -> pa.Table:
            of_rows = owners[rows]
            columns = [pa.array(keys[GROUP][of_rows]), *(take(keys, of_rows) for take in self._frozen_keys.takes)]
            return pa.Table.from_arrays([*columns, pa.array(arrays[_TIMES][rows])], schema=self._schema)

        return pa.concat_tables(in_parts(made, np.flatnonzero(owners >= 0)))

    def _read_keys(self) -> Arrays:
        """Return the arrays of all entries of the keys."""
        if not self._keys:
            chunks = [self._frozen_keys.read(chunk) for chunk in range(self._frozen_keys.chunks)]
            self._keys = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in chunks[0]}
        return self._keys


def _longer(array: npt.NDArray[Any], capacity: int, fill: int) -> npt.NDArray[Any]:
    longer = np.full(capacity, fill, array.dtype)
    longer[: len(array)] = array
    return longer
