"""Files of a Delta table that hold rows with some keys, and the rows of these files that stay.

Delta has no index. A file is left out by its statistics and partition, or its key columns are read. Files with such a
row are written again without it, because delta-rs can neither write nor remove deletion vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.connectors.delta.log.log_files import LogFiles
from tidegate.connectors.delta.log.table_state import state_of
from tidegate.connectors.delta.source.column_values import conformed
from tidegate.connectors.delta.source.file_rows import opened_file
from tidegate.connectors.files.sink.hive_partitions import partition_text
from tidegate.connectors.upserts.key_set import KeySet, has_plain_order, ordered
from tidegate.errors import SinkConflictError

if TYPE_CHECKING:
    from deltalake import DeltaTable

BATCH_ROWS = 131_072
"""Rows of a file that are rewritten at a time."""


@dataclass(frozen=True)
class TableFile:
    """A data file in one version of the table.

    Attributes:
        path: as the log has it, decoded: relative to the table's folder, or absolute.
        partition: values of the partition columns by name, with the types of the table.
        bounds: key column -> smallest and largest value, as far as its statistics state them.
    """

    path: str
    size_bytes: int
    partition: Mapping[str, pa.Scalar]
    bounds: Mapping[str, tuple[Any, Any]]

    @property
    def partition_texts(self) -> dict[str, str | None]:
        """The partition as the log has it."""
        return {name: partition_text(value) for name, value in self.partition.items()}


class KeyedFiles:
    """Search for keys in the files of a table. Remembers results, because files never change. May block.

    Args:
        log: for the places of files.
        partition_by: partition columns.
        keys: the keys to find.
        where: the sink and transaction, for messages.

    Attributes:
        rows: columns of the table, in the order of the records, with the table's types.
    """

    def __init__(self, log: LogFiles, rows: pa.Schema, partition_by: Sequence[str], keys: KeySet, where: str) -> None:
        self._log = log
        self.rows = rows
        self._in_files = [field for field in rows if field.name not in partition_by]
        self._keys = keys
        self._where = where
        self._known: dict[str, bool] = {}

    def affected(self, table: DeltaTable) -> list[TableFile]:
        """Return the files of this version that hold one of the keys, in order of their paths.

        Raises:
            SinkConflictError: such a file has a deletion vector, or is missing.
        """
        found = [file for file in self._candidates(table) if self._has_key(file)]
        self._refuse_vectors(table, found)
        return sorted(found, key=lambda file: file.path)

    def _candidates(self, table: DeltaTable) -> Iterator[TableFile]:
        """Yield the files that may hold a key, by their statistics and partitions."""
        actions = pa.table(table.get_add_actions(flatten=True))
        there = set(actions.column_names)
        columns = [name for name in self._keys.names if has_plain_order(self.rows.field(name).type)]
        bounds: dict[str, tuple[Any, Any]] = {}
        for name in columns:
            # A column of a partition has no statistics; its value is both bounds.
            is_partition = f"partition.{name}" in there
            ends = (f"partition.{name}",) * 2 if is_partition else (f"min.{name}", f"max.{name}")
            # A name with a dot cannot be distinguished from a field of a structure.
            if there.issuperset(ends) and (is_partition or "." not in name):
                bounds[name] = tuple(ordered(actions[end]).to_pylist() for end in ends)
        parts = [(name.removeprefix("partition."), actions[name]) for name in there if name.startswith("partition.")]
        for n, (path, size) in enumerate(
            zip(actions["path"].to_pylist(), actions["size_bytes"].to_pylist(), strict=True)
        ):
            ends_of = {name: (low[n], high[n]) for name, (low, high) in bounds.items()}
            known = {name: (low, high) for name, (low, high) in ends_of.items() if low is not None and high is not None}
            if self._keys.may_be_within(known):
                partition = {name: values[n].cast(self.rows.field(name).type) for name, values in parts}
                yield TableFile(unquote(path), size, partition, known)

    def _has_key(self, file: TableFile) -> bool:
        if file.path not in self._known:
            names = [field.name for field in self._in_files if field.name in self._keys.names]
            self._known[file.path] = any(self._holds(file, batch).any() for batch in self._read(file, names))
        return self._known[file.path]

    def _holds(self, file: TableFile, batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
        columns = []
        for name in self._keys.names:
            if name in batch.schema.names:
                columns.append(batch.column(name))
            else:
                columns.append(pa.repeat(file.partition[name], batch.num_rows))
        return self._keys.holds(columns)

    def staying(self, file: TableFile) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file without the keys, with all columns of the table."""
        for batch in self._read(file, [field.name for field in self._in_files]):
            stays = ~self._holds(file, batch)
            if not stays.any():
                continue
            # `take`, because Arrow cannot filter all types that files have.
            kept = batch if stays.all() else batch.take(pa.array(np.flatnonzero(stays)))
            values = [
                kept.column(field.name)
                if field.name in kept.schema.names
                else pa.repeat(file.partition[field.name], kept.num_rows)
                for field in self.rows
            ]
            yield pa.RecordBatch.from_arrays(values, schema=self.rows)

    def _read(self, file: TableFile, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield columns of a file with the table's types; a column that the file lacks is null.

        Without names, yield one row without columns: all rows of the file have the same key.
        """
        filesystem, path = self._log.locate(file.path)
        schema = pa.schema([self.rows.field(name) for name in names])
        try:
            with opened_file(filesystem, path) as found:
                if not names:
                    yield pa.RecordBatch.from_arrays([pa.nulls(1)], names=[""])
                    return
                there = [name for name in names if name in found.schema_arrow.names]
                for batch in found.iter_batches(BATCH_ROWS, columns=there):
                    arrays = [
                        conformed(batch.column(field.name), field.type)
                        if field.name in there
                        else pa.nulls(batch.num_rows, field.type)
                        for field in schema
                    ]
                    yield pa.RecordBatch.from_arrays(arrays, schema=schema)
        except FileNotFoundError as e:
            raise SinkConflictError(
                "a data file of the Delta table is missing, so its rows cannot be replaced",
                where=f"{self._where}, {file.path}",
                cause="another program has removed it, although the table still needs it",
                remedy="Restore the file from a backup, or remove it from the table (FSCK REPAIR TABLE in Spark)",
            ) from e

    def _refuse_vectors(self, table: DeltaTable, found: Sequence[TableFile]) -> None:
        features = table.protocol().writer_features or []
        if not found or "deletionVectors" not in features:
            return
        paths = {file.path for file in found}
        state = state_of(self._log, table.version())
        for file in state.data_files():
            if file.vector is not None and file.path in paths:
                raise SinkConflictError(
                    "a data file of the Delta table has a deletion vector, so its rows cannot be replaced",
                    where=f"{self._where}, {file.path}",
                    cause="the entry that removes a file must name its vector, for which delta-rs has no field",
                    remedy="Run REORG TABLE ... APPLY (PURGE) in Spark, and set delta.enableDeletionVectors=false",
                )
