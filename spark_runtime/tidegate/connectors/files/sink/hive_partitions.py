"""Records by partition: a batch taken apart by the values of columns, and the folders that stand for those values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from tidegate.errors import DataError, OptionError, PipelineError

PartitionValues = tuple[str | None, ...]
"""Values of the partition columns as texts, in the order of the columns."""

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
MAX_NAME_BYTES = 255
"""Of a folder on the usual file systems."""

_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(1, 32)}
"""What Hive and Spark escape. They leave blanks and other alphabets as they are, and would misread those escaped."""


def partition_columns(given: str | Sequence[str], where: str) -> tuple[str, ...]:
    """The user's `partition_by`, one name or several. Raises OptionError when one comes twice."""
    columns = (given,) if isinstance(given, str) else tuple(given)
    if len(set(columns)) < len(columns):
        raise OptionError("a column is named twice", where=where, cause=f"{columns}", remedy="Name it once")
    return columns


def check_partition_columns(schema: pa.Schema, columns: Sequence[str], url: str) -> None:
    """Whether records can be kept in folders by `columns`.

    Raises:
        PipelineError: a column is missing, has no usable type, its folders would be hidden, or no column is left.
    """
    for name in columns:
        if name not in schema.names:
            raise PipelineError(
                f"There is no column {name!r} to partition by",
                where=url,
                cause=f"the columns are {', '.join(schema.names)}",
                remedy="Check partition_by=",
            )
        kind = schema.field(name).type
        if not is_partition_type(kind):
            raise PipelineError(
                f"Column {name!r} of type {kind} cannot be partitioned by",
                where=url,
                cause="folder names hold strings, integers, booleans and dates",
                remedy="Add such a column with with_columns(), or leave it out of partition_by=",
            )
        if name.startswith(("_", ".")):
            raise PipelineError(
                f"Column {name!r} cannot be partitioned by",
                where=url,
                cause="readers pass over folders whose names begin with _ or .",
                remedy="Rename it with select()",
            )
    if columns and len(columns) == len(schema.names):
        raise PipelineError(
            "All columns are partition columns", where=url, remedy="Leave at least one out of partition_by="
        )


def is_partition_type(kind: pa.DataType) -> bool:
    """Whether values of this type may be in folder names."""
    if pt.is_dictionary(kind):
        return is_partition_type(kind.value_type)
    text = pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind)
    return text or pt.is_integer(kind) or pt.is_boolean(kind) or pt.is_date(kind)


def by_partition(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """The batch's rows by the values of `columns`, in their order within each partition; without those columns. An
    empty string counts as null, so that a partition may come twice."""
    if not columns:
        yield (), batch
        return
    rest = batch.drop_columns(list(columns))
    codes = np.zeros(batch.num_rows, np.int64)
    for name in columns:
        column = batch.column(name)
        plain = column.dictionary_decode() if pt.is_dictionary(column.type) else column
        encoded = plain.dictionary_encode(null_encoding="encode")
        codes = codes * (len(encoded.dictionary) + 1) + encoded.indices.to_numpy(zero_copy_only=False)
        # Dense again, so that no number of columns overflows.
        codes = np.unique(codes, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        values = tuple(_text(batch.column(name)[int(rows[0])].as_py()) for name in columns)
        yield values, rest if len(rows) == batch.num_rows else rest.take(pa.array(rows))


def _text(value: Any) -> str | None:
    """A value as a text. An empty string and null are the same, in folder names as in Delta's log."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, date) else str(value)


def hive_folder(columns: Sequence[str], values: PartitionValues) -> str:
    """Folder of a partition, with a slash behind it: `day=2026-11-21/shop=7/`; empty without columns. Readers find the
    values in it.

    Raises:
        DataError: a value is too long for a folder's name.
    """
    return "".join(f"{_hive_name(name, value)}/" for name, value in zip(columns, values, strict=True))


def _hive_name(column: str, value: str | None) -> str:
    name = f"{_escaped(column)}={NULL_FOLDER if value is None else _escaped(value)}"
    if len(name.encode()) > MAX_NAME_BYTES:
        raise DataError(
            f"A value of partition column {column!r} is too long for a folder's name",
            where=f"{name[:80]}...",
            cause=f"{len(name.encode()):,} bytes; {MAX_NAME_BYTES} are possible",
            remedy="Partition by a shorter column",
        )
    return name


def _escaped(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)
