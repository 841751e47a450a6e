"""The options `mode`, `key` and `if_exists` of sinks that append rows or replace them by key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.types as pt

from tidegate.change_rows import change_kind_column
from tidegate.errors import OptionError, PipelineError

WriteMode = Literal["append", "upsert"]
IfRows = Literal["append", "error"]
"""Reaction to rows of the target at a fresh start: keep them, or refuse the start."""


def key_columns(mode: str, key: str | Sequence[str], owner: str) -> tuple[str, ...]:
    """Return the columns of the key; none for `append`.

    Args:
        owner: the sink's class, for messages.

    Raises:
        OptionError: the mode is unknown, `upsert` has no key, `append` has one, or a column is repeated.
    """
    keys = (key,) if isinstance(key, str) else tuple(key)
    if mode not in get_args(WriteMode):
        raise OptionError(f"mode={mode!r} is unknown", where=f"{owner}(mode=...)", remedy="Use append or upsert")
    if (mode == "upsert") != bool(keys):
        raise OptionError(
            f"mode={mode!r} does not allow {f'key={list(keys)}' if keys else 'an empty key'}",
            where=f"{owner}(key=...)",
            remedy="Pass key= with mode=upsert, and no key with mode=append",
        )
    if len(set(keys)) != len(keys):
        raise OptionError(
            "a key column is repeated", where=f"{owner}(key={list(keys)})", remedy="Name each key column once"
        )
    return keys


def check_if_rows(value: str | None, owner: str) -> None:
    """Check the option `if_exists`. Raises OptionError if its value is unknown."""
    if value is not None and value not in get_args(IfRows):
        remedy = "Use 'append' or 'error'"
        raise OptionError(f"if_exists={value!r} is unknown", where=f"{owner}(if_exists=)", remedy=remedy)


def refuses_rows(if_exists: IfRows | None, records: pa.Schema) -> bool:
    """Return whether a fresh start into a target with rows is refused.

    By default it is for change rows: a row that was deleted at the source since its copy is no change, and would stay
    in the target. Other upserts and appends add to what is there.
    """
    return if_exists == "error" or (if_exists is None and change_kind_column(records) is not None)


def existing_rows_error(where: str) -> PipelineError:
    """Return the error for a fresh start into a target with rows."""
    return PipelineError(
        "the target of the sink already holds rows",
        where=where,
        cause="the job starts fresh, so its rows would be added to the rows of an earlier job, and rows that the "
        "source has deleted since would stay",
        remedy='Empty the target; or set if_exists="append", which keeps the rows',
    )


def rows_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of the rows without the column with the kind of change."""
    kind = change_kind_column(schema)
    return schema if kind is None else schema.remove(schema.get_field_index(kind))


def check_key(records: pa.Schema, key: Sequence[str], where: str) -> None:
    """Check that records have the key columns, with types whose values can be compared exactly.

    Args:
        records: schema without the kind of change.

    Raises:
        PipelineError: with all problems.
    """
    problems = [f"the records have no key column {name!r}" for name in key if name not in records.names]
    found = [records.field(name) for name in key if name in records.names]
    problems += [
        f"key column {field.name!r} of type {field.type} cannot be a key; use integers, strings, binary values, "
        "booleans, decimals, dates or timestamps"
        for field in found
        if not _is_key_type(field.type)
    ]
    if problems:
        raise PipelineError(
            "the rows have no usable key",
            where=where,
            cause="; ".join(problems),
            remedy="Change key=, or the records with select() and with_columns()",
        )


def _is_key_type(kind: pa.DataType) -> bool:
    if pt.is_dictionary(kind):
        return _is_key_type(kind.value_type)
    # Floats: NaN differs from itself, and -0.0 equals 0.0. Nested values have no order.
    return pt.is_primitive(kind) and not pt.is_floating(kind) or _is_text_or_bytes(kind) or pt.is_decimal(kind)


def _is_text_or_bytes(kind: pa.DataType) -> bool:
    text = pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind)
    plain = pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_binary_view(kind)
    return text or plain or pt.is_fixed_size_binary(kind)
