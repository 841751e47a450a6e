"""Declares the states of operators that keep state by key in a back end (S5.5). A test compares the declaration with
the state that the operators write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import get_args

import pyarrow as pa

from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.time.passed_watermarks import PASSED_STATE
from tidegate.snapshot.evolved_columns import schema_columns
from tidegate.state.evolved_parts import renamed_columns
from tidegate.state.keyed_state import StateDescriptor, TimerKind
from tidegate.state.state_layout import KEY_PREFIX, form_of, part_schema, timer_part, timer_schema


def backend_shapes(
    descriptors: Sequence[StateDescriptor],
    keys: pa.Schema,
    renames: Iterable[tuple[str, str]],
    *,
    others: Sequence[StateShape] = (),
    drops: bool = False,
) -> tuple[StateShape, ...]:
    """Return the shapes: watermarks first, then the states, then the timers.

    Args:
        descriptors: of the states.
        keys: the key columns.
        renames: (key column in older snapshots, its name now).
        others: the operator's other states; they are declared before those in the back end.
        drops: drop value columns of a snapshot that are no longer declared.
    """
    of_keys = {KEY_PREFIX + old: KEY_PREFIX + new for old, new in renames}
    shapes = [StateShape(PASSED_STATE, "keyed"), *others]
    for descriptor in descriptors:
        schema = part_schema(descriptor, keys)
        renamed = {**renamed_columns(descriptor), **of_keys}
        shapes.append(
            StateShape(descriptor.name, "keyed", schema_columns(schema), form_of(schema), renamed, drops=drops)
        )
    timers = timer_schema(keys)
    columns, form = schema_columns(timers), form_of(timers)
    shapes += [StateShape(timer_part(kind), "keyed", columns, form, of_keys) for kind in get_args(TimerKind)]
    return tuple(shapes)
