"""Frozen description of a deduplication, as a JobGraph holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from tidegate.jobs.options import ProcessingTimeOnEnd
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.backend_shapes import backend_shapes
from tidegate.operators.operator_spec import ChangeInputs, EndOfInput, KeyedStatePlace, OperatorSpec
from tidegate.operators.time.watermark_specs import TimeUnit
from tidegate.state.keyed_state import StateDescriptor, TimeToLive
from tidegate.state.keys.key_types import stored_field

SEEN = "seen"


@dataclass(frozen=True)
class DeduplicateSpec(OperatorSpec):
    """Keeps the first row of each key, and drops rows that repeat it.

    Attributes:
        keys: columns that must be equal for a row to be a repeat; null equals null.
        time_column: event time, a timestamp or an integer; None: `within_us` is 0.
        time_unit: of the time column.
        within_us: a row is kept again if it is at least this much later than the kept row; 0: never.
        ttl_ms: processing time after which a kept row's key is deleted; 0: never.
        schema: of input and output.
        renamed: (key column in older snapshots, its name now).
    """

    keyed_state: ClassVar[KeyedStatePlace] = "backend"
    change_inputs: ClassVar[ChangeInputs] = "none"

    keys: tuple[str, ...]
    time_column: str | None
    time_unit: TimeUnit
    within_us: int
    ttl_ms: int
    schema: pa.Schema
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def key_schema(self) -> pa.Schema:
        """Return the key columns as they are stored in states."""
        return pa.schema([stored_field(self.schema.field(key)) for key in self.keys])

    @property
    def seen(self) -> StateDescriptor:
        """Return the descriptor of the state of a key: the time of the kept row."""
        ttl = TimeToLive(self.ttl_ms) if self.ttl_ms else None
        return StateDescriptor(SEEN, "value", pa.schema([("time_us", pa.int64())]), ttl=ttl)

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Return "none": rows are emitted as they arrive."""
        return "none"

    def mode_dependence(self) -> str:
        """Return the reason: the order of arrival decides."""
        return "which of equal records it keeps depends on the order in which they arrive"

    def states(self) -> tuple[StateShape, ...]:
        """Return the keys and their timers."""
        return backend_shapes((self.seen,), self.key_schema, self.renamed)

    def describe(self) -> str:
        """Return the keys, and the time within which rows are repeats."""
        within = f" within {self.within_us / 1e6:g} s" if self.within_us else ""
        return f"first by {', '.join(self.keys)}{within}"
