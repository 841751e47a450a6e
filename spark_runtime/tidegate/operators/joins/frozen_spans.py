"""Writes the rows of a join in memory into a snapshot, while the join continues to change them (S5.2, S5.3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa

from tidegate.operators.joins.join_specs import MATCHED, SIDES, IntervalMatch, StreamJoinSpec
from tidegate.operators.joins.join_times import JoinTimes
from tidegate.operators.joins.kept_spans import Spans
from tidegate.operators.joins.span_table import FrozenSpanTable
from tidegate.snapshot.parts import Blob, StatePart
from tidegate.state.copy_on_write import CHUNK_ENTRIES
from tidegate.state.heap.frozen_state import INLINE_BYTES, INLINE_ENTRIES
from tidegate.state.keyed_state import StateDescriptor
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.keys.key_hash import hash_keys, key_groups
from tidegate.state.state_layout import part_schema, timer_part, timer_schema


class StoredSide:
    """The columns of one side's rows in memory: the columns of its state without marks, then keys that the state lacks.

    Attributes:
        descriptor: of its state.
        tracks: its matches are tracked.
        types: of the columns.
    """

    def __init__(self, spec: StreamJoinSpec, side: int) -> None:
        self.descriptor: StateDescriptor = next(d for d in spec.descriptors if d.name == SIDES[side])
        self.tracks = spec.tracks_matches(side)
        kept = list(self.descriptor.columns)
        self._kept = pa.schema(kept[:-1] if self.tracks else kept)
        self._keys = spec.inputs[side].keys
        self._times = None if spec.inputs[side].time_column is None else JoinTimes(spec.inputs[side])
        self._key_schema = spec.key_schema
        lacking = [name for name in self._keys if name not in self._kept.names]
        self._names = [*self._kept.names, *lacking]
        given = spec.inputs[side].schema
        self.types = [*self._kept.types, *(given.field(name).type for name in lacking)]

    def columns_of(self, rows: pa.RecordBatch) -> list[pa.Array]:
        """Return the columns of arrived rows."""
        return [rows.column(name) for name in self._names]

    def rows_of(self, columns: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return stored rows with the columns of the state."""
        return pa.RecordBatch.from_arrays(columns[: len(self._kept)], schema=self._kept)

    def keys_of(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Return the keys of stored rows."""
        return [columns[self._names.index(name)] for name in self._keys]

    def restored(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of a snapshot as they arrived."""
        width = 1 + len(self._key_schema)
        kept = dict(zip(self._kept.names, rows.columns[width:], strict=False))
        keys = dict(zip(self._keys, rows.columns[1:width], strict=False))
        return pa.RecordBatch.from_arrays([kept.get(n, keys.get(n)) for n in self._names], names=self._names)

    def positions_in(self, rows: pa.RecordBatch, *, by_time: bool) -> Int64s:
        """Return the positions of rows of a snapshot: their times, or the starts of their spans."""
        if by_time and self._times is not None:
            return self._times.of(self.rows_of(self.restored(rows).columns))
        starts: Int64s = rows.column(len(self._key_schema)).to_numpy()
        return starts


class FrozenSpans:
    """The rows of both sides at one moment, in the states and timers that a keyed back end would have.

    A state of many rows is written as one blob for each `CHUNK_ENTRIES` rows of a table. A blob keeps its id while no
    row or mark is added to it.
    """

    def __init__(
        self,
        spec: StreamJoinSpec,
        spans: Spans,
        sides: tuple[StoredSide, StoredSide],
        max_parallelism: int,
        tables: tuple[Sequence[FrozenSpanTable], ...],
    ) -> None:
        """Args: tables: of each side, ascending."""
        self._spec, self._spans, self._sides = spec, spans, sides
        self._max_parallelism = max_parallelism
        self._tables = tables
        self._by_time = isinstance(spec.bounds, IntervalMatch)

    def parts(self) -> list[StatePart]:
        """Return the parts. Call it once, on any thread."""
        keys = self._spec.key_schema
        found = [
            self._part(side.descriptor.name, part_schema(side.descriptor, keys), [number], self._rows)
            for number, side in enumerate(self._sides)
        ]
        found.append(self._part(timer_part("event"), timer_schema(keys), [0, 1], self._timers))
        empty = [(timer_part("processing"), timer_schema(keys))]
        # Marks are in the rows. Their state is written without rows, because a back end has it.
        marks = {MATCHED.format(name) for name in SIDES}
        empty += [(d.name, part_schema(d, keys)) for d in self._spec.descriptors if d.name in marks]
        return [*found, *(StatePart(name, "keyed", schema.empty_table()) for name, schema in empty)]

    def _part(
        self,
        name: str,
        schema: pa.Schema,
        sides: Sequence[int],
        read: Callable[[int, FrozenSpanTable, slice, pa.Schema], pa.Table],
    ) -> StatePart:
        """Return a state of the rows that `read` returns for parts of the tables of these sides."""
        tables = [(side, table) for side in sides for table in self._tables[side]]
        size = sum(table.size for _, table in tables)
        size_bytes = sum(table.size * table.row_bytes for _, table in tables)
        if size <= INLINE_ENTRIES and size_bytes <= INLINE_BYTES:
            pieces = [read(side, table, part, schema) for side, table in tables for part in _chunks(table)]
            return StatePart(name, "keyed", pa.concat_tables([schema.empty_table(), *pieces]))
        blobs = tuple(
            Blob(_id(name, table, part), partial(read, side, table, part, schema), CHUNK_ENTRIES * table.row_bytes)
            for side, table in tables
            for part in _chunks(table)
        )
        return StatePart(name, "keyed", schema.empty_table(), blobs=blobs)

    def _rows(self, side: int, table: FrozenSpanTable, part: slice, schema: pa.Schema) -> pa.Table:
        columns = table.take(part)
        groups, keys, _ = self._keyed(side, table, part, columns)
        values = self._sides[side].rows_of(columns).columns
        if table.matched is not None:
            values.append(pa.array(table.matched[part].astype(np.bool_)))
        return pa.Table.from_arrays([groups, *keys, *values], schema=schema)

    def _timers(self, side: int, table: FrozenSpanTable, part: slice, schema: pa.Schema) -> pa.Table:
        """Return the timers of rows: at the end of the span and, if the row waits for a match, when it is due. A timer
        may be repeated."""
        groups, keys, starts = self._keyed(side, table, part, table.take(part))
        ends = pa.Table.from_arrays([groups, *keys, pa.array(self._spans.ends(side, starts))], schema=schema)
        if table.matched is None or not self._spec.emits_unmatched(side):
            return ends
        due = pa.array(self._spans.due(side, starts, table.positions[part]))
        waiting = pa.Table.from_arrays([groups, *keys, due], schema=schema).filter(pa.array(table.matched[part] == 0))
        return pa.concat_tables([ends, waiting])

    def _keyed(
        self, side: int, table: FrozenSpanTable, part: slice, columns: Sequence[pa.Array]
    ) -> tuple[pa.Array, list[pa.Array], Int64s]:
        """Return key groups, key columns with the start of the span, and these starts."""
        key_schema = pa.schema(list(self._spec.key_schema)[:-1])
        keys = pa.RecordBatch.from_arrays(self._sides[side].keys_of(columns), schema=key_schema)
        groups = key_groups(hash_keys(keys, key_schema.names), self._max_parallelism)
        positions = table.positions[part]
        starts = self._spans.assign(positions)[1] if self._by_time else positions
        return pa.array(groups), [*keys.columns, pa.array(starts)], starts


def _chunks(table: FrozenSpanTable) -> Iterator[slice]:
    return (slice(at, min(at + CHUNK_ENTRIES, table.size)) for at in range(0, table.size, CHUNK_ENTRIES))


def _id(name: str, table: FrozenSpanTable, part: slice) -> str:
    marks = 0 if table.matched is None else int(table.matched[part].sum())
    return f"{name}-{table.serial}-{part.start // CHUNK_ENTRIES}-{part.stop - part.start}-{marks}"
