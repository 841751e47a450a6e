"""Columns of an Iceberg table, and records of Arrow: which type is stored in which column, and the conversion.

Source: the Iceberg table specification, "Schemas and Data Types". Format version 2 has no nanoseconds, and no unsigned
integers.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.types as pt

from tidegate.errors import DataError, PipelineError

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.types import IcebergType, NestedField

Evolve = Literal["refuse", "add_columns"]
"""Action for columns of the records that the table does not have."""

_CAST = "cast it with with_columns(), or leave it out with select()"


class UnstorableType(Exception):
    """A type of Arrow that Iceberg lacks; the text says why."""


def new_schema(records: pa.Schema, where: str) -> Schema:
    """Return the schema of a table for records of this schema, with new field ids.

    Raises:
        PipelineError: a type has no equivalent in Iceberg, and the error names all such columns; or names are not
            unique.
    """
    from pyiceberg.schema import Schema, assign_fresh_schema_ids
    from pyiceberg.types import NestedField

    numbers = itertools.count(1)
    fields, problems = [], []
    for field in records:
        try:
            kind = _iceberg_type(field.type, numbers)
        except UnstorableType as e:
            problems.append(f"column {field.name!r}: {e}")
            continue
        fields.append(NestedField(next(numbers), field.name, kind, required=not field.nullable))
    if problems:
        raise _unfit("the records cannot be stored in an Iceberg table", where, problems)
    try:
        return assign_fresh_schema_ids(Schema(*fields))
    except ValueError as e:  # a name with a dot is also the name of a field in a structure
        raise _unfit("the records cannot be stored in an Iceberg table", where, [str(e)]) from e


def _iceberg_type(kind: pa.DataType, numbers: itertools.count[int]) -> IcebergType:
    """Return the type with placeholders for the ids of nested fields. Raises UnstorableType."""
    from pyiceberg.types import ListType, MapType, NestedField, StructType

    if pt.is_dictionary(kind):
        return _iceberg_type(kind.value_type, numbers)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        inner = kind.value_field
        return ListType(next(numbers), _iceberg_type(inner.type, numbers), element_required=not inner.nullable)
    if pt.is_map(kind):
        key, item = _iceberg_type(kind.key_type, numbers), _iceberg_type(kind.item_type, numbers)
        return MapType(next(numbers), key, next(numbers), item, value_required=not kind.item_field.nullable)
    if pt.is_struct(kind):
        fields = [kind.field(n) for n in range(kind.num_fields)]
        return StructType(
            *(
                NestedField(next(numbers), f.name, _iceberg_type(f.type, numbers), required=not f.nullable)
                for f in fields
            )
        )
    return _candidates(kind)[0]


def _candidates(kind: pa.DataType) -> Sequence[IcebergType]:
    """Return the primitive types that store every value of an Arrow type, the narrowest first.

    Raises UnstorableType.
    """
    from pyiceberg import types as it

    if pt.is_boolean(kind):
        return (it.BooleanType(),)
    if pt.is_integer(kind):
        # The largest values of an unsigned type need a signed type with one bit more.
        bits = kind.bit_width + pt.is_unsigned_integer(kind)
        if bits > 64:
            raise UnstorableType(f"Iceberg has no type for {kind}; {_CAST}")
        return (it.IntegerType(), it.LongType()) if bits <= 32 else (it.LongType(),)
    if pt.is_floating(kind):
        return (it.DoubleType(),) if kind.bit_width == 64 else (it.FloatType(), it.DoubleType())
    if pt.is_decimal(kind) and kind.precision <= 38:
        return tuple(it.DecimalType(digits, kind.scale) for digits in range(max(kind.precision, 1), 39))
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        return (it.StringType(),)
    if pt.is_fixed_size_binary(kind):
        fixed = (it.FixedType(kind.byte_width), it.BinaryType())
        return (*fixed, it.UUIDType()) if kind.byte_width == 16 else fixed
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind):
        return (it.BinaryType(),)
    if pt.is_date(kind):
        return (it.DateType(),)
    if (pt.is_time(kind) or pt.is_timestamp(kind)) and kind.unit != "ns":
        if pt.is_time(kind):
            return (it.TimeType(),)
        return (it.TimestamptzType(),) if kind.tz is not None else (it.TimestampType(),)
    raise UnstorableType(f"Iceberg has no type for {kind}; {_CAST}")


def _misfit(kind: pa.DataType, there: IcebergType) -> str | None:
    """Return why a column cannot store values of an Arrow type unchanged; None if it can."""
    from pyiceberg.types import ListType, MapType, StructType

    if pt.is_dictionary(kind):
        return _misfit(kind.value_type, there)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return _misfit(kind.value_type, there.element_type) if isinstance(there, ListType) else _differs(kind, there)
    if pt.is_map(kind):
        if not isinstance(there, MapType):
            return _differs(kind, there)
        return _misfit(kind.key_type, there.key_type) or _misfit(kind.item_type, there.value_type)
    if pt.is_struct(kind):
        names = [kind.field(n).name for n in range(kind.num_fields)]
        if not isinstance(there, StructType) or names != [field.name for field in there.fields]:
            return _differs(kind, there)
        found = (_misfit(kind.field(n).type, field.field_type) for n, field in enumerate(there.fields))
        return next((problem for problem in found if problem), None)
    try:
        return None if there in _candidates(kind) else _differs(kind, there)
    except UnstorableType as e:
        return str(e)


def _differs(kind: pa.DataType, there: IcebergType) -> str:
    if pt.is_timestamp(kind) and "timestamp" in str(there):
        zone = "with" if kind.tz is not None else "without"
        return f"the records have timestamps {zone} a time zone, the table has {there}"
    return f"type {kind} does not fit {there}"


def new_columns(records: pa.Schema, table: Schema, evolve: Evolve, where: str) -> list[NestedField]:
    """Check that a table can store records, and return the columns to add to it first.

    Columns of the table that the records lack must be optional; new rows have null in them.

    Raises:
        PipelineError: with all problems.
    """
    there = {field.name: field for field in table.columns}
    problems = [
        f"the records have column {n!r} twice" for n in sorted(set(records.names)) if records.names.count(n) > 1
    ]
    missing = []
    for field in records:
        if field.name not in there:
            missing.append(field)
        elif problem := _misfit(field.type, there[field.name].field_type):
            problems.append(f"column {field.name!r}: {problem}")
    if evolve == "refuse":
        names = ", ".join(there)
        problems += [f"the table has no column {field.name!r}; its columns are {names}" for field in missing]
    for name, column in there.items():
        if column.required and name not in records.names:
            problems.append(f"column {name!r} of the table is required, and is missing in the records")
    if problems:
        raise _unfit("the Iceberg table cannot store these records", where, problems)
    # Rows that exist have null in a new column, so it is optional.
    return list(new_schema(pa.schema([f.with_nullable(True) for f in missing]), where).columns) if missing else []


def refuse_other_columns(table: Schema, names: Sequence[str], where: str) -> None:
    """Check that a table has no columns except these, because replaced rows would lose their values.

    Raises:
        PipelineError: it has others.
    """
    others = [column.name for column in table.columns if column.name not in names]
    if others:
        raise PipelineError(
            "the Iceberg table has columns that the records lack, so an upsert would remove their values",
            where=where,
            cause=", ".join(others),
            remedy="Add the columns to the records with with_columns(), or write to a table without them",
        )


def _unfit(what: str, where: str, problems: Sequence[str]) -> PipelineError:
    return PipelineError(
        what if len(problems) == 1 else f"{what}, for {len(problems)} reasons",
        where=where,
        cause="; ".join(problems),
        remedy="Change the table; or change the records with select() and with_columns(); "
        'or add new columns to the table with evolve="add_columns"',
    )


class StoredColumns:
    """Records as a table's data files hold them: columns by name, with the table's types and field ids.

    Args:
        table: the table's schema.
        where: the table, for messages.

    Attributes:
        schema: schema of the files.
        file_schema: the same in Iceberg's form, with names that Avro accepts.
    """

    def __init__(self, table: Schema, where: str) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow
        from pyiceberg.schema import sanitize_column_names

        self._columns = table.columns
        self._where = where
        self.file_schema = sanitize_column_names(table)
        self.schema: pa.Schema = schema_to_pyarrow(self.file_schema, include_field_ids=True)

    def stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch as they are stored.

        Raises:
            DataError: a required column has a null, or a value is outside the range of its type.
        """
        arrays = []
        for column, field in zip(self._columns, self.schema, strict=True):
            if column.name not in batch.schema.names:
                arrays.append(pa.nulls(batch.num_rows, field.type))
                continue
            try:
                values = batch.column(column.name).cast(field.type)
            except pa.ArrowInvalid as e:
                raise DataError(
                    f"a value of column {column.name!r} cannot be stored as {column.field_type}",
                    where=self._where,
                    cause=str(e).splitlines()[0],
                    remedy="Filter these rows, or store the column with another type",
                ) from e
            # After the cast: a dictionary may have null among its values.
            if column.required and values.null_count:
                raise DataError(
                    f"{values.null_count:,} rows have null in column {column.name!r}, which the table requires",
                    where=self._where,
                    remedy="Filter these rows, fill the column, or make the column optional in the table",
                )
            arrays.append(values)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of records that pyiceberg reads: without field ids, and with strings of 32-bit offsets."""
    return pa.schema([pa.field(f.name, _plain_type(f.type), f.nullable) for f in schema])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pt.is_large_string(kind):
        return pa.string()
    if pt.is_large_binary(kind):
        return pa.binary()
    if pt.is_large_list(kind) or pt.is_list(kind):
        return pa.list_(pa.field("element", _plain_type(kind.value_type), kind.value_field.nullable))
    if pt.is_map(kind):
        item = pa.field("value", _plain_type(kind.item_type), kind.item_field.nullable)
        return pa.map_(pa.field("key", _plain_type(kind.key_type), False), item)
    if pt.is_struct(kind):
        fields = [kind.field(n) for n in range(kind.num_fields)]
        return pa.struct([pa.field(f.name, _plain_type(f.type), f.nullable) for f in fields])
    return kind
