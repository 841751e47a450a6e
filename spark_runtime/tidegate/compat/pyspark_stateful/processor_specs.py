"""Frozen description of a PySpark StatefulProcessor, as a JobGraph holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa

from tidegate.jobs.options import ProcessingTimeOnEnd
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.backend_shapes import backend_shapes
from tidegate.operators.operator_spec import EndOfInput, KeyedStatePlace, OperatorSpec
from tidegate.operators.time.watermark_specs import TimeUnit
from tidegate.operators.user_functions.mode_dependence import batch_sensitivity_reason
from tidegate.state.keys.key_types import stored_field

# Do not import PySpark here: it loads slowly, and every pipeline imports this module. Pipelines with a processor have
# imported PySpark already.
if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    from tidegate.compat.pyspark_stateful.state_declarations import DeclaredState

TimeMode = Literal["none", "processingtime", "eventtime"]
INITIAL = 1
"""Number of the input with the initial state; input 0 has the rows."""
COMPLETE_STATE = "initial:complete"
WAITING_STATE = "initial:waiting"
"""Reserved names: states of users have no colon in their names."""


@dataclass(frozen=True, eq=False)
class StatefulProcessorSpec(OperatorSpec):
    """Runs a StatefulProcessor with its states and timers.

    Attributes:
        processor: the user's processor; every subtask works on a deep copy, and calls its `init`.
        pandas: True: its rows are pandas frames; False: `Row` objects.
        declared: states that `init` declares, with unique names.
        deleted: states that `init` deletes from older snapshots.
        time_mode: of timers and TTL.
        keys: key columns; null is a key of its own.
        time_column: event time of the rows, with time mode "eventtime"; else None.
        time_unit: of the time column.
        input_schema: of the rows.
        initial_schema: of the initial state; None: there is none.
        initial_keys: its key columns, in the order of `keys` and with their types.
        schema: of the results.
        output_time: event-time column of the results; None: they have none.
        output_unit: of that column.
        renamed: (key column in older snapshots, its name now).
    """

    keyed_state: ClassVar[KeyedStatePlace] = "backend"

    processor: StatefulProcessor
    pandas: bool
    declared: tuple[DeclaredState, ...]
    deleted: tuple[str, ...]
    time_mode: TimeMode
    keys: tuple[str, ...]
    time_column: str | None
    time_unit: TimeUnit
    input_schema: pa.Schema
    initial_schema: pa.Schema | None
    initial_keys: tuple[str, ...]
    schema: pa.Schema
    output_time: str | None
    output_unit: TimeUnit
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def key_schema(self) -> pa.Schema:
        """Return the key columns as they are stored in states."""
        return pa.schema([stored_field(self.input_schema.field(key)) for key in self.keys])

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Return "any" if timers fire at the end; else the initial state's input, whose end emits waiting rows."""
        from pyspark.sql.streaming.stateful_processor import StatefulProcessor

        fires = type(self.processor).handleExpiredTimer is not StatefulProcessor.handleExpiredTimer
        dropped = self.time_mode == "processingtime" and processing_time_on_end == "drop"
        if fires and self.time_mode != "none" and not dropped:
            return "any"
        return "none" if self.initial_schema is None else INITIAL

    @property
    def groups_by_key(self) -> bool:
        """Return whether keys share no state, so that each can be processed alone, with its own end of the input."""
        return self.initial_schema is None

    def mode_dependence(self) -> str:
        """Return the reason: the clock, or the user's mark."""
        if self.time_mode == "processingtime":
            return "its timers and TTL go by the clock: timeMode is ProcessingTime"
        return batch_sensitivity_reason(type(self.processor))

    def states(self) -> tuple[StateShape, ...]:
        """Return the processor's states, its timers, the states of the initial state, and the deleted states.

        The initial state may be removed later, so its states are always declared.
        """
        others = [StateShape(name, "keyed") for name in (COMPLETE_STATE, WAITING_STATE, *self.deleted)]
        descriptors = [state.descriptor for state in self.declared]
        return backend_shapes(descriptors, self.key_schema, self.renamed, others=others, drops=True)

    def describe(self) -> str:
        """Return the processor's class, keys and states."""
        states = ", ".join(f"{s.descriptor.name} ({s.descriptor.kind})" for s in self.declared) or "no states"
        return f"transform_with_state {type(self.processor).__qualname__} by {', '.join(self.keys)}: {states}"
