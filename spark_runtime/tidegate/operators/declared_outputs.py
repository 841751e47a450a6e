"""Checks that the results of a user's function match their declared schema."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from tidegate.errors import PipelineError
from tidegate.operators.batch_sizes import MAX_BATCH_ROWS
from tidegate.operators.stream_operator import Output, SideOutput

Refuse = Callable[[str, str], PipelineError]
"""Makes the error from (cause, remedy)."""


def check_outputs(
    result: object, schema: pa.Schema, side_outputs: Mapping[str, pa.Schema], refuse: Refuse
) -> Iterator[Output]:
    """Check a result and split it into batches of at most `MAX_BATCH_ROWS` rows. An empty result gives no batch.

    Args:
        schema: of the main output.
        side_outputs: name of each side output -> its schema.

    Raises:
        PipelineError: the result does not match the schema of its output; made by `refuse`.
    """
    if not isinstance(result, SideOutput):
        checked = check_output(result, schema, refuse)
        if 0 < checked.num_rows <= MAX_BATCH_ROWS:
            yield checked
            return
        for start in range(0, checked.num_rows, MAX_BATCH_ROWS):
            yield checked.slice(start, MAX_BATCH_ROWS)
        return
    name = result.name
    if name not in side_outputs:
        declared = f"declared are {sorted(side_outputs)}" if side_outputs else "none is declared"
        raise refuse(
            f"rows were returned for the undeclared side output {name!r}; {declared}",
            f"Declare the side output: side_outputs={{{name!r}: pa.schema(...)}}",
        )
    checked = check_output(
        result.batch, side_outputs[name], lambda cause, remedy: refuse(f"side output {name!r}: {cause}", remedy)
    )
    for start in range(0, checked.num_rows, MAX_BATCH_ROWS):
        yield SideOutput(name, checked.slice(start, MAX_BATCH_ROWS))


def check_output(result: object, schema: pa.Schema, refuse: Refuse) -> pa.RecordBatch:
    """Return the result with exactly the declared schema.

    Raises:
        PipelineError: the result does not match it; made by `refuse`, names the column.
    """
    if not isinstance(result, pa.RecordBatch):
        raise refuse(f"the result is a {type(result).__name__}", "Yield pyarrow.RecordBatch objects")
    is_declared = result.schema.equals(schema, check_metadata=True)
    if is_declared and all(field.nullable for field in schema):
        return result
    if result.schema.names != schema.names:
        declared, given = schema.names, result.schema.names
        missing = [name for name in declared if name not in given]
        extra = [name for name in given if name not in declared]
        cause = f"the columns are {given}, but the declared columns are {declared}"
        if missing or extra:
            cause += f"; missing {missing}, not declared {extra}"
        raise refuse(cause, "Yield exactly the declared columns, in the declared order")
    for field, array in zip(schema, result.columns, strict=True):
        if array.type != field.type:
            raise refuse(
                f"column {field.name!r} is {array.type}, but {field.type} is declared",
                f"Cast {field.name!r} in the function, or declare {array.type}",
            )
        if not field.nullable and array.null_count:
            raise refuse(
                f"column {field.name!r} has nulls, but is declared not null", f"Declare {field.name!r} nullable"
            )
    return pa.RecordBatch.from_arrays(result.columns, schema=schema)
