"""Deduplicate: the first row of each key, with keyed state in a back end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS
from tidegate.operators.deduplicate_specs import DeduplicateSpec
from tidegate.operators.keyed_backend import open_keyed_backend
from tidegate.operators.stream_operator import OperatorContext, Output, StreamOperator
from tidegate.operators.time.event_time import EventTimeColumn
from tidegate.operators.time.late_rows import NULL_TIME_DROPPED, late_rows
from tidegate.operators.time.passed_watermarks import PASSED_STATE, WatermarkByKeyGroup
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.evolved_parts import evolved_parts
from tidegate.state.keyed_state import KeyedStateBackend, KeySet, Mask
from tidegate.state.keys.key_bytes import Int64s, valid_mask
from tidegate.state.keys.key_sets import first_rows
from tidegate.state.numba_kernels import kernel

KEPT, REPEATED, LATE = 0, 1, 2


@kernel("void(i4[], i8[], i8, i8[], i8[]!, u1[]!, u1[]!)")
def find_repeats(keys: Any, times: Any, within: Any, passed: Any, kept: Any, known: Any, verdicts: Any) -> None:
    """Decide for each row, in order of arrival, whether it is kept.

    Let kept[key] be the event time of the row that was kept last for the key. Row i is:
    - a repeat if its key is known and its time is before kept[key] + within;
    - late if its key is not known and its time is before passed[key]: its key may have been deleted from the state;
    - else kept: it sets kept[key] and known[key].
    """
    for i in range(len(keys)):
        key = keys[i]
        if known[key] and times[i] < kept[key] + within:
            verdicts[i] = REPEATED
        elif not known[key] and times[i] < passed[key]:
            verdicts[i] = LATE
        else:
            verdicts[i] = KEPT
            kept[key] = times[i]
            known[key] = 1


class Deduplicate(StreamOperator):
    """Emits the first row of each key as soon as it arrives.

    With a `within` time: a row is a repeat if its event time is before the kept row's event time plus `within`. A later
    row is kept instead. The key is deleted when the watermark reaches that time. A row before the watermark whose key
    is not known is late, because it may repeat a row whose key was deleted: it goes to the side output `late`, or is
    dropped and counted (S4.4). Rows without an event time are dropped and counted.

    State: `seen` (for each key the time of the kept row; 0 without `within`), event timers, `watermark:passed`.
    """

    def __init__(self, spec: DeduplicateSpec) -> None:
        self._spec = spec
        self._time = EventTimeColumn(spec.time_column, spec.time_unit) if spec.time_column is not None else None
        self._back_end: KeyedStateBackend | None = None

    def open(self, ctx: OperatorContext) -> None:
        """Open the back end."""
        super().open(ctx)
        spec = self._spec
        self._passed = WatermarkByKeyGroup(ctx.subtask, ctx.parallelism, ctx.max_parallelism)
        self._back_end = open_keyed_backend(ctx, spec.key_schema, columns=spec.keys, renamed=spec.renamed)
        self._seen = self._back_end.value(spec.seen)
        self._timers = self._back_end.timers("event")

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Emit the rows that are kept, and late rows to the side output."""
        if self._time is not None:
            column = batch.column(self._time.column)
            if column.null_count:
                self.ctx.count(NULL_TIME_DROPPED, column.null_count)
                batch = batch.filter(pa.array(valid_mask(column)))
        if not batch.num_rows:
            return
        assert self._back_end is not None
        keys = self._back_end.keys(batch)
        if self._time is None:
            kept = self._first(keys)
        else:
            verdicts = self._judged(keys, self._time.microseconds(batch).to_numpy())
            kept = verdicts == KEPT
            late = verdicts == LATE
            if late.any():
                yield from late_rows(batch.filter(pa.array(late)), self.ctx)
        if kept.any():
            yield batch if kept.all() else batch.filter(pa.array(kept))

    def on_watermark(self, watermark_us: int) -> Iterator[Output]:
        """Delete keys that no row can repeat any more."""
        self._passed.advance(watermark_us)
        if watermark_us < MAX_WATERMARK:
            while (due := self._timers.due(watermark_us, MAX_BATCH_ROWS)) is not None:
                found = self._seen.get(due.keys)
                ends = found.columns.column(0).fill_null(0).to_numpy() + self._spec.within_us
                over = ends <= watermark_us
                self._seen.clear(due.keys, found.present & over)
                left = np.flatnonzero(found.present & ~over).astype(np.int32)
                self._timers.register(due.keys, left, ends[left])  # an earlier run had a shorter `within`
        yield from ()

    def snapshot(self, checkpoint_id: int) -> AsyncSnapshot | None:
        """Freeze the back end."""
        assert self._back_end is not None
        write, passed = self._back_end.snapshot(checkpoint_id, portable=self.portable), self._passed.part()
        return lambda: [*write(), passed]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore the keys.

        Raises:
            SnapshotError: the snapshot has other key columns.
        """
        assert self._back_end is not None
        passed = [part for part in parts if part.name == PASSED_STATE]
        if passed:
            self._passed.restore(passed)
        spec = self._spec
        rows = [part for part in parts if part.name != PASSED_STATE and part.format == "rows"]
        changed = evolved_parts(rows, (spec.seen,), spec.key_schema, self.ctx.uid, dict(spec.renamed))
        self._back_end.restore([*changed, *(part for part in parts if part.format != "rows")])

    def close(self) -> None:
        """Close the back end."""
        if self._back_end is not None:
            self._back_end.close()

    def _first(self, keys: KeySet) -> Mask:
        """Select the first row of each unknown key, without `within`."""
        known = self._seen.get(keys).present
        self._seen.put(keys, _times(np.zeros(keys.size, np.int64)), ~known)
        kept = np.zeros(len(keys.rows), np.bool_)
        kept[first_rows(keys.rows)[~known]] = True
        return kept

    def _judged(self, keys: KeySet, times_us: Int64s) -> Int64s:
        found = self._seen.get(keys)
        kept = found.columns.column(0).fill_null(0).to_numpy().copy()
        before, known = kept.copy(), found.present.astype(np.uint8)
        verdicts = np.empty(len(times_us), np.uint8)
        passed = self._passed.of(keys.groups)
        if self._passed.watermark_us == MAX_WATERMARK:
            passed = np.full(keys.size, MIN_WATERMARK)
        find_repeats(keys.rows, times_us, self._spec.within_us, passed, kept, known, verdicts)
        changed = (known == 1) & (~found.present | (kept != before))
        if changed.any():
            self._seen.put(keys, _times(kept), changed)
            owners = np.flatnonzero(changed).astype(np.int32)
            self._timers.register(keys, owners, kept[owners] + self._spec.within_us)
        return verdicts.astype(np.int64)


def _times(times_us: Int64s) -> pa.RecordBatch:
    return pa.record_batch([pa.array(times_us)], names=["time_us"])
