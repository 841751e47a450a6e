"""Frozen descriptions of the stateless operators, as a JobGraph holds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.operators.operator_spec import OperatorSpec, SideSchemas
from tidegate.operators.stream_operator import SideOutput
from tidegate.operators.user_functions.mode_dependence import batch_sensitivity_reason

BatchFunction = Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch | SideOutput]]
"""A user's `map_in_arrow` function. Its argument is an iterator over one batch; it returns any number of batches."""


@dataclass(frozen=True, eq=False)
class FilterSpec(OperatorSpec):
    """Keeps the rows for which `expression` is true; null counts as false.

    Attributes:
        expression: boolean expression over the input's columns.
        schema: of input and output.
    """

    expression: pc.Expression
    schema: pa.Schema

    def describe(self) -> str:
        """Return the expression."""
        return f"filter {self.expression}"


@dataclass(frozen=True, eq=False)
class ProjectSpec(OperatorSpec):
    """Computes every output column from an expression.

    Attributes:
        columns: (name, expression) of each output column, in order.
        schema: of the output; a result of another type is cast, and the cast fails rather than lose data.
    """

    columns: tuple[tuple[str, pc.Expression], ...]
    schema: pa.Schema

    def describe(self) -> str:
        """Return the output columns, with the expressions of computed ones."""
        texts = (name if str(expression) == name else f"{name}={expression}" for name, expression in self.columns)
        return f"project {', '.join(texts)}"


@dataclass(frozen=True)
class MapInArrowSpec(OperatorSpec):
    """Calls a user function once for each batch, and exhausts its result before anything else happens.

    Attributes:
        function: the user's function.
        schema: of the batches it returns; the job fails on any other schema, with the column's name.
        side_outputs: side outputs that it may return rows for.
    """

    function: BatchFunction
    schema: pa.Schema
    side_outputs: SideSchemas = ()

    def mode_dependence(self) -> str:
        """Return the reason that the user declared for the function, or ""."""
        return batch_sensitivity_reason(self.function)

    def describe(self) -> str:
        """Return the function's name."""
        return f"map_in_arrow {getattr(self.function, '__qualname__', type(self.function).__name__)}"


@dataclass(frozen=True)
class UnionSpec(OperatorSpec):
    """Passes the batches of all inputs, which have one schema, in order of arrival."""

    def describe(self) -> str:
        """Return "union"."""
        return "union"
