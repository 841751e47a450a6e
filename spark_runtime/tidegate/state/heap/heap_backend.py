"""The heap back end: all state in memory, in copy-on-write columns (S5.2).

`snapshot` freezes the present state in time that does not depend on its size. The returned function writes it while the
back end continues. States of more than `frozen_state.INLINE_ENTRIES` entries are written as one blob for each chunk,
and a chunk that has not been written to since an earlier snapshot has the same blob.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

from tidegate.errors import SnapshotError
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, AsyncSnapshot, StatePart
from tidegate.state.heap.frozen_state import FrozenState
from tidegate.state.heap.heap_timers import ColumnarTimers
from tidegate.state.heap.list_columns import HeapList
from tidegate.state.heap.map_columns import HeapMap
from tidegate.state.heap.value_columns import HeapMerging, HeapValue
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
from tidegate.state.keys.key_sets import DistinctKeyRows, KeyBatch
from tidegate.state.state_layout import (
    KEY_PREFIX,
    TTL_COLUMN,
    foreign_format_error,
    require_same_columns,
    timer_part,
    unknown_state,
)

SWEPT_ENTRIES = 1024
"""Entries of each state with a TTL that are checked for every batch, and removed if they have expired."""

TIMER_KINDS: tuple[TimerKind, ...] = ("event", "processing")

_AnyState = HeapValue | HeapList | HeapMap
_State = TypeVar("_State", HeapValue, HeapMerging, HeapList, HeapMap)
MAX_SNAPSHOT_BYTES = 5 * 2**20
"""Most uncompressed bytes of a subtask's keyed state and timers in a snapshot, which travels as one message."""


class HeapBackend(KeyedStateBackend):
    """See the module and `KeyedStateBackend`."""

    def __init__(self) -> None:
        self._states: dict[str, _AnyState] = {}

    def open(self, ctx: BackendContext) -> None:
        """See `KeyedStateBackend`."""
        self._ctx = ctx
        self._keyed = DistinctKeyRows(ctx)
        self._timers = {kind: ColumnarTimers(kind, self._keyed) for kind in TIMER_KINDS}

    def keys(self, batch: pa.RecordBatch) -> KeyBatch:
        """See `KeyedStateBackend`. Also removes expired entries."""
        for state in self._states.values():
            state.sweep(SWEPT_ENTRIES)
        return self._keyed.of(batch)

    def value(self, descriptor: StateDescriptor) -> ValueState:
        """See `KeyedStateBackend`."""
        return self._state(descriptor, HeapValue)

    def list(self, descriptor: StateDescriptor) -> ListState:
        """See `KeyedStateBackend`."""
        return self._state(descriptor, HeapList)

    def map(self, descriptor: StateDescriptor) -> MapState:
        """See `KeyedStateBackend`."""
        return self._state(descriptor, HeapMap)

    def merging(self, descriptor: StateDescriptor) -> MergingState:
        """See `KeyedStateBackend`."""
        return self._state(descriptor, HeapMerging)

    def timers(self, kind: TimerKind) -> TimerService:
        """See `KeyedStateBackend`."""
        return self._timers[kind]

    def all_keys(self, descriptor: StateDescriptor, limit: int) -> Iterator[KeySet]:
        """See `KeyedStateBackend`."""
        yield from self._states[descriptor.name].all_keys(limit)

    def snapshot(self, checkpoint_id: int, *, portable: bool = False) -> AsyncSnapshot:
        """See `KeyedStateBackend`."""
        frozen = self._freeze()
        return lambda: [state.part() for state in frozen]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """See `KeyedStateBackend`."""
        timers = {timer_part(kind): found for kind, found in self._timers.items()}
        for part in parts:
            if part.format != "rows":
                raise foreign_format_error(part, list(self._states), self._ctx.uid)
            for table in part.tables():
                state = self._states.get(part.name) or timers.get(part.name)
                if state is None:
                    raise unknown_state(part.name, self._ctx.uid)
                require_same_columns(part.name, table.schema, state.schema, self._ctx.uid)
                for batch in table.to_batches():
                    self._take_back(state, self._own_rows(batch))

    def close(self) -> None:
        """See `KeyedStateBackend`."""
        self._states.clear()

    def _freeze(self) -> Sequence[FrozenState]:
        return [state.freeze() for state in (*self._states.values(), *self._timers.values())]

    def _state(self, descriptor: StateDescriptor, kind: type[_State]) -> _State:
        found = self._states.get(descriptor.name)
        if found is None:
            found = self._states[descriptor.name] = kind(descriptor, self._keyed, self._ctx.now_ms)
        assert isinstance(found, kind), f"state {descriptor.name!r} is of kind {found.descriptor.kind}"
        return found

    def _own_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        groups = batch.column(KEY_GROUP_COLUMN).to_numpy()
        mine = (groups >= self._ctx.key_groups.start) & (groups < self._ctx.key_groups.stop)
        return batch if mine.all() else batch.filter(pa.array(mine))

    def _take_back(self, state: _AnyState | ColumnarTimers, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        keys = self._keyed.distinct([batch.column(KEY_PREFIX + name) for name in self._keyed.schema.names])
        if isinstance(state, ColumnarTimers):
            state.take_back(keys, batch)
        elif state.lifetime is None:
            state.take_back(keys, batch, None)
        else:
            state.take_back(keys, batch, batch.column(TTL_COLUMN).to_numpy().astype(np.int64))


class MemoryBackend(HeapBackend):
    """See the module and `KeyedStateBackend`."""

    def __init__(self, limit_bytes: int = MAX_SNAPSHOT_BYTES) -> None:
        """Create the back end. Args: limit_bytes: see `MAX_SNAPSHOT_BYTES`."""
        super().__init__()
        self._limit_bytes = limit_bytes

    def snapshot(self, checkpoint_id: int, *, portable: bool = False) -> AsyncSnapshot:
        """See `KeyedStateBackend`. No part has blobs.

        Raises:
            SnapshotError: raised by the returned function: the parts are larger than the limit.
        """
        frozen = self._freeze()

        def write() -> Sequence[StatePart]:
            parts: list[StatePart] = []
            taken_bytes = 0
            for state in frozen:
                tables: list[pa.Table] = []
                for table in state.tables():
                    tables.append(table)
                    taken_bytes += table.nbytes
                    if taken_bytes > self._limit_bytes:
                        raise self._too_large(checkpoint_id, state.name, taken_bytes)
                parts.append(StatePart(state.name, "keyed", state.table(tables)))
            return parts

        return write

    def _too_large(self, checkpoint_id: int, name: str, taken_bytes: int) -> SnapshotError:
        return SnapshotError(
            f"the state of a subtask takes at least {taken_bytes} bytes, but a snapshot of the back end 'memory' "
            f"holds at most {self._limit_bytes} bytes",
            where=f"checkpoint {checkpoint_id}, operator {self._ctx.uid!r}, state {name!r}",
            cause="the 'memory' back end sends a snapshot in one message",
            remedy="Use state_backend='heap'",
        )
