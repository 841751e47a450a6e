"""tidegate: barrier snapshots for PySpark, driven from Airflow.

Public names are imported when they are first used, so that `import tidegate.jobs` needs neither pyarrow nor Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tidegate.connectors.connector_registry import BUILT_IN as _CONNECTORS
from tidegate.extras import extra_required_by as _extra_required_by

__version__ = "0.1.0"

_HOMES = {
    "ArrowAggregate": "state.aggregates.aggregation",
    "BroadcastProcess": "operators.user_functions.co_process",
    "CoProcess": "operators.user_functions.co_process",
    "FiredTimers": "operators.user_functions.keyed_process",
    "JobOptions": "jobs.options",
    "KeyedBroadcastProcess": "operators.user_functions.co_process",
    "KeyedCoProcess": "operators.user_functions.co_process",
    "KeyedProcess": "operators.user_functions.keyed_process",
    "KeyedRows": "operators.user_functions.keyed_process",
    "Pipeline": "api.pipeline",
    "PipelineError": "errors",
    "Process": "operators.user_functions.process",
    "ProcessContext": "operators.user_functions.keyed_process",
    "PushContext": "connectors.push",
    "PushSource": "connectors.push",
    "Pusher": "connectors.push",
    "RawInput": "state.raw_state",
    "RawOutput": "state.raw_state",
    "Rows": "operators.user_functions.context",
    "SideOutput": "operators.stream_operator",
    "Stream": "api.stream",
    "SubtaskContext": "operators.user_functions.context",
    "TidegateError": "errors",
    "Watch": "connectors.files.source.watched_files",
    "aggregate": "api.aggregates",
    "aggregating_state": "api.states",
    "batch_sensitive": "operators.user_functions.mode_dependence",
    "bool_and": "api.aggregates",
    "bool_or": "api.aggregates",
    "broadcast_state": "api.operator_states",
    "collect": "api.aggregates",
    "collect_set": "api.aggregates",
    "count": "api.aggregates",
    "count_distinct": "api.aggregates",
    "first": "api.aggregates",
    "keyed_raw_state": "api.operator_states",
    "last": "api.aggregates",
    "list_state": "api.states",
    "map_state": "api.states",
    "max": "api.aggregates",
    "max_by": "api.aggregates",
    "mean": "api.aggregates",
    "min": "api.aggregates",
    "min_by": "api.aggregates",
    "operator_list_state": "api.operator_states",
    "raw_state": "api.operator_states",
    "read_state": "state.state_reader",
    "read_state_batches": "state.state_reader",
    "reducing_state": "api.states",
    "session": "api.windows",
    "sliding": "api.windows",
    "stddev": "api.aggregates",
    "sum": "api.aggregates",
    "top_n": "api.aggregates",
    "tumbling": "api.windows",
    "union_list_state": "api.operator_states",
    "user_aggregate": "api.aggregates",
    "value_state": "api.states",
    "var": "api.aggregates",
    **{name: target.partition(":")[0].removeprefix("tidegate.") for name, target in _CONNECTORS.items()},
}
"""Every public name, and the module below `tidegate` that it is imported from."""

if TYPE_CHECKING:  # the same names for type checkers; `as` exports them; a test compares
    from tidegate.api.aggregates import aggregate as aggregate
    from tidegate.api.aggregates import bool_and as bool_and
    from tidegate.api.aggregates import bool_or as bool_or
    from tidegate.api.aggregates import collect as collect
    from tidegate.api.aggregates import collect_set as collect_set
    from tidegate.api.aggregates import count as count
    from tidegate.api.aggregates import count_distinct as count_distinct
    from tidegate.api.aggregates import first as first
    from tidegate.api.aggregates import last as last
    from tidegate.api.aggregates import max as max
    from tidegate.api.aggregates import max_by as max_by
    from tidegate.api.aggregates import mean as mean
    from tidegate.api.aggregates import min as min
    from tidegate.api.aggregates import min_by as min_by
    from tidegate.api.aggregates import stddev as stddev
    from tidegate.api.aggregates import sum as sum
    from tidegate.api.aggregates import top_n as top_n
    from tidegate.api.aggregates import user_aggregate as user_aggregate
    from tidegate.api.aggregates import var as var
    from tidegate.api.operator_states import broadcast_state as broadcast_state
    from tidegate.api.operator_states import keyed_raw_state as keyed_raw_state
    from tidegate.api.operator_states import operator_list_state as operator_list_state
    from tidegate.api.operator_states import raw_state as raw_state
    from tidegate.api.operator_states import union_list_state as union_list_state
    from tidegate.api.pipeline import Pipeline as Pipeline
    from tidegate.api.states import aggregating_state as aggregating_state
    from tidegate.api.states import list_state as list_state
    from tidegate.api.states import map_state as map_state
    from tidegate.api.states import reducing_state as reducing_state
    from tidegate.api.states import value_state as value_state
    from tidegate.api.stream import Stream as Stream
    from tidegate.api.windows import session as session
    from tidegate.api.windows import sliding as sliding
    from tidegate.api.windows import tumbling as tumbling
    from tidegate.connectors.datagen import DataGen as DataGen
    from tidegate.connectors.delta.delta_sink import Delta as Delta
    from tidegate.connectors.delta.source.delta_source import DeltaTable as DeltaTable
    from tidegate.connectors.discard import Discard as Discard
    from tidegate.connectors.files.sink.parquet import Parquet as Parquet
    from tidegate.connectors.files.sink.text_sinks import Csv as Csv
    from tidegate.connectors.files.sink.text_sinks import JsonLines as JsonLines
    from tidegate.connectors.files.source.files import Files as Files
    from tidegate.connectors.files.source.watched_files import Watch as Watch
    from tidegate.connectors.iceberg.iceberg_sink import Iceberg as Iceberg
    from tidegate.connectors.iceberg.iceberg_source import IcebergTable as IcebergTable
    from tidegate.connectors.kafka.sink.kafka_sink import KafkaSink as KafkaSink
    from tidegate.connectors.kafka.source.kafka_source import Kafka as Kafka
    from tidegate.connectors.postgres.postgres_sink import Postgres as Postgres
    from tidegate.connectors.postgres.source.postgres_table import PostgresTable as PostgresTable
    from tidegate.connectors.push import PushContext as PushContext
    from tidegate.connectors.push import Pusher as Pusher
    from tidegate.connectors.push import PushSource as PushSource
    from tidegate.connectors.pyspark.pyspark_sink import PySparkSink as PySparkSink
    from tidegate.connectors.pyspark.pyspark_source import PySparkSource as PySparkSource
    from tidegate.connectors.replay import Replay as Replay
    from tidegate.connectors.spark.spark_source import SparkFrame as SparkFrame
    from tidegate.connectors.spark.spark_source import SparkTable as SparkTable
    from tidegate.connectors.spark.spark_writer import SparkWriter as SparkWriter
    from tidegate.errors import PipelineError as PipelineError
    from tidegate.errors import TidegateError as TidegateError
    from tidegate.jobs.options import JobOptions as JobOptions
    from tidegate.operators.stream_operator import SideOutput as SideOutput
    from tidegate.operators.user_functions.co_process import BroadcastProcess as BroadcastProcess
    from tidegate.operators.user_functions.co_process import CoProcess as CoProcess
    from tidegate.operators.user_functions.co_process import KeyedBroadcastProcess as KeyedBroadcastProcess
    from tidegate.operators.user_functions.co_process import KeyedCoProcess as KeyedCoProcess
    from tidegate.operators.user_functions.context import Rows as Rows
    from tidegate.operators.user_functions.context import SubtaskContext as SubtaskContext
    from tidegate.operators.user_functions.keyed_process import FiredTimers as FiredTimers
    from tidegate.operators.user_functions.keyed_process import KeyedProcess as KeyedProcess
    from tidegate.operators.user_functions.keyed_process import KeyedRows as KeyedRows
    from tidegate.operators.user_functions.keyed_process import ProcessContext as ProcessContext
    from tidegate.operators.user_functions.mode_dependence import batch_sensitive as batch_sensitive
    from tidegate.operators.user_functions.process import Process as Process
    from tidegate.state.aggregates.aggregation import ArrowAggregate as ArrowAggregate
    from tidegate.state.raw_state import RawInput as RawInput
    from tidegate.state.raw_state import RawOutput as RawOutput
    from tidegate.state.state_reader import read_state as read_state
    from tidegate.state.state_reader import read_state_batches as read_state_batches
else:
    __all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name from its home. Raises MissingExtraError when the extra that it needs is not installed."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _extra_required_by(f"tidegate.{name}"):
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    # Stored, so that Python finds the name without this function from now on.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
