"""Broadcast state of a process: rows by key, the same in every subtask (S5.1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import PipelineError
from tidegate.state.keyed_state import Found
from tidegate.state.keys.key_index import KeyReader

MAX_BATCHES = 64
"""Batches that a state keeps before it makes one of them."""
SPARE_ROWS = 1024
"""Rows that were replaced or removed and are kept at least, beside as many as there are live ones."""


class BroadcastMap:
    """A row for each key. Keys compare as those of a group_by do: null is one, NaN equals NaN.

    Write only what every subtask writes. Beside a broadcast input, which brings every subtask the same records, it is
    written while they are processed and read-only otherwise. Each subtask snapshots its own; a restore gives every
    subtask that of one (S5.5). What several subtasks broadcast comes in another order to each: let all records of a key
    be of one of them.
    """

    def __init__(self, name: str, key: pa.Schema, columns: pa.Schema) -> None:
        """Args: key: columns of the key. columns: of what is kept for it."""
        self.name = name
        self.writable = True
        self._key = key
        self._columns = columns
        self._schema = pa.schema([*key, *columns])
        self._reader = KeyReader(key, key.names)
        self._batches: list[pa.RecordBatch] = []
        self._held = self._live = 0
        self._index = self._reader.new_index()
        self._rows: npt.NDArray[np.int64] = np.full(self._index.capacity, -1, np.int64)

    def __len__(self) -> int:
        return self._live

    def get(self, keys: pa.RecordBatch) -> Found:
        """What is kept for each row of `keys`, which has the key's columns, in order, whatever their names.

        Raises:
            PipelineError: its columns are not those of the key.
        """
        arrays = self._fitting(keys, self._key, "keys", by_name=False)
        entries = self._entries(arrays)
        rows = np.where(entries >= 0, self._rows[entries], -1)
        present = rows >= 0
        kept = self._one_batch().select(self._columns.names)
        return Found(present, kept.take(pa.array(rows, mask=~present)))

    def entries(self) -> pa.RecordBatch:
        """All rows: columns of the key, then what is kept; in no promised order."""
        return self._one_batch().take(pa.array(self._live_rows()))

    def put(self, rows: pa.RecordBatch) -> None:
        """Set what is kept for the keys of `rows`, which has the columns of the key and the others; the last of equal
        keys stays.

        Raises:
            PipelineError: its columns are not those that are declared, or the state is read-only here.
        """
        self._require_writable("put")
        arrays = self._fitting(rows, self._schema, "rows", by_name=True)
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if not batch.num_rows:
            return
        entries = np.empty(batch.num_rows, np.int32)
        self._index.find_or_add(self._reader.read(batch.select(self._key.names)), 0, batch.num_rows, entries)
        if self._index.size > len(self._rows):
            grown = np.full(self._index.capacity, -1, np.int64)
            grown[: len(self._rows)] = self._rows
            self._rows = grown
        self._rows[entries] = np.arange(self._held, self._held + batch.num_rows)
        self._batches.append(batch)
        self._held += batch.num_rows
        self._apply_pending()

    def remove(self, keys: pa.RecordBatch) -> None:
        """Remove these keys; what is not there is passed over. Raises as `get` and `put` do."""
        self._require_writable("remove")
        entries = self._entries(self._fitting(keys, self._key, "keys", by_name=False))
        self._rows[entries[entries >= 0]] = -1
        self._apply_pending()

    def clear(self) -> None:
        """Remove everything. Raises PipelineError: the state is read-only here."""
        self._require_writable("clear")
        self._index = self._reader.new_index()
        self._rows = np.full(self._index.capacity, -1, np.int64)
        self._batches = []
        self._held = self._live = 0

    def freeze(self) -> tuple[list[pa.RecordBatch], npt.NDArray[np.int64]]:
        """Batches, and which of their rows live; for `frozen_table`, on any thread."""
        return list(self._batches), self._live_rows()

    def restore(self, rows: pa.Table) -> None:
        """Take back the rows of a snapshot."""
        writable, self.writable = self.writable, True
        self.clear()
        for batch in rows.to_batches():
            self.put(batch)
        self.writable = writable

    def frozen_table(self, frozen: tuple[list[pa.RecordBatch], npt.NDArray[np.int64]]) -> pa.Table:
        """The live rows of what `freeze` gave."""
        batches, rows = frozen
        return pa.Table.from_batches(batches, self._schema).take(pa.array(rows)).combine_chunks()

    def _entries(self, arrays: list[pa.Array]) -> npt.NDArray[np.int32]:
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._key)
        entries = np.empty(batch.num_rows, np.int32)
        self._index.find(self._reader.read(batch), 0, batch.num_rows, entries)
        return entries

    def _live_rows(self) -> npt.NDArray[np.int64]:
        rows = self._rows[: self._index.size]
        return rows[rows >= 0]

    def _one_batch(self) -> pa.RecordBatch:
        if len(self._batches) != 1:
            empty = pa.RecordBatch.from_pylist([], schema=self._schema)
            self._batches = [pa.concat_batches(self._batches) if self._batches else empty]
        return self._batches[0]

    def _apply_pending(self) -> None:
        """Count, and drop what is dead once it is most of what is held."""
        self._live = len(self._live_rows())
        if self._held > 2 * self._live + SPARE_ROWS:
            live = self.entries()
            self.clear()
            self.put(live)
        elif len(self._batches) > MAX_BATCHES:
            self._one_batch()

    def _fitting(self, batch: object, wanted: pa.Schema, what: str, *, by_name: bool) -> list[pa.Array]:
        if not isinstance(batch, pa.RecordBatch):
            raise self._refused(f"{what} are a {type(batch).__name__}", "Give a pyarrow.RecordBatch")
        given: Any = batch
        if by_name and sorted(batch.schema.names) == sorted(wanted.names):
            given = batch.select(wanted.names)
        names_fit = given.schema.names == wanted.names or not by_name
        if not names_fit or given.schema.types != wanted.types:
            raise self._refused(
                f"it takes {_columns_text(wanted)}; the {what} have {_columns_text(batch.schema)}",
                "Give these columns" + ("" if by_name else ", in this order, such as rows.batch.select([...])"),
            )
        for field, array in zip(wanted, given.columns, strict=True):
            if not field.nullable and array.null_count:
                raise self._refused(f"column {field.name!r} has nulls, declared is not null", "Declare it nullable")
        return list(given.columns)

    def _require_writable(self, call: str) -> None:
        if not self.writable:
            raise self._refused(
                f"{call} was called where only some subtasks see the record: their states would differ",
                "Write broadcast state in process_broadcast alone",
            )

    def _refused(self, cause: str, remedy: str) -> PipelineError:
        return PipelineError(
            f"broadcast state {self.name!r} cannot do what it was told",
            where=f"state {self.name!r}",
            cause=cause,
            remedy=remedy,
        )


def _columns_text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
