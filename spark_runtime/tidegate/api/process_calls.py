"""Calls that run a process of the user's own, on one stream or on two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

import pyarrow as pa

from tidegate.operators.functions.process import Process
from tidegate.api.draft.column_checks import same_columns
from tidegate.api.connected_streams import ConnectedStreams, process_input
from tidegate.api.draft.graph_draft import DraftNode, place, require_uid
from tidegate.api.joining import BroadcastStream
from tidegate.api.draft.call_site import user_location
from tidegate.api.process_nodes import unkeyed_spec
from tidegate.api.draft.side_outputs import checked_side_outputs, declared_schemas
from tidegate.api.stream_base import StreamBase


class ProcessCalls(StreamBase):
    """Calls of `Stream`; see there."""

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
        where = place("process", uid, location)
        sides = checked_side_outputs(side_outputs, self.schema, self._event_time, where)
        spec = unkeyed_spec(process, (process_input(self, ""),), schema, where)
        spec = replace(spec, side_outputs=declared_schemas(sides))
        node = DraftNode(
            uid, "process", self._forward(), spec.schema, location, stateful=True, spec=spec, side_outputs=sides
        )
        return self._then(node, self._event_time.kept_by(same_columns(spec.schema, self.schema), where))

    def connect(self, other: Self | BroadcastStream) -> ConnectedStreams[Self]:
        """Put two streams, whose columns may differ, into one process of your own: follow it by `.process(...)`, or by
        `.group_by(...)` for state and timers per key.

        Args:
            other: a stream, or `rules.broadcast()`, bounded or not, whose records every subtask gets.

        Raises:
            PipelineError: not a stream, of another pipeline, or a grouped one.
        """
        return ConnectedStreams(self, other, place("connect", None, user_location()))
