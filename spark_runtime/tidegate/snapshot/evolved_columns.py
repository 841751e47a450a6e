"""States of a snapshot with the columns that the pipeline declares now (S5.5); the rules are in
`jobs.restore.state_evolution`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import pyarrow as pa

from tidegate.errors import SnapshotError
from tidegate.jobs.restore.state_evolution import Evolution, StateColumn, evolution
from tidegate.snapshot.parts import Blob, StatePart

log = logging.getLogger(__name__)

Renamed = Mapping[str, str]
"""Old column -> new column, as the user knows them."""


def schema_columns(schema: pa.Schema) -> tuple[StateColumn, ...]:
    """The columns as `jobs.restore.state_evolution` takes them."""
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
    """The part with the columns of `wanted`, in their order; the part itself when it has them. Pieces are changed one
    at a time, when they are read.

    Args:
        uid: of the operator, for errors.
        fills: a new nullable column is filled with null.
        drops: a value column that is gone is dropped, and named in the log.

    Raises:
        SnapshotError: they cannot become those; names the operator, the state and each column.
    """
    how = evolution(schema_columns(part.table.schema), schema_columns(wanted), renamed, fills=fills, drops=drops)
    where = f"operator {uid!r}, state {part.name!r}"
    if how.refused:
        raise SnapshotError(
            f"State {part.name!r} of operator {uid!r} does not fit the pipeline",
            where=where,
            cause="; ".join(how.refused),
            remedy="Restore with the pipeline that made the snapshot, or give the operator a new uid",
        )
    if how.dropped:
        log.warning("%s: columns that are no longer declared are dropped: %s", where, ", ".join(how.dropped))
    if part.table.schema.names == wanted.names and part.table.schema.types == wanted.types:
        return part
    if part.format != "rows":
        raise SnapshotError(
            f"the columns of state {part.name!r} have changed, and it is in files of {part.format}",
            where=where,
            cause="; ".join(how.changes) or "its columns have another order",
            remedy="Take a savepoint with the former pipeline and restore that: its states are rows",
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
                f"a value of column {field.name!r} does not become {field.type} without loss",
                where=where,
                cause=str(error),
                remedy=f"Keep {table.schema.field(source).type}, or a unit that holds all values",
            ) from error
    return pa.table(columns, schema=wanted)


def _evolve_rows(blob: Blob, change: Callable[[pa.Table], pa.Table]) -> pa.Table:
    return change(blob.table())
