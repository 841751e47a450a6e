"""State of one window: an entry for each key, and the aggregates as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.state.aggregates.aggregation import AggregateState, ReadValues, Selection
from tidegate.state.copy_on_write import CHUNK_ENTRIES, Arrays, CopyOnWriteArrays, Entries, FrozenArrays
from tidegate.state.keys.key_index import FrozenKeys, KeyReader, Keys


@dataclass(frozen=True)
class FrozenAggregates:
    """A window at the time of the freeze, in chunks. Usable from any thread.

    Attributes:
        serial: number of the window.
        cells: state of the aggregates.
        keys: returns the keys of entries start..stop.
        columns: returns the state columns of entries start..stop, which must be one chunk of the cells.
    """

    serial: int
    cells: FrozenArrays
    keys: FrozenKeys
    columns: Callable[[Arrays, int, int], list[pa.Array]]

    def chunk(self, chunk: int) -> tuple[pa.RecordBatch, list[pa.Array]]:
        """Return key columns and state columns of a chunk, a row for each key. Call it once for each chunk."""
        start = chunk * CHUNK_ENTRIES
        stop = min(start + CHUNK_ENTRIES, self.cells.size)
        return self.keys(start, stop), self.columns(self.cells.read(chunk), start, stop)


@dataclass(frozen=True)
class BatchInput:
    """The input of the aggregates from one batch: keys, and values for each aggregate (None: it counts rows)."""

    keys: Keys
    values: tuple[ReadValues | None, ...]


class AggregateLayout:
    """Layout of the state of aggregates: key columns and aggregates."""

    def __init__(
        self, keys: Sequence[str], aggregates: Sequence[BoundAggregate], input_schema: pa.Schema, results: pa.Schema
    ) -> None:
        """Args: keys: key columns. input_schema: of the rows. results: schema with the type of each aggregate's
        result."""
        self._aggregates = aggregates
        self._bound = [agg.bound(input_schema, results.field(agg.name).type) for agg in aggregates]
        self.keys = KeyReader(input_schema, keys)
        aggregated = [column for agg in aggregates for column in agg.columns]
        self.used_columns = list(dict.fromkeys([*keys, *aggregated]))
        self._readers = self.accumulators(CopyOnWriteArrays(1))

    def read(self, batch: pa.RecordBatch) -> BatchInput:
        """Read keys and values of every row."""
        return BatchInput(self.keys.read(batch), self.values(batch))

    def values(self, batch: pa.RecordBatch) -> tuple[ReadValues | None, ...]:
        """Read the values of every row, for each aggregate. Aggregates that read the same columns alike share the
        values."""
        read: dict[tuple[tuple[str, ...], str], ReadValues | None] = {}
        values: list[ReadValues | None] = []
        for agg, reader in zip(self._aggregates, self._readers, strict=True):
            as_read = (agg.columns, reader.reads)
            if as_read not in read:
                read[as_read] = reader.read([batch.column(column) for column in agg.columns])
            values.append(read[as_read])
        return tuple(values)

    def accumulators(self, cells: CopyOnWriteArrays) -> list[AggregateState]:
        """Return an empty accumulator for each aggregate, with its arrays in `cells`."""
        return [aggregation.accumulator(cells) for aggregation in self._bound]

    def state_fields(self) -> list[pa.Field]:
        """Return the key columns as `key:<name>`, then the columns of each aggregate."""
        keys = [pa.field(f"key:{field.name}", field.type) for field in self.keys.schema]
        return keys + [
            field for accumulator in self.accumulators(CopyOnWriteArrays(1)) for field in accumulator.state_schema
        ]


class KeyedAggregates:
    """Keys and aggregates of one window. Not thread-safe; only the result of `freeze` is."""

    def __init__(self, layout: AggregateLayout, serial: int, expected: int = 0) -> None:
        """Args: serial: number that is unique among the windows of the subtask. expected: number of keys to reserve."""
        self._layout = layout
        self._serial = serial
        self._index = layout.keys.new_index(expected)
        self._cells = CopyOnWriteArrays(self._index.capacity)
        self._accumulators = layout.accumulators(self._cells)

    @property
    def size(self) -> int:
        """Return the number of keys."""
        return self._index.size

    def add(self, rows: BatchInput, start: int, stop: int) -> Entries:
        """Add rows start..stop and return the entry of each.

        Raises:
            SumOverflowError: a sum does not fit its type.
        """
        known = self._index.size
        entries = self._entries(rows.keys, start, stop)
        for accumulator, values in zip(self._accumulators, rows.values, strict=True):
            accumulator.add(entries, None if values is None else values.part(start, stop), known)
        return entries

    def merge(self, keys: pa.RecordBatch, columns: Sequence[pa.Array]) -> Entries:
        """Merge key columns and state columns, of this window or another, and return the entry of each row.

        Raises:
            SumOverflowError: a sum does not fit its type.
        """
        known = self._index.size
        entries = self._entries(self._layout.keys.read(keys), 0, keys.num_rows)
        at = 0
        for accumulator in self._accumulators:
            width = len(accumulator.state_schema)
            accumulator.merge(entries, columns[at : at + width], known)
            at += width
        return entries

    def keys(self, start: int, stop: int) -> pa.RecordBatch:
        """Return the key columns of entries start..stop."""
        return self._index.key_columns(start, stop)

    def keys_of(self, entries: Entries) -> pa.RecordBatch:
        """Return the key columns of these entries."""
        return self._index.key_columns_of(entries)

    def open(self, keys: pa.RecordBatch) -> None:
        """Create entries without rows for these keys."""
        self._entries(self._layout.keys.read(keys), 0, keys.num_rows)

    def find(self, keys: pa.RecordBatch) -> Entries:
        """Return the entry of each key, or -1."""
        entries = np.empty(keys.num_rows, np.int32)
        self._index.find(self._layout.keys.read(keys), 0, keys.num_rows, entries)
        return entries

    def state(self, entries: Selection) -> list[pa.Array]:
        """Return the state columns of these entries."""
        return [array for accumulator in self._accumulators for array in accumulator.state(entries)]

    def result(self, entries: Selection) -> list[pa.Array]:
        """Return the results of these entries."""
        return [accumulator.result(entries) for accumulator in self._accumulators]

    def freeze(self) -> FrozenAggregates:
        """Freeze the state. If the window has at most `CHUNK_ENTRIES` keys, the stamps of its chunks are
        meaningless."""
        frozen = [accumulator.freeze() for accumulator in self._accumulators]

        def columns(arrays: Arrays, start: int, stop: int) -> list[pa.Array]:
            return [array for read in frozen for array in read(arrays, start, stop)]

        return FrozenAggregates(self._serial, self._cells.freeze(self._index.size), self._index.freeze(), columns)

    def _entries(self, keys: Keys, start: int, stop: int) -> Entries:
        """Find or create the entries of some rows, and mark them as about to change."""
        entries = np.empty(stop - start, np.int32)
        self._index.find_or_add(keys, start, stop, entries)
        self._cells.grow(self._index.capacity)
        # Stamps matter only for windows that are written in chunks. A smaller one saves this unless it is frozen.
        if self._index.size > CHUNK_ENTRIES or self._cells.is_watched:
            self._cells.touch(entries)
        return entries
