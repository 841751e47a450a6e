"""`group_by(...).process(...)`: what a user's process needs to be part of a pipeline."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import pyarrow as pa

from tidegate.contract.errors import PipelineError
from tidegate.operators.specs import KeyedProcessSpec
from tidegate.operators.user_process import KeyedProcess
from tidegate.pipeline.columns import checked_renames, refuse_duplicates
from tidegate.pipeline.eventtime import EventTime
from tidegate.pipeline.states import checked_states


def keyed_process_spec(
    process: object,
    schema: object,
    keys: tuple[str, ...],
    input_schema: pa.Schema,
    time: EventTime,
    renamed: Mapping[str, str] | None,
    where: str,
) -> KeyedProcessSpec:
    """The operator of a process; PipelineError for anything that does not fit."""
    process = require_process(process, where)
    schema = require_result_schema(schema, where)
    states = checked_states(process.states, where)
    mapping = checked_renames(renamed, keys, where)
    return KeyedProcessSpec(process, keys, states, time.column, time.unit, input_schema, schema, mapping)


def require_process(process: object, where: str) -> KeyedProcess:
    """The process, an instance of a subclass with a `process` of its own."""
    if isinstance(process, KeyedProcess):
        if type(process).process is KeyedProcess.process:
            raise PipelineError(
                f"{type(process).__name__} has no method process",
                where=where,
                remedy="Write it: def process(self, rows, ctx)",
            )
        return process
    if inspect.isclass(process) and issubclass(process, KeyedProcess):
        remedy = f"Make one: .process({process.__name__}(), ...)"
    else:
        remedy = "Subclass tidegate.KeyedProcess and give an instance; functions without state: .map_in_arrow(...)"
    given = f"the class {process.__name__}" if inspect.isclass(process) else type(process).__name__
    raise PipelineError(f"process needs a KeyedProcess, got {given}", where=where, remedy=remedy)


def require_result_schema(schema: object, where: str) -> pa.Schema:
    """The schema of what a process gives."""
    if not isinstance(schema, pa.Schema):
        raise PipelineError(
            f"process needs the schema of its result, got {type(schema).__name__}",
            where=where,
            remedy='Give one: schema=pa.schema([("name", pa.string())])',
        )
    refuse_duplicates(schema.names, where, remedy="Give every column a name of its own")
    return schema
