"""Aggregates for windows, groups and whole streams.

Nulls are ignored, as in SQL: an aggregate of no values is null, and a count of none is 0. NaN is greater than any
number.
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
    """One aggregate. The functions of this module create it.

    Attributes:
        function: its name in the registry.
        column: the column that it aggregates; None: it counts rows.
        others: further columns.
        n: see `BoundAggregate`.
        orders: how many of `others`, at its end, rows are ordered by.
        user: the aggregate passed to `user_aggregate`.
    """

    function: str
    column: str | None
    others: tuple[str, ...] = ()
    n: int = 0
    orders: int = 0
    user: ArrowAggregate | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Return all columns."""
        return (*(() if self.column is None else (self.column,)), *self.others)

    def __str__(self) -> str:
        word = find_aggregate(self.function).word if self.user is None else type(self.user).__name__
        return f"{word}({', '.join(self.columns)})"


def count(column: str | None = None) -> Aggregate:
    """Count rows, as int64; with a column: the rows in which it is not null."""
    return Aggregate("count", column)


def sum(column: str) -> Aggregate:
    """Sum numbers: integers as int64, floats as float64, decimals with 38 digits. A sum outside that range fails the
    job."""
    return Aggregate("sum", column)


def min(column: str) -> Aggregate:
    """Return the smallest number, decimal, string, boolean, date or time, in the column's type."""
    return Aggregate("min", column)


def max(column: str) -> Aggregate:
    """Return the largest number, decimal, string, boolean, date or time, in the column's type."""
    return Aggregate("max", column)


def mean(column: str) -> Aggregate:
    """Return the mean of numbers, as float64."""
    return Aggregate("mean", column)


def var(column: str, *, ddof: int = 1) -> Aggregate:
    """Return the variance of numbers, as float64: of a sample, or with ddof=0 of the whole population.

    The result is null for `ddof` values or fewer.
    """
    return Aggregate("var", column, n=ddof)


def stddev(column: str, *, ddof: int = 1) -> Aggregate:
    """Return the standard deviation: the square root of `var`."""
    return Aggregate("stddev", column, n=ddof)


def bool_and(column: str) -> Aggregate:
    """Return whether all values of a boolean column are true."""
    return Aggregate("bool_and", column)


def bool_or(column: str) -> Aggregate:
    """Return whether any value of a boolean column is true."""
    return Aggregate("bool_or", column)


def count_distinct(column: str) -> Aggregate:
    """Count different values, exactly: the state keeps all of them."""
    return Aggregate("count_distinct", column)


def collect_set(column: str) -> Aggregate:
    """Collect the different values as a list, ascending."""
    return Aggregate("collect_set", column)


def collect(column: str) -> Aggregate:
    """Collect all values as a list, ordered by event time, equal times by arrival.

    Without event time on the stream, the order is the order of arrival.
    """
    return Aggregate("collect", column)


def first(column: str) -> Aggregate:
    """Return the value with the earliest event time; of equal times the first to arrive.

    Without event time on the stream, it is the first value to arrive.
    """
    return Aggregate("first", column)


def last(column: str) -> Aggregate:
    """Return the value with the latest event time; of equal times the last to arrive.

    Without event time on the stream, it is the last value to arrive.
    """
    return Aggregate("last", column)


def min_by(column: str, by: str) -> Aggregate:
    """Return `column`, also if null, of the row with the smallest `by`; of equal rows the earliest."""
    return Aggregate("min_by", column, (by,), orders=1)


def max_by(column: str, by: str) -> Aggregate:
    """Return `column`, also if null, of the row with the largest `by`; of equal rows the earliest."""
    return Aggregate("max_by", column, (by,), orders=1)


def top_n(column: str, n: int, *, by: str | None = None, ascending: bool = False) -> Aggregate:
    """Return the `n` largest values as a list, largest first; with `ascending` the smallest ones.

    With `by`, return `column` of the rows with the largest `by`. Equal rows are ordered by time, earliest first.
    """
    function = "bottom_n" if ascending else "top_n"
    return Aggregate(function, column, () if by is None else (by,), n, orders=int(by is not None))


def user_aggregate(aggregate: ArrowAggregate, *columns: str) -> Aggregate:
    """Apply your own aggregate to these columns."""
    column, others = (columns[0], columns[1:]) if columns else (None, ())
    return Aggregate("user", column, others, user=aggregate)


