"""Records that a Delta table accepts: types, names, and the requirements of an existing table.

Source: the Delta transaction log protocol (PROTOCOL.md of delta-io/delta): "Schema Serialization Format", "Column
Invariants", "Valid Feature Names in Table Features".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pt

from tidegate.errors import PipelineError

if TYPE_CHECKING:
    from deltalake import DeltaTable

_FORBIDDEN_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")
_HARMLESS_FEATURES = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "columnMapping",
        "deletionVectors",
        "generatedColumns",
        "identityColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
"""Writer features that require nothing of an appender, or whose use shows in columns and properties."""
_DEMANDING_PROPERTIES = ("delta.constraints.", "delta.columnMapping.mode", "delta.setTransactionRetentionDuration")
"""Properties that require work this sink does not do: checks of each row, other names in the files, expiry of commit
records.
"""

_PREVENTS_UPSERTS = {
    "delta.appendOnly": "no row of it may be removed",
    # The entry that removes a file must name its vector, for which delta-rs has no field.
    "delta.enableDeletionVectors": "other writers mark deleted rows in deletion vectors, which the sink cannot replace",
}
"""Properties with which a table accepts no upserts, and why."""


def stored_schema(schema: pa.Schema, partition_by: Sequence[str], url: str) -> pa.Schema:
    """Return `schema` as Delta stores it: microseconds, UTC, plain strings; without metadata.

    Raises:
        PipelineError: a name or type that Delta lacks, or `partition_by` names no usable column.
    """
    lowered = [name.lower() for name in schema.names]
    if twice := sorted({name for name in schema.names if lowered.count(name.lower()) > 1}):
        raise PipelineError(
            "column names are not unique; Delta ignores upper and lower case",
            where=url,
            cause=f"{twice}",
            remedy="Rename the columns with select()",
        )
    for name in schema.names:
        if _FORBIDDEN_IN_NAMES.search(name) or not name:
            raise PipelineError(
                f"{name!r} is not a valid name of a Delta column",
                where=url,
                cause="spaces, line breaks and ,;{}()= are not allowed",
                remedy="Rename the column with select()",
            )
    stored = pa.schema([_stored_field(field, field.name, url) for field in schema])
    _check_partitioning(stored, partition_by, url)
    return stored


def _stored_field(field: pa.Field, column: str, url: str) -> pa.Field:
    return pa.field(field.name, _stored_type(field.type, column, url), field.nullable)


def _stored_type(kind: pa.DataType, column: str, url: str) -> pa.DataType:
    if pt.is_signed_integer(kind) or pt.is_boolean(kind) or pt.is_float32(kind) or pt.is_float64(kind):
        return kind
    if pt.is_date32(kind) or pt.is_decimal128(kind):
        return kind
    if pt.is_timestamp(kind) and kind.unit != "ns":
        return pa.timestamp("us", None if kind.tz is None else "UTC")
    if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
        return pa.string()
    if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind) or pt.is_binary_view(kind):
        return pa.binary()
    if pt.is_dictionary(kind):
        return _stored_type(kind.value_type, column, url)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        # Parquet and Delta use this name for the elements of a list.
        return pa.list_(_stored_field(kind.value_field.with_name("element"), column, url))
    if pt.is_struct(kind):
        return pa.struct([_stored_field(kind.field(i), column, url) for i in range(kind.num_fields)])
    if pt.is_map(kind):
        return pa.map_(_stored_field(kind.key_field, column, url), _stored_field(kind.item_field, column, url))
    raise PipelineError(
        f"column {column!r} of type {kind} cannot be written to Delta",
        where=url,
        cause="Delta has signed integers, float, double, decimal(38), string, binary, boolean, date, and "
        "timestamps in microseconds",
        remedy="Cast it with with_columns(), or leave it out with select()",
    )


def _check_partitioning(stored: pa.Schema, partition_by: Sequence[str], url: str) -> None:
    for name in partition_by:
        if name not in stored.names:
            raise PipelineError(
                f"partition_by names column {name!r}, which does not exist",
                where=url,
                cause=f"the columns are {', '.join(stored.names)}",
                remedy="Name one of these columns",
            )
        kind = stored.field(name).type
        if not (pt.is_string(kind) or pt.is_signed_integer(kind) or pt.is_boolean(kind) or pt.is_date32(kind)):
            raise PipelineError(
                f"column {name!r} of type {kind} cannot be a partition column",
                where=url,
                cause="this sink can partition only by strings, integers, booleans and dates",
                remedy="Partition by a coarser column, such as the date of a timestamp",
            )
    if set(partition_by) == set(stored.names):
        raise PipelineError(
            "partition_by names every column",
            where=url,
            remedy="Leave one column out: files hold the remaining columns",
        )


def check_creatable(stored: pa.Schema, url: str) -> None:
    """Check that delta-rs can create a table of these columns.

    It declares the feature `timestampNtz` for a timestamp without zone, except for one inside a map. Without the
    feature, no reader opens the table.

    Args:
        stored: result of `stored_schema`.

    Raises:
        PipelineError: with the columns.
    """
    hidden = [field.name for field in stored if _has_plain_timestamp(field.type, in_maps=True)]
    if hidden and not any(_has_plain_timestamp(field.type) for field in stored):
        raise PipelineError(
            "the Delta table cannot be created, because timestamps without zone are only inside maps",
            where=url,
            cause=f"columns {', '.join(map(repr, hidden))}; delta-rs creates a table for them that no reader opens",
            remedy="Cast the timestamps to timestamps with a zone; or create the table first, with Spark and the table "
            "property delta.feature.timestampNtz=supported",
        )


def _has_plain_timestamp(kind: pa.DataType, *, in_maps: bool = False) -> bool:
    """Return whether a type is or contains a timestamp without zone. Args: in_maps: search maps, too."""
    if pt.is_map(kind) and not in_maps:
        return False
    inner = [kind.field(n).type for n in range(kind.num_fields)]
    return (pt.is_timestamp(kind) and kind.tz is None) or any(_has_plain_timestamp(k, in_maps=in_maps) for k in inner)


def check_table(table: DeltaTable, stored: pa.Schema, partition_by: Sequence[str], url: str) -> None:
    """Check that files of these columns can be appended to the table as it is now.

    Columns of the table that the records lack are read as null.

    Args:
        stored: result of `stored_schema`.

    Raises:
        PipelineError: with the difference, or with the requirement of the table that this sink does not support.
    """
    remedy = "Write to another folder, or change the pipeline or the table"
    metadata = table.metadata()
    if list(metadata.partition_columns) != list(partition_by):
        raise PipelineError(
            "the Delta table has other partition columns than the sink",
            where=url,
            cause=f"table: {list(metadata.partition_columns)}; partition_by={list(partition_by)}",
            remedy=remedy,
        )
    there = {field.name: field for field in _arrow(table.schema())}
    for field in _arrow(delta_schema(stored)):
        if field.name not in there or there[field.name].type != field.type:
            raise _other_schema(there.values(), stored, url, remedy)
    for name, field in there.items():
        ours = stored.field(name) if name in stored.names else None
        if not field.nullable and (ours is None or ours.nullable):
            raise PipelineError(
                f"column {name!r} of the Delta table must not be null",
                where=url,
                cause="the records have no such column"
                if ours is None
                else "the records may have nulls in this column",
                remedy=f"Add a column {name!r} without nulls to the records, or drop NOT NULL from the table's column",
            )
    demands = [name for name in table.protocol().writer_features or [] if name not in _HARMLESS_FEATURES]
    demands += [
        name
        for name, value in metadata.configuration.items()
        if name.startswith(_DEMANDING_PROPERTIES) and (name, value) != ("delta.columnMapping.mode", "none")
    ]
    demands += sorted({key for field in table.schema().fields for key in field.metadata if key.startswith("delta.")})
    if demands:
        raise PipelineError(
            "the Delta table requires features that this sink does not support",
            where=url,
            cause=", ".join(demands),
            remedy=remedy,
        )


def check_rewritable(table: DeltaTable, stored: pa.Schema, url: str) -> None:
    """Check that rows of the table can be replaced and removed. `check_table` has accepted it.

    Raises:
        PipelineError: with the requirement that prevents it.
    """
    configuration = table.metadata().configuration
    missing = [field.name for field in table.schema().fields if field.name not in stored.names]
    if missing:
        raise PipelineError(
            "the Delta table has columns that the records lack, so an upsert would remove their values",
            where=url,
            cause=", ".join(missing),
            remedy="Add the columns to the records with with_columns(), or write to a table without them",
        )
    for name, cause in _PREVENTS_UPSERTS.items():
        if str(configuration.get(name)).lower() == "true":
            raise PipelineError(
                "rows of the Delta table cannot be replaced",
                where=url,
                cause=f"{name}=true: {cause}",
                remedy=f"Set {name}=false, or write to another table",
            )


def delta_schema(stored: pa.Schema) -> Any:
    """Return the `deltalake.Schema` of a table of these columns."""
    from deltalake import Schema

    return Schema.from_arrow(stored)


def _arrow(schema: Any) -> pa.Schema:
    return pa.schema(schema.to_arrow())


def _other_schema(there: Iterable[pa.Field], ours: pa.Schema, url: str, remedy: str) -> PipelineError:
    return PipelineError(
        "the schema of the Delta table does not fit the records",
        where=url,
        cause=f"table: {_columns(there)}; records: {_columns(ours)}",
        remedy=remedy,
    )


def _columns(fields: Iterable[pa.Field]) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in fields)
