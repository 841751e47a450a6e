"""Frozen descriptions of processes, with keys and without, as a JobGraph holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from tidegate.jobs.options import ProcessingTimeOnEnd
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.backend_shapes import backend_shapes
from tidegate.operators.operator_spec import EndOfInput, KeyedStatePlace, OperatorSpec, SideSchemas
from tidegate.operators.time.passed_watermarks import PASSED_STATE
from tidegate.operators.time.watermark_specs import TimeUnit
from tidegate.operators.user_functions.context import SubtaskState
from tidegate.operators.user_functions.keyed_process import KeyedProcessBase
from tidegate.operators.user_functions.mode_dependence import batch_sensitivity_reason
from tidegate.operators.user_functions.process import UnkeyedProcessBase
from tidegate.operators.user_functions.process_inputs import INPUT_NAMES, ProcessInput, emits_at_end, inputs_text
from tidegate.snapshot.evolved_columns import schema_columns
from tidegate.state.keyed_state import StateDescriptor
from tidegate.state.keys.key_types import stored_field
from tidegate.state.raw_state import RawDescriptor
from tidegate.state.state_layout import form_of


@dataclass(frozen=True, eq=False)
class KeyedProcessSpec(OperatorSpec):
    """Runs a user's process with state and timers per key.

    Attributes:
        process: the user's process; every subtask uses a copy of its own.
        keys: key columns; null is a key of its own.
        descriptors: of the states that the process declares, with unique names.
        time_column: event time, a timestamp or an integer; None: the rows have none.
        time_unit: of the time column.
        input_schema: of the input.
        schema: of the batches that it returns; the job fails on any other schema, with the column's name.
        renamed: (key column in older snapshots, its name now).
        side_outputs: side outputs that it may return rows for.
        subtask_states: states without keys; names are unique among all states.
        second: the second input, if there is one; without keys it is broadcast.
        timeless_inputs: numbers of inputs without watermarks of their own: they hold the watermark back only until they
            end.
    """

    keyed_state: ClassVar[KeyedStatePlace] = "backend"

    process: KeyedProcessBase
    keys: tuple[str, ...]
    descriptors: tuple[StateDescriptor, ...]
    time_column: str | None
    time_unit: TimeUnit
    input_schema: pa.Schema
    schema: pa.Schema
    renamed: tuple[tuple[str, str], ...] = ()
    side_outputs: SideSchemas = ()
    subtask_states: tuple[SubtaskState, ...] = ()
    second: ProcessInput | None = None
    timeless_inputs: tuple[int, ...] = ()

    @property
    def inputs(self) -> tuple[ProcessInput, ...]:
        """Return the one or two inputs."""
        name = INPUT_NAMES[None if self.second is None else self.second.name]
        first = ProcessInput(name, self.input_schema, self.keys, self.time_column, self.time_unit)
        return (first,) if self.second is None else (first, self.second)

    @property
    def key_schema(self) -> pa.Schema:
        """Return the key columns as they are stored in states."""
        return pa.schema([stored_field(self.input_schema.field(key)) for key in self.keys])

    @property
    def groups_by_key(self) -> bool:
        """False if keys share states of the subtask."""
        return not self.subtask_states

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Return "any" if the user's class emits at the end of an input or has timers."""
        return "any" if emits_at_end(self.process) else "none"

    def mode_dependence(self) -> str:
        """Return the reason: states expire by TTL, or the user marked the process."""
        ageing = [descriptor.name for descriptor in self.descriptors if descriptor.ttl is not None]
        if ageing:
            return f"its state {', '.join(ageing)} expires by processing time"
        return batch_sensitivity_reason(type(self.process))

    def states(self) -> tuple[StateShape, ...]:
        """Return the states that the process declares, and its timers."""
        shapes = backend_shapes(self.descriptors, self.key_schema, self.renamed, drops=True)
        return (*shapes, *_subtask_shapes(self.subtask_states))

    def describe(self) -> str:
        """Return the process's class, keys and states."""
        declared = (*self.descriptors, *self.subtask_states)
        states = ", ".join(f"{state.name} ({state.kind})" for state in declared) or "no states"
        return f"process {type(self.process).__qualname__}{inputs_text(self.inputs)}: {states}"


@dataclass(frozen=True, eq=False)
class ProcessSpec(OperatorSpec):
    """Runs a user's process with states of its subtask.

    Attributes:
        process: the user's process; every subtask uses a copy of its own.
        inputs: one or two, none with keys.
        subtask_states: the states that it declares, with unique names.
        schema: of the batches that it returns; the job fails on any other schema, with the column's name.
        every_ms: interval of calls by the clock, milliseconds, > 0; None: none.
        timeless_inputs: numbers of inputs without watermarks of their own: they hold the watermark back only until they
            end.
        side_outputs: (name, schema) of the side outputs that it may return rows for.
    """

    process: UnkeyedProcessBase
    inputs: tuple[ProcessInput, ...]
    subtask_states: tuple[SubtaskState, ...]
    schema: pa.Schema
    every_ms: int | None = None
    timeless_inputs: tuple[int, ...] = ()
    side_outputs: SideSchemas = ()

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Return "any" if the user's class emits at the end of an input."""
        return "any" if emits_at_end(self.process) else "none"

    def mode_dependence(self) -> str:
        """Return the reason: the clock calls the process, or the user marked it."""
        return (
            "it is called by the clock" if self.every_ms is not None else batch_sensitivity_reason(type(self.process))
        )

    def states(self) -> tuple[StateShape, ...]:
        """Return the states that the process declares, and the watermark."""
        return (StateShape(PASSED_STATE, "list"), *_subtask_shapes(self.subtask_states))

    def describe(self) -> str:
        """Return the process's class and states."""
        states = ", ".join(f"{state.name} ({state.kind})" for state in self.subtask_states) or "no states"
        return f"process {type(self.process).__qualname__}: {states}"


def _subtask_shapes(states: Sequence[SubtaskState]) -> tuple[StateShape, ...]:
    """Return the shapes of operator states and raw states."""
    shapes: list[StateShape] = []
    for state in states:
        renamed = {} if isinstance(state, RawDescriptor) else dict(state.renamed)
        shapes.append(StateShape(state.name, state.kind, schema_columns(state.schema), form_of(state.schema), renamed))
    return tuple(shapes)
