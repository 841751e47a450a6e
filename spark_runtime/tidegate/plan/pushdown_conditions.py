"""Conditions of a filter that Spark may evaluate, because Spark and Arrow provably give the same results (S8.2).

A node is supported only if both give the same true, false or null for every value of its columns, also if a reader of
Spark decides for a whole file by its least and greatest value:

- true, false and null are combined by SQL's rules in both (Arrow: `and_kleene`, `or_kleene`, `invert`);
- numbers are compared in the type of the column: a literal that is not exactly a value of that type stays in Arrow;
- NaN is greater than all and equal to itself in Spark, but not in Arrow; statistics of files ignore it; readers treat
  0.0 and -0.0 as different. So floating point is compared only with finite non-zero literals, and not under `~`, where
  NaN could make a condition true;
- text and bytes are compared byte by byte in both; times and dates as integers, with literals in the years in which
  Java's calendars agree.

Arithmetic stays in Arrow: an overflow or a division by zero fails a job there, but may not in Spark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from tidegate.plan.expression_trees import (
    COMPARISONS,
    NULL_MATCHING,
    Call,
    ColumnRef,
    Literal,
    Tree,
    is_strict,
    target_type,
)

MAX_MEMBERS = 1000
"""Most members of a set for `is_in`."""
_MIRRORED = {"less": "greater", "less_equal": "greater_equal", "greater": "less", "greater_equal": "less_equal"}
_OPERATORS = dict(zip(COMPARISONS, ("==", "!=", "<", "<=", ">", ">="), strict=True))
_DAYS = (-25_567, 2_932_896)
"""Days since the epoch from 1900-01-01 to 9999-12-31."""
_DAY_US = 86_400_000_000
_EXACT_INT = {pa.float32(): 2**24, pa.float64(): 2**53}
"""Up to this number every integer is a value of the type."""


@dataclass(frozen=True)
class Field:
    """An unchanged column of the source."""

    name: str


@dataclass(frozen=True)
class Comparison:
    """A comparison. Attributes: function: one of `COMPARISONS`. right: another column of the same type, or a literal of
    it."""

    function: str
    left: Field
    right: Field | Literal


@dataclass(frozen=True)
class IsIn:
    """The column is one of `values`, of its type; null is included if `takes_null`. The result is never null."""

    column: Field
    values: tuple[pa.Scalar, ...]
    takes_null: bool


@dataclass(frozen=True)
class IsNull:
    """The column is null; if `valid`, it is not null."""

    column: Field
    valid: bool


@dataclass(frozen=True)
class Not:
    """SQL's."""

    condition: Condition


@dataclass(frozen=True)
class BooleanJunction:
    """A junction of conditions, as in SQL. Attributes: word: "and" or "or"."""

    word: str
    conditions: tuple[Condition, ...]


Condition: TypeAlias = Field | Comparison | IsIn | IsNull | Not | BooleanJunction
"""A condition. A `Field` must be a boolean column."""
Scope: TypeAlias = Mapping[str, Condition | None]
"""Columns in scope, in terms of the source's columns; None: unknown."""


def condition_of(tree: Tree, scope: Scope, schema: pa.Schema, *, decides: bool = False) -> Condition | None:
    """Return the tree as a condition over a source's columns; None: Spark and Arrow may decide differently.

    Args:
        schema: of the source.
        decides: rows for which it is not true are dropped, so null and NaN count as false.
    """
    if isinstance(tree, ColumnRef):
        found = scope.get(tree.name)
        is_boolean = isinstance(found, Field) and pt.is_boolean(schema.field(found.name).type)
        return found if is_boolean or not isinstance(found, Field) else None
    if isinstance(tree, Literal):
        return None
    if tree.function in ("and_kleene", "or_kleene"):
        parts = [condition_of(argument, scope, schema, decides=decides) for argument in tree.arguments]
        known = tuple(part for part in parts if part is not None)
        return BooleanJunction(tree.function.partition("_")[0], known) if len(known) == len(parts) else None
    if tree.function == "invert":
        inner = condition_of(tree.arguments[0], scope, schema)
        return None if inner is None else Not(inner)
    if tree.function in COMPARISONS:
        return _comparison(tree, scope, schema, decides)
    return _lookup(tree, scope, schema)


def fields_of(condition: Condition) -> frozenset[str]:
    """Return the names of the source's columns whose values it reads."""
    if isinstance(condition, Field):
        return frozenset([condition.name])
    if isinstance(condition, Comparison):
        right = [condition.right.name] if isinstance(condition.right, Field) else []
        return frozenset([condition.left.name, *right])
    if isinstance(condition, IsIn):
        return frozenset([condition.column.name])
    if isinstance(condition, Not):
        return fields_of(condition.condition)
    return frozenset() if isinstance(condition, IsNull) else frozenset().union(*map(fields_of, condition.conditions))


def text_of(condition: Condition) -> str:
    """Return a condition as text, in Arrow's notation."""
    if isinstance(condition, Field):
        return condition.name
    if isinstance(condition, Comparison):
        right = condition.right.name if isinstance(condition.right, Field) else str(condition.right.value)
        return f"{condition.left.name} {_OPERATORS[condition.function]} {right}"
    if isinstance(condition, IsNull):
        return f"{condition.column.name} is {'not ' if condition.valid else ''}null"
    if isinstance(condition, IsIn):
        members = [*map(str, condition.values), *(["null"] if condition.takes_null else [])]
        return f"{condition.column.name} in ({', '.join(members)})"
    if isinstance(condition, Not):
        return f"not {text_of(condition.condition)}"
    return f"({f' {condition.word} '.join(map(text_of, condition.conditions))})"


