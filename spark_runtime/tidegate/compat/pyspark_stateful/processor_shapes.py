"""What a StatefulProcessor declares of its states (S5.5), for the documents of graphs; see `state_shapes`."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from tidegate.compat.pyspark_stateful.initial_state import COMPLETE_STATE, WAITING_STATE
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.time.passed_watermarks import PASSED_STATE
from tidegate.snapshot.evolved_columns import columns_of
from tidegate.state.keyed_state import TimerKind
from tidegate.state.state_layout import KEY_PREFIX, form_of, part_schema, timer_part, timer_schema

if TYPE_CHECKING:
    from tidegate.compat.pyspark_stateful.processor_specs import StatefulProcessorSpec


def processor_shapes(spec: StatefulProcessorSpec) -> tuple[StateShape, ...]:
    """Its states and timers, what the initial state leaves behind, and the states that it deletes, whatever they
    were. An initial state may be taken away later, so that its states are always declared."""
    keys, of_keys = spec.key_schema, {KEY_PREFIX + old: KEY_PREFIX + new for old, new in spec.renamed}
    own = [StateShape(name, "keyed") for name in (PASSED_STATE, COMPLETE_STATE, WAITING_STATE, *spec.deleted)]
    states = [part_schema(state.descriptor, keys) for state in spec.declared]
    named = [
        StateShape(state.descriptor.name, "keyed", columns_of(schema), form_of(schema), of_keys, drops=True)
        for state, schema in zip(spec.declared, states, strict=True)
    ]
    timers = timer_schema(keys)
    columns, form = columns_of(timers), form_of(timers)
    return (
        *own,
        *named,
        *(StateShape(timer_part(kind), "keyed", columns, form, of_keys) for kind in get_args(TimerKind)),
    )
