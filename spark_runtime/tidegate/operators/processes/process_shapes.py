"""What processes declare of the states of their subtasks (S5.5)."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.time.passed_watermarks import PASSED_STATE
from tidegate.operators.processes.process_specs import ProcessSpec
from tidegate.operators.functions.context import SubtaskState
from tidegate.snapshot.evolved_columns import columns_of
from tidegate.state.state_layout import form_of
from tidegate.state.raw_state import RawDescriptor


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
