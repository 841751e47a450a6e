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

Finish: TypeAlias = Callable[[pa.Table], pa.Table]
"""Adds columns to rows."""


class FrozenPanes:
    """The windows at the time of the freeze. Usable from any thread; read the rows of each chunk only once.

    A window of more than `CHUNK_ENTRIES` keys is written as one blob per chunk. A blob keeps its id while its chunk
    does not change. All other windows are written together as one table.
    """

    def __init__(
        self, schema: pa.Schema, windows: Sequence[tuple[int, FrozenAggregates]], max_parallelism: int
    ) -> None:
        """Args: schema: of the rows. windows: (start in microseconds, window), ascending by start."""
        self._schema = schema
        self._windows = windows
        self._max_parallelism = max_parallelism

    def part(self, name: str, finish: Finish = lambda rows: rows) -> StatePart:
        """Return the rows of all windows after `finish`: key group, start, keys, aggregates."""
        small = [self._schema.empty_table()]
        blobs: list[Blob] = []
        for start_us, window in self._windows:
            for chunk, stamp in enumerate(window.cells.stamps.tolist()):
                if window.cells.size > CHUNK_ENTRIES:
                    id_ = f"{name}-{window.serial}-{chunk}-{stamp}"
                    blobs.append(Blob(id_, partial(self._finished, start_us, window, chunk, finish)))
                else:
                    small.append(self._rows(start_us, window, chunk))
        return StatePart(name, "keyed", finish(pa.concat_tables(small)), blobs=tuple(blobs))

    def _finished(self, start_us: int, window: FrozenAggregates, chunk: int, finish: Finish) -> pa.Table:
        return finish(self._rows(start_us, window, chunk))

    def _rows(self, start_us: int, window: FrozenAggregates, chunk: int) -> pa.Table:
        keys, columns = window.chunk(chunk)
        groups = key_groups(hash_keys(keys, keys.schema.names), self._max_parallelism)
        starts = np.full(keys.num_rows, start_us)
        return pa.table([pa.array(groups), pa.array(starts), *keys.columns, *columns], schema=self._schema)
