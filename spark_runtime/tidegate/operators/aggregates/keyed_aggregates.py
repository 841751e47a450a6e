"""The state of one window: an entry for each key, and its aggregates as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.state.aggregates.aggregation import AggregateState, ReadValues, Selection
from tidegate.state.cells import CHUNK_ENTRIES, Arrays, CopyOnWriteArrays, Entries, FrozenArrays
from tidegate.state.keys.key_index import FrozenKeys, KeyReader, Keys


@dataclass(frozen=True)
class FrozenAggregates:
    """A window as it was at a freeze, in chunks; for any thread.

    Attributes:
        serial: of the window.
        cells: state of the aggregates.
        keys: of the entries.
        columns: state columns of entries start..stop, which are a chunk of the cells.
    """

    serial: int
    cells: FrozenArrays
    keys: FrozenKeys
    columns: Callable[[Arrays, int, int], list[pa.Array]]

    def chunk(self, chunk: int) -> tuple[pa.RecordBatch, list[pa.Array]]:
        """Key columns and state columns, a row for each key; once for each chunk."""
        start = chunk * CHUNK_ENTRIES
        stop = min(start + CHUNK_ENTRIES, self.cells.size)
        return self.keys(start, stop), self.columns(self.cells.read(chunk), start, stop)


@dataclass(frozen=True)
class BatchInput:
    """What the aggregates need of a batch: keys, and values for each aggregate (None: counts rows)."""

    keys: Keys
    values: tuple[ReadValues | None, ...]


class AggregateLayout:
    """How the state of aggregates looks: key columns and aggregates."""

    def __init__(
        self, keys: Sequence[str], aggregates: Sequence[BoundAggregate], input_schema: pa.Schema, results: pa.Schema
    ) -> None:
        """Args: keys: key columns. input_schema: of the rows. results: has the type of each aggregate's result."""
        self._aggregates = aggregates
        self._bound = [agg.bound(input_schema, results.field(agg.name).type) for agg in aggregates]
        self.keys = KeyReader(input_schema, keys)
        aggregated = [column for agg in aggregates for column in agg.columns]
        self.used_columns = list(dict.fromkeys([*keys, *aggregated]))
        self._readers = self.accumulators(CopyOnWriteArrays(1))

    def read(self, batch: pa.RecordBatch) -> BatchInput:
        """Keys and values of every row."""
        return BatchInput(self.keys.read(batch), self.values(batch))

    def values(self, batch: pa.RecordBatch) -> tuple[ReadValues | None, ...]:
        """Values of every row, for each aggregate; columns are read once for all that take them alike."""
        read: dict[tuple[tuple[str, ...], str], ReadValues | None] = {}
        values: list[ReadValues | None] = []
        for agg, reader in zip(self._aggregates, self._readers, strict=True):
            as_read = (agg.columns, reader.reads)
            if as_read not in read:
                read[as_read] = reader.read([batch.column(column) for column in agg.columns])
            values.append(read[as_read])
        return tuple(values)

    def accumulators(self, cells: CopyOnWriteArrays) -> list[AggregateState]:
        """One for each aggregate, empty, with arrays in `cells`."""
        return [aggregation.accumulator(cells) for aggregation in self._bound]

    def state_fields(self) -> list[pa.Field]:
        """Key columns as `key:<name>`, then the columns of each aggregate."""
        keys = [pa.field(f"key:{field.name}", field.type) for field in self.keys.schema]
        return keys + [
            field for accumulator in self.accumulators(CopyOnWriteArrays(1)) for field in accumulator.state_schema
        ]


class KeyedAggregates:
    """Keys and aggregates of one window. Not safe for several threads, but for what `freeze` gives."""

    def __init__(self, layout: AggregateLayout, serial: int, expected: int = 0) -> None:
        """Args: serial: tells it from all other windows of the subtask. expected: keys to have room for."""
        self._layout = layout
        self._serial = serial
        self._index = layout.keys.new_index(expected)
        self._cells = CopyOnWriteArrays(self._index.capacity)
        self._accumulators = layout.accumulators(self._cells)

    @property
    def size(self) -> int:
        """Number of keys."""
        return self._index.size

    def add(self, rows: BatchInput, start: int, stop: int) -> Entries:
        """Take rows start..stop; gives the entry of each. Raises SumOverflowError."""
        known = self._index.size
        entries = self._entries(rows.keys, start, stop)
        for accumulator, values in zip(self._accumulators, rows.values, strict=True):
            accumulator.add(entries, None if values is None else values.part(start, stop), known)
        return entries

    def merge(self, keys: pa.RecordBatch, columns: Sequence[pa.Array]) -> Entries:
        """Fold in key columns and state columns, of this window or another; gives the entry of each. Raises
        SumOverflowError."""
        known = self._index.size
        entries = self._entries(self._layout.keys.read(keys), 0, keys.num_rows)
        at = 0
        for accumulator in self._accumulators:
            width = len(accumulator.state_schema)
            accumulator.merge(entries, columns[at : at + width], known)
            at += width
        return entries

    def keys(self, start: int, stop: int) -> pa.RecordBatch:
        """Key columns of entries start..stop."""
        return self._index.key_columns(start, stop)

    def keys_of(self, entries: Entries) -> pa.RecordBatch:
        """Key columns of some entries."""
        return self.keys(0, self._index.size).take(pa.array(entries))

    def open(self, keys: pa.RecordBatch) -> None:
        """Have entries for these keys, without rows as yet."""
        self._entries(self._layout.keys.read(keys), 0, keys.num_rows)

    def find(self, keys: pa.RecordBatch) -> Entries:
        """Entry of each key, or -1."""
        entries = np.empty(keys.num_rows, np.int32)
        self._index.find(self._layout.keys.read(keys), 0, keys.num_rows, entries)
        return entries

    def state(self, entries: Selection) -> list[pa.Array]:
        """State columns of some entries."""
        return [array for accumulator in self._accumulators for array in accumulator.state(entries)]

    def result(self, entries: Selection) -> list[pa.Array]:
        """Aggregates of some entries."""
        return [accumulator.result(entries) for accumulator in self._accumulators]

    def freeze(self) -> FrozenAggregates:
        """The state as it is now. Chunks of windows of no more than `CHUNK_ENTRIES` keys have stamps that mean
        nothing."""
        frozen = [accumulator.freeze() for accumulator in self._accumulators]

        def columns(arrays: Arrays, start: int, stop: int) -> list[pa.Array]:
            return [array for read in frozen for array in read(arrays, start, stop)]

        return FrozenAggregates(self._serial, self._cells.freeze(self._index.size), self._index.freeze(), columns)

    def _entries(self, keys: Keys, start: int, stop: int) -> Entries:
        """Entries of some rows, which are about to be written."""
        entries = np.empty(stop - start, np.int32)
        self._index.find_or_add(keys, start, stop, entries)
        self._cells.grow(self._index.capacity)
        if self._index.size > CHUNK_ENTRIES or self._cells.is_watched:
            self._cells.touch(entries)
        return entries
