"""AsOfJoin: joins each row of a stream with the version that was valid at the row's time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS
from tidegate.operators.joins.join_specs import LEFT, RIGHT, SIDES, AsOfMatch, StreamJoinSpec
from tidegate.operators.joins.join_state import JoinState
from tidegate.operators.joins.join_times import JoinTimes
from tidegate.operators.joins.joined_columns import JoinedColumns
from tidegate.operators.joins.matched_pairs import last_not_after
from tidegate.operators.stream_operator import OperatorContext, Output, StreamOperator
from tidegate.operators.time.late_rows import LATE_DROPPED, NULL_TIME_DROPPED
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.keyed_state import DueTimers, Elements, KeyNumbers, KeySet
from tidegate.state.keys.key_bytes import Int64s, valid_mask


class AsOfJoin(StreamOperator):
    """Joins each left row with the latest version (right row) of its key that is not later than the left row.

    A left row waits until the watermark has passed its time, because versions of that time may still arrive. If several
    versions have one time, the last to arrive wins. A left row whose key or time is null has no version. A version
    without a time is counted under `null_event_time_dropped`. Late rows are counted under `late_dropped` and dropped
    (S4.4). At MAX_WATERMARK all waiting left rows are emitted; `finish` emits those that arrived after it. Versions
    stay in the state: after a drain, left rows may still need the versions before them (S7.5).

    State: `left`, the waiting rows; `right`, the valid version of each key and later ones; a timer for each key at the
    next time that a row is due. `watermark:passed` and `join:form` as in other joins.
    """

    def __init__(self, spec: StreamJoinSpec) -> None:
        assert isinstance(spec.bounds, AsOfMatch), "not an as-of join"
        self._spec = spec
        self._tolerance_us = spec.bounds.tolerance_us
        self._columns = JoinedColumns(spec)
        self._times = JoinTimes(spec.inputs[LEFT]), JoinTimes(spec.inputs[RIGHT])
        self._is_over = False
        self._is_open = False

    def open(self, ctx: OperatorContext) -> None:
        """Open the back end."""
        super().open(ctx)
        spec = self._spec
        self._state = state = JoinState(ctx, spec.key_schema, spec.descriptors, spec.form(), spec.renamed, 0)
        self._lists = state.lists[SIDES[LEFT]], state.lists[SIDES[RIGHT]]
        self._is_open = True

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Store the rows. Emit at once rows that cannot have a version."""
        rows = self._columns.stored(input_index, batch)
        where = f"operator {self.ctx.uid!r} subtask {self.ctx.subtask}"
        times, timeless = self._times[input_index].read(rows, where)
        usable = np.ones(rows.num_rows, np.bool_) if timeless is None else ~timeless
        if timeless is not None and input_index == RIGHT:
            self.ctx.count(NULL_TIME_DROPPED, int(timeless.sum()))
        for key in self._spec.inputs[input_index].keys:
            if rows.column(key).null_count:
                usable &= valid_mask(rows.column(key))
        if not usable.all():
            if input_index == LEFT and self._spec.emits_unmatched(LEFT):
                yield from self._columns.unmatched(LEFT, rows.filter(pa.array(~usable)), None)
            rows, times = rows.filter(pa.array(usable)), times[usable]
        if rows.num_rows:
            self._keep(rows, times, input_index)

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Emit the left rows whose time the watermark has passed."""
        self._state.passed.advance(watermark_us)
        self._is_over = self._is_over or watermark_us == MAX_WATERMARK
        yield from self._fire(watermark_us)

    def finish(self) -> Iterator[Output]:
        """Emit the left rows that arrived after the last watermark."""
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

    def _keep(self, rows: pa.RecordBatch, times: Int64s, side: int) -> None:
        keys = self._state.keys([rows.column(key) for key in self._spec.inputs[side].keys])
        owners = keys.rows
        if not self._is_over:
            late = times < self._state.passed.of(keys.groups)[owners]
            if late.any():
                self.ctx.count(LATE_DROPPED, int(late.sum()))
                rows, times, owners = rows.filter(pa.array(~late)), times[~late], owners[~late]
        if len(owners):
            self._lists[side].append(keys, owners, pa.RecordBatch.from_arrays(rows.columns, schema=self._kept(side)))
            # A row is due when the watermark is later than its time, because versions of that time may still arrive
            # before.
            self._state.register(keys, owners, times + 1)

    def _kept(self, side: int) -> pa.Schema:
        return next(d.columns for d in self._spec.descriptors if d.name == SIDES[side])

    def _fire(self, until_us: int) -> Iterator[pa.RecordBatch]:
        while (due := self._state.timers.due(until_us, MAX_BATCH_ROWS)) is not None:
            yield from self._due(due, until_us)

    def _due(self, due: DueTimers, until_us: int) -> Iterator[pa.RecordBatch]:
        """Emit the due left rows, and delete versions that no later row can match."""
        keys = due.keys
        left, right = self._lists[LEFT].get(keys), self._lists[RIGHT].get(keys)
        left_times, right_times = self._times[LEFT].of(left.columns), self._times[RIGHT].of(right.columns)
        owners = _owners(left)
        waiting = left_times >= until_us
        rows = np.flatnonzero(~waiting)
        rows = rows[np.lexsort((left_times[rows], owners[rows]))]
        order = np.lexsort((right_times, _owners(right)))  # stable: versions of one time stay in order of arrival
        right_times = right_times[order]
        found = last_not_after(owners[rows], right.offsets, right_times, left_times[rows])
        versions = self._version_at(found, left_times[rows], right_times, order)
        to_come = right_times >= until_us
        needed = to_come.copy()
        every, last_us = np.arange(keys.size, dtype=np.int32), np.full(keys.size, until_us - 1)
        in_force = last_not_after(every, right.offsets, right_times, last_us)
        needed[in_force[in_force >= 0]] = True
        if len(rows):
            self._replace(LEFT, keys, left, np.flatnonzero(waiting))
        if until_us < MAX_WATERMARK and not needed.all():
            self._replace(RIGHT, keys, right, order[needed])
        self._state.register(keys, owners[waiting], left_times[waiting] + 1)
        self._state.register(keys, _owners(right)[to_come], right_times[to_come] + 1)
        yield from self._emit(left.columns, right.columns, rows, versions)

    def _version_at(self, found: Int64s, times: Int64s, right_times: Int64s, order: Int64s) -> Int64s:
        """Return the right row numbers of the versions `found` for rows of these times; -1: none, or it is too old."""
        versions = np.full(len(found), -1)
        there = np.flatnonzero(found >= 0)
        if self._tolerance_us is not None:
            there = there[times[there] - right_times[found[there]] <= self._tolerance_us]
        versions[there] = order[found[there]]
        return versions

    def _replace(self, side: int, keys: KeySet, held: Elements, rows: Int64s) -> None:
        """Keep only these rows, which are ordered by their keys."""
        counts = np.bincount(_owners(held)[rows], minlength=keys.size)
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._lists[side].put(keys, Elements(offsets, held.columns.take(pa.array(rows))))

    def _emit(
        self, left: pa.RecordBatch, right: pa.RecordBatch, rows: Int64s, versions: Int64s
    ) -> Iterator[pa.RecordBatch]:
        if self._spec.how == "inner":
            rows, versions = rows[versions >= 0], versions[versions >= 0]
        for start in range(0, len(rows), MAX_BATCH_ROWS):
            mine, theirs = (numbers[start : start + MAX_BATCH_ROWS] for numbers in (rows, versions))
            missing = theirs < 0
            picked = right.take(pa.array(theirs, mask=missing if missing.any() else None))
            pairs = self._columns.pairs(left.take(pa.array(mine)), picked, None)
            yield pa.RecordBatch.from_arrays(pairs.columns, schema=self._spec.schema)


def _owners(held: Elements) -> KeyNumbers:
    sizes = np.diff(held.offsets)
    return np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)
