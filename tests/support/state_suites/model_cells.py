"""What the reference back end keeps: cells of one row each, in dicts, by the canonical bytes of keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.state.keyed_state import KeyNumbers, KeySet, Mask, StateDescriptor
from tidegate.state.keys.key_bytes import canonical_bytes
from tidegate.state.state_layout import MAP_PREFIX, TTL_COLUMN, VALUE_PREFIX, result_schema


@dataclass
class ModelKeys:
    """See `KeySet`; `ids` are the canonical bytes of the keys."""

    size: int
    rows: KeyNumbers
    groups: npt.NDArray[np.uint16]
    ids: tuple[bytes, ...]
    batch: pa.RecordBatch

    def columns(self) -> pa.RecordBatch:
        """See `KeySet`."""
        return self.batch


@dataclass(frozen=True)
class Cell:
    """One row of a state.

    Attributes:
        columns: the row.
        map_key: of maps: the row of its map key.
        used_ms: when it was written last, or read where that counts.
    """

    columns: pa.RecordBatch
    used_ms: int
    map_key: pa.RecordBatch | None = None


class ModelCells:
    """The cells of one state."""

    def __init__(self, descriptor: StateDescriptor, now_ms: Callable[[], int]) -> None:
        """Args: descriptor: of the state. now_ms: for TTL."""
        self.descriptor = descriptor
        self.columns = result_schema(descriptor)
        self.held: dict[bytes, dict[Any, Cell]] = {}
        self._now_ms = now_ms
        self._appended = 0

    def of(self, key: bytes) -> dict[Any, Cell]:
        """The live cells of a key, for reading."""
        ttl = self.descriptor.ttl
        cells = self.held.get(key, {})
        if ttl is not None:
            cells = {at: cell for at, cell in cells.items() if cell.used_ms + ttl.duration_ms > self._now_ms()}
            self.held[key] = cells
        return cells

    def read(self, key: bytes, at: Any) -> Cell | None:
        """A live cell; its reading counts where the TTL says so."""
        cell = self.of(key).get(at)
        if cell is not None and self.descriptor.ttl is not None and self.descriptor.ttl.on_read:
            self.held[key][at] = replace(cell, used_ms=self._now_ms())
        return cell

    def read_all(self, key: bytes) -> list[Cell]:
        """The live cells of a key, all read."""
        found = [self.read(key, at) for at in list(self.of(key))]
        return [cell for cell in found if cell is not None]

    def write(self, key: bytes, at: Any, row: pa.RecordBatch, map_key: pa.RecordBatch | None = None) -> None:
        """Set a cell."""
        cells = self.of(key)
        cells[at] = Cell(row, self._now_ms(), map_key)
        self.held[key] = cells

    def append(self, key: bytes, row: pa.RecordBatch) -> None:
        """Add a cell after all others."""
        self._appended += 1
        self.write(key, self._appended, row)

    def clear(self, keys: KeySet, where: Mask | None) -> None:
        """Forget keys."""
        for i, key in enumerate(ids_of(keys)):
            if where is None or where[i]:
                self.held.pop(key, None)

    def take_back(self, key: bytes, row: pa.RecordBatch) -> None:
        """Take one row of a part."""
        columns = unprefixed(row, VALUE_PREFIX, self.columns)
        at: Any = None
        map_key: pa.RecordBatch | None = None
        if self.descriptor.kind == "list":
            self._appended += 1
            at = self._appended
        elif self.descriptor.kind == "map":
            map_key = unprefixed(row, MAP_PREFIX, self.descriptor.map_key)
            at = row_ids(map_key)[0]
        used_ms = row.column(TTL_COLUMN)[0].as_py() if self.descriptor.ttl is not None else self._now_ms()
        self.held.setdefault(key, {})[at] = Cell(columns, used_ms, map_key)


def ids_of(keys: KeySet) -> tuple[bytes, ...]:
    """The canonical bytes of the keys of a set that the model made."""
    assert isinstance(keys, ModelKeys)
    return keys.ids


def row_ids(columns: pa.RecordBatch) -> list[bytes]:
    """The canonical bytes of each row."""
    data, offsets = canonical_bytes(columns, columns.schema.names)
    return [data[start:end].tobytes() for start, end in zip(offsets, offsets[1:])]


def one_batch(rows: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Rows under each other, perhaps none."""
    if rows:
        return pa.concat_batches([pa.RecordBatch.from_arrays(row.columns, schema=schema) for row in rows])
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def unprefixed(batch: pa.RecordBatch, prefix: str, schema: pa.Schema) -> pa.RecordBatch:
    """The columns of a part that `schema` names, without their prefix."""
    return pa.RecordBatch.from_arrays([batch.column(prefix + name) for name in schema.names], schema=schema)
