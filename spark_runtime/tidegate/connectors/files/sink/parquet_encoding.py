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
"""By so many of the rows that a file begins with it is judged which columns a dictionary would shrink."""
REPEATED = 0.01
"""Share of a sample's values that are there again, below which the column has no dictionary."""

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
"""Types of columns that may go without a dictionary."""


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
    """A Parquet file that has no footer yet. Its first rows decide which columns have dictionaries."""

    def __init__(self, path: str, schema: pa.Schema) -> None:
        self._file = pa.OSFile(path, "wb")
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None

    def write(self, table: pa.Table) -> None:
        """One row group, or several."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, self._schema, use_dictionary=dictionary_columns(table))
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)

    def size_bytes(self) -> int:
        """Of the row groups."""
        return int(self._file.tell())

    def close(self) -> None:
        """Write the footer; may be called again."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, self._schema)
        self._writer.close()
        self._file.close()


def dictionary_columns(table: pa.Table) -> bool | Sequence[str]:
    """The columns to write with a dictionary, as ParquetWriter takes them: all but those whose values are as good as
    all different, which a dictionary makes larger and which take twice as long to encode with one. Nested columns have
    one: each of their leaves would have to be named."""
    if table.num_rows == 0 or any(pt.is_nested(field.type) for field in table.schema):
        return True
    rows = _sample(table.num_rows)
    return [name for name, column in zip(table.column_names, table.columns, strict=True) if _repeats(column, rows)]


def _sample(rows: int) -> pa.Array:
    """Numbers of rows to look at: of many some `SAMPLE_ROWS` at random, since values come again right behind, or at any
    distance; the same at every call."""
    if rows <= SAMPLE_ROWS:
        return pa.array(np.arange(rows))
    return pa.array(np.unique((_AT * rows).astype(np.int64)))


def _repeats(column: pa.ChunkedArray, rows: pa.Array) -> bool:
    """Whether enough of the values at `rows` are there more than once. Nulls need no dictionary."""
    if not any(is_judged(column.type) for is_judged in _JUDGED):
        return True
    sample = column.take(rows)
    values = len(sample) - sample.null_count
    return values - pc.count_distinct(sample, mode="only_valid").as_py() >= REPEATED * values
