"""Calls that bring two streams together by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from tidegate.operators.specs import BroadcastJoinSpec, JoinKind
from tidegate.pipeline.columns import checked_renames
from tidegate.pipeline.draft import DraftNode, place, require_uid
from tidegate.pipeline.joining import BroadcastStream, check_broadcast_join
from tidegate.pipeline.location import user_location
from tidegate.pipeline.stream_base import StreamBase
from tidegate.plan.graph import Edge


class JoinCalls(StreamBase):
    """Calls of `Stream`; see there."""

    def broadcast(self) -> BroadcastStream:
        """Mark this bounded stream as the side of a join that every subtask holds whole."""
        return BroadcastStream(self._draft, self._node_id, self.schema, self._event_time, bounded=self.bounded)

    def join(
        self,
        other: BroadcastStream,
        on: str | Sequence[str],
        how: JoinKind = "inner",
        *,
        uid: str | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> Self:
        """Join with a broadcast side by equal keys; a null key matches nothing.

        Records wait, in snapshotted state, until the broadcast side has come to its end. Several matches give several
        records. Event time is this stream's.

        Args:
            other: `stream.broadcast()`, bounded.
            on: key columns, of the same names and types on both sides.
            how: "inner", or "left": records without a match stay, with nulls.
            uid: required.
            renamed: column of either side in older snapshots -> its name now, so that they can be restored (S5.5).

        Returns:
            This stream's columns, then the other's without the keys.

        Raises:
            PipelineError: no such column, types that differ, a name on both sides, no uid, or an unbounded side.
        """
        location = user_location()
        uid = require_uid(uid, "join", location)
        where = place("join", uid, location)
        keys, schema = check_broadcast_join(self.schema, other, on, how, where)
        self._require_sibling(other, where)
        node = DraftNode(
            uid,
            "join",
            (*self._forward(), Edge(other._node_id, "broadcast")),
            schema,
            location,
            stateful=True,
            spec=BroadcastJoinSpec(
                keys, how, self.schema, other.schema, schema, checked_renames(renamed, schema.names, where)
            ),
        )
        return self._then(node, self._event_time)
