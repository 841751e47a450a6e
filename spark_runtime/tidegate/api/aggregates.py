"""Aggregates of windows, of groups and of whole streams.

Nulls are left out, as in SQL: an aggregate of no values is null, a count of none is 0. NaN is greater than any number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from tidegate.api.draft.column_checks import refuse_duplicates, require_column
from tidegate.errors import PipelineError
from tidegate.operators.aggregates.aggregate_specs import Agg
from tidegate.state.aggregates.aggregation import BY_ANOTHER, SETS, AggregateFunction, ArrowAggregate, is_numeric_type
from tidegate.state.keys.key_types import is_key_type, stored_type

MAX_DECIMAL_DIGITS = 38
"""Of a sum of decimals."""
BY_TIME = frozenset({"first", "last", "collect"})
"""Aggregates whose rows are in the order of event time, where the stream has one; rows that another column orders are
so where it is equal."""


@dataclass(frozen=True)
class Aggregate:
    """One aggregate; made by the functions of this module.

    Attributes:
        function: what it computes.
        column: what it aggregates; None: rows.
        others: further columns.
        n: see `Agg`.
        orders: as many of `others`, at the end, are what rows are ordered by.
        user: of `user_aggregate`.
        word: what the user called it.
    """

    function: AggregateFunction
    column: str | None
    others: tuple[str, ...] = ()
    n: int = 0
    orders: int = 0
    user: ArrowAggregate | None = None
    word: str = ""

    def __str__(self) -> str:
        columns = ", ".join(c for c in (self.column, *self.others) if c is not None)
        return f"{self.word or self.function}({columns})"


def count(column: str | None = None) -> Aggregate:
    """Number of rows, int64; with a column: of the rows where it is not null."""
    return Aggregate("count", column)


def sum(column: str) -> Aggregate:
    """Sum of integers, as int64; of floats, as float64; of decimals, with 38 digits. One that leaves that range fails
    the job."""
    return Aggregate("sum", column)


def min(column: str) -> Aggregate:
    """Smallest number, decimal, string, boolean, date or time, of the column's type."""
    return Aggregate("min", column)


def max(column: str) -> Aggregate:
    """Largest number, decimal, string, boolean, date or time, of the column's type."""
    return Aggregate("max", column)


def mean(column: str) -> Aggregate:
    """Mean of numbers, as float64."""
    return Aggregate("mean", column)


def var(column: str, *, ddof: int = 1) -> Aggregate:
    """Variance of numbers, as float64: of a sample, or with ddof=0 of the whole population. Null of `ddof` values or
    fewer."""
    return Aggregate("var", column, n=ddof)


def stddev(column: str, *, ddof: int = 1) -> Aggregate:
    """Standard deviation: the root of `var`."""
    return Aggregate("stddev", column, n=ddof)


def bool_and(column: str) -> Aggregate:
    """Whether all of a boolean column are true."""
    return Aggregate("min", column, word="bool_and")


def bool_or(column: str) -> Aggregate:
    """Whether any of a boolean column is true."""
    return Aggregate("max", column, word="bool_or")


def count_distinct(column: str) -> Aggregate:
    """Number of different values, exact: all of them are kept in state."""
    return Aggregate("count_distinct", column)


def collect_set(column: str) -> Aggregate:
    """The different values, ascending, as a list."""
    return Aggregate("collect_set", column)


def collect(column: str) -> Aggregate:
    """All values as a list, in the order of event time, equal times in order of arrival; where the stream has no event
    time, in order of arrival."""
    return Aggregate("collect", column)


def first(column: str) -> Aggregate:
    """The value with the earliest event time, of equal ones the first to arrive; where the stream has no event time,
    the first to arrive."""
    return Aggregate("first", column)


def last(column: str) -> Aggregate:
    """The value with the latest event time, of equal ones the last to arrive; where the stream has no event time, the
    last to arrive."""
    return Aggregate("last", column)


