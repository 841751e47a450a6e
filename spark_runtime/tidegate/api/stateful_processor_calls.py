"""Calls of a grouped stream that run PySpark's own StatefulProcessor classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tidegate.errors import PipelineError
from tidegate.api.draft.graph_draft import DraftNode, place, require_uid
from tidegate.api.draft.stream_time import EventTime
from tidegate.api.draft.call_site import user_location
from tidegate.api.stateful_processor import initial_columns, processor_spec
from tidegate.plan.job_graph import Edge

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType

    from tidegate.api.stream import Stream


class StatefulProcessorCalls:
    """Calls of `GroupedStream`; see there."""

    _stream: Stream
    _keys: tuple[str, ...]

    def transform_with_state(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: StatefulProcessorCalls | None = None,
        eventTimeColumnName: str = "",
        *,
        uid: str | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> Stream:
        """Run a PySpark `StatefulProcessor`, unchanged, whose rows are `Row` objects: PySpark's `transformWithState`.

        `handleInputRows` is called once for each key and delivered batch, then `handleExpiredTimer` for the timers that
        are due. `init` and `close` are called where the pipeline is built, too, on a copy. Attributes of the processor
        are in no snapshot; states and timers are.

        Args:
            statefulProcessor: every subtask takes a deep copy.
            outputStructType: columns of the rows it gives, a StructType or DDL.
            outputMode: "Append" or "Update"; they do not differ.
            timeMode: of timers: "None", "ProcessingTime", which a TTL needs, or "EventTime", which needs
                `with_watermark` upstream and drops late rows.
            initialState: a bounded stream of the same pipeline, grouped by columns of the same types: given to
                `handleInitialState` before the first row, and never to an operator that goes on from a snapshot.
            eventTimeColumnName: timestamp column of the result that is its event time; without it, it has none.
            uid: required.
            renamed: key column in older snapshots -> its name now, so that they can be restored (S5.5).

        Raises:
            PipelineError: anything that Spark or a state does not take, named; or no uid.
        """
        arguments = (statefulProcessor, outputStructType, outputMode, timeMode, eventTimeColumnName)
        return self._transformed("transform_with_state", arguments, initialState, uid, renamed, pandas=False)

    def transform_with_state_in_pandas(
        self,
        statefulProcessor: StatefulProcessor,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: StatefulProcessorCalls | None = None,
        eventTimeColumnName: str = "",
        *,
        uid: str | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> Stream:
        """Run a PySpark `StatefulProcessor`, unchanged, whose rows are pandas frames: PySpark's
        `transformWithStateInPandas`. One frame for each key and delivered batch; see `transform_with_state`."""
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
    ) -> Stream:
        location = user_location()
        uid = require_uid(uid, call, location)
        where = place(call, uid, location)
        stream = self._stream
        edges = [Edge(stream._node_id, "hash", self._keys)]
        if initial is not None:
            if not isinstance(initial, StatefulProcessorCalls):
                raise PipelineError(
                    f"initialState is a {type(initial).__name__}",
                    where=where,
                    remedy='Give a grouped stream of this pipeline: p.read(...).group_by("carrier")',
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
            return stream._then(node, EventTime(spec.output_time, spec.output_unit, time.assigned))
        return stream._then(node, time.gone(f"{where} gives rows without event time: eventTimeColumnName is not given"))
