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
"""State: the rows whose answers have not come out."""
HELD = "held"
"""State: the watermark that waits behind them."""
TIMED_OUT = "timed_out"
"""Side output: rows of requests that were not answered in time, with `on_timeout="side_output"`."""


@dataclass(frozen=True)
class AsyncMapSpec(OperatorSpec):
    """Asks a user's function for rows beside the slot's loop, several requests at once.

    Attributes:
        function: the user's.
        input_schema: of the input.
        schema: of the rows it gives.
        capacity: requests at once in each subtask, also those answered whose turn has not come, >= 1.
        batch_rows: rows of a request at most; None: those of the batch as it comes.
        timeout_ms: how long a request may take; None: for ever.
        ordered: answers come out in the order of the input; False: as they come, but never past a watermark.
        on_timeout: "fail", or rows of the request to the side output `timed_out`.
        side_outputs: those it may give rows for.
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
        """Answers that were waited for are not early."""
        return "none"

    def states(self) -> tuple[StateShape, ...]:
        """The requests in flight."""
        return (StateShape(REQUESTS, "list", schema_columns(self.input_schema)), StateShape(HELD, "list"))

    def describe(self) -> str:
        """The function's name, how many at once, and in which order."""
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"map_async {name}, {self.capacity} at once, {'ordered' if self.ordered else 'unordered'}"
