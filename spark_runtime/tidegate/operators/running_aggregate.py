"""Aggregates per key over all rows so far, and what is made of them on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.operators.batches import MAX_BATCH_ROWS
from tidegate.operators.contract import Output, StreamOperator
from tidegate.operators.frozen_windows import FrozenWindows
from tidegate.operators.keyed_window import KeyedWindow, WindowLayout
from tidegate.operators.restoring import checked_part
from tidegate.operators.running_specs import PartialAggSpec, RunningAggSpec, UnnestRowsSpec
from tidegate.operators.state_shapes import GROUPS, group_schema
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, AsyncSnapshot, StatePart
from tidegate.state.columns import Entries
from tidegate.state.keyhash import subtask_of_key_groups

_START = pa.field("window_start_us", pa.int64())


class PartialAggregate(StreamOperator):
    """Gives the state of the aggregates of each batch, a row for each of its keys; keeps nothing."""

    def __init__(self, spec: PartialAggSpec) -> None:
        self._spec = spec
        self._layout = WindowLayout(spec.keys, spec.aggregates, spec.input_schema, spec.results)

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """The aggregates of the batch. Raises SumOverflowError."""
        if batch.num_rows:
            groups = KeyedWindow(self._layout, 0)
            groups.add(self._layout.read(batch), 0, batch.num_rows)
            columns = [*groups.keys(0, groups.size).columns, *groups.state(slice(0, groups.size))]
            yield pa.RecordBatch.from_arrays(columns, schema=self._spec.schema)


class RunningAggregate(StreamOperator):
    """Aggregates of all rows of a key. With output "update" each batch gives a row for every key in it, with the
    aggregates so far; whoever reads it takes the last of equal keys. With "final" each key gives one row once the input
    has really ended: at MAX_WATERMARK, and where rows come after it, which operators may emit that have no more to
    wait for, again for their keys at `finish` (S7.1, S7.2).

    State: `groups` (keyed: a row for each). It grows with the number of keys.
    """

    def __init__(self, spec: RunningAggSpec) -> None:
        self._spec = spec
        self._layout = WindowLayout(spec.keys, spec.aggregates, spec.input_schema, spec.schema)
        self._groups = KeyedWindow(self._layout, 1)
        self._schema = group_schema(spec)
        self._has_given = False
        self._late: list[Entries] = []

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Take the rows; what has changed, with output "update". Raises SumOverflowError."""
        if not batch.num_rows:
            return
        if self._spec.is_partial:
            keys = batch.select(list(self._spec.keys))
            entries = self._groups.merge(keys, batch.columns[len(self._spec.keys) :])
        else:
            entries = self._groups.add(self._layout.read(batch), 0, batch.num_rows)
        if self._spec.output == "update":
            yield from self._results(np.unique(entries))
        elif self._has_given:
            self._late.append(np.unique(entries))

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """MAX_WATERMARK gives the final results."""
        if watermark_us == MAX_WATERMARK and self._spec.output == "final" and not self._has_given:
            self._has_given = True
            yield from self._results(np.arange(self._groups.size, dtype=np.int32))

    def finish(self) -> Iterator[Output]:
        """What changed after that."""
        yield from self.on_watermark(MAX_WATERMARK)
        if self._late:
            yield from self._results(np.unique(np.concatenate(self._late)))
            self._late = []

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Mark the columns of the groups."""
        schema = self._schema.insert(1, _START)
        frozen = FrozenWindows(schema, [(0, self._groups.freeze())], self.ctx.max_parallelism)
        return lambda: [frozen.part(GROUPS, lambda rows: rows.drop_columns([_START.name]))]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Take back the groups.

        Raises:
            SnapshotError: the state is of other keys or aggregates than the pipeline's; names both (S5.5).
        """
        mine = subtask_of_key_groups(self.ctx.parallelism, self.ctx.max_parallelism) == self.ctx.subtask
        width = 1 + len(self._spec.keys)
        for part in parts:
            checked = checked_part(part, self._schema, self.ctx.uid, dict(self._spec.renamed), fills=False)
            for table in checked.tables():
                owned = table.filter(pa.array(mine[table.column(KEY_GROUP_COLUMN).to_numpy()]))
                for rows in owned.combine_chunks().to_batches():
                    keys = pa.RecordBatch.from_arrays(rows.columns[1:width], schema=self._layout.keys.schema)
                    self._groups.merge(keys, rows.columns[width:])

    def _results(self, entries: Entries) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(entries), MAX_BATCH_ROWS):
            part = entries[start : start + MAX_BATCH_ROWS]
            columns = [*self._groups.keys_of(part).columns, *self._groups.result(part)]
            yield pa.RecordBatch.from_arrays(columns, schema=self._spec.schema)


class UnnestRows(StreamOperator):
    """Gives a row for each element of a list column; keeps nothing."""

    def __init__(self, spec: UnnestRowsSpec) -> None:
        self._spec = spec

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """The elements of every row, in order."""
        lists = batch.column(self._spec.column)
        counts = lists.value_lengths().fill_null(0).to_numpy()
        firsts = np.cumsum(counts) - counts
        rows = np.repeat(np.arange(batch.num_rows), counts)
        ranks = pa.array((np.arange(len(rows)) - firsts[rows] + 1).astype(np.int32))
        others = [name for name in batch.schema.names if name != self._spec.column]
        kept = batch.select(others).take(pa.array(rows))
        columns = [*kept.columns, ranks, *lists.flatten().flatten()]
        out = pa.RecordBatch.from_arrays(columns, schema=self._spec.schema)
        for start in range(0, out.num_rows, MAX_BATCH_ROWS):
            yield out.slice(start, MAX_BATCH_ROWS)
