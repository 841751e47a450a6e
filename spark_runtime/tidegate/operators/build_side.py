"""The build side of a broadcast join: complete, indexed, read-only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.batches import MAX_BATCH_ROWS, one_batch
from tidegate.operators.specs import BroadcastJoinSpec
from tidegate.state.keyindex import KeyReader
from tidegate.state.rows import pair_rows


class BuildSide:
    """An index over the build rows; joins probe batches with them. Rows with a null in a key match nothing, as in SQL;
    a probe row comes once for each build row of its key, build rows in order of arrival."""

    def __init__(self, spec: BroadcastJoinSpec, rows: Sequence[pa.RecordBatch]) -> None:
        """Args: rows: all build rows."""
        self._schema = spec.schema
        self._keep_unmatched = spec.how == "left"
        self._added = [field.name for field in spec.right_schema if field.name not in spec.on]
        same_types = all(spec.left_schema.field(k).type == spec.right_schema.field(k).type for k in spec.on)
        self._probe_keys = KeyReader(spec.left_schema, spec.on, canonical=not same_types)
        table = pa.Table.from_batches(list(rows), schema=spec.right_schema)
        batches = table.filter(reduce(pc.and_, [pc.is_valid(table.column(key)) for key in spec.on])).to_batches()
        build = one_batch(batches) if batches else pa.RecordBatch.from_pylist([], schema=spec.right_schema)
        build_keys = KeyReader(spec.right_schema, spec.on, canonical=not same_types)
        self._index = build_keys.new_index(build.num_rows)
        entries = np.empty(build.num_rows, np.int32)
        self._index.find_or_add(build_keys.read(build), 0, build.num_rows, entries)
        self._unique = self._index.size == build.num_rows
        self._rows = np.argsort(entries, kind="stable")
        counts = np.bincount(entries, minlength=self._index.size)
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._columns = build.select(self._added)

    def join(self, probe: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The joined rows, in order of the probe rows, in batches of at most `MAX_BATCH_ROWS`."""
        matches = np.empty(probe.num_rows, np.int32)
        self._index.find(self._probe_keys.read(probe), 0, probe.num_rows, matches)
        if self._unique and (self._keep_unmatched or bool((matches >= 0).all())):
            for start in range(0, probe.num_rows, MAX_BATCH_ROWS):
                part = slice(start, start + MAX_BATCH_ROWS)
                yield self._combined(probe.slice(start, MAX_BATCH_ROWS), matches[part].astype(np.int64))
            return
        left, right = pair_rows(matches, self._starts, self._rows, self._keep_unmatched)
        for start in range(0, len(left), MAX_BATCH_ROWS):
            part = slice(start, start + MAX_BATCH_ROWS)
            yield self._combined(probe.take(pa.array(left[part])), right[part])

    def _combined(self, probe: pa.RecordBatch, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.RecordBatch:
        missing = rows < 0
        added: list[pa.Array] = []
        if self._added:
            indices = pa.array(rows, mask=missing if missing.any() else None)
            added = self._columns.take(indices).columns
        return pa.RecordBatch.from_arrays([*probe.columns, *added], schema=self._schema)
