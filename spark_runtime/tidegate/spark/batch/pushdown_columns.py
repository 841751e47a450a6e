"""Filters and columns that a batch job pushes down to a DataFrame, as Spark columns (S8.1, S8.2)."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import reduce
from typing import Any, Literal

import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StringType, StructField

from tidegate.plan import expression_trees as trees
from tidegate.plan.job_graph import JobGraph, Node
from tidegate.plan.pushdown_conditions import Comparison, Condition, Field, IsIn, IsNull, Not, fields_of
from tidegate.plan.spark_pushdown import SparkRead, full_read, plan_spark_read

Asked = Literal["all", "columns", "nothing"]
"""Pushdown that the data of a DataFrame permits: of rows and columns, of columns only, or none."""
_LITERAL_TYPES = frozenset({"Range", "LocalRelation", "LogicalRDD", "InMemoryRelation", "OneRowRelation"})
_FILE_FORMATS: dict[str, Asked] = {
    "ParquetFileFormat": "all",
    "OrcFileFormat": "columns",
    "DeltaParquetFileFormat": "columns",
}
_CHAR = "__CHAR_VARCHAR_TYPE_STRING"
"""Key in the metadata of columns of type CHAR(n), which Spark compares padded."""
_INTEGERS = {8: "tinyint", 16: "smallint", 32: "int", 64: "bigint"}
_EPOCH = datetime(1970, 1, 1)


def plan_columns(frame: DataFrame, graph: JobGraph, source: Node) -> SparkRead:
    """Return what to push down to a DataFrame that has the columns declared by `source`."""
    asked = _may_be_asked(frame)
    if asked == "nothing":
        return full_read(source)
    fields = frame.schema.fields
    exact = {
        column.name for column, declared in zip(fields, source.schema, strict=True) if _is_declared(column, declared)
    }
    return plan_spark_read(graph, source, lambda condition: asked == "all" and fields_of(condition) <= exact)


def select_columns(frame: DataFrame, read: SparkRead) -> DataFrame:
    """Return the selected rows and columns, with columns named by number."""
    for condition in read.conditions:
        frame = frame.where(column_of(condition, frame))
    return frame.select(*(column_of(what, frame).alias(f"c{n}") for n, (_, what) in enumerate(read.columns)))


def column_of(condition: Condition, frame: DataFrame) -> Column:
    """Return a condition as a Spark column with the same value, also where it is null.

    Spark treats NaN as greater than a literal, Arrow does not: the result excludes NaN.
    """
    if isinstance(condition, Field):
        return quoted(frame, condition.name)
    if isinstance(condition, Comparison):
        return _comparison(condition, frame)
    if isinstance(condition, IsNull):
        column = quoted(frame, condition.column.name)
        return column.isNotNull() if condition.valid else column.isNull()
    if isinstance(condition, IsIn):
        column = quoted(frame, condition.column.name)
        is_member = column.isin([_literal(value) for value in condition.values])
        return column.isNull() | is_member if condition.takes_null else column.isNotNull() & is_member
    if isinstance(condition, Not):
        return ~column_of(condition.condition, frame)
    columns = [column_of(part, frame) for part in condition.conditions]
    if condition.word == "and":
        return reduce(lambda left, right: left & right, columns)
    return reduce(lambda left, right: left | right, columns)


def quoted(frame: DataFrame, name: str) -> Column:
    """Return the column of this name, whatever characters the name contains."""
    return frame["`{}`".format(name.replace("`", "``"))]


def _comparison(condition: Comparison, frame: DataFrame) -> Column:
    left = quoted(frame, condition.left.name)
    if isinstance(condition.right, trees.Literal):
        right, kind = _literal(condition.right.value), condition.right.value.type
    else:
        right, kind = quoted(frame, condition.right.name), pa.null()
    found: Column = {
        "equal": left == right,
        "not_equal": left != right,
        "less": left < right,
        "less_equal": left <= right,
        "greater": left > right,
        "greater_equal": left >= right,
    }[condition.function]
    above = pt.is_floating(kind) and condition.function.startswith("greater")
    return found & ~F.isnan(left) if above else found


def _literal(value: pa.Scalar) -> Column:
    """Return a literal of exactly the column's type, so that Spark converts nothing; times do not depend on the
    session's zone.
    """
    kind = value.type
    if pt.is_timestamp(kind):
        micros = int(value.value)
        if kind.tz is not None:
            return F.timestamp_micros(F.lit(micros))
        text = (_EPOCH + timedelta(microseconds=micros)).isoformat(sep=" ")
        return F.lit(text).cast("timestamp_ntz")
    if pt.is_date32(kind):
        return F.date_from_unix_date(F.lit(int(value.value)))
    if pt.is_decimal(kind):
        return F.lit(value.as_py()).cast(f"decimal({kind.precision},{kind.scale})")
    if pt.is_integer(kind):
        return F.lit(value.as_py()).cast(_INTEGERS[kind.bit_width])
    return F.lit(value.as_py()).cast("float") if pt.is_float32(kind) else F.lit(value.as_py())


def _is_declared(column: StructField, declared: pa.Field) -> bool:
    """Return whether Spark's type holds the same values as the declared one, and compares them in the same way."""
    kind: DataType = column.dataType
    if isinstance(kind, StringType) and (kind != StringType() or _CHAR in column.metadata):
        return False
    try:
        found = to_arrow_type(kind, timezone="UTC")
    # PySpark raises several kinds of errors for types that Arrow lacks.
    except Exception:
        return False
    return bool(found == _plain(declared.type))


def _plain(kind: pa.DataType) -> pa.DataType:
    if pt.is_large_string(kind):
        return pa.string()
    if pt.is_large_binary(kind):
        return pa.binary()
    return pa.timestamp(kind.unit, "UTC") if pt.is_timestamp(kind) and kind.tz is not None else kind


def _may_be_asked(frame: DataFrame) -> Asked:
    """Return what may be pushed down, by the relations in Spark's own plan.

    Everything for Parquet and for data that Spark itself creates. Only columns for databases, which have their own
    rules of comparison; for ORC, whose reader skips rows with text beyond U+E000; and for Delta, whose file skipping is
    untested. Nothing for text readers, which find other lines malformed if fewer columns are read, and for unknown
    readers.
    """
    plan: Any = frame._jdf.queryExecution().optimizedPlan().collectLeaves()
    found = {_leaf(plan.apply(i)) for i in range(plan.size())}
    if "nothing" in found:
        return "nothing"
    return "columns" if "columns" in found else "all"


def _leaf(leaf: Any) -> Asked:
    name = str(leaf.getClass().getSimpleName())
    if name in _LITERAL_TYPES:
        return "all"
    if name != "LogicalRelation":
        return "nothing"
    relation = leaf.relation()
    name = str(relation.getClass().getSimpleName())
    if name == "HadoopFsRelation":
        return _FILE_FORMATS.get(str(relation.fileFormat().getClass().getSimpleName()), "nothing")
    return "columns" if name == "JDBCRelation" else "nothing"