def min_by(column: str, by: str) -> Aggregate:
    """`column`, null or not, of the row where `by` is smallest; of equal ones the earliest."""
    return Aggregate("min_by", column, (by,), orders=1)


def max_by(column: str, by: str) -> Aggregate:
    """`column`, null or not, of the row where `by` is largest; of equal ones the earliest."""
    return Aggregate("max_by", column, (by,), orders=1)


def top_n(column: str, n: int, *, by: str | None = None, ascending: bool = False) -> Aggregate:
    """The `n` largest values as a list, largest first, or with `ascending` the smallest; with `by` the values of
    `column` in the rows where `by` is largest. Of equal ones the earliest come first."""
    function: AggregateFunction = "bottom_n" if ascending else "top_n"
    return Aggregate(function, column, () if by is None else (by,), n, orders=int(by is not None), word="top_n")


def user_aggregate(aggregate: ArrowAggregate, *columns: str) -> Aggregate:
    """An aggregate of your own over these columns."""
    column, others = (columns[0], columns[1:]) if columns else (None, ())
    return Aggregate("user", column, others, user=aggregate, word=type(aggregate).__name__)


def bound_aggregates(
    aggregates: Mapping[str, object], schema: pa.Schema, time_column: str | None, where: str
) -> tuple[tuple[Agg, ...], list[pa.Field]]:
    """The aggregates as an operator takes them, and the fields of their results.

    Raises:
        PipelineError: there is none, one is no aggregate, a column is missing or its type does not fit.
    """
    if not aggregates:
        raise PipelineError("agg of nothing", where=where, remedy="Give at least one: .agg(rows=count(), uid=...)")
    aggs: list[Agg] = []
    fields: list[pa.Field] = []
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise PipelineError(
                f"{name} is not an aggregate: {aggregate!r}",
                where=where,
                cause="Python's own sum, min or max?" if callable(aggregate) else "",
                remedy="Use count, sum, min, max and the others of tidegate, each called: tidegate.sum('delay')",
            )
        fields.append(aggregate_field(name, aggregate, schema, where))
        others, orders = aggregate.others, aggregate.orders
        if time_column is not None and (orders or aggregate.function in BY_TIME):
            others, orders = (*others, time_column), orders + 1
        aggs.append(Agg(name, aggregate.function, aggregate.column, others, aggregate.n, orders, aggregate.user))
    refuse_duplicates((field.name for field in fields), where, remedy="Rename one of them")
    return tuple(aggs), fields


def aggregate_field(name: str, aggregate: Aggregate, schema: pa.Schema, where: str) -> pa.Field:
    """Name and type of the result over `schema`; PipelineError when the column is missing or its type does not fit."""
    if aggregate.user is not None or aggregate.function == "user":
        return _user_field(name, aggregate, schema, where)
    word = aggregate.word or aggregate.function
    if aggregate.column is None:
        if aggregate.function != "count":
            raise PipelineError(f"{word}() needs a column", where=where, remedy=f'Name it: {word}("delay")')
        return pa.field(name, pa.int64())
    type_ = require_column(schema, aggregate.column, where).type
    found = _result_type(aggregate, type_)
    if found is None:
        raise _refused(aggregate, aggregate.column, type_, where)
    if aggregate.function in BY_ANOTHER and aggregate.others:
        by = require_column(schema, aggregate.others[-1], where)
        if not _is_sortable(by.type):
            raise _refused(aggregate, by.name, by.type, where)
    _check_number(aggregate, where)
    return pa.field(name, found)


