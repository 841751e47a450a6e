"""Parquet as a file sink's encoding."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 32 * 2**20


@dataclass(frozen=True)
class ParquetEncoding:
    """Parquet files of row groups of at most `ROW_GROUP_ROWS` rows."""

    suffix = ".parquet"
    group_rows = ROW_GROUP_ROWS
    group_bytes = ROW_GROUP_BYTES

    def open(self, path: str, schema: pa.Schema) -> OpenParquet:
        """Begin a file."""
        return OpenParquet(path, schema)


class OpenParquet:
    """A Parquet file that has no footer yet."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._file = pa.OSFile(path, "wb")
        self._writer = pq.ParquetWriter(self._file, schema)

    def write(self, table: pa.Table) -> None:
        """One row group, or several."""
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)

    def size_bytes(self) -> int:
        """Of the row groups."""
        return int(self._file.tell())

    def close(self) -> None:
        """Write the footer; may be called again."""
        self._writer.close()
        self._file.close()
