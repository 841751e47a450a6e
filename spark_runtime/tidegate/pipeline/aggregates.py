"""Aggregates of a window: `count`, `sum`, `min`, `max`, `mean`.

Nulls are left out, as in SQL: an aggregate of no values is null, a count of none is 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from tidegate.contract.errors import PipelineError
from tidegate.operators.specs import AggregateFunction
from tidegate.pipeline.columns import require_column


@dataclass(frozen=True)
class Aggregate:
    """One aggregate; made by the functions of this module.

    Attributes:
        function: its name.
        column: what it aggregates; None: rows.
    """

    function: AggregateFunction
    column: str | None

    def __str__(self) -> str:
        return f"{self.function}({self.column or ''})"


def count(column: str | None = None) -> Aggregate:
    """Number of rows, int64; with a column: of the rows where it is not null."""
    return Aggregate("count", column)


def sum(column: str) -> Aggregate:
    """Sum of integers, as int64, or of floats, as float64."""
    return Aggregate("sum", column)


def min(column: str) -> Aggregate:
    """Smallest number, date or timestamp, of the column's type."""
    return Aggregate("min", column)


def max(column: str) -> Aggregate:
    """Largest number, date or timestamp, of the column's type."""
    return Aggregate("max", column)


def mean(column: str) -> Aggregate:
    """Mean of numbers, as float64."""
    return Aggregate("mean", column)


def aggregate_field(name: str, aggregate: Aggregate, schema: pa.Schema, where: str) -> pa.Field:
    """Name and type of the result over `schema`; PipelineError when the column is missing or its type does not fit."""
    if aggregate.column is None:
        if aggregate.function != "count":
            raise PipelineError(
                f"{aggregate.function}() needs a column", where=where, remedy=f'Name it: {aggregate.function}("delay")'
            )
        return pa.field(name, pa.int64())
    type_ = require_column(schema, aggregate.column, where).type
    if aggregate.function == "count":
        return pa.field(name, pa.int64())
    if _is_number(type_):
        if aggregate.function in ("min", "max"):
            return pa.field(name, type_)
        whole = aggregate.function == "sum" and pt.is_integer(type_)
        return pa.field(name, pa.int64() if whole else pa.float64())
    if aggregate.function in ("min", "max") and (pt.is_timestamp(type_) or pt.is_date(type_)):
        return pa.field(name, type_)
    raise PipelineError(
        f"{aggregate.function} of column {aggregate.column!r} is not offered: it is of type {type_}",
        where=where,
        remedy=_remedy(aggregate, type_),
    )


def _is_number(type_: pa.DataType) -> bool:
    return bool(pt.is_integer(type_) or pt.is_float32(type_) or pt.is_float64(type_))


def _remedy(aggregate: Aggregate, type_: pa.DataType) -> str:
    takes = "numbers"
    if aggregate.function in ("min", "max"):
        takes += ", dates and timestamps"
    cast = "pa.float64()" if pt.is_decimal(type_) or pt.is_float16(type_) or pt.is_string(type_) else "pa.int64()"
    return (
        f"{aggregate.function} takes {takes}; to use the column as a number, cast it first: "
        f".with_columns({aggregate.column}=pc.field({aggregate.column!r}).cast({cast}))"
    )
