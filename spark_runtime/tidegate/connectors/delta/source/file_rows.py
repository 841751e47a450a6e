"""Rows of the data files of a Delta table, as records of a source."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fsspec import AbstractFileSystem

from tidegate.change_rows import DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, change_kind_column
from tidegate.connectors.delta.log.log_files import LogFiles
from tidegate.connectors.delta.log.table_metadata import Names
from tidegate.connectors.delta.log.table_state import DataFile
from tidegate.connectors.delta.source.column_values import conformed, partition_scalar
from tidegate.connectors.delta.source.deletion_vectors import Rows, deleted_rows
from tidegate.connectors.delta.source.table_selection import COMMIT_FIELDS
from tidegate.connectors.storage import is_local
from tidegate.errors import OutageError, PipelineError

MAX_BATCH_ROWS = 65_536
"""Most rows of a batch: so large are the batches of all sources."""
REMOVED, ADDED = "removed", "added"
"""Kinds of a file that says for each row how it was changed: its rows before the change, and its rows after it. They
are read one after the other, because writers store them in any order."""

_CHANGE_TYPE = "_change_type"
_KINDS = {"insert": INSERT, "update_preimage": UPDATE_BEFORE, "update_postimage": UPDATE_AFTER, "delete": DELETE}
_KINDS_READ = {REMOVED: (UPDATE_BEFORE, DELETE), ADDED: (INSERT, UPDATE_AFTER)}


@dataclass(frozen=True)
class FilePart:
    """The rows of a data file that a version adds, removes or changes.

    Attributes:
        version: the version.
        time_ms: time of its commit, milliseconds since the epoch.
        file: the file; rows in its deletion vector are left out.
        kind: kind of change of all rows, or `REMOVED` or `ADDED`.
        only: another deletion vector, with the only rows that are read; None: all rows.
    """

    version: int
    time_ms: int
    file: DataFile
    kind: str = INSERT
    only: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the document for a split, without what is absent."""
        found = {
            "version": self.version,
            "time_ms": self.time_ms,
            "path": self.file.path,
            "bytes": self.file.size_bytes,
            "partition": dict(self.file.partition),
            "vector": self.file.vector and dict(self.file.vector),
            "kind": None if self.kind == INSERT else self.kind,
            "only": self.only and dict(self.only),
        }
        return {name: value for name, value in found.items() if value not in (None, {})}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> FilePart:
        """Inverse of `to_json`."""
        partition, vector = document.get("partition", {}), document.get("vector")
        file = DataFile(document["path"], document.get("bytes", 0), partition, vector)
        return cls(document["version"], document["time_ms"], file, document.get("kind", INSERT), document.get("only"))