def aggregate(name: str, *columns: str, n: int = 0, by: str | None = None) -> Aggregate:
    """Return an aggregate by its name, such as one that another package registers as an entry point of the group
    `tidegate.aggregates`.

    Args:
        name: such as "median".
        columns: columns to aggregate; none: rows.
        n: a number, if the aggregate has one.
        by: a column that rows are ordered by, if the aggregate has one.

    Raises:
        PipelineError: no installed package has an aggregate of this name.
    """
    try:
        find_aggregate(name)
    except PipelineError as error:
        raise with_place(error, call_place("aggregate", None, user_location())) from error
    if by is not None and not columns:
        raise PipelineError(
            f"aggregate {name!r} has by={by!r}, but no column to aggregate",
            where=call_place("aggregate", None, user_location()),
            remedy=f'Name the column: aggregate({name!r}, "delay", by={by!r})',
        )
    column, others = (columns[0], columns[1:]) if columns else (None, ())
    return Aggregate(name, column, others if by is None else (*others, by), n, orders=int(by is not None))


def bound_aggregates(
    aggregates: Mapping[str, object], schema: pa.Schema, time_column: str | None, where: str
) -> tuple[tuple[BoundAggregate, ...], list[pa.Field]]:
    """Return the aggregates for an operator, and the fields of their results.

    Raises:
        PipelineError: there is no aggregate, one is invalid, a column is missing, or its type does not fit.
    """
    if not aggregates:
        raise PipelineError(
            "agg(...) has no aggregates", where=where, remedy="Pass at least one: .agg(rows=count(), uid=...)"
        )
    aggs: list[BoundAggregate] = []
    fields: list[pa.Field] = []
    for name, aggregate in aggregates.items():
        if not isinstance(aggregate, Aggregate):
            raise PipelineError(
                f"argument {name} of agg(...) must be an aggregate, but is {aggregate!r}",
                where=where,
                cause="sum, min and max without import are Python's own functions" if callable(aggregate) else "",
                remedy="Call count, sum, min, max or another function of tidegate: tidegate.sum('delay')",
            )
        function = find_aggregate(aggregate.function)
        fields.append(pa.field(name, _result_type(function, aggregate, schema, where)))
        others, orders = aggregate.others, aggregate.orders
        # Event time breaks ties of an order. It is the only order of aggregates `by_time`, such as `first`.
        if time_column is not None and (orders or function.by_time):
            others, orders = (*others, time_column), orders + 1
        aggs.append(BoundAggregate(name, function.name, aggregate.column, others, aggregate.n, orders, aggregate.user))
    refuse_duplicates((field.name for field in fields), where, remedy="Rename one of the columns")
    return tuple(aggs), fields


def _result_type(function: AggregateFunction, aggregate: Aggregate, schema: pa.Schema, where: str) -> pa.DataType:
    """Return the type of the result over `schema`.

    Raises:
        PipelineError: a column is missing, or its type or an argument does not fit.
    """
    try:
        function.check(aggregate)
    except PipelineError as error:
        raise with_place(error, where) from error
    _check_columns(function, aggregate, where)
    word, types = function.word, [require_column(schema, column, where).type for column in aggregate.columns]
    found = function.result_type(types, aggregate) if types or not function.needs_column else None
    if found is None and not types:
        raise PipelineError(f"{word}() needs a column", where=where, remedy=f'Name the column: {word}("delay")')
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
        raise PipelineError(f"{word}(...) does not support by=, an order of rows", where=where, remedy="Remove by=")
    if not orders and function.by == "required":
        remedy = f'Name the column: {word}("shop", by="price")'
        raise PipelineError(f"{word} needs by=, the column whose values it compares", where=where, remedy=remedy)
    count, most = len(aggregate.columns) - orders, function.most_columns
    if most is not None and count > most:
        raise PipelineError(
            f"{word}(...) has {count} columns, but supports {most}", where=where, remedy=f"Pass at most {most}"
        )


def _refused(function: AggregateFunction, column: str, type_: pa.DataType, where: str) -> PipelineError:
    return PipelineError(
        f"{function.word} does not support column {column!r} of type {type_}",
        where=where,
        remedy=f"{function.word} takes {function.takes}; {function.conversion(column, type_)}",
    )
