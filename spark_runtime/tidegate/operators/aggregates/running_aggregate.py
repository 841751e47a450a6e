"""Aggregates per key over all rows so far, and the operators that prepare and unnest them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidegate.operators.aggregates.aggregate_specs import PartialAggSpec, RunningAggSpec, UnnestRowsSpec
from tidegate.operators.aggregates.groups import Groups, GroupsInMemory
from tidegate.operators.aggregates.keyed_aggregates import AggregateLayout, KeyedAggregates
from tidegate.operators.aggregates.stored_groups import StoredGroups
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS
from tidegate.operators.stream_operator import OperatorContext, Output, StreamOperator
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.backend_registry import OUTSIDE_MEMORY

MAX_ENTRIES = 1 << 20
"""Keys after which a partial aggregate of the whole input emits its rows."""


class PartialAggregate(StreamOperator):
    """Emits the state of the aggregates of each batch, a row for each of its keys. Stateless.

    With `whole_input` it aggregates all batches: it emits when `MAX_ENTRIES` keys are in memory, and in `finish`.
    """

    def __init__(self, spec: PartialAggSpec) -> None:
        self._spec = spec
        self._layout = AggregateLayout(spec.keys, spec.aggregates, spec.input_schema, spec.results)
        self._groups = KeyedAggregates(self._layout, 0)

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Emit the aggregates of the batch.

        Raises:
            SumOverflowError: a sum does not fit its type.
        """
        if batch.num_rows:
            self._groups.add(self._layout.read(batch), 0, batch.num_rows)
            if not self._spec.whole_input or self._groups.size >= MAX_ENTRIES:
                yield from self._emit()

    def finish(self) -> Iterator[Output]:
        """Emit the remaining aggregates."""
        if self._groups.size:
            yield from self._emit()

    def _emit(self) -> Iterator[pa.RecordBatch]:
        groups, self._groups = self._groups, KeyedAggregates(self._layout, 0)
        for start in range(0, groups.size, MAX_BATCH_ROWS):
            stop = min(start + MAX_BATCH_ROWS, groups.size)
            columns = [*groups.keys(start, stop).columns, *groups.state(slice(start, stop))]
            yield pa.RecordBatch.from_arrays(columns, schema=self._spec.schema)


class RunningAggregate(StreamOperator):
    """Aggregates all rows of a key.

    With output "update", each batch emits a row for every key in it, with the aggregates so far. A reader keeps the
    last row of equal keys. With output "final", each key emits one row in `finish`, after the real end of the input
    (S7.1, S7.2). It does not emit at MAX_WATERMARK: a checkpoint may come between MAX_WATERMARK and `finish`, and the
    state does not record which groups were emitted. MAX_WATERMARK is forwarded after these rows.

    State: `groups` (keyed, a row for each). It grows with the number of keys; `state_backend` decides where it is
        stored.
    """

    def __init__(self, spec: RunningAggSpec) -> None:
        self._spec = spec
        self._groups: Groups | None = None

    def open(self, ctx: OperatorContext) -> None:
        """Open the storage of the groups."""
        super().open(ctx)
        store = StoredGroups if ctx.state_backend in OUTSIDE_MEMORY else GroupsInMemory
        self._groups = store(self._spec, ctx)

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Add the rows. With output "update", emit the changed groups.

        Raises:
            SumOverflowError: a sum does not fit its type.
        """
        if not batch.num_rows:
            return
        assert self._groups is not None
        changed = self._groups.take(batch)
        if self._spec.output == "update":
            yield from self._groups.results(changed)

    def finish(self) -> Iterator[Output]:
        """Emit the final results."""
        assert self._groups is not None
        if self._spec.output == "final":
            yield from self._groups.all_groups()

    def forwards_end(self) -> bool:
        """False for output "final": MAX_WATERMARK is forwarded after the final results."""
        return self._spec.output != "final"

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze the groups."""
        assert self._groups is not None
        return self._groups.snapshot(checkpoint_id, portable=self.portable)

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore the groups.

        Raises:
            SnapshotError: the snapshot's keys or aggregates differ from the pipeline's; names both (S5.5).
        """
        assert self._groups is not None
        self._groups.restore(parts)

    def close(self) -> None:
        """Close the storage of the groups."""
        if self._groups is not None:
            self._groups.close()


class UnnestRows(StreamOperator):
    """Emits a row for each element of a list column. Stateless."""

    def __init__(self, spec: UnnestRowsSpec) -> None:
        self._spec = spec

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Emit the elements of every row, in order."""
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
