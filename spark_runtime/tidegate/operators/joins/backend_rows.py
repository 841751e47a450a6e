"""BackendRows: the rows of a join in the keyed back end, by key and span."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.operators.batch_sizes import MAX_BATCH_ROWS
from tidegate.operators.joins.join_specs import LEFT, RIGHT, SPAN_START, StreamJoinSpec
from tidegate.operators.joins.join_state import JoinRows, JoinState, SideRows
from tidegate.operators.joins.join_store import ArrivedRows, LoneRows, MatchedPairs
from tidegate.operators.joins.join_times import JoinTimes
from tidegate.operators.joins.kept_spans import Spans
from tidegate.operators.joins.matched_pairs import Pairs
from tidegate.operators.stream_operator import OperatorContext
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.keyed_state import DueTimers, KeyNumbers, KeySet, Mask
from tidegate.state.keys.key_bytes import Int64s

KEYS_PER_STEP_AT_END = 16 * 1024
"""Number of keys whose rows are read at a time when a side has ended. Limits the memory."""


class BackendRows:
    """See `JoinStore`. A span of a key is one list of each side; timers delete spans and emit rows without a match."""

    def __init__(self, spec: StreamJoinSpec, ctx: OperatorContext, spans: Spans | None) -> None:
        self._spec = spec
        self._spans = spans
        namespaces = 0 if spans is None else 1
        state = JoinState(ctx, spec.key_schema, spec.descriptors, spec.form(), spec.renamed, namespaces)
        self._state = state
        self.passed = state.passed
        self._sides = SideRows(state, spec, LEFT), SideRows(state, spec, RIGHT)
        self._times = [None if spans is None else JoinTimes(given) for given in spec.inputs]

    def match(self, arrived: ArrivedRows, side: int) -> BackendMatches:
        """See `JoinStore`."""
        keys, rows, probes, owners = self._keys(arrived, side)
        stored = self._sides[1 - side].fetch(keys)
        pairs = self._pairs(arrived, side, rows, probes, stored)
        return BackendMatches(self, arrived, side, (keys, owners, rows), stored, pairs)

    def fire(self, until_us: int) -> Iterator[LoneRows]:
        """See `JoinStore`."""
        if self._spans is not None:
            while (due := self._state.timers.due(until_us, MAX_BATCH_ROWS)) is not None:
                yield from self._due(due, until_us, self._spans)

    def side_alone(self, side: int) -> Iterator[LoneRows]:
        """Yield the rows of a side without a match, and delete the side's state."""
        rows = self._sides[side]
        # A new iteration each time, because nothing may be written between two sets of one iteration.
        while (keys := next(self._state.back_end.all_keys(rows.descriptor, KEYS_PER_STEP_AT_END), None)) is not None:
            if self._spec.emits_unmatched(side):
                stored = rows.fetch(keys)
                assert stored.matched is not None
                yield LoneRows(side, stored.rows.filter(pa.array(~stored.matched)), None)
            rows.clear(keys)

    def mark(self, side: int, keys: KeySet, stored: JoinRows, which: Int64s) -> LoneRows | None:
        """Mark fetched rows of `side`. A semi join gets them back."""
        if not len(which):
            return None
        self._sides[side].mark(keys, stored, which)
        if self._spec.how != "semi":
            return None
        starts = keys.columns().column(-1).to_numpy()[stored.owners[which]] if self._spans else None
        return LoneRows(side, stored.rows.take(pa.array(which)), starts)

    def keep(self, arrived: ArrivedRows, side: int, keys: KeySet, owners: KeyNumbers, matched: Mask) -> None:
        """Store rows of `side`."""
        self._sides[side].add(keys, owners, arrived.rows, matched)
        if self._spans is not None and arrived.times is not None and arrived.starts is not None:
            ends = self._spans.ends(side, arrived.starts)
            self._state.register(keys, owners, ends)
            if self._spec.emits_unmatched(side) and not matched.all():
                due = self._spans.due(side, arrived.starts, arrived.times)
                self._state.register(keys, owners[~matched], due[~matched])

    def snapshot(self, checkpoint_id: int, *, portable: bool) -> AsyncSnapshot:
        """See `JoinStore`."""
        return self._state.snapshot(checkpoint_id, portable=portable)

    def restore(self, parts: Sequence[StatePart]) -> None:
        """See `JoinStore`."""
        self._state.restore(parts)

    def close(self) -> None:
        """See `JoinStore`."""
        self._state.back_end.close()

    def _keys(self, arrived: ArrivedRows, side: int) -> tuple[KeySet, npt.NDArray[np.int64], KeyNumbers, KeyNumbers]:
        """Return the keys of the spans to read and of the rows' own spans; (row, key) numbers to match; each row's own
        key."""
        columns = [arrived.rows.column(key) for key in self._spec.inputs[side].keys]
        if arrived.starts is not None:
            columns.append(pa.array(arrived.starts))
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

    def _due(self, due: DueTimers, until_us: int, spans: Spans) -> Iterator[LoneRows]:
        """Yield the due rows without a match, and delete closed spans."""
        columns = due.keys.columns()
        starts = columns.column(SPAN_START).to_numpy()
        for side in (LEFT, RIGHT):
            over = spans.ends(side, starts) <= until_us
            if not self._spec.emits_unmatched(side):
                if over.any():
                    self._sides[side].clear(self._state.keys(columns.columns), over)
                continue
            keys = self._state.keys(columns.columns)
            stored = self._sides[side].fetch(keys)
            yield self._alone(side, keys, stored, starts, until_us)
            if over.any():
                self._sides[side].clear(keys, over)

    def _alone(self, side: int, keys: KeySet, stored: JoinRows, starts: Int64s, until_us: int) -> LoneRows:
        """Return the due rows without a match, and register a timer for the others."""
        reader = self._times[side]
        assert stored.matched is not None and reader is not None and self._spans is not None
        owners, waiting = stored.owners, ~stored.matched
        due = self._spans.due(side, starts[owners], reader.of(stored.rows))
        which = np.flatnonzero(waiting & (due <= until_us))
        self._sides[side].mark(keys, stored, which)
        left = np.flatnonzero(waiting & (due > until_us))
        if len(left):
            self._state.register(keys, owners[left], due[left])
        return LoneRows(side, stored.rows.take(pa.array(which)), starts[owners[which]])


