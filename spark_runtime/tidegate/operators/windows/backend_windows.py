"""The open windows of one subtask in memory and in a back end outside memory (S5.2).

New rows are aggregated in memory, as in `HeapWindows`. At each snapshot, and whenever they fill their share of the
memory, the aggregates so far are appended to the back end as a sorted run for each pane, and memory starts again
without them. A row in a run is a part of the aggregates of its key. The parts are merged when a window fires, in the
order in which they were appended, so no key is looked up for a row that arrives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.operators.aggregates.frozen_aggregates import Finish
from tidegate.operators.aggregates.keyed_aggregates import AggregateLayout, KeyedAggregates
from tidegate.operators.keyed_backend import open_keyed_backend
from tidegate.operators.restored_parts import evolve_rows, single_part
from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.windows.heap_windows import HeapWindows
from tidegate.operators.windows.window_progress import WindowProgress
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, AsyncSnapshot, StatePart
from tidegate.state.backend_registry import new_backend
from tidegate.state.keyed_state import Mask, StateDescriptor
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.rocksdb.checkpoint_files import FilesOfPart
from tidegate.state.rocksdb.file_reader import rows_of_files
from tidegate.state.rocksdb.portable_rows import rows_in_key_groups
from tidegate.state.rocksdb.row_states import RunsBackend
from tidegate.state.rocksdb.run_chunks import LAST_RANK, RunLayout, groups_of_ranks
from tidegate.state.state_layout import KEY_PREFIX, RUNS, VALUE_PREFIX, form_of, timer_part, unknown_state

MEMORY_SHARE = 4
"""Divisor of the memory for aggregates that are not in the back end yet: 1/4. They are twice in memory while a snapshot
writes them. The database has 3/8."""
ENTRY_BYTES = 48
"""Bytes of a key in memory besides its columns."""
COLUMN_BYTES = 16
"""Bytes of a column for each key; arrays have room to grow."""
START_COLUMN = "window_start_us"


class BackendWindows(HeapWindows):
    """Panes and windows by number, as in `HeapWindows`; `_panes` has the rows that are not in the back end yet. Not
    thread-safe.

    Keys within a window are in order of key group and hash if the window has rows in the back end.
    """

    def __init__(self, spec: WindowAggSpec, ctx: OperatorContext, name: str) -> None:
        """Open the back end. Args: name: of the state."""
        super().__init__(spec, ctx, name)
        fields = self.layout.state_fields()
        self._key_count = len(spec.keys)
        keys, values = self.layout.keys.schema, pa.schema(fields[self._key_count :])
        self._start = _unused_name(START_COLUMN, keys.names)
        back_end = open_keyed_backend(ctx, keys.append(pa.field(self._start, pa.int64())), namespace_columns=1)
        assert isinstance(back_end, RunsBackend), "windows outside memory need a back end with sorted runs"
        self._back_end = back_end
        names = [*(KEY_PREFIX + key for key in keys.names), *(VALUE_PREFIX + value for value in values.names)]
        schema = pa.schema([field.with_name(name) for field, name in zip([*keys, *values], names, strict=True)])
        self._rows = RunLayout(schema, tuple(names[: self._key_count]), ctx.max_parallelism)
        # Called on writer threads, so it shares no arrays with the windows of the loop.
        own = AggregateLayout(spec.keys, spec.aggregates, spec.input_schema, spec.schema)
        self._runs = back_end.runs(StateDescriptor(name, "value", values), partial(_combined, own, schema))
        self._stored: set[int] = set()
        self._groups = key_group_range(ctx.subtask, ctx.parallelism, ctx.max_parallelism)
        self._is_growing = any(not _is_fixed(field.type) for field in schema)
        self._entry_bytes = ENTRY_BYTES + COLUMN_BYTES * len(schema)
        self._added_bytes = 0

    def limit_memory(self, batch: pa.RecordBatch, columns: Sequence[str]) -> None:
        """Append the aggregates to the back end if they fill their share of the memory."""
        self._limit_memory(batch.select(columns).nbytes if self._is_growing else 0)

    def drop(self) -> int:
        """See `HeapWindows`."""
        return sum(batch.num_rows for batch in self.fire(MAX_WATERMARK))

    def snapshot(self, checkpoint_id: int, *, portable: bool, finish: Finish = lambda rows: rows) -> AsyncSnapshot:
        """Freeze all panes. The time does not depend on the number of keys. Args: finish: see `HeapWindows`."""
        self._runs.append_later(self._taken_panes())
        write = self._back_end.snapshot(checkpoint_id, portable=portable)
        if not portable:
            return write
        return lambda: [evolve_rows(part, lambda rows: finish(self._plain(rows))) for part in write()]

    def restore_files(self, parts: Sequence[StatePart]) -> None:
        """Restore files of the back end, also of versions that stored a row for each key and pane."""
        files = [FilesOfPart.of(part, self._ctx.uid) for part in parts]
        for name in {name for one in files for name in one.states} - {self._name, timer_part("event")}:
            raise unknown_state(name, self._ctx.uid)
        if all(self._has_declared_runs(one.states[self._name]) for one in files):
            self._back_end.restore(parts)
            for start_us in self._runs.starts_us():
                pane = self._pane_at(start_us)
                self._panes[pane] = self._new_pane(0)
                self._stored.add(pane)
        else:
            for one in files:
                self._restore_changed(one)
        self._find_next_end()

    def restore_rows(self, part: StatePart, progress: WindowProgress | None = None) -> None:
        """Restore rows with the columns of `state_schema`, some at a time. A key may have several, in order."""
        width = 2 + self._key_count
        for rows in rows_in_key_groups(part, self._groups):
            starts_us = rows.column(1).to_numpy()
            for start_us in np.unique(starts_us).tolist():
                pane = self._pane_at(start_us)
                if pane not in self._panes:
                    self._panes[pane] = self._new_pane(0)
                some = rows.filter(pa.array(starts_us == start_us))
                keys = pa.RecordBatch.from_arrays(some.columns[2:width], schema=self.layout.keys.schema)
                self._panes[pane].merge(keys, some.columns[width:])
            self._limit_memory(rows.nbytes if self._is_growing else 0)
        self._find_next_end()

    def close(self) -> None:
        """Close the back end."""
        self._back_end.close()

    # ------------------------------------------------------------ firing

    def _fired(self, number: int, passed_us: Int64s | None) -> Iterator[pa.RecordBatch]:
        panes = [pane for pane in self._panes_of(number) if pane in self._panes]
        if self._stored.isdisjoint(panes):
            yield from super()._fired(number, passed_us)
            return
        groups = None
        if passed_us is not None:
            groups = passed_us[self._groups.start : self._groups.stop] < self.end_us(number)
        for some in self._merged(panes, groups):
            yield from self._emit(number, some, None)

    def _merged(self, panes: Sequence[int], groups: Mask | None) -> Iterator[KeyedAggregates]:
        """Yield the aggregates of all keys of some panes, some keys at a time. Args: groups: see `SortedRuns.read`."""
        memory = [_RankedPane(self._panes[pane], self._rows, self._groups, groups) for pane in panes]
        stored = self._runs.read([self.grid.pane_start(pane) for pane in panes], groups)
        nothing: list[list[pa.RecordBatch]] = [[] for _ in panes]
        for end, rows in chain(stored, [(LAST_RANK, nothing)]):
            together = KeyedAggregates(
                self.layout, 0, max((batch.num_rows for some in rows for batch in some), default=0)
            )
            for batches, pane in zip(rows, memory, strict=True):
                for batch in batches:
                    self._merge(together, batch)
                pane.merge_into(together, end)
            if together.size:
                yield together

    def _merge(self, together: KeyedAggregates, rows: pa.RecordBatch) -> None:
        keys = pa.RecordBatch.from_arrays(rows.columns[: self._key_count], schema=self.layout.keys.schema)
        together.merge(keys, rows.columns[self._key_count :])

    def _window(self, number: int, wanted: pa.RecordBatch | None = None) -> KeyedAggregates:
        panes = [pane for pane in self._panes_of(number) if pane in self._panes]
        if wanted is None or self._stored.isdisjoint(panes):
            return super()._window(number, wanted)
        chosen, together = (KeyedAggregates(self.layout, 0, wanted.num_rows) for _ in range(2))
        chosen.open(wanted)
        renamed = pa.RecordBatch.from_arrays(wanted.columns, names=list(self._rows.key_names))
        groups = np.zeros(len(self._groups), np.bool_)
        groups[groups_of_ranks(self._rows.ranks(renamed)) - self._groups.start] = True
        for pane in panes:
            for _, (batches,) in self._runs.read([self.grid.pane_start(pane)], groups):
                for batch in batches:
                    keys = pa.RecordBatch.from_arrays(batch.columns[: self._key_count], schema=self.layout.keys.schema)
                    self._merge(together, batch.filter(pa.array(chosen.find(keys) >= 0)))
            entries = self._panes[pane].find(wanted)
            held = np.flatnonzero(entries >= 0)
            together.merge(wanted.take(pa.array(held)), self._panes[pane].state(entries[held]))
        return together

    def _panes_of(self, number: int) -> range:
        first = number * self._panes_per_step
        return range(first, first + self._panes_per_window)

    def _is_in_memory(self, pane: int) -> bool:
        return pane not in self._stored

    def _delete(self, pane: int) -> None:
        super()._delete(pane)
        if pane in self._stored:
            self._stored.remove(pane)
            self._runs.delete(self.grid.pane_start(pane))

    # ------------------------------------------------------------ memory

    def _limit_memory(self, added_bytes: int) -> None:
        # Aggregates of text, or lists, hold no more than their input.
        self._added_bytes += added_bytes
        entries = sum(pane.size for pane in self._panes.values())
        if entries * self._entry_bytes + self._added_bytes > self._ctx.state_memory_bytes // MEMORY_SHARE:
            self._runs.append(self._taken_panes())

    def _taken_panes(self) -> list[_PaneRows]:
        """Return the rows that are only in memory, and forget them: they are in the back end from now on."""
        taken = []
        for number, pane in self._panes.items():
            if pane.size:
                taken.append(_PaneRows(self.grid.pane_start(number), pane, self._rows))
                self._panes[number] = self._new_pane(pane.size)
                self._stored.add(number)
        self._added_bytes = 0
        return taken

    # ------------------------------------------------------------ snapshots

    def _pane_at(self, start_us: int) -> int:
        return int(self.grid.panes(np.array([start_us]))[0])

    def _has_declared_runs(self, found: pa.Schema) -> bool:
        start = pa.field(KEY_PREFIX + self._start, pa.int64())
        schema = self._rows.schema.insert(self._key_count, start).insert(0, pa.field(KEY_GROUP_COLUMN, pa.uint16()))
        return (form_of(found), found.names, found.types) == (RUNS, schema.names, schema.types)

    def _restore_changed(self, files: FilesOfPart) -> None:
        """Restore files with other columns, or of former versions, which stored a row for each key and pane."""
        ctx, renamed = self._ctx, dict(self._spec.renamed)

        def restore(part: StatePart) -> None:
            plain = evolve_rows(part, self._plain)
            self.restore_rows(single_part(plain, self.state_schema, ctx.uid, renamed, fills=False))

        # Checked even if this subtask needs no row of the files.
        restore(StatePart(self._name, "keyed", files.states[self._name].empty_table()))
        if files.key_groups.stop > self._groups.start and self._groups.stop > files.key_groups.start:
            with rows_of_files(
                files.part, ctx.max_parallelism, partial(new_backend, ctx.state_backend), ctx.scratch
            ) as parts:
                for part in parts:
                    if part.name == self._name:
                        restore(part)

    def _plain(self, table: pa.Table) -> pa.Table:
        """Convert rows of the back end to rows as windows in memory write them."""
        start = len([name for name in table.schema.names if name.startswith(KEY_PREFIX)])
        columns = [table.column(0), table.column(start), *table.columns[1:start], *table.columns[start + 1 :]]
        names = [name.removeprefix(VALUE_PREFIX) for name in table.schema.names]
        return pa.table(columns, names=[KEY_GROUP_COLUMN, START_COLUMN, *names[1:start], *names[start + 1 :]])


class _PaneRows:
    """The rows of a pane that does not change any more; see `NewRows`."""

    def __init__(self, start_us: int, pane: KeyedAggregates, layout: RunLayout) -> None:
        self.start_us = start_us
        self._pane, self._layout = pane, layout

    def keys(self) -> pa.RecordBatch:
        """See `NewRows`."""
        keys = self._pane.keys(0, self._pane.size)
        return pa.RecordBatch.from_arrays(keys.columns, names=list(self._layout.key_names))

    def rows(self, numbers: npt.NDArray[Any]) -> pa.RecordBatch:
        """See `NewRows`."""
        entries = numbers.astype(np.int32)
        arrays = [*self._pane.keys_of(entries).columns, *self._pane.state(entries)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._layout.schema)


class _RankedPane:
    """The rows of a pane in memory, in order of rank."""

    def __init__(self, pane: KeyedAggregates, layout: RunLayout, own: range, groups: Mask | None) -> None:
        self._pane = pane
        ranks = layout.ranks(_PaneRows(0, pane, layout).keys())
        order = np.argsort(ranks)
        if groups is not None:
            order = order[groups[groups_of_ranks(ranks[order]) - own.start]]
        self._entries, self._ranks = order.astype(np.int32), ranks[order]
        self._next = 0

    def merge_into(self, together: KeyedAggregates, end: int) -> None:
        """Merge the rows with a rank less than `end` that were not merged before."""
        first, self._next = self._next, int(np.searchsorted(self._ranks, np.uint64(end)))
        if self._next > first:
            entries = self._entries[first : self._next]
            together.merge(self._pane.keys_of(entries), self._pane.state(entries))


def _combined(layout: AggregateLayout, schema: pa.Schema, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with one row for each key. See `Combine`."""
    together = KeyedAggregates(layout, 0, rows.num_rows)
    keys = pa.RecordBatch.from_arrays(rows.columns[: len(layout.keys.schema)], schema=layout.keys.schema)
    together.merge(keys, rows.columns[len(layout.keys.schema) :])
    arrays = [*together.keys(0, together.size).columns, *together.state(slice(0, together.size))]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _is_fixed(type_: pa.DataType) -> bool:
    return bool(pa.types.is_primitive(type_))


def _unused_name(name: str, taken: Sequence[str]) -> str:
    while name in taken:
        name += "_"
    return name
