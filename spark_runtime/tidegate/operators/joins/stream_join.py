"""StreamJoin: joins two streams by key, both sides in keyed state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK, Watermark
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS
from tidegate.operators.joins.as_of_join import AsOfJoin
from tidegate.operators.joins.join_specs import LEFT, RIGHT, SPAN_START, AsOfMatch, SessionMatch, StreamJoinSpec
from tidegate.operators.joins.join_state import JoinRows, JoinState, SideRows
from tidegate.operators.joins.join_times import JoinTimes
from tidegate.operators.joins.joined_columns import JoinedColumns
from tidegate.operators.joins.kept_spans import WindowSpans, new_spans
from tidegate.operators.joins.matched_pairs import Pairs
from tidegate.operators.joins.session_join import SessionJoin
from tidegate.operators.stream_operator import OperatorContext, Output, StreamOperator
from tidegate.operators.time.calendar import CALENDAR
from tidegate.operators.time.late_rows import LATE_DROPPED, NULL_TIME_DROPPED
from tidegate.operators.windows.window_grid import OUTSIDE_DROPPED, calendar_part
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.keyed_state import DueTimers, KeyNumbers, KeySet, Mask
from tidegate.state.keys.key_bytes import Int64s, valid_mask

KEYS_PER_STEP_AT_END = 16 * 1024
"""Number of keys whose rows are read at a time when a side has ended. Limits the memory."""


@dataclass(frozen=True)
class ArrivedRows:
    """Rows of a batch, each in one span.

    Attributes:
        rows: in stored types.
        times: microseconds; None: the join does not use times.
        starts: starts of their spans; None: there are no spans.
    """

    rows: pa.RecordBatch
    times: Int64s | None
    starts: Int64s | None

    def part(self, mask: Mask) -> ArrivedRows:
        """Return the rows where `mask` is true."""
        if mask.all():
            return self
        times, starts = (None if array is None else array[mask] for array in (self.times, self.starts))
        return ArrivedRows(self.rows.filter(pa.array(mask)), times, starts)


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

    State: `left`, `right` and their marks in the back end, by key and span; timers by key and span, which clear spans
    and emit rows without a match; `watermark:passed` and `join:form`.
    """

    def __init__(self, spec: StreamJoinSpec) -> None:
        self._spec = spec
        self._spans = new_spans(spec)
        self._columns = JoinedColumns(spec)
        self._times = [JoinTimes(given) if self._spans is not None else None for given in spec.inputs]
        self._ended = [False, False]
        self._is_over = False
        self._is_open = False

    def open(self, ctx: OperatorContext) -> None:
        """Open the back end."""
        super().open(ctx)
        spec = self._spec
        namespaces = 0 if self._spans is None else 1
        states = spec.descriptors
        self._state = state = JoinState(ctx, spec.key_schema, states, spec.form(), spec.renamed, namespaces)
        self._is_open = True
        self._sides = SideRows(state, spec, LEFT), SideRows(state, spec, RIGHT)

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Emit the matches of the rows, and rows that can match nothing."""
        rows = self._columns.stored(input_index, batch)
        arrived = self._in_spans(rows, input_index) if self._spans is not None else ArrivedRows(rows, None, None)
        usable = self._keyed_rows(arrived.rows, input_index)
        if not usable.all():
            if self._spec.emits_unmatched(input_index):
                hopeless = arrived.part(~usable)
                yield from self._columns.unmatched(input_index, hopeless.rows, hopeless.starts)
            arrived = arrived.part(usable)
        if arrived.rows.num_rows:
            yield from self._join(arrived, input_index)

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Emit the rows that can have no more match, then the watermark, held back as needed."""
        self._state.passed.advance(watermark_us)
        if watermark_us == MAX_WATERMARK:
            self._is_over = True
            yield from self._emit_unmatched()
            return
        if isinstance(self._spans, WindowSpans) and self._spans.grid.table is not None:
            self._spans.grid.table.forget(self._state.passed.watermark_us)
        yield from self._fire(watermark_us)
        yield Watermark(watermark_us if self._spans is None else self._spans.held_back_watermark(watermark_us))

    def forwards_watermarks(self) -> bool:
        """False: the join emits its own watermarks."""
        return False

    def end_input(self, input_index: int) -> Iterator[Output]:
        """Without bounds on times: emit the other side's rows without a match, because none can arrive any more."""
        self._ended[input_index] = True
        if self._spans is None:
            yield from self._side_alone(1 - input_index)

    def finish(self) -> Iterator[Output]:
        """Emit the rows that arrived after the last watermark."""
        yield from self._emit_unmatched()

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze the back end."""
        write = self._state.snapshot(checkpoint_id, portable=self.portable)
        if not isinstance(self._spans, WindowSpans):
            return write
        passed_us = self._state.passed.watermark_us
        calendar = calendar_part(self._spans.grid, passed_us if passed_us < MAX_WATERMARK else MIN_WATERMARK)
        return lambda: [*write(), *calendar]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore both sides; see `JoinState`."""
        for part in parts:
            if part.name == CALENDAR and isinstance(self._spans, WindowSpans) and self._spans.grid.table is not None:
                self._spans.grid.table.restore(part.table, self.ctx.uid)
        self._state.restore([part for part in parts if part.name != CALENDAR])

    def close(self) -> None:
        """Close the back end."""
        if self._is_open:
            self._state.back_end.close()

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
        if self._is_over or not rows.num_rows:
            return arrived
        late = spans.late(starts, times, self._passed_watermarks(arrived, side))
        if timeless is not None:
            late &= ~timeless
        if late.any():
            self.ctx.count(LATE_DROPPED, int(late.sum()))
        return arrived.part(~late)

    def _passed_watermarks(self, arrived: ArrivedRows, side: int) -> Int64s:
        """Return the watermark of each row's key group."""
        passed = self._state.passed
        if passed.is_even:
            return np.full(arrived.rows.num_rows, passed.watermark_us)
        keys = self._state.keys(self._key_columns(arrived, side))
        return passed.of(keys.groups)[keys.rows]

    def _keyed_rows(self, rows: pa.RecordBatch, side: int) -> Mask:
        """Return which rows can have a match: key and time are not null."""
        given = self._spec.inputs[side]
        needed = [*given.keys] if self._spans is None else [*given.keys, given.time_column]
        usable = np.ones(rows.num_rows, np.bool_)
        for name in needed:
            column = rows.column(name)
            if column.null_count:
                usable &= valid_mask(column)
        return usable

    def _key_columns(self, arrived: ArrivedRows, side: int) -> list[pa.Array]:
        columns = [arrived.rows.column(key) for key in self._spec.inputs[side].keys]
        return columns if arrived.starts is None else [*columns, pa.array(arrived.starts)]

    def _keys(self, arrived: ArrivedRows, side: int) -> tuple[KeySet, npt.NDArray[np.int64], KeyNumbers, KeyNumbers]:
        """Return the keys of the spans to read and of the rows' own spans; (row, key) numbers to match; each row's own
        key."""
        columns = self._key_columns(arrived, side)
        every = np.arange(arrived.rows.num_rows)
        probed = None
        if self._spans is not None and arrived.times is not None:
            probed = self._spans.probe_starts(side, arrived.times)
        if probed is None:
            keys = self._state.keys(columns)
            return keys, every, keys.rows, keys.rows
        rows, starts = probed
        # One set for both kinds of spans, because a set is valid only until the next call of `keys`.
        picked = pa.array(np.concatenate([rows, every]))
        spans = pa.array(np.concatenate([starts, columns[-1].to_numpy()]))
        keys = self._state.keys([*(column.take(picked) for column in columns[:-1]), spans])
        return keys, rows, keys.rows[: len(rows)], keys.rows[len(rows) :]

    def _join(self, arrived: ArrivedRows, side: int) -> Iterator[Output]:
        other = 1 - side
        keys, rows, probes, owners = self._keys(arrived, side)
        stored = self._sides[other].fetch(keys)
        pairs = self._pairs(arrived, side, rows, probes, stored)
        hit, seen = np.zeros(arrived.rows.num_rows, np.bool_), np.zeros(stored.rows.num_rows, np.bool_)
        if self._spec.emits_pairs or self._spec.where is not None:
            yield from self._paired(arrived, side, rows, stored, pairs, hit, seen)
        else:
            hit[rows[pairs.counts > 0]] = True
            seen = pairs.matched_elements()
        if stored.matched is not None:
            which = np.flatnonzero(seen & ~stored.matched)
            self._sides[other].mark(keys, stored, which)
            if self._spec.how == "semi":
                starts = keys.columns().column(-1).to_numpy()[stored.owners[which]] if self._spans else None
                yield from self._columns.unmatched(LEFT, stored.rows.take(pa.array(which)), starts)
        if self._spec.how == "semi" and side == LEFT:
            found = arrived.part(hit)
            yield from self._columns.unmatched(LEFT, found.rows, found.starts)
        yield from self._keep(arrived, side, keys, owners, hit)

    def _pairs(
        self, arrived: ArrivedRows, side: int, rows: npt.NDArray[np.int64], probes: KeyNumbers, stored: JoinRows
    ) -> Pairs:
        reader = self._times[1 - side]
        limits = None
        if self._spans is not None and arrived.times is not None:
            limits = self._spans.match_bounds(side, arrived.times)
        if limits is None or reader is None:
            return Pairs(probes, stored.offsets)
        times = reader.of(stored.rows)
        return Pairs.within(probes, stored.offsets, times, (limits[0][rows], limits[1][rows]))

    def _paired(
        self,
        arrived: ArrivedRows,
        side: int,
        rows: npt.NDArray[np.int64],
        stored: JoinRows,
        pairs: Pairs,
        hit: Mask,
        seen: Mask,
    ) -> Iterator[pa.RecordBatch]:
        """Emit the pairs that fulfil the further condition; set which rows were `hit` and which stored rows were
        `seen`."""
        for numbers, elements in pairs.chunks():
            mine = rows[numbers]
            left, right = arrived.rows.take(pa.array(mine)), stored.rows.take(pa.array(elements))
            if side == RIGHT:
                left, right = right, left
            batch = self._columns.pairs(left, right, None if arrived.starts is None else arrived.starts[mine])
            passing = self._columns.filter(batch)
            if passing is not None and not passing.all():
                mine, elements, batch = mine[passing], elements[passing], batch.filter(pa.array(passing))
            hit[mine] = True
            seen[elements] = True
            if self._spec.emits_pairs and batch.num_rows:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=self._spec.schema)

    def _keep(self, arrived: ArrivedRows, side: int, keys: KeySet, owners: KeyNumbers, hit: Mask) -> Iterator[Output]:
        """Store the rows for rows of the other side that may still arrive."""
        if self._spans is None and self._ended[1 - side]:
            if self._spec.emits_unmatched(side):
                yield from self._columns.unmatched(side, arrived.rows.filter(pa.array(~hit)), None)
            return
        # The first match decides a left row of a semi or anti join, so that the row is not stored.
        if side == LEFT and not self._spec.emits_pairs and hit.any():
            arrived, owners, hit = arrived.part(~hit), owners[~hit], hit[~hit]
        if not len(owners):
            return
        self._sides[side].add(keys, owners, arrived.rows, hit)
        if self._spans is not None and arrived.times is not None and arrived.starts is not None:
            ends = self._spans.ends(side, arrived.starts)
            self._state.register(keys, owners, ends)
            if self._spec.emits_unmatched(side) and not hit.all():
                due = self._spans.due(side, arrived.starts, arrived.times)
                self._state.register(keys, owners[~hit], due[~hit])

    # ------------------------------------------------------------ leaving rows

    def _fire(self, until_us: int) -> Iterator[pa.RecordBatch]:
        while (due := self._state.timers.due(until_us, MAX_BATCH_ROWS)) is not None:
            yield from self._due(due, until_us)

    def _due(self, due: DueTimers, until_us: int) -> Iterator[pa.RecordBatch]:
        """Emit the due rows without a match, and delete closed spans."""
        assert self._spans is not None
        columns = due.keys.columns()
        starts = columns.column(SPAN_START).to_numpy()
        for side in (LEFT, RIGHT):
            over = self._spans.ends(side, starts) <= until_us
            if not self._spec.emits_unmatched(side):
                if over.any():
                    self._sides[side].clear(self._state.keys(columns.columns), over)
                continue
            keys = self._state.keys(columns.columns)
            stored = self._sides[side].fetch(keys)
            yield from self._alone(side, keys, stored, starts, until_us)
            if over.any():
                self._sides[side].clear(keys, over)

    def _alone(
        self, side: int, keys: KeySet, stored: JoinRows, starts: Int64s, until_us: int
    ) -> Iterator[pa.RecordBatch]:
        """Emit the due rows without a match, and register a timer for the others."""
        reader = self._times[side]
        assert stored.matched is not None and reader is not None and self._spans is not None
        owners, waiting = stored.owners, ~stored.matched
        due = self._spans.due(side, starts[owners], reader.of(stored.rows))
        which = np.flatnonzero(waiting & (due <= until_us))
        self._sides[side].mark(keys, stored, which)
        left = np.flatnonzero(waiting & (due > until_us))
        if len(left):
            self._state.register(keys, owners[left], due[left])
        yield from self._columns.unmatched(side, stored.rows.take(pa.array(which)), starts[owners[which]])

    def _emit_unmatched(self) -> Iterator[pa.RecordBatch]:
        """Emit all rows without a match at the end of the input. If the join emits none, the state is kept: a drain may
        have ended the input (S7.5)."""
        if self._spans is None:
            yield from self._side_alone(LEFT)
            yield from self._side_alone(RIGHT)
        elif self._spec.fires_at_end:
            yield from self._fire(MAX_WATERMARK)

    def _side_alone(self, side: int) -> Iterator[pa.RecordBatch]:
        """Emit the rows of a side without a match, and delete the side's state."""
        rows = self._sides[side]
        # A new iteration each time, because nothing may be written between two sets of one iteration.
        while (keys := next(self._state.back_end.all_keys(rows.descriptor, KEYS_PER_STEP_AT_END), None)) is not None:
            if self._spec.emits_unmatched(side):
                stored = rows.fetch(keys)
                assert stored.matched is not None
                yield from self._columns.unmatched(side, stored.rows.filter(pa.array(~stored.matched)), None)
            rows.clear(keys)


def join_operator(spec: StreamJoinSpec) -> StreamOperator:
    """Create the join operator for the bounds of the spec."""
    if isinstance(spec.bounds, AsOfMatch):
        return AsOfJoin(spec)
    return SessionJoin(spec) if isinstance(spec.bounds, SessionMatch) else StreamJoin(spec)
