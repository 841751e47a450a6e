"""Calls that say where records go, and leave the records as they are."""

from __future__ import annotations

from typing import Self

from tidegate.contract.errors import PipelineError
from tidegate.operators.specs import UnionSpec
from tidegate.pipeline.draft import DraftNode, DraftOutput, place
from tidegate.pipeline.location import user_location
from tidegate.pipeline.stream_base import StreamBase
from tidegate.plan.graph import Edge


class RoutingCalls(StreamBase):
    """Calls of `Stream`; see there."""

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
        where = place("side_output", None, location)
        known = {side.name: side for side in self._draft.node(self._node_id).side_outputs}
        if name not in known:
            raise PipelineError(
                f"there is no side output {name!r}",
                where=where,
                cause=_why_not(self._draft.node(self._node_id), tuple(known.values())),
                remedy="Call it directly on what the operator's call returned",
            )
        found = known[name]
        return self._rerouted(Edge(self._node_id, "forward", output=name), "side_output", found, location)

    def _rerouted(self, edge: Edge, kind: str, records: DraftOutput, location: str) -> Self:
        """The records that `edge` brings, as a node that other calls read as any other."""
        node = DraftNode(None, kind, (edge,), records.schema, location, spec=UnionSpec())
        return self._then(node, records.event_time)


def _why_not(node: DraftNode, known: tuple[DraftOutput, ...]) -> str:
    if not known:
        return f"the {node.where} has none"
    return f"the side outputs of the {node.where} are {', '.join(repr(side.name) for side in known)}"
