"""Operator state: rows that belong to a subtask and to no key (S5.1): list, union, broadcast.

A restore at any parallelism distributes the rows as follows (S5.5, `snapshot.redistribution`):

- list: each row goes to one subtask; at the same parallelism to the subtask that had it, else rows are split evenly.
- union: every subtask receives the rows of all, and continues to hold an even share of them.
- broadcast: every subtask receives the same rows, provided that all wrote the same.

Rows are Arrow batches that are never changed in place, so freezing copies nothing. All calls come from the slot's one
loop, except calls of the function that `OperatorStates.freeze` returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from tidegate.errors import PipelineError, SnapshotError
from tidegate.snapshot.evolved_columns import evolve_part
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.broadcast_map import BroadcastMap
from tidegate.state.operator_descriptor import OperatorDescriptor, OperatorKind
from tidegate.state.state_layout import form_of, unknown_state

MAX_BATCHES = 64
"""Number of batches at which a state combines them into one."""


class OperatorListState:
    """Rows of this subtask, in order."""

    def __init__(self, descriptor: OperatorDescriptor) -> None:
        """Create an empty state. Args: descriptor: declares name and columns."""
        self.descriptor = descriptor
        self._batches: list[pa.RecordBatch] = []

    def get(self) -> pa.Table:
        """Return all rows."""
        return pa.Table.from_batches(self._batches, self.descriptor.columns)

    @property
    def holds_rows(self) -> bool:
        """Return whether there are rows; cheap."""
        return bool(self._batches)

    def append(self, rows: pa.RecordBatch) -> None:
        """Append rows. Raises PipelineError if their columns differ from the state's."""
        self._require(rows, pa.RecordBatch)
        if rows.num_rows:
            self._batches.append(rows.cast(self.descriptor.columns))
        if len(self._batches) > MAX_BATCHES:
            self._batches = self.get().combine_chunks().to_batches()

    def put(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Replace all rows. Raises PipelineError if their columns differ from the state's."""
        self._require(rows, pa.RecordBatch, pa.Table)
        self._batches = []
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
            self.append(batch)

    def clear(self) -> None:
        """Remove all rows."""
        self._batches = []

    def freeze(self) -> Callable[[], pa.Table]:
        """Return a function for any thread that returns the present rows."""
        return self.get().combine_chunks

    def restore(self, rows: pa.Table, subtask: int, parallelism: int) -> None:
        """Restore the rows for this subtask. Subclasses add the behaviour of their kind."""
        self.put(rows)

    def _require(self, rows: Any, *types: type[pa.RecordBatch | pa.Table]) -> None:
        wanted = self.descriptor.columns
        if type(rows) not in types:
            raise self._refused(f"the rows are a {type(rows).__name__}", f"Pass a pyarrow.{types[-1].__name__}")
        if rows.schema.names != wanted.names or rows.schema.types != wanted.types:
            cause = f"the state has {_columns_text(wanted)}; the rows have {_columns_text(rows.schema)}"
            raise self._refused(
                cause, "Pass the columns of the state, in this order, or declare the state with the columns of the rows"
            )
        for field_, column in zip(wanted, rows.columns, strict=True):
            if not field_.nullable and column.null_count:
                raise self._refused(
                    f"column {field_.name!r} has nulls, but is declared not null", "Declare the column nullable"
                )

    def _refused(self, cause: str, remedy: str) -> PipelineError:
        where = f"state {self.descriptor.name!r}"
        return PipelineError("the rows for the state do not have its columns", where=where, cause=cause, remedy=remedy)


class UnionState(OperatorListState):
    """Rows of this subtask and, after a restore, the rows of all subtasks.

    After a restore, a subtask holds its share of the union until it writes, so that the next snapshot has every row
    once. A user function that replaces the rows (`put`, `clear`) must do so in every subtask: the share need not
    consist of the rows that this subtask wrote before.
    """

    def __init__(self, descriptor: OperatorDescriptor) -> None:
        """See `OperatorListState`."""
        super().__init__(descriptor)
        self._restored = descriptor.columns.empty_table()

    def restored(self) -> pa.Table:
        """Return the rows of all subtasks in the restored snapshot, in the order of its subtasks; none at a first
        start.
        """
        return self._restored

    def restore(self, rows: pa.Table, subtask: int, parallelism: int) -> None:
        """See `OperatorListState`."""
        self._restored = rows
        first = rows.num_rows * subtask // parallelism
        self.put(rows.slice(first, rows.num_rows * (subtask + 1) // parallelism - first))


class BroadcastState(OperatorListState):
    """Rows that are the same in every subtask: write only what every subtask writes, in the same order.

    A restore gives the rows of one subtask to all.
    """


class KeyedBroadcastState:
    """A `BroadcastMap`, as one of the states of a subtask."""

    def __init__(self, descriptor: OperatorDescriptor) -> None:
        """Create an empty state. Args: descriptor: has a key."""
        self.descriptor = descriptor
        self.map = BroadcastMap(descriptor.name, descriptor.key, descriptor.columns)

    def freeze(self) -> Callable[[], pa.Table]:
        """Return a function for any thread that returns the present rows."""
        frozen = self.map.freeze()
        return lambda: self.map.frozen_table(frozen)

    def restore(self, rows: pa.Table, subtask: int, parallelism: int) -> None:
        """Restore the rows for this subtask."""
        self.map.restore(rows)


AnyState = TypeVar("AnyState", OperatorListState, UnionState, BroadcastState, KeyedBroadcastState)
_CLASSES: dict[OperatorKind, type[OperatorListState]] = {
    "list": OperatorListState,
    "union": UnionState,
    "broadcast": BroadcastState,
}


def _new_state(descriptor: OperatorDescriptor) -> OperatorListState | KeyedBroadcastState:
    return KeyedBroadcastState(descriptor) if len(descriptor.key) else _CLASSES[descriptor.kind](descriptor)


class OperatorStates:
    """All operator states of one subtask."""

    def __init__(self, uid: str, descriptors: Sequence[OperatorDescriptor], subtask: int, parallelism: int) -> None:
        """Create empty states.

        Args:
            uid: uid of the operator, for errors.
            descriptors: declared states, with unique names.
            subtask, parallelism: place of the subtask.
        """
        self._uid = uid
        self._place = subtask, parallelism
        self._states = {descriptor.name: _new_state(descriptor) for descriptor in descriptors}
        assert len(self._states) == len(descriptors), f"operator {uid!r} declares a state twice"

    @property
    def names(self) -> frozenset[str]:
        """Return the names of its states, which identify their parts in a snapshot."""
        return frozenset(self._states)

    def list(self, name: str) -> OperatorListState:
        """Return the list state of this name. This method and the next three raise PipelineError for any other name."""
        return self._state(name, OperatorListState)

    def union(self, name: str) -> UnionState:
        """Return the union state of this name."""
        return self._state(name, UnionState)

    def broadcast(self, name: str) -> BroadcastState:
        """Return the broadcast state of this name."""
        return self._state(name, BroadcastState)

    def broadcast_map(self, name: str) -> BroadcastMap:
        """Return the broadcast state by key of this name."""
        return self._state(name, KeyedBroadcastState).map

    def allow_broadcast_writes(self, writable: bool) -> None:
        """Set whether broadcast states by key may be written from now on."""
        for state in self._states.values():
            if isinstance(state, KeyedBroadcastState):
                state.map.writable = writable

    def freeze(self) -> AsyncSnapshot:
        """Return a function for any thread that returns the present states."""
        frozen = [(state.descriptor, state.freeze()) for state in self._states.values()]
        return lambda: [
            StatePart(d.name, d.kind, table().replace_schema_metadata(d.schema.metadata)) for d, table in frozen
        ]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore the parts that `redistribution.redistributed` assigns to this subtask.

        Raises:
            SnapshotError: a state has another kind, its columns cannot be converted to the declared ones, or it is not
                declared.
        """
        for part in parts:
            state = self._states.get(part.name)
            if state is None:
                raise unknown_state(part.name, self._uid)
            declared = state.descriptor
            was, now = form_of(part.table.schema) or form_of(declared.schema), form_of(declared.schema)
            if part.kind != declared.kind:
                was, now = part.kind, declared.kind
            if was != now:
                raise SnapshotError(
                    f"state {part.name!r} has another kind in the snapshot",
                    where=f"operator {self._uid!r}",
                    cause=f"the snapshot has {was}, but the pipeline declares {now}",
                    remedy="Use another name for the state, or declare the former kind",
                )
            changed = evolve_part(part, declared.schema, self._uid, declared.renamed)
            rows = pa.concat_tables([table.replace_schema_metadata(None) for table in changed.tables()])
            state.restore(rows, *self._place)

    def _state(self, name: str, kind: type[AnyState]) -> AnyState:
        state = self._states.get(name)
        if type(state) is kind:
            return state
        declared = ", ".join(f"{n} ({s.descriptor.kind})" for n, s in self._states.items())
        raise PipelineError(
            f"the operator has no {kind.__name__} {name!r}",
            where=f"operator {self._uid!r}",
            cause=f"the operator declares these states: {declared or 'none'}",
            remedy="Declare the state, or call the method for the declared kind of the state",
        )


def _columns_text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
