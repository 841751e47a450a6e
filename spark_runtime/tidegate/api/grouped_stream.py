"""`group_by(...)`: keyed windows, aggregates and user processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import pyarrow as pa

from tidegate.api.aggregate_nodes import CONSTANT_KEY, drop_columns, running_aggregate, top_rows, unnest
from tidegate.api.aggregates import Aggregate, bound_aggregates
from tidegate.api.connected_streams import ConnectedGroups, process_input
from tidegate.api.draft.call_site import user_location
from tidegate.api.draft.column_checks import (
    checked_renames,
    refuse_duplicates,
    require_column,
    require_key,
    same_columns,
)
from tidegate.api.draft.graph_draft import DraftNode, DraftOutput, call_place, require_uid
from tidegate.api.draft.side_outputs import checked_side_outputs, declared_schemas
from tidegate.api.draft.stream_time import StreamEventTime
from tidegate.api.foreign_names import unknown_name_error
from tidegate.api.process_nodes import keyed_spec
from tidegate.api.stateful_processor import initial_columns, processor_spec
from tidegate.api.stream_base import BroadcastStream, StreamBase
from tidegate.api.windows import (
    LATE,
    WINDOW_BOUND,
    WINDOW_END,
    WINDOW_START,
    Session,
    Sliding,
    Tumbling,
    Window,
    lateness_us,
)
from tidegate.errors import PipelineError
from tidegate.operators.aggregates.aggregate_specs import AggregateOutput, BoundAggregate
from tidegate.operators.user_functions.keyed_process import KeyedProcess
from tidegate.operators.windows.session_specs import SessionAggSpec
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.plan.job_graph import Edge
from tidegate.state.keys.key_types import stored_field

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType

S = TypeVar("S", bound=StreamBase)


class GroupedStream(Generic[S]):
    """A stream grouped by key columns.

    Call `.window(...)`, `.agg(...)`, `.process(...)`, `.transform_with_state(...)` or `.connect(...)` next.
    """

    def __init__(self, stream: S, keys: tuple[str, ...], location: str) -> None:
        where = call_place("group_by", None, location)
        if not keys:
            raise PipelineError(
                "group_by(...) has no key columns", where=where, remedy='Name at least one: .group_by("carrier")'
            )
        for key in keys:
            require_key(require_column(stream.schema, key, where), where)
        refuse_duplicates(keys, where, remedy="Name each key column once")
        self._stream = stream
        self._keys = keys

    if not TYPE_CHECKING:  # with __getattr__, a type checker would accept every name

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError with the nearest name."""
            unknown_name_error(self, name, "a grouped stream")

    def window(self, window: Window, *, allowed_lateness: str | timedelta | None = None) -> WindowedStream[S]:
        """Divide each group into windows over event time or processing time. Call `.agg(...)` next.

        Args:
            window: `tumbling(...)`, `sliding(...)` or `session(...)`.
            allowed_lateness: how long after its end, in event time, a window accepts records. Each batch with such
                records emits the results of their keys again, with all records so far. A reader keeps the last of equal
                keys and bounds. Default: no lateness.

        Raises:
            PipelineError: the argument is not a window; or the window is over event time and the stream has none,
                because there is no `with_watermark` upstream or its column was dropped; or lateness is set over
                processing time.
        """
        where = call_place("window", None, user_location())
        if not isinstance(window, Window):
            raise PipelineError(
                f"the argument of window(...) must be a window, but is {window!r}",
                where=where,
                remedy=f"Write tumbling({window!r})" if isinstance(window, str) else 'Write tumbling("1 day")',
            )
        time_column = self._stream._event_time.require(where) if window.time == "event" else None
        lateness = lateness_us(allowed_lateness, window.time, where)
        return WindowedStream(self._stream, self._keys, window, time_column, lateness)

    def agg(
        self,
        *,
        output: AggregateOutput = "update",
        uid: str | None = None,
        renamed: Mapping[str, str] | None = None,
        **aggregates: Aggregate,
    ) -> S:
        """Aggregate all records of each group so far. The state grows with the number of groups and is never deleted.

        Args:
            output: "update": each batch emits a record for every group in it. A reader keeps the last of equal keys.
                The number of records depends on the division of rows into batches (S8.2). "final": one record for each
                group, at the end of the input, which must be bounded.
            uid: required.
            renamed: key or output column in older snapshots -> its name now, so that they can be restored (S5.5).
            aggregates: output column = `count()`, `sum("delay")` and so on.

        Raises:
            PipelineError: uid or a column is missing, a type does not fit, or a name occurs twice.
        """
        location = user_location()
        uid = require_uid(uid, "aggregate", location)
        stream = self._stream
        where = call_place("aggregate", uid, location)
        aggs, fields = bound_aggregates(aggregates, stream.schema, stream._event_time.column, where)
        return running_aggregate(stream, self._keys, aggs, fields, stream.schema, output, uid, renamed, location)

    def top_n(
        self,
        n: int,
        *,
        by: str,
        ascending: bool = False,
        output: AggregateOutput = "update",
        uid: str | None = None,
    ) -> S:
        """Keep the `n` records of each group with the largest `by`, or with `ascending` the smallest, and their `rank`
        from 1. Equal records are ordered by time, earliest first. With n=1 and `by` the event time: the latest record
        of each key.

        Args:
            n: at least 1.
            by: a column; records in which it is null are ignored.
            ascending: smallest first.
            output: "update": each batch emits all top records of the groups in it again; a reader keeps the last of
                equal keys and ranks. "final": once, at the end of the input.
            uid: required.

        Returns:
            The keys, `rank` (int32) and the other columns.
        """
        location = user_location()
        uid = require_uid(uid, "top_n", location)
        where = call_place("top_n", uid, location)
        stream = self._stream
        agg, field = top_rows(stream.schema, self._keys, n, by, ascending, stream._event_time.column, where)
        held = running_aggregate(stream, self._keys, (agg,), (field,), stream.schema, output, uid, None, location)
        return unnest(held, field.name, location)

    def process(
        self,
        process: KeyedProcess,
        *,
        schema: pa.Schema,
        side_outputs: Mapping[str, pa.Schema] | None = None,
        uid: str | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> S:
        """Run your own process, with state and timers per key.

        The result keeps the event time if `schema` has the event-time column, with the same type.

        Args:
            process: an instance of a subclass of `KeyedProcess`; every subtask works on a shallow copy.
            schema: of the batches that it returns; every batch is checked.
            side_outputs: other outputs, name -> schema; read them with `.side_output(name)` on the returned stream.
            uid: required.
            renamed: key column in older snapshots -> its name now, so that they can be restored (S5.5). Renamed columns
                of a state are declared with the state.

        Raises:
            PipelineError: the process has the wrong class, two of its states have one name, or schema or uid is
                missing.
        """
        location = user_location()
        uid = require_uid(uid, "process", location)
        where = call_place("process", uid, location)
        stream = self._stream
        time = stream._event_time
        sides = checked_side_outputs(side_outputs, stream.schema, time, where)
        inputs = (process_input(stream, "", self._keys),)
        spec = replace(keyed_spec(process, inputs, schema, renamed, where), side_outputs=declared_schemas(sides))
        node = DraftNode(
            uid,
            "process",
            (Edge(stream._node_id, "hash", self._keys),),
            spec.schema,
            location,
            stateful=True,
            spec=spec,
            side_outputs=sides,
        )
        return stream._then(node, time.after_projection(same_columns(spec.schema, stream.schema), where))

    def transform_with_state(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedStream[S] | None = None,
        eventTimeColumnName: str = "",
        *,
        uid: str | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> S:
        """Run an unchanged PySpark `StatefulProcessor` whose rows are `Row` objects, like PySpark's
        `transformWithState`.

        `handleInputRows` is called once for each key and batch, then `handleExpiredTimer` for due timers. Building the
        pipeline also calls `init` and `close`, on a copy. Snapshots contain states and timers, but no attributes of the
        processor.

        Args:
            statefulProcessor: every subtask works on a deep copy.
            outputStructType: columns of the rows that it returns, a StructType or DDL.
            outputMode: "Append" or "Update"; both do the same.
            timeMode: of timers: "None"; "ProcessingTime", which a TTL needs; or "EventTime", which needs
                `with_watermark` upstream and drops late rows.
            initialState: a bounded stream of the same pipeline, grouped by columns of the same types. It is passed to
                `handleInitialState` before the first row, but never to an operator that is restored from a snapshot.
            eventTimeColumnName: timestamp column of the result that is its event time; empty: the result has none.
            uid: required.
            renamed: key column in older snapshots -> its name now, so that they can be restored (S5.5).

        Raises:
            PipelineError: Spark or a state does not support an argument; or uid is missing.
        """
        arguments = (statefulProcessor, outputStructType, outputMode, timeMode, eventTimeColumnName)
        return self._transformed("transform_with_state", arguments, initialState, uid, renamed, pandas=False)

    def transform_with_state_in_pandas(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: GroupedStream[S] | None = None,
        eventTimeColumnName: str = "",
        *,
        uid: str | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> S:
        """Run an unchanged PySpark `StatefulProcessor` whose rows are pandas frames, like PySpark's
        `transformWithStateInPandas`. It receives one frame for each key and batch; see `transform_with_state`."""
        arguments = (statefulProcessor, outputStructType, outputMode, timeMode, eventTimeColumnName)
        return self._transformed("transform_with_state_in_pandas", arguments, initialState, uid, renamed, pandas=True)

    def _transformed(
        self,
        call: str,
        arguments: tuple[Any, ...],
        initial: object,
        uid: str | None,
        renamed: Mapping[str, str] | None,
        *,
        pandas: bool,
    ) -> S:
        location = user_location()
        uid = require_uid(uid, call, location)
        where = call_place(call, uid, location)
        stream = self._stream
        edges = [Edge(stream._node_id, "hash", self._keys)]
        if initial is not None:
            if not isinstance(initial, GroupedStream):
                raise PipelineError(
                    f"initialState must be a grouped stream, but is a {type(initial).__name__}",
                    where=where,
                    remedy='Pass a grouped stream of this pipeline: p.read(...).group_by("carrier")',
                )
            stream._require_sibling(initial._stream, where)
            edges.append(Edge(initial._stream._node_id, "hash", initial._keys))
        spec = processor_spec(
            *arguments,
            pandas=pandas,
            keys=self._keys,
            input_schema=stream.schema,
            time=stream._event_time,
            initial=initial_columns(initial, self._keys, stream.schema, where),
            renamed=renamed,
            where=where,
        )
        node = DraftNode(uid, call, tuple(edges), spec.schema, location, stateful=True, spec=spec)
        time = stream._event_time
        if spec.output_time is not None:
            return stream._then(node, StreamEventTime(spec.output_time, spec.output_unit, time.assigned))
        return stream._then(
            node, time.without_column(f"{where} returns rows without event time: eventTimeColumnName is not set")
        )

    def connect(self, other: GroupedStream[S] | BroadcastStream) -> ConnectedGroups[S]:
        """Connect two streams, whose columns may differ, for one user process with state and timers per key. Call
        `.process(...)` next.

        Args:
            other: a stream grouped by equally many columns of the same types; or `rules.broadcast()`, bounded or not,
                whose records every subtask receives.

        Raises:
            PipelineError: `other` is no such stream, belongs to another pipeline, or its keys have other types.
        """
        where = call_place("connect", None, user_location())
        stream, keys = (other._stream, other._keys) if isinstance(other, GroupedStream) else (other, ())
        self._stream._require_sibling(stream, where)
        if not isinstance(other, GroupedStream | BroadcastStream):
            raise PipelineError(
                "a grouped stream cannot be connected with a stream that is not grouped",
                where=where,
                remedy="Group both streams: left.group_by(...).connect(right.group_by(...)); or connect with "
                "right.broadcast()",
            )
        return ConnectedGroups(self._stream, self._keys, stream, keys, where)


class WindowedStream(Generic[S]):
    """Groups divided into windows. Call `.agg(...)` next."""

    def __init__(
        self,
        stream: S,
        keys: tuple[str, ...],
        window: Window,
        time_column: str | None,
        lateness_us: int,
    ) -> None:
        self._stream = stream
        self._keys = keys
        self._window = window
        self._time_column = time_column
        self._lateness_us = lateness_us

    if not TYPE_CHECKING:  # with __getattr__, a type checker would accept every name

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError with the nearest name."""
            unknown_name_error(self, name, "a windowed stream")

    def agg(self, *, uid: str | None = None, renamed: Mapping[str, str] | None = None, **aggregates: Aggregate) -> S:
        """Emit one record per key and window with records, when the watermark, or the clock, has passed the window's
        end.

        Over event time, records that arrive after this and after the allowed lateness go unchanged to the result's
        `.side_output("late")`. If nothing reads it, they are dropped and counted (`late_dropped`). The result has no
        event
        time: for another window over event time call `.with_watermark("window_start", "0 s")`.

        Args:
            uid: required.
            renamed: key or output column in older snapshots -> its name now, so that they can be restored (S5.5).
            aggregates: output column = `count()`, `sum("delay")` and the others of `api.aggregates`.

        Returns:
            The keys (values of dictionary columns), `window_start`, `window_end` (timestamp[us], UTC) and the
            aggregates.

        Raises:
            PipelineError: uid or a column is missing, a type does not fit, or a name occurs twice.
        """
        location = user_location()
        uid = require_uid(uid, "window", location)
        where = call_place("window", uid, location)
        stream = self._stream
        aggs, fields = bound_aggregates(aggregates, stream.schema, self._time_column, where)
        return self._windowed(aggs, fields, uid, renamed, location)

    def top_n(self, n: int, *, by: str, ascending: bool = False, uid: str | None = None) -> S:
        """Keep the `n` records of each key and window with the largest `by`, or with `ascending` the smallest, and
        their `rank` from 1. Equal records are ordered by time, earliest first.

        Args:
            n: at least 1.
            by: a column; records in which it is null are ignored.
            ascending: smallest first.
            uid: required.

        Returns:
            The keys, `window_start`, `window_end`, `rank` (int32) and the other columns.
        """
        location = user_location()
        uid = require_uid(uid, "top_n", location)
        where = call_place("top_n", uid, location)
        agg, field = top_rows(self._stream.schema, self._keys, n, by, ascending, self._time_column, where)
        held = self._windowed((agg,), (field,), uid, None, location)
        return unnest(held, field.name, location)

    def _windowed(
        self,
        aggs: tuple[BoundAggregate, ...],
        fields: Sequence[pa.Field],
        uid: str,
        renamed: Mapping[str, str] | None,
        location: str,
    ) -> S:
        where = call_place("window", uid, location)
        stream = self._stream
        names = [*self._keys, WINDOW_START, WINDOW_END, *(field.name for field in fields)]
        refuse_duplicates(names, where, remedy="Rename the aggregate or the key column")
        schema = pa.schema(
            [
                *(stored_field(stream.schema.field(key)).remove_metadata() for key in self._keys),
                pa.field(WINDOW_START, WINDOW_BOUND),
                pa.field(WINDOW_END, WINDOW_BOUND),
                *fields,
            ]
        )
        mapping = checked_renames(renamed, (*self._keys, *(field.name for field in fields)), where)
        spec = self._spec(aggs, schema, mapping)
        edge = Edge(stream._node_id, "hash", self._keys)
        kind = "window" if self._time_column is not None else "processing-window"
        late = (DraftOutput(LATE, stream.schema, stream._event_time),) if self._time_column is not None else ()
        node = DraftNode(uid, kind, (edge,), schema, location, stateful=True, spec=spec, side_outputs=late)
        result = stream._then(node, stream._event_time.without_column(f"the {where} emits records of its own"))
        if CONSTANT_KEY in self._keys:
            result = drop_columns(result, (CONSTANT_KEY,), location)
        return result

    def _spec(
        self, aggs: tuple[BoundAggregate, ...], schema: pa.Schema, renamed: tuple[tuple[str, str], ...]
    ) -> WindowAggSpec | SessionAggSpec:
        stream, window = self._stream, self._window
        time = (self._time_column, stream._event_time.unit)
        if isinstance(window, Session):
            return SessionAggSpec(
                self._keys, *time, window.gap_us, aggs, stream.schema, schema, renamed, self._lateness_us
            )
        return WindowAggSpec(
            self._keys,
            *time,
            window.size_us,
            window.offset_us,
            aggs,
            stream.schema,
            schema,
            renamed,
            window.slide_us if isinstance(window, Sliding) else 0,
            self._lateness_us,
            window.calendar if isinstance(window, Tumbling) else None,
        )
