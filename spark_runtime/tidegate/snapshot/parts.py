"""What an operator hands to a snapshot and gets back at restore: named, typed Arrow tables (S5.1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from tidegate.jobs.options import SnapshotCompression
from tidegate.snapshot.row_streams import stream_of, table_of

StateKind = Literal["keyed", "list", "union", "broadcast", "channel"]

KEY_GROUP_COLUMN = "__key_group"
"""Keyed parts carry this uint16 column: the key group of each row, so that a rescale can cut them (S5.5)."""
OWNER_COLUMN = "__owner"
"""List parts may carry this int32 column: at another parallelism p a row goes to subtask owner modulo p, and where it
is null to every subtask; without the column rows are split evenly (S5.5)."""


StateFormat = Literal["rows", "rocksdb"]


@dataclass(frozen=True)
class Blob:
    """An immutable piece of a state that later snapshots of the same operator subtask may hold again: then it is not
    written a second time (S5.2).

    Attributes:
        id: one id, one content, within a run of the operator subtask; a file name. A blob that was restored, and has
            not changed since, may be handed in again under the id it came with: then it need not be written either.
        read: its bytes, or, of format "rows", its rows as a table, which the writer makes bytes of. When a snapshot is
            written: called at most once, on a writer thread, where no earlier completed checkpoint has it, or files of
            earlier ones are written together anew. At a restore: loads it, checked; may be called again.
        size_bytes: about how many bytes `read` gives; 0: not known before.
    """

    id: str
    read: Callable[[], bytes | pa.Table]
    size_bytes: int = 0

    def pieces(self, compression: SnapshotCompression = "none") -> Sequence[Any]:
        """Its bytes, as buffers that follow one another. Reads it."""
        content = self.read()
        return stream_of(content, compression) if isinstance(content, pa.Table) else (content,)

    def table(self) -> pa.Table:
        """Its rows, of format "rows". Reads it."""
        content = self.read()
        return content if isinstance(content, pa.Table) else table_of(content)


@dataclass(frozen=True)
class StatePart:
    """One state of one operator subtask. Its rows are those of `table`, then those of each of `blobs`.

    Attributes:
        name: state name, unique within the operator.
        kind: how it is redistributed on restore (S5.1); "channel" is the runtime's own (S3.7).
        table: the rows. Keyed parts hold `KEY_GROUP_COLUMN`.
        staged: `StagedData.to_json()` of the transactions in it, for the metadata; no part of the state (S7.8).
        blobs: further rows, in pieces of bounded size.
        format: of the blobs. "rows": each an Arrow IPC stream with the columns of `table`, in no order of key groups;
            any back end reads it. "rocksdb": files of a RocksDB, of which `table` has one row each.
    """

    name: str
    kind: StateKind
    table: pa.Table
    staged: tuple[Mapping[str, Any], ...] = ()
    blobs: tuple[Blob, ...] = ()
    format: StateFormat = "rows"

    def tables(self) -> Iterator[pa.Table]:
        """All rows, a piece at a time, of format "rows"."""
        assert self.format == "rows", f"state {self.name!r} has no rows but files of {self.format}"
        if self.table.num_rows or not self.blobs:
            yield self.table
        for blob in self.blobs:
            yield blob.table()


AsyncSnapshot = Callable[[], Sequence[StatePart]]
"""The asynchronous phase: called once, on a snapshot writer thread, after the synchronous freeze. Must not touch live
state; may block; its exception declines the checkpoint (S3.6)."""
