"""Storage of sessions: as columns in memory, or in a back end outside memory (S5.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.operators.aggregates.keyed_aggregates import AggregateLayout
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS
from tidegate.operators.stream_operator import OperatorContext
from tidegate.operators.windows.session_specs import SESSIONS, SessionAggSpec
from tidegate.operators.windows.session_table import MIN_DEAD, SessionTable
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, AsyncSnapshot, StatePart
from tidegate.state.copy_on_write import Entries
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.keys.key_hash import subtask_of_key_groups
from tidegate.state.state_layout import foreign_format_error


class SessionStore(Protocol):
    """The sessions of one subtask."""

    @property
    def next_end_us(self) -> int:
        """Return a time before which no unfired session closes; MAX_WATERMARK if there is none."""

    def take(
        self, batch: pa.RecordBatch, times_us: Int64s, closed_us: int, fired_us: int
    ) -> tuple[Int64s, Iterator[pa.RecordBatch]]:
        """Add rows. Return the numbers of late rows, and the sessions that rows joined and that closed by `fired_us`:
        they fire again.

        Args:
            closed_us: see `SessionTable.add`.

        Raises:
            SumOverflowError: a sum does not fit its type.
        """

    def fire(self, until_us: int) -> Iterator[pa.RecordBatch]:
        """Emit every session that closes by `until_us` and has not fired. Delete sessions that cannot fire again."""

    def drop(self) -> int:
        """Delete all sessions, none of which has fired. Returns their number."""

    def snapshot(self, checkpoint_id: int, *, portable: bool) -> AsyncSnapshot:
        """Freeze the sessions."""

    def restore_files(self, parts: Sequence[StatePart]) -> None:
        """Restore files of a back end. Raises SnapshotError: they were written by another back end."""

    def restore_rows(self, part: StatePart, closed_us: int) -> None:
        """Restore rows with the columns of `SessionAggSpec.state_schema`.

        Sessions that have fired and are closed by `closed_us` are skipped: they were kept for a longer lateness than is
        allowed now.
        """

    def close(self) -> None:
        """Release files."""


class SessionRows:
    """Converts sessions to columns of snapshots and results, and back."""

    def __init__(self, spec: SessionAggSpec) -> None:
        self.layout = AggregateLayout(spec.keys, spec.aggregates, spec.input_schema, spec.schema)
        self.schema = spec.state_schema
        self._first = len(self.schema) - len(self.layout.state_fields())
        self._width = self._first + len(spec.keys)
        self._results = spec.schema

    def keys(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the key columns of rows of a snapshot."""
        return pa.RecordBatch.from_arrays(rows.columns[self._first : self._width], schema=self.layout.keys.schema)

    def put(self, table: SessionTable, rows: pa.RecordBatch) -> None:
        """Add rows of a snapshot to a table."""
        starts, lasts = rows.column("window_start_us").to_numpy(), rows.column("last_us").to_numpy()
        fired = rows.column("fired").to_numpy(zero_copy_only=False).astype(np.uint8)
        table.put(self.keys(rows), starts, lasts, fired, rows.columns[self._width :])

    def results(self, table: SessionTable, sessions: Entries) -> Iterator[pa.RecordBatch]:
        """Return the results of sessions, in order."""
        for start in range(0, len(sessions), MAX_BATCH_ROWS):
            columns = table.result(sessions[start : start + MAX_BATCH_ROWS])
            yield pa.RecordBatch.from_arrays(columns, schema=self._results)


class MemorySessions:
    """Stores sessions as columns in memory; see `SessionStore`. Sessions fire in the order of their ends."""

    def __init__(self, spec: SessionAggSpec, ctx: OperatorContext) -> None:
        self._spec, self._ctx = spec, ctx
        self._rows = SessionRows(spec)
        self._serial = 0
        self._table = self._new_table()

    @property
    def next_end_us(self) -> int:
        """See `SessionStore`."""
        return self._table.next_end_us

    def take(
        self, batch: pa.RecordBatch, times_us: Int64s, closed_us: int, fired_us: int
    ) -> tuple[Int64s, Iterator[pa.RecordBatch]]:
        """See `SessionStore`."""
        taken = self._table.add(batch, times_us, closed_us)
        again = self._table.ended(taken.sessions, fired_us)
        if len(again):
            self._table.mark_fired(again)
        return taken.late, self._rows.results(self._table, again)

    def fire(self, until_us: int) -> Iterator[pa.RecordBatch]:
        """See `SessionStore`."""
        due = self._table.due(until_us)
        yield from self._rows.results(self._table, due)
        if until_us == MAX_WATERMARK:
            self._table = self._new_table()
            return
        if self._spec.lateness_us:
            self._table.mark_fired(due)
            due = self._table.ended(self._table.live(), until_us - self._spec.lateness_us)
        self._table.remove(due)
        if self._table.dead > max(MIN_DEAD, self._table.size // 2):
            self._serial += 1
            self._table = self._table.packed(self._serial)

    def drop(self) -> int:
        """See `SessionStore`."""
        dropped = len(self._table.live())
        self._table = self._new_table()
        return dropped

    def snapshot(self, checkpoint_id: int, *, portable: bool) -> AsyncSnapshot:
        """Freeze the columns of the sessions."""
        frozen = self._table.freeze(self._rows.schema, self._ctx.max_parallelism)
        return lambda: [frozen.part(SESSIONS)]

    def restore_files(self, parts: Sequence[StatePart]) -> None:
        """See `SessionStore`."""
        raise foreign_format_error(parts[0], [SESSIONS], self._ctx.uid)

    def restore_rows(self, part: StatePart, closed_us: int) -> None:
        """See `SessionStore`."""
        mine = subtask_of_key_groups(self._ctx.parallelism, self._ctx.max_parallelism) == self._ctx.subtask
        for table in part.tables():
            owned = table.filter(pa.array(mine[table.column(KEY_GROUP_COLUMN).to_numpy()]))
            for rows in owned.combine_chunks().to_batches():
                self._rows.put(self._table, rows)
        self._table.close(closed_us)

    def close(self) -> None:
        """Do nothing: no file is open."""

    def _new_table(self) -> SessionTable:
        self._serial += 1
        return SessionTable(self._rows.layout, self._spec.gap_us, self._serial)
