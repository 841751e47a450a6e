"""A keyed state back end driven with Python rows, and its snapshots held as a store would hold them.

Rows are tuples; what comes back is comparable with `==`: NaN is the text "nan", negative zero "-0.0".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from state_suites.model_cells import row_ids
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.parts import Blob, StatePart
from tidegate.state.keyed_state import (
    BackendContext,
    Elements,
    Found,
    KeyedStateBackend,
    KeySet,
    Mask,
    StateDescriptor,
    TimerKind,
)
from tidegate.state.keys.key_hash import hash_keys, key_groups

Row: TypeAlias = tuple[Any, ...]

MAX_PARALLELISM = 16
"""Key groups of what is tested: few, so that few keys fill them."""
INT_KEY = pa.schema([("k", pa.int64())])


def plain(value: Any) -> Any:
    """`value` as something that `==` compares by content."""
    if isinstance(value, float) and (math.isnan(value) or (value == 0 and math.copysign(1, value) < 0)):
        return "nan" if math.isnan(value) else "-0.0"
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(plain(item) for item in value)
    return value


def batch_of(rows: Sequence[Row], schema: pa.Schema) -> pa.RecordBatch:
    """Rows as a batch."""
    arrays = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def rows_of(columns: pa.RecordBatch) -> list[Row]:
    """A batch as comparable rows."""
    lists = [column.to_pylist() for column in columns.columns]
    return [plain(tuple(values[row] for values in lists)) for row in range(columns.num_rows)]


class FakeClock:
    """The injected clock."""

    def __init__(self) -> None:
        self.ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


class SnapshotShelf:
    """Blobs as a store keeps them: by id, each content once."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def take(self, parts: Sequence[StatePart], known: frozenset[str] = frozenset()) -> list[StatePart]:
        """Write the parts of a snapshot; gives them as a restore finds them.

        Args:
            parts: of a snapshot.
            known: ids of blobs that completed checkpoints have: they are not read.
        """
        taken: list[StatePart] = []
        for part in parts:
            for blob in part.blobs:
                if blob.id not in known:
                    data = b"".join(blob.pieces())
                    assert self.blobs.setdefault(blob.id, data) == data, f"blob {blob.id} has two contents"
            ids = [blob.id for blob in part.blobs]
            taken.append(replace(part, blobs=tuple(Blob(id, self._reader(id)) for id in ids)))
        return taken

    def _reader(self, id: str) -> Callable[[], bytes]:
        return lambda: self.blobs[id]


class PlainBackend:
    """An open back end of one subtask."""

    def __init__(
        self,
        backend: KeyedStateBackend,
        *,
        scratch: str,
        clock: FakeClock,
        key_schema: pa.Schema = INT_KEY,
        index: int = 0,
        parallelism: int = 1,
        namespace_columns: int = 0,
    ) -> None:
        """Args: backend: not yet open. The others make its context."""
        self.backend = backend
        self.key_schema = key_schema
        self.groups = key_group_range(index, parallelism, MAX_PARALLELISM)
        self.clock = clock
        names, memory_bytes = tuple(key_schema.names), 64 * 2**20
        place = ("tested", key_schema, names, MAX_PARALLELISM, self.groups, clock, scratch, memory_bytes)
        self.context = BackendContext(*place, namespace_columns)
        backend.open(self.context)

    def key_batch(self, keys: Sequence[Row]) -> pa.RecordBatch:
        """Keys as a batch with a further column."""
        columns = batch_of(keys, self.key_schema)
        schema = pa.schema([pa.field("payload", pa.int64()), *self.key_schema])
        return pa.RecordBatch.from_arrays([pa.array(range(len(keys)), pa.int64()), *columns.columns], schema=schema)

    def keys(self, keys: Sequence[Row]) -> KeySet:
        """The key set of these rows."""
        return self.backend.keys(self.key_batch(keys))

    def mine(self, keys: Sequence[Row]) -> Sequence[Row]:
        """Those of `keys` whose key groups this subtask owns."""
        if not keys:
            return []
        batch = batch_of(keys, self.key_schema)
        groups = key_groups(hash_keys(batch, self.context.group_columns), MAX_PARALLELISM)
        return [key for key, group in zip(keys, groups.tolist(), strict=True) if group in self.groups]

    def value(self, descriptor: StateDescriptor) -> PlainValue:
        """A value state."""
        return PlainValue(self, descriptor)

    def list(self, descriptor: StateDescriptor) -> PlainList:
        """A list state."""
        return PlainList(self, descriptor)

    def map(self, descriptor: StateDescriptor) -> PlainMap:
        """A map state."""
        return PlainMap(self, descriptor)

    def merging(self, descriptor: StateDescriptor) -> PlainMerging:
        """A reducing or aggregating state."""
        return PlainMerging(self, descriptor)

    def timers(self, kind: TimerKind = "event") -> PlainTimers:
        """Timers."""
        return PlainTimers(self, kind)

    def all_keys(self, descriptor: StateDescriptor, limit: int = 3) -> set[bytes]:
        """Canonical bytes of every key in a state; each comes once, in sets within the limit, of its own groups."""
        found: set[bytes] = set()
        for keys in self.backend.all_keys(descriptor, limit):
            ids = row_ids(keys.columns())
            assert 0 < keys.size == len(ids) <= limit, f"{len(ids)} keys, size {keys.size}, limit {limit}"
            assert not found & set(ids) and len(set(ids)) == len(ids), "a key came twice"
            assert set(keys.groups.tolist()) <= set(self.groups)
            found |= set(ids)
        return found

    def ids(self, keys: Sequence[Row]) -> set[bytes]:
        """Canonical bytes of keys."""
        return set(row_ids(batch_of(keys, self.key_schema)))

    def taken(self, checkpoint_id: int, shelf: SnapshotShelf, *, portable: bool = False) -> Sequence[StatePart]:
        """A snapshot, written to `shelf`."""
        return shelf.take(self.backend.snapshot(checkpoint_id, portable=portable)())


