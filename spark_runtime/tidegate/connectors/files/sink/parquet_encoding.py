"""Parquet as a file sink's encoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 32 * 2**20
SAMPLE_ROWS = 1_024
"""Number of a file's first rows that decide which columns a dictionary would shrink."""
REPEATED = 0.01
"""Share of repeated values in the sample below which a column has no dictionary."""

_AT = np.random.default_rng(0).random(SAMPLE_ROWS)
_JUDGED = (
    pt.is_integer,
    pt.is_floating,
    pt.is_temporal,
    pt.is_string,
    pt.is_large_string,
    pt.is_binary,
    pt.is_large_binary,
)
"""Types of columns that may have no dictionary."""


@dataclass(frozen=True)
class ParquetEncoding:
    """Encoding as Parquet files with row groups of at most `ROW_GROUP_ROWS` rows."""

    suffix = ".parquet"
    group_rows = ROW_GROUP_ROWS
    group_bytes = ROW_GROUP_BYTES

    def open(self, path: str, schema: pa.Schema) -> OpenParquet:
        """Begin a file."""
        return OpenParquet(path, schema)


class OpenParquet:
    """A Parquet file without a footer yet. Its first rows decide which columns have dictionaries."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._file = pa.OSFile(path, "wb")
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None

    def write(self, table: pa.Table) -> None:
        """Write one or more row groups."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, self._schema, use_dictionary=dictionary_columns(table))
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)

    def size_bytes(self) -> int:
        """Return the size of the row groups."""
        return int(self._file.tell())

    def close(self) -> None:
        """Write the footer; may be called again."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, self._schema)
        self._writer.close()
        self._file.close()


def extend_parquet(old: str, staged: str, new: str) -> None:
    """Write a Parquet file that begins with all bytes of `old`, and also has the rows of `staged`.

    The row groups of `staged` follow the old footer, and a new footer names all row groups. Readers skip what no footer
    names.
    """
    metadata = pq.read_metadata(old)
    with pq.ParquetFile(staged) as added, pa.OSFile(new, "wb") as file:
        schema = added.schema_arrow
        batches = [added.read_row_group(n) for n in range(added.num_row_groups)]
        columns = dictionary_columns(batches[0]) if batches else True
        writer = pq.ParquetWriter(file, schema, use_dictionary=columns)
        # The writer has begun with the four bytes with which every Parquet file begins.
        begin = file.tell()
        with open(old, "rb") as source:
            source.seek(begin)
            while block := source.read(2**20):
                file.write(block)
        for table in batches:
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        writer.close()
    # The writer's own footer names the new row groups only, with their places in the file.
    metadata.append_row_groups(pq.read_metadata(new))
    footer = pa.BufferOutputStream()
    metadata.write_metadata_file(footer)
    with open(new, "ab") as end:
        end.write(footer.getvalue().to_pybytes()[begin:])


def dictionary_columns(table: pa.Table) -> bool | Sequence[str]:
    """Return the columns to write with a dictionary, in the form of ParquetWriter's `use_dictionary`.

    A dictionary makes a column larger, and doubles its encoding time, if almost all its values differ; such columns
    have none. Nested columns always have one, because each of their leaves would have to be named.
    """
    if table.num_rows == 0 or any(pt.is_nested(field.type) for field in table.schema):
        return True
    rows = _sample(table.num_rows)
    return [name for name, column in zip(table.column_names, table.columns, strict=True) if _repeats(column, rows)]


def _sample(rows: int) -> pa.Array:
    """Return the row numbers of a sample: about `SAMPLE_ROWS` at random, the same at every call.

    A random sample finds values that repeat at once and values that repeat at any distance.
    """
    if rows <= SAMPLE_ROWS:
        return pa.array(np.arange(rows))
    # A row that is sampled twice would count as a repeated value.
    return pa.array(np.unique((_AT * rows).astype(np.int64)))


def _repeats(column: pa.ChunkedArray, rows: pa.Array) -> bool:
    """Return whether enough of the values at `rows` are repeated. Nulls need no dictionary."""
    if not any(is_judged(column.type) for is_judged in _JUDGED):
        return True
    sample = column.take(rows)
    values = len(sample) - sample.null_count
    return values - pc.count_distinct(sample, mode="only_valid").as_py() >= REPEATED * values
