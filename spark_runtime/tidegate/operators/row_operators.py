"""Stateless operators: filter, project, map_in_arrow, union."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import acero

from tidegate.errors import PipelineError
from tidegate.operators.batch_sizes import concat_batches
from tidegate.operators.declared_outputs import check_outputs
from tidegate.operators.row_specs import FilterSpec, MapInArrowSpec, ProjectSpec, UnionSpec
from tidegate.operators.stream_operator import Output, StreamOperator


class FilterOperator(StreamOperator):
    """Keeps the rows for which the expression is true. Stateless; rows keep their order; empty results are not
    emitted."""

    def __init__(self, spec: FilterSpec) -> None:
        self._node = acero.FilterNodeOptions(spec.expression)
        self._schema = spec.schema

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Emit the rows that pass, in one batch."""
        kept = _run(batch, "filter", self._node)
        if kept.num_rows:
            yield pa.RecordBatch.from_arrays(kept.columns, schema=self._schema)


class ProjectOperator(StreamOperator):
    """Computes the output columns, one output row for each input row. Stateless; plain columns are passed unchanged."""

    def __init__(self, spec: ProjectSpec) -> None:
        self._schema = spec.schema
        self._sources: list[str | int] = []
        computed: list[pc.Expression] = []
        for _, expression in spec.columns:
            plain = _plain_column(expression)
            self._sources.append(len(computed) if plain is None else plain)
            if plain is None:
                computed.append(expression)
        names = [str(i) for i in range(len(computed))]
        self._node = acero.ProjectNodeOptions(computed, names) if computed else None

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Emit one batch of the output schema.

        Raises:
            ArrowInvalid: a value does not fit its output type.
        """
        computed = None if self._node is None else _run(batch, "project", self._node)
        arrays = []
        for field, source in zip(self._schema, self._sources, strict=True):
            if isinstance(source, str):
                array = batch.column(source)
            else:
                assert computed is not None
                array = computed.column(source)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class MapInArrowOperator(StreamOperator):
    """Calls the user's function once for each batch.

    The function's result is exhausted before anything else happens, so none of its rows is in flight when a barrier
    arrives (S4.1). Its exceptions are not wrapped. The function's own variables are not part of snapshots.
    """

    def __init__(self, spec: MapInArrowSpec) -> None:
        self._function = spec.function
        self._schema = spec.schema
        self._side_outputs = dict(spec.side_outputs)

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Emit the function's batches, without empty ones, in pieces of at most `MAX_BATCH_ROWS` rows.

        Raises:
            PipelineError: a result is not a batch, or does not match the schema of its output; names the column.
        """
        for result in self._function(iter((batch,))):
            yield from check_outputs(result, self._schema, self._side_outputs, self._refused)

    def _refused(self, cause: str, remedy: str) -> PipelineError:
        name = getattr(self._function, "__qualname__", type(self._function).__name__)
        return PipelineError(
            f"rows that map_in_arrow function {name} returned do not match its declared schema",
            where=f"operator {self.ctx.uid!r}",
            cause=cause,
            remedy=remedy,
        )


class UnionOperator(StreamOperator):
    """Emits every batch unchanged, whichever input it came from. Stateless. With one input it only names an edge."""

    def __init__(self, _spec: UnionSpec) -> None:
        """The spec holds no options."""

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        """Emit the batch."""
        yield batch


def _plain_column(expression: pc.Expression) -> str | None:
    """Return the column's name if the expression is only a column, else None."""
    text = str(expression)
    return text if expression.equals(pc.field(text)) else None


def _run(batch: pa.RecordBatch, kind: str, options: acero.ExecNodeOptions) -> pa.RecordBatch:
    source = acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([batch])))
    plan = acero.Declaration.from_sequence([source, acero.Declaration(kind, options)])
    batches = plan.to_table(use_threads=False).to_batches()
    return concat_batches(batches) if batches else batch.slice(0, 0)
