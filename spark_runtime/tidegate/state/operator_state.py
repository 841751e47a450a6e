"""Operator state: rows that belong to a subtask and to no key (S5.1): list, union, broadcast.

What a restore at any parallelism does with the rows (S5.5, `snapshot.redistribution`):

- list: each row comes to one subtask; at the same parallelism to the one that had it, else they are split evenly.
- union: every subtask sees the rows of all, and goes on holding an even share of them.
- broadcast: every subtask has the same rows, as long as all write the same.

Rows are Arrow batches, never changed in place: freezing copies nothing. All calls come from the slot's one loop, but
for what `OperatorStates.freeze` returns.
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
"""Batches that a state keeps before it makes one of them."""


class OperatorListState:
    """Rows of this subtask, in order."""

    def __init__(self, descriptor: OperatorDescriptor) -> None:
        """Args: descriptor: names it."""
        self.descriptor = descriptor
        self._batches: list[pa.RecordBatch] = []

    def get(self) -> pa.Table:
        """All rows."""
        return pa.Table.from_batches(self._batches, self.descriptor.columns)

    @property
    def holds_rows(self) -> bool:
        """There are some; cheap."""
        return bool(self._batches)

    def append(self, rows: pa.RecordBatch) -> None:
        """Add rows after the others. Raises PipelineError when their columns are not the state's."""
        self._require(rows, pa.RecordBatch)
        if rows.num_rows:
            self._batches.append(rows.cast(self.descriptor.columns))
        if len(self._batches) > MAX_BATCHES:
            self._batches = self.get().combine_chunks().to_batches()

    def put(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Replace all rows. Raises PipelineError when their columns are not the state's."""
        self._require(rows, pa.RecordBatch, pa.Table)
        self._batches = []
        for batch in rows.to_batches() if isinstance(rows, pa.Table) else [rows]:
            self.append(batch)

    def clear(self) -> None:
        """Remove all rows."""
        self._batches = []

    def freeze(self) -> Callable[[], pa.Table]:
        """The rows as they are now; for any thread."""
        return self.get().combine_chunks

    def restore(self, rows: pa.Table, subtask: int, parallelism: int) -> None:
        """Take the rows that a restore has for this subtask. Subclasses add what their kind is about."""
        self.put(rows)

    def _require(self, rows: Any, *types: type[pa.RecordBatch | pa.Table]) -> None:
        wanted = self.descriptor.columns
        if type(rows) not in types:
            raise self._refused(f"they are a {type(rows).__name__}", f"Give a pyarrow.{types[-1].__name__}")
        if rows.schema.names != wanted.names or rows.schema.types != wanted.types:
            cause = f"it has {_columns_text(wanted)}; the rows have {_columns_text(rows.schema)}"
            raise self._refused(cause, "Give these columns, in this order, or declare the state with the others")
        for field_, column in zip(wanted, rows.columns, strict=True):
            if not field_.nullable and column.null_count:
                raise self._refused(f"column {field_.name!r} has nulls, declared is not null", "Declare it nullable")

    def _refused(self, cause: str, remedy: str) -> PipelineError:
        where = f"state {self.descriptor.name!r}"
        return PipelineError("rows do not have the columns of the state", where=where, cause=cause, remedy=remedy)


class UnionState(OperatorListState):
    """Rows of this subtask, and after a restore those that all subtasks had.

    Each row of the union goes on in one subtask: before it writes, a subtask holds its share of them, so that the next
    snapshot has every row once. Whoever replaces its rows (`put`, `clear`) does so in every subtask: the share need not
    be the rows that this subtask had.
    """

    def __init__(self, descriptor: OperatorDescriptor) -> None:
        """See `OperatorListState`."""
        super().__init__(descriptor)
        self._restored = descriptor.columns.empty_table()

    def restored(self) -> pa.Table:
        """The rows of all subtasks in the snapshot that was restored, in the order of its subtasks; none at a first
        start."""
        return self._restored

    def restore(self, rows: pa.Table, subtask: int, parallelism: int) -> None:
        """See `OperatorListState`."""
        self._restored = rows
        first = rows.num_rows * subtask // parallelism
        self.put(rows.slice(first, rows.num_rows * (subtask + 1) // parallelism - first))


class BroadcastState(OperatorListState):
    """Rows that are the same in every subtask: write only what every subtask writes, in the same order. A restore takes
    those of one subtask for each."""


class KeyedBroadcastState:
    """A `BroadcastMap`, as one of the states of a subtask."""

    def __init__(self, descriptor: OperatorDescriptor) -> None:
        """Args: descriptor: has a key."""
        self.descriptor = descriptor
        self.map = BroadcastMap(descriptor.name, descriptor.key, descriptor.columns)

    def freeze(self) -> Callable[[], pa.Table]:
        """The rows as they are now; for any thread."""
        frozen = self.map.freeze()
        return lambda: self.map.frozen_table(frozen)

    def restore(self, rows: pa.Table, subtask: int, parallelism: int) -> None:
        """Take the rows that a restore has for this subtask."""
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
        """Args: uid: of the operator, for errors. descriptors: names are different. subtask, parallelism: its place."""
        self._uid = uid
        self._place = subtask, parallelism
        self._states = {descriptor.name: _new_state(descriptor) for descriptor in descriptors}
        assert len(self._states) == len(descriptors), f"operator {uid!r} declares a state twice"

    @property
    def names(self) -> frozenset[str]:
        """Of its states: which parts of a snapshot are theirs."""
        return frozenset(self._states)

    def list(self, name: str) -> OperatorListState:
        """The list state of this name. These four raise PipelineError for any other."""
        return self._state(name, OperatorListState)

    def union(self, name: str) -> UnionState:
        """The union state of this name."""
        return self._state(name, UnionState)

    def broadcast(self, name: str) -> BroadcastState:
        """The broadcast state of this name."""
        return self._state(name, BroadcastState)

    def broadcast_map(self, name: str) -> BroadcastMap:
        """The broadcast state of this name that goes by keys."""
        return self._state(name, KeyedBroadcastState).map

    def allow_broadcast_writes(self, writable: bool) -> None:
        """Whether broadcast states that go by keys may be written from now on."""
        for state in self._states.values():
            if isinstance(state, KeyedBroadcastState):
                state.map.writable = writable

    def freeze(self) -> AsyncSnapshot:
        """The states as they are now; for any thread."""
        frozen = [(state.descriptor, state.freeze()) for state in self._states.values()]
        return lambda: [
            StatePart(d.name, d.kind, table().replace_schema_metadata(d.schema.metadata)) for d, table in frozen
        ]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Take back what `redistribution.redistributed` has for this subtask.

        Raises:
            SnapshotError: a state is of another kind, its columns cannot become those that are declared, or nobody
                declares it.
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
                    f"State {part.name!r} is of another kind in the snapshot",
                    where=f"operator {self._uid!r}",
                    cause=f"the snapshot has {was}, the pipeline {now}",
                    remedy="Give the state another name, or declare the former kind",
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
            f"there is no {kind.__name__} {name!r}",
            where=f"operator {self._uid!r}",
            cause=f"its operator states are {declared or 'none'}",
            remedy="Declare it, or ask for it by its kind",
        )


def _columns_text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
