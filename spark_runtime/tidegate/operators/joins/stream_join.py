"""StreamJoin: joins two streams by key, with the rows of both sides in keyed state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK, Watermark
from tidegate.operators.joins.as_of_join import AsOfJoin
from tidegate.operators.joins.backend_rows import BackendRows
from tidegate.operators.joins.join_specs import LEFT, RIGHT, AsOfMatch, SessionMatch, StreamJoinSpec
from tidegate.operators.joins.join_store import ArrivedRows, JoinStore, LoneRows, Matches
from tidegate.operators.joins.join_times import JoinTimes
from tidegate.operators.joins.joined_columns import JoinedColumns
from tidegate.operators.joins.kept_spans import WindowSpans, new_spans
from tidegate.operators.joins.session_join import SessionJoin
from tidegate.operators.joins.span_rows import SpanRows
from tidegate.operators.stream_operator import OperatorContext, Output, StreamOperator
from tidegate.operators.time.calendar import CALENDAR
from tidegate.operators.time.late_rows import LATE_DROPPED, NULL_TIME_DROPPED
from tidegate.operators.windows.window_grid import OUTSIDE_DROPPED, calendar_part
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.keyed_state import Mask
from tidegate.state.keys.key_bytes import Int64s, valid_mask
from tidegate.state.keys.key_hash import hash_keys, key_groups
from tidegate.state.value_kernels import extent


class StreamJoin(StreamOperator):
    """Joins two streams by key; every pair is emitted when its later row arrives.

    An arriving row is matched with the stored rows of the other side for its key. It is then stored itself until the
    watermark shows that no match can arrive any more.

    Rows without a match are emitted when no match can arrive: with bounds on times, before the watermark that shows it;
    without bounds, when the other side has ended. A row whose key is null, or with an interval whose time is null,
    matches nothing and is emitted alone at once. With windows, a row without a time is counted under
    `null_event_time_dropped` and dropped. Late rows (before the watermark; with windows, in a closed window) are
    counted under `late_dropped` and dropped (S4.4).

    The watermark is held back so that no emitted row is late: by the time that a row waits for the other side, or to
    the start of the first open window. At MAX_WATERMARK all rows without a match are emitted; `finish` emits those that
    arrived after it.

    State: `left`, `right` and their marks, by key and span; timers by key and span, which clear spans and emit rows
    without a match; `watermark:passed` and `join:form`. With the back end `heap` and bounds on times, the rows are in
    `SpanRows`, else in the back end. Snapshots of both have the same form.
    """

    def __init__(self, spec: StreamJoinSpec) -> None:
        self._spec = spec
        self._spans = new_spans(spec)
        self._columns = JoinedColumns(spec)
        self._times = [JoinTimes(given) if self._spans is not None else None for given in spec.inputs]
        # Columns that must not be null for a match.
        timed = self._spans is not None
        self._needed = [[*given.keys, *([given.time_column] if timed else [])] for given in spec.inputs]
        self._marks = spec.tracks_matches(LEFT) or spec.tracks_matches(RIGHT)
        self._ended = [False, False]
        self._is_over = False
        self._is_open = False

    def open(self, ctx: OperatorContext) -> None:
        """Open the store of the rows."""
        super().open(ctx)
        self._store: JoinStore
        if self._spans is not None and self._spec.uses_tables(ctx.state_backend):
            self._store = SpanRows(self._spec, ctx, self._spans)
        else:
            self._store = self._of_back_end = BackendRows(self._spec, ctx, self._spans)
        self._is_open = True

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Emit the matches of the rows, and rows that can match nothing."""
        rows = self._columns.stored(input_index, batch)
        arrived = self._in_spans(rows, input_index) if self._spans is not None else ArrivedRows(rows, None, None)
        usable = self._keyed_rows(arrived.rows, input_index)
        if usable is not None:
            if self._spec.emits_unmatched(input_index):
                hopeless = arrived.part(~usable)
                yield from self._columns.unmatched(input_index, hopeless.rows, hopeless.starts)
            arrived = arrived.part(usable)
        if arrived.rows.num_rows:
            yield from self._join(arrived, input_index)

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Emit the rows that can have no more match, then the watermark, held back as needed."""
        self._store.passed.advance(watermark_us)
        if watermark_us == MAX_WATERMARK:
            self._is_over = True
            yield from self._emit_unmatched()
            return
        if isinstance(self._spans, WindowSpans) and self._spans.grid.table is not None:
            self._spans.grid.table.forget(self._store.passed.watermark_us)
        yield from self._alone(self._store.fire(watermark_us))
        yield Watermark(watermark_us if self._spans is None else self._spans.held_back_watermark(watermark_us))

    def forwards_watermarks(self) -> bool:
        """False: the join emits its own watermarks."""
        return False

    def end_input(self, input_index: int) -> Iterator[Output]:
        """Without bounds on times: emit the other side's rows without a match, because none can arrive any more."""
        self._ended[input_index] = True
        if self._spans is None:
            yield from self._alone(self._of_back_end.side_alone(1 - input_index))

    def finish(self) -> Iterator[Output]:
        """Emit the rows that arrived after the last watermark."""
        yield from self._emit_unmatched()

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze the rows."""
        write = self._store.snapshot(checkpoint_id, portable=self.portable)
        if not isinstance(self._spans, WindowSpans):
            return write
        passed_us = self._store.passed.watermark_us
        calendar = calendar_part(self._spans.grid, passed_us if passed_us < MAX_WATERMARK else MIN_WATERMARK)
        return lambda: [*write(), *calendar]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore both sides; see `JoinStore`."""
        for part in parts:
            if part.name == CALENDAR and isinstance(self._spans, WindowSpans) and self._spans.grid.table is not None:
                self._spans.grid.table.restore(part.table, self.ctx.uid)
        self._store.restore([part for part in parts if part.name != CALENDAR])

    def close(self) -> None:
        """Close the store."""
        if self._is_open:
            self._store.close()

    # ------------------------------------------------------------ arriving rows

    def _in_spans(self, rows: pa.RecordBatch, side: int) -> ArrivedRows:
        """Return the rows with their times, once for each span, without late rows and rows in no window."""
        reader, spans = self._times[side], self._spans
        assert reader is not None and spans is not None
        times, timeless = reader.read(rows, f"operator {self.ctx.uid!r} subtask {self.ctx.subtask}")
        if timeless is not None and spans.match_bounds(side, times[:0]) is None:
            self.ctx.count(NULL_TIME_DROPPED, int(timeless.sum()))
            rows, times, timeless = rows.filter(pa.array(~timeless)), times[~timeless], None
        if isinstance(spans, WindowSpans) and len(times):
            if spans.grid.table is not None:
                where = f"operator {self.ctx.uid!r} subtask {self.ctx.subtask}"
                column = self._spec.inputs[side].time_column or ""
                spans.grid.require_times(column, int(times.min()), int(times.max()), where)
            outside = spans.grid.outside(times)
            if outside is not None and outside.any():
                self.ctx.count(OUTSIDE_DROPPED, int(outside.sum()))
        numbers, starts = spans.assign(times)
        if numbers is not None:
            rows, times = rows.take(pa.array(numbers)), times[numbers]
        arrived = ArrivedRows(rows, times, starts)
        passed = self._store.passed
        # Most batches have no row before the watermark, so that no row is late.
        if self._is_over or not rows.num_rows or (passed.is_even and extent(times)[0] >= passed.watermark_us):
            return arrived
        late = spans.late(starts, times, self._passed_watermarks(arrived, side))
        if timeless is not None:
            late &= ~timeless
        if late.any():
            self.ctx.count(LATE_DROPPED, int(late.sum()))
        return arrived.part(~late)

    def _passed_watermarks(self, arrived: ArrivedRows, side: int) -> Int64s:
        """Return the watermark of each row's key group."""
        passed = self._store.passed
        if passed.is_even:
            return np.full(arrived.rows.num_rows, passed.watermark_us)
        keys = arrived.rows.select(self._spec.inputs[side].keys)
        return passed.of(key_groups(hash_keys(keys, keys.schema.names), self.ctx.max_parallelism))

    def _keyed_rows(self, rows: pa.RecordBatch, side: int) -> Mask | None:
        """Return which rows can have a match: key and time are not null. None: all rows."""
        usable: Mask | None = None
        for name in self._needed[side]:
            column = rows.column(name)
            if column.null_count:
                valid = valid_mask(column)
                usable = valid if usable is None else usable & valid
        return usable

    # ------------------------------------------------------------ matches

    def _join(self, arrived: ArrivedRows, side: int) -> Iterator[Output]:
        spec = self._spec
        matches = self._store.match(arrived, side)
        if spec.emits_pairs or spec.where is not None:
            hit = np.zeros(arrived.rows.num_rows, np.bool_)
            yield from self._paired(arrived, side, matches, hit)
        else:
            hit, stored = matches.matched()
            for rows in stored:
                yield from self._marked(matches, rows)
        if spec.how == "semi" and side == LEFT:
            found = arrived.part(hit)
            yield from self._columns.unmatched(LEFT, found.rows, found.starts)
        if self._spans is None and self._ended[1 - side]:
            if spec.emits_unmatched(side):
                yield from self._columns.unmatched(side, arrived.rows.filter(pa.array(~hit)), None)
            return
        # The first match decides a left row of a semi or anti join, so that the row is not stored.
        matches.keep(~hit if side == LEFT and not spec.emits_pairs and hit.any() else None, hit)

    def _paired(self, arrived: ArrivedRows, side: int, matches: Matches, hit: Mask) -> Iterator[Output]:
        """Emit the pairs that fulfil the further condition; set which rows were `hit`."""
        for pairs in matches.pairs():
            mine, stored = pairs.arrived, pairs.stored
            left, right = _rows_of(arrived.rows, mine), pairs.rows
            if side == RIGHT:
                left, right = right, left
            batch = self._columns.pairs(left, right, None if arrived.starts is None else arrived.starts[mine])
            passing = self._columns.filter(batch)
            if passing is not None and not passing.all():
                mine, stored, batch = mine[passing], stored[passing], batch.filter(pa.array(passing))
            hit[mine] = True
            if self._marks:
                yield from self._marked(matches, stored)
            if self._spec.emits_pairs and batch.num_rows:
                yield self._columns.emitted(batch)

    def _marked(self, matches: Matches, stored: Int64s) -> Iterator[pa.RecordBatch]:
        """Mark stored rows that have found a match. A semi join emits them, if they had none before."""
        fresh = matches.mark(stored)
        if fresh is not None and self._spec.how == "semi":
            yield from self._columns.unmatched(LEFT, fresh.rows, fresh.starts)

    # ------------------------------------------------------------ leaving rows

    def _alone(self, lone: Iterable[LoneRows]) -> Iterator[pa.RecordBatch]:
        for rows in lone:
            yield from self._columns.unmatched(rows.side, rows.rows, rows.starts)

    def _emit_unmatched(self) -> Iterator[pa.RecordBatch]:
        """Emit all rows without a match at the end of the input. If the join emits none, the state is kept: a drain may
        have ended the input (S7.5)."""
        if self._spans is None:
            for side in (LEFT, RIGHT):
                yield from self._alone(self._of_back_end.side_alone(side))
        elif self._spec.fires_at_end:
            yield from self._alone(self._store.fire(MAX_WATERMARK))


def _rows_of(rows: pa.RecordBatch, numbers: Int64s) -> pa.RecordBatch:
    """Return rows by number, without a copy if they are all rows in order."""
    if len(numbers) == rows.num_rows and (numbers[1:] > numbers[:-1]).all():
        return rows
    return rows.take(pa.array(numbers))


def join_operator(spec: StreamJoinSpec) -> StreamOperator:
    """Create the join operator for the bounds of the spec."""
    if isinstance(spec.bounds, AsOfMatch):
        return AsOfJoin(spec)
    return SessionJoin(spec) if isinstance(spec.bounds, SessionMatch) else StreamJoin(spec)
