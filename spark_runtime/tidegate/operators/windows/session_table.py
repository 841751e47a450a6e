"""The open sessions of one subtask: an entry for each, with key, bounds and aggregates as columns (S5.1).

An entry is used only once. Sessions that closed or were merged into others leave dead entries. When most entries are
dead, the live ones are copied to a new table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.operators.aggregates.keyed_aggregates import AggregateLayout
from tidegate.operators.windows.session_kernels import find_roots, join_sessions, unchain_sessions
from tidegate.snapshot.parts import Blob, StatePart
from tidegate.state.copy_on_write import CHUNK_ENTRIES, CopyOnWriteArrays, Entries, FrozenArrays
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.keys.key_hash import hash_keys, key_groups

MIN_DEAD = 4096
"""Dead entries that are always tolerated, so that small tables are not copied often."""
_KEY, _START, _LAST, _LIVE, _FIRED = (f"session {name}" for name in ("key", "start", "last", "live", "fired"))
_ARRAYS = ((_KEY, np.int32), (_START, np.int64), (_LAST, np.int64), (_LIVE, np.uint8), (_FIRED, np.uint8))


@dataclass(frozen=True)
class SessionUpdate:
    """Result of adding the rows of a batch.

    Attributes:
        late: late rows, as row numbers of the batch.
        sessions: distinct entries that rows were added to.
    """

    late: Int64s
    sessions: Entries


class SessionTable:
    """Sessions by entry. Not thread-safe; only the result of `freeze` is.

    Attributes:
        next_end_us: no unfired session closes before this time; MAX_WATERMARK if there is none.
        dead: number of entries without a session.
    """

    def __init__(self, layout: AggregateLayout, gap_us: int, serial: int) -> None:
        """Args: serial: number that is unique among the tables of the subtask."""
        self.next_end_us = MAX_WATERMARK
        self.dead = 0
        self.size = 0
        self._layout = layout
        self._gap_us = gap_us
        self._serial = serial
        self._cells = CopyOnWriteArrays(1024)
        for name, dtype in _ARRAYS:
            self._cells.add(name, dtype)
        self._accumulators = layout.accumulators(self._cells)
        self._index = layout.keys.new_index()
        self._heads = np.full(self._index.capacity, -1, np.int32)
        self._starts, self._lasts = np.zeros(1024, np.int64), np.zeros(1024, np.int64)
        self._nexts, self._parents = np.full(1024, -1, np.int32), np.full(1024, -1, np.int32)

    def number_keys(self, keys: pa.RecordBatch) -> None:
        """Number these distinct keys from 0, in an empty table. `owners` returns the numbers."""
        self._index.find_or_add(self._layout.keys.read(keys), 0, keys.num_rows, np.empty(keys.num_rows, np.int32))

    def add(self, batch: pa.RecordBatch, times_us: Int64s, closed_us: int) -> SessionUpdate:
        """Add rows.

        Args:
            closed_us: rows that join no session, and whose session would be closed by this time, are late.

        Raises:
            SumOverflowError: a sum does not fit its type.
        """
        keys = self._layout.keys.read(batch)
        ids = np.empty(batch.num_rows, np.int32)
        self._index.find_or_add(keys, 0, batch.num_rows, ids)
        order = np.lexsort((times_us, ids))
        ids, times = ids[order], times_us[order]
        begins = np.ones(len(ids), np.bool_)
        begins[1:] = (ids[1:] != ids[:-1]) | (times[1:] - times[:-1] > self._gap_us)
        firsts = np.flatnonzero(begins)
        counts = np.diff(np.append(firsts, len(ids)))
        known, run_ids = self.size, ids[firsts]
        targets, absorbed = self._join(run_ids, times[firsts], times[firsts + counts - 1], closed_us)
        of_rows = np.repeat(targets, counts)
        in_time = of_rows >= 0
        taken = order[in_time]
        sessions = self._write(targets, run_ids, known)
        self._absorb(absorbed, known)  # before the new rows: the merged sessions' rows arrived earlier
        if len(taken):
            rows = self._layout.read(batch.select(self._layout.used_columns).take(pa.array(taken)))
            for accumulator, values in zip(self._accumulators, rows.values, strict=True):
                accumulator.add(of_rows[in_time], values, known)
        if len(sessions):
            self.next_end_us = min(self.next_end_us, int(self._over(sessions).min()))
        return SessionUpdate(order[~in_time], sessions)

    def due(self, until_us: int) -> Entries:
        """Return the sessions that are closed by `until_us` and have not fired, ordered by end, then start."""
        if until_us < self.next_end_us:
            return np.zeros(0, np.int32)
        arrays = self._cells.arrays
        waiting = np.flatnonzero((arrays[_LIVE][: self.size] == 1) & (arrays[_FIRED][: self.size] == 0))
        is_due = self._over(waiting) <= until_us
        due, left = waiting[is_due], waiting[~is_due]
        self.next_end_us = int(self._over(left).min()) if len(left) else MAX_WATERMARK
        found: Entries = due[np.lexsort((self._starts[due], self._lasts[due]))].astype(np.int32)
        return found

    def ended(self, sessions: Entries, until_us: int) -> Entries:
        """Return the sessions that are closed by `until_us`."""
        return sessions[self._over(sessions) <= until_us]

    def live(self) -> Entries:
        """Return all sessions."""
        return np.flatnonzero(self._cells.arrays[_LIVE][: self.size]).astype(np.int32)

    def mark_fired(self, sessions: Entries) -> None:
        """Mark sessions as fired, and keep them."""
        self._cells.touch(sessions)
        self._cells.arrays[_FIRED][sessions] = 1

    def remove(self, sessions: Entries) -> None:
        """Delete closed sessions."""
        if not len(sessions):
            return
        self._cells.touch(sessions)
        self._cells.arrays[_LIVE][sessions] = 0
        unchain_sessions(sessions, self._cells.arrays[_KEY][sessions], self._heads, self._nexts)
        self.dead += len(sessions)

    def close(self, closed_us: int) -> None:
        """Delete sessions that have fired and are closed by `closed_us`: they were kept for a longer lateness than is
        allowed now."""
        live = self.live()
        fired = live[self._cells.arrays[_FIRED][live] == 1]
        self.remove(self.ended(fired, closed_us))

    def owners(self, sessions: Entries) -> Entries:
        """Return the numbers of the sessions' keys. Keys are numbered in order of arrival."""
        keys: Entries = self._cells.arrays[_KEY][sessions]
        return keys

    def bounds(self, sessions: Entries) -> tuple[Int64s, Int64s, npt.NDArray[np.bool_]]:
        """Return the times of the first and last rows, and whether the sessions have fired."""
        return self._starts[sessions], self._lasts[sessions], self._cells.arrays[_FIRED][sessions] == 1

    def state(self, sessions: Entries) -> list[pa.Array]:
        """Return the state columns of the sessions' aggregates."""
        return [array for accumulator in self._accumulators for array in accumulator.state(sessions)]

    def keys_of(self, sessions: Entries) -> pa.RecordBatch:
        """Return the key columns of sessions."""
        return self._index.key_columns(0, self._index.size).take(pa.array(self._cells.arrays[_KEY][sessions]))

    def result(self, sessions: Entries) -> list[pa.Array]:
        """Return key columns, bounds and aggregates."""
        bound = pa.timestamp("us")
        bounds = [pa.array(us).view(bound) for us in (self._starts[sessions], self._lasts[sessions] + self._gap_us)]
        return [*self.keys_of(sessions).columns, *bounds, *(a.result(sessions) for a in self._accumulators)]

    def packed(self, serial: int) -> SessionTable:
        """Return a new table with the live sessions only."""
        sessions = self.live()
        new = SessionTable(self._layout, self._gap_us, serial)
        fired = self._cells.arrays[_FIRED][sessions]
        new.put(self.keys_of(sessions), self._starts[sessions], self._lasts[sessions], fired, self.state(sessions))
        return new

    def put(
        self,
        keys: pa.RecordBatch,
        starts: Int64s,
        lasts: Int64s,
        fired: npt.NDArray[np.uint8],
        state: Sequence[pa.Array],
    ) -> None:
        """Add sessions with their state columns.

        Snapshots of version 0.1 keep sessions exactly a gap apart as two. They are merged; the result counts as fired
        if both had fired.
        """
        count = keys.num_rows
        if not count:
            return
        ids = np.empty(count, np.int32)
        self._index.find_or_add(self._layout.keys.read(keys), 0, count, ids)
        for some in self._apart(ids, starts, lasts):
            part = state if len(some) == count else [column.take(pa.array(some)) for column in state]
            self._put_apart(ids[some], starts[some], lasts[some], fired[some], part)

    def _apart(self, ids: Entries, starts: Int64s, lasts: Int64s) -> list[Int64s]:
        """Divide sessions into as few parts as possible, so that sessions of one key in a part are more than a gap
        apart."""
        order = np.lexsort((starts, ids))
        close = np.zeros(len(ids), np.bool_)
        close[1:] = (np.diff(ids[order]) == 0) & (starts[order][1:] - lasts[order][:-1] <= self._gap_us)
        if not close.any():
            return [np.arange(len(ids))]
        begins = np.flatnonzero(~close)
        ranks = np.arange(len(ids)) - np.repeat(begins, np.diff(np.append(begins, len(ids))))
        return [np.sort(order[ranks == rank]) for rank in range(int(ranks.max()) + 1)]

    def _put_apart(
        self, ids: Entries, starts: Int64s, lasts: Int64s, fired: npt.NDArray[np.uint8], state: Sequence[pa.Array]
    ) -> None:
        known = self.size
        targets, absorbed = self._join(ids, starts, lasts, MIN_WATERMARK)
        have_fired = self._cells.arrays[_FIRED].copy()
        # 1 is neutral for the minimum below: a new session counts as fired if all its parts have.
        have_fired[known : self.size] = 1
        np.minimum.at(have_fired, targets, fired)
        if len(absorbed):
            find_roots(absorbed, self._parents)
            np.minimum.at(have_fired, self._parents[absorbed], have_fired[absorbed])
        self._write(targets, ids, known)
        self._absorb(absorbed, known)
        reached = np.unique(targets)
        self._cells.arrays[_FIRED][reached] = have_fired[reached]
        at = 0
        for accumulator in self._accumulators:
            width = len(accumulator.state_schema)
            accumulator.merge(targets, list(state[at : at + width]), known)
            at += width
        waiting = reached[have_fired[reached] == 0]
        if len(waiting):
            self.next_end_us = min(self.next_end_us, int(self._over(waiting).min()))

    def freeze(self, schema: pa.Schema, max_parallelism: int) -> FrozenSessions:
        """Freeze the sessions."""
        reads = [accumulator.freeze() for accumulator in self._accumulators]

        cells, keys = self._cells.freeze(self.size), self._index.freeze()
        count = self._index.size

        def rows(chunk: int) -> pa.Table:
            start = chunk * CHUNK_ENTRIES
            arrays = cells.read(chunk)
            state = [array for read in reads for array in read(arrays, start, min(start + CHUNK_ENTRIES, cells.size))]
            mine = keys(0, count).take(pa.array(arrays[_KEY]))
            groups = key_groups(hash_keys(mine, mine.schema.names), max_parallelism)
            bounds = [pa.array(arrays[_START]), pa.array(arrays[_LAST]), pa.array(arrays[_FIRED] == 1)]
            table = pa.table([pa.array(groups), *bounds, *mine.columns, *state], schema=schema)
            return table.filter(pa.array(arrays[_LIVE] == 1))

        return FrozenSessions(self._serial, schema, cells, rows)

    def _over(self, sessions: npt.NDArray[np.int64] | Entries) -> Int64s:
        """Return the first watermark that excludes further rows of each session: a row exactly a gap later belongs to
        it (S4.4)."""
        over: Int64s = self._lasts[sessions] + self._gap_us + 1
        return over

    def _join(self, ids: Entries, lows: Int64s, highs: Int64s, closed_us: int) -> tuple[Entries, Entries]:
        """Return the sessions of runs of rows, and the sessions that were merged into others."""
        self._grow(self.size + len(ids))
        targets = np.empty(len(ids), np.int32)
        absorbed = np.empty(self.size + len(ids), np.int32)
        cursor = np.array([self.size, 0], np.int64)
        join_sessions(
            ids, lows, highs, closed_us, self._gap_us, self._heads, self._nexts, self._starts, self._lasts,
            self._parents, cursor, targets, absorbed,
        )  # fmt: skip
        self.size = int(cursor[0])
        return targets, absorbed[: cursor[1]]

    def _write(self, targets: Entries, ids: Entries, known: int) -> Entries:
        """Write the sessions of runs of rows to the columns, and return them. Each new session has one run."""
        reached = np.unique(targets[targets >= 0])
        self._cells.touch(reached)
        arrays = self._cells.arrays
        arrays[_START][reached], arrays[_LAST][reached] = self._starts[reached], self._lasts[reached]
        arrays[_FIRED][reached] = 0
        arrays[_LIVE][known : self.size] = 1
        arrays[_KEY][known : self.size] = ids[targets >= known]
        return reached

    def _absorb(self, absorbed: Entries, known: int) -> None:
        """Merge the aggregates of absorbed sessions into their targets."""
        if not len(absorbed):
            return
        find_roots(absorbed, self._parents)
        roots = self._parents[absorbed]
        for accumulator in self._accumulators:
            accumulator.merge(roots, accumulator.state(absorbed), known)
        self._parents[absorbed] = -1
        self._cells.touch(absorbed)
        self._cells.arrays[_LIVE][absorbed] = 0
        self.dead += len(absorbed)

    def _grow(self, wanted: int) -> None:
        capacity = 1 << (max(wanted, 1) - 1).bit_length()
        if self._index.capacity > len(self._heads):
            self._heads = _longer(self._heads, self._index.capacity, -1)
        if capacity <= len(self._starts):
            return
        self._cells.grow(capacity)
        self._starts, self._lasts = _longer(self._starts, capacity, 0), _longer(self._lasts, capacity, 0)
        self._nexts, self._parents = _longer(self._nexts, capacity, -1), _longer(self._parents, capacity, -1)


@dataclass(frozen=True)
class FrozenSessions:
    """Sessions at the time of the freeze. Usable from any thread.

    Attributes:
        serial: of the table.
        schema: of the rows.
        cells: their columns.
        rows: returns the rows of a chunk; call it once for each chunk.
    """

    serial: int
    schema: pa.Schema
    cells: FrozenArrays
    rows: Callable[[int], pa.Table]

    def part(self, name: str) -> StatePart:
        """Return all sessions; if there are many, a blob for each chunk. A blob keeps its id while its chunk does not
        change."""
        if self.cells.size <= CHUNK_ENTRIES:
            tables = [self.schema.empty_table(), *(self.rows(chunk) for chunk in range(self.cells.chunks))]
            return StatePart(name, "keyed", pa.concat_tables(tables))
        blobs = [
            Blob(f"{name}-{self.serial}-{chunk}-{stamp}", partial(self.rows, chunk))
            for chunk, stamp in enumerate(self.cells.stamps.tolist())
        ]
        return StatePart(name, "keyed", self.schema.empty_table(), blobs=tuple(blobs))


def _longer(array: Any, length: int, fill: int) -> Any:
    longer = np.full(length, fill, array.dtype)
    longer[: len(array)] = array
    return longer
