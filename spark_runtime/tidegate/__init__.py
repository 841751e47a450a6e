"""tidegate: barrier snapshots for PySpark, driven from Airflow.

Public names are imported when they are first used, so that `import tidegate.contract` needs neither pyarrow nor Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.connectors.datagen import DataGen
    from tidegate.connectors.delta import Delta
    from tidegate.connectors.discard import Discard
    from tidegate.connectors.files import Files
    from tidegate.connectors.parquet import Parquet
    from tidegate.connectors.postgres import Postgres
    from tidegate.connectors.push import PushContext, Pusher, PushSource
    from tidegate.connectors.replay import Replay
    from tidegate.connectors.spark_source import SparkFrame, SparkTable
    from tidegate.connectors.spark_writer import SparkWriter
    from tidegate.connectors.text_files import Csv, JsonLines
    from tidegate.contract.errors import PipelineError, TidegateError
    from tidegate.contract.options import JobOptions
    from tidegate.operators.contract import SideOutput
    from tidegate.operators.mode_dependence import batch_sensitive
    from tidegate.operators.user_connected import BroadcastProcess, CoProcess, KeyedBroadcastProcess, KeyedCoProcess
    from tidegate.operators.user_process import FiredTimers, KeyedProcess, KeyedRows, ProcessContext
    from tidegate.operators.user_subtask import Rows, SubtaskContext
    from tidegate.operators.user_unkeyed import Process
    from tidegate.pipeline.aggregates import (
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
    from tidegate.pipeline.operator_states import (
        broadcast_state,
        keyed_raw_state,
        operator_list_state,
        raw_state,
        union_list_state,
    )
    from tidegate.pipeline.pipeline import Pipeline
    from tidegate.pipeline.states import aggregating_state, list_state, map_state, reducing_state, value_state
    from tidegate.pipeline.streams import Stream
    from tidegate.pipeline.windows import session, sliding, tumbling
    from tidegate.state.aggregation import ArrowAggregate
    from tidegate.state.raw_state import RawInput, RawOutput
    from tidegate.state.read_state import read_state, read_state_batches

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
    "ArrowAggregate": "state.aggregation",
    "BroadcastProcess": "operators.user_connected",
    "CoProcess": "operators.user_connected",
    "Csv": "connectors.text_files",
    "DataGen": "connectors.datagen",
    "Delta": "connectors.delta",
    "Discard": "connectors.discard",
    "Files": "connectors.files",
    "FiredTimers": "operators.user_process",
    "JobOptions": "contract.options",
    "JsonLines": "connectors.text_files",
    "KeyedBroadcastProcess": "operators.user_connected",
    "KeyedCoProcess": "operators.user_connected",
    "KeyedProcess": "operators.user_process",
    "KeyedRows": "operators.user_process",
    "Parquet": "connectors.parquet",
    "Pipeline": "pipeline.pipeline",
    "PipelineError": "contract.errors",
    "Postgres": "connectors.postgres",
    "Process": "operators.user_unkeyed",
    "ProcessContext": "operators.user_process",
    "PushContext": "connectors.push",
    "PushSource": "connectors.push",
    "Pusher": "connectors.push",
    "RawInput": "state.raw_state",
    "RawOutput": "state.raw_state",
    "Replay": "connectors.replay",
    "Rows": "operators.user_subtask",
    "SideOutput": "operators.contract",
    "SparkFrame": "connectors.spark_source",
    "SparkTable": "connectors.spark_source",
    "SparkWriter": "connectors.spark_writer",
    "Stream": "pipeline.streams",
    "SubtaskContext": "operators.user_subtask",
    "TidegateError": "contract.errors",
    "aggregating_state": "pipeline.states",
    "bool_and": "pipeline.aggregates",
    "bool_or": "pipeline.aggregates",
    "broadcast_state": "pipeline.operator_states",
    "collect": "pipeline.aggregates",
    "collect_set": "pipeline.aggregates",
    "batch_sensitive": "operators.mode_dependence",
    "count": "pipeline.aggregates",
    "count_distinct": "pipeline.aggregates",
    "first": "pipeline.aggregates",
    "keyed_raw_state": "pipeline.operator_states",
    "last": "pipeline.aggregates",
    "list_state": "pipeline.states",
    "map_state": "pipeline.states",
    "max": "pipeline.aggregates",
    "max_by": "pipeline.aggregates",
    "mean": "pipeline.aggregates",
    "min": "pipeline.aggregates",
    "min_by": "pipeline.aggregates",
    "operator_list_state": "pipeline.operator_states",
    "raw_state": "pipeline.operator_states",
    "read_state": "state.read_state",
    "read_state_batches": "state.read_state",
    "reducing_state": "pipeline.states",
    "session": "pipeline.windows",
    "sliding": "pipeline.windows",
    "stddev": "pipeline.aggregates",
    "sum": "pipeline.aggregates",
    "top_n": "pipeline.aggregates",
    "tumbling": "pipeline.windows",
    "union_list_state": "pipeline.operator_states",
    "user_aggregate": "pipeline.aggregates",
    "value_state": "pipeline.states",
    "var": "pipeline.aggregates",
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
