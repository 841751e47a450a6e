"""Rows of a Python data source as Arrow batches, with the rules of Spark."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.conversion import LocalDataToArrowConversion
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import Row, StructType

from tidegate.connectors.spark.materialised_splits import as_declared
from tidegate.errors import PipelineError

ROWS_AT_ONCE = 4_096
"""Rows of tuples that are converted together: more would delay a barrier, fewer would share the fixed cost less."""
MAX_BATCH_ROWS = 64 * 1024
"""Most rows of a batch that a reader emits."""


def arrow_schema(struct: StructType) -> pa.Schema:
    """Return the Arrow schema of rows. Timestamps have the zone UTC, as in Spark's own tasks."""
    zoned: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
    schema: pa.Schema = to_arrow_schema(struct, **zoned)
    return schema


def batches_of(rows: Any, struct: StructType, where: str) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a reader returns: an iterator of tuples, lists, `Row`s, or Arrow batches.

    Args:
        where: name of the data source and the method, for errors.

    Raises:
        PipelineError: rows of another kind, or with other columns than the schema.
    """
    schema = arrow_schema(struct)
    if not isinstance(rows, Iterator):
        raise _unfit(where, f"it returned a {type(rows).__name__} and no iterator")
    first = next(rows, None)
    if first is None:
        return
    rows = itertools.chain([first], rows)
    if isinstance(first, pa.RecordBatch):
        for batch in rows:
            if sorted(batch.schema.names) != sorted(schema.names):
                raise _unfit(where, f"a batch has the columns {batch.schema.names} instead of {schema.names}")
            fitting = as_declared(batch, schema, where)
            for start in range(0, fitting.num_rows, MAX_BATCH_ROWS):
                yield fitting.slice(start, MAX_BATCH_ROWS)
        return
    while part := list(itertools.islice(rows, ROWS_AT_ONCE)):
        yield _converted([_in_order(row, schema.names, where) for row in part], struct, schema, where)


def _in_order(row: Any, names: list[str], where: str) -> Any:
    if not isinstance(row, tuple | list):
        raise _unfit(where, f"a row is a {type(row).__name__} and no tuple, list, Row or RecordBatch")
    if len(row) != len(names):
        raise _unfit(where, f"a row has {len(row)} values instead of {len(names)}")
    if isinstance(row, Row) and hasattr(row, "__fields__"):
        if set(row.__fields__) != set(names):
            raise _unfit(where, f"a row has the columns {list(row.__fields__)} instead of {names}")
        return tuple(row[name] for name in names)
    return tuple(row)


def _converted(rows: list[Any], struct: StructType, schema: pa.Schema, where: str) -> pa.RecordBatch:
    try:
        table = LocalDataToArrowConversion.convert(rows, struct, use_large_var_types=False)
        (batch,) = table.combine_chunks().to_batches()
    except Exception as error:  # PySpark and Arrow raise many kinds; all mean that a value does not fit its type
        raise _unfit(where, f"a value does not fit its type: {type(error).__name__}: {error}") from error
    return as_declared(batch, schema, where)


def _unfit(where: str, cause: str) -> PipelineError:
    return PipelineError(
        "a Python data source returned rows that do not fit its schema",
        where=where,
        cause=cause,
        remedy="Correct the data source or its schema",
    )
