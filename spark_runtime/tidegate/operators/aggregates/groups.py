"""Where aggregates without windows are stored: as columns in memory, or in a back end outside memory (S5.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from tidegate.operators.aggregates.aggregate_specs import GROUPS, RunningAggSpec
from tidegate.operators.aggregates.frozen_aggregates import FrozenPanes
from tidegate.operators.aggregates.keyed_aggregates import AggregateLayout, KeyedAggregates
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS
from tidegate.operators.restored_parts import single_part
from tidegate.operators.stream_operator import OperatorContext
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, AsyncSnapshot, StatePart
from tidegate.state.copy_on_write import Entries
from tidegate.state.keys.key_hash import subtask_of_key_groups
from tidegate.state.state_layout import foreign_format_error

_START = pa.field("window_start_us", pa.int64())


class Groups(Protocol):
    """The groups of one subtask, by key."""

    def take(self, batch: pa.RecordBatch) -> Any:
        """Add rows and return their groups, which are valid only until the next call.

        Raises:
            SumOverflowError: a sum does not fit its type.
        """

    def results(self, changed: Any) -> Iterator[pa.RecordBatch]:
        """Return the aggregates of these groups, one row for each."""

    def all_groups(self) -> Iterator[pa.RecordBatch]:
        """Return the aggregates of every group."""

    def snapshot(self, checkpoint_id: int, *, portable: bool) -> AsyncSnapshot:
        """Freeze the groups."""

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore the groups.

        Raises:
            SnapshotError: the snapshot has other keys or aggregates (S5.5).
        """

    def close(self) -> None:
        """Release files."""


class GroupsInMemory:
    """Stores the groups as columns in memory; see `Groups`."""

    def __init__(self, spec: RunningAggSpec, ctx: OperatorContext) -> None:
        self._spec, self._ctx = spec, ctx
        self._layout = AggregateLayout(spec.keys, spec.aggregates, spec.input_schema, spec.schema)
        self._groups = KeyedAggregates(self._layout, 1)
        self._schema = spec.state_schema

    def take(self, batch: pa.RecordBatch) -> Entries:
        """See `Groups`."""
        if self._spec.is_partial:
            keys = batch.select(list(self._spec.keys))
            return self._groups.merge(keys, batch.columns[len(self._spec.keys) :])
        return self._groups.add(self._layout.read(batch), 0, batch.num_rows)

    def results(self, changed: Entries) -> Iterator[pa.RecordBatch]:
        """See `Groups`. Rows are in the order in which their keys arrived first."""
        changed = np.unique(changed)
        for start in range(0, len(changed), MAX_BATCH_ROWS):
            part = changed[start : start + MAX_BATCH_ROWS]
            columns = [*self._groups.keys_of(part).columns, *self._groups.result(part)]
            yield pa.RecordBatch.from_arrays(columns, schema=self._spec.schema)

    def all_groups(self) -> Iterator[pa.RecordBatch]:
        """See `Groups`."""
        yield from self.results(np.arange(self._groups.size, dtype=np.int32))

    def snapshot(self, checkpoint_id: int, *, portable: bool) -> AsyncSnapshot:
        """Freeze the columns of the groups."""
        schema = self._schema.insert(1, _START)
        frozen = FrozenPanes(schema, [(0, self._groups.freeze())], self._ctx.max_parallelism, checkpoint_id)
        return lambda: [frozen.part(GROUPS, lambda rows: rows.drop_columns([_START.name]))]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """See `Groups`."""
        ctx = self._ctx
        mine = subtask_of_key_groups(ctx.parallelism, ctx.max_parallelism) == ctx.subtask
        width = 1 + len(self._spec.keys)
        for part in parts:
            if part.format != "rows":
                raise foreign_format_error(part, [GROUPS], ctx.uid)
            checked = single_part(part, self._schema, ctx.uid, dict(self._spec.renamed), fills=False)
            for table in checked.tables():
                owned = table.filter(pa.array(mine[table.column(KEY_GROUP_COLUMN).to_numpy()]))
                for rows in owned.combine_chunks().to_batches():
                    keys = pa.RecordBatch.from_arrays(rows.columns[1:width], schema=self._layout.keys.schema)
                    self._groups.merge(keys, rows.columns[width:])

    def close(self) -> None:
        """Do nothing: no file is open."""