def _result_type(aggregate: Aggregate, type_: pa.DataType) -> pa.DataType | None:
    """None: not offered."""
    function, kept = aggregate.function, stored_type(type_)
    if aggregate.word in ("bool_and", "bool_or"):
        return pa.bool_() if pt.is_boolean(type_) else None
    if function == "count":
        return pa.int64()
    if function == "sum" and pt.is_decimal(type_) and type_.bit_width <= 128:
        return pa.decimal128(MAX_DECIMAL_DIGITS, type_.scale)
    if function in ("sum", "mean", "var", "stddev"):
        whole = function == "sum" and pt.is_integer(type_)
        return (pa.int64() if whole else pa.float64()) if _is_number(type_) else None
    if function in ("min", "max"):
        return kept if _is_sortable(type_) else None
    if function in SETS:
        found = pa.int64() if function == "count_distinct" else pa.list_(kept)
        return found if _is_sortable(type_) else None
    if function in ("top_n", "bottom_n"):
        return pa.list_(kept) if aggregate.others or _is_sortable(type_) else None
    return pa.list_(kept) if function == "collect" else kept


def _user_field(name: str, aggregate: Aggregate, schema: pa.Schema, where: str) -> pa.Field:
    user: object = aggregate.user
    if not isinstance(user, ArrowAggregate):
        raise PipelineError(
            f"{name} needs an ArrowAggregate, got {user!r}",
            where=where,
            remedy="Give an instance of a subclass of tidegate.ArrowAggregate",
        )
    kind = type(user).__name__
    if not isinstance(getattr(user, "state", None), pa.Schema) or not len(user.state):
        remedy = 'Set it in the class: state = pa.schema([("total", pa.float64())])'
        raise PipelineError(f"{kind} declares no state", where=where, remedy=remedy)
    if not isinstance(getattr(user, "result_type", None), pa.DataType):
        remedy = "Set it in the class: result_type = pa.float64()"
        raise PipelineError(f"{kind} declares no result_type", where=where, remedy=remedy)
    if aggregate.column is None:
        raise PipelineError(
            f"{kind} has no columns", where=where, remedy='Name them: user_aggregate(MyMean(), "delay")'
        )
    for column in (aggregate.column, *aggregate.others):
        require_column(schema, column, where)
    return pa.field(name, user.result_type)


def _check_number(aggregate: Aggregate, where: str) -> None:
    n = aggregate.n
    if aggregate.word == "top_n" and (not isinstance(n, int) or n < 1):
        raise PipelineError(f"top_n of {n!r} rows", where=where, remedy='Give a number: top_n("price", 3)')
    if aggregate.function in ("var", "stddev") and n not in (0, 1):
        remedy = "Give 1 for a sample or 0 for the whole population"
        raise PipelineError(f"{aggregate.function} with ddof={n!r}", where=where, remedy=remedy)


def _is_number(type_: pa.DataType) -> bool:
    return bool(pt.is_integer(type_) or pt.is_float32(type_) or pt.is_float64(type_))


def _is_sortable(type_: pa.DataType) -> bool:
    return is_numeric_type(type_) or (is_key_type(type_) and not pt.is_float16(type_))


def _refused(aggregate: Aggregate, column: str, type_: pa.DataType, where: str) -> PipelineError:
    return PipelineError(
        f"{aggregate.word or aggregate.function} of column {column!r} is not offered: it is of type {type_}",
        where=where,
        remedy=_remedy(aggregate, column, type_),
    )


def _remedy(aggregate: Aggregate, column: str, type_: pa.DataType) -> str:
    word = aggregate.word or aggregate.function
    if word in ("bool_and", "bool_or"):
        return f"{word} takes booleans; compare first: .with_columns({column}=pc.field({column!r}) > 0)"
    takes = "numbers" + (" and decimals" if word == "sum" else "")
    if word not in ("sum", "mean", "var", "stddev"):
        takes = "numbers, decimals, strings, binary, booleans, dates and times"
    as_float = pt.is_decimal(type_) or pt.is_float16(type_) or pt.is_string(type_)
    cast = "pa.float64()" if as_float else "pa.int64()"
    return (
        f"{word} takes {takes}; to use the column as a number, cast it first: "
        f".with_columns({column}=pc.field({column!r}).cast({cast}))"
    )
