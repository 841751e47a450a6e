"""Frozen states of the heap back end as parts: small ones as one table, large ones as a blob for each chunk (S5.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.snapshot.parts import KEY_GROUP_COLUMN, Blob, StatePart
from tidegate.state.cells import CHUNK_ENTRIES

INLINE_ENTRIES = 64 * 1024
"""States with no more entries, and not of more bytes than `INLINE_BYTES`, are written whole each time, as one table."""
INLINE_BYTES = 64 * 2**20
"""Far below what one array of strings holds, as the rows of the table are sorted."""


@dataclass(frozen=True)
class FrozenState:
    """One state as it was at a freeze. For any thread.

    Attributes:
        name: of the state.
        schema: of its rows.
        size: entries there were, those without a row too.
        stamps: of each chunk; see `FrozenArrays`.
        rows: gives the rows of a chunk, once for each.
        entry_bytes: about how many bytes the rows of an entry have; 0: not known.
    """

    name: str
    schema: pa.Schema
    size: int
    stamps: npt.NDArray[np.int64]
    rows: Callable[[int], pa.Table]
    entry_bytes: int = 0

    def tables(self) -> Iterator[pa.Table]:
        """All rows, chunk by chunk; once."""
        return map(self.rows, range(len(self.stamps)))

    def table(self, tables: Iterable[pa.Table] | None = None) -> pa.Table:
        """All rows, sorted by key group; those that `tables` has given already, if given."""
        table = pa.concat_tables([self.schema.empty_table(), *(self.tables() if tables is None else tables)])
        order = np.argsort(table.column(KEY_GROUP_COLUMN).to_numpy(), kind="stable")
        return table.take(pa.array(order))

    def part(self) -> StatePart:
        """The part."""
        if self.size <= INLINE_ENTRIES and self.size * self.entry_bytes <= INLINE_BYTES:
            return StatePart(self.name, "keyed", self.table())
        blobs = tuple(
            Blob(f"{self.name}-{chunk}-{stamp}", partial(self.rows, chunk), CHUNK_ENTRIES * self.entry_bytes)
            for chunk, stamp in enumerate(self.stamps.tolist())
        )
        return StatePart(self.name, "keyed", self.schema.empty_table(), blobs=blobs)
