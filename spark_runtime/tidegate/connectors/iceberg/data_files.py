"""Data files of an Iceberg table: Parquet files that a sink writes, and their description as JSON.

The description holds everything that a manifest says of a file, so that a commit reads no file again.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.connectors.files.sink.encoded_file import EncodedFile
from tidegate.connectors.files.sink.hive_partitions import cut_name
from tidegate.connectors.files.sink.parquet_encoding import ROW_GROUP_BYTES, ROW_GROUP_ROWS
from tidegate.connectors.iceberg.table_partitions import PartitionKey, partition_record
from tidegate.errors import DataError

if TYPE_CHECKING:
    from pyiceberg.io.fileformat import DataFileStatistics, FileFormatWriter
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.typedef import Record

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
        self._encoding = encoding
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
            try:
                self._statistics = self._writer.close()
            except OverflowError:  # after the file was closed, in a bound that is no date of Python
                self._statistics = _statistics_without_far_dates(self._path, self._encoding)

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


def _statistics_without_far_dates(path: str, encoding: IcebergEncoding) -> DataFileStatistics:
    """Return the metrics of a file without bounds of columns with dates or times outside years 1 to 9999.

    pyiceberg has no metrics of such columns. Readers do not skip files by a column without bounds.
    """
    from pyiceberg.io.pyarrow import (
        MetricModeTypes,
        MetricsMode,
        compute_statistics_plan,
        data_file_statistics_from_parquet_metadata,
        parquet_path_to_id_mapping,
    )

    footer = pq.read_metadata(path)
    ids = parquet_path_to_id_mapping(encoding.table)
    plan = compute_statistics_plan(encoding.table, dict(encoding.properties))
    for group in range(footer.num_row_groups):
        for index in range(footer.num_columns):
            column = footer.row_group(group).column(index)
            field_id = ids[column.path_in_schema]
            if not _has_bounds_of_python(column.statistics) and plan[field_id].mode.type != MetricModeTypes.NONE:
                plan[field_id] = replace(plan[field_id], mode=MetricsMode(MetricModeTypes.COUNTS))
    return data_file_statistics_from_parquet_metadata(footer, plan, ids)


def _has_bounds_of_python(found: Any) -> bool:
    try:
        return found is None or (found.min, found.max) is not None
    except OverflowError:
        return False


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
    """Return the place of a data file, as the table's properties demand.

    Raises:
        DataError: the partition has a date or time that pyiceberg cannot commit.
    """
    from pyiceberg.partitioning import PartitionKey as LocationKey
    from pyiceberg.table.locations import load_location_provider

    provider = load_location_provider(table.location, table.properties)
    if not key:
        return provider.new_data_location(name)
    spec, schema = table.specs()[spec_id], table.schema()
    place = LocationKey([], spec, schema)
    path = _partition_path(partition_record(key, spec, schema), spec, schema, table.location)
    # pyiceberg computes it from values of the columns, which a pre-commit no longer has.
    place.__dict__["to_path"] = lambda: path
    return provider.new_data_location(name, place)


def _partition_path(partition: Record, spec: PartitionSpec, schema: Schema, where: str) -> str:
    """Return the folders of a partition. They serve people, and stores that spread load; manifests hold the values."""
    names = []
    for n, (field, kind) in enumerate(zip(spec.fields, spec.partition_type(schema).fields, strict=True)):
        try:
            text = field.transform.to_human_string(kind.field_type, value=partition[n])
        except OverflowError as e:
            raise DataError(
                f"a row has a date or time outside years 1 to 9999 in partition {field.name!r}",
                where=f"Iceberg table at {where}",
                cause="pyiceberg cannot commit such a partition",
                remedy="Filter these rows, or partition the table by other columns",
            ) from e
        names.append(cut_name(f"{quote_plus(field.name, safe='')}={quote_plus(text, safe='')}"))
    return "/".join(names)


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
