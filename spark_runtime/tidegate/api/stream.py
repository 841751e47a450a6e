"""Streams: what the user chains to draw a pipeline. Every call checks itself at once and runs nothing.

Columns, types and expressions are checked without data; each error names the place in the user's code. Streams are
immutable: a call gives a new one, and a stream may be read by several.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Self

from tidegate.errors import PipelineError
from tidegate.operators.specs import TimeUnit, WatermarkSpec
from tidegate.api.running_aggregates import AggregateCalls
from tidegate.api.aligning import alignment_group
from tidegate.api.async_calls import AsyncCalls
from tidegate.api.column_calls import ColumnCalls
from tidegate.api.draft.column_checks import require_column
from tidegate.api.deduplicate_calls import DeduplicateCalls
from tidegate.api.draft.graph_draft import DraftNode, optional_uid, place
from tidegate.api.draft.stream_time import EventTime, time_unit
from tidegate.api.grouped_stream import GroupedStream
from tidegate.api.join_calls import JoinCalls
from tidegate.api.draft.call_site import user_location
from tidegate.api.order_calls import OrderCalls
from tidegate.api.process_calls import ProcessCalls
from tidegate.api.routing_calls import RoutingCalls
from tidegate.api.windows import duration_us
from tidegate.api.write_calls import WriteCalls


class Stream(
    ColumnCalls,
    RoutingCalls,
    JoinCalls,
    OrderCalls,
    AsyncCalls,
    ProcessCalls,
    WriteCalls,
    AggregateCalls,
    DeduplicateCalls,
):
    """Records of one schema, bounded or not. Made by `Pipeline.read` and by the calls below.

    Attributes:
        schema: of the records.
        bounded: it comes to its end by itself.
    """

    def with_watermark(
        self,
        column: str,
        delay: str | timedelta,
        *,
        unit: TimeUnit | None = None,
        idle_after: str | timedelta | None = None,
        group: str | None = None,
        max_drift: str | timedelta | None = None,
        uid: str | None = None,
    ) -> Self:
        """Say which column holds event time and how much out of order records come (S4.4).

        The watermark is the latest time seen, per split and then the minimum over splits, minus `delay`; records behind
        it are late. Call it as near to the source as can be: behind an exchange or a second input splits cannot be told
        apart any more, and a file that begins before the one in front of it ended has late records.

        Args:
            column: a timestamp, or int64 with `unit`.
            delay: such as "10 min"; "0 s" when each split is in order.
            unit: of an int64 column: "s", "ms", "us" or "ns".
            idle_after: a split that has brought nothing for so long, by the clock of the machine, holds the watermark
                back no longer, until it brings something, which may be late then. Without it the least of all splits
                decides. Bounded streams take no notice: each of their splits comes to its end.
            group: name of an alignment group: its sources go on together, so that joins and windows of several need not
                keep what the fastest has brought. Wherever a subtask's watermark is ahead of the least of the group by
                more than `max_drift`, its source is not read. A source that is silent keeps the others waiting, unless
                it is idle. Only directly at the source.
            max_drift: with `group`; such as "5 min".
            uid: default: derived from the nearest uid upstream.

        Raises:
            PipelineError: no such column, of another type, or not a duration; one of `group` and `max_drift` alone.
        """
        location = user_location()
        uid = optional_uid(uid, "watermark", location)
        where = place("watermark", uid, location)
        field = require_column(self.schema, column, where)
        known = time_unit(field, unit, where)
        delay_us = duration_us(delay, "delay", where)
        aligned = alignment_group(group, max_drift, where)
        idle_ms = None if idle_after is None else duration_us(idle_after, "idle_after", where) // 1000
        if idle_ms == 0:
            raise PipelineError(f"idle after {idle_after}", where=where, remedy='Give a duration such as "1 min"')
        node = DraftNode(
            uid,
            "watermark",
            self._forward(),
            self.schema,
            location,
            stateful=True,
            spec=WatermarkSpec(column, delay_us, known, None if self.bounded else idle_ms, aligned),
        )
        return self._then(node, EventTime(column, known, location))

    def group_by(self, *keys: str) -> GroupedStream:
        """Group by key columns; follow it by `.agg(...)`, `.window(...)` or `.process(...)`. Null is a key of its own.

        Raises:
            PipelineError: no such column, or of a type that cannot be a key.
        """
        return GroupedStream(self, keys, user_location())
