"""Description of `map_async`, as a JobGraph holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from tidegate.jobs.options import ProcessingTimeOnEnd
from tidegate.jobs.restore.state_shapes import StateShape
from tidegate.operators.operator_spec import EndOfInput, OperatorSpec, SideSchemas
from tidegate.operators.stream_operator import AsyncFunction
from tidegate.snapshot.evolved_columns import schema_columns

OnTimeout = Literal["fail", "side_output"]
REQUESTS = "requests"
"""State: the rows whose answers were not emitted yet."""
HELD = "held"
"""State: the watermark that waits for these answers."""
TIMED_OUT = "timed_out"
"""Side output: rows of requests that timed out, with `on_timeout="side_output"`."""


@dataclass(frozen=True)
class AsyncMapSpec(OperatorSpec):
    """Calls a user's function for rows outside the slot's loop, several requests at once.

    Attributes:
        function: the user's function.
        input_schema: schema of the input.
        schema: schema of the rows that the function returns.
        capacity: most requests in each subtask, >= 1. Answered requests that are not emitted yet count.
        batch_rows: most rows of a request; None: one request for each batch.
        timeout_ms: how long a request may take; None: no limit.
        ordered: answers are emitted in the order of the input; False: as they arrive, but never past a watermark.
        on_timeout: "fail", or "side_output" to send the rows of the request to the side output `timed_out`.
        side_outputs: side outputs that the function may return rows for.
    """

    function: AsyncFunction
    input_schema: pa.Schema
    schema: pa.Schema
    capacity: int
    batch_rows: int | None
    timeout_ms: int | None
    ordered: bool
    on_timeout: OnTimeout
    side_outputs: SideSchemas = ()

    def results_at_end(self, processing_time_on_end: ProcessingTimeOnEnd) -> EndOfInput:
        """Return "none": the end of the input waits for the answers, and they are the same without it."""
        return "none"

    def states(self) -> tuple[StateShape, ...]:
        """Return the requests in flight, and the watermark that waits for them."""
        return (StateShape(REQUESTS, "list", schema_columns(self.input_schema)), StateShape(HELD, "list"))

    def describe(self) -> str:
        """Return the function's name, the capacity and the order."""
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"map_async {name}, {self.capacity} at once, {'ordered' if self.ordered else 'unordered'}"
