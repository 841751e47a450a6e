"""`group_by(...).transform_with_state(...)`: checks PySpark's arguments and converts them for a pipeline."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.api.draft.column_checks import checked_renames, require_column
from tidegate.api.draft.stream_time import StreamEventTime, time_unit
from tidegate.compat.pyspark_stateful.processor_specs import StatefulProcessorSpec, TimeMode
from tidegate.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

TIME_MODES: Mapping[str, TimeMode] = {"none": "none", "processingtime": "processingtime", "eventtime": "eventtime"}


def processor_spec(
    processor: object,
    output_type: object,
    output_mode: object,
    time_mode: object,
    output_time: object,
    *,
    pandas: bool,
    keys: tuple[str, ...],
    input_schema: pa.Schema,
    time: StreamEventTime,
    initial: tuple[pa.Schema | None, tuple[str, ...]],
    renamed: Mapping[str, str] | None,
    where: str,
) -> StatefulProcessorSpec:
    """Return the operator of a processor. Raises PipelineError for invalid arguments."""
    # These imports load PySpark, so they run only for pipelines with a PySpark processor.
    from tidegate.compat.pyspark_stateful.spark_ddl import schema_of
    from tidegate.compat.pyspark_stateful.spark_values import arrow_schema
    from tidegate.compat.pyspark_stateful.state_declarations import declared

    own = _processor(processor, where)
    _require_output_mode(output_mode, where)
    mode = _time_mode(time_mode, where)
    if pandas and importlib.util.find_spec("pandas") is None:
        raise PipelineError(
            "transform_with_state_in_pandas needs pandas, which is not installed",
            where=where,
            remedy="Install pandas, here and where the slots run, or use transform_with_state",
        )
    what = "outputStructType"
    schema = arrow_schema(schema_of(output_type, what, where), what, where, nullable=False)
    time_column = time.require(where) if mode == "eventtime" else None
    output = _output_time(output_time, schema, time, where)
    declarations = declared(own, mode, where)
    return StatefulProcessorSpec(
        own,
        pandas,
        declarations.states,
        declarations.deleted,
        mode,
        keys,
        time_column,
        time.unit,
        input_schema,
        *initial,
        schema,
        output.column,
        output.unit,
        checked_renames(renamed, keys, where),
    )


def initial_columns(
    initial: Any, keys: tuple[str, ...], input_schema: pa.Schema, where: str
) -> tuple[pa.Schema | None, tuple[str, ...]]:
    """Return schema and key columns of an initial state. Raises PipelineError if its key types differ from the
    stream's."""
    if initial is None:
        return None, ()
    stream, initial_keys = initial._stream, initial._keys
    if not stream.bounded:
        raise PipelineError(
            "initialState is an unbounded stream, so rows of the main stream would wait for its end forever",
            where=where,
            remedy="Pass a bounded stream, such as p.read(Files(...))",
        )
    types = [input_schema.field(key).type for key in keys]
    given = [stream.schema.field(key).type for key in initial_keys]
    if types != given:
        raise PipelineError(
            f"initialState is grouped by {', '.join(initial_keys)} ({', '.join(map(str, given))}), "
            f"but the stream by {', '.join(keys)} ({', '.join(map(str, types))})",
            where=where,
            remedy="Group both streams by columns of the same types, in the same order; cast differing columns",
        )
    return stream.schema, initial_keys


def _processor(processor: object, where: str) -> StatefulProcessor:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    if isinstance(processor, StatefulProcessor):
        return processor
    if inspect.isclass(processor):
        given, remedy = f"the class {processor.__name__}", f"Create an instance: {processor.__name__}()"
    else:
        given, remedy = f"a {type(processor).__name__}", "Subclass pyspark.sql.streaming.StatefulProcessor"
    raise PipelineError(f"statefulProcessor must be an instance, but is {given}", where=where, remedy=remedy)


def _require_output_mode(mode: object, where: str) -> None:
    if isinstance(mode, str) and mode.lower() in ("append", "update"):
        return
    complete = isinstance(mode, str) and mode.lower() == "complete"
    raise PipelineError(
        f"outputMode {mode!r} is not supported",
        where=where,
        cause="Spark, too, refuses Complete for transformWithState" if complete else "Spark has no such output mode",
        remedy="Use Append or Update: the processor itself decides its output, so both do the same",
    )


def _time_mode(mode: object, where: str) -> TimeMode:
    known = TIME_MODES.get(mode.lower()) if isinstance(mode, str) else None
    if known is None:
        raise PipelineError(f"unknown timeMode {mode!r}", where=where, remedy="Use None, ProcessingTime or EventTime")
    return known


def _output_time(column: object, schema: pa.Schema, time: StreamEventTime, where: str) -> StreamEventTime:
    """Return the event time of the processor's results."""
    if column == "" or column is None:
        return StreamEventTime()
    if time.column is None:
        raise PipelineError(
            f"eventTimeColumnName is {column!r}, but the stream has no watermark",
            where=where,
            cause=time.lost or "there is no with_watermark upstream",
            remedy='Name the column with event time: .with_watermark("time", "10 min")',
        )
    field = require_column(schema, str(column), where)
    return StreamEventTime(field.name, time_unit(field, None, where), time.assigned)
