"""The reference back end: plain dicts, one row at a time. Slow and easy to believe; others are compared with it.

Every state is a dict from the canonical bytes of a key to a dict of cells: one cell under None for a value or an
accumulator, elements of a list under rising numbers, entries of a map under the canonical bytes of their map key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from state_suites.model_cells import Cell, ModelCells, ModelKeys, one_batch, row_ids, unprefixed
from state_suites.model_states import ModelList, ModelMap, ModelMerging, ModelTimers, ModelValue
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, AsyncSnapshot, StatePart
from tidegate.state.keyed_state import (
    BackendContext,
    KeyedStateBackend,
    KeySet,
    ListState,
    MapState,
    MergingState,
    StateDescriptor,
    TimerKind,
    TimerService,
    ValueState,
)
from tidegate.state.keys.key_bytes import key_array
from tidegate.state.keys.key_hash import hash_keys, key_groups
from tidegate.state.state_layout import (
    KEY_PREFIX,
    TIME_COLUMN,
    part_schema,
    require_same_columns,
    result_schema,
    timer_part,
    timer_schema,
    unknown_state,
)

TIMER_KINDS: tuple[TimerKind, ...] = ("event", "processing")


class ModelBackend(KeyedStateBackend):
    """See the module."""

    def open(self, ctx: BackendContext) -> None:
        """See `KeyedStateBackend`."""
        self._ctx = ctx
        self._states: dict[str, ModelCells] = {}
        self._seen: dict[bytes, pa.RecordBatch] = {}
        self._timers = {kind: ModelTimers(self._keys_of_ids) for kind in TIMER_KINDS}

    def keys(self, batch: pa.RecordBatch) -> ModelKeys:
        """See `KeyedStateBackend`."""
        columns = pa.RecordBatch.from_arrays(
            [key_array(batch, name) for name in self._ctx.key_columns], schema=self._ctx.key_schema
        )
        numbers: dict[bytes, int] = {}
        rows = [numbers.setdefault(key, len(numbers)) for key in row_ids(columns)]
        for row, key in enumerate(row_ids(columns)):
            self._seen.setdefault(key, columns.slice(row, 1))
        return replace(self._keys_of_ids(list(numbers)), rows=np.array(rows, np.int32))

    def value(self, descriptor: StateDescriptor) -> ValueState:
        """See `KeyedStateBackend`."""
        return ModelValue(self._cells(descriptor))

    def list(self, descriptor: StateDescriptor) -> ListState:
        """See `KeyedStateBackend`."""
        return ModelList(self._cells(descriptor))

    def map(self, descriptor: StateDescriptor) -> MapState:
        """See `KeyedStateBackend`."""
        return ModelMap(self._cells(descriptor))

    def merging(self, descriptor: StateDescriptor) -> MergingState:
        """See `KeyedStateBackend`."""
        return ModelMerging(self._cells(descriptor))

    def timers(self, kind: TimerKind) -> TimerService:
        """See `KeyedStateBackend`."""
        return self._timers[kind]

    def all_keys(self, descriptor: StateDescriptor, limit: int) -> Iterator[KeySet]:
        """See `KeyedStateBackend`."""
        cells = self._states[descriptor.name]
        found = [key for key in list(cells.held) if cells.of(key)]
        for start in range(0, len(found), limit):
            yield self._keys_of_ids(found[start : start + limit])

    def snapshot(self, checkpoint_id: int, *, portable: bool = False) -> AsyncSnapshot:
        """See `KeyedStateBackend`."""
        frozen = {
            name: (cells.descriptor, [(key, cell) for key in cells.held for cell in cells.of(key).values()])
            for name, cells in self._states.items()
        }
        timers = {kind: sorted(self._timers[kind].held) for kind in TIMER_KINDS}
        seen = dict(self._seen)

        def write() -> Sequence[StatePart]:
            parts = [self._state_part(name, *state, seen) for name, state in frozen.items()]
            return parts + [self._timer_part(kind, found, seen) for kind, found in timers.items()]

        return write

    def restore(self, parts: Sequence[StatePart]) -> None:
        """See `KeyedStateBackend`."""
        for part in parts:
            kinds = [kind for kind in TIMER_KINDS if timer_part(kind) == part.name]
            if not kinds and part.name not in self._states:
                raise unknown_state(part.name, self._ctx.uid)
            schema = self._ctx.key_schema
            declared = timer_schema(schema) if kinds else part_schema(self._states[part.name].descriptor, schema)
            for table in part.tables():
                require_same_columns(part.name, table.schema, declared, self._ctx.uid)
                for batch in table.combine_chunks().to_batches():
                    self._take_back(part.name, kinds, batch)

    def close(self) -> None:
        """See `KeyedStateBackend`."""

    def _cells(self, descriptor: StateDescriptor) -> ModelCells:
        return self._states.setdefault(descriptor.name, ModelCells(descriptor, self._ctx.now_ms))

    def _keys_of_ids(self, ids: Sequence[bytes]) -> ModelKeys:
        columns = one_batch([self._seen[key] for key in ids], self._ctx.key_schema)
        groups = key_groups(hash_keys(columns, self._ctx.group_columns), self._ctx.max_parallelism)
        return ModelKeys(len(ids), np.arange(len(ids), dtype=np.int32), groups, tuple(ids), columns)

    def _state_part(
        self, name: str, descriptor: StateDescriptor, rows: Sequence[tuple[bytes, Cell]], seen: dict[bytes, Any]
    ) -> StatePart:
        held = [cell for _, cell in rows]
        maps = one_batch([cell.map_key for cell in held if cell.map_key is not None], descriptor.map_key)
        arrays = maps.columns + one_batch([cell.columns for cell in held], result_schema(descriptor)).columns
        if descriptor.ttl is not None:
            arrays.append(pa.array([cell.used_ms for cell in held], pa.int64()))
        return self._part(name, [key for key, _ in rows], arrays, part_schema(descriptor, self._ctx.key_schema), seen)

    def _timer_part(self, kind: TimerKind, found: Sequence[tuple[int, bytes]], seen: dict[bytes, Any]) -> StatePart:
        times = pa.array([time_us for time_us, _ in found], pa.int64())
        schema = timer_schema(self._ctx.key_schema)
        return self._part(timer_part(kind), [key for _, key in found], [times], schema, seen)

    def _part(
        self, name: str, ids: Sequence[bytes], arrays: Sequence[pa.Array], schema: pa.Schema, seen: dict[bytes, Any]
    ) -> StatePart:
        columns = one_batch([seen[key] for key in ids], self._ctx.key_schema)
        groups = key_groups(hash_keys(columns, self._ctx.group_columns), self._ctx.max_parallelism)
        table = pa.Table.from_arrays([pa.array(groups), *columns.columns, *arrays], schema=schema)
        order = np.argsort(groups, kind="stable")
        return StatePart(name, "keyed", table.take(pa.array(order)))

    def _take_back(self, name: str, kinds: Sequence[TimerKind], batch: pa.RecordBatch) -> None:
        keys = unprefixed(batch, KEY_PREFIX, self._ctx.key_schema)
        for row, key in enumerate(row_ids(keys)):
            if batch.column(KEY_GROUP_COLUMN)[row].as_py() not in self._ctx.key_groups:
                continue
            self._seen.setdefault(key, keys.slice(row, 1))
            if kinds:
                self._timers[kinds[0]].held.add((batch.column(TIME_COLUMN)[row].as_py(), key))
            else:
                self._states[name].take_back(key, batch.slice(row, 1))
