"""Calls of services beside the stream."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Self, get_args

import pyarrow as pa

from tidegate.errors import PipelineError
from tidegate.operators.async_specs import TIMED_OUT, AsyncMapSpec, OnTimeout
from tidegate.operators.async_requests import AsyncFunction
from tidegate.api.draft.column_checks import refuse_duplicates, require_result_schema, same_columns
from tidegate.api.draft.graph_draft import DraftNode, DraftOutput, place, require_uid
from tidegate.api.draft.call_site import user_location
from tidegate.api.draft.side_outputs import checked_side_outputs
from tidegate.api.stream_base import StreamBase
from tidegate.api.windows import duration_us


class AsyncCalls(StreamBase):
    """Calls of `Stream`; see there."""

    def map_async(
        self,
        fn: AsyncFunction,
        schema: pa.Schema,
        *,
        capacity: int = 100,
        batch_rows: int | None = None,
        timeout: str | timedelta | None = "10 s",
        ordered: bool = True,
        on_timeout: OnTimeout = "fail",
        side_outputs: Mapping[str, pa.Schema] | None = None,
        uid: str | None = None,
    ) -> Self:
        """Apply a function that waits for others, such as a service or a database: many requests go on at once, while
        the stream and its checkpoints do.

        Rows whose answers have not come out are part of every snapshot, and are asked again after a restore: the
        function may see a row more than once, its answer comes out once. Event time and its watermarks stay right: no
        answer comes out behind a watermark that its rows were in front of. The event-time column counts as unchanged
        where `schema` has it, of the same type. What the function raises fails the job; retrying is its own affair.

        Args:
            fn: takes a record batch, returns one of `schema` (or several, `SideOutput`s among them, or None). An `async
                def` runs on an event loop of its own; a plain function or generator on threads, of which each subtask
                has at most 32: no more of its requests go on at once, whatever `capacity`.
            schema: of what it gives; checked answer by answer.
            capacity: requests at once in each subtask; with so many in flight the stream waits.
            batch_rows: rows of one request at most; default: batches as they come, of up to some ten thousand rows.
            timeout: how long a request may take, by the clock of the machine; None: for ever.
            ordered: answers come out in the order of the input. False: as they come, which is sooner.
            on_timeout: "fail" the job; "side_output": the request's rows go to the side output `timed_out`.
            side_outputs: other outputs, name -> schema; read them with `.side_output(name)` of what this returns.
            uid: required.

        Raises:
            PipelineError: no uid, not a function or a schema, or a value that is not as above.
        """
        location = user_location()
        uid = require_uid(uid, "map_async", location)
        where = place("map_async", uid, location)
        if not callable(fn):
            raise PipelineError(
                f"map_async needs a function, got {type(fn).__name__}",
                where=where,
                remedy="Give a function, or an async def, that takes a record batch and returns one",
            )
        require_result_schema(schema, "map_async", where)
        _require_count(capacity, "capacity", where)
        if batch_rows is not None:
            _require_count(batch_rows, "batch_rows", where)
        sides = checked_side_outputs(side_outputs, self.schema, self._event_time, where)
        if on_timeout == "side_output":
            refuse_duplicates([TIMED_OUT, *(s.name for s in sides)], where, remedy="Give it another name")
            sides = (*sides, DraftOutput(TIMED_OUT, self.schema, self._event_time))
        elif on_timeout not in get_args(OnTimeout):
            raise PipelineError(
                f"on_timeout={on_timeout!r} is not offered", where=where, remedy='Use "fail" or "side_output"'
            )
        spec = AsyncMapSpec(
            fn,
            self.schema,
            schema,
            capacity,
            batch_rows,
            _timeout_ms(timeout, where),
            ordered,
            on_timeout,
            tuple((side.name, side.schema) for side in sides),
        )
        node = DraftNode(
            uid, "map_async", self._forward(), schema, location, stateful=True, spec=spec, side_outputs=sides
        )
        return self._then(node, self._event_time.kept_by(same_columns(schema, self.schema), where))


def _require_count(value: object, name: str, where: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise PipelineError(f"{name} is {value!r}", where=where, remedy="Give a whole number from 1 on")


def _timeout_ms(timeout: str | timedelta | None, where: str) -> int | None:
    if timeout is None:
        return None
    timeout_ms = duration_us(timeout, "timeout", where) // 1000
    if timeout_ms < 1:
        raise PipelineError(f"a timeout of {timeout}", where=where, remedy='Give one such as "10 s", or None')
    return timeout_ms