class BackendMatches:
    """See `Matches`. Stored rows are row numbers of the fetched rows."""

    def __init__(
        self,
        store: BackendRows,
        arrived: ArrivedRows,
        side: int,
        found: tuple[KeySet, KeyNumbers, Int64s],
        stored: JoinRows,
        pairs: Pairs,
    ) -> None:
        """Args: found: keys; each arrived row's own key; arrived row of each probe."""
        self._store, self._arrived, self._side = store, arrived, side
        self._keys, self._owners, self._probed = found
        self._stored, self._pairs = stored, pairs

    def pairs(self) -> Iterator[MatchedPairs]:
        """See `Matches`."""
        for numbers, elements in self._pairs.chunks():
            yield MatchedPairs(self._probed[numbers], elements, self._stored.rows.take(pa.array(elements)))

    def matched(self) -> tuple[Mask, Iterator[Int64s]]:
        """See `Matches`."""
        hit = np.zeros(self._arrived.rows.num_rows, np.bool_)
        hit[self._probed[self._pairs.counts > 0]] = True
        tracked = self._stored.matched is not None
        return hit, iter([np.flatnonzero(self._pairs.matched_elements())] if tracked else [])

    def mark(self, stored: Int64s) -> LoneRows | None:
        """See `Matches`."""
        known = self._stored.matched
        if known is None:
            return None
        fresh = np.unique(stored[~known[stored]])
        known[fresh] = True
        return self._store.mark(1 - self._side, self._keys, self._stored, fresh)

    def keep(self, kept: Mask | None, matched: Mask) -> None:
        """See `Matches`."""
        arrived, owners = self._arrived, self._owners
        if kept is not None:
            arrived, owners, matched = arrived.part(kept), owners[kept], matched[kept]
        if len(owners):
            self._store.keep(arrived, self._side, self._keys, owners, matched)
