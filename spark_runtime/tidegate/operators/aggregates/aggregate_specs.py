"""Frozen descriptions of aggregates without windows, as a JobGraph holds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from tidegate.jobs.options import ProcessingTimeOnEnd
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.specs import Agg
from tidegate.operators.stream_operator import EndOfInput, StreamOperator

AggregateOutput = Literal["update", "final"]
"""When aggregates without windows are given: whenever they change, or once at the end of the input."""


@dataclass(frozen=True)
class PartialAggSpec:
    """Aggregates each batch by itself: a row for each of its keys, with the state of the aggregates.

    Attributes:
        keys: key columns.
        aggregates: of the operator that puts the rows together.
        input_schema: of the input.
        schema: of the output: keys, then the state columns of each aggregate.
        results: types of the aggregates' results.
    """

    keys: tuple[str, ...]
    aggregates: tuple[Agg, ...]
    input_schema: pa.Schema
    schema: pa.Schema
    results: pa.Schema

    def create(self) -> StreamOperator:
        """A fresh aggregation of batches."""
        from tidegate.operators.aggregates.running_aggregate import PartialAggregate

        return PartialAggregate(self)

    def describe(self) -> str:
        """Aggregates."""
        return f"aggregates of each batch: {', '.join(map(str, self.aggregates))}"


@dataclass(frozen=True)
class RunningAggSpec:
    """Aggregates per key over all rows so far.

    Attributes:
        keys: key columns; null is a key of its own.
        aggregates: output columns after the keys, in order.
        input_schema: of the rows that are aggregated.
        schema: of the output: keys, then aggregates.
        output: when they are given.
        renamed: (key or output column in older snapshots, its name now).
        is_partial: what comes in has been aggregated by `PartialAggSpec`.
    """

    keys: tuple[str, ...]
    aggregates: tuple[Agg, ...]
    input_schema: pa.Schema
    schema: pa.Schema
    output: AggregateOutput
    renamed: tuple[tuple[str, str], ...] = ()
    is_partial: bool = False

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """All of them, as "final"."""
        return "any" if self.output == "final" else "none"

    def mode_dependence(self) -> str:
        """As updates, or in order of arrival."""
        return "it gives results before they are final" if self.output == "update" else ""

    def create(self) -> StreamOperator:
        """A fresh running aggregation."""
        from tidegate.operators.aggregates.running_aggregate import RunningAggregate

        return RunningAggregate(self)

    def states(self) -> tuple[StateShape, ...]:
        """The groups."""
        from tidegate.operators.backend_shapes import running_shapes

        return running_shapes(self)

    def describe(self) -> str:
        """Keys, aggregates and output."""
        return f"{self.output} aggregates by {', '.join(self.keys)}: {', '.join(map(str, self.aggregates))}"


@dataclass(frozen=True)
class UnnestRowsSpec:
    """Gives a row for each element of a list of structs, with its place in the list.

    Attributes:
        column: the list.
        rank: output column, int32: the place, from 1.
        schema: of the output: the other columns, `rank`, and the structs' fields.
    """

    column: str
    rank: str
    schema: pa.Schema

    def create(self) -> StreamOperator:
        """A fresh operator."""
        from tidegate.operators.aggregates.running_aggregate import UnnestRows

        return UnnestRows(self)

    def describe(self) -> str:
        """The column."""
        return f"a row for each of {self.column}"
