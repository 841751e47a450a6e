"""Reads of an Iceberg table: which snapshot, columns and rows; data files as splits; the rows of one split."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.connectors.iceberg.catalog import MAIN, IcebergCatalog
from tidegate.connectors.iceberg.data_file_rows import file_batches
from tidegate.connectors.iceberg.table_columns import plain_schema
from tidegate.connectors.iceberg.table_partitions import encode_value, partition_record
from tidegate.connectors.interface import Split
from tidegate.errors import OptionError, PipelineError

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.schema import Schema
    from pyiceberg.table import FileScanTask, Table
    from pyiceberg.table.snapshots import Snapshot

MAX_BATCH_ROWS = 65_536
"""Most rows of a batch: so large are the batches of all sources."""


@dataclass(frozen=True)
class TableSelection:
    """The part of a table that a source reads. No I/O in the constructor.

    Attributes:
        ref: branch or tag.
        snapshot_id: a snapshot; None: the newest of `ref`.
        as_of: the snapshot that was the newest of the table at this time, with a time zone; None: see `snapshot_id`.
        columns: names, in this order; (): all.
        filter: condition in pyiceberg's syntax, such as "n > 5 and name is not null"; "": all rows.
    """

    catalog: IcebergCatalog
    table: str
    ref: str = MAIN
    snapshot_id: int | None = None
    as_of: datetime | None = None
    columns: tuple[str, ...] = ()
    filter: str = ""

    @property
    def where(self) -> str:
        """The table, for messages."""
        return f"{self.catalog.place}, table {self.table}"

    def start(self, table: Table) -> Snapshot | None:
        """Return the snapshot to read; None: the table has none.

        Raises:
            PipelineError: the snapshot, branch or tag does not exist.
        """
        if self.snapshot_id is not None:
            found, what = table.snapshot_by_id(self.snapshot_id), f"snapshot {self.snapshot_id}"
        elif self.as_of is not None:
            found = table.snapshot_as_of_timestamp(int(self.as_of.timestamp() * 1000))
            what = f"a snapshot as of {self.as_of.isoformat()}"
        else:
            found, what = table.snapshot_by_name(self.ref), f"branch or tag {self.ref!r}"
            if found is None and self.ref == MAIN:
                return None
        if found is None:
            raise PipelineError(
                f"the Iceberg table has no {what.removeprefix('a ')}",
                where=self.where,
                cause="it never existed, or is expired",
                remedy="Choose another snapshot; `table.history()` of pyiceberg lists them",
            )
        return found

    def schema(self, table: Table) -> pa.Schema:
        """Return the schema of the records. Raises PipelineError for an unknown column or an unusable filter."""
        from pyiceberg.expressions.visitors import bind
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        schema = self.schema_of(table, self.start(table))
        try:
            bind(table.schema(), self.expression(), case_sensitive=True)
        except (ValueError, TypeError) as e:
            raise PipelineError(
                f"the filter {self.filter!r} does not fit the Iceberg table", where=self.where, cause=str(e)
            ) from e
        found = plain_schema(schema_to_pyarrow(schema, include_field_ids=False))
        return pa.schema([found.field(name) for name in self._names(schema, found.names)])

    def _names(self, schema: Schema, found: Sequence[str]) -> Sequence[str]:
        missing = [name for name in self.columns if name not in found]
        if missing:
            raise PipelineError(
                f"the Iceberg table has no column {missing[0]!r}",
                where=self.where,
                cause=f"its columns are {', '.join(found)}",
                remedy="Name one of these columns",
            )
        return self.columns or found

    def schema_of(self, table: Table, snapshot: Snapshot | None) -> Schema:
        """Return the schema of the table at a snapshot of the past; at the newest one, the schema of today."""
        is_past = self.snapshot_id is not None or self.as_of is not None
        if snapshot is None or not is_past or snapshot.schema_id is None:
            return table.schema()
        return table.schemas()[snapshot.schema_id]

    def expression(self) -> BooleanExpression:
        """Return the filter as pyiceberg has it. Raises OptionError if it cannot be parsed."""
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.expressions.parser import parse

        if not self.filter:
            return AlwaysTrue()
        try:
            return parse(self.filter)
        except Exception as e:  # pyparsing has its own classes
            raise OptionError(
                f"the filter {self.filter!r} cannot be parsed",
                where="IcebergTable(filter=)",
                cause=" ".join(str(e).split()),
                remedy="Write a condition such as \"n > 5 and name = 'x'\"",
            ) from e

    def splits(self, table: Table, snapshot: Snapshot) -> list[Split]:
        """Return a split for each data file of a snapshot, in order of their paths.

        Raises:
            PipelineError: the snapshot has rows deleted in a way that pyiceberg cannot read.
            OutageError: the table's storage does not answer.
        """
        scan = table.scan(row_filter=self.expression(), snapshot_id=snapshot.snapshot_id)
        return self._splits(table, snapshot, scan.plan_files, self.schema_of(table, snapshot))

    def added_splits(self, table: Table, snapshot: Snapshot) -> list[Split]:
        """Return a split for each data file that an append has added, in order of their paths. Raises as `splits`."""
        scan = table.incremental_append_scan(row_filter=self.expression())
        if snapshot.parent_snapshot_id is not None:
            scan = scan.from_snapshot_id_exclusive(snapshot.parent_snapshot_id)
        scan = scan.to_snapshot_id_inclusive(snapshot.snapshot_id)
        return self._splits(table, snapshot, scan.plan_files, table.schema())

    def _splits(self, table: Table, snapshot: Snapshot, plan: Any, schema: Schema) -> list[Split]:
        try:
            with self.catalog.answering("the Iceberg table cannot be read", self.table):
                tasks = list(plan())
        except ValueError as e:
            raise PipelineError(
                f"snapshot {snapshot.snapshot_id} of the Iceberg table cannot be read",
                where=self.where,
                cause=str(e),
                remedy="Rewrite the data files without the deleted rows (rewrite_data_files in Spark)",
            ) from e
        except FileNotFoundError as e:
            raise self._expired(str(e)) from e
        splits = [_split(table, snapshot, task, schema) for task in tasks]
        return sorted(splits, key=lambda split: split.split_id)

    def rows(self, table: Table, split: Split, schema: pa.Schema, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split in batches, in the same order each time.

        Args:
            schema: the records' schema.
            columns: some of its names, in its order.

        Raises:
            PipelineError: a file of the split is missing.
            OutageError: the table's storage does not answer.
        """
        projected = table.schemas()[split.data["schema_id"]].select(*columns)
        target = pa.schema([schema.field(name) for name in columns])
        try:
            with self.catalog.answering("a data file of the Iceberg table cannot be read", self.table):
                for rows in file_batches(table, _task(table, split.data), projected, self.expression()):
                    rows = rows.select(list(columns)).cast(target)
                    for first in range(0, rows.num_rows, MAX_BATCH_ROWS):
                        yield rows.slice(first, MAX_BATCH_ROWS)
        except FileNotFoundError as e:
            raise self._expired(str(e)) from e

    def _expired(self, cause: str) -> PipelineError:
        return PipelineError(
            "a file of the Iceberg table is missing",
            where=self.where,
            cause=f"{cause}; the snapshot that referred to it is probably expired",
            remedy="Start the job fresh; and keep snapshots longer than the job may be late or stopped",
        )


