"""Builds the columns of a join's output rows: pairs, and rows without a match."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from tidegate.operators.batch_sizes import MAX_BATCH_ROWS
from tidegate.operators.joins.join_specs import LEFT, RIGHT, StreamJoinSpec, WindowMatch
from tidegate.operators.windows.window_grid import WindowGrid, window_grid
from tidegate.state.keyed_state import Mask
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.keys.key_types import stored_array


class Condition:
    """A further condition over the columns of pairs; null counts as false."""

    def __init__(self, expression: pc.Expression) -> None:
        self._node = acero.ProjectNodeOptions([expression], ["where"])

    def filter(self, pairs: pa.RecordBatch) -> Mask:
        """Return which pairs fulfil the condition."""
        source = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([pairs])))
        plan = acero.Declaration.from_sequence([source, acero.Declaration("project", self._node)])
        passing: Mask = plan.to_table(use_threads=False)["where"].fill_null(False).to_numpy()
        return passing


class JoinedColumns:
    """Builds the output of one join."""

    def __init__(self, spec: StreamJoinSpec) -> None:
        self._spec = spec
        bounds = spec.bounds
        self._grid: WindowGrid | None = None
        if isinstance(bounds, WindowMatch):
            self._grid = window_grid(bounds.size_us, bounds.slide_us, bounds.offset_us, bounds.calendar)
        self._condition = None if spec.where is None else Condition(spec.where)
        self._as_emitted = spec.emits_pairs and spec.pairs.equals(spec.schema, check_metadata=True)
        left, right = spec.inputs
        known = {name for _, name in right.columns}
        keys = zip(left.keys, right.keys, strict=True)
        self._merged = {mine: theirs for mine, theirs in keys if mine == theirs and theirs not in known}

    def stored(self, side: int, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert a batch of an input to stored types."""
        schema = self._spec.inputs[side].schema
        return batch if batch.schema.equals(schema) else to_stored_columns(batch, schema)

    def pairs(
        self, left: pa.RecordBatch, right: pa.RecordBatch, starts: Int64s | None, ends: Int64s | None = None
    ) -> pa.RecordBatch:
        """Combine row i of both sides. Args: starts: of windows or sessions. ends: of sessions."""
        arrays = [*self._picked(LEFT, left), *self._picked(RIGHT, right), *self._bounds(starts, ends)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._spec.pairs)

    def emitted(self, pairs: pa.RecordBatch) -> pa.RecordBatch:
        """Return pairs with the schema of the output."""
        return pairs if self._as_emitted else pa.RecordBatch.from_arrays(pairs.columns, schema=self._spec.schema)

    def filter(self, pairs: pa.RecordBatch) -> Mask | None:
        """Return which pairs fulfil the further condition; None: all."""
        return None if self._condition is None else self._condition.filter(pairs)

    def unmatched(
        self, side: int, rows: pa.RecordBatch, starts: Int64s | None, ends: Int64s | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Return output for rows of one side without a match. Args: see `pairs`."""
        for first in range(0, rows.num_rows, MAX_BATCH_ROWS):
            part = rows.slice(first, MAX_BATCH_ROWS)
            of_part = slice(first, first + MAX_BATCH_ROWS)
            bounds = self._bounds(*(None if times is None else times[of_part] for times in (starts, ends)))
            shown = (LEFT, RIGHT) if self._spec.emits_pairs else (LEFT,)
            sides = [self._picked(one, part) if one == side else self._nulls(one, part) for one in shown]
            arrays = [array for columns in sides for array in columns]
            yield pa.RecordBatch.from_arrays([*arrays, *bounds], schema=self._spec.schema)

    def _picked(self, side: int, rows: pa.RecordBatch) -> list[pa.Array]:
        return [rows.column(column) for column, _ in self._spec.inputs[side].columns]

    def _nulls(self, side: int, rows: pa.RecordBatch) -> list[pa.Array]:
        """Return the columns of `side` for rows of the other side: nulls, and the values of common key columns."""
        given = self._spec.inputs[side]
        return [
            rows.column(self._merged[column])
            if side == LEFT and column in self._merged
            else pa.nulls(rows.num_rows, given.schema.field(column).type)
            for column, _ in given.columns
        ]

    def _bounds(self, starts: Int64s | None, ends: Int64s | None) -> Sequence[pa.Array]:
        if not self._spec.has_windows:
            return ()
        assert starts is not None, "a row of a window join has no window"
        if ends is None:
            assert self._grid is not None, "a row of a session join has no session end"
            ends = self._grid.window_end(self._grid.windows_at(starts))
        return [pa.array(bound).view(pa.timestamp("us")) for bound in (starts, ends)]


def to_stored_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert a batch to the columns of `schema`, in stored types. The batch may hold dictionaries or views."""
    return pa.RecordBatch.from_arrays([stored_array(batch.column(name)) for name in schema.names], schema=schema)
