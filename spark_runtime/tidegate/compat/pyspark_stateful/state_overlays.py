"""Keyed state as a StatefulProcessor uses it, one key and one row at a time, on top of states that are read and written
by batch (S5.1).

While the keys of a batch are processed, a read fetches the values of all these keys at once, and writes stay in an
overlay until `write`. Rows are in the kept form of their `SparkRowCodec`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

import numpy as np

from tidegate.compat.pyspark_stateful.spark_values import Kept, SparkRowCodec
from tidegate.state.keyed_state import KeySet, ListState, MapState, Mask, ValueState

LARGE_MAP_ENTRIES = 64
"""Average number of map entries up to which all maps are read at once; larger maps are read by entry."""

State = TypeVar("State", ValueState, ListState, MapState)


class Overlay(ABC, Generic[State]):
    """Base of all overlays: the current keys.

    Attributes:
        elements: number of list elements or map entries that were read for these keys.
    """

    def __init__(self, state: State) -> None:
        self._state: State = state
        self._keys: KeySet | None = None
        self.elements = 0

    def begin(self, keys: KeySet) -> None:
        """Start to work with these keys. Writes for earlier keys are already in the back end."""
        self._keys = keys
        self.elements = 0

    @property
    def keys(self) -> KeySet:
        """Return the current keys."""
        assert self._keys is not None, "a state is used without keys"
        return self._keys

    @abstractmethod
    def write(self) -> None:
        """Write all changes to the back end."""

    def _mask(self, numbers: Iterable[int]) -> Mask:
        mask = np.zeros(self.keys.size, np.bool_)
        mask[list(numbers)] = True
        return mask


class ValueOverlay(Overlay[ValueState]):
    """One row for each key."""

    def __init__(self, state: ValueState, codec: SparkRowCodec) -> None:
        super().__init__(state)
        self.codec = codec
        self._read: list[Kept | None] | None = None
        self._changed: dict[int, Kept | None] = {}

    def begin(self, keys: KeySet) -> None:
        """See `Overlay`."""
        super().begin(keys)
        self._read = None

    def get(self, key: int) -> Kept | None:
        """Return the row of key number `key`."""
        if key in self._changed:
            return self._changed[key]
        if self._read is None:
            found = self._state.get(self.keys)
            rows = self.codec.rows(found.columns)
            here = found.present.tolist()
            self._read = [row if there else None for row, there in zip(rows, here, strict=True)]
        return self._read[key]

    def set(self, key: int, row: Kept | None) -> None:
        """Set the row; None: clear it."""
        self._changed[key] = row

    def write(self) -> None:
        """See `Overlay`."""
        if not self._changed:
            return
        kept = {key: row for key, row in self._changed.items() if row is not None}
        if kept:
            nothing = (None,) * len(self.codec.schema)
            rows = self.codec.batch([kept.get(key, nothing) for key in range(self.keys.size)])
            self._state.put(self.keys, rows, None if len(kept) == self.keys.size else self._mask(kept))
        if len(kept) < len(self._changed):
            self._state.clear(self.keys, self._mask(key for key in self._changed if key not in kept))
        self._changed = {}


class ListOverlay(Overlay[ListState]):
    """Rows in order, for each key."""

    def __init__(self, state: ListState, codec: SparkRowCodec) -> None:
        super().__init__(state)
        self.codec = codec
        self._read: list[Kept] | None = None
        self._bounds: list[int] = []
        self._replaced: set[int] = set()
        self._new: dict[int, list[Kept]] = {}

    def begin(self, keys: KeySet) -> None:
        """See `Overlay`."""
        super().begin(keys)
        self._read = None

    def get(self, key: int) -> list[Kept]:
        """Return the rows of key number `key`, as a list that the caller may change."""
        new = self._new.get(key, [])
        if key in self._replaced:
            return list(new)
        if self._read is None:
            found = self._state.get(self.keys)
            self._read, self._bounds = self.codec.rows(found.columns), found.offsets.tolist()
            self.elements = len(self._read)
        return self._read[self._bounds[key] : self._bounds[key + 1]] + new

    def append(self, key: int, rows: list[Kept]) -> None:
        """Append rows."""
        self._new.setdefault(key, []).extend(rows)

    def replace(self, key: int, rows: list[Kept]) -> None:
        """Replace the list."""
        self._replaced.add(key)
        self._new[key] = list(rows)

    def write(self) -> None:
        """See `Overlay`."""
        if self._replaced:
            self._state.clear(self.keys, self._mask(self._replaced))
        owners = [key for key, rows in self._new.items() for _ in rows]
        if owners:
            batch = self.codec.batch([row for rows in self._new.values() for row in rows])
            self._state.append(self.keys, np.array(owners, np.int32), batch)
        self._replaced, self._new = set(), {}


class MapOverlay(Overlay[MapState]):
    """A row for each key and map key."""

    def __init__(self, state: MapState, map_key: SparkRowCodec, codec: SparkRowCodec) -> None:
        super().__init__(state)
        self.map_key, self.codec = map_key, codec
        self._typical = 0.0
        self._read: list[tuple[Kept, Kept]] | None = None
        self._bounds: list[int] = []
        self._entries: dict[int, dict[Kept, Kept]] = {}
        self._single: dict[tuple[int, Kept], Kept | None] = {}
        self._cleared: set[int] = set()
        self._changed: dict[int, dict[Kept, Kept | None]] = {}

    def begin(self, keys: KeySet) -> None:
        """See `Overlay`."""
        super().begin(keys)
        self._read = None
        self._entries, self._single = {}, {}

    def get(self, key: int, map_key: Kept) -> Kept | None:
        """Return the row of one entry."""
        changed = self._changed.get(key)
        if changed is not None and map_key in changed:
            return changed[map_key]
        if key in self._cleared:
            return None
        if self._read is None and self._typical > LARGE_MAP_ENTRIES:
            return self._one(key, map_key)
        return self._held(key).get(map_key)

    def items(self, key: int) -> dict[Kept, Kept]:
        """Return all entries of key number `key`, as a dict that the caller may change."""
        entries = {} if key in self._cleared else dict(self._held(key))
        for map_key, row in self._changed.get(key, {}).items():
            if row is None:
                entries.pop(map_key, None)
            else:
                entries[map_key] = row
        return entries

    def set(self, key: int, map_key: Kept, row: Kept | None) -> None:
        """Set the row of an entry; None: remove it."""
        self._changed.setdefault(key, {})[map_key] = row

    def clear(self, key: int) -> None:
        """Remove all entries."""
        self._cleared.add(key)
        self._changed.pop(key, None)

    def write(self) -> None:
        """See `Overlay`."""
        if self._cleared:
            self._state.clear(self.keys, self._mask(self._cleared))
        changed = [(key, mk, row) for key, rows in self._changed.items() for mk, row in rows.items()]
        gone = [(key, mk) for key, mk, row in changed if row is None and key not in self._cleared]
        if gone:
            owners = np.array([key for key, _ in gone], np.int32)
            self._state.remove(self.keys, owners, self.map_key.batch([mk for _, mk in gone]))
        put = [(key, mk, row) for key, mk, row in changed if row is not None]
        if put:
            owners = np.array([key for key, _, _ in put], np.int32)
            map_keys = self.map_key.batch([mk for _, mk, _ in put])
            self._state.put(self.keys, owners, map_keys, self.codec.batch([row for _, _, row in put]))
        self._cleared, self._changed = set(), {}

    def _held(self, key: int) -> dict[Kept, Kept]:
        if self._read is None:
            found = self._state.entries(self.keys)
            columns, keys = found.columns, len(self.map_key.schema)
            map_keys = self.map_key.rows(columns.select(list(range(keys))))
            rows = self.codec.rows(columns.select(list(range(keys, columns.num_columns))))
            self._read, self._bounds = list(zip(map_keys, rows, strict=True)), found.offsets.tolist()
            self.elements = len(rows)
            self._typical = self.elements / max(1, self.keys.size)
        if key not in self._entries:
            self._entries[key] = dict(self._read[self._bounds[key] : self._bounds[key + 1]])
        return self._entries[key]

    def _one(self, key: int, map_key: Kept) -> Kept | None:
        if (key, map_key) not in self._single:
            found = self._state.get(self.keys, np.array([key], np.int32), self.map_key.batch([map_key]))
            row = self.codec.rows(found.columns)[0] if found.present[0] else None
            self._single[(key, map_key)] = row
        return self._single[(key, map_key)]
