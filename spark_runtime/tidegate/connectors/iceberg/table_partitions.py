"""Partitions of an Iceberg table: terms such as `day(ts)`, their match with a table, and rows by partition.

Source: the Iceberg table specification, "Partition Transforms". Transforms are computed here for whole columns, because
pyiceberg computes them for columns only with a further package (pyiceberg-core).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tidegate.errors import OptionError, PipelineError

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import Transform
    from pyiceberg.typedef import Record
    from pyiceberg.types import IcebergType, PrimitiveType

PartitionKey = tuple[str | None, ...]
"""Values of the partition fields, each as base64 of Iceberg's single-value serialization; None is null."""

FIRST_PARTITION_FIELD_ID = 1000
"""Id of the first partition field of a new table; the specification reserves lower ids for columns."""
DAY_US = 86_400_000_000
HOUR_US = 3_600_000_000
EPOCH_YEAR = 1970
MONTHS = 12

_TERM = re.compile(r"(?P<transform>[a-z]+)\(\s*(?:(?P<width>\d+)\s*,\s*)?(?P<column>[^()]+?)\s*\)")
_TIMES = ("year", "month", "day", "hour")
_WIDE = ("bucket", "truncate")
_SYNONYMS = {f"{name}s": name for name in _TIMES}
_SUFFIXES = {"truncate": "trunc"}


@dataclass(frozen=True)
class PartitionTerm:
    """One term of `partition_by`: a column, or a transform of one.

    Attributes:
        transform: "identity", "year", "month", "day", "hour", "bucket" or "truncate".
        width: number of buckets, or width of a truncation; 0: the transform has none.
    """

    transform: str
    column: str
    width: int = 0

    @classmethod
    def parse(cls, text: str) -> PartitionTerm:
        """Parse `column`, `day(column)` or `bucket(16, column)`. Raises OptionError."""
        match = _TERM.fullmatch(text.strip())
        if match is None and "(" not in text and text.strip():
            return cls("identity", text.strip())
        name = _SYNONYMS.get(match["transform"], match["transform"]) if match else ""
        width = int((match["width"] if match else None) or 0)
        known = name == "identity" or name in _TIMES or name in _WIDE
        if match is None or not known or (name in _WIDE) != (width > 0):
            raise OptionError(
                f"{text!r} is not a partition term",
                where="Iceberg(partition_by=)",
                remedy="Write a column, year(c), month(c), day(c), hour(c), bucket(16, c) or truncate(4, c)",
            )
        return cls(name, match["column"], width)

    def __str__(self) -> str:
        if self.transform == "identity":
            return self.column
        return f"{self.transform}({f'{self.width}, ' if self.width else ''}{self.column})"

    @property
    def name(self) -> str:
        """The partition field's name in a new table, as Spark names it: `ts_day`."""
        if self.transform == "identity":
            return self.column
        return f"{self.column}_{_SUFFIXES.get(self.transform, self.transform)}"

    @property
    def notation(self) -> str:
        """The transform in Iceberg's notation: `bucket[16]`."""
        return f"{self.transform}[{self.width}]" if self.width else self.transform


def new_spec(terms: Sequence[PartitionTerm], schema: Schema, where: str) -> PartitionSpec:
    """Return the partition spec of a new table.

    Raises:
        PipelineError: a column does not exist, or the transform does not apply to its type.
    """
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import parse_transform

    columns = {field.name: field for field in schema.columns}
    fields = []
    for number, term in enumerate(terms):
        column, transform = columns.get(term.column), parse_transform(term.notation)
        if column is None:
            raise PipelineError(
                f"partition_by names column {term.column!r}, which does not exist",
                where=where,
                cause=f"the columns are {', '.join(columns)}",
                remedy="Name one of these columns",
            )
        if not column.field_type.is_primitive or not transform.can_transform(column.field_type):
            raise PipelineError(
                f"partition_by={str(term)!r} does not apply to a column of type {column.field_type}",
                where=where,
                remedy="Use another transform or column",
            )
        fields.append(PartitionField(column.field_id, FIRST_PARTITION_FIELD_ID + number, transform, term.name))
    return PartitionSpec(*fields)


def terms_of(spec: PartitionSpec, schema: Schema) -> list[str]:
    """Return the terms of a table's partition spec, without fields that were removed from it."""
    found = []
    for field in spec.fields:
        notation, column = str(field.transform), schema.find_column_name(field.source_id) or ""
        match = re.fullmatch(r"([a-z]+)(?:\[(\d+)\])?", notation)
        if notation == "void":
            continue
        found.append(str(PartitionTerm(match[1], column, int(match[2] or 0))) if match else f"{notation}({column})")
    return found


def check_spec(terms: Sequence[PartitionTerm], spec: PartitionSpec, schema: Schema, where: str) -> None:
    """Check that a table has the partitioning that the sink declares, and that its fields can be computed.

    Args:
        terms: none: the sink accepts every partitioning.

    Raises:
        PipelineError: they differ; a transform is unknown, or its column is nested.
    """
    found = terms_of(spec, schema)
    if terms and [str(term) for term in terms] != found:
        raise PipelineError(
            "the Iceberg table is partitioned differently from the sink",
            where=where,
            cause=f"table: {found}; partition_by={[str(term) for term in terms]}",
            remedy="Leave out partition_by=, or change the table's partitioning",
        )
    names = {column.field_id: column.name for column in schema.columns}
    for field in spec.fields:
        notation = str(field.transform).partition("[")[0]
        if field.source_id not in names or notation not in ("identity", "void", *_TIMES, *_WIDE):
            raise PipelineError(
                f"the Iceberg table is partitioned by {field.transform} of {schema.find_column_name(field.source_id)}",
                where=where,
                cause="the sink supports the transforms of format version 2, of columns that are not nested",
                remedy="Write to a table with another partitioning",
            )


