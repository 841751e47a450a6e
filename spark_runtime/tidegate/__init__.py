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
    from tidegate.connectors.text_files import Csv, JsonLines
    from tidegate.contract.errors import PipelineError, TidegateError
    from tidegate.contract.options import JobOptions
    from tidegate.operators.contract import SideOutput
    from tidegate.operators.user_process import FiredTimers, KeyedProcess, KeyedRows, ProcessContext
    from tidegate.pipeline.aggregates import count, max, mean, min, sum
    from tidegate.pipeline.pipeline import Pipeline
    from tidegate.pipeline.states import aggregating_state, list_state, map_state, reducing_state, value_state
    from tidegate.pipeline.streams import Stream
    from tidegate.pipeline.windows import tumbling
    from tidegate.state.read_state import read_state, read_state_batches

__version__ = "0.1.0"

__all__ = [
    "Csv",
    "DataGen",
    "Delta",
    "Discard",
    "Files",
    "FiredTimers",
    "JobOptions",
    "JsonLines",
    "KeyedProcess",
    "KeyedRows",
    "Parquet",
    "Pipeline",
    "PipelineError",
    "Postgres",
    "ProcessContext",
    "PushContext",
    "PushSource",
    "Pusher",
    "Replay",
    "SideOutput",
    "Stream",
    "TidegateError",
    "aggregating_state",
    "count",
    "list_state",
    "map_state",
    "max",
    "mean",
    "min",
    "read_state",
    "read_state_batches",
    "reducing_state",
    "sum",
    "tumbling",
    "value_state",
]

_HOMES = {
    "Csv": "connectors.text_files",
    "DataGen": "connectors.datagen",
    "Delta": "connectors.delta",
    "Discard": "connectors.discard",
    "Files": "connectors.files",
    "FiredTimers": "operators.user_process",
    "JobOptions": "contract.options",
    "JsonLines": "connectors.text_files",
    "KeyedProcess": "operators.user_process",
    "KeyedRows": "operators.user_process",
    "Parquet": "connectors.parquet",
    "Pipeline": "pipeline.pipeline",
    "PipelineError": "contract.errors",
    "Postgres": "connectors.postgres",
    "ProcessContext": "operators.user_process",
    "PushContext": "connectors.push",
    "PushSource": "connectors.push",
    "Pusher": "connectors.push",
    "Replay": "connectors.replay",
    "SideOutput": "operators.contract",
    "Stream": "pipeline.streams",
    "TidegateError": "contract.errors",
    "aggregating_state": "pipeline.states",
    "count": "pipeline.aggregates",
    "list_state": "pipeline.states",
    "map_state": "pipeline.states",
    "max": "pipeline.aggregates",
    "mean": "pipeline.aggregates",
    "min": "pipeline.aggregates",
    "read_state": "state.read_state",
    "read_state_batches": "state.read_state",
    "reducing_state": "pipeline.states",
    "sum": "pipeline.aggregates",
    "tumbling": "pipeline.windows",
    "value_state": "pipeline.states",
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
