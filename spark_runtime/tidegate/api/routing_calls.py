"""Calls that say where records go, and leave the records as they are."""

from __future__ import annotations

from typing import Self

from tidegate.errors import PipelineError
from tidegate.operators.specs import UnionSpec
from tidegate.api.draft.column_checks import refuse_duplicates, require_column, require_key
from tidegate.api.draft.graph_draft import DraftNode, DraftOutput, place
from tidegate.api.draft.call_site import user_location
from tidegate.api.stream_base import StreamBase
from tidegate.plan.job_graph import Edge, Exchange, Partitioner


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

    def rebalance(self) -> Self:
        """Spread the records evenly: each subtask sends its batches to all subtasks in turn.

        For sources of which some subtasks read more than others. Records of one split do not keep their order, so call
        `with_watermark` before it, where splits can still be told apart (S4.4).
        """
        return self._exchanged("rebalance", user_location())

    def repartition(self, *columns: str) -> Self:
        """Bring records with equal values in these columns to one subtask, as `group_by` does for what follows it.

        Null is a value of its own. For functions of batches that are to see all records of a key; state by key needs
        `group_by`, which makes this exchange itself.

        Raises:
            PipelineError: no columns, no such column, or of a type that cannot be a key.
        """
        location = user_location()
        where = place("repartition", None, location)
        if not columns:
            raise PipelineError(
                "repartition of no columns",
                where=where,
                remedy='Name at least one: .repartition("carrier"); without columns: .rebalance()',
            )
        for column in columns:
            require_key(require_column(self.schema, column, where), where)
        refuse_duplicates(columns, where, remedy="Name each column once")
        return self._exchanged("hash", location, "repartition", keys=columns)

    def partition_by(self, partitioner: Partitioner) -> Self:
        """Bring each record to the subtask that a function of your own says.

        Args:
            partitioner: takes a record batch and the number of subtasks n, gives an array of whole numbers, for each
                row that of its subtask, from 0 to n - 1. It must depend on the rows and n alone. A checkpoint always
                aligns in front of what reads these records, also with `unaligned_checkpoints` (S3.7).

        Raises:
            PipelineError: not a function.
        """
        location = user_location()
        if not callable(partitioner):
            raise PipelineError(
                f"partition_by needs a function, got {type(partitioner).__name__}",
                where=place("partition_by", None, location),
                remedy='Give one, such as lambda batch, n: batch["k"].to_numpy() % n; by columns: .repartition("k")',
            )
        return self._exchanged("custom", location, "partition_by", partitioner=partitioner)

    def broadcast_all(self) -> Self:
        """Send every record to every subtask: each of them sees the whole stream. There are `parallelism` times as many
        records afterwards; a side of a join is made by `.broadcast()`."""
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
        """The records that `edge` brings, as a node that other calls read as any other."""
        node = DraftNode(None, kind, (edge,), records.schema, location, spec=UnionSpec())
        return self._then(node, records.event_time)


def _why_not(node: DraftNode, known: tuple[DraftOutput, ...]) -> str:
    if not known:
        return f"the {node.where} has none"
    return f"the side outputs of the {node.where} are {', '.join(repr(side.name) for side in known)}"
