"""The state of one window: an entry for each key, and its aggregates as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.operators.specs import WindowAggSpec
from tidegate.state.accumulators import Accumulator, Values, read_values
from tidegate.state.columns import CHUNK_ENTRIES, Arrays, Cells, FrozenCells
from tidegate.state.keyindex import FrozenKeys, KeyReader, Keys


@dataclass(frozen=True)
class FrozenWindow:
    """A window as it was at a freeze, in chunks; for any thread.

    Attributes:
        serial: of the window.
        cells: state of the aggregates.
        keys: of the entries.
        columns: state columns of a chunk of the cells.
    """

    serial: int
    cells: FrozenCells
    keys: FrozenKeys
    columns: Callable[[Arrays], list[pa.Array]]

    def chunk(self, chunk: int) -> tuple[pa.RecordBatch, list[pa.Array]]:
        """Key columns and state columns, a row for each key; once for each chunk."""
        columns = self.columns(self.cells.read(chunk))
        start = chunk * CHUNK_ENTRIES
        return self.keys(start, start + len(columns[0])), columns


@dataclass(frozen=True)
class BatchInput:
    """What the aggregates need of a batch: keys, and values for each aggregate (None: counts rows)."""

    keys: Keys
    values: tuple[Values | None, ...]


class WindowLayout:
    """How a window's state looks: key columns and aggregates of one spec."""

    def __init__(self, spec: WindowAggSpec) -> None:
        self._spec = spec
        self.keys = KeyReader(spec.input_schema, spec.keys)
        aggregated = [agg.column for agg in spec.aggregates if agg.column is not None]
        self.used_columns = list(dict.fromkeys([*spec.keys, *aggregated]))

    def read(self, batch: pa.RecordBatch) -> BatchInput:
        """Keys and values of every row; a column is read once for all aggregates that take it alike."""
        read: dict[tuple[str, str], Values] = {}
        values: list[Values | None] = []
        for agg in self._spec.aggregates:
            if agg.column is None:
                values.append(None)
                continue
            as_read = agg.function if agg.function in ("count", "mean") else "value"
            if (agg.column, as_read) not in read:
                read[agg.column, as_read] = read_values(batch.column(agg.column), agg.function)
            values.append(read[agg.column, as_read])
        return BatchInput(self.keys.read(batch), tuple(values))

    def accumulators(self, cells: Cells) -> list[Accumulator]:
        """One for each aggregate, empty, with arrays in `cells`."""
        spec = self._spec
        return [
            Accumulator(
                agg.name,
                agg.function,
                None if agg.column is None else spec.input_schema.field(agg.column).type,
                spec.schema.field(agg.name).type,
                cells,
            )
            for agg in spec.aggregates
        ]

    def state_fields(self) -> list[pa.Field]:
        """Key columns as `key:<name>`, then the columns of each aggregate."""
        keys = [pa.field(f"key:{field.name}", field.type) for field in self.keys.schema]
        return keys + [field for accumulator in self.accumulators(Cells(1)) for field in accumulator.state_schema]


class KeyedWindow:
    """Keys and aggregates of one window. Not safe for several threads, but for what `freeze` gives."""

    def __init__(self, layout: WindowLayout, serial: int, expected: int = 0) -> None:
        """Args: serial: tells it from all other windows of the subtask. expected: keys to have room for."""
        self._layout = layout
        self._serial = serial
        self._index = layout.keys.new_index(expected)
        self._cells = Cells(self._index.capacity)
        self._accumulators = layout.accumulators(self._cells)

    @property
    def size(self) -> int:
        """Number of keys."""
        return self._index.size

    def add(self, rows: BatchInput, start: int, stop: int) -> None:
        """Take rows start..stop. Raises SumOverflowError."""
        entries = np.empty(stop - start, np.int32)
        known = self._index.size
        self._index.find_or_add(rows.keys, start, stop, entries)
        self._cells.grow(self._index.capacity)
        if self._index.size > CHUNK_ENTRIES or self._cells.is_watched:
            self._cells.touch(entries)
        for accumulator, values in zip(self._accumulators, rows.values, strict=True):
            accumulator.add(entries, None if values is None else values.part(start, stop), known)

    def result(self, start: int, stop: int) -> tuple[list[pa.Array], list[pa.Array]]:
        """Key columns and aggregates of entries start..stop."""
        keys = self._index.key_columns(start, stop).columns
        return keys, [accumulator.result(start, stop) for accumulator in self._accumulators]

    def freeze(self) -> FrozenWindow:
        """The state as it is now. Chunks of windows of no more than `CHUNK_ENTRIES` keys have stamps that mean
        nothing."""
        accumulators = self._accumulators

        def columns(arrays: Arrays) -> list[pa.Array]:
            return [array for accumulator in accumulators for array in accumulator.state_columns(arrays)]

        return FrozenWindow(self._serial, self._cells.freeze(self._index.size), self._index.freeze(), columns)

    def restore(self, keys: pa.RecordBatch, columns: Sequence[pa.Array]) -> None:
        """Take back key columns and state columns, into an empty window."""
        entries = np.empty(keys.num_rows, np.int32)
        self._index.find_or_add(self._layout.keys.read(keys), 0, keys.num_rows, entries)
        assert self._index.size == keys.num_rows, "a key comes twice in the state of a window"
        at = 0
        for accumulator in self._accumulators:
            width = len(accumulator.state_schema)
            accumulator.restore(columns[at : at + width], self._index.capacity)
            at += width
