"""tidegate: barrier snapshots for PySpark, driven from Airflow.

Public names are imported when they are first used, so that `import tidegate.jobs` needs neither pyarrow nor Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tidegate.connectors.connector_registry import BUILT_IN as _CONNECTORS

if TYPE_CHECKING:
    from tidegate.api.aggregates import (
        bool_and,
        bool_or,
        collect,
        collect_set,
        count,
        count_distinct,
        first,
        last,
        max,
        max_by,
        mean,
        min,
        min_by,
        stddev,
        sum,
        top_n,
        user_aggregate,
        var,
    )
    from tidegate.api.operator_states import (
        broadcast_state,
        keyed_raw_state,
        operator_list_state,
        raw_state,
        union_list_state,
    )
    from tidegate.api.pipeline import Pipeline
    from tidegate.api.states import aggregating_state, list_state, map_state, reducing_state, value_state
    from tidegate.api.stream import Stream
    from tidegate.api.windows import session, sliding, tumbling
    from tidegate.connectors.datagen import DataGen
    from tidegate.connectors.delta.delta_sink import Delta
    from tidegate.connectors.discard import Discard
    from tidegate.connectors.files.sink.parquet import Parquet
    from tidegate.connectors.files.sink.text_sinks import Csv, JsonLines
    from tidegate.connectors.files.source.files import Files
    from tidegate.connectors.postgres.postgres_sink import Postgres
    from tidegate.connectors.push import PushContext, Pusher, PushSource
    from tidegate.connectors.replay import Replay
    from tidegate.connectors.spark.spark_source import SparkFrame, SparkTable
    from tidegate.connectors.spark.spark_writer import SparkWriter
    from tidegate.errors import PipelineError, TidegateError
    from tidegate.jobs.options import JobOptions
    from tidegate.operators.functions.co_process import (
        BroadcastProcess,
        CoProcess,
        KeyedBroadcastProcess,
        KeyedCoProcess,
    )
    from tidegate.operators.functions.context import Rows, SubtaskContext
    from tidegate.operators.functions.keyed_process import FiredTimers, KeyedProcess, KeyedRows, ProcessContext
    from tidegate.operators.functions.mode_dependence import batch_sensitive
    from tidegate.operators.functions.process import Process
    from tidegate.operators.stream_operator import SideOutput
    from tidegate.state.aggregates.aggregation import ArrowAggregate
    from tidegate.state.raw_state import RawInput, RawOutput
    from tidegate.state.state_reader import read_state, read_state_batches

__version__ = "0.1.0"

__all__ = [
    "ArrowAggregate",
    "BroadcastProcess",
    "CoProcess",
    "Csv",
    "DataGen",
    "Delta",
    "Discard",
    "Files",
    "FiredTimers",
    "JobOptions",
    "JsonLines",
    "KeyedBroadcastProcess",
    "KeyedCoProcess",
    "KeyedProcess",
    "KeyedRows",
    "Parquet",
    "Pipeline",
    "PipelineError",
    "Postgres",
    "Process",
    "ProcessContext",
    "PushContext",
    "PushSource",
    "Pusher",
    "RawInput",
    "RawOutput",
    "Replay",
    "Rows",
    "SideOutput",
    "SparkFrame",
    "SparkTable",
    "SparkWriter",
    "Stream",
    "SubtaskContext",
    "TidegateError",
    "aggregating_state",
    "batch_sensitive",
    "bool_and",
    "bool_or",
    "broadcast_state",
    "collect",
    "collect_set",
    "count",
    "count_distinct",
    "first",
    "keyed_raw_state",
    "last",
    "list_state",
    "map_state",
    "max",
    "max_by",
    "mean",
    "min",
    "min_by",
    "operator_list_state",
    "raw_state",
    "read_state",
    "read_state_batches",
    "reducing_state",
    "session",
    "sliding",
    "stddev",
    "sum",
    "top_n",
    "tumbling",
    "union_list_state",
    "user_aggregate",
    "value_state",
    "var",
]

_HOMES = {
    "ArrowAggregate": "state.aggregates.aggregation",
    "BroadcastProcess": "operators.functions.co_process",
    "CoProcess": "operators.functions.co_process",
    "FiredTimers": "operators.functions.keyed_process",
    "JobOptions": "jobs.options",
    "KeyedBroadcastProcess": "operators.functions.co_process",
    "KeyedCoProcess": "operators.functions.co_process",
    "KeyedProcess": "operators.functions.keyed_process",
    "KeyedRows": "operators.functions.keyed_process",
    "Pipeline": "api.pipeline",
    "PipelineError": "errors",
    "Process": "operators.functions.process",
    "ProcessContext": "operators.functions.keyed_process",
    "PushContext": "connectors.push",
    "PushSource": "connectors.push",
    "Pusher": "connectors.push",
    "RawInput": "state.raw_state",
    "RawOutput": "state.raw_state",
    "Rows": "operators.functions.context",
    "SideOutput": "operators.stream_operator",
    "Stream": "api.stream",
    "SubtaskContext": "operators.functions.context",
    "TidegateError": "errors",
    "aggregating_state": "api.states",
    "bool_and": "api.aggregates",
    "bool_or": "api.aggregates",
    "broadcast_state": "api.operator_states",
    "collect": "api.aggregates",
    "collect_set": "api.aggregates",
    "batch_sensitive": "operators.functions.mode_dependence",
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


def __getattr__(name: str) -> Any:
    """Import a public name from its home."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
