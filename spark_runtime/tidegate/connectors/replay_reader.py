"""Reader of `Replay`: holds ordered records in memory and plays them by the injected clock."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.connectors.files.source.bad_records import BAD_RECORDS, bad_batch
from tidegate.connectors.files.source.file_listing import FoundFile
from tidegate.connectors.files.source.file_set import FileSet
from tidegate.connectors.interface import PollResult, SourceReader, Split
from tidegate.connectors.row_pacer import BatchPacer, RowPacer

AtEnd = Literal["idle", "loop", "end"]
IDLE_RETRY_MS = 1_000
"""Time, in milliseconds, for which a reader that has played all records need not be polled."""
_UNITS_PER_US = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}


class _SplitRecords:
    """The records of one split in play order.

    Attributes:
        times_us: event times, non-decreasing; records without a time have the last time over all splits.
        null_times: number of records without a time.
        span_us: last minus first time over *all* splits: one loop advances times by it.
    """

    def __init__(
        self, table: pa.Table, time_column: str, times_us: npt.NDArray[np.int64], null_times: int, span_us: int
    ) -> None:
        self._batch = _one_batch(table)
        self._time_index = table.schema.get_field_index(time_column)
        self.times_us = times_us
        self.null_times = null_times
        self.span_us = span_us

    @property
    def rows(self) -> int:
        """Return the number of records in one loop."""
        return len(self.times_us)

    def cut(self, start: int, rows: int, loop: int) -> pa.RecordBatch:
        """Return records [start, start + rows) with the times of loop `loop`."""
        batch = self._batch.slice(start, rows)
        if loop == 0 or self.span_us == 0:
            return batch
        field = batch.schema.field(self._time_index)
        shifted = _shift(batch.column(self._time_index), self.span_us * loop)
        return batch.set_column(self._time_index, field, shifted)


class _SplitPlayback:
    """Position and pace of one split."""

    def __init__(self, split: Split, recording: _SplitRecords, rate: float | None) -> None:
        self.split = split
        self.recording = recording
        position = split.position or {"loop": 0, "rows": 0}
        self.loop: int = position["loop"]
        self.rows: int = position["rows"]
        self.bad: int = position.get("bad", 0)
        self.pacer = None if rate is None else RowPacer(rate / split.data["of"])
        self.tick = BatchPacer()

    def time_us(self) -> int:
        """Return the time of the next record, in microseconds since the epoch."""
        return int(self.recording.times_us[self.rows]) + self.loop * self.recording.span_us

    def due_by(self, until_us: int) -> int:
        """Return how many records left in this loop have a time <= `until_us`."""
        until = until_us - self.loop * self.recording.span_us
        return int(np.searchsorted(self.recording.times_us, until, side="right")) - self.rows


class ReplayReader(SourceReader):
    """Reader that plays its splits in turn, one batch each.

    Positions are durable. The pace is not: it starts again with the first poll.
    """

    def __init__(
        self,
        files: FileSet,
        time_column: str,
        *,
        rate: float | None,
        speedup: float | None,
        at_end: AtEnd,
        batch_rows: int,
    ) -> None:
        self._files = files
        self._time_column = time_column
        self._rate = rate
        self._speedup = speedup
        self._loops = at_end == "loop"
        self._ends = at_end == "end"
        self._batch_rows = batch_rows
        self._all: list[_SplitPlayback] = []
        self._bad: list[pa.RecordBatch] = []
        self._noted: Counter[str] = Counter()
        self._turn: deque[_SplitPlayback] = deque()
        self._start: tuple[int, int] | None = None

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Accept splits, and read the files they list."""
        if not splits:
            return
        recordings = self._load(splits)
        self._all = [_SplitPlayback(s, r, self._rate) for s, r in zip(splits, recordings, strict=True)]
        self._turn = deque(p for p in self._all if p.rows < p.recording.rows or (self._loops and p.recording.rows))

    def _load(self, splits: Sequence[Split]) -> list[_SplitRecords]:
        schema = self._files.schema()
        files = [FoundFile(*entry) for entry in splits[0].data["files"]]
        table = pa.Table.from_batches([batch for file in files for batch in self._read(file)], schema)
        times = table.column(self._time_column)
        # The sort is stable, so records of equal time keep the order of the files. It puts nulls last.
        order = pc.sort_indices(times)
        recordings = []
        all_times_us = _as_us(times.drop_null())
        first_us, last_us = (int(all_times_us.min()), int(all_times_us.max())) if len(all_times_us) else (0, 0)
        for split in splits:
            own = table.take(order[split.data["index"] :: split.data["of"]])
            column = own.column(self._time_column)
            known_us = _as_us(column.slice(0, len(column) - column.null_count))
            times_us = np.concatenate([known_us, np.full(column.null_count, last_us, dtype=np.int64)])
            recordings.append(_SplitRecords(own, self._time_column, times_us, column.null_count, last_us - first_us))
        return recordings

    def _read(self, file: FoundFile) -> Iterator[pa.RecordBatch]:
        for chunk in self._files.chunks(file, noted=self._note):
            if chunk.bad:
                self._bad.append(bad_batch(file.path, chunk.bad))
            yield chunk.batch

    def _note(self, *, missing: Sequence[str], new: Sequence[str]) -> None:
        self._noted.update(missing_fields=len(missing), new_fields=len(new))

    def _bad_polled(self) -> PollResult | None:
        """Return the next bad records. Every reader reads every file, so only the first split reports bad records,
        before its other records.
        """
        first = next((p for p in self._all if p.split.data["index"] == 0), None)
        if first is None:
            return None
        begin = 0
        for batch in self._bad:
            begin += batch.num_rows
            if begin > first.bad:
                rest = batch.slice(batch.num_rows - (begin - first.bad))
                first.bad = begin
                emits = self._files.policy.on_bad_record == "dead_letter"
                return PollResult(sides={BAD_RECORDS: rest} if emits else {})
        return None

    def poll(self, now_ms: int) -> PollResult:
        """Return the records that are due, of the split whose turn it is."""
        if self._bad and (bad := self._bad_polled()) is not None:
            return bad
        turn = self._turn
        if not turn and self._ends:
            return PollResult(state="end")
        if not turn:
            return PollResult(state="nothing_now", retry_at_ms=now_ms + IDLE_RETRY_MS, idle=True)
        if self._start is None:
            for playing in turn:
                self._begin_loop(playing)
            self._start = now_ms, min(playing.time_us() for playing in turn)
        retry_at_ms: int | None = None
        for _ in range(len(turn)):
            playing = turn[0]
            due, again_ms = self._due(playing, now_ms)
            if due:
                return self._emit(playing, due, now_ms)
            turn.rotate(-1)
            retry_at_ms = again_ms if retry_at_ms is None else min(retry_at_ms, again_ms)
        return PollResult(state="nothing_now", retry_at_ms=now_ms if retry_at_ms is None else retry_at_ms)

    def _begin_loop(self, playing: _SplitPlayback) -> None:
        if playing.rows == playing.recording.rows:
            playing.loop, playing.rows = playing.loop + 1, 0

    def _due(self, playing: _SplitPlayback, now_ms: int) -> tuple[int, int]:
        """Return (records to emit now, time in milliseconds of the next poll when there are none)."""
        left = min(self._batch_rows, playing.recording.rows - playing.rows)
        if playing.pacer is not None:
            due = playing.pacer.due(now_ms)
            return min(left, due), playing.pacer.next_due_ms(now_ms)
        if self._speedup is None:
            return left, now_ms
        assert self._start is not None, "pace used before the first poll"
        start_ms, start_us = self._start
        again_ms = start_ms + math.ceil((playing.time_us() - start_us) / (1_000 * self._speedup))
        if not playing.tick.is_open(now_ms):
            return 0, max(playing.tick.opens_ms, again_ms)
        return min(left, self._emitted(playing, now_ms)), max(playing.tick.next_tick_ms(now_ms), again_ms)

    def _emitted(self, playing: _SplitPlayback, now_ms: int) -> int:
        """Return how many records of this loop are due at the speed of `speedup`."""
        assert self._start is not None and self._speedup is not None, "the replay has no `speedup`"
        start_ms, start_us = self._start
        return max(0, playing.due_by(start_us + int((now_ms - start_ms) * 1_000 * self._speedup)))

    def _emit(self, playing: _SplitPlayback, rows: int, now_ms: int) -> PollResult:
        batch = playing.recording.cut(playing.rows, rows, playing.loop)
        playing.rows += rows
        if playing.pacer is not None:
            playing.pacer.emitted(rows, now_ms)
        if playing.rows == playing.recording.rows:
            if self._loops:
                self._begin_loop(playing)
            else:
                self._turn.popleft()
                return PollResult(batch, playing.split.split_id)
        if self._speedup is not None:
            playing.tick.emitted(now_ms, rows_left=self._emitted(playing, now_ms) > 0)
        self._turn.rotate(-1)
        return PollResult(batch, playing.split.split_id)

    def snapshot(self) -> Sequence[Split]:
        """Return all splits with (loop, records emitted in it).

        A split without records is finished. In a replay that ends, a split that has emitted all its records is
        finished, too.
        """
        return [
            replace(
                p.split,
                position={"loop": p.loop, "rows": p.rows, **({"bad": p.bad} if p.bad else {})},
                finished=p.recording.rows == (p.rows if self._ends else 0) and not self._has_bad_for(p),
            )
            for p in self._all
        ]

    def _has_bad_for(self, playing: _SplitPlayback) -> bool:
        return playing.split.data["index"] == 0 and playing.bad < sum(batch.num_rows for batch in self._bad)

    def active_splits(self) -> frozenset[str]:
        """Return the splits that still emit event times: neither splits that have played all, nor splits without any
        time.
        """
        return frozenset(p.split.split_id for p in self._turn if p.recording.rows > p.recording.null_times)

    def progress(self) -> Mapping[str, Any]:
        """Return the facts for the status.

        - `played_all`: each record was emitted at least once.
        - `rows`: records emitted, over all runs and loops.
        - `null_times`: records without a time, per loop.
        """
        return {
            "played_all": all(p.loop > 0 or p.rows == p.recording.rows for p in self._all),
            "rows": sum(p.loop * p.recording.rows + p.rows for p in self._all),
            "null_times": sum(p.recording.null_times for p in self._all),
        }

    def counters(self) -> Mapping[str, int]:
        """Return `bad_records`, `missing_fields` and `new_fields`.

        The last two count columns, once for each file. Only the reader of the first split counts.
        """
        first = [p for p in self._all if p.split.data["index"] == 0]
        counts = {"bad_records": sum(p.bad for p in first), **(self._noted if first else {})}
        return {name: n for name, n in counts.items() if n}


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return the table as one batch. Arrow refuses a column whose values do not fit one array (2 GiB of text)."""
    batches = table.combine_chunks().to_batches()
    if len(batches) == 1:
        return batches[0]
    arrays = [
        pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type) for column in table.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=table.schema)


def _as_us(times: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return event times without nulls, in microseconds since the epoch."""
    chunks = times.cast(pa.int64()).chunks
    whole = pa.concat_arrays(chunks) if chunks else pa.array([], pa.int64())
    counts = np.frombuffer(whole.buffers()[1] or b"", np.int64)[whole.offset : whole.offset + len(whole)]
    if not pa.types.is_timestamp(times.type):
        return counts
    multiply, divide = _UNITS_PER_US[times.type.unit]
    return np.asarray(counts * multiply // divide, dtype=np.int64)


def _shift(times: pa.Array, by_us: int) -> pa.Array:
    multiply, divide = _UNITS_PER_US[times.type.unit] if pa.types.is_timestamp(times.type) else (1, 1)
    return pc.add(times.cast(pa.int64()), by_us * divide // multiply).cast(times.type)
