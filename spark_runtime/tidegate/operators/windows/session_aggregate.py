"""Aggregates per key over sessions of event time or processing time."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.log_format import context
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

logger = logging.getLogger("tidegate.operators")


class SessionAggregate(StreamOperator):
    """Aggregates event-time sessions: [time of the first row, time of the last row + gap).

    Rows of a key that are at most a gap apart are in one session. A row may merge several sessions into one.

    A session fires when the watermark has passed its end, because a row exactly at the end still belongs to it. It
    closes when the watermark is `lateness_us` further. Rows that arrive in between make it fire again, with its new
    bounds and aggregates; sessions that it merged had fired with their own bounds. Rows whose session would have closed
    already are late: they go to the side output `late`, or are dropped and counted under `late_dropped` (S4.4).
    MAX_WATERMARK fires and closes all sessions; sessions of later rows fire in `finish` (S7.2). Sessions fire in the
    order of their ends; outside memory in approximately that order (`StoredSessions`).

    State: `sessions` (keyed: a row for each) and `progress` (keyed: see `WindowProgress`). `snapshot` freezes them. The
    returned function writes them, in chunks if there are many (S5.2).
    """

    _sessions: SessionStore

    def __init__(self, spec: SessionAggSpec) -> None:
        self._spec = spec
        self._schema = spec.state_schema
        self._progress = WindowProgress(spec.shape, spec.lateness_us)
        self._time = None if spec.time_column is None else EventTimeColumn(spec.time_column, spec.time_unit)

    def open(self, ctx: OperatorContext) -> None:
        """Open the storage of the sessions."""
        super().open(ctx)
        store = StoredSessions if ctx.state_backend in OUTSIDE_MEMORY else MemorySessions
        self._sessions = store(self._spec, ctx)

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Add the rows to their sessions. Emits sessions that fire again, and late rows to the side output.

        Raises:
            SumOverflowError: a sum of integers does not fit int64.
            DataError: an event time beyond `MIN_TIME_US`..`MAX_TIME_US`.
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
        """Emit every session that ends before the watermark, in batches of at most `MAX_BATCH_ROWS` rows."""
        if watermark_us < MAX_WATERMARK:
            self._progress.advance(watermark_us)
        else:
            self._progress.reset()
        yield from coalesce_batches(self._sessions.fire(watermark_us))

    def finish(self) -> Iterator[Output]:
        """Emit the sessions of rows that arrived after MAX_WATERMARK."""
        yield from coalesce_batches(self._sessions.fire(MAX_WATERMARK))

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze the sessions."""
        write = self._sessions.snapshot(checkpoint_id, portable=self.portable)
        progress = self._progress.part(self.ctx)
        return lambda: [*write(), progress]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore the open sessions and the watermark.

        Raises:
            SnapshotError: the snapshot's keys, aggregates or windows differ from the pipeline's; names both (S5.5).
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
        """Close the storage of the sessions."""
        if hasattr(self, "_sessions"):
            self._sessions.close()

    def _add_rows(self, batch: pa.RecordBatch, times_us: Int64s, fired_us: int) -> Iterator[Output]:
        """Add rows of keys whose sessions have fired up to `fired_us`."""
        closed_us = max(self._progress.closed_at(fired_us), MIN_WATERMARK)
        late, again = self._sessions.take(batch, times_us, closed_us, fired_us)
        if len(late):
            yield from late_rows(batch.take(pa.array(late)), self.ctx)
        yield from coalesce_batches(again)


class ProcessingSessionAggregate(SessionAggregate):
    """Aggregates processing-time sessions: a row's time is the current time when it is processed.

    A session fires when no row has arrived for longer than a gap, or when the input really ends. With
    `processing_time_on_end="drop"`, sessions that are open at the end are dropped, counted under
    `processing_time_dropped` and logged. Rows that arrive after the end are dropped and counted (S7.6). On suspend,
    sessions stay in the savepoint.

    State: `sessions`, as for event time, and `progress`; no row is late.
    """

    _has_ended = False

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Add the rows to the sessions of the current time. Emits nothing. Raises SumOverflowError."""
        if self._has_ended:
            self.ctx.count(PROCESSING_TIME_DROPPED, batch.num_rows)
        elif batch.num_rows:
            now = np.full(batch.num_rows, self.ctx.processing_time_ms() * 1000)
            self._sessions.take(batch, now, MIN_WATERMARK, MIN_WATERMARK)
        yield from ()

    def next_processing_time_ms(self) -> int | None:
        """Return when the first session may close."""
        end_us = self._sessions.next_end_us
        return None if end_us == MAX_WATERMARK else -(-end_us // 1000)

    def on_processing_time(self, now_ms: int) -> Iterator[Output]:
        """Emit every session that is closed."""
        yield from coalesce_batches(self._sessions.fire(now_ms * 1000))

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """At MAX_WATERMARK emit or drop every session, so that the results precede MAX_WATERMARK (S7.6)."""
        if watermark_us == MAX_WATERMARK:
            yield from self._end()

    def has_pending_rows(self) -> bool:
        """True while a session is open: the clock will emit it."""
        return self._sessions.next_end_us != MAX_WATERMARK

    def finish(self) -> Iterator[Output]:
        """Close all sessions. Later rows open no session (S7.6)."""
        yield from self._end()
        self._has_ended = True

    def _end(self) -> Iterator[Output]:
        if self.ctx.processing_time_on_end == "fire":
            yield from coalesce_batches(self._sessions.fire(MAX_WATERMARK))
            return
        dropped = self._sessions.drop()
        if dropped:
            self.ctx.count(PROCESSING_TIME_DROPPED, dropped)
            logger.warning(
                "the input has ended; %d open sessions are dropped, because processing_time_on_end='drop' is set; "
                "nothing to do",
                dropped,
                extra=context(operator=self.ctx.uid, subtask=self.ctx.subtask),
            )


def session_operator(spec: SessionAggSpec) -> StreamOperator:
    """Create the operator for event-time or processing-time sessions."""
    return ProcessingSessionAggregate(spec) if spec.time_column is None else SessionAggregate(spec)
