"""Streams: what the user chains to draw a pipeline. Every call checks itself at once and runs nothing.

Columns, types and expressions are checked without data; each error names the place in the user's code. Streams are
immutable: a call gives a new one, and a stream may be read by several.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Literal, Never, Self, get_args

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.api.aggregate_nodes import CONSTANT_KEY, RANK, drop_columns, running_aggregate, with_constant_key
from tidegate.api.aggregates import Aggregate, bound_aggregates
from tidegate.api.connected_streams import ConnectedStreams, process_input
from tidegate.api.draft.call_site import user_location
from tidegate.api.draft.column_checks import (
    checked_renames,
    refuse_duplicates,
    require_column,
    require_key,
    require_result_schema,
    same_columns,
)
from tidegate.api.draft.expression_checks import passed_column, require_boolean, require_expression, result_fields
from tidegate.api.draft.graph_draft import UID, DraftNode, DraftOutput, call_place, optional_uid, require_uid
from tidegate.api.draft.side_outputs import checked_side_outputs, declared_schemas
from tidegate.api.draft.stream_time import StreamEventTime, common_event_time, time_unit
from tidegate.api.grouped_stream import GroupedStream, WindowedStream
from tidegate.api.joins import JoinCall, as_of_join, broadcast_join, stream_join
from tidegate.api.process_nodes import unkeyed_spec
from tidegate.api.stream_base import BroadcastStream, StreamBase
from tidegate.api.windows import (
    LATE,
    WINDOW_END,
    WINDOW_START,
    Session,
    Sliding,
    Tumbling,
    Window,
    duration_us,
    session,
)
from tidegate.connectors.interface import Sink
from tidegate.errors import PipelineError
from tidegate.operators.aggregates.aggregate_specs import AggregateOutput, PartialAggSpec
from tidegate.operators.async_specs import TIMED_OUT, AsyncMapSpec, OnTimeout
from tidegate.operators.deduplicate_specs import DeduplicateSpec
from tidegate.operators.functions.process import Process
from tidegate.operators.joins.join_specs import StreamJoinKind, StreamJoinSpec
from tidegate.operators.row_specs import BatchFunction, FilterSpec, MapInArrowSpec, ProjectSpec, UnionSpec
from tidegate.operators.stream_operator import AsyncFunction
from tidegate.operators.time.watermark_specs import AlignmentGroup, TimeUnit, WatermarkSpec
from tidegate.plan.job_graph import Edge, Exchange, Partitioner

Keep = Literal["first", "last"]
"""Which of equal records a deduplication keeps."""


class Stream(StreamBase):
    """Records of one schema, bounded or not. Made by `Pipeline.read` and by the calls below.

    Attributes:
        schema: of the records.
        bounded: it comes to its end by itself.
    """

    # Columns and rows

    def select(self, *columns: str | pc.Expression, **expressions: pc.Expression) -> Self:
        """The named columns, then the named expressions, and no others.

        Raises:
            PipelineError: no such column, types that do not fit, or a name twice.
        """
        location = user_location()
        where = call_place("select", None, location)
        wanted: list[tuple[str, pc.Expression]] = []
        for column in columns:
            name = passed_column(column, self.schema) if isinstance(column, pc.Expression) else column
            if name is None:
                raise PipelineError(
                    f"the expression {column} has no name", where=where, remedy=f"Name it: select(name={column})"
                )
            wanted.append((require_column(self.schema, name, where).name, pc.field(name)))
        wanted.extend((name, require_expression(value, where)) for name, value in expressions.items())
        if not wanted:
            raise PipelineError("select of no columns", where=where, remedy="Name at least one column")
        return self._project(wanted, "select", location)

    def with_columns(self, **expressions: pc.Expression) -> Self:
        """All columns, with these added, or replaced where the name is there already.

        Every expression sees the columns as they are before the call.

        Raises:
            PipelineError: no such column, or types that do not fit.
        """
        location = user_location()
        where = call_place("with_columns", None, location)
        checked = {name: require_expression(value, where) for name, value in expressions.items()}
        if not checked:
            raise PipelineError(
                "with_columns of no columns", where=where, remedy='Give at least one: name=pc.field("delay") * 2'
            )
        wanted = [(name, checked.pop(name, None)) for name in self.schema.names]
        plain = [(name, pc.field(name) if value is None else value) for name, value in wanted]
        return self._project([*plain, *checked.items()], "with_columns", location)

    def filter(self, predicate: pc.Expression) -> Self:
        """The records for which `predicate` is true; null counts as false.

        Raises:
            PipelineError: no such column, or not a boolean.
        """
        location = user_location()
        where = call_place("filter", None, location)
        require_boolean(require_expression(predicate, where), self.schema, where)
        spec = FilterSpec(predicate, self.schema)
        node = DraftNode(None, "filter", self._forward(), self.schema, location, spec=spec)
        return self._then(node, self._event_time)

    def map_in_arrow(
        self,
        fn: BatchFunction,
        schema: pa.Schema,
        *,
        side_outputs: Mapping[str, pa.Schema] | None = None,
        uid: str | None = None,
    ) -> Self:
        """Apply a function of record batches: it takes an iterator and gives batches of `schema`.

        It is called afresh for each delivered batch, the iterator holds that one batch, and what it gives is exhausted
        before any barrier passes: nothing that it keeps is part of a snapshot, and how records are cut into batches
        may differ from run to run. The event-time column counts as unchanged where `schema` has it, of the same type.

        Args:
            fn: takes Iterator[pyarrow.RecordBatch], gives pyarrow.RecordBatch objects, and `SideOutput(name, batch)`.
            schema: of what it gives; checked batch by batch.
            side_outputs: other outputs, name -> schema; read them with `.side_output(name)` of what this returns.
            uid: default: derived from the nearest uid upstream.

        Raises:
            PipelineError: not a function, or not a schema, also of a side output.
        """
        location = user_location()
        uid = optional_uid(uid, "map_in_arrow", location)
        where = call_place("map_in_arrow", uid, location)
        if not callable(fn):
            raise PipelineError(
                f"map_in_arrow needs a function, got {type(fn).__name__}",
                where=where,
                remedy="Give a function that takes an iterator of record batches and yields record batches",
            )
        require_result_schema(schema, "map_in_arrow", where)
        sides = checked_side_outputs(side_outputs, self.schema, self._event_time, where)
        spec = MapInArrowSpec(fn, schema, tuple((side.name, side.schema) for side in sides))
        node = DraftNode(uid, "map_in_arrow", self._forward(), schema, location, spec=spec, side_outputs=sides)
        return self._then(node, self._event_time.after_projection(same_columns(schema, self.schema), where))

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
        where = call_place("map_async", uid, location)
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
        return self._then(node, self._event_time.after_projection(same_columns(schema, self.schema), where))

    def union(self, *others: Self) -> Self:
        """The records of all, in order of arrival; columns are matched by name and must have equal types.

        Raises:
            PipelineError: other columns or types, or no other stream.
        """
        location = user_location()
        where = call_place("union", None, location)
        if not others:
            raise PipelineError("union of one stream", where=where, remedy="Give at least one other")
        for other in others:
            self._require_sibling(other, where)
            _require_same_columns(self.schema, other.schema, where)
        inputs = (self, *others)
        schema = pa.schema(
            [
                field.remove_metadata().with_nullable(any(s.schema.field(field.name).nullable for s in inputs))
                for field in self.schema
            ]
        )
        edges = tuple(Edge(stream._aligned(schema, location), "forward") for stream in inputs)
        node = DraftNode(None, "union", edges, schema, location, spec=UnionSpec())
        event_time = common_event_time([s._event_time for s in inputs], where)
        return type(self)(
            self._draft, self._draft.add(node), schema, event_time, bounded=all(s.bounded for s in inputs)
        )

    def _project(self, columns: Sequence[tuple[str, pc.Expression]], call: str, location: str) -> Self:
        where = call_place(call, None, location)
        refuse_duplicates((name for name, _ in columns), where, remedy="Give one of them another name")
        schema = pa.schema(result_fields(columns, self.schema, where))
        node = DraftNode(None, "project", self._forward(), schema, location, spec=ProjectSpec(tuple(columns), schema))
        sources: Mapping[str, str] = {
            name: source for name, value in columns if (source := passed_column(value, self.schema)) is not None
        }
        return self._then(node, self._event_time.after_projection(sources, where))

    def _aligned(self, schema: pa.Schema, location: str) -> int:
        """Id of a node that gives this stream's records in exactly `schema`, which has the same names and types."""
        if self.schema.equals(schema):
            return self._node_id
        spec = ProjectSpec(tuple((name, pc.field(name)) for name in schema.names), schema)
        return self._draft.add(DraftNode(None, "project", self._forward(), schema, location, spec=spec))

    # Keys, windows and aggregates

    def group_by(self, *keys: str) -> GroupedStream[Self]:
        """Group by key columns; follow it by `.agg(...)`, `.window(...)` or `.process(...)`. Null is a key of its own.

        Raises:
            PipelineError: no such column, or of a type that cannot be a key.
        """
        return GroupedStream(self, keys, user_location())

    def agg(
        self,
        *,
        output: AggregateOutput = "update",
        uid: str | None = None,
        renamed: Mapping[str, str] | None = None,
        **aggregates: Aggregate,
    ) -> Self:
        """Aggregates of the whole stream. Each batch is aggregated where it is; one subtask puts these together. A
        stream without records has no result.

        Args:
            output: see `GroupedStream.agg`.
            uid: required.
            renamed: output column in older snapshots -> its name now (S5.5).
            aggregates: output column = `count()`, `sum("delay")` and so on.

        Raises:
            PipelineError: no uid, no such column, a type that does not fit, or a name twice.
        """
        location = user_location()
        uid = require_uid(uid, "aggregate", location)
        where = call_place("aggregate", uid, location)
        keyed = with_constant_key(self, location)
        aggs, fields = bound_aggregates(aggregates, keyed.schema, keyed._event_time.column, where)
        results = pa.schema(fields)
        key = keyed.schema.field(CONSTANT_KEY)
        states = [f for agg in aggs for f in agg.bound(keyed.schema, results.field(agg.name).type).state_schema()]
        partial = pa.schema([key, *states])
        spec = PartialAggSpec((CONSTANT_KEY,), aggs, keyed.schema, partial, results)
        gone = keyed._event_time.without_column(f"the {where} gives records of its own")
        node = DraftNode(f"{uid}.batches", "partial-aggregate", keyed._forward(), partial, location, spec=spec)
        batches = keyed._then(node, gone)
        merged = running_aggregate(
            batches, (CONSTANT_KEY,), aggs, fields, keyed.schema, output, uid, renamed, location, is_partial=True
        )
        return drop_columns(merged, (CONSTANT_KEY,), location)

    def window_all(self, window: Window, *, allowed_lateness: str | timedelta | None = None) -> WindowedStream[Self]:
        """Cut the whole stream into windows; follow it by `.agg(...)`. All records go to one subtask.

        Raises:
            PipelineError: as `GroupedStream.window`.
        """
        keyed = with_constant_key(self, user_location())
        return GroupedStream(keyed, (CONSTANT_KEY,), user_location()).window(window, allowed_lateness=allowed_lateness)

    def deduplicate(
        self,
        on: str | Sequence[str],
        *,
        within: str | timedelta | None = None,
        ttl: str | timedelta | None = None,
        keep: Keep = "first",
        uid: str | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> Self:
        """One record of those that are equal in `on`.

        Args:
            on: columns, one or several; null equals null.
            within: of event time. keep="first": records whose event time is so much later than that of the one that was
                kept, or more, are no repeats; a key is forgotten when the watermark has come so far, and a record
                behind the watermark whose key is not known is late (`.side_output("late")`, else `late_dropped`).
                keep="last": once nothing has come for so long. Default: without end, with state for every key.
            ttl: keep="first": a key is forgotten so long, in processing time, after its record was kept.
            keep: "first": the first to arrive, at once. "last": the one with the latest event time, of equal ones the
                first to arrive, once the watermark has come `within` behind it; the result has no event time of its
                own.
            uid: required.
            renamed: column of `on` in older snapshots -> its name now (S5.5).

        Raises:
            PipelineError: no such column, no uid, no event time where it is needed, or durations that do not fit.
        """
        location = user_location()
        uid = require_uid(uid, "deduplicate", location)
        where = call_place("deduplicate", uid, location)
        keys = (on,) if isinstance(on, str) else tuple(on)
        if not keys:
            raise PipelineError("deduplicate on no columns", where=where, remedy="Name at least one")
        refuse_duplicates(keys, where, remedy="Name each column once")
        for key in keys:
            require_key(require_column(self.schema, key, where), where)
        if keep not in get_args(Keep):
            raise PipelineError(f"{keep!r} cannot be kept", where=where, remedy='Write keep="first" or keep="last"')
        within_us = 0 if within is None else _positive_us(within, "within", where)
        ttl_us = 0 if ttl is None else _positive_us(ttl, "ttl", where)
        if keep == "last":
            return self._last(keys, within, ttl, uid, location)
        time_column = self._event_time.require(where) if within_us else None
        spec = DeduplicateSpec(
            keys,
            time_column,
            self._event_time.unit,
            within_us,
            -(-ttl_us // 1000),
            self.schema,
            checked_renames(renamed, keys, where),
        )
        late = (DraftOutput(LATE, self.schema, self._event_time),) if within_us else ()
        edge = Edge(self._node_id, "hash", keys)
        node = DraftNode(
            uid, "deduplicate", (edge,), self.schema, location, stateful=True, spec=spec, side_outputs=late
        )
        return self._then(node, self._event_time)

    def _last(
        self, keys: tuple[str, ...], within: str | timedelta | None, ttl: object, uid: str, location: str
    ) -> Self:
        where = call_place("deduplicate", uid, location)
        if within is None or ttl is not None:
            raise PipelineError(
                'keep="last" needs within, and takes no ttl',
                where=where,
                cause="the last record is known when nothing has come for a time",
                remedy='Write within="1 hour", or take updates: .group_by(...).top_n(1, by="time")',
            )
        time_column = self._event_time.require(where)
        held = GroupedStream(self, keys, location).window(session(within)).top_n(1, by=time_column, uid=uid)
        rows = drop_columns(held, (WINDOW_START, WINDOW_END, RANK), location)
        return rows.select(*self.schema.names)

    # Joins

    def join(
        self,
        other: StreamBase,
        on: str | Sequence[str] | None = None,
        how: StreamJoinKind = "inner",
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        between: tuple[str | timedelta, str | timedelta] | None = None,
        window: Tumbling | Sliding | Session | None = None,
        ttl: str | timedelta | None = None,
        where: pc.Expression | None = None,
        suffix: str | None = None,
        uid: str | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> Self:
        """Join with another stream by equal keys; a null key matches nothing. Several matches give several records.

        With `stream.broadcast()` every subtask holds that side whole: records wait, in snapshotted state, until it has
        come to its end; event time is this stream's. With any other stream both sides are sent to where their keys
        are, and kept in keyed state; which records match, and how long they are kept, one of these says:

        - `between`: the other's event time is in [mine + first, mine + second], both included;
        - `window`: both event times are in one window; the result says which (`window_start`, `window_end`). With
          `session(gap)` both are in one session, of records of either side; they come out when it is over;
        - `ttl`: event times are no further apart than this;
        - none: any. Records are kept until the other side has ended, so records without a match come out then.

        With one of the three, records without a match (of "left", "right", "full", "anti") come out when the watermark
        says that no match can come; the watermark is held back so that nothing comes out late. Event time is this
        stream's, with "right" the other's; with "full", or without bounds on times, there is none: say
        `.with_watermark(...)` again where it is needed.

        Args:
            other: a stream of the same pipeline.
            on: key columns, of the same names and types on both sides; they come once.
            how: "inner"; "left", "right", "full": records of this side, or of both, stay without a match, with nulls;
                "semi", "anti": this stream's records alone that have a match, or have none. With a broadcast side not
                "right" and "full".
            left_on, right_on: instead of `on`, where names differ; both stay.
            between, window, ttl: see above; both sides need event time.
            where: a further condition over the result's columns (of "semi" and "anti": those of "inner").
            suffix: added to names of the other's columns that this stream has too; without it they are refused.
            uid: required.
            renamed: column of either side in older snapshots -> its name now, so that they can be restored (S5.5).

        Returns:
            This stream's columns, then the other's without the keys in `on`, then the window.

        Raises:
            PipelineError: no such column, types that differ, a name on both sides, no uid, no event time; a broadcast
                side that is unbounded; records that would wait for ever.
        """
        location = user_location()
        uid = require_uid(uid, "join", location)
        place_ = call_place("join", uid, location)
        self._require_sibling(other, place_)
        call = JoinCall(how, on, left_on, right_on, between, window, ttl, where, suffix, renamed)
        if isinstance(other, BroadcastStream):
            whole = broadcast_join(self.schema, other, call, place_)
            edges = (*self._forward(), Edge(other._node_id, "broadcast"))
            node = DraftNode(uid, "join", edges, whole.schema, location, stateful=True, spec=whole)
            return self._then(node, self._event_time)
        spec, event_time = stream_join(self, other, call, place_)
        return self._joined(other, spec, event_time, uid, location)

    def join_as_of(
        self,
        other: StreamBase,
        on: str | Sequence[str] | None = None,
        how: Literal["inner", "left"] = "inner",
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        tolerance: str | timedelta | None = None,
        suffix: str | None = None,
        uid: str | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> Self:
        """Join each record with the version of its key that is in force at its time: the latest record of `other` that
        is not later than it, such as the rate of a currency when an order was made. Of versions of one time the last
        to come counts. A null key has no version.

        A record waits until the watermark has passed its time. Of each key the version in force is kept for ever.
        Event time is this stream's.

        Args:
            other: a stream of versions, of the same pipeline.
            on, left_on, right_on, suffix, uid, renamed: as in `join`.
            how: "inner", or "left": records without a version stay, with nulls.
            tolerance: a version that is older than this, seen from the record, is in force no more.

        Returns:
            This stream's columns, then the other's without the keys in `on`.

        Raises:
            PipelineError: as `join`; no event time on either side.
        """
        location = user_location()
        uid = require_uid(uid, "join", location)
        where = call_place("join", uid, location)
        self._require_sibling(other, where)
        if isinstance(other, BroadcastStream):
            raise PipelineError(
                "a join as of a time takes no broadcast side",
                where=where,
                cause="versions come in order of time, beside the records that they are for",
                remedy="Leave out .broadcast()",
            )
        call = JoinCall(how, on, left_on, right_on, None, None, None, None, suffix, renamed)
        spec, event_time = as_of_join(self, other, call, tolerance, where)
        return self._joined(other, spec, event_time, uid, location)

    def broadcast(self) -> BroadcastStream:
        """Give every subtask all records of this stream: as the side of a `join`, for which it must be bounded, or in a
        process, for which it need not be: `stream.connect(rules.broadcast())`."""
        return BroadcastStream(self._draft, self._node_id, self.schema, self._event_time, bounded=self.bounded)

    def _joined(
        self, other: StreamBase, spec: StreamJoinSpec, event_time: StreamEventTime, uid: str, location: str
    ) -> Self:
        mine, theirs = spec.inputs
        edges = Edge(self._node_id, "hash", mine.keys), Edge(other._node_id, "hash", theirs.keys)
        node = DraftNode(uid, "join", edges, spec.schema, location, stateful=True, spec=spec)
        bounded = self.bounded and other.bounded
        return type(self)(self._draft, self._draft.add(node), spec.schema, event_time, bounded=bounded)

    # Event time

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
        it are late. Call it as near to the source as possible: after an exchange or a second input, splits cannot be
        distinguished any more, and a file that begins before the previous one ended has late records.

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
        where = call_place("watermark", uid, location)
        field = require_column(self.schema, column, where)
        known = time_unit(field, unit, where)
        delay_us = duration_us(delay, "delay", where)
        aligned = _alignment_group(group, max_drift, where)
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
        return self._then(node, StreamEventTime(column, known, location))

    # Processes

    def process(
        self,
        process: Process,
        *,
        schema: pa.Schema,
        side_outputs: Mapping[str, pa.Schema] | None = None,
        uid: str | None = None,
    ) -> Self:
        """Run a process of your own, with state per subtask; for state and timers per key say `.group_by(...)` first.

        The event-time column counts as unchanged where `schema` has it, of the same type.

        Args:
            process: an instance of a subclass of `Process`; every subtask takes a shallow copy.
            schema: of the batches it gives; checked batch by batch.
            side_outputs: other outputs, name -> schema; read them with `.side_output(name)` of what this returns.
            uid: required.

        Raises:
            PipelineError: not such a process, states or timers that go by key, no schema, or no uid.
        """
        location = user_location()
        uid = require_uid(uid, "process", location)
        where = call_place("process", uid, location)
        sides = checked_side_outputs(side_outputs, self.schema, self._event_time, where)
        spec = unkeyed_spec(process, (process_input(self, ""),), schema, where)
        spec = replace(spec, side_outputs=declared_schemas(sides))
        node = DraftNode(
            uid, "process", self._forward(), spec.schema, location, stateful=True, spec=spec, side_outputs=sides
        )
        return self._then(node, self._event_time.after_projection(same_columns(spec.schema, self.schema), where))

    def connect(self, other: Self | BroadcastStream) -> ConnectedStreams[Self]:
        """Put two streams, whose columns may differ, into one process of your own: follow it by `.process(...)`, or by
        `.group_by(...)` for state and timers per key.

        Args:
            other: a stream, or `rules.broadcast()`, bounded or not, whose records every subtask gets.

        Raises:
            PipelineError: not a stream, of another pipeline, or a grouped one.
        """
        return ConnectedStreams(self, other, call_place("connect", None, user_location()))

    # Side outputs and exchanges

    def side_output(self, name: str) -> Self:
        """Another output of the operator that this stream is the main output of.

        An operator says what other outputs it has: a function or process those that were declared for it
        (`side_outputs=`), a window over event time `late`. The main output must be read, by a `Discard()` if by nothing
        else; rows for a side output that is not read are dropped, and counted as `side_output_dropped`.

        Args:
            name: of the output.

        Returns:
            Its records, with the watermarks of the operator, which may be past them.

        Raises:
            PipelineError: it has no such output.
        """
        location = user_location()
        where = call_place("side_output", None, location)
        known = {side.name: side for side in self._draft.node(self._node_id).side_outputs}
        if name not in known:
            raise PipelineError(
                f"there is no side output {name!r}",
                where=where,
                cause=_refusal_reason(self._draft.node(self._node_id), tuple(known.values())),
                remedy="Call it directly on what the operator's call returned",
            )
        found = known[name]
        return self._rerouted(Edge(self._node_id, "forward", output=name), "side_output", found, location)

    def rebalance(self) -> Self:
        """Spread the records evenly: each subtask sends its batches to all subtasks in turn.

        For sources of which some subtasks read more than others. Records of one split do not keep their order, so call
        `with_watermark` before it, where splits can still be distinguished (S4.4).
        """
        return self._exchanged("rebalance", user_location())

    def repartition(self, *columns: str) -> Self:
        """Bring records with equal values in these columns to one subtask, as `group_by` does for what follows it.

        Null is a value of its own. For functions of batches that are to see all records of a key; state by key needs
        `group_by`, which makes this exchange itself.

        Raises:
            PipelineError: no columns, no such column, or of a type that cannot be a key.
        """
        location = user_location()
        where = call_place("repartition", None, location)
        if not columns:
            raise PipelineError(
                "repartition of no columns",
                where=where,
                remedy='Name at least one: .repartition("carrier"); without columns: .rebalance()',
            )
        for column in columns:
            require_key(require_column(self.schema, column, where), where)
        refuse_duplicates(columns, where, remedy="Name each column once")
        return self._exchanged("hash", location, "repartition", keys=columns)

    def partition_by(self, partitioner: Partitioner) -> Self:
        """Bring each record to the subtask that a function of your own says.

        Args:
            partitioner: takes a record batch and the number of subtasks n, gives an array of whole numbers, for each
                row that of its subtask, from 0 to n - 1. It must depend on the rows and n alone. A checkpoint always
                aligns in front of what reads these records, also with `unaligned_checkpoints` (S3.7).

        Raises:
            PipelineError: not a function.
        """
        location = user_location()
        if not callable(partitioner):
            raise PipelineError(
                f"partition_by needs a function, got {type(partitioner).__name__}",
                where=call_place("partition_by", None, location),
                remedy='Give one, such as lambda batch, n: batch["k"].to_numpy() % n; by columns: .repartition("k")',
            )
        return self._exchanged("custom", location, "partition_by", partitioner=partitioner)

    def broadcast_all(self) -> Self:
        """Send every record to every subtask: each of them sees the whole stream. There are `parallelism` times as many
        records afterwards; a side of a join is made by `.broadcast()`."""
        return self._exchanged("broadcast", user_location(), "broadcast_all")

    def _exchanged(
        self,
        exchange: Exchange,
        location: str,
        kind: str = "",
        *,
        keys: tuple[str, ...] = (),
        partitioner: Partitioner | None = None,
    ) -> Self:
        edge = Edge(self._node_id, exchange, keys, partitioner=partitioner)
        return self._rerouted(edge, kind or exchange, DraftOutput("", self.schema, self._event_time), location)

    def _rerouted(self, edge: Edge, kind: str, records: DraftOutput, location: str) -> Self:
        """The records that `edge` brings, as a node that other calls read as any other."""
        node = DraftNode(None, kind, (edge,), records.schema, location, spec=UnionSpec())
        return self._then(node, records.event_time)

    # Writing

    def write(self, sink: Sink, *, uid: str | None = None) -> None:
        """Write the records to a sink: the end of a branch.

        Raises:
            PipelineError: not a sink, or no uid. What the sink itself refuses comes when the pipeline is built.
        """
        self._draft.add(self._sink_node(sink, uid, "write"))

    def write_through(self, sink: Sink, *, uid: str | None = None) -> Self:
        """Write the records to a sink, and go on with them.

        They go on as they were written, not as they are committed: what follows sees a record before readers of the
        sink do. All sinks of a job commit with the same checkpoint, each for itself, wherever in the graph they stand
        (S7.3, S7.4).

        Returns:
            This stream: the same records in the same order, schema, event time and watermarks. Reading it no further is
            the same as `write`.

        Raises:
            PipelineError: as for `write`.
        """
        return self._then(self._sink_node(sink, uid, "write_through"), self._event_time)

    def _sink_node(self, sink: Sink, uid: str | None, call: str) -> DraftNode:
        location = user_location()
        uid = require_uid(uid, "sink", location)
        if not isinstance(sink, Sink):
            raise PipelineError(
                f"{call} needs a sink, got {sink!r}",
                where=call_place("sink", uid, location),
                remedy=f"Write Parquet({sink!r})" if isinstance(sink, str) else "Give one, such as Parquet(path)",
            )
        return DraftNode(uid, "sink", self._forward(), self.schema, location, stateful=sink.two_phase, sink=sink)

    # Not offered

    def sort(self, *columns: object, **_: object) -> Never:
        """Not offered: the first record of an order is known when the last one has come.

        Raises:
            PipelineError: always.
        """
        raise self._unsorted("sort")

    def order_by(self, *columns: object, **_: object) -> Never:
        """As `sort`.

        Raises:
            PipelineError: always.
        """
        raise self._unsorted("order_by")

    def _unsorted(self, call: str) -> PipelineError:
        endless = "the stream is unbounded: " if not self.bounded else ""
        return PipelineError(
            f"a stream cannot be sorted as a whole: {call} is not offered",
            where=call_place(call, None, user_location()),
            cause=f"{endless}the first record of an order is known when the last one has come, and subtasks write side "
            "by side",
            remedy="Sort within keys and windows, where there is an end, or when you read what the sink has written",
        )


def _require_same_columns(left: pa.Schema, right: pa.Schema, where: str) -> None:
    for mine, theirs, side in ((left, right, "first"), (right, left, "other")):
        lacking = [name for name in mine.names if name not in theirs.names]
        if lacking:
            raise PipelineError(
                f"column {lacking[0]!r} is in the {side} stream of the union alone",
                where=where,
                remedy="Give all the same columns first, with .select(...)",
            )
    for field in left:
        other = right.field(field.name)
        if other.type != field.type:
            raise PipelineError(
                f"column {field.name!r} is {field.type} in the first stream of the union and {other.type} in another",
                where=where,
                remedy=f"Cast one of them first: .with_columns({field.name}=pc.field({field.name!r}).cast(...))",
            )


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


def _positive_us(value: str | timedelta, name: str, where: str) -> int:
    found = duration_us(value, name, where)
    if found <= 0:
        raise PipelineError(f"{name} of {value} is none", where=where, remedy=f'Give {name} such as "1 hour"')
    return found


def _alignment_group(group: object, max_drift: str | timedelta | None, where: str) -> AlignmentGroup | None:
    """The group of a source, or None; PipelineError when its name or drift is missing or wrong."""
    if group is None and max_drift is None:
        return None
    if group is None or max_drift is None:
        raise PipelineError(
            "group and max_drift belong together",
            where=where,
            remedy='Give both: group="orders-and-payments", max_drift="5 min"',
        )
    if not isinstance(group, str) or not UID.fullmatch(group):
        raise PipelineError(
            f"{group!r} cannot be the name of a group",
            where=where,
            remedy="Use letters, digits and ._- , a letter or digit first",
        )
    drift_us = duration_us(max_drift, "max_drift", where)
    if drift_us == 0:
        raise PipelineError(f"a drift of {max_drift}", where=where, remedy='Give a duration such as "5 min"')
    return AlignmentGroup(group, drift_us)


def _refusal_reason(node: DraftNode, known: tuple[DraftOutput, ...]) -> str:
    if not known:
        return f"the {node.where} has none"
    return f"the side outputs of the {node.where} are {', '.join(repr(side.name) for side in known)}"