def _split(table: Table, snapshot: Snapshot, task: FileScanTask, schema: Schema) -> Split:
    file, metadata = task.file, table.metadata
    spec = metadata.specs()[file.spec_id]
    kinds = [field.field_type for field in spec.partition_type(metadata.schema()).fields]
    data = {
        "path": file.file_path,
        "format": str(file.file_format.value),
        "bytes": file.file_size_in_bytes,
        "rows": file.record_count,
        "spec_id": file.spec_id,
        # Columns by whose values a table is partitioned may be missing in the files of other programs.
        "key": [encode_value(kind, file.partition[n]) for n, kind in enumerate(kinds)],  # type: ignore[arg-type]
        "deletes": sorted([one.file_path, str(one.file_format.value)] for one in task.delete_files),
        "schema_id": schema.schema_id,
        "snapshot_id": snapshot.snapshot_id,
    }
    return Split(file.file_path, data, weight=max(1, file.file_size_in_bytes))


def _task(table: Table, data: Mapping[str, Any]) -> FileScanTask:
    """Return the scan task of a split. Inverse of `_split`."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.table import FileScanTask

    metadata = table.metadata
    key = partition_record(data["key"], metadata.specs()[data["spec_id"]], metadata.schema())
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=data["path"],
        file_format=FileFormat(data["format"]),
        partition=key,
        record_count=data["rows"],
        file_size_in_bytes=data["bytes"],
    )
    file.spec_id = data["spec_id"]
    deletes = {
        DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=path,
            file_format=FileFormat(kind),
            partition=key,
            record_count=0,
            file_size_in_bytes=0,
        )
        for path, kind in data["deletes"]
    }
    return FileScanTask(file, deletes)


def can_read(table: Table, split: Split) -> bool:
    """Return whether this version of the table has the schema and the partitioning of a split."""
    return split.data["schema_id"] in table.schemas() and split.data["spec_id"] in table.specs()


def files_of(splits: Iterable[Split]) -> Iterator[tuple[str, str]]:
    """Yield split id and path of all files of splits."""
    for split in splits:
        yield split.split_id, split.data["path"]
        yield from ((split.split_id, path) for path, _ in split.data["deletes"])