class Partitioner:
    """Divides stored rows by the partition of a table's spec. No I/O."""

    def __init__(self, spec: PartitionSpec, schema: Schema) -> None:
        positions = {column.field_id: n for n, column in enumerate(schema.columns)}
        self._fields = [_ComputedField(field, schema, positions[field.source_id]) for field in spec.fields]

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[PartitionKey, pa.RecordBatch]]:
        """Yield the rows of each partition, in their order within it."""
        if not self._fields:
            yield (), batch
            return
        codes = np.zeros(batch.num_rows, np.int64)
        computed = [field.compute(batch) for field in self._fields]
        for indices, keys in computed:
            codes = codes * len(keys) + indices
            # Make the codes dense again, so that they do not overflow, whatever the number of fields.
            codes = np.unique(codes, return_inverse=True)[1]
        order = np.argsort(codes, kind="stable")
        # Codes begin at 0, so the prepended -1 makes the first row a start.
        starts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        for rows in np.split(order, starts[1:]):
            key = tuple(keys[indices[rows[0]]] for indices, keys in computed)
            # A batch with one partition is not copied: the stable sort has left its rows in their order.
            yield key, batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))


class _ComputedField:
    """One field of a partition spec, computed for the rows of a batch."""

    def __init__(self, field: PartitionField, schema: Schema, position: int) -> None:
        self._position = position
        self._source = schema.find_type(field.source_id)
        self._transform: Transform[Any, Any] = field.transform
        self._result = _primitive(field.transform.result_type(self._source))

    def compute(self, batch: pa.RecordBatch) -> tuple[np.ndarray[Any, np.dtype[np.int64]], list[str | None]]:
        """Return for each row an index into the returned values."""
        column = batch.column(self._position)
        transform: Callable[[Any], Any]
        if str(self._transform) in _TIMES:
            column, transform = _time_ordinals(column, str(self._transform)), lambda value: value
        else:
            transform = self._transform.transform(self._source)
        # With "encode", null is an entry of the dictionary, so it gets an index like every other value.
        encoded = _physical(column).dictionary_encode(null_encoding="encode")
        keys = [encode_value(self._result, transform(value)) for value in encoded.dictionary.to_pylist()]
        # Several values of a column may be in one partition, which must have one code.
        distinct = list(dict.fromkeys(keys))
        numbers = {key: n for n, key in enumerate(distinct)}
        by_value = np.array([numbers[key] for key in keys], np.int64)
        return by_value[encoded.indices.to_numpy(zero_copy_only=False)], distinct


def _primitive(kind: IcebergType) -> PrimitiveType:
    from pyiceberg.types import PrimitiveType

    assert isinstance(kind, PrimitiveType), "partition values are primitive"
    return kind


def _physical(column: pa.Array) -> pa.Array:
    """Return the values in Iceberg's internal form: days, and microseconds."""
    if pt.is_date(column.type):
        return column.cast(pa.int32())
    if pt.is_timestamp(column.type) or pt.is_time(column.type):
        return column.cast(pa.int64())
    return column


def _time_ordinals(column: pa.Array, transform: str) -> pa.Array:
    """Return hours, days, months or years since 1970-01-01 in UTC, rounded down."""
    if transform in ("hour", "day"):
        if pt.is_date(column.type):
            return column.cast(pa.int32())
        unit_us = HOUR_US if transform == "hour" else DAY_US
        micros = column.cast(pa.int64())
        # NumPy rounds down, also for times before 1970; Arrow's division rounds towards zero.
        whole = np.floor_divide(pc.fill_null(micros, 0).to_numpy(zero_copy_only=False), unit_us)
        return pa.array(whole.astype(np.int32), mask=micros.is_null().to_numpy(zero_copy_only=False))
    years = pc.subtract(pc.year(column), EPOCH_YEAR)
    if transform == "year":
        return years.cast(pa.int32())
    return pc.add(pc.multiply(years, MONTHS), pc.subtract(pc.month(column), 1)).cast(pa.int32())


def encode_value(kind: PrimitiveType, value: Any) -> str | None:
    """Return a partition value as JSON can hold it."""
    from pyiceberg.conversions import to_bytes

    return None if value is None else base64.b64encode(to_bytes(kind, value)).decode()


def partition_record(key: Sequence[str | None], spec: PartitionSpec, schema: Schema) -> Record:
    """Return a partition as manifests hold it. Inverse of the keys of `Partitioner`."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.typedef import Record

    kinds = [_primitive(field.field_type) for field in spec.partition_type(schema).fields]
    decoded = [
        None if text is None else from_bytes(kind, base64.b64decode(text))
        for kind, text in zip(kinds, key, strict=True)
    ]
    return Record(*decoded)
