"""Schemas that users declare: a `pyarrow.Schema`, or a mapping of column name -> type."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

import pyarrow as pa

from tidegate.errors import OptionError

DeclaredSchema: TypeAlias = pa.Schema | Mapping[str, str | pa.DataType]

_DECIMAL = re.compile(r"decimal(?:128|256)?\((\d+), ?(-?\d+)\)")
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), ?(?:tz=)?([^\]]+)\]")
_LONGEST_DECIMAL = 38
"""Digits of a decimal of 16 bytes; a longer one takes 32 bytes."""


def declared_schema(declared: DeclaredSchema, where: str) -> pa.Schema:
    """Return the schema, without metadata.

    Args:
        declared: a schema, or column name -> `pyarrow` type or its text, such as `int64` or `timestamp[us, UTC]`.
        where: the argument, for errors.

    Raises:
        OptionError: there is no column, a name is repeated, or a type is unknown.
    """
    if isinstance(declared, pa.Schema):
        schema = declared.remove_metadata()
    elif isinstance(declared, Mapping):
        schema = pa.schema([pa.field(name, declared_type(kind, name, where)) for name, kind in declared.items()])
    else:
        raise OptionError(
            f"the schema is a {type(declared).__name__}",
            where=where,
            remedy='Pass a pyarrow.Schema, or a mapping such as {"id": "int64", "name": "string"}',
        )
    if not len(schema):
        raise OptionError("the schema has no column", where=where, remedy="Declare at least one column")
    doubled = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if doubled:
        raise OptionError(f"the schema has column {doubled[0]!r} twice", where=where, remedy="Name each column once")
    return schema


def declared_type(kind: str | pa.DataType, name: str, where: str) -> pa.DataType:
    """Return the type. Raises OptionError if it is unknown. Args: name, where: the column and argument, for errors."""
    if isinstance(kind, pa.DataType):
        return kind
    text = str(kind).strip()
    if found := _DECIMAL.fullmatch(text):
        precision, scale = int(found[1]), int(found[2])
        try:
            return (pa.decimal128 if precision <= _LONGEST_DECIMAL else pa.decimal256)(precision, scale)
        except ValueError as error:
            raise _unknown(text, name, where) from error
    if found := _ZONED.fullmatch(text):
        return pa.timestamp(found[1], found[2])
    try:
        return pa.type_for_alias(text)
    except ValueError as error:
        raise _unknown(text, name, where) from error


def _unknown(text: str, name: str, where: str) -> OptionError:
    return OptionError(
        f"the type {text!r} of column {name!r} is unknown",
        where=where,
        remedy='Use a name of pyarrow, such as "int64", "string", "decimal(10, 2)", "timestamp[us, UTC]", or a type '
        "object for nested columns",
    )
