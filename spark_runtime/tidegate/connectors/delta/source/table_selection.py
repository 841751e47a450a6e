"""The part of a Delta table that a source reads: version, columns, partitions, and the columns that it adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa

from tidegate.change_rows import change_kind_field
from tidegate.connectors.delta.log.log_files import LogFiles, LogListing
from tidegate.connectors.delta.log.table_metadata import Names, TableMetadata
from tidegate.connectors.delta.log.table_state import DataFile, TableState, state_of, version_at
from tidegate.connectors.delta.source.column_values import partition_scalar
from tidegate.errors import PipelineError

COMMIT_FIELDS = (
    pa.field("commit_version", pa.int64(), False),
    pa.field("commit_time", pa.timestamp("us", "UTC"), False),
)
"""Columns that `commit_columns` adds: the version that a row belongs to, and when it was committed."""


@dataclass(frozen=True)
class TableSelection:
    """The part of a table that a source reads. No I/O in the constructor.

    Attributes:
        url: the table's folder.
        storage_options: fsspec options.
        version: a version; None: see `moment`.
        moment: the version that was the newest at this time, with a time zone; None: the newest one.
        columns: names, in this order; (): all.
        partitions: partition column -> values that are read; without a column, all its values.
        changes: emit change rows.
        commit_columns: add `COMMIT_FIELDS`.
    """

    url: str
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    version: int | None = None
    moment: datetime | None = None
    columns: tuple[str, ...] = ()
    partitions: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    changes: bool = False
    commit_columns: bool = False

    def log(self) -> LogFiles:
        """Return the table's log."""
        return LogFiles(self.url, self.storage_options)

    def start(self, log: LogFiles, *, files: bool, listing: LogListing | None = None) -> TableState:
        """Return the version to read. Raises PipelineError if it does not exist, or cannot be read."""
        version = version_at(log, self.moment) if self.moment is not None else self.version
        state = state_of(log, version, files=files, listing=listing)
        self.check(state.metadata, f"{self.url}, version {state.version}")
        return state

    def check(self, metadata: TableMetadata, where: str) -> None:
        """Check that a version can be read. Raises PipelineError with the reason."""
        metadata.check_readable(where)
        if self.changes and not metadata.writes_changes:
            raise PipelineError(
                "the Delta table does not record changes of its rows",
                where=where,
                cause="changes=True needs the table's property delta.enableChangeDataFeed",
                remedy="Set the property with ALTER TABLE, and start at a version after it; or leave out changes=",
            )
        for name in self.partitions:
            if name not in metadata.partition_columns:
                raise PipelineError(
                    f"the Delta table has no partition column {name!r}",
                    where=where,
                    cause=f"its partition columns are {list(metadata.partition_columns)}",
                    remedy="Name partition columns in partitions=, and filter by other columns with filter()",
                )

    def records(self, table: pa.Schema, unknown: Mapping[str, str]) -> pa.Schema:
        """Return the schema of the records.

        Args:
            table: the table's columns.
            unknown: its columns with types that this source lacks.

        Raises:
            PipelineError: a column does not exist, has an unknown type, or has the name of an added column.
        """
        if not self.columns and unknown:
            name, kind = next(iter(unknown.items()))
            raise self._lacks(f"column {name!r} of the Delta table has the type {kind}, which this source lacks", table)
        for name in self.columns:
            if name in unknown:
                raise self._lacks(f"column {name!r} has the type {unknown[name]}, which this source lacks", table)
            if name not in table.names:
                raise self._lacks(f"the Delta table has no column {name!r}", table)
        chosen = [table.field(name) for name in self.columns or table.names]
        added = [change_kind_field(old_columns="all")] if self.changes else []
        added += COMMIT_FIELDS if self.commit_columns else []
        for one in added:
            if one.name in table.names:
                raise PipelineError(
                    f"the source adds a column {one.name!r}, and the Delta table has a column of this name",
                    where=self.url,
                    remedy="Rename the column of the table, or leave out commit_columns=",
                )
        return pa.schema([*chosen, *added])

    def _lacks(self, what: str, table: pa.Schema) -> PipelineError:
        cause = f"columns that can be read: {', '.join(table.names)}"
        return PipelineError(what, where=self.url, cause=cause, remedy="Name columns to read with columns=")

    def filter(self, metadata: TableMetadata) -> PartitionFilter:
        """Return which files of a version are read."""
        return PartitionFilter(self, metadata.schema, metadata.names)


class PartitionFilter:
    """Which data files are read, by the values of their partition columns."""

    def __init__(self, selection: TableSelection, table: pa.Schema, names: Names | None) -> None:
        self._where = selection.url
        self._wanted: dict[str, tuple[pa.DataType, str, set[Any]]] = {}
        for column, values in selection.partitions.items():
            kind = table.field(column).type
            wanted = {self._wanted_value(value, kind, column) for value in values}
            self._wanted[column] = (kind, column if names is None else names[column][0], wanted)

    def _wanted_value(self, value: Any, kind: pa.DataType, column: str) -> Any:
        if isinstance(value, str):
            return partition_scalar(value, kind, column, f"{self._where}, partitions=").as_py()
        try:
            return pa.scalar(value, kind).as_py()
        except pa.ArrowException as e:
            raise PipelineError(
                f"partitions= has the value {value!r} for column {column!r}",
                where=self._where,
                cause=f"the column has the type {kind}; {e}",
                remedy="Pass values of the column's type, or texts",
            ) from e

    def has(self, file: DataFile) -> bool:
        """Return whether the file is read."""
        for column, (kind, name, wanted) in self._wanted.items():
            value = partition_scalar(file.partition.get(name), kind, column, f"{self._where}, {file.path}")
            if value.as_py() not in wanted:
                return False
        return True

    def of(self, files: Iterable[DataFile]) -> Iterable[DataFile]:
        """Return the files that are read, in their order."""
        return filter(self.has, files) if self._wanted else files


def schema_problem(job: pa.Schema, table: TableMetadata, *, refuse_new: bool) -> str | None:
    """Return why a version's columns do not fit the job's; None: they fit.

    Args:
        job: columns of the table that the job reads, as they were when it was first built (S5.5).
        refuse_new: columns that the table has got since are a problem.
    """
    there = table.schema
    for field_ in job:
        if field_.name not in there.names:
            return f"column {field_.name!r} is removed or renamed"
        now = there.field(field_.name)
        if now.type != field_.type:
            return f"column {field_.name!r} has the type {now.type}, and had the type {field_.type}"
        if now.nullable and not field_.nullable:
            return f"column {field_.name!r} may be null now"
    if refuse_new:
        new: Sequence[str] = [f["name"] for f in table.fields if f["name"] not in job.names]
        if new:
            return f"columns were added: {', '.join(new)}"
    return None
