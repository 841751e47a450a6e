"""Aggregates without windows in a back end outside memory (S5.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tidegate.operators.aggregates.aggregate_specs import GROUPS, RunningAggSpec
from tidegate.operators.aggregates.keyed_aggregates import AggregateLayout
from tidegate.operators.aggregates.stored_aggregates import FoldResult, StoredAggregates
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS
from tidegate.operators.restored_parts import single_part
from tidegate.operators.stream_operator import OperatorContext
from tidegate.snapshot.parts import AsyncSnapshot, StatePart


class StoredGroups:
    """Stores the groups in a back end outside memory; see `Groups`."""

    def __init__(self, spec: RunningAggSpec, ctx: OperatorContext) -> None:
        self._spec, self._uid = spec, ctx.uid
        self._layout = AggregateLayout(spec.keys, spec.aggregates, spec.input_schema, spec.schema)
        self._schema = spec.state_schema
        self._store = StoredAggregates(ctx, GROUPS, self._layout, self._schema, spec.renamed)

    def take(self, batch: pa.RecordBatch) -> FoldResult:
        """See `Groups`."""
        keys = self._store.keys(batch)
        if self._spec.is_partial:
            return self._store.merge(keys, batch.columns[len(self._spec.keys) :])
        return self._store.add(keys, self._layout.values(batch))

    def results(self, changed: FoldResult) -> Iterator[pa.RecordBatch]:
        """See `Groups`. Rows are in the order in which their keys arrived in the batch."""
        columns = changed.keys.columns()
        for start in range(0, changed.keys.size, MAX_BATCH_ROWS):
            keys = columns.slice(start, MAX_BATCH_ROWS)
            results = changed.folding.result(changed.places[start : start + MAX_BATCH_ROWS])
            yield pa.RecordBatch.from_arrays([*keys.columns, *results], schema=self._spec.schema)

    def all_groups(self) -> Iterator[pa.RecordBatch]:
        """See `Groups`. Ordered by key group, then in the order of the back end."""
        for keys in self._store.every(MAX_BATCH_ROWS):
            yield from self._changed_groups(keys.columns())

    def snapshot(self, checkpoint_id: int, *, portable: bool) -> AsyncSnapshot:
        """Freeze the back end."""
        return self._store.snapshot(checkpoint_id, portable=portable)

    def restore(self, parts: Sequence[StatePart]) -> None:
        """See `Groups`."""
        files = [part for part in parts if part.format != "rows"]
        if files:
            self._store.restore_files(files)
        for part in parts:
            if part.format == "rows":
                checked = single_part(part, self._schema, self._uid, dict(self._spec.renamed), fills=False)
                self._store.restore_rows(checked)

    def close(self) -> None:
        """Close the back end."""
        self._store.close()

    def _changed_groups(self, columns: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        keys = self._store.keys(columns)
        folding, there = self._store.read(keys)
        assert there.all(), "a group without a state is emitted"
        results = folding.result(slice(0, keys.size))
        yield pa.RecordBatch.from_arrays([*columns.columns, *results], schema=self._spec.schema)