class _PlainState:
    def __init__(self, owner: PlainBackend, descriptor: StateDescriptor) -> None:
        self._owner = owner
        self.descriptor = descriptor
        self._state: Any = None

    def clear(self, keys: Sequence[Row], where: Callable[[Row], bool] | None = None) -> None:
        """Clear these keys, or those that `where` says."""
        self._state.clear(*self._masked(keys, where))

    def _masked(self, keys: Sequence[Row], where: Callable[[Row], bool] | None) -> tuple[KeySet, Mask | None]:
        key_set = self._owner.keys(keys)
        if where is None:
            return key_set, None
        mask = np.zeros(key_set.size, np.bool_)
        for row, key in enumerate(keys):
            mask[key_set.rows[row]] = where(key)
        return key_set, mask

    def _found(self, found: Found, rows: Sequence[int]) -> list[Row | None]:
        values = rows_of(found.columns)
        assert len(values) == len(found.present)
        return [values[row] if found.present[row] else None for row in rows]


class PlainValue(_PlainState):
    """See `ValueState`."""

    def __init__(self, owner: PlainBackend, descriptor: StateDescriptor) -> None:
        super().__init__(owner, descriptor)
        self._state = owner.backend.value(descriptor)

    def get(self, keys: Sequence[Row]) -> Sequence[Row | None]:
        """The value of each key, None where there is none."""
        key_set = self._owner.keys(keys)
        return self._found(self._state.get(key_set), key_set.rows.tolist())

    def put(self, pairs: Sequence[tuple[Row, Row]], where: Callable[[Row], bool] | None = None) -> None:
        """Set values; of equal keys the last counts."""
        key_set, mask = self._masked([key for key, _ in pairs], where)
        rows: list[Row] = [()] * key_set.size
        for number, (_, value) in zip(key_set.rows.tolist(), pairs, strict=True):
            rows[number] = value
        self._state.put(key_set, batch_of(rows, self.descriptor.columns), mask)


class PlainList(_PlainState):
    """See `ListState`."""

    def __init__(self, owner: PlainBackend, descriptor: StateDescriptor) -> None:
        super().__init__(owner, descriptor)
        self._state = owner.backend.list(descriptor)

    def get(self, keys: Sequence[Row]) -> Sequence[Sequence[Row]]:
        """The elements of each key."""
        key_set = self._owner.keys(keys)
        return cut(self._state.get(key_set), key_set)

    def append(self, pairs: Sequence[tuple[Row, Row]]) -> None:
        """Append to keys, in order."""
        key_set = self._owner.keys([key for key, _ in pairs])
        self._state.append(key_set, key_set.rows, batch_of([row for _, row in pairs], self.descriptor.columns))

    def put(self, lists: Sequence[tuple[Row, Sequence[Row]]]) -> None:
        """Replace lists; keys are distinct."""
        key_set = self._owner.keys([key for key, _ in lists])
        offsets = np.cumsum([0, *(len(rows) for _, rows in lists)], dtype=np.int64)
        rows = [row for _, rows in lists for row in rows]
        self._state.put(key_set, Elements(offsets, batch_of(rows, self.descriptor.columns)))


