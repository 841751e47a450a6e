"""The records of one transaction, reduced to the newest state of each key."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.change_rows import CHANGE_KINDS, DELETE, UPDATE_BEFORE, change_kind_column
from tidegate.connectors.row_spool import RowSpool
from tidegate.errors import DataError


class ChangeSpool:
    """Records of the running transaction until its pre-commit.

    The keys stay in memory, the rows are on local disk if they are many. Written on the loop; read by one thread
    afterwards.

    Args:
        schema: of the records; may have a column with the kind of change.
        keys: columns of the key, with the types that the table has.
        scratch: folder for the rows; empty: the system's.
        where: the sink, for messages.
    """

    def __init__(self, schema: pa.Schema, keys: pa.Schema, scratch: str, where: str) -> None:
        self._rows = RowSpool(schema, scratch)
        self._keys = keys
        self._kind = change_kind_column(schema)
        self._where = where
        self._key_batches: list[pa.RecordBatch] = []
        self._deleted: list[npt.NDArray[np.bool_]] = []

    def append(self, batch: pa.RecordBatch) -> None:
        """Add records.

        Raises:
            DataError: null in a key column, or an unknown kind of change.
        """
        keys = []
        for field in self._keys:
            # Converted first: a dictionary may have null among its values.
            values = batch.column(field.name).cast(field.type)
            if values.null_count:
                raise DataError(
                    f"{values.null_count:,} rows have null in key column {field.name!r}",
                    where=self._where,
                    cause="a null equals no other value, so that the row could never be replaced",
                    remedy="Filter these rows, or fill the column, before the sink",
                )
            keys.append(values)
        self._deleted.append(self._deletes(batch))
        self._key_batches.append(pa.RecordBatch.from_arrays(keys, schema=self._keys))
        self._rows.append(batch)

    def _deletes(self, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        """Return which rows delete their key.

        A row before an update deletes its key, too: the row after it inserts it again, or another key.
        """
        if self._kind is None:
            return np.zeros(batch.num_rows, bool)
        kinds = batch.column(self._kind)
        unknown = pc.unique(kinds.filter(pc.invert(pc.fill_null(pc.is_in(kinds, pa.array(CHANGE_KINDS)), False))))
        if len(unknown):
            raise DataError(
                f"the kind of change {unknown[0].as_py()!r} is unknown",
                where=self._where,
                cause=f"column {self._kind!r} must hold {', '.join(CHANGE_KINDS)}",
                remedy="Correct the column in the pipeline",
            )
        found: npt.NDArray[np.bool_] = pc.is_in(kinds, pa.array([DELETE, UPDATE_BEFORE])).to_numpy(zero_copy_only=False)
        return found

    def newest(self) -> NewestRows:
        """Return the newest state of each key. Nothing can be appended afterwards."""
        table = pa.Table.from_batches(self._key_batches, self._keys)
        # Positions as names, because a key column may have any name.
        names = [str(n) for n in range(len(self._keys))]
        numbered = table.rename_columns(names).append_column("row", pa.array(np.arange(table.num_rows)))
        last = numbered.group_by(names, use_threads=False).aggregate([("row", "max")])
        newest = np.zeros(table.num_rows, bool)
        newest[last["row_max"].to_numpy()] = True
        return NewestRows(
            last.select(names).rename_columns(self._keys.names).cast(self._keys),
            self._rows,
            newest & ~np.concatenate(self._deleted),
            self._kind,
        )

    def drop(self) -> None:
        """Drop the records."""
        self._rows.drop()
        self._key_batches, self._deleted = [], []


class NewestRows:
    """Newest state of each key of a transaction.

    Attributes:
        keys: every key that the transaction changes, once.
    """

    def __init__(self, keys: pa.Table, rows: RowSpool, stays: npt.NDArray[np.bool_], kind: str | None) -> None:
        self.keys = keys
        self._rows = rows
        self._stays = stays
        self._kind = kind

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the newest rows, without deleted keys and without the kind of change, in the order of arrival."""
        first = 0
        for chunk in self._rows.chunks():
            chosen = self._stays[first : first + chunk.num_rows]
            first += chunk.num_rows
            plain = chunk if self._kind is None else chunk.drop_columns([self._kind])
            if chosen.all():
                yield plain
            elif chosen.any():
                # `take`, because Arrow cannot filter all types that records have.
                yield plain.take(pa.array(np.flatnonzero(chosen)))
