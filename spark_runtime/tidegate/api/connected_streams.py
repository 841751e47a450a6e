"""`a.connect(b)`: two streams for one user process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import pyarrow as pa

from tidegate.api.draft.call_site import user_location
from tidegate.api.draft.column_checks import refuse_duplicates, require_column, require_key, same_columns
from tidegate.api.draft.graph_draft import DraftNode, call_place, require_uid
from tidegate.api.draft.side_outputs import checked_side_outputs, declared_schemas
from tidegate.api.draft.stream_time import StreamEventTime, common_event_time
from tidegate.api.process_nodes import keyed_spec, unkeyed_spec
from tidegate.api.stream_base import BroadcastStream, StreamBase
from tidegate.errors import PipelineError
from tidegate.operators.processes.process_specs import KeyedProcessSpec, ProcessSpec
from tidegate.operators.user_functions.co_process import (
    BroadcastProcess,
    CoProcess,
    KeyedBroadcastProcess,
    KeyedCoProcess,
)
from tidegate.operators.user_functions.process_inputs import ProcessInput
from tidegate.plan.job_graph import Edge
from tidegate.state.keys.key_types import stored_type

AnyStream = TypeVar("AnyStream", bound=StreamBase)


class ConnectedStreams(Generic[AnyStream]):
    """Two connected streams. Call `.process(...)` next, or `.group_by(...)` for state and timers per key."""

    def __init__(self, left: AnyStream, right: object, where: str) -> None:
        if not isinstance(right, StreamBase) and hasattr(right, "connect"):
            raise PipelineError(
                "a grouped stream cannot be connected with a stream that is not grouped",
                where=where,
                remedy="Group both streams: left.group_by(...).connect(right.group_by(...))",
            )
        left._require_sibling(right, where)
        assert isinstance(right, StreamBase)
        self._left = left
        self._right: StreamBase = right

    def group_by(self, *keys: str, right: str | Sequence[str] | None = None) -> ConnectedGroups[AnyStream]:
        """Group both streams by key columns, so that equal keys share state and timers. Null is a key of its own.

        With a broadcast stream, only the first stream is grouped.

        Args:
            keys: columns of the left stream.
            right: columns of the right stream, in the same order and of the same types; default: the same names.

        Raises:
            PipelineError: a column is missing, types differ, or a type cannot be a key.
        """
        where = call_place("group_by", None, user_location())
        of_right: tuple[str, ...] = ()
        if not isinstance(self._right, BroadcastStream):
            of_right = keys if right is None else ((right,) if isinstance(right, str) else tuple(right))
        elif right is not None:
            raise PipelineError(
                "right= names key columns of the broadcast side, which has no keys",
                where=where,
                cause="every subtask receives all records of the broadcast side",
                remedy="Remove right=, or remove .broadcast()",
            )
        return ConnectedGroups(self._left, keys, self._right, of_right, where)

    def process(
        self,
        process: CoProcess | BroadcastProcess,
        *,
        schema: pa.Schema,
        side_outputs: Mapping[str, pa.Schema] | None = None,
        uid: str | None = None,
    ) -> AnyStream:
        """Run your own process, with state per subtask.

        A stream without `with_watermark` does not hold event time back. The result keeps the event time if `schema` has
        the event-time column, with the type that it has in the left stream, and the right stream has no event time or
        the same.

        Args:
            process: an instance of a subclass of `CoProcess`, or with a broadcast stream of `BroadcastProcess`. Every
                subtask works on a shallow copy.
            schema: of the batches that it returns; every batch is checked.
            side_outputs: other outputs, name -> schema; read them with `.side_output(name)` on the returned stream.
            uid: required.

        Raises:
            PipelineError: the process has the wrong class, or state or timers by key; or schema or uid is missing.
        """
        drawn = _node_place(self._right, uid)
        where = drawn.where
        inputs = _inputs(self._left, self._right)
        timeless = _without_event_time(self._left, self._right)
        spec = unkeyed_spec(process, inputs, schema, where, timeless)
        second = self._right._node_id
        broadcast = isinstance(self._right, BroadcastStream)
        edges = (*self._left._forward(), Edge(second, "broadcast") if broadcast else Edge(second, "forward"))
        return _result(self._left, self._right, drawn, edges, spec, side_outputs)


class ConnectedGroups(Generic[AnyStream]):
    """Two streams, grouped by key. Call `.process(...)` next."""

    def __init__(
        self, left: AnyStream, keys: tuple[str, ...], right: StreamBase, right_keys: tuple[str, ...], where: str
    ) -> None:
        for stream, names in ((left, keys), (right, right_keys)):
            for key in names:
                require_key(require_column(stream.schema, key, where), where)
            refuse_duplicates(names, where, remedy="Name each key column once")
        if not keys:
            raise PipelineError(
                "group_by(...) has no key columns", where=where, remedy='Name at least one: .group_by("carrier")'
            )
        if not isinstance(right, BroadcastStream):
            _require_same_keys(left.schema, keys, right.schema, right_keys, where)
        self._left = left
        self._keys = keys
        self._right = right
        self._right_keys = right_keys

    def process(
        self,
        process: KeyedCoProcess | KeyedBroadcastProcess,
        *,
        schema: pa.Schema,
        side_outputs: Mapping[str, pa.Schema] | None = None,
        uid: str | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> AnyStream:
        """Run your own process, with state and timers per key. See `ConnectedStreams.process`.

        Args:
            process: an instance of a subclass of `KeyedCoProcess`, or with a broadcast stream of
                `KeyedBroadcastProcess`. Every subtask works on a shallow copy.
            schema: of the batches that it returns; every batch is checked.
            side_outputs: other outputs, name -> schema; read them with `.side_output(name)` on the returned stream.
            uid: required.
            renamed: key column of the left stream in older snapshots -> its name now, so that they can be restored
                (S5.5).

        Raises:
            PipelineError: the process has the wrong class, two of its states have one name, or schema or uid is
                missing.
        """
        drawn = _node_place(self._right, uid)
        where = drawn.where
        inputs = _inputs(self._left, self._right, self._keys, self._right_keys)
        spec = keyed_spec(process, inputs, schema, renamed, where, _without_event_time(self._left, self._right))
        broadcast = isinstance(self._right, BroadcastStream)
        second = self._right._node_id
        edges = (
            Edge(self._left._node_id, "hash", self._keys),
            Edge(second, "broadcast") if broadcast else Edge(second, "hash", self._right_keys),
        )
        return _result(self._left, self._right, drawn, edges, spec, side_outputs)


def process_input(stream: StreamBase, name: Any, keys: tuple[str, ...] = ()) -> ProcessInput:
    """Describe the stream as an input of a process."""
    time = stream._event_time
    return ProcessInput(name, stream.schema, keys, time.column, time.unit)


@dataclass(frozen=True)
class _NodePlace:
    """Uid, kind and location of a call, for errors."""

    uid: str
    kind: str
    location: str

    @property
    def where(self) -> str:
        return call_place(self.kind, self.uid, self.location)


def _node_place(right: StreamBase, uid: str | None) -> _NodePlace:
    location = user_location()
    kind = "broadcast-process" if isinstance(right, BroadcastStream) else "co-process"
    return _NodePlace(require_uid(uid, kind, location), kind, location)


def _inputs(
    left: StreamBase, right: StreamBase, keys: tuple[str, ...] = (), right_keys: tuple[str, ...] = ()
) -> tuple[ProcessInput, ProcessInput]:
    broadcast = isinstance(right, BroadcastStream)
    first = process_input(left, "" if broadcast else "left", keys)
    return first, process_input(right, "broadcast" if broadcast else "right", right_keys)


def _without_event_time(left: StreamBase, right: StreamBase) -> tuple[int, ...]:
    """Return the input without watermarks, if the other input has watermarks."""
    with_time = [bool(stream._event_time.assigned) for stream in (left, right)]
    return tuple(n for n, has in enumerate(with_time) if not has) if any(with_time) else ()


def _result(
    left: AnyStream,
    right: StreamBase,
    drawn: _NodePlace,
    edges: tuple[Edge, Edge],
    spec: KeyedProcessSpec | ProcessSpec,
    side_outputs: Mapping[str, pa.Schema] | None,
) -> AnyStream:
    """Create the stream of the process's results. An output has event time if it has the event-time column of a
    side."""
    with_time = left if left._event_time.assigned else right
    times = [stream._event_time for stream in (left, right) if stream._event_time.assigned]
    if isinstance(right, BroadcastStream) and left._event_time.assigned:
        times = times[:1]
    of_both = common_event_time(times, drawn.where) if times else StreamEventTime()
    sides = checked_side_outputs(side_outputs, with_time.schema, of_both, drawn.where)
    node = DraftNode(
        drawn.uid,
        drawn.kind,
        edges,
        spec.schema,
        drawn.location,
        stateful=True,
        spec=replace(spec, side_outputs=declared_schemas(sides)),
        side_outputs=sides,
    )
    event_time = of_both.after_projection(same_columns(node.schema, with_time.schema), drawn.where)
    bounded = left.bounded and right.bounded
    return type(left)(left._draft, left._draft.add(node), node.schema, event_time, bounded=bounded)


def _require_same_keys(
    left: pa.Schema, keys: Sequence[str], right: pa.Schema, right_keys: Sequence[str], where: str
) -> None:
    if len(keys) != len(right_keys):
        raise PipelineError(
            f"there are {len(keys)} key columns on the left and {len(right_keys)} on the right",
            where=where,
            remedy='Pass equally many columns: .group_by("order", right="order_id")',
        )
    for mine, theirs in zip(keys, right_keys, strict=True):
        types = left.field(mine).type, right.field(theirs).type
        if stored_type(types[0]) != stored_type(types[1]):
            raise PipelineError(
                f"key column {mine!r} is {types[0]} on the left, but {theirs!r} is {types[1]} on the right",
                where=where,
                remedy=f"Cast one of the two columns first: .with_columns({theirs}=pc.field({theirs!r}).cast(...))",
            )
