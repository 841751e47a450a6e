"""Data files of an Iceberg table: Parquet files that a sink writes, and their description as JSON.

The description holds everything that a manifest says of a file, so that a commit reads no file again.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.connectors.files.sink.encoded_file import EncodedFile
from tidegate.connectors.files.sink.parquet_encoding import ROW_GROUP_BYTES, ROW_GROUP_ROWS
from tidegate.connectors.iceberg.table_partitions import PartitionKey, partition_record

if TYPE_CHECKING:
    from pyiceberg.io.fileformat import DataFileStatistics, FileFormatWriter
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata

_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")


@dataclass(frozen=True)
class IcebergEncoding:
    """Parquet as the properties of a table demand: compression, page sizes, metrics; with field ids.

    Attributes:
        table: schema of the files, in Iceberg's form.
        properties: properties of the table.
        sort_by: (column, "ascending" or "descending"): the rows of each row group are sorted so.
    """

    table: Schema
    properties: Mapping[str, str]
    sort_by: tuple[tuple[str, str], ...] = ()
    suffix = ".parquet"
    group_rows = ROW_GROUP_ROWS
    group_bytes = ROW_GROUP_BYTES

    def open(self, path: str, schema: pa.Schema) -> OpenIcebergParquet:
        """Begin a file."""
        return OpenIcebergParquet(path, self)


class OpenIcebergParquet:
    """A Parquet file being written by pyiceberg, which collects the metrics of its columns."""

    def __init__(self, path: str, encoding: IcebergEncoding) -> None:
        from pyiceberg.io.fileformat import FileFormatFactory
        from pyiceberg.io.pyarrow import PyArrowFileIO
        from pyiceberg.manifest import FileFormat

        self._path = path
        self._sort_by = list(encoding.sort_by)
        output = PyArrowFileIO().new_output(path)
        self._writer: FileFormatWriter = FileFormatFactory.get(FileFormat.PARQUET).create_writer(
            output, encoding.table, dict(encoding.properties)
        )
        self._statistics: DataFileStatistics | None = None

    def write(self, table: pa.Table) -> None:
        """Write one or more row groups."""
        self._writer.write(table.sort_by(self._sort_by) if self._sort_by else table)

    def size_bytes(self) -> int:
        """Return the size of the row groups."""
        return os.stat(self._path).st_size if os.path.exists(self._path) else 0

    def close(self) -> None:
        """Write the footer; may be called again."""
        if self._statistics is None:
            self._statistics = self._writer.close()

    def metrics(self) -> dict[str, Any]:
        """Return the metrics of the closed file as JSON holds them."""
        assert self._statistics is not None, "the file is open"
        found = self._statistics.to_serialized_dict()
        return {
            "split_offsets": found["split_offsets"],
            **{name: {str(column): n for column, n in found[name].items()} for name in _COUNTS},
            **{
                name: {str(column): base64.b64encode(bound).decode() for column, bound in found[name].items()}
                for name in _BOUNDS
            },
        }


class IcebergFile(EncodedFile):
    """A data file of one partition.

    Args:
        partition: the partition, see `PartitionKey`.
        spec_id: the partition spec that it belongs to.
    """

    def __init__(
        self, path: str, name: str, schema: pa.Schema, encoding: IcebergEncoding, partition: PartitionKey, spec_id: int
    ) -> None:
        super().__init__(path, name, schema, encoding)
        assert isinstance(self._open, OpenIcebergParquet)
        self._parquet = self._open
        self._partition = partition
        self._spec_id = spec_id

    def entry(self) -> dict[str, Any]:
        """Return the file's entry in the transaction's handle."""
        described = {"spec_id": self._spec_id, "key": list(self._partition), "metrics": self._parquet.metrics()}
        return {**super().entry(), **described}


def data_file(entry: Mapping[str, Any], table: TableMetadata) -> DataFile:
    """Return the file of a handle's entry as manifests hold it, at its place in the table (`target`)."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat

    metrics = entry["metrics"]
    columns: dict[str, Any] = {
        **{name: {int(column): n for column, n in metrics[name].items()} for name in _COUNTS},
        **{name: {int(column): base64.b64decode(text) for column, text in metrics[name].items()} for name in _BOUNDS},
    }
    made = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=entry["target"],
        file_format=FileFormat.PARQUET,
        partition=partition_record(entry["key"], table.specs()[entry["spec_id"]], table.schema()),
        record_count=entry["rows"],
        file_size_in_bytes=entry["bytes"],
        split_offsets=metrics["split_offsets"],
        # Rows are sorted within row groups only, and so the file as a whole has no sort order.
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **columns,
    )
    made.spec_id = entry["spec_id"]
    return made


def data_location(table: TableMetadata, name: str, key: Sequence[str | None], spec_id: int) -> str:
    """Return the place of a data file, as the table's properties demand."""
    from pyiceberg.partitioning import PartitionKey as LocationKey
    from pyiceberg.table.locations import load_location_provider

    provider = load_location_provider(table.location, table.properties)
    if not key:
        return provider.new_data_location(name)
    spec, schema = table.specs()[spec_id], table.schema()
    place = LocationKey([], spec, schema)
    # pyiceberg computes it from values of the columns, which a pre-commit no longer has.
    place.__dict__["partition"] = partition_record(key, spec, schema)
    return provider.new_data_location(name, place)


def file_sort(table: TableMetadata) -> tuple[tuple[str, str], ...]:
    """Return the table's sort order for `IcebergEncoding`; empty if it has transforms or nested columns.

    Nulls are always last within a row group, whatever the order says.
    """
    from pyiceberg.schema import sanitize_column_names

    order = table.sort_order_by_id(table.default_sort_order_id)
    columns = sanitize_column_names(table.schema()).columns
    names = {column.field_id: column.name for column in columns if column.field_type.is_primitive}
    if order is None or any(str(f.transform) != "identity" or f.source_id not in names for f in order.fields):
        return ()
    directions = {"asc": "ascending", "desc": "descending"}
    return tuple((names[f.source_id], directions[f.direction.value]) for f in order.fields)
