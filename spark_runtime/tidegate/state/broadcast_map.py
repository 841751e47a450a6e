"""Broadcast state of a process: rows by key, the same in every subtask (S5.1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.errors import PipelineError
from tidegate.state.keyed_state import Found

MAX_BATCHES = 64
"""Number of batches at which a state combines them into one."""
SPARE_ROWS = 1024
"""Replaced or removed rows that a state keeps at least before it drops them; it may also keep as many as live rows."""


class BroadcastMap:
    """A row for each key. Keys compare as in `group_by`: null is a key, NaN equals NaN.

    Write only what every subtask writes. The state is writable while records of a broadcast input are processed, which
    every subtask receives, and read-only otherwise. Each subtask snapshots its own state; a restore gives the state of
    one subtask to all (S5.5). Records that several subtasks broadcast arrive in a different order at each receiver: all
    records of a key must come from one subtask.
    """

    def __init__(self, name: str, key: pa.Schema, columns: pa.Schema) -> None:
        """Create an empty state. Args: key: columns of the key. columns: columns of the value."""
        from tidegate.state.keys.key_index import KeyReader  # imports kernels; a graph is built without them

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
        """Return the value for each row of `keys`. It has the columns of the key, in order, under any names.

        Raises:
            PipelineError: the columns differ from the columns of the key.
        """
        arrays = self._fitting(keys, self._key, "keys", by_name=False)
        entries = self._entries(arrays)
        rows = np.where(entries >= 0, self._rows[entries], -1)
        present = rows >= 0
        kept = self._one_batch().select(self._columns.names)
        return Found(present, kept.take(pa.array(rows, mask=~present)))

    def entries(self) -> pa.RecordBatch:
        """Return all rows: columns of the key, then of the value; in no defined order."""
        return self._one_batch().take(pa.array(self._live_rows()))

    def put(self, rows: pa.RecordBatch) -> None:
        """Set the values of the keys of `rows`, which has the columns of the key and the value. Of equal keys, the last
        wins.

        Raises:
            PipelineError: the columns differ from the declared ones, or the state is read-only here.
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
        # numpy keeps the last assignment if a key occurs several times.
        self._rows[entries] = np.arange(self._held, self._held + batch.num_rows)
        self._batches.append(batch)
        self._held += batch.num_rows
        self._apply_pending()

    def remove(self, keys: pa.RecordBatch) -> None:
        """Remove these keys; missing keys are ignored. Raises as `get` and `put` do."""
        self._require_writable("remove")
        entries = self._entries(self._fitting(keys, self._key, "keys", by_name=False))
        self._rows[entries[entries >= 0]] = -1
        self._apply_pending()

    def clear(self) -> None:
        """Remove all rows. Raises PipelineError if the state is read-only here."""
        self._require_writable("clear")
        self._index = self._reader.new_index()
        self._rows = np.full(self._index.capacity, -1, np.int64)
        self._batches = []
        self._held = self._live = 0

    def freeze(self) -> tuple[list[pa.RecordBatch], npt.NDArray[np.int64]]:
        """Return the batches and the numbers of their live rows, for `frozen_table`, on any thread."""
        return list(self._batches), self._live_rows()

    def restore(self, rows: pa.Table) -> None:
        """Replace all rows by the rows of a snapshot."""
        writable, self.writable = self.writable, True
        self.clear()
        for batch in rows.to_batches():
            self.put(batch)
        self.writable = writable

    def frozen_table(self, frozen: tuple[list[pa.RecordBatch], npt.NDArray[np.int64]]) -> pa.Table:
        """Return the live rows of a `freeze` result."""
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
        """Count live rows, and drop dead rows when they are most of the stored ones."""
        self._live = len(self._live_rows())
        if self._held > 2 * self._live + SPARE_ROWS:
            live = self.entries()
            self.clear()
            self.put(live)
        elif len(self._batches) > MAX_BATCHES:
            self._one_batch()

    def _fitting(self, batch: object, wanted: pa.Schema, what: str, *, by_name: bool) -> list[pa.Array]:
        if not isinstance(batch, pa.RecordBatch):
            raise self._refused(
                f"the {what} are a {type(batch).__name__}, not a RecordBatch", "Pass a pyarrow.RecordBatch"
            )
        given: Any = batch
        if by_name and sorted(batch.schema.names) == sorted(wanted.names):
            given = batch.select(wanted.names)
        names_fit = given.schema.names == wanted.names or not by_name
        if not names_fit or given.schema.types != wanted.types:
            raise self._refused(
                f"expected columns {_columns_text(wanted)}; the {what} have {_columns_text(batch.schema)}",
                "Pass the expected columns" + ("" if by_name else ", in this order, such as rows.batch.select([...])"),
            )
        for field, array in zip(wanted, given.columns, strict=True):
            if not field.nullable and array.null_count:
                raise self._refused(
                    f"column {field.name!r} has nulls, but is declared not null", "Declare the column nullable"
                )
        return list(given.columns)

    def _require_writable(self, call: str) -> None:
        if not self.writable:
            raise self._refused(
                f"{call} was called for a record that only some subtasks receive, so the states of the subtasks would "
                "differ",
                "Write broadcast state only in process_broadcast",
            )

    def _refused(self, cause: str, remedy: str) -> PipelineError:
        return PipelineError(
            f"an operation on broadcast state {self.name!r} was refused",
            where=f"state {self.name!r}",
            cause=cause,
            remedy=remedy,
        )


def _columns_text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
