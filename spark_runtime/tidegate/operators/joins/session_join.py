"""SessionJoin: joins rows of two streams that are in the same session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, Watermark
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS
from tidegate.operators.joins.join_specs import LEFT, OPEN_SESSIONS, RIGHT, SIDES, SessionMatch, StreamJoinSpec
from tidegate.operators.joins.join_state import JoinState
from tidegate.operators.joins.join_times import JoinTimes
from tidegate.operators.joins.joined_columns import JoinedColumns
from tidegate.operators.joins.matched_pairs import Pairs
from tidegate.operators.joins.session_spans import SessionSpans
from tidegate.operators.stream_operator import OperatorContext, Output, StreamOperator
from tidegate.operators.time.late_rows import LATE_DROPPED, NULL_TIME_DROPPED
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.keyed_state import DueTimers, Elements, KeyNumbers, KeySet, Mask
from tidegate.state.keys.key_bytes import Int64s, valid_mask


@dataclass(frozen=True)
class ClosedSessionRows:
    """Rows of one side whose sessions are closed, in order of the sessions.

    Attributes:
        rows: in stored columns.
        sessions: number of the session of each row.
    """

    rows: pa.RecordBatch
    sessions: Int64s

    def part(self, mask: Mask) -> ClosedSessionRows:
        """Return the rows where `mask` is true."""
        return ClosedSessionRows(self.rows.filter(pa.array(mask)), self.sessions[mask])


class SessionJoin(StreamOperator):
    """Joins rows of both sides in the same session: rows of one key that are at most a gap apart.

    A session is [time of the first row, time of the last row + gap). A row may merge several sessions into one. When
    the watermark has passed the end of a session, its rows are paired, and rows without a match are emitted alone.
    Version 0.1 kept sessions exactly a gap apart as two. Restored from its snapshots, they are merged when rows arrive
    for their key or one of them closes; their timers come a microsecond early and are registered again.

    A row whose key is null matches nothing and is emitted alone at once, as a session of its own. A row without a time
    is counted under `null_event_time_dropped` and dropped. A row before the watermark is late, unless it falls into an
    open session, between its first row and its end. Late rows are counted under `late_dropped` and dropped (S4.4).

    The watermark is held back to the first row of the earliest open session. At MAX_WATERMARK every session closes;
    `finish` closes the sessions of rows that arrived after it.

    State: `left`, `right`, the rows by key; `sessions`, the open ones; event timers at their ends. The processing
    timers are used for another purpose, since a join does not need the clock: they stand at the sessions' first rows,
    and the earliest limits the watermark. `watermark:passed` and `join:form` as in other joins.
    """

    def __init__(self, spec: StreamJoinSpec) -> None:
        assert isinstance(spec.bounds, SessionMatch), "not a session join"
        self._spec = spec
        self._gap_us, self._reach_us = spec.bounds.gap_us, spec.bounds.reach_us
        self._columns = JoinedColumns(spec)
        self._times = JoinTimes(spec.inputs[LEFT]), JoinTimes(spec.inputs[RIGHT])
        self._is_over = False
        self._is_open = False

    def open(self, ctx: OperatorContext) -> None:
        """Open the back end."""
        super().open(ctx)
        spec = self._spec
        descriptors = spec.descriptors
        self._state = state = JoinState(ctx, spec.key_schema, descriptors, spec.form(), spec.renamed, 0)
        self._kept = {descriptor.name: descriptor.columns for descriptor in descriptors}
        self._sessions = state.lists[OPEN_SESSIONS]
        self._ends, self._firsts = state.timers, state.back_end.timers("processing")
        self._is_open = True

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Add the rows to their sessions. Emit rows with a null key."""
        rows = self._columns.stored(input_index, batch)
        where = f"operator {self.ctx.uid!r} subtask {self.ctx.subtask}"
        times, timeless = self._times[input_index].read(rows, where)
        if timeless is not None:
            self.ctx.count(NULL_TIME_DROPPED, int(timeless.sum()))
            rows, times = rows.filter(pa.array(~timeless)), times[~timeless]
        if not rows.num_rows:
            return
        names = self._spec.inputs[input_index].keys
        keys = self._state.keys([rows.column(name) for name in names])
        keyed = np.ones(rows.num_rows, np.bool_)
        for name in names:
            if rows.column(name).null_count:
                keyed &= valid_mask(rows.column(name))
        behind = np.zeros(rows.num_rows, np.bool_)
        if not self._is_over:
            behind = times < self._state.passed.of(keys.groups)[keys.rows]
        taken = self._take(keys, times, keyed, behind)
        late = behind & ~taken
        if late.any():
            self.ctx.count(LATE_DROPPED, int(late.sum()))
        if taken.any():
            held = self._kept[SIDES[input_index]]
            kept = rows.filter(pa.array(taken))
            columns = [kept.column(name) for name in held.names]
            own = self._state.lists[SIDES[input_index]]
            own.append(keys, keys.rows[taken], pa.RecordBatch.from_arrays(columns, schema=held))
        if self._spec.emits_unmatched(input_index) and not keyed.all():
            alone = ~keyed & ~late
            its = times[alone]
            yield from self._columns.unmatched(input_index, rows.filter(pa.array(alone)), its, its + self._gap_us)

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Emit the rows of closed sessions, then the watermark, limited by the first row of the earliest open
        session."""
        self._state.passed.advance(watermark_us)
        self._is_over = self._is_over or watermark_us == MAX_WATERMARK
        yield from self._fire(watermark_us)
        if watermark_us < MAX_WATERMARK:
            first_us = self._firsts.next_us()
            yield Watermark(watermark_us if first_us is None else min(watermark_us, first_us))

    def forwards_watermarks(self) -> bool:
        """False: the join emits its own watermarks."""
        return False

    def finish(self) -> Iterator[Output]:
        """Emit the sessions of rows that arrived after the last watermark."""
        yield from self._fire(MAX_WATERMARK)

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze the back end."""
        return self._state.snapshot(checkpoint_id, portable=self.portable)

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore both sides; see `JoinState`."""
        self._state.restore(parts)

    def close(self) -> None:
        """Close the back end."""
        if self._is_open:
            self._state.back_end.close()

    # ------------------------------------------------------------ arriving rows

    def _take(self, keys: KeySet, times: Int64s, keyed: Mask, behind: Mask) -> Mask:
        """Extend sessions by the rows, and return which rows are in a session."""
        before = SessionSpans.kept_spans(self._sessions.get(keys))
        taken = keyed & ~behind
        after = before.extend(keys.rows[taken], times[taken], self._gap_us)
        maybe = np.flatnonzero(keyed & behind)
        if len(maybe):
            found = after.of(keys.rows[maybe], times[maybe])
            maybe, found = maybe[found >= 0], found[found >= 0]
            maybe = maybe[times[maybe] - after.lasts[found] <= self._gap_us]
            taken[maybe] = True
            after = after.extend(keys.rows[maybe], times[maybe], self._gap_us)
        self._change(keys, before, after)
        return taken

    def _change(self, keys: KeySet, before: SessionSpans, after: SessionSpans) -> None:
        """Store the changed sessions, and update their timers."""
        became = after.of(before.owners, before.firsts)
        for timers, old, new in (
            (self._firsts, before.firsts, after.firsts),
            (self._ends, before.lasts + self._reach_us, after.lasts + self._reach_us),
        ):
            stays = old == new[became]
            is_new = np.ones(len(new), np.bool_)
            is_new[became[stays]] = False
            timers.delete(keys, before.owners[~stays], old[~stays])
            timers.register(keys, after.owners[is_new], new[is_new])
        self._sessions.put(keys, after.elements())

    # ------------------------------------------------------------ closed sessions

    def _fire(self, until_us: int) -> Iterator[pa.RecordBatch]:
        while (due := self._ends.due(until_us, MAX_BATCH_ROWS)) is not None:
            yield from self._due(due, until_us)

    def _due(self, due: DueTimers, until_us: int) -> Iterator[pa.RecordBatch]:
        """Delete closed sessions from the state, and emit their rows."""
        keys = due.keys
        held = SessionSpans.kept_spans(self._sessions.get(keys))
        known = held.merged(self._gap_us)
        if len(known.firsts) < len(held.firsts):
            self._change(keys, held, known)
        over = known.lasts + self._reach_us <= until_us
        left, right = (self._closing(side, keys, known, over) for side in (LEFT, RIGHT))
        self._sessions.put(keys, known.part(~over).elements())
        self._firsts.delete(keys, known.owners[over], known.firsts[over])
        self._ends.delete(keys, known.owners[over], known.lasts[over] + self._reach_us)
        self._ends.register(keys, known.owners[~over], known.lasts[~over] + self._reach_us)
        yield from self._joined(known, left, right)

    def _closing(self, side: int, keys: KeySet, known: SessionSpans, over: Mask) -> ClosedSessionRows:
        """Remove the rows of closed sessions from the state, and return them."""
        state = self._state.lists[SIDES[side]]
        held = state.get(keys)
        sizes = np.diff(held.offsets)
        owners: KeyNumbers = np.repeat(np.arange(keys.size, dtype=np.int32), sizes)
        sessions = known.of(owners, self._times[side].of(held.columns))
        closes = over[sessions] if len(sessions) else np.zeros(0, np.bool_)
        if closes.all():
            state.clear(keys)
        elif closes.any():
            counts = np.bincount(owners[~closes], minlength=keys.size)
            offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
            state.put(keys, Elements(offsets, held.columns.filter(pa.array(~closes))))
        which = np.flatnonzero(closes)
        which = which[np.argsort(sessions[which], kind="stable")]
        return ClosedSessionRows(held.columns.take(pa.array(which)), sessions[which])

    def _joined(
        self, known: SessionSpans, left: ClosedSessionRows, right: ClosedSessionRows
    ) -> Iterator[pa.RecordBatch]:
        """Emit pairs, and rows without a match."""
        offsets = np.searchsorted(right.sessions, np.arange(len(known.firsts) + 1)).astype(np.int64)
        pairs = Pairs(left.sessions.astype(np.int32), offsets)
        paired = np.zeros(len(left.sessions), np.bool_), np.zeros(len(right.sessions), np.bool_)
        if self._spec.emits_pairs or self._spec.where is not None:
            yield from self._pairs(known, left, right, pairs, paired)
        else:
            paired[LEFT][:] = pairs.counts > 0
        for side, closing in enumerate((left, right)):
            wanted = ~paired[side] if self._spec.how != "semi" else paired[side]
            if (self._spec.emits_unmatched(side) or (self._spec.how == "semi" and side == LEFT)) and wanted.any():
                alone = closing.part(wanted)
                yield from self._columns.unmatched(side, alone.rows, *self._bounds(known, alone.sessions))

    def _pairs(
        self,
        known: SessionSpans,
        left: ClosedSessionRows,
        right: ClosedSessionRows,
        pairs: Pairs,
        paired: tuple[Mask, Mask],
    ) -> Iterator[pa.RecordBatch]:
        """Emit the pairs that fulfil the further condition; set which rows are `paired`."""
        for mine, theirs in pairs.chunks():
            bounds = self._bounds(known, left.sessions[mine])
            batch = self._columns.pairs(left.rows.take(pa.array(mine)), right.rows.take(pa.array(theirs)), *bounds)
            passing = self._columns.filter(batch)
            if passing is not None and not passing.all():
                mine, theirs, batch = mine[passing], theirs[passing], batch.filter(pa.array(passing))
            paired[LEFT][mine] = True
            paired[RIGHT][theirs] = True
            if self._spec.emits_pairs and batch.num_rows:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=self._spec.schema)

    def _bounds(self, known: SessionSpans, sessions: Int64s) -> tuple[Int64s, Int64s]:
        """Return start and end of the sessions of rows."""
        return known.firsts[sessions], known.lasts[sessions] + self._gap_us
