"""Sessions in a back end outside memory (S5.2).

The value of a key is its open sessions: a list for each column of a session. To add rows of some keys, their sessions
are read into a table in memory, which exists for that step only. A key has an event timer at or before the first time
at which one of its sessions fires or closes. A session that grows keeps its old timer, which then finds nothing due
and is registered again. The time at which a session closes depends on the lateness, which may change between runs. A
timer for closing may therefore come later; a timer for firing never does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.operators.aggregates.stored_aggregates import renamed_aggregates
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS
from tidegate.operators.keyed_backend import open_keyed_backend
from tidegate.operators.restored_parts import evolve_rows
from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.windows.session_specs import SESSIONS, SessionAggSpec
from tidegate.operators.windows.session_store import SessionRows
from tidegate.operators.windows.session_table import SessionTable
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, AsyncSnapshot, StatePart
from tidegate.state.keyed_state import KeySet, StateDescriptor
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.rocksdb.portable_rows import rows_in_key_groups
from tidegate.state.state_layout import KEY_PREFIX, VALUE_PREFIX

_BOUNDS = (("start", pa.int64()), ("last", pa.int64()), ("fired", pa.bool_()))


class StoredSessions:
    """Stores sessions in a back end; see `SessionStore`. Sessions fire in the order of their ends within a batch of
    keys."""

    def __init__(self, spec: SessionAggSpec, ctx: OperatorContext) -> None:
        """Open the back end."""
        self._spec = spec
        self._rows = SessionRows(spec)
        self._keys = self._rows.layout.keys.schema
        self._groups = key_group_range(ctx.subtask, ctx.parallelism, ctx.max_parallelism)
        aggregates = self._rows.layout.state_fields()[len(self._keys) :]
        held = [*(pa.field(*bound) for bound in _BOUNDS), *aggregates]
        columns = pa.schema([pa.field(field.name, pa.list_(field.type)) for field in held])
        former = renamed_aggregates(columns.names, spec.renamed)
        self._descriptor = StateDescriptor(SESSIONS, "value", columns, renamed=former)
        self._back_end = open_keyed_backend(ctx, self._keys, renamed=spec.renamed, fills=False)
        self._state = self._back_end.value(self._descriptor)
        self._timers = self._back_end.timers("event")

    @property
    def next_end_us(self) -> int:
        """See `SessionStore`."""
        next_us = self._timers.next_us()
        return MAX_WATERMARK if next_us is None else next_us

    def take(
        self, batch: pa.RecordBatch, times_us: Int64s, closed_us: int, fired_us: int
    ) -> tuple[Int64s, Iterator[pa.RecordBatch]]:
        """See `SessionStore`."""
        keys = self._back_end.keys(batch.select(self._keys.names))
        table = self._table_of(keys)
        timed_us = self._due_us(table, keys.size, to_fire=True)
        table.close(closed_us)
        taken = table.add(batch, times_us, closed_us)
        again = table.ended(taken.sessions, fired_us)
        table.mark_fired(again)
        self._write(keys, table, timed_us)
        return taken.late, self._rows.results(table, again)

    def fire(self, until_us: int) -> Iterator[pa.RecordBatch]:
        """See `SessionStore`."""
        while (due := self._timers.due(until_us, MAX_BATCH_ROWS)) is not None:
            table = self._table_of(due.keys)
            fires = table.due(until_us)
            # Computed now, because the sessions are deleted from the table below.
            results = list(self._rows.results(table, fires))
            table.mark_fired(fires)
            table.close(until_us - self._spec.lateness_us if until_us < MAX_WATERMARK else MAX_WATERMARK)
            # `due` has removed the timers of these keys, so that all of them are registered again.
            self._write(due.keys, table, np.full(due.keys.size, MAX_WATERMARK))
            yield from results

    def drop(self) -> int:
        """See `SessionStore`."""
        return sum(batch.num_rows for batch in self.fire(MAX_WATERMARK))

    def snapshot(self, checkpoint_id: int, *, portable: bool) -> AsyncSnapshot:
        """Freeze the back end. A savepoint has a row for each session, and no timers, because they follow from the
        rows."""
        write = self._back_end.snapshot(checkpoint_id, portable=portable)
        if not portable:
            return write
        return lambda: [evolve_rows(part, self._plain) for part in write() if part.name == SESSIONS]

    def restore_files(self, parts: Sequence[StatePart]) -> None:
        """See `SessionStore`. Sessions that were kept for a longer lateness than is allowed now are deleted when rows
        arrive for their key, or when their timer fires.

        Raises:
            SnapshotError: the files have other columns.
        """
        self._back_end.restore(parts)

    def restore_rows(self, part: StatePart, closed_us: int) -> None:
        """See `SessionStore`. Sessions of one key may arrive in several pieces."""
        for rows in rows_in_key_groups(part, self._groups):
            keys = self._back_end.keys(self._rows.keys(rows))
            table = self._table_of(keys)
            timed_us = self._due_us(table, keys.size, to_fire=True)
            self._rows.put(table, rows)
            table.close(closed_us)
            self._write(keys, table, timed_us)

    def close(self) -> None:
        """Close the back end."""
        self._back_end.close()

    def _table_of(self, keys: KeySet) -> SessionTable:
        """Return a table with the sessions of these keys. It numbers keys as the set does."""
        table = SessionTable(self._rows.layout, self._spec.gap_us, 0)
        columns = keys.columns()
        table.number_keys(columns)
        found = self._state.get(keys)
        there = np.flatnonzero(found.present)
        if len(there):
            held = found.columns.take(pa.array(there))
            counts = pc.list_value_length(held.column(0)).to_numpy()
            owners = pa.array(np.repeat(there, counts))
            starts, lasts, fired, *state = (column.flatten() for column in held.columns)
            flags = fired.to_numpy(zero_copy_only=False).astype(np.uint8)
            table.put(columns.take(owners), starts.to_numpy(), lasts.to_numpy(), flags, state)
        return table

    def _due_us(self, table: SessionTable, keys: int, *, to_fire: bool = False) -> Int64s:
        """Return for each key the first time at which one of its sessions fires or closes; MAX_WATERMARK: it has none.

        Args:
            to_fire: ignore sessions that have fired already.
        """
        sessions = table.live()
        _, lasts, fired = table.bounds(sessions)
        over_us = MAX_WATERMARK if to_fire else lasts + self._spec.reach_us + self._spec.lateness_us
        times_us = np.where(fired, over_us, lasts + self._spec.reach_us)
        due_us = np.full(keys, MAX_WATERMARK)
        np.minimum.at(due_us, table.owners(sessions), times_us)
        return due_us

    def _write(self, keys: KeySet, table: SessionTable, timed_us: Int64s) -> None:
        """Replace the stored sessions of these keys.

        Args:
            timed_us: time at or before which each key has a timer; MAX_WATERMARK: it may have none.
        """
        sessions = table.live()
        owners = table.owners(sessions)
        order = np.argsort(owners, kind="stable")  # keeps sessions of a key in the order of their creation
        sessions, counts = sessions[order], np.bincount(owners, minlength=keys.size)
        offsets = pa.array(np.concatenate([[0], np.cumsum(counts)]).astype(np.int32))
        arrays = [*map(pa.array, table.bounds(sessions)), *table.state(sessions)]
        lists = [pa.ListArray.from_arrays(offsets, array) for array in arrays]
        held = counts > 0
        self._state.put(keys, pa.RecordBatch.from_arrays(lists, schema=self._descriptor.columns), held)
        self._state.clear(keys, ~held)
        due_us = self._due_us(table, keys.size)
        earlier = np.flatnonzero(due_us < timed_us).astype(np.int32)
        self._timers.register(keys, earlier, due_us[earlier])

    def _plain(self, table: pa.Table) -> pa.Table:
        """Convert rows of the back end (`layout`) to a row for each session."""
        return pa.Table.from_batches([self._sessions_of(rows) for rows in table.to_batches()], schema=self._rows.schema)

    def _sessions_of(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        lists = [rows.column(VALUE_PREFIX + name) for name in self._descriptor.columns.names]
        owners = pc.list_parent_indices(lists[0])
        starts, lasts, fired, *state = (column.flatten() for column in lists)
        groups, *keys = (
            rows.column(name).take(owners)
            for name in (KEY_GROUP_COLUMN, *(KEY_PREFIX + name for name in self._keys.names))
        )
        arrays = [groups, starts, lasts, fired, *keys, *state]
        return pa.RecordBatch.from_arrays(arrays, schema=self._rows.schema)
