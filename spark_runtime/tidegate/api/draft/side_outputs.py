"""Checks side outputs as the user declares them."""

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
    """Return the side outputs of a mapping name -> schema, or of None.

    An output has event time if it has the input's event-time column, with the same type.

    Raises:
        PipelineError: the declaration is invalid.
    """
    if declared is None:
        return ()
    if not isinstance(declared, Mapping):
        raise PipelineError(
            f"side_outputs must be a dict of names and schemas, but is a {type(declared).__name__}",
            where=where,
            remedy='Write it as in side_outputs={"bad": pa.schema([("line", pa.string())])}',
        )
    return tuple(_checked(name, schema, input_schema, event_time, where) for name, schema in declared.items())


def _checked(
    name: object, schema: object, input_schema: pa.Schema, event_time: StreamEventTime, where: str
) -> DraftOutput:
    if not isinstance(name, str) or not UID.fullmatch(name) or name == MAIN_OUTPUT:
        raise PipelineError(
            f"{name!r} is not a valid name of a side output",
            where=where,
            cause=f"{MAIN_OUTPUT!r} is the name of the main output of every operator" if name == MAIN_OUTPUT else "",
            remedy='Use letters, digits and ._- , starting with a letter or digit, such as "bad"',
        )
    if not isinstance(schema, pa.Schema):
        raise PipelineError(
            f"the schema of side output {name!r} must be a pyarrow.Schema, but is a {type(schema).__name__}",
            where=where,
            remedy=f'Pass a schema: side_outputs={{{name!r}: pa.schema([("line", pa.string())])}}',
        )
    refuse_duplicates(schema.names, where, remedy="Use a different name for every column")
    return DraftOutput(name, schema, event_time.after_projection(same_columns(schema, input_schema), where))


def declared_schemas(sides: Sequence[DraftOutput]) -> tuple[tuple[str, pa.Schema], ...]:
    """Return names and schemas, for an operator's spec."""
    return tuple((side.name, side.schema) for side in sides)
