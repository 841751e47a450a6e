"""Streams: the objects that users chain to build a pipeline. Every call is checked at once, and runs nothing.

Columns, types and expressions are checked without data; each error names the place in the user's code. Streams are
immutable: a call returns a new stream, and several streams may read one stream.
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
from tidegate.change_rows import change_kind_column, only_role
from tidegate.connectors.interface import Sink
from tidegate.errors import PipelineError
from tidegate.operators.aggregates.aggregate_specs import AggregateOutput, PartialAggSpec
from tidegate.operators.async_specs import TIMED_OUT, AsyncMapSpec, OnTimeout
from tidegate.operators.deduplicate_specs import DeduplicateSpec
from tidegate.operators.joins.join_specs import StreamJoinKind, StreamJoinSpec
from tidegate.operators.row_specs import BatchFunction, FilterSpec, MapInArrowSpec, ProjectSpec, UnionSpec
from tidegate.operators.stream_operator import AsyncFunction
from tidegate.operators.time.watermark_specs import AlignmentGroup, TimeUnit, WatermarkSpec
from tidegate.operators.user_functions.process import Process
from tidegate.plan.job_graph import Edge, Exchange, Partitioner

Keep = Literal["first", "last"]
"""The record of equal ones that a deduplication keeps."""


class Stream(StreamBase):
    """Records of one schema, bounded or unbounded. Created by `Pipeline.read` and by the calls below.

    Attributes:
        schema: of the records.
        bounded: True if the stream reaches an end of input.
    """

    # Columns and rows

    def select(self, *columns: str | pc.Expression, **expressions: pc.Expression) -> Self:
        """Keep the named columns, then the named expressions, and no others.

        Raises:
            PipelineError: a column is missing, types do not fit, or a name occurs twice.
        """
        location = user_location()
        where = call_place("select", None, location)
        wanted: list[tuple[str, pc.Expression]] = []
        for column in columns:
            name = passed_column(column, self.schema) if isinstance(column, pc.Expression) else column
            if name is None:
                raise PipelineError(
                    f"the expression {column} of select(...) has no name",
                    where=where,
                    remedy=f"Name the new column: select(name={column})",
                )
            wanted.append((require_column(self.schema, name, where).name, pc.field(name)))
        wanted.extend((name, require_expression(value, where)) for name, value in expressions.items())
        if not wanted:
            raise PipelineError("select(...) has no columns", where=where, remedy="Name at least one column")
        return self._project(wanted, "select", location)

    def with_columns(self, **expressions: pc.Expression) -> Self:
        """Add columns to the existing ones, or replace columns of the same name.

        Every expression sees the columns before the call.

        Raises:
            PipelineError: a column is missing, or types do not fit.
        """
        location = user_location()
        where = call_place("with_columns", None, location)
        checked = {name: require_expression(value, where) for name, value in expressions.items()}
        if not checked:
            raise PipelineError(
                "with_columns(...) has no columns", where=where, remedy='Pass at least one: name=pc.field("delay") * 2'
            )
        # Columns that are replaced keep their place. The rest of `checked` are new columns, which come last.
        wanted = [(name, checked.pop(name, None)) for name in self.schema.names]
        plain = [(name, pc.field(name) if value is None else value) for name, value in wanted]
        return self._project([*plain, *checked.items()], "with_columns", location)

    def changes_as_rows(self) -> Self:
        """Make each change row a plain row. The column with the kind of change stays, as plain text.

        For a log of all changes, or to count them: the result can be written to any sink, and aggregated. To keep a
        copy of a table, write the change rows to a sink that applies them instead.

        Raises:
            PipelineError: the stream has no column with the kind of change.
        """
        location = user_location()
        kind = change_kind_column(self.schema)
        if kind is None:
            raise PipelineError(
                "the stream has no change rows",
                where=call_place("changes_as_rows", None, location),
                remedy="Leave out changes_as_rows(); or read changes, for example with changes=True",
            )
        place = self.schema.get_field_index(kind)
        schema = self.schema.set(place, self.schema.field(place).remove_metadata())
        columns = tuple((name, pc.field(name)) for name in schema.names)
        node = DraftNode(None, "project", self._forward(), schema, location, spec=ProjectSpec(columns, schema))
        return self._then(node, self._event_time)

    def filter(self, predicate: pc.Expression) -> Self:
        """Keep the records for which `predicate` is true; null counts as false.

        Raises:
            PipelineError: a column is missing, or the result is not a boolean.
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
        """Apply a function of record batches: its argument is an iterator, and it returns batches of `schema`.

        The function is called once for each batch, with an iterator over that batch. Its result is exhausted before any
        barrier passes. The function's own variables are not part of snapshots. The division of records into batches may
        differ from run to run. The result keeps the event time if `schema` has the event-time column, with the same
        type.

        Args:
            fn: argument: Iterator[pyarrow.RecordBatch]; returns pyarrow.RecordBatch objects and `SideOutput(name,
                batch)`.
            schema: of its results; every batch is checked.
            side_outputs: other outputs, name -> schema; read them with `.side_output(name)` on the returned stream.
            uid: default: derived from the nearest uid upstream.

        Raises:
            PipelineError: `fn` is not a function, or a schema is invalid, also the schema of a side output.
        """
        location = user_location()
        uid = optional_uid(uid, "map_in_arrow", location)
        where = call_place("map_in_arrow", uid, location)
        if not callable(fn):
            raise PipelineError(
                f"the argument of map_in_arrow(...) must be a function, but is a {type(fn).__name__}",
                where=where,
                remedy="Pass a function that takes an iterator of record batches and yields record batches",
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
        """Apply a function that waits for an external service or database. Many requests run at the same time, and the
        stream and its checkpoints continue meanwhile.

        Rows whose answers were not emitted yet are part of every snapshot, and are requested again after a restore: the
        function may see a row more than once, but its answer is emitted once. No answer is emitted after a watermark
        that its rows preceded, so no row becomes late. The result keeps the event time if `schema` has the event-time
        column, with the same type. An exception of the function fails the job; the function itself must retry.

        Args:
            fn: argument: a record batch; returns one of `schema`, or several, `SideOutput`s included, or None. An
                `async def` runs on an event loop of its own. A plain function or generator runs on threads, at most 32
                in each subtask, which also limits its requests at a time, whatever `capacity`.
            schema: of its results; every answer is checked.
            capacity: requests in flight in each subtask; when it is reached, the stream waits.
            batch_rows: most rows of one request; default: one request for each batch, of up to about ten thousand rows.
            timeout: how long a request may take, by the clock of the machine; None: no limit.
            ordered: emit answers in the order of the input. False: as they arrive, which is faster.
            on_timeout: "fail" the job; or "side_output" to send the request's rows to the side output `timed_out`.
            side_outputs: other outputs, name -> schema; read them with `.side_output(name)` on the returned stream.
            uid: required.

        Raises:
            PipelineError: uid is missing, `fn` is not a function, or a schema or value is invalid.
        """
        location = user_location()
        uid = require_uid(uid, "map_async", location)
        where = call_place("map_async", uid, location)
        if not callable(fn):
            raise PipelineError(
                f"the argument of map_async(...) must be a function, but is a {type(fn).__name__}",
                where=where,
                remedy="Pass a function, or an async def, that takes a record batch and returns one",
            )
        require_result_schema(schema, "map_async", where)
        _require_count(capacity, "capacity", where)
        if batch_rows is not None:
            _require_count(batch_rows, "batch_rows", where)
        sides = checked_side_outputs(side_outputs, self.schema, self._event_time, where)
        if on_timeout == "side_output":
            refuse_duplicates([TIMED_OUT, *(s.name for s in sides)], where, remedy="Rename the side output")
            sides = (*sides, DraftOutput(TIMED_OUT, self.schema, self._event_time))
        elif on_timeout not in get_args(OnTimeout):
            raise PipelineError(
                f"on_timeout={on_timeout!r} is not supported", where=where, remedy='Use "fail" or "side_output"'
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
        """Merge the records of all streams, in order of arrival. Columns are matched by name and must have equal types.

        Raises:
            PipelineError: columns or types differ, or there is no other stream.
        """
        location = user_location()
        where = call_place("union", None, location)
        if not others:
            raise PipelineError("union(...) has no other stream", where=where, remedy="Pass at least one other stream")
        for other in others:
            self._require_sibling(other, where)
            _require_same_columns(self.schema, other.schema, where)
        inputs = (self, *others)
        schema = pa.schema(
            [
                only_role(field).with_nullable(any(s.schema.field(field.name).nullable for s in inputs))
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
        refuse_duplicates((name for name, _ in columns), where, remedy="Rename one of them")
        schema = pa.schema(result_fields(columns, self.schema, where))
        node = DraftNode(None, "project", self._forward(), schema, location, spec=ProjectSpec(tuple(columns), schema))
        sources: Mapping[str, str] = {
            name: source for name, value in columns if (source := passed_column(value, self.schema)) is not None
        }
        return self._then(node, self._event_time.after_projection(sources, where))

    def _aligned(self, schema: pa.Schema, location: str) -> int:
        """Return the id of a node that emits this stream's records in exactly `schema`, which has the same names and
        types."""
        if self.schema.equals(schema):
            return self._node_id
        spec = ProjectSpec(tuple((name, pc.field(name)) for name in schema.names), schema)
        return self._draft.add(DraftNode(None, "project", self._forward(), schema, location, spec=spec))

    # Keys, windows and aggregates

    def group_by(self, *keys: str) -> GroupedStream[Self]:
        """Group by key columns. Call `.agg(...)`, `.window(...)` or `.process(...)` next. Null is a key of its own.

        Raises:
            PipelineError: a column is missing, or its type cannot be a key.
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
        """Aggregate the whole stream. Every subtask aggregates its batches; one subtask merges the results.

        A stream without records has no result.

        Args:
            output: see `GroupedStream.agg`.
            uid: required.
            renamed: output column in older snapshots -> its name now (S5.5).
            aggregates: output column = `count()`, `sum("delay")` and so on.

        Raises:
            PipelineError: uid or a column is missing, a type does not fit, or a name occurs twice.
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
        gone = keyed._event_time.without_column(f"the {where} emits records of its own")
        node = DraftNode(f"{uid}.batches", "partial-aggregate", keyed._forward(), partial, location, spec=spec)
        batches = keyed._then(node, gone)
        merged = running_aggregate(
            batches, (CONSTANT_KEY,), aggs, fields, keyed.schema, output, uid, renamed, location, is_partial=True
        )
        return drop_columns(merged, (CONSTANT_KEY,), location)

    def window_all(self, window: Window, *, allowed_lateness: str | timedelta | None = None) -> WindowedStream[Self]:
        """Divide the whole stream into windows. Call `.agg(...)` next. All records go to one subtask.

        Raises:
            PipelineError: see `GroupedStream.window`.
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
        """Keep one of the records that are equal in `on`.

        Args:
            on: one or several columns; null equals null.
            within: event time. keep="first": a record that is at least this much later than the kept record is not a
                repeat. Its key is deleted when the watermark reaches that time; a record before the watermark whose key
                is not known is late (`.side_output("late")`, else `late_dropped`). keep="last": the record is emitted
                when no equal record has arrived for this long. Default: no limit, with state for every key forever.
            ttl: keep="first": processing time after which a kept record's key is deleted.
            keep: "first": the first to arrive, emitted at once. "last": the one with the latest event time, of equal
                times the first to arrive, emitted when the watermark is `within` after it; the result has no event
                time.
            uid: required.
            renamed: column of `on` in older snapshots -> its name now (S5.5).

        Raises:
            PipelineError: a column, uid or a needed event time is missing, or durations do not fit.
        """
        location = user_location()
        uid = require_uid(uid, "deduplicate", location)
        where = call_place("deduplicate", uid, location)
        keys = (on,) if isinstance(on, str) else tuple(on)
        if not keys:
            raise PipelineError("deduplicate(...) has no columns", where=where, remedy='Name one or more: on="order"')
        refuse_duplicates(keys, where, remedy="Name each column once")
        for key in keys:
            require_key(require_column(self.schema, key, where), where)
        if keep not in get_args(Keep):
            raise PipelineError(
                f"keep={keep!r} is not supported", where=where, remedy='Write keep="first" or keep="last"'
            )
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
            # Rounded up to milliseconds: 0 would mean no ttl.
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
                'keep="last" needs within=, and does not support ttl=',
                where=where,
                cause="a record is known to be the last only when no equal record has arrived for the time `within`",
                remedy='Write within="1 hour", or use updates: .group_by(...).top_n(1, by="time")',
            )
        time_column = self._event_time.require(where)
        # A session closes when no equal record has arrived for
        # `within`. Its record with the greatest time is the last one.
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

        With `stream.broadcast()`, every subtask holds the whole other side. Records wait in snapshotted state until
        that side has ended; event time is this stream's. With any other stream, both sides are sent to the subtask of
        their key, and stored in keyed state. One of these bounds decides which records match, and how long they are
        stored:

        - `between`: the other's event time is in [mine + first, mine + second], both included;
        - `window`: both event times are in one window; the result contains it (`window_start`, `window_end`). With
          `session(gap)` both are in one session of records of either side, and are emitted when it closes;
        - `ttl`: event times are no further apart than this;
        - none: all match. Records are stored until the other side has ended; records without a match are emitted then.

        With one of the three bounds, records without a match (for "left", "right", "full", "anti") are emitted when the
        watermark shows that no match can arrive. The watermark is held back so that no result is late. Event time is
        this stream's, for "right" the other's. With "full", or without bounds on times, there is none: call
        `.with_watermark(...)` again if you need it.

        Args:
            other: a stream of the same pipeline.
            on: key columns, with the same names and types on both sides; the result has them once.
            how: "inner"; "left", "right", "full": records of this side, the other, or both without a match are emitted
                with nulls; "semi", "anti": only this stream's records are emitted, those with a match, or those without
                one. A broadcast side does not support "right" and "full".
            left_on, right_on: use these instead of `on` if names differ; the result has both.
            between, window, ttl: see above; both sides need event time.
            where: a further condition over the result's columns (for "semi" and "anti": the columns of "inner").
            suffix: added to names of the other's columns that this stream has too; without it such names are refused.
            uid: required.
            renamed: column of either side in older snapshots -> its name now, so that they can be restored (S5.5).

        Returns:
            This stream's columns, then the other's without the keys in `on`, then the window.

        Raises:
            PipelineError: a column, uid or event time is missing, types differ, a name occurs on both sides, the
                broadcast side is unbounded, or records would wait forever.
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
        """Join each record with the version of its key that is valid at its time.

        The version is the latest record of `other` that is not later than the record, such as the rate of a currency
        when an order was made. If several versions have one time, the last to arrive wins. A null key has no version.

        A record waits until the watermark has passed its time. The valid version of each key is stored forever. Event
        time is this stream's.

        Args:
            other: a stream of versions, of the same pipeline.
            on, left_on, right_on, suffix, uid, renamed: as in `join`.
            how: "inner", or "left": records without a version are emitted with nulls.
            tolerance: how much older than the record a version may be; None: no limit.

        Returns:
            This stream's columns, then the other's without the keys in `on`.

        Raises:
            PipelineError: as for `join`; or a side has no event time.
        """
        location = user_location()
        uid = require_uid(uid, "join", location)
        where = call_place("join", uid, location)
        self._require_sibling(other, where)
        if isinstance(other, BroadcastStream):
            raise PipelineError(
                "an as-of join does not support a broadcast side",
                where=where,
                cause="the versions of an as-of join must arrive in order of event time, together with the records",
                remedy="Remove .broadcast()",
            )
        call = JoinCall(how, on, left_on, right_on, None, None, None, None, suffix, renamed)
        spec, event_time = as_of_join(self, other, call, tolerance, where)
        return self._joined(other, spec, event_time, uid, location)

    def broadcast(self) -> BroadcastStream:
        """Send all records of this stream to every subtask.

        Use the result as a side of a `join`, for which it must be bounded, or in a process, for which it may be
        unbounded: `stream.connect(rules.broadcast())`.
        """
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
        """Set the column with event time, and how far records may be out of order (S4.4).

        The watermark is the latest time seen in each split, then the minimum over the splits, minus `delay`. Records
        before it are late. Call it as near to the source as possible: after an exchange or a second input, splits can
        no longer be distinguished, and a file that begins before the previous one ended has late records.

        Args:
            column: a timestamp, or int64 with `unit`.
            delay: such as "10 min"; "0 s" if each split is in order.
            unit: of an int64 column: "s", "ms", "us" or "ns".
            idle_after: a split without records for this long, by the clock of the machine, no longer holds the
                watermark back. Its next records may be late. Default: every split holds the watermark back. Bounded
                streams ignore the option, because each of their splits ends.
            group: name of an alignment group. Its sources advance together, so that joins and windows of several
                sources need not store the lead of the fastest. While a subtask's watermark is ahead of the group's
                earliest by more than `max_drift`, its source is not read. A source without records makes the others
                wait, unless it is idle. Only directly after the source.
            max_drift: with `group`; such as "5 min".
            uid: default: derived from the nearest uid upstream.

        Raises:
            PipelineError: the column is missing or has another type, a duration is invalid, or only one of `group` and
                `max_drift` is set.
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
            raise PipelineError(
                f"idle_after={idle_after!r} is not positive", where=where, remedy='Pass a duration such as "1 min"'
            )
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
        """Run your own process, with state per subtask. For state and timers per key call `.group_by(...)` first.

        The result keeps the event time if `schema` has the event-time column, with the same type.

        Args:
            process: an instance of a subclass of `Process`; every subtask works on a shallow copy.
            schema: of the batches that it returns; every batch is checked.
            side_outputs: other outputs, name -> schema; read them with `.side_output(name)` on the returned stream.
            uid: required.

        Raises:
            PipelineError: the process has the wrong class, or state or timers by key; or schema or uid is missing.
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
        """Connect two streams, whose columns may differ, for one user process. Call `.process(...)` next, or
        `.group_by(...)` for state and timers per key.

        Args:
            other: a stream, or `rules.broadcast()`, bounded or not, whose records every subtask receives.

        Raises:
            PipelineError: `other` is not a stream, belongs to another pipeline, or is grouped.
        """
        return ConnectedStreams(self, other, call_place("connect", None, user_location()))

    # Side outputs and exchanges

    def side_output(self, name: str) -> Self:
        """Return another output of the operator whose main output is this stream.

        Functions and processes have the outputs that were declared for them (`side_outputs=`); a window over event time
        has `late`. Something must read the main output; use `Discard()` if you do not need it. Rows for a side output
        that nothing reads are dropped and counted as `side_output_dropped`.

        Args:
            name: of the output.

        Returns:
            Its records, with the watermarks of the operator. The records may be before these watermarks.

        Raises:
            PipelineError: the operator has no such output.
        """
        location = user_location()
        where = call_place("side_output", None, location)
        known = {side.name: side for side in self._draft.node(self._node_id).side_outputs}
        if name not in known:
            raise PipelineError(
                f"there is no side output {name!r}",
                where=where,
                cause=_refusal_reason(self._draft.node(self._node_id), tuple(known.values())),
                remedy="Call side_output directly on the stream that the operator's call returned",
            )
        found = known[name]
        return self._rerouted(Edge(self._node_id, "forward", output=name), "side_output", found, location)

    def rebalance(self) -> Self:
        """Spread the records evenly: each subtask sends its batches to all subtasks in turn.

        Use it if some subtasks of a source read more than others. Records of one split do not stay in order, so call
        `with_watermark` before it, while splits can still be distinguished (S4.4).
        """
        return self._exchanged("rebalance", user_location())

    def repartition(self, *columns: str) -> Self:
        """Send records with equal values in these columns to one subtask, like `group_by`.

        Null is a value of its own. Use it for functions of batches that need all records of a key. State by key needs
        `group_by`, which makes this exchange itself.

        Raises:
            PipelineError: there are no columns, a column is missing, or its type cannot be a key.
        """
        location = user_location()
        where = call_place("repartition", None, location)
        if not columns:
            raise PipelineError(
                "repartition(...) has no columns",
                where=where,
                remedy='Name at least one: .repartition("carrier"); without columns: .rebalance()',
            )
        for column in columns:
            require_key(require_column(self.schema, column, where), where)
        refuse_duplicates(columns, where, remedy="Name each column once")
        return self._exchanged("hash", location, "repartition", keys=columns)

    def partition_by(self, partitioner: Partitioner) -> Self:
        """Send each record to the subtask that your own function chooses.

        Args:
            partitioner: arguments: a record batch and the number of subtasks n; returns an array of integers: for each
                row the number of its subtask, from 0 to n - 1. It must depend on the rows and n only. Operators that
                read these records always align checkpoints, also with `unaligned_checkpoints` (S3.7).

        Raises:
            PipelineError: `partitioner` is not a function.
        """
        location = user_location()
        if not callable(partitioner):
            raise PipelineError(
                f"the argument of partition_by(...) must be a function, but is a {type(partitioner).__name__}",
                where=call_place("partition_by", None, location),
                remedy='Pass a function: lambda batch, n: batch["k"].to_numpy() % n; by columns: .repartition("k")',
            )
        return self._exchanged("custom", location, "partition_by", partitioner=partitioner)

    def broadcast_all(self) -> Self:
        """Send every record to every subtask: each subtask sees the whole stream. This multiplies the records by
        `parallelism`. For a side of a join use `.broadcast()` instead."""
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
        """Return the records that `edge` delivers, as a node that other calls can read."""
        # A union of one input passes the records on unchanged.
        node = DraftNode(None, kind, (edge,), records.schema, location, spec=UnionSpec())
        return self._then(node, records.event_time)

    # Writing

    def write(self, sink: Sink, *, uid: str | None = None) -> None:
        """Write the records to a sink: the end of a branch.

        Raises:
            PipelineError: the argument is not a sink, or uid is missing. The sink's own checks run when the pipeline is
                built.
        """
        self._draft.add(self._sink_node(sink, uid, "write"))

    def write_through(self, sink: Sink, *, uid: str | None = None) -> Self:
        """Write the records to a sink, and continue with them.

        The stream continues with records as they are written, not as they are committed: downstream sees a record
        before readers of the sink do. All sinks of a job commit with the same checkpoint, each separately, wherever
        they are in the graph (S7.3, S7.4).

        Returns:
            This stream: the same records in the same order, schema, event time and watermarks. If nothing reads it, the
            call is the same as `write`.

        Raises:
            PipelineError: as for `write`.
        """
        return self._then(self._sink_node(sink, uid, "write_through"), self._event_time)

    def _sink_node(self, sink: Sink, uid: str | None, call: str) -> DraftNode:
        location = user_location()
        uid = require_uid(uid, "sink", location)
        if not isinstance(sink, Sink):
            raise PipelineError(
                f"the argument of {call}(...) must be a sink, but is {sink!r}",
                where=call_place("sink", uid, location),
                remedy=f"Write Parquet({sink!r})" if isinstance(sink, str) else "Pass a sink, such as Parquet(path)",
            )
        return DraftNode(uid, "sink", self._forward(), self.schema, location, stateful=sink.two_phase, sink=sink)

    # Not supported

    def sort(self, *columns: object, **_: object) -> Never:
        """Refuse to sort a stream: its first record in order is known only after the last record has arrived.

        Raises:
            PipelineError: always.
        """
        raise self._unsorted("sort")

    def order_by(self, *columns: object, **_: object) -> Never:
        """Refuse to sort a stream; see `sort`.

        Raises:
            PipelineError: always.
        """
        raise self._unsorted("order_by")

    def _unsorted(self, call: str) -> PipelineError:
        endless = "the stream is unbounded: " if not self.bounded else ""
        return PipelineError(
            f"a stream cannot be sorted as a whole: {call} is not supported",
            where=call_place(call, None, user_location()),
            cause=f"{endless}the first record in order is known only after the last record has arrived, and subtasks "
            "write in parallel",
            remedy="Sort within keys and windows, which end, or when you read the sink's output",
        )


def _require_same_columns(left: pa.Schema, right: pa.Schema, where: str) -> None:
    for mine, theirs, side in ((left, right, "first"), (right, left, "other")):
        lacking = [name for name in mine.names if name not in theirs.names]
        if lacking:
            raise PipelineError(
                f"column {lacking[0]!r} is only in the {side} stream of the union",
                where=where,
                remedy="Select the same columns in all streams first: .select(...)",
            )
    for field in left:
        other = right.field(field.name)
        if other.type != field.type:
            raise PipelineError(
                f"column {field.name!r} is {field.type} in the first stream of the union, but {other.type} in another",
                where=where,
                remedy=f"Cast one of the columns first: .with_columns({field.name}=pc.field({field.name!r}).cast(...))",
            )
    kinds = change_kind_column(left), change_kind_column(right)
    if kinds[0] != kinds[1]:
        raise PipelineError(
            f"column {kinds[0] or kinds[1]!r} has the kind of change in one stream of the union, but not in another",
            where=where,
            remedy="Make changes plain rows first, with changes_as_rows(); or read changes from all sources",
        )


def _require_count(value: object, name: str, where: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise PipelineError(f"{name} must be an integer above 0, but is {value!r}", where=where, remedy="Use 1 or more")


def _timeout_ms(timeout: str | timedelta | None, where: str) -> int | None:
    if timeout is None:
        return None
    timeout_ms = duration_us(timeout, "timeout", where) // 1000
    if timeout_ms < 1:
        raise PipelineError(f"timeout={timeout!r} is too short", where=where, remedy='Use at least "1 ms", or None')
    return timeout_ms


def _positive_us(value: str | timedelta, name: str, where: str) -> int:
    found = duration_us(value, name, where)
    if found <= 0:
        raise PipelineError(f"{name}={value!r} is not positive", where=where, remedy=f'Pass {name} such as "1 hour"')
    return found


def _alignment_group(group: object, max_drift: str | timedelta | None, where: str) -> AlignmentGroup | None:
    """Return the alignment group of a source, or None. Raises PipelineError if its name or drift is missing or
    invalid."""
    if group is None and max_drift is None:
        return None
    if group is None or max_drift is None:
        raise PipelineError(
            "group and max_drift must be set together, but only one of them is set",
            where=where,
            remedy='Pass both: group="orders-and-payments", max_drift="5 min"',
        )
    if not isinstance(group, str) or not UID.fullmatch(group):
        raise PipelineError(
            f"{group!r} is not a valid name of an alignment group",
            where=where,
            remedy="Use letters, digits and ._- , starting with a letter or digit",
        )
    drift_us = duration_us(max_drift, "max_drift", where)
    if drift_us == 0:
        raise PipelineError(
            f"max_drift={max_drift!r} is not positive", where=where, remedy='Pass a duration such as "5 min"'
        )
    return AlignmentGroup(group, drift_us)


def _refusal_reason(node: DraftNode, known: tuple[DraftOutput, ...]) -> str:
    if not known:
        return f"the {node.where} has none"
    return f"the side outputs of the {node.where} are {', '.join(repr(side.name) for side in known)}"
