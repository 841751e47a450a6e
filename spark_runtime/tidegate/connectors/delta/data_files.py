"""Data files of a Delta table, and their entries in its log."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime
from typing import IO, Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from tidegate.connectors.files.sink.encoded_file import EncodedFile
from tidegate.connectors.files.sink.hive_partitions import NULL_FOLDER, cut_name
from tidegate.connectors.files.sink.parquet_encoding import ParquetEncoding

MAX_BOUND_CHARACTERS = 32
"""Most characters of a string's smallest and largest value in the statistics; longer values are left out."""


class DataFile(EncodedFile):
    """A Parquet file of one partition, without the partition columns.

    Args:
        partition: the partition's values by column, as the log writes them.
    """

    def __init__(self, path: str, name: str, schema: pa.Schema, partition: Mapping[str, str | None]) -> None:
        super().__init__(path, name, schema, ParquetEncoding())
        self._columns = schema
        self._partition = dict(partition)

    def entry(self) -> dict[str, Any]:
        """Return the fields of the log's add action, and the folder of the file."""
        status = os.stat(self.path)
        return {
            **super().entry(),
            "folder": "".join(f"{_folder(name, value)}/" for name, value in self._partition.items()),
            "partition": self._partition,
            "bytes": status.st_size,
            "modified_ms": int(status.st_mtime * 1000),
            "stats": statistics(self.path, self._columns),
        }


def _folder(name: str, value: str | None) -> str:
    """Return the folder's name. It serves people, and stores that spread load by prefix; the log holds the value."""
    return cut_name(f"{quote(name, safe='')}={NULL_FOLDER if value is None else quote(value, safe='')}")


def statistics(source: str | IO[bytes], schema: pa.Schema) -> str:
    """Return the add action's statistics, from the footer of a file: its path, or the open file.

    They hold the number of rows; for plain columns the nulls; for integers, dates, timestamps and short strings the
    bounds. Readers skip files by them, so misleading bounds are left out (floats: NaN).
    """
    footer = pq.read_metadata(source)
    nulls: dict[str, int] = {}
    smallest: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    for index in range(footer.num_columns):
        name = footer.schema.column(index).path
        # A path with a dot is a leaf of a nested column, or cannot be distinguished from one.
        if name not in schema.names or "." in name:
            continue
        found = [footer.row_group(group).column(index).statistics for group in range(footer.num_row_groups)]
        if not all(part is not None and part.has_null_count for part in found):
            continue
        nulls[name] = sum(part.null_count for part in found)
        bounded = [part for part in found if part.has_min_max]
        complete = all(part.has_min_max or part.num_values == 0 for part in found)
        if bounded and complete and _has_bounds(schema.field(name).type):
            # Parquet can hold years that Python's calendar lacks.
            with suppress(ValueError, OverflowError):
                low, high = min(part.min for part in bounded), max(part.max for part in bounded)
                _put(smallest, name, low)
                _put(largest, name, high)
    made = {"numRecords": footer.num_rows, "minValues": smallest, "maxValues": largest, "nullCount": nulls}
    return json.dumps(made, sort_keys=True)


def _has_bounds(kind: pa.DataType) -> bool:
    return pt.is_signed_integer(kind) or pt.is_date32(kind) or pt.is_timestamp(kind) or pt.is_string(kind)


def _put(bounds: dict[str, Any], name: str, value: Any) -> None:
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        bounds[name] = text if value.tzinfo is None else f"{text}Z"
    elif isinstance(value, date):
        bounds[name] = value.isoformat()
    elif not isinstance(value, str) or len(value) <= MAX_BOUND_CHARACTERS:
        bounds[name] = value
