"""Initial state of a StatefulProcessor: whether it is complete, and the rows that wait for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from tidegate.channel.elements import MIN_WATERMARK
from tidegate.compat.pyspark_stateful.processor_specs import COMPLETE_STATE, WAITING_STATE, StatefulProcessorSpec
from tidegate.errors import SnapshotError
from tidegate.operators.restored_parts import single_part
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, StatePart
from tidegate.state.keyed_state import KeySet

COMPLETE_SCHEMA = pa.schema(
    [
        pa.field(KEY_GROUP_COLUMN, pa.uint16(), nullable=False),
        pa.field("complete", pa.bool_(), nullable=False),
        pa.field("held_us", pa.int64(), nullable=False),
    ]
)
"""For each key group: whether its initial state is complete, and the watermark that is held back until then."""


class InitialState:
    """Holds back rows that arrive before the initial state is complete, because operators cannot choose which input is
    read.

    Attributes:
        complete: True if the initial state is complete, or if there is none.
        held_us: the watermark that is held back; MIN_WATERMARK: none.
    """

    def __init__(self, spec: StatefulProcessorSpec, groups: range, uid: str) -> None:
        self.complete = spec.initial_schema is None
        self.held_us = MIN_WATERMARK
        self._spec, self._groups, self._uid = spec, groups, uid
        self._waiting: list[pa.RecordBatch] = []
        self._schema = pa.schema([pa.field(KEY_GROUP_COLUMN, pa.uint16()), *spec.input_schema])

    @property
    def has_held_rows(self) -> bool:
        """Return whether rows wait."""
        return bool(self._waiting)

    def hold_rows(self, batch: pa.RecordBatch, keys: KeySet) -> None:
        """Store rows until the initial state is complete."""
        groups = pa.array(keys.groups[keys.rows])
        self._waiting.append(pa.RecordBatch.from_arrays([groups, *batch.columns], schema=self._schema))

    def release_rows(self) -> list[pa.RecordBatch]:
        """Mark the initial state as complete, and return the waiting rows in order of arrival."""
        self.complete = True
        waiting, self._waiting = self._waiting, []
        schema = self._spec.input_schema
        return [pa.RecordBatch.from_arrays(batch.columns[1:], schema=schema) for batch in waiting]

    def freeze(self) -> Callable[[], list[StatePart]]:
        """Freeze it. The returned function creates the state parts, none if there is no initial state."""
        if self._spec.initial_schema is None:
            return list
        groups = np.array(self._groups, np.uint16)
        columns = [groups, np.full(len(groups), self.complete), np.full(len(groups), self.held_us, np.int64)]
        waiting = tuple(self._waiting)

        def parts() -> list[StatePart]:
            complete = pa.table(list(map(pa.array, columns)), schema=COMPLETE_SCHEMA)
            rows = pa.Table.from_batches(waiting, schema=self._schema)
            return [StatePart(COMPLETE_STATE, "keyed", complete), StatePart(WAITING_STATE, "keyed", rows)]

        return parts

    def restore(self, parts: Sequence[StatePart], *, drained: bool) -> None:
        """Restore the parts that `freeze` wrote for this subtask.

        If the snapshot has none, the operator had no initial state then, and a new one is ignored. Args: drained: a
        drain cut the initial state short, so it continues (S7.5).

        Raises:
            SnapshotError: rows wait for an initial state that the pipeline no longer has, or the columns have changed.
        """
        waiting = [part for part in parts if part.name == WAITING_STATE]
        if self._spec.initial_schema is None:
            if any(part.table.num_rows for part in waiting):
                raise SnapshotError(
                    "the snapshot has rows that wait for an initial state, but the pipeline has no initialState",
                    where=f"operator {self._uid!r}",
                    cause="the snapshot was taken before the initial state was complete",
                    remedy="Pass initialState again, or restore a snapshot with a complete initial state",
                )
            return
        renamed = dict(self._spec.renamed)
        for part in waiting:
            table = single_part(part, self._schema, self._uid, renamed).table
            mine = table.filter(self._own(table))
            self._waiting += [
                pa.RecordBatch.from_arrays(batch.columns, schema=self._schema)
                for batch in mine.to_batches()
                if batch.num_rows
            ]
        tables = [part.table.filter(self._own(part.table)) for part in parts if part.name == COMPLETE_STATE]
        self.complete = not drained and all(all(table["complete"].to_pylist()) for table in tables)
        self.held_us = min((held for table in tables for held in table["held_us"].to_pylist()), default=MIN_WATERMARK)

    def _own(self, table: pa.Table) -> pa.Array:
        groups = table[KEY_GROUP_COLUMN].to_numpy()
        return pa.array((groups >= self._groups.start) & (groups < self._groups.stop))
