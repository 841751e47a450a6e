"""Which operators keep their state in a back end: they share a slot's memory for state (S5.2). Light: specs alone."""

from __future__ import annotations

from tidegate.compat.pyspark_stateful.processor_specs import StatefulProcessorSpec
from tidegate.jobs.options import StateBackend
from tidegate.operators.aggregates.aggregate_specs import RunningAggSpec
from tidegate.operators.deduplicate_specs import DeduplicateSpec
from tidegate.operators.joins.join_specs import StreamJoinSpec
from tidegate.operators.specs import KeyedProcessSpec, WindowAggSpec
from tidegate.operators.windows.session_specs import SessionAggSpec
from tidegate.state.backend_registry import OUTSIDE_MEMORY

_ALWAYS = (KeyedProcessSpec, StatefulProcessorSpec, StreamJoinSpec, DeduplicateSpec)
_OUTSIDE_MEMORY = (RunningAggSpec, WindowAggSpec, SessionAggSpec)


def has_back_end(spec: object, state_backend: StateBackend) -> bool:
    """Whether operators of `spec` keep their state in the back end of this name."""
    return isinstance(spec, _ALWAYS) or (state_backend in OUTSIDE_MEMORY and isinstance(spec, _OUTSIDE_MEMORY))


def back_end_in_batch(spec: object, state_backend: StateBackend) -> StateBackend:
    """The back end in batch mode, which gives an operator the rows of some keys at a time: aggregates of these are best
    kept in memory, whatever the job's option (S8.1)."""
    return "heap" if isinstance(spec, _OUTSIDE_MEMORY) else state_backend