class PlainMap(_PlainState):
    """See `MapState`."""

    def __init__(self, owner: PlainBackend, descriptor: StateDescriptor) -> None:
        super().__init__(owner, descriptor)
        self._state = owner.backend.map(descriptor)

    def get(self, pairs: Sequence[tuple[Row, Row]]) -> Sequence[Row | None]:
        """The value of each (key, map key)."""
        key_set, map_keys = self._pairs(pairs)
        return self._found(self._state.get(key_set, key_set.rows, map_keys), range(len(pairs)))

    def put(self, entries: Sequence[tuple[Row, Row, Row]]) -> None:
        """Set (key, map key, value)."""
        key_set, map_keys = self._pairs([(key, at) for key, at, _ in entries])
        columns = batch_of([value for _, _, value in entries], self.descriptor.columns)
        self._state.put(key_set, key_set.rows, map_keys, columns)

    def remove(self, pairs: Sequence[tuple[Row, Row]]) -> None:
        """Remove (key, map key)."""
        key_set, map_keys = self._pairs(pairs)
        self._state.remove(key_set, key_set.rows, map_keys)

    def entries(self, keys: Sequence[Row]) -> Sequence[dict[bytes, Row]]:
        """Of each key: canonical bytes of map key -> value."""
        key_set = self._owner.keys(keys)
        found = self._state.entries(key_set)
        width = len(self.descriptor.map_key)
        names = [*self.descriptor.map_key.names, *self.descriptor.columns.names]
        assert found.columns.schema.names == names
        maps = pa.RecordBatch.from_arrays(found.columns.columns[:width], schema=self.descriptor.map_key)
        ids = row_ids(maps)
        lists = cut(Elements(found.offsets, found.columns), key_set)
        starts = [int(found.offsets[number]) for number in key_set.rows]
        return [
            {ids[start + i]: row[width:] for i, row in enumerate(rows)}
            for start, rows in zip(starts, lists, strict=True)
        ]

    def map_ids(self, rows: Sequence[Row]) -> Sequence[bytes]:
        """Canonical bytes of map keys."""
        return row_ids(batch_of(rows, self.descriptor.map_key))

    def _pairs(self, pairs: Sequence[tuple[Row, Row]]) -> tuple[KeySet, pa.RecordBatch]:
        key_set = self._owner.keys([key for key, _ in pairs])
        return key_set, batch_of([at for _, at in pairs], self.descriptor.map_key)


class PlainMerging(_PlainState):
    """See `MergingState`."""

    def __init__(self, owner: PlainBackend, descriptor: StateDescriptor) -> None:
        super().__init__(owner, descriptor)
        self._state = owner.backend.merging(descriptor)

    def get(self, keys: Sequence[Row]) -> Sequence[Row | None]:
        """The row of each key."""
        key_set = self._owner.keys(keys)
        return self._found(self._state.get(key_set), key_set.rows.tolist())

    def add(self, pairs: Sequence[tuple[Row, Row]]) -> None:
        """Fold rows in."""
        key_set = self._owner.keys([key for key, _ in pairs])
        self._state.add(key_set, key_set.rows, batch_of([row for _, row in pairs], self.descriptor.columns))


class PlainTimers:
    """See `TimerService`."""

    def __init__(self, owner: PlainBackend, kind: TimerKind) -> None:
        self._owner = owner
        self._timers = owner.backend.timers(kind)

    def register(self, pairs: Sequence[tuple[Row, int]]) -> None:
        """Register (key, time)."""
        key_set = self._owner.keys([key for key, _ in pairs])
        self._timers.register(key_set, key_set.rows, np.array([time_us for _, time_us in pairs], np.int64))

    def delete(self, pairs: Sequence[tuple[Row, int]]) -> None:
        """Take back (key, time)."""
        key_set = self._owner.keys([key for key, _ in pairs])
        self._timers.delete(key_set, key_set.rows, np.array([time_us for _, time_us in pairs], np.int64))

    def of(self, keys: Sequence[Row]) -> list[list[int]]:
        """The times of each key."""
        key_set = self._owner.keys(keys)
        found = self._timers.of(key_set)
        assert found.columns.schema.names == ["time_us"]
        return [[row[0] for row in rows] for rows in cut(found, key_set)]

    def next_us(self) -> int | None:
        """The earliest."""
        return self._timers.next_us()

    def due(self, until_us: int, limit: int = 1000) -> list[tuple[Row, int]] | None:
        """(key, time) of the due ones, in the order given."""
        found = self._timers.due(until_us, limit)
        if found is None:
            return None
        assert 0 < len(found.owners) == len(found.times_us) <= limit
        keys = rows_of(found.keys.columns())
        assert len(keys) == found.keys.size and set(found.owners.tolist()) == set(range(found.keys.size))
        return [(keys[owner], time_us) for owner, time_us in zip(found.owners.tolist(), found.times_us.tolist())]

    def all_due(self, until_us: int, limit: int = 2) -> Iterator[tuple[Row, int]]:
        """All due ones, `limit` at a time."""
        while (found := self.due(until_us, limit)) is not None:
            yield from found


def cut(found: Elements, keys: KeySet) -> list[list[Row]]:
    """The elements of each row's key."""
    offsets = found.offsets.tolist()
    assert len(offsets) == keys.size + 1 and offsets[0] == 0 and offsets == sorted(offsets)
    assert offsets[-1] == found.columns.num_rows
    rows = rows_of(found.columns)
    return [rows[offsets[number] : offsets[number + 1]] for number in keys.rows.tolist()]
