"""`user_aggregate`: an `ArrowAggregate` written by the user, whose states are kept as rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tidegate.errors import PipelineError
from tidegate.state.aggregates.aggregation import (
    AggregateArguments,
    AggregateFunction,
    Aggregation,
    ArrowAggregate,
    Groups,
)
from tidegate.state.aggregates.row_log import Columns, RowLog, Rows, one_or_null
from tidegate.state.copy_on_write import CopyOnWriteArrays, Entries
from tidegate.state.keys.key_bytes import Int64s


class UserStates:
    """States of a user aggregate. Checks that its results have the declared types."""

    def __init__(self, name: str, user: ArrowAggregate, output: pa.DataType) -> None:
        self._user, self._output = user, output
        self._where = f"aggregate {name!r} ({type(user).__name__})"

    def rows(self, entries: Entries, columns: Sequence[pa.Array]) -> Rows:
        """See `Fold`."""
        different, groups = _numbered(entries)
        states = self._user.accumulate(list(columns), groups, len(different))
        return different, self._checked(states, "accumulate", len(different))

    def fold(self, entries: Entries, columns: Columns) -> Rows:
        """See `Fold`."""
        different, groups = _numbered(entries)
        states = pa.RecordBatch.from_arrays(columns, schema=self._user.state)
        order = np.argsort(groups, kind="stable")
        states = states.take(pa.array(order))
        merged = self._user.merge(states, groups[order], len(different))
        return different, self._checked(merged, "merge", len(different))

    def result(self, columns: Columns, offsets: Int64s) -> pa.Array:
        """See `Fold`."""
        count = len(columns[0])
        found = self._user.result(pa.RecordBatch.from_arrays(columns, schema=self._user.state)) if count else None
        if found is None:
            found = pa.nulls(0, self._output)
        if not isinstance(found, pa.Array) or found.type != self._output or len(found) != count:
            actual = (
                f"{len(found)} values of type {found.type}"
                if isinstance(found, pa.Array)
                else f"a {type(found).__name__}"
            )
            raise self._refused("result", f"it returned {actual}; expected {count} values of type {self._output}")
        return one_or_null(found, offsets)

    def _checked(self, states: object, method: str, count: int) -> Columns:
        if not isinstance(states, pa.RecordBatch):
            raise self._refused(method, f"it returned a {type(states).__name__}, not a pyarrow.RecordBatch")
        if states.schema.names != self._user.state.names or states.schema.types != self._user.state.types:
            raise self._refused(method, f"it returned columns {states.schema}; declared columns: {self._user.state}")
        if states.num_rows != count:
            raise self._refused(method, f"it returned {states.num_rows} rows for {count} groups")
        return list(states.columns)

    def _refused(self, method: str, cause: str) -> PipelineError:
        return PipelineError(
            f"{method}() of a user aggregate returned an invalid value",
            where=self._where,
            cause=cause,
            remedy="Return one row of `state` for each group from accumulate() and merge(), and one "
            "value for each state from result()",
        )


def _numbered(entries: Entries) -> tuple[Entries, Groups]:
    different, groups = np.unique(entries, return_inverse=True)
    return different, groups.astype(np.int32)


def _columns(aggregation: Aggregation) -> pa.Schema:
    assert aggregation.user is not None
    state = aggregation.user.state
    return pa.schema([pa.field(f"user:{aggregation.name}:{field.name}", field.type) for field in state])


def _result_type(types: Sequence[pa.DataType], arguments: AggregateArguments) -> pa.DataType | None:
    return None if arguments.user is None else arguments.user.result_type


def _accumulator(aggregation: Aggregation, cells: CopyOnWriteArrays) -> RowLog:
    assert aggregation.user is not None
    states = UserStates(aggregation.name, aggregation.user, aggregation.output)
    return RowLog(aggregation, states, is_list=False, state_may_be_null=True)


def _check(arguments: AggregateArguments) -> None:
    user: object = arguments.user
    if not isinstance(user, ArrowAggregate):
        raise PipelineError(
            f"user_aggregate needs an ArrowAggregate, got {user!r}",
            remedy="Pass an instance of a subclass of tidegate.ArrowAggregate",
        )
    kind = type(user).__name__
    if not isinstance(getattr(user, "state", None), pa.Schema) or not len(user.state):
        remedy = 'Set the class attribute state: state = pa.schema([("total", pa.float64())])'
        raise PipelineError(f"{kind} does not declare a state", remedy=remedy)
    if not isinstance(getattr(user, "result_type", None), pa.DataType):
        remedy = "Set the class attribute result_type: result_type = pa.float64()"
        raise PipelineError(f"{kind} does not declare a result_type", remedy=remedy)
    if not arguments.columns:
        raise PipelineError(
            f"{kind} is used without columns",
            remedy='Name the columns of the aggregate: user_aggregate(MyMean(), "delay")',
        )


USER = AggregateFunction(
    name="user",
    result_type=_result_type,
    state_schema=_columns,
    accumulator=_accumulator,
    check=_check,
    most_columns=None,
)
