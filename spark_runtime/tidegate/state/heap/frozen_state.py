"""Frozen states of the heap back end as parts: small ones as one table, large ones as a blob for each chunk (S5.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.snapshot.parts import KEY_GROUP_COLUMN, Blob, StatePart
from tidegate.state.copy_on_write import CHUNK_ENTRIES

INLINE_ENTRIES = 64 * 1024
"""States with no more entries, and no more bytes than `INLINE_BYTES`, are written whole each time, as one table."""
INLINE_BYTES = 64 * 2**20
"""Far below the limit of one array of strings, because the rows of the table are sorted."""


@dataclass(frozen=True)
class FrozenState:
    """One state at the time of a freeze. For any thread.

    Attributes:
        name: name of the state.
        schema: schema of its rows.
        size: number of entries, including entries without a row.
        stamps: stamp of each chunk; see `FrozenArrays`.
        rows: returns the rows of a chunk; call it once for each.
        entry_bytes: approximate number of bytes of an entry's rows; 0: unknown.
    """

    name: str
    schema: pa.Schema
    size: int
    stamps: npt.NDArray[np.int64]
    rows: Callable[[int], pa.Table]
    entry_bytes: int = 0

    def tables(self) -> Iterator[pa.Table]:
        """Return all rows, chunk by chunk. Call it once."""
        return map(self.rows, range(len(self.stamps)))

    def table(self, tables: Iterable[pa.Table] | None = None) -> pa.Table:
        """Return all rows, sorted by key group. If `tables` is passed, the rows are read from it."""
        table = pa.concat_tables([self.schema.empty_table(), *(self.tables() if tables is None else tables)])
        order = np.argsort(table.column(KEY_GROUP_COLUMN).to_numpy(), kind="stable")
        return table.take(pa.array(order))

    def part(self) -> StatePart:
        """Return the part of the snapshot."""
        if self.size <= INLINE_ENTRIES and self.size * self.entry_bytes <= INLINE_BYTES:
            return StatePart(self.name, "keyed", self.table())
        blobs = tuple(
            # An unchanged chunk has the same stamp and so the same id: a later checkpoint does not write it again
            # (S5.2).
            Blob(f"{self.name}-{chunk}-{stamp}", partial(self.rows, chunk), CHUNK_ENTRIES * self.entry_bytes)
            for chunk, stamp in enumerate(self.stamps.tolist())
        )
        return StatePart(self.name, "keyed", self.schema.empty_table(), blobs=blobs)
