"""The build side of a broadcast join: complete, indexed, read-only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.batch_sizes import MAX_BATCH_ROWS, one_batch
from tidegate.operators.joins.joined_columns import Condition
from tidegate.operators.specs import BroadcastJoinSpec
from tidegate.state.keyed_state import Mask
from tidegate.state.keys.key_index import Entries, KeyReader
from tidegate.operators.windows.row_groups import pair_rows

RowNumbers = npt.NDArray[np.int64]


class BuildSide:
    """An index over the build rows; joins probe batches with them. Rows with a null in a key match nothing, as in SQL;
    a probe row comes once for each build row of its key, build rows in order of arrival."""

    def __init__(self, spec: BroadcastJoinSpec, rows: Sequence[pa.RecordBatch]) -> None:
        """Args: rows: all build rows."""
        self._spec = spec
        self._pairs = spec.pairs
        self._condition = None if spec.where is None else Condition(spec.where)
        self._keep_unmatched = spec.how == "left"
        mine, theirs = spec.on, spec.build_keys
        types = ((spec.left_schema.field(k).type, spec.right_schema.field(r).type) for k, r in zip(mine, theirs))
        same_types = all(left == right for left, right in types)
        self._probe_keys = KeyReader(spec.left_schema, mine, canonical=not same_types)
        table = pa.Table.from_batches(list(rows), schema=spec.right_schema)
        batches = table.filter(reduce(pc.and_, [pc.is_valid(table.column(key)) for key in theirs])).to_batches()
        build = one_batch(batches) if batches else pa.RecordBatch.from_pylist([], schema=spec.right_schema)
        build_keys = KeyReader(spec.right_schema, theirs, canonical=not same_types)
        self._index = build_keys.new_index(build.num_rows)
        entries = np.empty(build.num_rows, np.int32)
        self._index.find_or_add(build_keys.read(build), 0, build.num_rows, entries)
        self._unique = self._index.size == build.num_rows
        self._rows = np.argsort(entries, kind="stable")
        counts = np.bincount(entries, minlength=self._index.size)
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._columns = build.select([column for column, _ in spec.build_columns])

    def join(self, probe: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The joined rows, in order of the probe rows, in batches of at most `MAX_BATCH_ROWS`; with a further condition
        those without a match at the end."""
        matches = np.empty(probe.num_rows, np.int32)
        self._index.find(self._probe_keys.read(probe), 0, probe.num_rows, matches)
        if self._condition is not None:
            yield from self._passing(probe, matches, self._condition)
        elif self._spec.how in ("semi", "anti"):
            yield from self._alone(probe, matches >= 0)
        elif self._unique and (self._keep_unmatched or bool((matches >= 0).all())):
            for start in range(0, probe.num_rows, MAX_BATCH_ROWS):
                part = slice(start, start + MAX_BATCH_ROWS)
                yield self._given(self._combined(probe.slice(start, MAX_BATCH_ROWS), matches[part].astype(np.int64)))
        else:
            for left, right in self._matched(matches, self._keep_unmatched):
                yield self._given(self._combined(probe.take(pa.array(left)), right))

    def _passing(self, probe: pa.RecordBatch, matches: Entries, condition: Condition) -> Iterator[pa.RecordBatch]:
        hit = np.zeros(probe.num_rows, np.bool_)
        for left, right in self._matched(matches, False):
            pairs = self._combined(probe.take(pa.array(left)), right)
            passing = condition.passing(pairs)
            hit[left[passing]] = True
            if passing.any() and self._spec.how in ("inner", "left"):
                yield self._given(pairs.filter(pa.array(passing)))
        if self._spec.how in ("semi", "anti"):
            yield from self._alone(probe, hit)
        elif self._keep_unmatched and not hit.all():
            left = np.flatnonzero(~hit)
            for start in range(0, len(left), MAX_BATCH_ROWS):
                rows = left[start : start + MAX_BATCH_ROWS]
                yield self._given(self._combined(probe.take(pa.array(rows)), np.full(len(rows), -1)))

    def _matched(self, matches: Entries, keep_unmatched: bool) -> Iterator[tuple[RowNumbers, RowNumbers]]:
        left, right = pair_rows(matches, self._starts, self._rows, keep_unmatched)
        for start in range(0, len(left), MAX_BATCH_ROWS):
            part = slice(start, start + MAX_BATCH_ROWS)
            yield left[part], right[part]

    def _alone(self, probe: pa.RecordBatch, hit: Mask) -> Iterator[pa.RecordBatch]:
        """Probe rows of a semi or anti join."""
        wanted = hit if self._spec.how == "semi" else ~hit
        if wanted.any():
            yield self._given(probe if wanted.all() else probe.filter(pa.array(wanted)))

    def _combined(self, probe: pa.RecordBatch, rows: RowNumbers) -> pa.RecordBatch:
        missing = rows < 0
        added: list[pa.Array] = []
        if self._columns.num_columns:
            indices = pa.array(rows, mask=missing if missing.any() else None)
            added = self._columns.take(indices).columns
        return pa.RecordBatch.from_arrays([*probe.columns, *added], schema=self._pairs)

    def _given(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._spec.schema)
