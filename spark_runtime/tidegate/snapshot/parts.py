"""The state that an operator passes to a snapshot and receives at a restore: named, typed Arrow tables (S5.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from tidegate.jobs.options import SnapshotCompression
from tidegate.snapshot.row_streams import stream_of, table_of

StateKind = Literal["keyed", "list", "union", "broadcast", "channel"]

KEY_GROUP_COLUMN = "__key_group"
"""Keyed parts have this uint16 column: the key group of each row, so that a rescale can split them (S5.5)."""
OWNER_COLUMN = "__owner"
"""List parts may have this int32 column. At another parallelism p, a row goes to subtask owner modulo p, and a row
without owner to every subtask. Without the column, rows are split evenly (S5.5)."""


StateFormat = Literal["rows", "rocksdb"]


@dataclass(frozen=True)
class Blob:
    """An immutable piece of a state. If later snapshots of the operator subtask contain it again, it is not written
    again (S5.2).

    Attributes:
        id: a file name. Within a run of the operator subtask, one id stands for one content. A restored blob that has
            not changed may be passed in again under its id, and need not be written either.
        read: returns its bytes or, in format "rows", its rows as a table, which the writer encodes. During a snapshot
            it is called at most once, on a writer thread, if no completed checkpoint has the blob or its file is
            written again. During a restore it loads and checks the blob, and may be called again.
        size_bytes: approximate size of the result of `read`; 0: not known before.
    """

    id: str
    read: Callable[[], bytes | memoryview | pa.Table]
    size_bytes: int = 0

    def pieces(self, compression: SnapshotCompression = "none") -> Sequence[Any]:
        """Return its bytes, as buffers in order. Reads it."""
        content = self.read()
        return stream_of(content, compression) if isinstance(content, pa.Table) else (content,)

    def table(self) -> pa.Table:
        """Return its rows, in format "rows". Reads it."""
        content = self.read()
        return content if isinstance(content, pa.Table) else table_of(content)


@dataclass(frozen=True)
class StatePart:
    """One state of one operator subtask. Its rows are the rows of `table`, followed by the rows of each of `blobs`.

    Attributes:
        name: state name, unique within the operator.
        kind: how a restore distributes it (S5.1); "channel" is the runtime's own state (S3.7).
        table: the rows. Keyed parts contain `KEY_GROUP_COLUMN`.
        staged: `StagedData.to_json()` of its transactions, for the metadata; not a part of the state (S7.8).
        blobs: further rows, in pieces of limited size.
        readable_until_ms: time until which a source can continue from the positions in it, for the metadata; None: no
            limit is known.
        format: format of the blobs. "rows": each is an Arrow IPC stream with the columns of `table`, in any order of
            key groups; every backend can read it. "rocksdb": files of a RocksDB, each with one row in `table`.
    """

    name: str
    kind: StateKind
    table: pa.Table
    staged: tuple[Mapping[str, Any], ...] = ()
    blobs: tuple[Blob, ...] = ()
    format: StateFormat = "rows"
    readable_until_ms: int | None = None

    def tables(self) -> Iterator[pa.Table]:
        """Yield all rows, a piece at a time. Only in format "rows"."""
        assert self.format == "rows", f"state {self.name!r} is stored in {self.format} files, not in rows"
        # At least one table, so that a reader learns the columns of a state without rows.
        if self.table.num_rows or not self.blobs:
            yield self.table
        for blob in self.blobs:
            yield blob.table()


AsyncSnapshot = Callable[[], Sequence[StatePart]]
"""The asynchronous phase: called once, on a snapshot writer thread, after the synchronous freeze.

It must not access live state. It may block. If it raises, the checkpoint is declined (S3.6).
"""
