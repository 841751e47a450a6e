"""Reads the rows of a join from a snapshot of any back end, for tables in memory (S5.5)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.operators.joins.join_specs import MATCHED, SIDES, StreamJoinSpec
from tidegate.operators.stream_operator import OperatorContext
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, StatePart
from tidegate.state.evolved_parts import evolved_parts
from tidegate.state.keyed_state import Mask
from tidegate.state.keys.key_bytes import Int64s
from tidegate.state.keys.key_index import KeyReader
from tidegate.state.state_layout import foreign_format_error


def restored_sides(
    spec: StreamJoinSpec, ctx: OperatorContext, parts: Sequence[StatePart]
) -> Iterator[tuple[int, pa.RecordBatch, Mask]]:
    """Yield side, rows in order of arrival, and which of them have found a match.

    The rows have the columns of the state: key group, keys, values. Rows of other subtasks' key groups are skipped.
    Timers are skipped: they follow from the rows.

    Raises:
        SnapshotError: a part consists of another back end's files, or its columns cannot be adapted.
    """
    for part in parts:
        if part.format != "rows":
            raise foreign_format_error(part, [d.name for d in spec.descriptors], ctx.uid)
    key_schema = spec.key_schema
    renamed = {old: new for old, new in spec.renamed if new in key_schema.names}
    changed = evolved_parts(parts, spec.descriptors, key_schema, ctx.uid, renamed)
    groups = key_group_range(ctx.subtask, ctx.parallelism, ctx.max_parallelism)
    for side, name in enumerate(SIDES):
        tables = [_owned(table, groups) for part in changed if part.name == name for table in part.tables()]
        marks = [_owned(t, groups) for part in changed if part.name == MATCHED.format(name) for t in part.tables()]
        if any(table.num_rows for table in marks):
            # A mark names a row by its place in the list of its key, so that all rows are read together.
            yield from _marked(side, pa.concat_tables(tables), pa.concat_tables(marks), key_schema)
            continue
        for batch in (batch for table in tables for batch in table.to_batches()):
            yield side, batch, _matched_at_once(batch, spec, side)


def _owned(table: pa.Table, groups: range) -> pa.Table:
    found = table.column(KEY_GROUP_COLUMN).to_numpy()
    mine = (found >= groups.start) & (found < groups.stop)
    return table if mine.all() else table.filter(pa.array(mine))


def _matched_at_once(batch: pa.RecordBatch, spec: StreamJoinSpec, side: int) -> Mask:
    if not spec.tracks_matches(side):
        return np.zeros(batch.num_rows, np.bool_)
    return batch.column(batch.num_columns - 1).to_numpy(zero_copy_only=False).astype(np.bool_)


def _marked(
    side: int, rows: pa.Table, marks: pa.Table, key_schema: pa.Schema
) -> Iterator[tuple[int, pa.RecordBatch, Mask]]:
    """Yield the rows batch by batch, with their marks."""
    reader = KeyReader(key_schema, key_schema.names)
    index = reader.new_index(rows.num_rows)
    entries = _entries(reader, index.find_or_add, rows, key_schema)
    order = np.argsort(entries, kind="stable")
    starts = np.searchsorted(entries[order], np.arange(index.size))
    marked = _entries(reader, index.find, marks, key_schema)
    positions = marks.column(marks.num_columns - 1).to_numpy()
    assert not len(marked) or marked.min() >= 0, "a mark belongs to a key without rows"
    matched = np.zeros(rows.num_rows, np.bool_)
    matched[order[starts[marked] + positions]] = True
    start = 0
    for batch in rows.to_batches():
        at_once = batch.column(batch.num_columns - 1).to_numpy(zero_copy_only=False).astype(np.bool_)
        yield side, batch, at_once | matched[start : start + batch.num_rows]
        start += batch.num_rows


def _entries(reader: KeyReader, find: Any, table: pa.Table, key_schema: pa.Schema) -> Int64s:
    """Return the entry of each row's key."""
    found = [np.zeros(0, np.int32)]
    for batch in table.to_batches():
        keys = pa.RecordBatch.from_arrays(batch.columns[1 : 1 + len(key_schema)], schema=key_schema)
        out = np.empty(batch.num_rows, np.int32)
        find(reader.read(keys), 0, batch.num_rows, out)
        found.append(out)
    return np.concatenate(found).astype(np.int64)
