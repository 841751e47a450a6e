"""SpanRows: the rows of a join with bounds on times, in tables in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS
from tidegate.operators.joins.frozen_spans import FrozenSpans, StoredSide
from tidegate.operators.joins.join_specs import LEFT, RIGHT, IntervalMatch, StreamJoinSpec
from tidegate.operators.joins.join_state import JoinProgress
from tidegate.operators.joins.join_store import ArrivedRows, LoneRows, MatchedPairs
from tidegate.operators.joins.kept_spans import Spans
from tidegate.operators.joins.restored_spans import restored_sides
from tidegate.operators.joins.span_table import SpanTable, SpanTables
from tidegate.operators.stream_operator import OperatorContext
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.keyed_state import Mask
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.keys.key_index import KeyReader, Keys
from tidegate.state.value_kernels import extent

ROW_BITS = 32
"""A stored row of a match is (number of the table << ROW_BITS) + number of the row."""
FEW_TABLES = 4
"""With no more tables, a batch searches them with all its rows: choosing rows would cost more."""


class SpanRows:
    """See `JoinStore`. The position of a row is its time, or with windows the start of its window.

    Tables need no timers: a table is deleted as a whole, when no match of its last row can arrive any more. Snapshots
    have the states and timers of `BackendRows`, so that every back end restores them (S5.2).

    Attributes:
        key_schema: key columns, without the start of the span.
        sides: columns of the rows of each side.
        returns_marked: see `Matches.mark`.
    """

    def __init__(self, spec: StreamJoinSpec, ctx: OperatorContext, spans: Spans) -> None:
        self._spec, self._spans = spec, spans
        self._progress = JoinProgress(ctx, spec.form())
        self.passed = self._progress.passed
        self.key_schema = pa.schema(list(spec.key_schema)[:-1])
        self.sides = StoredSide(spec, LEFT), StoredSide(spec, RIGHT)
        self._reader = KeyReader(self.key_schema, self.key_schema.names)
        self._by_time = isinstance(spec.bounds, IntervalMatch)
        self._tables = tuple(SpanTables(spans.stretch_us, self._maker(side)) for side in (LEFT, RIGHT))
        self.returns_marked = spec.how == "semi"
        self._opened = 0
        # No table of a side is over before this watermark.
        self._over_us = [MIN_WATERMARK, MIN_WATERMARK]
        self._ctx = ctx

    def match(self, arrived: ArrivedRows, side: int) -> SpanMatches:
        """See `JoinStore`."""
        return SpanMatches(self, arrived, side)

    def keys(self, arrived: ArrivedRows, side: int) -> Keys:
        """Return the keys of rows of `side`."""
        columns = [arrived.rows.column(key) for key in self._spec.inputs[side].keys]
        return self._reader.read(pa.RecordBatch.from_arrays(columns, schema=self.key_schema))

    def positions(self, arrived: ArrivedRows) -> Int64s:
        """Return the positions of rows."""
        positions = arrived.times if self._by_time else arrived.starts
        assert positions is not None, "a row of a join by time has no time"
        return positions

    def probed(self, arrived: ArrivedRows, side: int) -> tuple[Int64s, Int64s, list[SpanTable]]:
        """Return the first and last position of the other side that match each row, and the tables with rows there."""
        positions = self.positions(arrived)
        limits = self._spans.match_bounds(side, positions)
        lows, highs = (positions, positions) if limits is None else limits
        return lows, highs, self._tables[1 - side].between(extent(lows)[0], extent(highs)[1])

    def add(self, side: int, arrived: ArrivedRows, keys: Keys, matched: Mask) -> None:
        """Store rows of `side`."""
        stored, positions = self.sides[side], self.positions(arrived)
        columns = stored.columns_of(arrived.rows)
        marks = matched if stored.tracks else None
        due = None
        if self._spec.emits_unmatched(side):
            due = self._spans.due(side, positions, positions)
        low, high = extent(positions)
        table = self._tables[side].of(low)
        if high < table.stop_us:
            table.add(keys, columns, positions, high, marks, due)
            return
        order = np.argsort(positions, kind="stable")
        ordered = positions[order]
        start = 0
        while start < len(order):
            table = self._tables[side].of(int(ordered[start]))
            stop = start + int(np.searchsorted(ordered[start:], table.stop_us))
            rows = np.sort(order[start:stop])
            parts = pa.array(rows)
            table.add(
                keys.rows(rows),
                [column.take(parts) for column in columns],
                positions[rows],
                int(ordered[stop - 1]),
                None if marks is None else marks[rows],
                None if due is None else due[rows],
            )
            start = stop

    def fire(self, until_us: int) -> Iterator[LoneRows]:
        """See `JoinStore`."""
        for side in (LEFT, RIGHT):
            if until_us < self._over_us[side]:
                continue
            if self._spec.emits_unmatched(side):
                for table in list(self._tables[side]):
                    for rows in table.due(until_us):
                        yield self.lone_rows(side, table, rows)
            self._tables[side].drop(lambda table, side=side: self._over(table, side) <= until_us)  # type: ignore[misc]
            if not self._spec.emits_unmatched(side):
                first = next(iter(self._tables[side]), None)
                self._over_us[side] = MAX_WATERMARK if first is None else self._over(first, side)

    def lone_rows(self, side: int, table: SpanTable, rows: Int64s) -> LoneRows:
        """Return stored rows of `side`."""
        positions = table.positions_of(rows)
        starts = self._spans.assign(positions)[1] if self._by_time else positions
        return LoneRows(side, self.sides[side].rows_of(table.take(rows)), starts)

    def snapshot(self, checkpoint_id: int, *, portable: bool) -> AsyncSnapshot:
        """See `JoinStore`."""
        tables = tuple([table.freeze() for table in self._tables[side]] for side in (LEFT, RIGHT))
        frozen = FrozenSpans(self._spec, self._spans, self.sides, self._ctx.max_parallelism, tables)
        progress = self._progress.parts()
        return lambda: [*frozen.parts(), *progress]

    def restore(self, parts: Sequence[StatePart]) -> None:
        """See `JoinStore`."""
        states = self._progress.restore(parts)
        for side, rows, matched in restored_sides(self._spec, self._ctx, states):
            stored = self.sides[side]
            positions = stored.positions_in(rows, by_time=self._by_time)
            for start in range(0, rows.num_rows, MAX_BATCH_ROWS):
                part = slice(start, start + MAX_BATCH_ROWS)
                self._restore_rows(side, rows.slice(start, MAX_BATCH_ROWS), positions[part], matched[part])

    def close(self) -> None:
        """See `JoinStore`."""
        for tables in self._tables:
            tables.drop(lambda table: True)

    def _restore_rows(self, side: int, rows: pa.RecordBatch, positions: Int64s, matched: Mask) -> None:
        width = 1 + len(self.key_schema)
        keys = self._reader.read(pa.RecordBatch.from_arrays(rows.columns[1:width], schema=self.key_schema))
        arrived = ArrivedRows(self.sides[side].restored(rows), positions, positions)
        self.add(side, arrived, keys, matched)

    def _over(self, table: SpanTable, side: int) -> int:
        """Return the watermark from which no row of the table can match any more."""
        last = np.array([table.last_us])
        return int(self._spans.due(side, last, last)[0])

    def _maker(self, side: int) -> Callable[[tuple[int, int], int], SpanTable]:
        stored = self.sides[side]

        def new_table(stretch: tuple[int, int], expected: int) -> SpanTable:
            self._opened += 1
            self._over_us[side] = MIN_WATERMARK
            return SpanTable(self._reader, stored.types, stretch, self._opened, expected=expected, tracks=stored.tracks)

        return new_table


class SpanMatches:
    """See `Matches`."""

    def __init__(self, store: SpanRows, arrived: ArrivedRows, side: int) -> None:
        self._store, self._arrived, self._side = store, arrived, side
        self._keys = store.keys(arrived, side)
        self._lows, self._highs, self._tables = store.probed(arrived, side)
        self._stored = store.sides[1 - side]
        self._found: list[tuple[Int64s, int, Int64s]] = []
        self._count = 0

    def pairs(self) -> Iterator[MatchedPairs]:
        """See `Matches`. Pairs of several tables are put together, because small batches are dear downstream."""
        for number, table in enumerate(self._tables):
            keys, lows, highs, numbers = self._probes_of(table)
            if not len(lows):
                continue
            for probes, rows in table.pairs(keys, lows, highs, lambda: MAX_BATCH_ROWS - self._count):
                self._found.append((probes if numbers is None else numbers[probes], number, rows))
                self._count += len(rows)
                if self._count == MAX_BATCH_ROWS:
                    yield self._together()
        if self._count:
            yield self._together()

    def matched(self) -> tuple[Mask, Iterator[Int64s]]:
        """See `Matches`."""
        hit = np.zeros(self._arrived.rows.num_rows, np.bool_)
        if self._stored.tracks:
            return hit, self._matching_rows()
        for table in self._tables:
            keys, lows, highs, numbers = self._probes_of(table)
            for probes, _ in table.pairs(keys, lows, highs, lambda: MAX_BATCH_ROWS, only_first=True):
                hit[probes if numbers is None else numbers[probes]] = True
        return hit, iter(())

    def mark(self, stored: Int64s) -> LoneRows | None:
        """See `Matches`."""
        if not self._stored.tracks or not len(stored):
            return None
        marked: list[LoneRows] = []
        of_tables, rows = stored >> ROW_BITS, stored & ((1 << ROW_BITS) - 1)
        for number in np.unique(of_tables).tolist():
            table = self._tables[number]
            fresh = table.mark(rows[of_tables == number])
            if len(fresh) and self._store.returns_marked:
                marked.append(self._store.lone_rows(1 - self._side, table, fresh))
        if not marked:
            return None
        starts = [lone.starts for lone in marked if lone.starts is not None]
        together = pa.concat_batches([lone.rows for lone in marked])
        return LoneRows(1 - self._side, together, np.concatenate(starts))

    def keep(self, kept: Mask | None, matched: Mask) -> None:
        """See `Matches`."""
        arrived, keys = self._arrived, self._keys
        if kept is not None and not kept.all():
            numbers = np.flatnonzero(kept)
            arrived, keys, matched = arrived.part(kept), keys.rows(numbers), matched[kept]
        if arrived.rows.num_rows:
            self._store.add(self._side, arrived, keys, matched)

    def _matching_rows(self) -> Iterator[Int64s]:
        for number, table in enumerate(self._tables):
            keys, lows, highs, _ = self._probes_of(table)
            for rows in table.matching_rows(keys, lows, highs):
                yield rows + (number << ROW_BITS)

    def _probes_of(self, table: SpanTable) -> tuple[Keys, Int64s, Int64s, Int64s | None]:
        """Return keys and limits of the rows that may match in the table, and their numbers; None: all rows."""
        if len(self._tables) <= FEW_TABLES:
            return self._keys, self._lows, self._highs, None
        numbers = np.flatnonzero((self._lows <= table.last_us) & (self._highs >= table.first_us))
        return self._keys.rows(numbers), self._lows[numbers], self._highs[numbers], numbers

    def _together(self) -> MatchedPairs:
        found, self._found, self._count = self._found, [], 0
        if len(found) == 1:
            probes, number, rows = found[0]
            return MatchedPairs(
                probes, rows + (number << ROW_BITS), self._stored.rows_of(self._tables[number].take(rows))
            )
        batches = [self._stored.rows_of(self._tables[number].take(rows)) for _, number, rows in found]
        arrived = np.concatenate([probes for probes, _, _ in found])
        stored = np.concatenate([rows + (number << ROW_BITS) for _, number, rows in found])
        return MatchedPairs(arrived, stored, pa.concat_batches(batches))