class FileRows:
    """Reader of data files.

    Args:
        log: the table's log.
        schema: schema of the batches: columns of the table that are read, and added ones.
        table: names of the columns of the table; the others are added.
    """

    def __init__(self, log: LogFiles, schema: pa.Schema, table: Collection[str]) -> None:
        self._log = log
        self._schema = schema
        self._table = frozenset(table)

    def read(self, part: FilePart, names: Names | None, at: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield batches with rows, and after each the number of the file's rows that have been read.

        Args:
            names: names of the columns in the file; None: the same as in the table.
            at: number of the file's rows to skip.

        Raises:
            PipelineError: the file is missing or damaged, or a value does not fit.
            OutageError: the storage does not answer.
        """
        with self._explained(part):
            vector, only = (self._rows_of(one) for one in (part.file.vector, part.only))
            with opened_file(*self._log.locate(part.file.path)) as file:
                wanted = self._wanted(file, part, names)
                columns = [*wanted.values(), *([_CHANGE_TYPE] if part.kind in _KINDS_READ else [])]
                first, row = _group_of(file, at)
                groups = list(range(first, file.metadata.num_row_groups))
                for batch in file.iter_batches(MAX_BATCH_ROWS, row_groups=groups, columns=columns):
                    begin = row
                    row += batch.num_rows
                    if row <= at:
                        continue
                    kinds = _kinds(batch.column(_CHANGE_TYPE)) if part.kind in _KINDS_READ else None
                    made = self._made(batch, wanted, part, names, kinds)
                    # Filtered last: Arrow cannot filter all types that files have.
                    chosen = _chosen(begin, batch.num_rows, at, vector, only)
                    if kinds is not None:
                        of_part = pc.is_in(kinds, value_set=pa.array(_KINDS_READ[part.kind]))
                        chosen = of_part if chosen is None else pc.and_(chosen, of_part)
                    made = made if chosen is None else made.filter(chosen)
                    if made.num_rows:
                        yield made, row
                if row < at:
                    raise _shorter(self._log, part, row, at)

    def _rows_of(self, vector: Mapping[str, Any] | None) -> Rows | None:
        return None if vector is None else deleted_rows(self._log, vector)

    def _wanted(self, file: pq.ParquetFile, part: FilePart, names: Names | None) -> dict[str, str]:
        """Return the columns to read from the file: name in the table -> name there."""
        there = set(file.schema_arrow.names)
        found = {}
        for field in self._schema:
            if field.name in self._table:
                name = field.name if names is None else names[field.name][0]
                if name in there and name not in part.file.partition:
                    found[field.name] = name
        return found

    def _made(
        self,
        batch: pa.RecordBatch,
        wanted: Mapping[str, str],
        part: FilePart,
        names: Names | None,
        kinds: pa.Array | None,
    ) -> pa.RecordBatch:
        """Return the rows with the schema of the records. Args: kinds: kinds of change; None: all are the part's."""
        rows = batch.num_rows
        arrays = []
        for field in self._schema:
            if field.name not in self._table:
                is_kind = change_kind_column(pa.schema([field])) is not None
                arrays.append(kinds if is_kind and kinds is not None else _added(field, part, rows))
            elif field.name in wanted:
                inside = None if names is None else names[field.name][1]
                arrays.append(conformed(batch.column(wanted[field.name]), field.type, inside))
            else:
                arrays.append(self._absent(field, part, names, rows))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _absent(self, field: pa.Field, part: FilePart, names: Names | None, rows: int) -> pa.Array:
        """Return a column that is not in the file: a partition column, or one that the table got later."""
        name = field.name if names is None else names[field.name][0]
        if name in part.file.partition:
            where = f"{self._log.url}, {part.file.path}"
            return pa.repeat(partition_scalar(part.file.partition[name], field.type, field.name, where), rows)
        if not field.nullable:
            raise pa.ArrowInvalid(f"it has no column {name!r}, which must not be null")
        return pa.nulls(rows, field.type)

    @contextmanager
    def _explained(self, part: FilePart) -> Iterator[None]:
        where = f"{self._log.url}, version {part.version}, {part.file.path}"
        try:
            yield
        except FileNotFoundError as e:
            raise PipelineError(
                "a data file of the Delta table is missing",
                where=where,
                cause="VACUUM has probably removed it, because a later version no longer needs it",
                remedy="Start the job fresh; and keep removed files longer than a job may be late or stopped: set "
                "delta.deletedFileRetentionDuration",
            ) from e
        except pa.ArrowException as e:
            raise PipelineError(
                "a data file of the Delta table cannot be read",
                where=where,
                cause=" ".join(str(e).split()),
                remedy="Check that the file is complete; if it is damaged, restore it from a backup",
            ) from e
        except OSError as e:
            cause = " ".join(str(e).split())
            raise OutageError("a data file of the Delta table cannot be read now", where=where, cause=cause) from e


@contextmanager
def opened_file(filesystem: AbstractFileSystem, path: str) -> Iterator[pq.ParquetFile]:
    """Open a data file. Its timestamps of 96 bits are read as microseconds, as Delta has them."""
    if is_local(filesystem):  # Arrow then reads without the interpreter's lock
        with pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file:
            yield file
        return
    with filesystem.open(path, "rb") as opened, pq.ParquetFile(opened, coerce_int96_timestamp_unit="us") as file:
        yield file


def _group_of(file: pq.ParquetFile, at: int) -> tuple[int, int]:
    """Return the row group in which row `at` is, and the number of its first row."""
    first, row = 0, 0
    while first < file.metadata.num_row_groups and row + file.metadata.row_group(first).num_rows <= at:
        row += file.metadata.row_group(first).num_rows
        first += 1
    return first, row


def _chosen(begin: int, rows: int, at: int, vector: Rows | None, only: Rows | None) -> pa.Array | None:
    """Return which rows of a batch are emitted; None: all."""
    if begin >= at and vector is None and only is None:
        return None
    chosen = np.ones(rows, bool) if only is None else np.zeros(rows, bool)
    if only is not None:
        chosen[_between(only, begin, rows)] = True
    if vector is not None:
        chosen[_between(vector, begin, rows)] = False
    chosen[: max(0, at - begin)] = False
    return pa.array(chosen)


def _between(numbers: Rows, begin: int, rows: int) -> Rows:
    first, last = np.searchsorted(numbers, [begin, begin + rows])
    return numbers[first:last] - begin


def _added(field: pa.Field, part: FilePart, rows: int) -> pa.Array:
    """Return a column that the source adds, with the same value in all rows."""
    values = {COMMIT_FIELDS[0].name: part.version, COMMIT_FIELDS[1].name: part.time_ms * 1_000}
    return pa.repeat(pa.scalar(values.get(field.name, part.kind), field.type), rows)


def _kinds(types: pa.Array) -> pa.Array:
    """Return kinds of change for the names that Delta uses."""
    at = pc.index_in(types.cast(pa.string()), value_set=pa.array(list(_KINDS)))
    if at.null_count:
        unknown = pc.unique(types.filter(at.is_null())).to_pylist()
        raise pa.ArrowInvalid(f"its column {_CHANGE_TYPE} has the unknown values {unknown[:3]}")
    return pa.array(list(_KINDS.values()), pa.string()).take(at)


def _shorter(log: LogFiles, part: FilePart, there: int, read: int) -> PipelineError:
    return PipelineError(
        "a data file of the Delta table has fewer rows than when it was read before",
        where=f"{log.url}, version {part.version}, {part.file.path}",
        cause=f"it has {there:,} rows, and the snapshot has read {read:,}",
        remedy="Put the original file back, or start the job fresh",
    )
