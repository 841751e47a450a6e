"""What a snapshot writer makes of the open windows of a subtask, while they go on (S5.2, S5.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from tidegate.operators.aggregates.keyed_aggregates import FrozenAggregates
from tidegate.snapshot.parts import Blob, StatePart
from tidegate.state.cells import CHUNK_ENTRIES
from tidegate.state.keys.key_hash import hash_keys, key_groups

Finish: TypeAlias = Callable[[pa.Table], pa.Table]
"""Adds columns to rows."""


class FrozenPanes:
    """The windows at one moment. For any thread; rows of a chunk are to be read once.

    Windows of more than `CHUNK_ENTRIES` keys are written as a blob for each chunk, which keeps its id while nothing in
    it changes; all others together as a table.
    """

    def __init__(
        self, schema: pa.Schema, windows: Sequence[tuple[int, FrozenAggregates]], max_parallelism: int
    ) -> None:
        """Args: schema: of the rows. windows: with their starts in microseconds, ascending."""
        self._schema = schema
        self._windows = windows
        self._max_parallelism = max_parallelism

    def part(self, name: str, finish: Finish = lambda rows: rows) -> StatePart:
        """The rows of all windows: key group, start, keys, aggregates; and what `finish` makes of them."""
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
