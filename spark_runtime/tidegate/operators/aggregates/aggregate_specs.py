"""Frozen descriptions of aggregates, and of the operators that compute them without windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa

from tidegate.jobs.options import ProcessingTimeOnEnd
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.operator_spec import ChangeInputs, EndOfInput, KeyedStatePlace, OperatorSpec
from tidegate.snapshot.evolved_columns import schema_columns
from tidegate.snapshot.parts import KEY_GROUP_COLUMN
from tidegate.state.aggregates.aggregate_registry import find_aggregate
from tidegate.state.aggregates.aggregation import Aggregation, ArrowAggregate
from tidegate.state.keys.key_types import stored_type

AggregateOutput = Literal["update", "final"]
"""When aggregates without windows are emitted: on each change, or once at the end of the input."""

GROUPS = "groups"
"""State of aggregates without windows."""


@dataclass(frozen=True)
class BoundAggregate:
    """One aggregate with its output and input columns.

    Attributes:
        name: output column.
        function: the aggregate's name in the registry.
        column: its first input; None: it counts rows.
        others: further inputs: columns of a user's aggregate, then the columns that rows are ordered by.
        n: number of rows for top_n; for var and stddev, the number subtracted in the divisor.
        orders: how many of `others`, at its end, rows are ordered by.
        user: the user's aggregate, if `function` is "user".
    """

    name: str
    function: str
    column: str | None = None
    others: tuple[str, ...] = ()
    n: int = 0
    orders: int = 0
    user: ArrowAggregate | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Return all input columns."""
        return (*(() if self.column is None else (self.column,)), *self.others)

    def bound(self, schema: pa.Schema, output: pa.DataType) -> Aggregation:
        """Return the aggregation for the types that its inputs have in `schema`."""
        types = tuple(schema.field(column).type for column in self.columns)
        names, function = self.columns[: len(types) - self.orders], find_aggregate(self.function)
        return Aggregation(self.name, function, types, output, self.n, self.orders, self.user, names)

    def __str__(self) -> str:
        name = self.function if self.user is None else type(self.user).__name__
        return f"{self.name}={name}({', '.join(self.columns) or '*'})"


def aggregate_fields(
    keys: Sequence[str], aggregates: Sequence[BoundAggregate], input_schema: pa.Schema, results: pa.Schema
) -> list[pa.Field]:
    """Return the fields of aggregates in snapshots: key columns as `key:<name>`, then the columns of each aggregate.

    Args:
        keys: key columns.
        input_schema: of the rows that are aggregated.
        results: schema with the type of each aggregate's result.
    """
    fields = [pa.field(f"key:{key}", stored_type(input_schema.field(key).type)) for key in keys]
    for agg in aggregates:
        fields += agg.bound(input_schema, results.field(agg.name).type).state_schema()
    return fields


@dataclass(frozen=True)
class PartialAggSpec(OperatorSpec):
    """Aggregates each batch alone: emits a row for each of its keys, with the state of the aggregates.

    Attributes:
        whole_input: aggregate the rows of all batches: emit when the memory is full, and at the end of the input.
            For batch mode.
        uid: with `whole_input`: uid of the operator that merges the rows.
        keys: key columns.
        aggregates: of the downstream operator that merges the rows.
        input_schema: of the input.
        schema: of the output: keys, then the state columns of each aggregate.
        results: types of the aggregates' results.
    """

    change_inputs: ClassVar[ChangeInputs] = "none"

    keys: tuple[str, ...]
    aggregates: tuple[BoundAggregate, ...]
    input_schema: pa.Schema
    schema: pa.Schema
    results: pa.Schema
    whole_input: bool = False
    uid: str = ""

    @property
    def part_of(self) -> str:
        """Return the uid of the operator that merges the rows, if the planner added this one."""
        return self.uid

    def describe(self) -> str:
        """Aggregates."""
        return f"aggregates of each batch: {', '.join(map(str, self.aggregates))}"


@dataclass(frozen=True)
class RunningAggSpec(OperatorSpec):
    """Aggregates per key over all rows so far.

    Attributes:
        keys: key columns; null is a key of its own.
        aggregates: output columns after the keys, in order.
        input_schema: of the rows that are aggregated.
        schema: of the output: keys, then aggregates.
        output: when they are emitted.
        renamed: (key or output column in older snapshots, its name now).
        is_partial: the input rows were aggregated by `PartialAggSpec`.
    """

    keyed_state: ClassVar[KeyedStatePlace] = "columns"
    change_inputs: ClassVar[ChangeInputs] = "none"

    keys: tuple[str, ...]
    aggregates: tuple[BoundAggregate, ...]
    input_schema: pa.Schema
    schema: pa.Schema
    output: AggregateOutput
    renamed: tuple[tuple[str, str], ...] = ()
    is_partial: bool = False

    @property
    def state_schema(self) -> pa.Schema:
        """Return the columns of the state."""
        fields = aggregate_fields(self.keys, self.aggregates, self.input_schema, self.schema)
        return pa.schema([pa.field(KEY_GROUP_COLUMN, pa.uint16()), *fields])

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Return "any" for final results: all of them are emitted at the end."""
        return "any" if self.output == "final" else "none"

    def mode_dependence(self) -> str:
        """Return the reason if output is "update", else ""."""
        return "it gives results before they are final" if self.output == "update" else ""

    def states(self) -> tuple[StateShape, ...]:
        """Return the state of the groups."""
        columns = schema_columns(self.state_schema)
        return (StateShape(GROUPS, "keyed", columns, renamed=dict(self.renamed), fills=False),)

    def describe(self) -> str:
        """Return keys, aggregates and output."""
        return f"{self.output} aggregates by {', '.join(self.keys)}: {', '.join(map(str, self.aggregates))}"


@dataclass(frozen=True)
class UnnestRowsSpec(OperatorSpec):
    """Emits a row for each element of a list of structs, with the element's position in the list.

    Attributes:
        column: the list.
        rank: output column, int32: the position, from 1.
        schema: of the output: the other columns, `rank`, and the structs' fields.
    """

    column: str
    rank: str
    schema: pa.Schema

    def describe(self) -> str:
        """Return the column."""
        return f"a row for each of {self.column}"
