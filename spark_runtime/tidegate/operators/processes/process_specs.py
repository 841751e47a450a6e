"""Frozen description of a process without keys, as a JobGraph holds it; `specs.KeyedProcessSpec` is the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.jobs.options import ProcessingTimeOnEnd
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.functions.context import SubtaskState
from tidegate.operators.functions.mode_dependence import why_batch_sensitive
from tidegate.operators.functions.process import UnkeyedUserProcess
from tidegate.operators.functions.process_inputs import ProcessInput, fires_at_end
from tidegate.operators.stream_operator import EndOfInput, StreamOperator
from tidegate.operators.time.passed_watermarks import PASSED_STATE
from tidegate.snapshot.evolved_columns import columns_of
from tidegate.state.raw_state import RawDescriptor
from tidegate.state.state_layout import form_of


def subtask_shapes(states: Sequence[SubtaskState]) -> tuple[StateShape, ...]:
    """Of operator states and raw ones."""
    shapes: list[StateShape] = []
    for state in states:
        renamed = {} if isinstance(state, RawDescriptor) else dict(state.renamed)
        shapes.append(StateShape(state.name, state.kind, columns_of(state.schema), form_of(state.schema), renamed))
    return tuple(shapes)


def unkeyed_shapes(spec: ProcessSpec) -> tuple[StateShape, ...]:
    """Of a process without keys."""
    return (StateShape(PASSED_STATE, "list"), *subtask_shapes(spec.subtask_states))


@dataclass(frozen=True, eq=False)
class ProcessSpec:
    """Runs a user's process with states of its subtask.

    Attributes:
        process: the user's; every subtask takes a copy of its own.
        inputs: one or two, none with keys.
        subtask_states: that it declares, names unique.
        schema: of the batches it gives; anything else is an error naming the column.
        every_ms: how often it is called by the clock, milliseconds, > 0; None: never.
        timeless_inputs: numbers of inputs that bring no time of their own: they hold the watermark back only until they
            end.
        side_outputs: (name, schema) of those it may give rows for.
    """

    process: UnkeyedUserProcess
    inputs: tuple[ProcessInput, ...]
    subtask_states: tuple[SubtaskState, ...]
    schema: pa.Schema
    every_ms: int | None = None
    timeless_inputs: tuple[int, ...] = ()
    side_outputs: tuple[tuple[str, pa.Schema], ...] = ()

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """What the user's class says at the end."""
        return "any" if fires_at_end(self.process) else "none"

    def mode_dependence(self) -> str:
        """Called by the clock, or when the user says so."""
        return "it is called by the clock" if self.every_ms is not None else why_batch_sensitive(type(self.process))

    def create(self) -> StreamOperator:
        """A fresh operator around a copy of the process."""
        from tidegate.operators.processes.process_operator import ProcessOperator

        return ProcessOperator(self)

    def states(self) -> tuple[StateShape, ...]:
        """What the process declares, and how far time has come."""
        from tidegate.operators.processes.process_specs import unkeyed_shapes

        return unkeyed_shapes(self)

    def describe(self) -> str:
        """The process's class and states."""
        states = ", ".join(f"{state.name} ({state.kind})" for state in self.subtask_states) or "no states"
        return f"process {type(self.process).__qualname__}: {states}"
