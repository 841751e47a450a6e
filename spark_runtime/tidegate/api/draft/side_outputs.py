"""Side outputs as the user declares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from tidegate.api.draft.column_checks import refuse_duplicates, same_columns
from tidegate.api.draft.graph_draft import UID, DraftOutput
from tidegate.api.draft.stream_time import StreamEventTime
from tidegate.errors import PipelineError
from tidegate.operators.stream_operator import MAIN_OUTPUT


def checked_side_outputs(
    declared: object, input_schema: pa.Schema, event_time: StreamEventTime, where: str
) -> tuple[DraftOutput, ...]:
    """Of a mapping name -> schema, or None. An output has event time where it has the input's column of it, of the same
    type. PipelineError for anything else."""
    if declared is None:
        return ()
    if not isinstance(declared, Mapping):
        raise PipelineError(
            f"side_outputs is a {type(declared).__name__}",
            where=where,
            remedy='Give names and schemas: side_outputs={"bad": pa.schema([("line", pa.string())])}',
        )
    return tuple(_checked(name, schema, input_schema, event_time, where) for name, schema in declared.items())


def _checked(
    name: object, schema: object, input_schema: pa.Schema, event_time: StreamEventTime, where: str
) -> DraftOutput:
    if not isinstance(name, str) or not UID.fullmatch(name) or name == MAIN_OUTPUT:
        raise PipelineError(
            f"{name!r} cannot be the name of a side output",
            where=where,
            cause=f"{MAIN_OUTPUT!r} is the output that every operator has" if name == MAIN_OUTPUT else "",
            remedy='Use letters, digits and ._- , a letter or digit first, such as "bad"',
        )
    if not isinstance(schema, pa.Schema):
        raise PipelineError(
            f"the side output {name!r} needs a schema, got {type(schema).__name__}",
            where=where,
            remedy=f'Give one: side_outputs={{{name!r}: pa.schema([("line", pa.string())])}}',
        )
    refuse_duplicates(schema.names, where, remedy="Give every column a name of its own")
    return DraftOutput(name, schema, event_time.after_projection(same_columns(schema, input_schema), where))


def declared_schemas(sides: Sequence[DraftOutput]) -> tuple[tuple[str, pa.Schema], ...]:
    """Names and schemas, as an operator takes them."""
    return tuple((side.name, side.schema) for side in sides)
