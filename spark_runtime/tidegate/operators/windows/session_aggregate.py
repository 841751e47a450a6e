"""Aggregates per key over sessions: rows at most a gap apart, of event time or of the clock."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.operators.batch_sizes import coalesce_batches
from tidegate.operators.restored_parts import single_part
from tidegate.operators.stream_operator import OperatorContext, Output, StreamOperator
from tidegate.operators.time.event_time import EventTimeColumn
from tidegate.operators.time.late_rows import NULL_TIME_DROPPED, PROCESSING_TIME_DROPPED, check_time_range, late_rows
from tidegate.operators.windows.session_specs import SessionAggSpec
from tidegate.operators.windows.session_store import MemorySessions, SessionStore
from tidegate.operators.windows.stored_sessions import StoredSessions
from tidegate.operators.windows.window_progress import WindowProgress
from tidegate.operators.windows.window_specs import PROGRESS
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.backend_registry import OUTSIDE_MEMORY
from tidegate.state.keys.key_bytes import Int64s, valid_mask

log = logging.getLogger(__name__)


class SessionAggregate(StreamOperator):
    """Sessions over event time: [time of the first row, time of the last + gap). Rows of a key that are at most a
    gap apart are in one; a row may join several to one.

    A session fires when the watermark has passed its end, since a row at the very end still belongs to it, and closes
    when it is `lateness_us` further. Rows that come for
    it in between make it fire again, with what it has become: its bounds may be others, and what it took in had fired
    with its own. Rows whose session would have closed already are late: they go to the side output `late`, or are
    dropped and counted under `late_dropped` (S4.4). MAX_WATERMARK fires and closes all; what comes after it
    fires in `finish` (S7.2). Sessions fire in the order of their ends, or outside memory in about that order
    (`StoredSessions`).

    State: `sessions` (keyed: a row for each) and `progress` (keyed: see `WindowProgress`). `snapshot` freezes them;
    they are written by the returned function, many in chunks (S5.2).
    """

    _sessions: SessionStore

    def __init__(self, spec: SessionAggSpec) -> None:
        self._spec = spec
        self._schema = spec.state_schema
        self._progress = WindowProgress(spec.shape, spec.lateness_us)
        self._time = None if spec.time_column is None else EventTimeColumn(spec.time_column, spec.time_unit)

    def open(self, ctx: OperatorContext) -> None:
        """Make room for the sessions."""
        super().open(ctx)
        store = StoredSessions if ctx.state_backend in OUTSIDE_MEMORY else MemorySessions
        self._sessions = store(self._spec, ctx)

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Take the rows into their sessions; emits sessions that fire again, and late rows to the side output.

        Raises:
            SumOverflowError: a sum of integers left int64.
            TidegateError: an absurd event time.
        """
        assert self._time is not None
        column = batch.column(self._time.column)
        if column.null_count:
            self.ctx.count(NULL_TIME_DROPPED, column.null_count)
            batch = batch.filter(pa.array(valid_mask(column)))
        if not batch.num_rows:
            return
        check_time_range(self._time, self._time.times(batch)[0], self.ctx)
        times = self._time.microseconds(batch).to_numpy()
        for part, its_times, fired_us in self._progress.split(batch, times, self._spec.keys):
            yield from self._add_rows(part, its_times, fired_us)

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Emit every session that ends before the watermark, in batches of at most `ROWS_PER_PIECE`."""
        if watermark_us < MAX_WATERMARK:
            self._progress.advance(watermark_us)
        else:
            self._progress.reset()
        yield from coalesce_batches(self._sessions.fire(watermark_us))

    def finish(self) -> Iterator[Output]:
        """What came since MAX_WATERMARK."""
        yield from coalesce_batches(self._sessions.fire(MAX_WATERMARK))

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze the sessions."""
        write = self._sessions.snapshot(checkpoint_id, portable=self.portable)
        progress = self._progress.part(self.ctx)
        return lambda: [*write(), progress]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Take back the open sessions and the watermark.

        Raises:
            SnapshotError: the state is of other keys, aggregates or windows than the pipeline's; names both (S5.5).
        """
        files = [part for part in parts if part.format != "rows"]
        if files:
            self._sessions.restore_files(files)
        for part in parts:
            if part.name == PROGRESS:
                self._progress.restore(part.table, self.ctx)
        lateness_us = self._spec.lateness_us
        closed_us = self._progress.watermark_us - lateness_us if lateness_us else MAX_WATERMARK
        for part in parts:
            if part.name != PROGRESS and part.format == "rows":
                checked = single_part(part, self._schema, self.ctx.uid, dict(self._spec.renamed), fills=False)
                self._sessions.restore_rows(checked, closed_us)

    def close(self) -> None:
        """Close what keeps the sessions."""
        if hasattr(self, "_sessions"):
            self._sessions.close()

    def _add_rows(self, batch: pa.RecordBatch, times_us: Int64s, fired_us: int) -> Iterator[Output]:
        """Take rows for whose keys sessions have fired up to `fired_us`."""
        closed_us = max(self._progress.closed_at(fired_us), MIN_WATERMARK)
        late, again = self._sessions.take(batch, times_us, closed_us, fired_us)
        if len(late):
            yield from late_rows(batch.take(pa.array(late)), self.ctx)
        yield from coalesce_batches(again)


class ProcessingSessionAggregate(SessionAggregate):
    """Sessions over processing time: a row's time is that of the clock when it is processed. A session fires once
    nothing has come for longer than a gap, or when the input really ends; then, with `processing_time_on_end="drop"`,
    open ones are dropped, counted under `processing_time_dropped` and logged, and so are rows that come after it
    (S7.6). On suspend they stay in the savepoint.

    State: `sessions`, as over event time, and `progress`, of which nothing is late.
    """

    _has_ended = False

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Take the rows into the session of this moment; emits nothing. Raises SumOverflowError."""
        if self._has_ended:
            self.ctx.count(PROCESSING_TIME_DROPPED, batch.num_rows)
        elif batch.num_rows:
            now = np.full(batch.num_rows, self.ctx.processing_time_ms() * 1000)
            self._sessions.take(batch, now, MIN_WATERMARK, MIN_WATERMARK)
        yield from ()

    def next_processing_time_ms(self) -> int | None:
        """When the first session may be over."""
        end_us = self._sessions.next_end_us
        return None if end_us == MAX_WATERMARK else -(-end_us // 1000)

    def on_processing_time(self, now_ms: int) -> Iterator[Output]:
        """Emit every session that is over."""
        yield from coalesce_batches(self._sessions.fire(now_ms * 1000))

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """MAX_WATERMARK emits or drops every session, so that the results come in front of it (S7.6)."""
        if watermark_us == MAX_WATERMARK:
            yield from self._end()

    def has_pending_rows(self) -> bool:
        """While a session is open: the clock will bring rows."""
        return self._sessions.next_end_us != MAX_WATERMARK

    def finish(self) -> Iterator[Output]:
        """Nothing opens a session any more (S7.6)."""
        yield from self._end()
        self._has_ended = True

    def _end(self) -> Iterator[Output]:
        if self.ctx.processing_time_on_end == "fire":
            yield from coalesce_batches(self._sessions.fire(MAX_WATERMARK))
            return
        dropped = self._sessions.drop()
        if dropped:
            self.ctx.count(PROCESSING_TIME_DROPPED, dropped)
            log.warning(
                "Operator %r, subtask %d: the input has ended; %d open sessions are dropped, as "
                "processing_time_on_end='drop' says",
                self.ctx.uid,
                self.ctx.subtask,
                dropped,
            )


def session_operator(spec: SessionAggSpec) -> StreamOperator:
    """Of the time that the sessions follow."""
    return ProcessingSessionAggregate(spec) if spec.time_column is None else SessionAggregate(spec)
