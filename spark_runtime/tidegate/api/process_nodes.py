"""Checks user processes and creates their operator specs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from tidegate.api.draft.column_checks import checked_renames, require_result_schema
from tidegate.api.states import checked_states
from tidegate.api.windows import duration_us
from tidegate.errors import PipelineError
from tidegate.operators.processes.process_specs import KeyedProcessSpec, ProcessSpec
from tidegate.operators.user_functions.co_process import (
    BroadcastProcess,
    CoProcess,
    KeyedBroadcastProcess,
    KeyedCoProcess,
)
from tidegate.operators.user_functions.context import ProcessBase, SubtaskState
from tidegate.operators.user_functions.keyed_process import KeyedProcess
from tidegate.operators.user_functions.process import Process
from tidegate.operators.user_functions.process_inputs import ProcessInput, overrides
from tidegate.state.keyed_state import StateDescriptor
from tidegate.state.raw_state import RawDescriptor

_CALLS: dict[type[ProcessBase], str] = {
    Process: "stream.process(...)",
    KeyedProcess: 'stream.group_by("k").process(...)',
    CoProcess: "left.connect(right).process(...)",
    KeyedCoProcess: 'left.connect(right).group_by("k").process(...)',
    BroadcastProcess: "stream.connect(rules.broadcast()).process(...)",
    KeyedBroadcastProcess: 'stream.group_by("k").connect(rules.broadcast()).process(...)',
}
"""How to pass an instance of each class."""


def keyed_spec(
    process: object,
    inputs: Sequence[ProcessInput],
    schema: object,
    renamed: Mapping[str, str] | None,
    where: str,
    timeless: Sequence[int] = (),
) -> KeyedProcessSpec:
    """Return the operator of a process with keys. Raises PipelineError for invalid arguments.

    Args:
        inputs: one; or two, of which the second has keys too or is broadcast.
        timeless: numbers of inputs without `with_watermark`, if another input has it.
    """
    wanted = {1: KeyedProcess, 2: KeyedCoProcess if inputs[-1].keys else KeyedBroadcastProcess}[len(inputs)]
    require_process(process, wanted, inputs, where)
    assert isinstance(process, KeyedProcess | KeyedCoProcess | KeyedBroadcastProcess)
    schema = require_result_schema(schema, "process", where)
    states = _states(process, where)
    first = inputs[0]
    return KeyedProcessSpec(
        process,
        first.keys,
        tuple(state for state in states if isinstance(state, StateDescriptor)),
        first.time_column,
        first.time_unit,
        first.schema,
        schema,
        checked_renames(renamed, first.keys, where),
        subtask_states=_of_subtask(states),
        second=inputs[1] if len(inputs) > 1 else None,
        timeless_inputs=tuple(timeless),
    )


def unkeyed_spec(
    process: object, inputs: Sequence[ProcessInput], schema: object, where: str, timeless: Sequence[int] = ()
) -> ProcessSpec:
    """Return the operator of a process without keys. Raises PipelineError for invalid arguments. See `keyed_spec`."""
    wanted = {1: Process, 2: BroadcastProcess if inputs[-1].name == "broadcast" else CoProcess}[len(inputs)]
    require_process(process, wanted, inputs, where)
    assert isinstance(process, Process | CoProcess | BroadcastProcess)
    schema = require_result_schema(schema, "process", where)
    states = _states(process, where)
    keyed = [s.name for s in states if isinstance(s, StateDescriptor) or (isinstance(s, RawDescriptor) and s.keyed)]
    name = type(process).__name__
    if keyed:
        raise PipelineError(
            f"state {keyed[0]!r} of process {name} is kept by key, but the stream has no keys",
            where=where,
            remedy='Group by columns first, .group_by("carrier"), and subclass a Keyed process; or declare state of a '
            "subtask: operator_list_state, union_list_state, broadcast_state, raw_state",
        )
    if hasattr(type(process), "on_timers"):
        raise PipelineError(
            f"process {name} has the method on_timers, but the stream has no keys",
            where=where,
            cause="timers are kept by key",
            remedy='Group by columns first, .group_by("carrier"), and subclass a Keyed process; or use the clock: '
            'every = "5 s" and on_processing_time',
        )
    return ProcessSpec(process, tuple(inputs), _of_subtask(states), schema, _every_ms(process, where), tuple(timeless))


def require_process(process: object, wanted: type[ProcessBase], inputs: Sequence[ProcessInput], where: str) -> None:
    """Raise PipelineError unless `process` is an instance of a subclass of `wanted` that has a method for each
    input."""
    given = f"the class {process.__name__}" if inspect.isclass(process) else type(process).__name__
    if isinstance(process, wanted):
        for method in (given_input.method for given_input in inputs):
            if not overrides(process, method):
                raise PipelineError(
                    f"process {given} has no method {method}",
                    where=where,
                    remedy=f"Write the method: def {method}(self, rows, ctx)",
                )
        return
    if inspect.isclass(process) and issubclass(process, wanted):
        remedy = f"Create an instance: .process({process.__name__}(), ...)"
    else:
        own = type(process) if not inspect.isclass(process) else process
        call = next((call for base, call in _CALLS.items() if issubclass(own, base)), None)
        remedy = (
            f"Subclass tidegate.{wanted.__name__} and pass an instance; or, without state, use .map_in_arrow(...)"
            if call is None
            else f"Write {call}, or subclass tidegate.{wanted.__name__}"
        )
    raise PipelineError(
        f"the argument of process(...) must be a {wanted.__name__}, but is {given}", where=where, remedy=remedy
    )


def _states(process: ProcessBase, where: str) -> tuple[StateDescriptor | SubtaskState, ...]:
    states = checked_states(process.states, where)
    raw = next((state for state in states if isinstance(state, RawDescriptor)), None)
    for method in ("write_raw", "read_raw") if raw is not None else ():
        if not overrides(process, method):
            raise PipelineError(
                f"process {type(process).__name__} declares raw state, but has no method {method}",
                where=where,
                cause="a process writes and reads the bytes of its raw state itself",
                remedy="Write both: def write_raw(self, name, out) and def read_raw(self, name, pieces)",
            )
    return states


def _of_subtask(states: Sequence[StateDescriptor | SubtaskState]) -> tuple[SubtaskState, ...]:
    return tuple(state for state in states if not isinstance(state, StateDescriptor))


def _every_ms(process: Process | CoProcess | BroadcastProcess, where: str) -> int | None:
    called = overrides(process, "on_processing_time")
    if called != (process.every is not None):
        raise PipelineError(
            f"process {type(process).__name__} defines "
            + ("on_processing_time, but not `every`" if called else "`every`, but not on_processing_time"),
            where=where,
            cause="on_processing_time is called at the interval `every`",
            remedy='Define both: every = "5 s" and def on_processing_time(self, now_ms, ctx)',
        )
    if process.every is None:
        return None
    every_ms = duration_us(process.every, "every", where) // 1000
    if every_ms < 1:
        raise PipelineError(
            f"every={process.every!r} of the process is too short", where=where, remedy='Use at least "1 ms"'
        )
    return every_ms
