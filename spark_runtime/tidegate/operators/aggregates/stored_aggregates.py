"""Aggregates by key in a back end that keeps state outside memory (S5.2).

The state of an aggregate is already Arrow columns (`AggregateState.state`), so one row of them is the value of a key.
For each batch, the values of its keys are read, the new rows are added in memory, and the values are written back. The
back end's cache saves the disk access for keys that change often.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.operators.aggregates.keyed_aggregates import AggregateLayout
from tidegate.operators.keyed_backend import open_keyed_backend
from tidegate.operators.restored_parts import evolve_rows
from tidegate.operators.stream_operator import OperatorContext
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, AsyncSnapshot, StatePart
from tidegate.state.aggregates.aggregation import AggregateState, ReadValues, Selection
from tidegate.state.copy_on_write import CopyOnWriteArrays, Entries
from tidegate.state.keyed_state import KeySet, Mask, StateDescriptor
from tidegate.state.rocksdb.portable_rows import rows_in_key_groups
from tidegate.state.state_layout import KEY_PREFIX, VALUE_PREFIX

Renamed = Sequence[tuple[str, str]]
"""(Key or output column in older snapshots, its name now)."""


def renamed_aggregates(columns: Sequence[str], renamed: Renamed) -> dict[str, str]:
    """Map state columns of older snapshots to their names now, for aggregates whose output column was renamed.

    Args:
        columns: state columns now, such as `sum:total`.
    """
    old = {new: before for before, new in renamed}
    parts = ((name, *name.partition(":")) for name in columns)
    return {f"{function}:{old[output]}": name for name, function, _, output in parts if output in old}


class AggregateStep:
    """Aggregates of entries 0..size - 1, used for one step only."""

    def __init__(self, layout: AggregateLayout, size: int) -> None:
        self._accumulators: list[AggregateState] = layout.accumulators(CopyOnWriteArrays(max(size, 1)))

    def add(self, entries: Entries, values: Sequence[ReadValues | None], known: int) -> None:
        """Add one row for each of `entries`. Entries from number `known` on are new.

        Raises:
            SumOverflowError: a sum does not fit its type.
        """
        for accumulator, read in zip(self._accumulators, values, strict=True):
            accumulator.add(entries, read, known)

    def merge(self, entries: Entries, columns: Sequence[pa.Array], known: int) -> None:
        """Merge state columns into `entries`, in order.

        Raises:
            SumOverflowError: a sum does not fit its type.
        """
        at = 0
        for accumulator in self._accumulators:
            width = len(accumulator.state_schema)
            accumulator.merge(entries, columns[at : at + width], known)
            at += width

    def state(self, entries: Selection) -> list[pa.Array]:
        """Return the state columns of the entries."""
        return [array for accumulator in self._accumulators for array in accumulator.state(entries)]

    def result(self, entries: Selection) -> list[pa.Array]:
        """Aggregates."""
        return [accumulator.result(entries) for accumulator in self._accumulators]


@dataclass(frozen=True)
class FoldResult:
    """The keys of a batch and their aggregates after the batch.

    Attributes:
        keys: distinct keys.
        was_there: which of them had a state before.
        places: the entry of each key in `folding`.
        folding: their aggregates.
    """

    keys: KeySet
    was_there: Mask
    places: Entries
    folding: AggregateStep


class StoredAggregates:
    """The state `name` of one operator subtask: the state columns of the aggregates for each key."""

    def __init__(
        self, ctx: OperatorContext, name: str, layout: AggregateLayout, rows: pa.Schema, renamed: Renamed
    ) -> None:
        """Open the back end. Args: rows: columns of the state in savepoints: key group, keys, aggregates."""
        self._layout = layout
        self._rows = rows
        self._keys = layout.keys.schema
        self._groups = key_group_range(ctx.subtask, ctx.parallelism, ctx.max_parallelism)
        columns = pa.schema(layout.state_fields()[len(self._keys) :])
        former = renamed_aggregates(columns.names, renamed)
        self._descriptor = StateDescriptor(name, "value", columns, renamed=former)
        self._back_end = open_keyed_backend(ctx, self._keys, renamed=renamed, fills=False)
        self._state = self._back_end.value(self._descriptor)
        # Checkpoints of former versions have a part for timers, although there were never any.
        self._back_end.timers("event")

    def keys(self, columns: pa.RecordBatch) -> KeySet:
        """Return the distinct keys of rows. Args: columns: holds the key columns."""
        return self._back_end.keys(columns)

    def every(self, limit: int) -> Iterator[KeySet]:
        """Return all keys, in sets of at most `limit`. Do not write before the iteration has ended."""
        return self._back_end.all_keys(self._descriptor, limit)

    # ------------------------------------------------------------ aggregates

    def add(self, keys: KeySet, values: Sequence[ReadValues | None]) -> FoldResult:
        """Add the rows of `keys`. Args: values: of each row, for each aggregate. Raises SumOverflowError."""
        folded = self._read(keys)
        folded.folding.add(folded.places[keys.rows], values, int(folded.was_there.sum()))
        return self._written(folded)

    def merge(self, keys: KeySet, columns: Sequence[pa.Array]) -> FoldResult:
        """Merge state columns, a row for each row of `keys`. Raises SumOverflowError."""
        folded = self._read(keys)
        folded.folding.merge(folded.places[keys.rows], columns, int(folded.was_there.sum()))
        return self._written(folded)

    def read(self, keys: KeySet) -> tuple[AggregateStep, Mask]:
        """Return the aggregates of the keys, by the number of the key, and which of them have a state."""
        found = self._state.get(keys)
        folding = AggregateStep(self._layout, keys.size)
        entries = np.flatnonzero(found.present).astype(np.int32)
        folding.merge(entries, found.columns.take(pa.array(entries)).columns, 0)
        return folding, found.present

    def _read(self, keys: KeySet) -> FoldResult:
        """Read the stored states of the keys. Keys with a state get the first entries."""
        found = self._state.get(keys)
        there, known = found.present, int(found.present.sum())
        places = np.empty(keys.size, np.int32)
        places[there] = np.arange(known)
        places[~there] = np.arange(known, keys.size)
        folding = AggregateStep(self._layout, keys.size)
        if known:
            columns = found.columns if known == keys.size else found.columns.filter(pa.array(there))
            folding.merge(np.arange(known, dtype=np.int32), columns.columns, 0)
        return FoldResult(keys, there.copy(), places, folding)

    def _written(self, folded: FoldResult) -> FoldResult:
        arrays = folded.folding.state(slice(0, folded.keys.size))
        # If all keys or none had a state, the entries are in the order of the keys already.
        if folded.was_there.any() and not folded.was_there.all():
            places = pa.array(folded.places)
            arrays = [array.take(places) for array in arrays]
        self._state.put(folded.keys, pa.RecordBatch.from_arrays(arrays, schema=self._descriptor.columns))
        return folded

    # ------------------------------------------------------------ snapshots

    def snapshot(self, checkpoint_id: int, *, portable: bool) -> AsyncSnapshot:
        """Freeze the state. A savepoint holds the same rows as a savepoint of an operator in memory."""
        write = self._back_end.snapshot(checkpoint_id, portable=portable)
        if not portable:
            return write
        name = self._descriptor.name
        return lambda: [evolve_rows(part, self._to_plain) for part in write() if part.name == name]

    def restore_files(self, parts: Sequence[StatePart]) -> None:
        """Restore state and timers from files of the back end. Raises SnapshotError: the columns differ."""
        self._back_end.restore([part for part in parts if part.format != "rows"])

    def restore_rows(self, part: StatePart) -> None:
        """Restore rows with the columns of `rows`, a piece at a time."""
        width = 1 + len(self._keys)
        for rows in rows_in_key_groups(part, self._groups):
            keys = self.keys(pa.RecordBatch.from_arrays(rows.columns[1:width], schema=self._keys))
            assert keys.size == rows.num_rows, "the state of aggregates has a key twice"
            self._state.put(keys, pa.RecordBatch.from_arrays(rows.columns[width:], schema=self._descriptor.columns))

    def close(self) -> None:
        """Close the back end."""
        self._back_end.close()

    def _to_plain(self, table: pa.Table) -> pa.Table:
        """Convert rows of the back end to the columns of `rows`."""
        names = [KEY_GROUP_COLUMN, *(KEY_PREFIX + name for name in self._keys.names)]
        names += [VALUE_PREFIX + name for name in self._descriptor.columns.names]
        return pa.table([table.column(name) for name in names], schema=self._rows)