def _field(tree: Tree, scope: Scope) -> Field | None:
    found = scope.get(tree.name) if isinstance(tree, ColumnRef) else None
    return found if isinstance(found, Field) else None


def _comparison(tree: Call, scope: Scope, schema: pa.Schema, decides: bool) -> Comparison | None:
    function = tree.function
    left, right = tree.arguments
    # The column is put on the left, because only this form is stored in a `Comparison`.
    if not isinstance(left, ColumnRef):
        left, right, function = right, left, _MIRRORED.get(function, function)
    column = _field(left, scope)
    if column is None:
        return None
    kind = schema.field(column.name).type
    if isinstance(right, ColumnRef):
        other = _field(right, scope)
        alike = other is not None and schema.field(other.name).type == kind and not pt.is_floating(kind)
        return Comparison(function, column, other) if other is not None and alike and _is_compared(kind) else None
    value = _value(right, kind)
    if value is None:
        return None
    if pt.is_floating(kind):
        number = value.as_py()
        if not decides or function == "not_equal" or not math.isfinite(number) or number == 0:
            return None
    return Comparison(function, column, Literal(value))


def _lookup(tree: Call, scope: Scope, schema: pa.Schema) -> Condition | None:
    column = _field(tree.arguments[0], scope) if tree.arguments else None
    if column is None:
        return None
    kind, options = schema.field(column.name).type, tree.options
    if tree.function == "is_valid":
        return IsNull(column, valid=True)
    if tree.function == "is_null" and options is not None and not options["nan_is_null"].as_py():
        return IsNull(column, valid=False)
    if tree.function != "is_in" or options is None or pt.is_floating(kind):
        return None
    members: Sequence[pa.Scalar] = list(options["value_set"].values)
    if not 0 < len(members) <= MAX_MEMBERS or options["null_matching_behavior"].as_py() not in NULL_MATCHING:
        return None
    values = [_value(Literal(member), kind) for member in members if member.is_valid]
    known = tuple(value for value in values if value is not None)
    skips_nulls = NULL_MATCHING[options["null_matching_behavior"].as_py()]
    has_null = any(not member.is_valid for member in members)
    return IsIn(column, known, has_null and not skips_nulls) if known and len(known) == len(values) else None


def _is_compared(kind: pa.DataType) -> bool:
    text = pt.is_string(kind) or pt.is_large_string(kind) or pt.is_binary(kind) or pt.is_large_binary(kind)
    times = pt.is_date32(kind) or (pt.is_timestamp(kind) and kind.unit == "us")
    numbers = pt.is_signed_integer(kind) or pt.is_float32(kind) or pt.is_float64(kind) or pt.is_decimal128(kind)
    return bool(text or times or numbers or pt.is_boolean(kind))


def _value(tree: Tree, kind: pa.DataType) -> pa.Scalar | None:
    """Return the literal as a value of `kind`, if it is exactly one and the types are comparable."""
    if isinstance(tree, Call) and tree.function == "cast" and is_strict(tree):
        inner = tree.arguments[0]
        return None if not isinstance(inner, Literal) else _value(Literal(_cast(inner.value, target_type(tree))), kind)
    if not isinstance(tree, Literal) or not tree.value.is_valid or not _is_compared(kind):
        return None
    value = tree.value
    if pt.is_floating(kind):
        return _floating(value, kind)
    if not _have_comparable_types(value.type, kind):
        return None
    found = _cast(value, kind)
    return found if found.is_valid and _is_year_in_range(found) else None


def _is_year_in_range(value: pa.Scalar) -> bool:
    if pt.is_date32(value.type):
        return bool(_DAYS[0] <= value.value <= _DAYS[1])
    return not pt.is_timestamp(value.type) or bool(_DAYS[0] * _DAY_US <= value.value < (_DAYS[1] + 1) * _DAY_US)


def _have_comparable_types(given: pa.DataType, kind: pa.DataType) -> bool:
    if pt.is_integer(kind):
        return bool(pt.is_integer(given))
    if pt.is_timestamp(kind):
        return bool(pt.is_timestamp(given)) and given.unit != "ns" and (given.tz is None) == (kind.tz is None)
    if pt.is_string(kind) or pt.is_large_string(kind):
        return bool(pt.is_string(given) or pt.is_large_string(given))
    if pt.is_binary(kind) or pt.is_large_binary(kind):
        return bool(pt.is_binary(given) or pt.is_large_binary(given))
    if pt.is_decimal128(kind):
        return bool(pt.is_decimal128(given))
    return bool(given == kind)


def _floating(value: pa.Scalar, kind: pa.DataType) -> pa.Scalar | None:
    if not (pt.is_integer(value.type) or pt.is_float32(value.type) or pt.is_float64(value.type)):
        return None
    number = value.as_py()
    if pt.is_integer(value.type):
        return pa.scalar(float(number), kind) if abs(number) <= _EXACT_INT[kind] else None
    if pt.is_float32(kind) and math.isfinite(number):
        # A number beyond float32 becomes infinity. That differs from the number, so it is refused without a warning.
        with np.errstate(over="ignore"):
            return pa.scalar(number, kind) if float(np.float32(number)) == number else None
    return pa.scalar(number, kind)


def _cast(value: pa.Scalar, kind: pa.DataType) -> pa.Scalar:
    """Cast; null if the value does not fit."""
    try:
        return value if value.type == kind else value.cast(kind)
    except pa.ArrowException:
        return pa.scalar(None, kind)
