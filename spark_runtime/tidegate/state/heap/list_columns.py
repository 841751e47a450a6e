"""List states of the heap back end: each key has a range of a log of elements, with room to grow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.arrow.array_limits import in_parts
from tidegate.state.arrow.arrow_buffers import expand_ranges
from tidegate.state.arrow.arrow_columns import ALL, Chosen, WriteOnceRows
from tidegate.state.copy_on_write import Entries
from tidegate.state.heap.frozen_state import FrozenState
from tidegate.state.heap.heap_table import GROUP, LIVE, HeapTable
from tidegate.state.heap.value_columns import HeapState, Used
from tidegate.state.keyed_state import Elements, KeyNumbers, KeySet, Mask, StateDescriptor
from tidegate.state.keys.key_sets import DistinctKeyRows, KeyBatch

START, LENGTH, ROOM = "start", "length", "room"
COMPACT_ROWS = 64 * 1024
"""Logs with fewer dead rows are not rewritten."""


class HeapList(HeapState):
    """See `ListState`. Elements are never changed in place, because a frozen version may read the log.

    A list without room moves to the end of the log, into twice the room it needs.
    """

    def __init__(self, descriptor: StateDescriptor, keyed: DistinctKeyRows, now_ms: Callable[[], int]) -> None:
        super().__init__(descriptor, keyed, now_ms, HeapTable(keyed.reader, keyed.schema.types, has_ttl=False))
        self.table.values.add(START, np.int64)
        self.table.values.add(LENGTH, np.int64)
        self.table.values.add(ROOM, np.int64)
        self._types = [*descriptor.columns.types, *([pa.int64()] if self.lifetime else [])]
        self._log = WriteOnceRows(self._types)
        self._dead = 0

    def get(self, keys: KeySet) -> Elements:
        """See `ListState`."""
        lengths, arrays = self._elements(self.entries_of(keys))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        columns = arrays[: len(self.columns)]
        found = Elements(offsets, pa.RecordBatch.from_arrays(columns, schema=self.columns))
        if self.lifetime is not None and self.lifetime.on_read and found.columns.num_rows:
            self._replace(keys, found)
        return found

    def append(self, keys: KeySet, owners: KeyNumbers, columns: pa.RecordBatch) -> None:
        """See `ListState`."""
        self._append(keys, owners, columns.columns, None)

    def put(self, keys: KeySet, elements: Elements) -> None:
        """See `ListState`."""
        self._replace(keys, elements)

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """See `ListState`."""
        entries = self.entries_of(keys)
        self._remove(entries[entries >= 0 if where is None else (entries >= 0) & where])

    def take_back(self, keys: KeyBatch, columns: pa.RecordBatch, used: Used) -> None:
        """Add rows of a snapshot: row i belongs to key `keys.rows[i]`."""
        self._append(keys, keys.rows, columns.columns[1 + self.key_width :][: len(self.columns)], used)

    def freeze(self) -> FrozenState:
        """Return the present state."""
        frozen = self.table.freeze()
        elements = self._log.pin()

        def rows(chunk: int) -> pa.Table:
            arrays = frozen.read(chunk)
            at = np.flatnonzero(arrays[LIVE])
            lengths = arrays[LENGTH][at]
            of_rows, numbers = np.repeat(at, lengths), expand_ranges(arrays[START][at], lengths)

            def made(part: Chosen) -> pa.Table:
                owners = of_rows[part]
                columns = [pa.array(arrays[GROUP][owners]), *(take(arrays, owners) for take in frozen.takes)]
                return pa.Table.from_arrays([*columns, *elements(numbers[part])], schema=self.schema)

            return pa.concat_tables(in_parts(made, ALL, len(numbers)))

        # Elements count, too: a state of few keys with long lists is not small.
        size = max(frozen.size, self._log.size)
        entry_bytes = self.table.row_bytes + self._log.held_bytes // max(frozen.size, 1)
        return FrozenState(self.descriptor.name, self.schema, size, frozen.stamps, rows, entry_bytes)

    def _replace(self, keys: KeySet, elements: Elements) -> None:
        self.clear(keys)
        owners = np.repeat(np.arange(keys.size, dtype=np.int32), np.diff(elements.offsets))
        self._append(keys, owners, elements.columns.columns, None)

    def _append(self, keys: KeySet, owners: KeyNumbers, arrays: Sequence[pa.Array], used: Used) -> None:
        if not len(owners):
            return
        if self.lifetime is not None:
            times = np.full(len(owners), self.lifetime.now_ms()) if used is None else used
            arrays = [*arrays, pa.array(times)]
        counts = np.bincount(owners, minlength=keys.size)
        numbers = np.flatnonzero(counts)
        counts = counts[numbers]
        entries = self.find_or_add(keys, numbers)
        self.table.values.touch(entries)
        self._make_room(entries, counts)
        starts, lengths = self.table.values.arrays[START][entries], self.table.values.arrays[LENGTH][entries]
        # The new elements of a key are written as one range, so that rows must be in the order of their keys.
        if np.any(owners[1:] < owners[:-1]):
            order = pa.array(np.argsort(owners, kind="stable"))
            arrays = [array.take(order) for array in arrays]
        self._log.write(expand_ranges(starts + lengths, counts), arrays)
        self.table.values.arrays[LENGTH][entries] = lengths + counts

    def _make_room(self, entries: Entries, counts: npt.NDArray[np.int64]) -> None:
        cells = self.table.values.arrays
        tight = np.flatnonzero(cells[LENGTH][entries] + counts > cells[ROOM][entries])
        if not len(tight):
            return
        if self._dead > COMPACT_ROWS and 2 * self._dead > self._log.size:
            self._compact()
            cells = self.table.values.arrays
        moved = entries[tight]
        lengths = cells[LENGTH][moved]
        needed = lengths + counts[tight]
        rooms = np.where(lengths > 0, 2 * needed, needed)
        starts = self._log.reserve(int(rooms.sum())) + np.cumsum(rooms) - rooms
        self._log.copy(self._log, expand_ranges(cells[START][moved], lengths), expand_ranges(starts, lengths))
        self._dead += int(cells[ROOM][moved].sum())
        cells[START][moved], cells[ROOM][moved] = starts, rooms

    def _remove(self, entries: Entries) -> None:
        if not len(entries):
            return
        self.table.values.touch(entries)
        cells = self.table.values.arrays
        self._dead += int(cells[ROOM][entries].sum())
        cells[LENGTH][entries] = 0
        cells[ROOM][entries] = 0
        self.table.remove(entries)
        if not self.table.index.count:
            self._log, self._dead = WriteOnceRows(self._types), 0

    def _compact(self) -> None:
        cells = self.table.values.arrays
        lengths = cells[LENGTH].copy()
        log = WriteOnceRows(self._types)
        log.reserve(int(lengths.sum()))
        starts = np.cumsum(lengths) - lengths
        log.copy(self._log, expand_ranges(cells[START], lengths), np.arange(log.size))
        # Replaced and not overwritten: a frozen version still reads the former starts, which belong to the log that it
        # pinned.
        self.table.values.replace(START, starts)
        self.table.values.replace(ROOM, lengths)
        self._log, self._dead = log, 0

    def _elements(self, entries: Entries) -> tuple[npt.NDArray[np.int64], list[pa.Array]]:
        """Return how many live elements each entry has, and their columns."""
        at = np.maximum(entries, 0)
        lengths = np.where(entries >= 0, self.table.values.arrays[LENGTH][at], 0)
        arrays = self._log.take(expand_ranges(self.table.values.arrays[START][at], lengths))
        if self.lifetime is None:
            return lengths, arrays
        alive = self.lifetime.alive(arrays[-1].to_numpy())
        if alive.all():
            return lengths, arrays
        owners = np.repeat(np.arange(len(entries)), lengths)
        mask = pa.array(alive)
        return np.bincount(owners[alive], minlength=len(entries)), [array.filter(mask) for array in arrays]

    def _holds(self, entries: Entries) -> Mask:
        if self.lifetime is None:
            return np.ones(len(entries), np.bool_)
        at = np.maximum(entries, 0)
        lengths = np.where(entries >= 0, self.table.values.arrays[LENGTH][at], 0)
        alive = self.lifetime.alive(
            self._log.last(expand_ranges(self.table.values.arrays[START][at], lengths)).to_numpy()
        )
        return np.bincount(np.repeat(np.arange(len(entries)), lengths)[alive], minlength=len(entries)) > 0

    def _sweep(self, entries: Entries) -> None:
        """Remove expired elements at the front of a list. Their place is lost until the list moves."""
        if not len(entries):
            return
        assert self.lifetime is not None
        cells = self.table.values.arrays
        lengths = cells[LENGTH][entries]
        used = self._log.last(expand_ranges(cells[START][entries], lengths)).to_numpy()
        ends = np.cumsum(lengths)
        first_alive = np.append(np.flatnonzero(self.lifetime.alive(used)), len(used))
        starts = ends - lengths
        dead = np.minimum(first_alive[np.searchsorted(first_alive, starts)], ends) - starts
        self._remove(entries[dead == lengths])
        some = (dead > 0) & (dead < lengths)
        if some.any():
            entries, dead = entries[some], dead[some]
            self.table.values.touch(entries)
            self.table.values.arrays[START][entries] += dead
            self.table.values.arrays[LENGTH][entries] -= dead
            self.table.values.arrays[ROOM][entries] -= dead
            self._dead += int(dead.sum())
