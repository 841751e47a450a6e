"""Calls that bring two streams together by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Literal, Self

import pyarrow.compute as pc

from tidegate.errors import PipelineError
from tidegate.operators.joins.join_specs import StreamJoinKind, StreamJoinSpec
from tidegate.api.broadcast_joining import broadcast_join
from tidegate.api.draft.graph_draft import DraftNode, place, require_uid
from tidegate.api.draft.stream_time import EventTime
from tidegate.api.joining import BroadcastStream
from tidegate.api.draft.call_site import user_location
from tidegate.api.stream_base import StreamBase
from tidegate.api.joins import JoinCall, as_of_join, stream_join
from tidegate.api.windows import Session, Sliding, Tumbling
from tidegate.plan.job_graph import Edge


class JoinCalls(StreamBase):
    """Calls of `Stream`; see there."""

    def broadcast(self) -> BroadcastStream:
        """Give every subtask all records of this stream: as the side of a `join`, for which it must be bounded, or in a
        process, for which it need not be: `stream.connect(rules.broadcast())`."""
        return BroadcastStream(self._draft, self._node_id, self.schema, self._event_time, bounded=self.bounded)

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
        place_ = place("join", uid, location)
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
        where = place("join", uid, location)
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

    def _joined(self, other: StreamBase, spec: StreamJoinSpec, event_time: EventTime, uid: str, location: str) -> Self:
        mine, theirs = spec.inputs
        edges = Edge(self._node_id, "hash", mine.keys), Edge(other._node_id, "hash", theirs.keys)
        node = DraftNode(uid, "join", edges, spec.schema, location, stateful=True, spec=spec)
        bounded = self.bounded and other.bounded
        return type(self)(self._draft, self._draft.add(node), spec.schema, event_time, bounded=bounded)
