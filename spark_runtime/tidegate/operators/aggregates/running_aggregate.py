"""Aggregates per key over all rows so far, and what is made of them on the way."""

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


class PartialAggregate(StreamOperator):
    """Gives the state of the aggregates of each batch, a row for each of its keys; keeps nothing."""

    def __init__(self, spec: PartialAggSpec) -> None:
        self._spec = spec
        self._layout = AggregateLayout(spec.keys, spec.aggregates, spec.input_schema, spec.results)

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """The aggregates of the batch. Raises SumOverflowError."""
        if batch.num_rows:
            groups = KeyedAggregates(self._layout, 0)
            groups.add(self._layout.read(batch), 0, batch.num_rows)
            columns = [*groups.keys(0, groups.size).columns, *groups.state(slice(0, groups.size))]
            yield pa.RecordBatch.from_arrays(columns, schema=self._spec.schema)


class RunningAggregate(StreamOperator):
    """Aggregates of all rows of a key. With output "update" each batch gives a row for every key in it, with the
    aggregates so far; whoever reads it takes the last of equal keys. With "final" each key gives one row once the input
    has really ended, in `finish` (S7.1, S7.2): not at MAX_WATERMARK, since a checkpoint may come between the two, and
    the groups do not tell who has been given. MAX_WATERMARK waits for them.

    State: `groups` (keyed: a row for each). It grows with the number of keys; `state_backend` says where it is kept.
    """

    def __init__(self, spec: RunningAggSpec) -> None:
        self._spec = spec
        self._groups: Groups | None = None

    def open(self, ctx: OperatorContext) -> None:
        """Make room for the groups."""
        super().open(ctx)
        store = StoredGroups if ctx.state_backend in OUTSIDE_MEMORY else GroupsInMemory
        self._groups = store(self._spec, ctx)

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Take the rows; what has changed, with output "update". Raises SumOverflowError."""
        if not batch.num_rows:
            return
        assert self._groups is not None
        changed = self._groups.take(batch)
        if self._spec.output == "update":
            yield from self._groups.results(changed)

    def finish(self) -> Iterator[Output]:
        """The final results."""
        assert self._groups is not None
        if self._spec.output == "final":
            yield from self._groups.all_groups()

    def forwards_end(self) -> bool:
        """Behind the final results."""
        return self._spec.output != "final"

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze the groups."""
        assert self._groups is not None
        return self._groups.snapshot(checkpoint_id, portable=self.portable)

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Take back the groups.

        Raises:
            SnapshotError: the state is of other keys or aggregates than the pipeline's; names both (S5.5).
        """
        assert self._groups is not None
        self._groups.restore(parts)

    def close(self) -> None:
        """Close what keeps the groups."""
        if self._groups is not None:
            self._groups.close()


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
