"""The state of one window: an entry for each key, and its aggregates as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.operators.specs import WindowAggSpec
from tidegate.state.accumulators import Accumulator, Values, read_values
from tidegate.state.keyindex import KeyReader, Keys

FrozenWindow = Callable[[], tuple[pa.RecordBatch, list[pa.Array]]]
"""Gives key columns and state columns, a row for each key; for any thread."""


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

    def accumulators(self) -> list[Accumulator]:
        """One for each aggregate, empty."""
        spec = self._spec
        return [
            Accumulator(
                agg.name,
                agg.function,
                None if agg.column is None else spec.input_schema.field(agg.column).type,
                spec.schema.field(agg.name).type,
            )
            for agg in spec.aggregates
        ]

    def state_fields(self) -> list[pa.Field]:
        """Key columns as `key:<name>`, then the columns of each aggregate."""
        keys = [pa.field(f"key:{field.name}", field.type) for field in self.keys.schema]
        return keys + [field for accumulator in self.accumulators() for field in accumulator.state_schema]


class KeyedWindow:
    """Keys and aggregates of one window. Not safe for several threads, but for what `freeze` gives."""

    def __init__(self, layout: WindowLayout, expected: int = 0) -> None:
        """Args: expected: keys to have room for."""
        self._layout = layout
        self._index = layout.keys.new_index(expected)
        self._accumulators = layout.accumulators()
        for accumulator in self._accumulators:
            accumulator.grow(self._index.capacity)

    @property
    def size(self) -> int:
        """Number of keys."""
        return self._index.size

    def add(self, rows: BatchInput, start: int, stop: int) -> None:
        """Take rows start..stop. Raises SumOverflowError."""
        entries = np.empty(stop - start, np.int32)
        known, room = self._index.size, self._index.capacity
        self._index.find_or_add(rows.keys, start, stop, entries)
        for accumulator, values in zip(self._accumulators, rows.values, strict=True):
            if self._index.capacity > room:
                accumulator.grow(self._index.capacity)
            accumulator.add(entries, None if values is None else values.part(start, stop), known)

    def result(self, start: int, stop: int) -> tuple[list[pa.Array], list[pa.Array]]:
        """Key columns and aggregates of entries start..stop."""
        keys = self._index.key_columns(start, stop).columns
        return keys, [accumulator.result(start, stop) for accumulator in self._accumulators]

    def freeze(self) -> FrozenWindow:
        """The state as it is now."""
        keys = self._index.freeze()
        columns = [accumulator.freeze(self._index.size) for accumulator in self._accumulators]
        return lambda: (keys(), [array for column in columns for array in column()])

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
