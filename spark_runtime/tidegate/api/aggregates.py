"""Aggregates of windows, of groups and of whole streams.

Nulls are left out, as in SQL: an aggregate of no values is null, a count of none is 0. NaN is greater than any number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from tidegate.api.draft.call_site import user_location
from tidegate.api.draft.column_checks import refuse_duplicates, require_column
from tidegate.api.draft.graph_draft import call_place, with_place
from tidegate.errors import PipelineError
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.state.aggregates.aggregate_registry import find_aggregate
from tidegate.state.aggregates.aggregation import AggregateFunction, ArrowAggregate, is_sortable


@dataclass(frozen=True)
class Aggregate:
    """One aggregate; made by the functions of this module.

    Attributes:
        function: its name in the registry.
        column: what it aggregates; None: rows.
        others: further columns.
        n: see `BoundAggregate`.
        orders: as many of `others`, at the end, are what rows are ordered by.
        user: of `user_aggregate`.
    """

    function: str
    column: str | None
    others: tuple[str, ...] = ()
    n: int = 0
    orders: int = 0
    user: ArrowAggregate | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns."""
        return (*(() if self.column is None else (self.column,)), *self.others)

    def __str__(self) -> str:
        word = find_aggregate(self.function).word if self.user is None else type(self.user).__name__
        return f"{word}({', '.join(self.columns)})"


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
    return Aggregate("bool_and", column)


def bool_or(column: str) -> Aggregate:
    """Whether any of a boolean column is true."""
    return Aggregate("bool_or", column)


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
    function = "bottom_n" if ascending else "top_n"
    return Aggregate(function, column, () if by is None else (by,), n, orders=int(by is not None))


def user_aggregate(aggregate: ArrowAggregate, *columns: str) -> Aggregate:
    """An aggregate of your own over these columns."""
    column, others = (columns[0], columns[1:]) if columns else (None, ())
    return Aggregate("user", column, others, user=aggregate)


def aggregate(name: str, *columns: str, n: int = 0, by: str | None = None) -> Aggregate:
    """An aggregate by its name, such as one that another package registers as an entry point of the group
    `tidegate.aggregates`.

    Args:
        name: such as "median".
        columns: what it aggregates; none: rows.
        n: a number, where it takes one.
        by: a column that rows are ordered by, where it takes one.

    Raises:
        PipelineError: no installed package has an aggregate of this name.
    """
    try:
        find_aggregate(name)
    except PipelineError as error:
        raise with_place(error, call_place("aggregate", None, user_location())) from error
    if by is not None and not columns:
        raise PipelineError(
            f"{name} by {by!r} needs a column",
            where=call_place("aggregate", None, user_location()),
            remedy=f'Name it: aggregate({name!r}, "delay", by={by!r})',
        )
    column, others = (columns[0], columns[1:]) if columns else (None, ())
    return Aggregate(name, column, others if by is None else (*others, by), n, orders=int(by is not None))


def bound_aggregates(
    aggregates: Mapping[str, object], schema: pa.Schema, time_column: str | None, where: str
) -> tuple[tuple[BoundAggregate, ...], list[pa.Field]]:
    """The aggregates as an operator takes them, and the fields of their results.

    Raises:
        PipelineError: there is none, one is no aggregate, a column is missing or its type does not fit.
    """
    if not aggregates:
        raise PipelineError("agg of nothing", where=where, remedy="Give at least one: .agg(rows=count(), uid=...)")
    aggs: list[BoundAggregate] = []
    fields: list[pa.Field] = []
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise PipelineError(
                f"{name} is not an aggregate: {aggregate!r}",
                where=where,
                cause="Python's own sum, min or max?" if callable(aggregate) else "",
                remedy="Use count, sum, min, max and the others of tidegate, each called: tidegate.sum('delay')",
            )
        function = find_aggregate(aggregate.function)
        fields.append(pa.field(name, _result_type(function, aggregate, schema, where)))
        others, orders = aggregate.others, aggregate.orders
        if time_column is not None and (orders or function.by_time):
            others, orders = (*others, time_column), orders + 1
        aggs.append(BoundAggregate(name, function.name, aggregate.column, others, aggregate.n, orders, aggregate.user))
    refuse_duplicates((field.name for field in fields), where, remedy="Rename one of them")
    return tuple(aggs), fields


def _result_type(function: AggregateFunction, aggregate: Aggregate, schema: pa.Schema, where: str) -> pa.DataType:
    """Type of the result over `schema`; PipelineError when a column is missing, or its type or an argument does not
    fit."""
    try:
        function.check(aggregate)
    except PipelineError as error:
        raise with_place(error, where) from error
    _check_columns(function, aggregate, where)
    word, types = function.word, [require_column(schema, column, where).type for column in aggregate.columns]
    found = function.result_type(types, aggregate) if types or not function.needs_column else None
    if found is None and not types:
        raise PipelineError(f"{word}() needs a column", where=where, remedy=f'Name it: {word}("delay")')
    if found is None:
        raise _refused(function, aggregate.columns[0], types[0], where)
    ordering = len(types) - aggregate.orders
    for column, type_ in zip(aggregate.columns[ordering:], types[ordering:], strict=True):
        if not is_sortable(type_):
            raise _refused(function, column, type_, where)
    return found


def _check_columns(function: AggregateFunction, aggregate: Aggregate, where: str) -> None:
    word, orders = function.word, aggregate.orders
    if orders and function.by == "none":
        raise PipelineError(f"rows of {word} are not ordered by a column", where=where, remedy="Leave out by=")
    if not orders and function.by == "required":
        remedy = f'Name it: {word}("shop", by="price")'
        raise PipelineError(f"{word} needs a column to compare", where=where, remedy=remedy)
    count, most = len(aggregate.columns) - orders, function.most_columns
    if most is not None and count > most:
        raise PipelineError(f"{word} of {count} columns", where=where, remedy=f"Give {most} at most")


def _refused(function: AggregateFunction, column: str, type_: pa.DataType, where: str) -> PipelineError:
    return PipelineError(
        f"{function.word} of column {column!r} is not offered: it is of type {type_}",
        where=where,
        remedy=f"{function.word} takes {function.takes}; {function.conversion(column, type_)}",
    )
