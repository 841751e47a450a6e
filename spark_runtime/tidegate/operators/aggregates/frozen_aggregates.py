"""Writes the open windows of a subtask into a snapshot while the subtask continues to change them (S5.2, S5.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tidegate.operators.aggregates.keyed_aggregates import FrozenAggregates
from tidegate.snapshot.parts import Blob, StatePart
from tidegate.state.copy_on_write import CHUNK_ENTRIES
from tidegate.state.keys.key_hash import hash_keys, key_groups

TABLE_ROWS = 4096
"""Small windows of at most so many rows in all are written as one table, which is sorted and compressed. More rows are
written as they are, for a fraction of the processor time."""
BLOB_ROWS = 1 << 14
"""Small windows are joined into blobs of at least so many rows. Few enough that the rows of a blob are still in the
processor's cache when they are written."""

Finish: TypeAlias = Callable[[pa.Table], pa.Table]
"""Adds columns to rows."""
_Windows: TypeAlias = Sequence[tuple[int, FrozenAggregates]]


class FrozenPanes:
    """The windows at the time of the freeze. Usable from any thread; read the rows of each chunk only once.

    A window of more than `CHUNK_ENTRIES` keys is written as one blob per chunk. A blob keeps its id while its chunk
    does not change. All other windows are written together: as a table, or as blobs if they have many rows.
    """

    def __init__(
        self,
        schema: pa.Schema,
        windows: _Windows,
        max_parallelism: int,
        checkpoint_id: int,
    ) -> None:
        """Args: schema: of the rows. windows: (start in microseconds, window), ascending by start. checkpoint_id: of
        the snapshot, for ids of blobs."""
        self._checkpoint_id = checkpoint_id
        self._schema = schema
        self._windows = windows
        self._max_parallelism = max_parallelism

    def part(self, name: str, finish: Finish = lambda rows: rows) -> StatePart:
        """Return the rows of all windows after `finish`: key group, start, keys, aggregates."""
        small: list[tuple[int, FrozenAggregates]] = []
        blobs: list[Blob] = []
        for start_us, window in self._windows:
            if window.cells.size <= CHUNK_ENTRIES:
                small.append((start_us, window))
                continue
            for chunk, stamp in enumerate(window.cells.stamps.tolist()):
                id_ = f"{name}-{window.serial}-{chunk}-{stamp}"
                blobs.append(Blob(id_, partial(self._finished, start_us, window, chunk, finish)))
        is_table = sum(window.cells.size for _, window in small) <= TABLE_ROWS
        for number, group in enumerate([] if is_table else _groups(small)):
            # Stamps of small windows are meaningless, so no later snapshot can use this blob again.
            id_ = f"{name}-small-{self._checkpoint_id}-{number}"
            blobs.append(Blob(id_, partial(self._finished_group, group, finish)))
        table = finish(self._together(small if is_table else ()))
        return StatePart(name, "keyed", table, blobs=tuple(blobs))

    def _finished_group(self, windows: _Windows, finish: Finish) -> pa.Table:
        return finish(self._together(windows))

    def _together(self, windows: _Windows) -> pa.Table:
        """Return the rows of small windows, in one piece per column."""
        found = [self._rows(start_us, window, 0) for start_us, window in windows if window.cells.size]
        return pa.concat_tables([self._schema.empty_table(), *found]).combine_chunks()

    def _finished(self, start_us: int, window: FrozenAggregates, chunk: int, finish: Finish) -> pa.Table:
        return finish(self._rows(start_us, window, chunk))

    def _rows(self, start_us: int, window: FrozenAggregates, chunk: int) -> pa.Table:
        keys, columns = window.chunk(chunk)
        groups = key_groups(hash_keys(keys, keys.schema.names), self._max_parallelism)
        starts = np.full(keys.num_rows, start_us)
        return pa.table([pa.array(groups), pa.array(starts), *keys.columns, *columns], schema=self._schema)


def _groups(windows: _Windows) -> list[_Windows]:
    """Distribute windows, in order, to groups of `BLOB_ROWS` rows or a little more."""
    found: list[list[tuple[int, FrozenAggregates]]] = []
    rows = BLOB_ROWS
    for start_us, window in windows:
        if not window.cells.size:
            continue
        if rows >= BLOB_ROWS:
            found.append([])
            rows = 0
        found[-1].append((start_us, window))
        rows += window.cells.size
    return [*found]
