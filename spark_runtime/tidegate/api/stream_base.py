"""StreamBase: a node of the graph that is being built, with schema and event time."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn, Self

import pyarrow as pa

from tidegate.api.draft.graph_draft import DraftNode, GraphDraft
from tidegate.api.draft.stream_time import StreamEventTime
from tidegate.api.foreign_names import unknown_name_error
from tidegate.errors import PipelineError
from tidegate.plan.graph_svg import graph_html
from tidegate.plan.graph_text import explain_graph
from tidegate.plan.job_graph import Edge


class StreamBase:
    """Records of one schema, as a node of the draft emits them. `Stream` adds the calls for users.

    Attributes:
        schema: of the records.
        bounded: True if the stream reaches an end of input.
    """

    def __init__(
        self, draft: GraphDraft, node_id: int, schema: pa.Schema, event_time: StreamEventTime, *, bounded: bool
    ) -> None:
        self._draft = draft
        self._node_id = node_id
        self._event_time = event_time
        if event_time.column is not None:
            draft.note_event_time(node_id, event_time.column, event_time.unit)
        self.schema = schema
        self.bounded = bounded

    if not TYPE_CHECKING:  # with __getattr__, a type checker would accept every name

        def __getattr__(self, name: str) -> NoReturn:
            """Raise AttributeError with the call to use instead of a name of Spark, Flink, Beam or pandas."""
            unknown_name_error(self, name, "a stream")

    def __repr__(self) -> str:
        columns = ", ".join(f"{f.name}: {f.type}" for f in self.schema)
        return f"Stream[{columns}] ({'bounded' if self.bounded else 'unbounded'})"

    def explain(self) -> str:
        """Return the pipeline's `explain()`, as far as it is built."""
        return explain_graph(self._draft.partial_graph())

    def _repr_html_(self) -> str:
        """Return a picture of the pipeline so far, for notebooks."""
        return graph_html(self._draft.partial_graph())

    def _forward(self) -> tuple[Edge]:
        return (Edge(self._node_id, "forward"),)

    def _then(self, node: DraftNode, event_time: StreamEventTime) -> Self:
        """Return the stream of a node whose (first) input is this stream."""
        return type(self)(self._draft, self._draft.add(node), node.schema, event_time, bounded=self.bounded)

    def _require_sibling(self, other: object, where: str) -> None:
        if not isinstance(other, StreamBase):
            raise PipelineError(
                f"the other stream must be a stream, but is a {type(other).__name__}",
                where=where,
                remedy="Pass a stream: the result of p.read(...) or of a call on a stream",
            )
        if other._draft is not self._draft:
            raise PipelineError(
                "the streams belong to two pipelines",
                where=where,
                remedy="Read both streams from one Pipeline()",
            )


class BroadcastStream(StreamBase):
    """A stream marked by `Stream.broadcast()`: every subtask receives all of it. It has no calls."""
