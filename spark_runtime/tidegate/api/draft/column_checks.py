"""Checks of columns: whether they exist, can be keys or can hold event time; with their error messages."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa

from tidegate.errors import PipelineError
from tidegate.state.keys.key_types import KEY_TYPES_TEXT, is_key_type

MAX_NAMED_COLUMNS = 20
"""Most columns that an error message lists."""


def require_column(schema: pa.Schema, column: str, where: str) -> pa.Field:
    """Return the field of this name. Raises PipelineError with the nearest name if it is missing."""
    if not isinstance(column, str):
        raise PipelineError(
            f"a column name must be a string, got {column!r}", where=where, remedy='Name columns as in "dep_delay"'
        )
    if column not in schema.names:
        raise missing_column(schema, column, where)
    return schema.field(column)


def missing_column(schema: pa.Schema, column: str, where: str) -> PipelineError:
    """Return the error for a missing column."""
    near = nearest(column, schema.names)
    shown = ", ".join(schema.names[:MAX_NAMED_COLUMNS]) or "none"
    if len(schema.names) > MAX_NAMED_COLUMNS:
        shown += f" and {len(schema.names) - MAX_NAMED_COLUMNS} more"
    return PipelineError(
        f"there is no column {column!r}" + (f", did you mean {near!r}?" if near else ""),
        where=where,
        cause=f"the columns here are {shown}",
        remedy=f"Use {near!r}, or add the column upstream" if near else "Use one of these, or add the column upstream",
    )


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return the most similar of `names`; None if none is similar."""
    by_folded = {n.casefold(): n for n in names}
    found = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def same_columns(schema: pa.Schema, upstream: pa.Schema) -> dict[str, str]:
    """Return the columns that a function's declared result shares with its input, by name and type. They count as
    unchanged."""
    return {
        name: name
        for name in schema.names
        if name in upstream.names and schema.field(name).type == upstream.field(name).type
    }


def refuse_duplicates(names: Iterable[str], where: str, *, remedy: str) -> None:
    """Raise PipelineError if a column name occurs twice."""
    twice = [name for name, n in Counter(names).items() if n > 1]
    if twice:
        raise PipelineError(f"the result would have two columns named {twice[0]!r}", where=where, remedy=remedy)


def checked_renames(renamed: Mapping[str, str] | None, names: Sequence[str], where: str) -> tuple[tuple[str, str], ...]:
    """Return `renamed` as (old name, new name). Raises PipelineError if a new name is not in `names` or occurs
    twice."""
    given = dict(renamed or {})
    wrong = next((new for new in given.values() if new not in names), None)
    if wrong is not None:
        near = nearest(wrong, names)
        raise PipelineError(
            f"renamed contains {wrong!r}, which is not a column here" + (f", did you mean {near!r}?" if near else ""),
            where=where,
            cause=f"the columns here are {', '.join(names)}",
            remedy='Write renamed={"old name": "new name"}',
        )
    refuse_duplicates(given.values(), where, remedy="Use one old name for each column in renamed")
    return tuple(given.items())


def require_key(field: pa.Field, where: str) -> None:
    """Raise PipelineError if the column cannot be a key (S5.1)."""
    if is_key_type(field.type):
        return
    raise PipelineError(
        f"column {field.name!r} of type {field.type} cannot be a key",
        where=where,
        cause=f"keys must be {KEY_TYPES_TEXT}",
        remedy=f"Use another column, or cast it first: .with_columns({field.name}=pc.field({field.name!r}).cast(...))",
    )


def require_result_schema(schema: object, call: str, where: str) -> pa.Schema:
    """Return the schema of the results of a user's function. Raises PipelineError if it is invalid or has a name
    twice."""
    if not isinstance(schema, pa.Schema):
        raise PipelineError(
            f"schema= of {call} must be a pyarrow.Schema, the columns of the result, but is a {type(schema).__name__}",
            where=where,
            remedy='Pass a schema: schema=pa.schema([("name", pa.string())])',
        )
    refuse_duplicates(schema.names, where, remedy="Use a different name for every column")
    return schema
