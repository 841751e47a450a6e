"""Calls that hand records to sinks."""

from __future__ import annotations

from typing import Self

from tidegate.connectors.interface import Sink
from tidegate.errors import PipelineError
from tidegate.api.draft.graph_draft import DraftNode, place, require_uid
from tidegate.api.draft.call_site import user_location
from tidegate.api.stream_base import StreamBase


class WriteCalls(StreamBase):
    """Calls of `Stream`; see there."""

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
                where=place("sink", uid, location),
                remedy=f"Write Parquet({sink!r})" if isinstance(sink, str) else "Give one, such as Parquet(path)",
            )
        return DraftNode(uid, "sink", self._forward(), self.schema, location, stateful=sink.two_phase, sink=sink)
