"""Convert states of a snapshot to the columns that the pipeline declares now (S5.5).

The rules are in `jobs.restore.state_evolution`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa

from tidegate.errors import SnapshotError
from tidegate.jobs.restore.state_evolution import Evolution, StateColumn, evolution
from tidegate.snapshot.parts import Blob, StatePart

logger = logging.getLogger("tidegate.snapshot")

Renamed = Mapping[str, str]
"""Old column -> new column, as the user knows them."""


def schema_columns(schema: pa.Schema) -> tuple[StateColumn, ...]:
    """Return the columns in the form that `jobs.restore.state_evolution` takes."""
    return tuple(StateColumn(field.name, str(field.type), field.nullable) for field in schema)


def evolve_part(
    part: StatePart,
    wanted: pa.Schema,
    uid: str,
    renamed: Renamed | None = None,
    *,
    fills: bool = True,
    drops: bool = False,
) -> StatePart:
    """Return the part with the columns of `wanted`, in their order; the part itself if it already has them.

    Pieces are converted one at a time, when they are read.

    Args:
        uid: uid of the operator, for errors.
        fills: a new nullable column is filled with null.
        drops: a removed value column is dropped, and named in the log.

    Raises:
        SnapshotError: the columns cannot be converted; names the operator, the state and each column.
    """
    how = evolution(schema_columns(part.table.schema), schema_columns(wanted), renamed, fills=fills, drops=drops)
    where = f"operator {uid!r}, state {part.name!r}"
    if how.refused:
        raise SnapshotError(
            f"state {part.name!r} of operator {uid!r} does not fit the pipeline",
            where=where,
            cause="; ".join(how.refused),
            remedy="Restore with the pipeline that took the snapshot, or give the operator a new uid",
        )
    if how.dropped:
        logger.warning(
            "%s: the restore drops columns that the pipeline no longer declares: %s", where, ", ".join(how.dropped)
        )
    if part.table.schema.names == wanted.names and part.table.schema.types == wanted.types:
        return part
    if part.format != "rows":
        raise SnapshotError(
            f"the columns of state {part.name!r} have changed, but the snapshot stores the state as {part.format} "
            "files",
            where=where,
            cause="; ".join(how.changes) or "the order of its columns has changed",
            remedy="Take a savepoint with the former pipeline and restore the savepoint: it stores states as rows",
        )
    change = partial(_evolved_table, wanted=wanted, how=how, where=where)
    blobs = tuple(Blob(blob.id, partial(_evolve_rows, blob, change)) for blob in part.blobs)
    return replace(part, table=change(part.table), blobs=blobs)


def _evolved_table(table: pa.Table, wanted: pa.Schema, how: Evolution, where: str) -> pa.Table:
    columns = []
    for field, source in zip(wanted, how.sources, strict=True):
        if source is None:
            columns.append(pa.nulls(table.num_rows, field.type))
            continue
        try:
            columns.append(table.column(source).cast(field.type))
        except pa.ArrowInvalid as error:
            raise SnapshotError(
                f"a value of column {field.name!r} cannot be converted to {field.type} without loss",
                where=where,
                cause=str(error),
                remedy=f"Keep the type {table.schema.field(source).type}, or use a unit that can hold all values",
            ) from error
    return pa.table(columns, schema=wanted)


def _evolve_rows(blob: Blob, change: Callable[[pa.Table], pa.Table]) -> pa.Table:
    return change(blob.table())
