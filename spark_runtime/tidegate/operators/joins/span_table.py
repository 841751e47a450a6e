"""Stored rows of one side of a join over a stretch of time, in memory: found by key, deleted as a whole (S5.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.channel.elements import MIN_WATERMARK
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS
from tidegate.operators.joins.span_kernels import NEW_PROBE, chain_rows, find_pairs, link_rows, merge_ranges
from tidegate.state.arrow.arrow_columns import Chosen, WriteOnceRows
from tidegate.state.heap.timer_kernels import pop_timers, queue_timers
from tidegate.state.keyed_state import Mask
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.keys.key_index import Entries, KeyReader, Keys

MIN_PAIRS = 1024
"""Initial room for the pairs of a search."""
USELESS_VISITS = 4
"""Rows visited without a match, per stored row, after which a table gets links."""


@dataclass(frozen=True)
class FrozenSpanTable:
    """The rows of a table at one moment. Any thread may read them.

    Attributes:
        serial: number of the table, unique in the subtask's run.
        size: number of rows.
        take: returns columns of rows by number.
        positions: of the rows.
        matched: whether each row has found a match or was emitted alone; None: not tracked.
        row_bytes: approximate bytes of a row.
    """

    serial: int
    size: int
    take: Callable[[Chosen], list[pa.Array]]
    positions: Int64s
    matched: npt.NDArray[np.uint8] | None
    row_bytes: int


class SpanTable:
    """Rows in order of arrival, each with a position: its time, or the start of its window.

    Rows are written once. A snapshot so needs no copy of them, only of the marks for matches.

    Attributes:
        serial: see `FrozenSpanTable`.
        first_us, stop_us: positions of the table: first_us <= position < stop_us.
        last_us: latest position of a row.
        size: number of rows.
    """

    def __init__(
        self,
        reader: KeyReader,
        types: Sequence[pa.DataType],
        stretch: tuple[int, int],
        serial: int,
        *,
        expected: int,
        tracks: bool,
    ) -> None:
        """Create an empty table.

        Args:
            reader: reads the keys.
            types: of the columns.
            stretch: `first_us`, `stop_us`.
            expected: number of keys to have room for.
            tracks: record which rows have a match.
        """
        self.serial = serial
        self.first_us, self.stop_us = stretch
        self.last_us = MIN_WATERMARK
        self.size = 0
        self._index = reader.new_index(expected)
        self._heads = np.full(self._index.capacity, -1, np.int32)
        self._rows = WriteOnceRows(types)
        self._following = np.empty(0, np.int32)
        self._positions = np.empty(0, np.int64)
        self._links: _Links | None = None
        self._useless = 0
        self._matched = np.empty(0, np.uint8) if tracks else None
        self._waiting = _Waiting()

    @property
    def keys(self) -> int:
        """Return the number of keys."""
        return self._index.size

    def add(
        self,
        keys: Keys,
        columns: Sequence[pa.Array],
        positions: Int64s,
        last_us: int,
        matched: Mask | None,
        due: Int64s | None,
    ) -> None:
        """Store rows.

        Args:
            keys: their keys.
            columns: of the types of the table.
            positions: within the table's stretch.
            last_us: the latest of them.
            matched: which have found a match; None if the table does not track matches.
            due: when each row is emitted alone if it finds no match; None: never.
        """
        start = self._rows.reserve(len(positions))
        self.size = stop = start + len(positions)
        self._rows.write(slice(start, stop), columns)
        entries = np.empty(len(positions), np.int32)
        self._index.find_or_add(keys, 0, len(positions), entries)
        if self._index.capacity > len(self._heads):
            self._heads = _grown(self._heads, self._index.capacity, -1)
        if stop > len(self._following):
            room = max(64, 1 << (stop - 1).bit_length())
            self._following, self._positions = _grown(self._following, room), _grown(self._positions, room)
            if self._matched is not None:
                self._matched = _grown(self._matched, room)
        self._positions[start:stop] = positions
        self.last_us = max(self.last_us, last_us)
        chain_rows(entries, start, self._heads, self._following)
        if self._links is not None:
            self._links.extend(start, stop, self._following, self._positions)
        if self._matched is not None and matched is not None:
            self._matched[start:stop] = matched
            if due is not None:
                self._waiting.add(np.flatnonzero(~matched) + start, due[~matched])

    def pairs(
        self, keys: Keys, lows: Int64s, highs: Int64s, most: Callable[[], int], *, only_first: bool = False
    ) -> Iterator[tuple[Int64s, Int64s]]:
        """Yield the numbers of probes and rows of equal keys, with the row's position within the probe's limits.

        Args:
            keys: of the probes.
            lows, highs: limits, both included.
            most: returns how many pairs the next arrays may have.
            only_first: yield at most one pair for each probe.
        """
        entries = np.empty(len(lows), np.int32)
        self._index.find(keys, 0, len(lows), entries)
        if entries.max(initial=-1) >= 0:
            yield from self._search(entries, lows, highs, most, only_first)

    def matching_rows(self, keys: Keys, lows: Int64s, highs: Int64s) -> Iterator[Int64s]:
        """Yield the rows that match any probe, each once."""
        entries = np.empty(len(lows), np.int32)
        self._index.find(keys, 0, len(lows), entries)
        # Ranges are merged, because each of many probes of one key would visit the same rows.
        order = np.lexsort((lows, entries))
        entries, lows, highs = entries[order], lows[order], highs[order]
        ranges = merge_ranges(entries, lows, highs)
        for _, rows in self._search(entries[:ranges], lows[:ranges], highs[:ranges], lambda: MAX_BATCH_ROWS, False):
            yield rows

    def mark(self, rows: Int64s) -> Int64s:
        """Record that rows have found a match. Returns those that had none before, each once."""
        assert self._matched is not None, "matches of this side are not tracked"
        fresh = np.unique(rows[self._matched[rows] == 0])
        self._matched[fresh] = 1
        return fresh

    def due(self, until_us: int) -> Iterator[Int64s]:
        """Yield the rows without a match that are due, ascending by time. They count as matched from then on."""
        while (rows := self._waiting.pop(until_us)) is not None:
            assert self._matched is not None
            alone = rows[self._matched[rows] == 0]
            self._matched[alone] = 1
            if len(alone):
                yield alone

    def take(self, rows: Int64s) -> list[pa.Array]:
        """Return the columns of rows."""
        return self._rows.take(rows)

    def positions_of(self, rows: Int64s) -> Int64s:
        """Return the positions of rows."""
        return self._positions[rows]

    def freeze(self) -> FrozenSpanTable:
        """Return the present rows."""
        matched = None if self._matched is None else self._matched[: self.size].copy()
        row_bytes = self._rows.held_bytes // max(self.size, 1)
        take: Any = self._rows.pin()
        return FrozenSpanTable(self.serial, self.size, take, self._positions[: self.size], matched, row_bytes)

    def _search(
        self, entries: Entries, lows: Int64s, highs: Int64s, most: Callable[[], int], only_first: bool
    ) -> Iterator[tuple[Int64s, Int64s]]:
        cursor = np.array([0, NEW_PROBE, 0], np.int64)
        room, total = max(MIN_PAIRS, 2 * len(entries)), 0
        while cursor[0] < len(entries):
            room = min(room, most())
            probes, rows = np.empty(room, np.int64), np.empty(room, np.int64)
            links = self._links or _NO_LINKS
            found = find_pairs(
                entries, lows, highs, self._heads, self._following, self._positions, links.jumps, links.least,
                links.greatest, only_first, cursor, probes, rows,
            )  # fmt: skip
            total += found
            room = MAX_BATCH_ROWS
            if found:
                yield probes[:found], rows[:found]
        self._useless += int(cursor[2]) - total
        if self._links is None and self._useless > USELESS_VISITS * self.size + MAX_BATCH_ROWS:
            self._links = _Links()
            self._links.extend(0, self.size, self._following, self._positions)


class _Links:
    """Links over the chains of a table; see `span_kernels`. They cost 24 bytes a row, so that a table has none until
    searches visit many rows in vain."""

    def __init__(self) -> None:
        self.jumps, self.depths = np.empty(0, np.int32), np.empty(0, np.int32)
        self.least, self.greatest = np.empty(0, np.int64), np.empty(0, np.int64)

    def extend(self, start: int, stop: int, following: npt.NDArray[np.int32], positions: Int64s) -> None:
        """Link rows start..stop."""
        if len(self.jumps) < len(following):
            for name, array in vars(self).items():
                setattr(self, name, _grown(array, len(following)))
        link_rows(start, stop, following, positions, self.jumps, self.depths, self.least, self.greatest)


class _Waiting:
    """Rows that wait for a match, by the time at which they are emitted alone."""

    def __init__(self) -> None:
        self._count = 0
        self._queue, self._places = np.empty(0, np.int32), np.empty(0, np.int32)
        self._times, self._due = np.empty(0, np.int64), np.empty(0, np.int64)

    def add(self, rows: Int64s, due: Int64s) -> None:
        """Add rows, whose numbers are higher than all before."""
        if not len(rows):
            return
        last = int(rows[-1])
        if last >= len(self._due):
            for name in ("_queue", "_places", "_times", "_due"):
                setattr(self, name, _grown(getattr(self, name), max(64, 1 << last.bit_length())))
        self._due[rows] = due
        queue_timers(rows.astype(np.int32), self._due, self._count, self._queue, self._times, self._places)
        self._count += len(rows)

    def pop(self, until_us: int) -> Int64s | None:
        """Remove and return the earliest due rows, at most `MAX_BATCH_ROWS`; None: none is due."""
        if not self._count or self._times[0] > until_us:
            return None
        rows = np.empty(min(self._count, MAX_BATCH_ROWS), np.int32)
        popped = pop_timers(until_us, self._count, self._queue, self._times, self._places, rows)
        self._count -= popped
        return rows[:popped].astype(np.int64)


_NO_LINKS = _Links()


class SpanTables:
    """The tables of one side, ascending, without overlap.

    A table covers `stretch_us` of positions. While many tables are open, as with times in wild disorder, new tables
    cover more, so that a batch touches a limited number of tables.
    """

    MANY = 4

    def __init__(self, stretch_us: int, new_table: Callable[[tuple[int, int], int], SpanTable]) -> None:
        """Args: new_table: returns an empty table from its stretch and its expected number of keys."""
        self._stretch_us = stretch_us
        self._new_table = new_table
        self._tables: list[SpanTable] = []

    def __iter__(self) -> Iterator[SpanTable]:
        return iter(self._tables)

    def between(self, low_us: int, high_us: int) -> list[SpanTable]:
        """Return the tables that may have rows at positions low_us..high_us."""
        return [table for table in self._tables if table.first_us <= high_us and table.last_us >= low_us]

    def of(self, position_us: int) -> SpanTable:
        """Return the table of a position, which is created if needed."""
        number = 0
        for number, table in enumerate(self._tables, start=1):
            if position_us < table.stop_us:
                if position_us >= table.first_us:
                    return table
                number -= 1
                break
        former, following = self._tables[:number], self._tables[number:]
        # Aligned, so that rows slightly out of order do not leave narrow gaps between tables.
        length = self._stretch_us << min(len(self._tables) // self.MANY, 32)
        first = position_us // length * length
        stop = first + length
        if former:
            first = max(first, former[-1].stop_us)
        if following:
            stop = min(stop, following[0].first_us)
        table = self._new_table((first, stop), former[-1].keys if former else 0)
        self._tables.insert(number, table)
        return table

    def drop(self, is_over: Callable[[SpanTable], bool]) -> None:
        """Delete the first tables, as long as `is_over` returns true."""
        while self._tables and is_over(self._tables[0]):
            del self._tables[0]


def _grown(array: npt.NDArray[Any], length: int, fill: int | None = None) -> npt.NDArray[Any]:
    # Memory that is never written costs nothing, so that only the rows in use count.
    longer = np.empty(length, array.dtype) if fill is None else np.full(length, fill, array.dtype)
    longer[: len(array)] = array
    return longer
