"""JobGraph: the user's pipeline as frozen data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy.typing as npt
import pyarrow as pa

from tidegate.connectors.interface import Sink, Source
from tidegate.operators.operator_spec import OperatorSpec
from tidegate.operators.stream_operator import MAIN_OUTPUT
from tidegate.operators.time.watermark_specs import TimeUnit

Exchange = Literal["forward", "hash", "broadcast", "rebalance", "custom"]
Partitioner: TypeAlias = Callable[[pa.RecordBatch, int], npt.ArrayLike | pa.Array]
"""A user's partitioner: its arguments are a batch and the number of subtasks n; it returns for each row the number of
its subtask, 0 <= number < n."""


@dataclass(frozen=True)
class Edge:
    """One input of a node.

    Attributes:
        upstream: id of the node that it reads.
        exchange: `forward` subtask i to i; `hash` by key group of `keys`; `broadcast` every record to every subtask;
            `rebalance` batches round robin; `custom` by `partitioner`.
        keys: key columns for `hash`.
        output: output of the upstream node that it reads.
        columns: columns of that output that it carries, in its order; None: all. Set by the planner alone.
    """

    upstream: int
    exchange: Exchange
    keys: tuple[str, ...] = ()
    output: str = MAIN_OUTPUT
    partitioner: Partitioner | None = None
    columns: tuple[str, ...] | None = None

    def schema_from(self, upstream: Node) -> pa.Schema:
        """Return the schema of the records that the edge carries. Args: upstream: the node that it reads."""
        emitted = upstream.output_schema(self.output)
        return emitted if self.columns is None else pa.schema([emitted.field(name) for name in self.columns])


@dataclass(frozen=True)
class Node:
    """One operator of the graph. Exactly one of `source`, `spec`, `sink` is set.

    Attributes:
        node_id: position in `JobGraph.nodes`, topological.
        uid: stable name; set by the user for sources, sinks and stateful operators, else derived from the position.
        kind: short word for explain(): "source", "filter", "window", ...
        inputs: edges, in input order.
        schema: of the records it emits (for a sink: of its input, which it forwards if something reads it).
        side_outputs: (name, schema) of its other outputs; none is named `MAIN_OUTPUT`.
        location: `file:line` in the user's code.
        stateful: it keeps state of its own, so the user must set its uid.
        event_time: (column, unit) of `schema` that holds event time; None: no column does.
    """

    node_id: int
    uid: str
    kind: str
    inputs: tuple[Edge, ...]
    schema: pa.Schema
    location: str
    stateful: bool = False
    source: Source | None = None
    spec: OperatorSpec | None = None
    sink: Sink | None = None
    side_outputs: tuple[tuple[str, pa.Schema], ...] = ()
    event_time: tuple[str, TimeUnit] | None = None

    def output_schema(self, output: str) -> pa.Schema:
        """Return the schema of one output. Raises KeyError if there is no output of this name."""
        return self.schema if output == MAIN_OUTPUT else dict(self.side_outputs)[output]


@dataclass(frozen=True)
class JobGraph:
    """Nodes in topological order; `nodes[i].node_id == i`."""

    nodes: tuple[Node, ...]

    def consumers(self, node_id: int) -> tuple[tuple[Node, int], ...]:
        """Return (node, input index) of everything that reads `node_id`."""
        return tuple((n, i) for n in self.nodes for i, edge in enumerate(n.inputs) if edge.upstream == node_id)

    def edge_schema(self, edge: Edge) -> pa.Schema:
        """Return the schema of the records of an edge."""
        return edge.schema_from(self.nodes[edge.upstream])

    def side_outputs_read(self, node_id: int) -> frozenset[str]:
        """Return the names of the node's side outputs that something reads."""
        edges = (node.inputs[i] for node, i in self.consumers(node_id))
        return frozenset(edge.output for edge in edges if edge.output != MAIN_OUTPUT)

    def by_uid(self, uid: str) -> Node:
        """Return the node of this uid. Raises KeyError if there is none."""
        for n in self.nodes:
            if n.uid == uid:
                return n
        raise KeyError(uid)
