"""ExecutionPlan: a JobGraph divided into chains, with their subtasks and channels, as frozen data.

Every chain has `parallelism` subtasks. A subtask is `(chain id, index)`; slot i hosts index i of every chain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tidegate.errors import OptionError, PipelineError
from tidegate.operators.stream_operator import MAIN_OUTPUT
from tidegate.operators.time.watermark_specs import WatermarkSpec
from tidegate.plan.column_pruning import prune_columns
from tidegate.plan.graph_document import schema_text
from tidegate.plan.job_graph import Edge, Exchange, JobGraph, Node, Partitioner

DIGEST_VERSION = 2
"""Version of the text from which `ExecutionPlan.digest` is computed."""
MAX_CHANNELS = 2**32
"""Channel ids are uint32 on the wire."""


@dataclass(frozen=True)
class ChainInput:
    """One input of a chain, which is one input of its head node.

    Attributes:
        input_index: position among the head node's inputs.
        upstream_chain: id of the chain that it reads.
        exchange: how records choose their subtask.
        keys: key columns for `hash`.
        schema: of the records.
        first_channel: id of the input's first channel; see `ExecutionPlan.channel_id`.
    """

    input_index: int
    upstream_chain: int
    exchange: Exchange
    keys: tuple[str, ...]
    schema: pa.Schema
    first_channel: int


@dataclass(frozen=True)
class ChainOutput:
    """One edge from a chain's tail to input `input_index` of `target_chain`.

    It carries every record of the tail's output `output`, and every event. `partitioner`: for `custom`. `columns`:
    columns that it carries; None: all.
    """

    target_chain: int
    input_index: int
    exchange: Exchange
    keys: tuple[str, ...]
    output: str = MAIN_OUTPUT
    partitioner: Partitioner | None = None
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Chain:
    """Operators that run in one subtask; records pass from one to the next by a call.

    Attributes:
        chain_id: position in `ExecutionPlan.chains`, topological.
        nodes: ids of the nodes, head first.
        inputs: in the head node's input order; none for a source.
        outputs: edges from the tail, by consumer; none for a sink that nothing reads.
        schema: of the tail's main output (for a sink: of its input, which it forwards if something reads it).
        name: the uids, joined.
        is_source: the head is a source.
        is_sink: the tail is a sink.
    """

    chain_id: int
    nodes: tuple[int, ...]
    inputs: tuple[ChainInput, ...]
    outputs: tuple[ChainOutput, ...]
    schema: pa.Schema
    name: str
    is_source: bool
    is_sink: bool


@dataclass(frozen=True)
class ExecutionPlan:
    """Chains in topological order; `chains[i].chain_id == i`.

    Attributes:
        graph: the graph that runs: the user's graph without the columns that nothing reads. Its schemas and the
            chains' schemas are narrower than the user's; everything else is equal.
        parallelism: subtasks of every chain.
        max_parallelism: key groups (S5.1).
        chains: the chains.
        channels: number of channels in the whole job; ids are 0 <= id < channels.
        digest: sha256, hex: equal in two processes that planned the same graph: uids, kinds, schemas, exchanges and the
            two numbers above. Expressions, functions, and columns left out are not included.
    """

    graph: JobGraph
    parallelism: int
    max_parallelism: int
    chains: tuple[Chain, ...]
    channels: int
    digest: str

    def channel_id(self, target_chain: int, input_index: int, source_index: int, target_index: int) -> int:
        """Return the id of the channel from subtask `source_index` of the upstream chain to subtask `target_index` of
        `target_chain`. Ids are unique in the job. A forward input has only the channels from i to i."""
        given = self.chains[target_chain].inputs[input_index]
        p = self.parallelism
        assert max(source_index, target_index) < p, f"no channel {source_index} -> {target_index} of {p}"
        if given.exchange == "forward":
            assert source_index == target_index, f"a forward input has no channel {source_index} -> {target_index}"
            return given.first_channel + target_index
        return given.first_channel + target_index * p + source_index

    def chain_of(self, node_id: int) -> Chain:
        """Return the chain that holds a node. Raises KeyError if there is none."""
        for chain in self.chains:
            if node_id in chain.nodes:
                return chain
        raise KeyError(node_id)

    def explain(self) -> str:
        """Return the chains with their subtasks, inputs and channel counts, one or more lines each."""
        width = len(str(max(len(self.chains) - 1, 0)))
        total = self.parallelism * len(self.chains)
        head = (
            f"{len(self.chains)} chains x {self.parallelism} = {total} subtasks, {self.channels} channels, "
            f"{self.max_parallelism} key groups, digest {self.digest[:12]}"
        )
        lines = [head]
        for chain in self.chains:
            lines.append(f"chain {chain.chain_id:>{width}}: {chain.name}")
            for given in chain.inputs:
                by = f" by {', '.join(given.keys)}" if given.keys else ""
                count = _channel_count(given.exchange, self.parallelism)
                lines.append(
                    f"{' ' * (width + 8)}<- chain {given.upstream_chain} ({given.exchange}{by}, {count} channels)"
                )
        return "\n".join(lines)


def make_execution_plan(
    graph: JobGraph, parallelism: int, max_parallelism: int, *, prunes: bool = True
) -> ExecutionPlan:
    """Divide the graph into chains, along forward edges whose consumer has one input, and whose producer has one
    consumer and emits its main output there.

    Deterministic: driver and slots plan separately and compare digests.

    Args:
        prunes: leave out the columns that nothing reads. Batch mode does so on its own.

    Raises:
        OptionError: not 1 <= parallelism <= max_parallelism.
        PipelineError: the job needs more channels than there are ids.
    """
    if not 1 <= parallelism <= max_parallelism:
        raise OptionError(
            f"parallelism {parallelism} is not between 1 and max_parallelism {max_parallelism}",
            cause="each subtask needs at least one of the max_parallelism key groups",
            remedy=f"Set parallelism to 1..{max_parallelism}; max_parallelism can be raised only for a new job",
        )
    runs = prune_columns(graph) if prunes else graph
    members = _cut_chains(runs)
    _refuse_alignment_without_source(runs, members)
    _refuse_event_time_of_unordered_splits(runs)
    chain_of_tail = {nodes[-1]: chain_id for chain_id, nodes in enumerate(members)}
    outputs: list[list[ChainOutput]] = [[] for _ in members]
    inputs: list[list[ChainInput]] = [[] for _ in members]
    next_channel = 0
    for chain_id, nodes in enumerate(members):
        for input_index, edge in enumerate(runs.nodes[nodes[0]].inputs):
            upstream = chain_of_tail[edge.upstream]
            schema = runs.edge_schema(edge)
            given = ChainInput(input_index, upstream, edge.exchange, edge.keys, schema, next_channel)
            inputs[chain_id].append(given)
            outputs[upstream].append(
                ChainOutput(
                    chain_id, input_index, edge.exchange, edge.keys, edge.output, edge.partitioner, edge.columns
                )
            )
            next_channel += _channel_count(edge.exchange, parallelism)
    if next_channel > MAX_CHANNELS:
        raise PipelineError(
            f"the job needs {next_channel} channels between subtasks, but only {MAX_CHANNELS} are possible",
            cause=f"every exchange between {parallelism} subtasks needs {parallelism * parallelism} channels",
            remedy="Lower parallelism, or divide the pipeline into two jobs",
        )
    chains = tuple(
        _chain(runs, chain_id, nodes, inputs[chain_id], outputs[chain_id]) for chain_id, nodes in enumerate(members)
    )
    return ExecutionPlan(
        runs, parallelism, max_parallelism, chains, next_channel, _digest(graph, parallelism, max_parallelism)
    )


def _cut_chains(graph: JobGraph) -> list[tuple[int, ...]]:
    """Return the ids of every chain's nodes, ordered by head. An edge leads from a tail to a later head, so the order
    is topological."""
    consumers = [0] * len(graph.nodes)
    for node in graph.nodes:
        for edge in node.inputs:
            consumers[edge.upstream] += 1
    # A node comes after all its inputs, so that the chain of its producer is already known.
    chains: list[list[int]] = []
    position: dict[int, int] = {}
    for node in graph.nodes:
        if _joins_its_producer(node, consumers):
            position[node.node_id] = position[node.inputs[0].upstream]
            chains[position[node.node_id]].append(node.node_id)
        else:
            position[node.node_id] = len(chains)
            chains.append([node.node_id])
    return [tuple(nodes) for nodes in chains]


def _refuse_alignment_without_source(graph: JobGraph, members: Sequence[tuple[int, ...]]) -> None:
    """Check that watermarks with an alignment group are in the source's chain, because they must be able to pause the
    source."""
    for nodes in members:
        for node in (graph.nodes[n] for n in nodes if graph.nodes[nodes[0]].source is None):
            if isinstance(node.spec, WatermarkSpec) and node.spec.group is not None:
                raise PipelineError(
                    f"the watermark with alignment group {node.spec.group.name!r} does not follow its source directly",
                    where=f"{node.kind} {node.uid!r} at {node.location}",
                    cause="an exchange, a second input or a second reader of the source's records is between the two",
                    remedy="Call with_watermark directly on the result of p.read(...), and branch the stream after "
                    "with_watermark",
                )


def _refuse_event_time_of_unordered_splits(graph: JobGraph) -> None:
    """Check that no watermark depends on a source whose waiting splits hold no watermark back (S4.4)."""
    for watermark in graph.nodes:
        if not isinstance(watermark.spec, WatermarkSpec):
            continue
        left = [watermark]
        while left:
            node = left.pop()
            left += [graph.nodes[edge.upstream] for edge in node.inputs]
            discovery = None if node.source is None else node.source.continuous_discovery()
            if discovery is not None and not discovery.fits_event_time:
                raise PipelineError(
                    "the source assigns splits on demand, which does not fit event time",
                    where=f"source {node.uid!r} at {node.location}, watermark {watermark.uid!r}",
                    cause="a split that no reader has yet would hold no watermark back, so its rows would be late",
                    remedy='Use assign="at_start"',
                )


def _joins_its_producer(node: Node, consumers: Sequence[int]) -> bool:
    if len(node.inputs) != 1:
        return False
    edge = node.inputs[0]
    return edge.exchange == "forward" and edge.output == MAIN_OUTPUT and consumers[edge.upstream] == 1


def _chain(
    graph: JobGraph,
    chain_id: int,
    nodes: tuple[int, ...],
    inputs: Sequence[ChainInput],
    outputs: Sequence[ChainOutput],
) -> Chain:
    head, tail = graph.nodes[nodes[0]], graph.nodes[nodes[-1]]
    return Chain(
        chain_id=chain_id,
        nodes=nodes,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        schema=tail.schema,
        name=" -> ".join(graph.nodes[n].uid for n in nodes),
        is_source=head.source is not None,
        is_sink=tail.sink is not None,
    )


def _channel_count(exchange: Exchange, parallelism: int) -> int:
    return parallelism if exchange == "forward" else parallelism * parallelism


def _digest(graph: JobGraph, parallelism: int, max_parallelism: int) -> str:
    lines = [f"tidegate plan {DIGEST_VERSION} parallelism={parallelism} max_parallelism={max_parallelism}"]
    for node in graph.nodes:
        fields = [node.uid, node.kind, str(node.stateful), schema_text(node.schema), *map(_edge_text, node.inputs)]
        # `repr`, so that a tab or line break in a field cannot make two different graphs equal.
        lines.append("\t".join(map(repr, fields)))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _edge_text(edge: Edge) -> str:
    return f"{edge.upstream} {edge.output} {edge.exchange} {list(edge.keys)!r}"
