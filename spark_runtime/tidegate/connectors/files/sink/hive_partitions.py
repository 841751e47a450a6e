"""Partitions of records: splitting a batch by the values of columns, and the folder names for these values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from tidegate.errors import DataError, OptionError, PipelineError

PartitionValues = tuple[str | None, ...]
"""Values of the partition columns as texts, in the order of the columns."""

NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
MAX_NAME_BYTES = 255
"""Limit of a folder name on common file systems."""
MAX_FOLDER_CHARACTERS = 100
"""Most characters of the folder name of a partition whose values are stored elsewhere, as in the logs of tables."""

_ESCAPED = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(1, 32)}
"""Characters that Hive and Spark escape. They do not escape blanks and other alphabets, and would misread them escaped.
"""


def partition_columns(given: str | Sequence[str], where: str) -> tuple[str, ...]:
    """Return the columns of the user's `partition_by`, one name or several. Raises OptionError for a repeated name."""
    columns = (given,) if isinstance(given, str) else tuple(given)
    if len(set(columns)) < len(columns):
        raise OptionError(f"a column is named twice in {columns}", where=where, remedy="Name each column once")
    return columns


def check_partition_columns(schema: pa.Schema, columns: Sequence[str], url: str) -> None:
    """Check that records can be stored in folders by `columns`.

    Raises:
        PipelineError: a column is missing, has no usable type, its folders would be hidden, or no column is left.
    """
    for name in columns:
        if name not in schema.names:
            raise PipelineError(
                f"partition column {name!r} does not exist",
                where=url,
                cause=f"the columns are {', '.join(schema.names)}",
                remedy="Name existing columns in partition_by=",
            )
        kind = schema.field(name).type
        if not is_partition_type(kind):
            raise PipelineError(
                f"column {name!r} of type {kind} cannot be a partition column",
                where=url,
                cause="folder names can hold only strings, integers, booleans and dates",
                remedy="Add a column of such a type with with_columns(), or partition by other columns",
            )
        if name.startswith(("_", ".")):
            raise PipelineError(
                f"column {name!r} cannot be a partition column",
                where=url,
                cause="readers skip folders whose names begin with _ or .",
                remedy="Rename the column with select()",
            )
    if columns and len(columns) == len(schema.names):
        raise PipelineError(
            "all columns are partition columns, so that no column is left for the files",
            where=url,
            remedy="Leave at least one column out of partition_by=",
        )


def is_partition_type(kind: pa.DataType) -> bool:
    """Return whether values of this type may be in folder names."""
    if pt.is_dictionary(kind):
        return is_partition_type(kind.value_type)
    text = pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind)
    return text or pt.is_integer(kind) or pt.is_boolean(kind) or pt.is_date(kind)


def by_partition(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[tuple[PartitionValues, pa.RecordBatch]]:
    """Yield the batch's rows by the values of `columns`, without those columns, in their order within each partition.

    An empty string counts as null, so a partition may appear twice.
    """
    if not columns:
        yield (), batch
        return
    rest = batch.drop_columns(list(columns))
    codes = np.zeros(batch.num_rows, np.int64)
    for name in columns:
        column = batch.column(name)
        plain = column.dictionary_decode() if pt.is_dictionary(column.type) else column
        # With "encode", null is an entry of the dictionary, so it gets an index like every other value.
        encoded = plain.dictionary_encode(null_encoding="encode")
        codes = codes * (len(encoded.dictionary) + 1) + encoded.indices.to_numpy(zero_copy_only=False)
        # Make the codes dense again, so that they do not overflow, whatever the number of columns.
        codes = np.unique(codes, return_inverse=True)[1]
    order = np.argsort(codes, kind="stable")
    # Codes begin at 0, so the prepended -1 makes the first row a start.
    starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
    for rows in np.split(order, starts[1:]):
        values = tuple(partition_text(batch.column(name)[int(rows[0])]) for name in columns)
        # A batch with one partition is not copied: the stable sort has left its rows in their order.
        yield values, rest if len(rows) == batch.num_rows else rest.take(pa.array(rows))


def partition_text(scalar: pa.Scalar) -> str | None:
    """Return a value as text. An empty string counts as null, in folder names as in Delta's log."""
    try:
        value = scalar.as_py()
    except OverflowError:  # a date outside years 1 to 9999, which Python's calendar lacks
        text = str(scalar.cast(pa.string()).as_py())
        # As Spark and delta-rs write it.
        return text if text.startswith("-") else f"+{text}"
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        # Readers of Hive partitions parse `true`, not Python's `True`.
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, date) else str(value)


def cut_name(name: str) -> str:
    """Return a folder name of which nobody reads the value: a long one is cut, and made unique by a digest."""
    if len(name) <= MAX_FOLDER_CHARACTERS:
        return name
    return f"{name[: MAX_FOLDER_CHARACTERS - 9]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def hive_folder(columns: Sequence[str], values: PartitionValues) -> str:
    """Return the folder of a partition, with a trailing slash: `day=2026-11-21/shop=7/`; empty without columns.

    Readers parse the values from it.

    Raises:
        DataError: a value is too long for a folder name.
    """
    return "".join(f"{_hive_name(name, value)}/" for name, value in zip(columns, values, strict=True))


def _hive_name(column: str, value: str | None) -> str:
    name = f"{_escaped(column)}={NULL_FOLDER if value is None else _escaped(value)}"
    if len(name.encode()) > MAX_NAME_BYTES:
        raise DataError(
            f"a value of partition column {column!r} is too long for a folder name",
            where=f"{name[:80]}...",
            cause=f"{len(name.encode()):,} bytes; a folder name can have at most {MAX_NAME_BYTES}",
            remedy="Partition by a column with shorter values",
        )
    return name


def _escaped(text: str) -> str:
    return "".join(f"%{ord(char):02X}" if char in _ESCAPED else char for char in text)
