"""From an ExecutionPlan and a deployment message to the subtasks of one slot."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from tidegate.channel.memory import MemoryChannel
from tidegate.channel.ports import InputChannel, OutputChannel
from tidegate.connectors.contract import SourceContext
from tidegate.connectors.sink_operator import SinkOperator, SinkSpec
from tidegate.operators.contract import CommitPermit, OperatorContext, StreamOperator
from tidegate.plan.execution import Chain, ExecutionPlan
from tidegate.plan.graph import JobGraph, Node
from tidegate.snapshot.parts import StatePart
from tidegate.state.keyhash import partition_hash
from tidegate.subtask.alignment import AlignmentMode
from tidegate.subtask.chain import OperatorChain, OperatorFailure
from tidegate.subtask.routing import OutputEdge, Router
from tidegate.subtask.source import SourceInput, split_from_json, splits_from_parts
from tidegate.subtask.subtask import InputPort, Subtask, SubtaskHost

Part = Mapping[str, Sequence[StatePart]]
"""uid -> restored parts of one subtask index."""


class Transport(Protocol):
    """Channels to and from other slots."""

    def open_input(self, channel_id: int, schema: pa.Schema) -> InputChannel:
        """The receiving end of `channel_id`."""

    def open_output(self, channel_id: int, target_slot: int) -> OutputChannel:
        """The sending end of `channel_id`."""


@dataclass(frozen=True)
class Restored:
    """What a slot restores.

    Attributes:
        permit: the right to commit what the snapshot holds; None in a fork, which commits nothing of its original's
            (S7.4).
        parts: (uid, index) -> state parts.
        finished: (chain id, index) of subtasks that run no user code (S6.2).
    """

    permit: CommitPermit | None
    parts: Mapping[tuple[str, int], Sequence[StatePart]]
    finished: Collection[tuple[int, int]]


@dataclass(frozen=True)
class Deployment:
    """One run of the job as a slot sees it.

    Attributes:
        indices: subtask indices this slot hosts (on Spark one: the slot's number).
        splits: source uid -> index -> split documents, of sources that start fresh: all of them, or after a restore
        those
            the snapshot does not know.
    """

    job_id: str
    lineage: str
    generation: int
    run_id: str
    indices: tuple[int, ...]
    mode: AlignmentMode
    wait_for_final: bool
    channel_capacity_bytes: int
    splits: Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]]
    restored: Restored | None = None
    idle_after_ms: int | None = None
    scratch: str = ""


@dataclass
class _Channels:
    """Channels of one slot: deques where both ends are here, the transport otherwise."""

    deployment: Deployment
    transport: Transport | None
    local: dict[int, MemoryChannel] = field(default_factory=dict)

    def _memory(self, channel_id: int) -> MemoryChannel:
        if channel_id not in self.local:
            self.local[channel_id] = MemoryChannel(self.deployment.channel_capacity_bytes)
        return self.local[channel_id]

    def input(self, channel_id: int, source_index: int, schema: pa.Schema) -> InputChannel:
        if source_index in self.deployment.indices:
            return self._memory(channel_id)
        assert self.transport is not None, "a channel to another slot needs a transport"
        return self.transport.open_input(channel_id, schema)

    def output(self, channel_id: int, target_index: int) -> OutputChannel:
        if target_index in self.deployment.indices:
            return self._memory(channel_id)
        assert self.transport is not None, "a channel to another slot needs a transport"
        return self.transport.open_output(channel_id, target_index)


def deploy(
    graph: JobGraph,
    plan: ExecutionPlan,
    deployment: Deployment,
    host: SubtaskHost,
    transport: Transport | None,
) -> list[Subtask]:
    """Open, restore and recover every subtask of this slot, downstream ones first. May block (state is read, permitted
    transactions are committed); raises OperatorFailure."""
    channels = _Channels(deployment, transport)
    subtasks: list[Subtask] = []
    for chain in reversed(plan.chains):
        for index in deployment.indices:
            subtasks.append(_deploy_subtask(graph, plan, chain, index, deployment, host, channels))
    return subtasks


def _deploy_subtask(
    graph: JobGraph,
    plan: ExecutionPlan,
    chain: Chain,
    index: int,
    deployment: Deployment,
    host: SubtaskHost,
    channels: _Channels,
) -> Subtask:
    restored = deployment.restored
    finished = restored is not None and (chain.chain_id, index) in restored.finished
    nodes = [graph.nodes[n] for n in chain.nodes]
    operators: list[StreamOperator] = []
    uids: list[str] = []
    contexts: list[OperatorContext] = []
    for node in nodes:
        if node.source is not None or (finished and node.sink is None):
            continue
        context = _context(graph, plan, node, index, deployment)
        operators.append(_open_operator(node, index, context, restored))
        contexts.append(context)
        uids.append(node.uid)
    source = None
    if nodes[0].source is not None:
        reader = nodes[0].source.create_reader(SourceContext(nodes[0].uid, index, plan.parallelism))
        source = SourceInput(nodes[0].uid, reader, contexts, index, deployment.idle_after_ms)
        if not finished:
            source.start(_splits(nodes[0].uid, index, deployment))
    return Subtask(
        (chain.chain_id, index),
        OperatorChain(operators, uids, index),
        uids,
        _input_ports(plan, chain, index, channels),
        _router(plan, chain, index, channels),
        host,
        source=source,
        mode=deployment.mode,
        wait_for_final=deployment.wait_for_final,
        restored_finished=finished,
    )


def _splits(uid: str, index: int, deployment: Deployment) -> list[Any]:
    if deployment.restored is not None and uid not in deployment.splits:
        return splits_from_parts(deployment.restored.parts.get((uid, index), ()))
    return [split_from_json(document) for document in deployment.splits.get(uid, {}).get(index, ())]


def _context(graph: JobGraph, plan: ExecutionPlan, node: Node, index: int, deployment: Deployment) -> OperatorContext:
    scratch = os.path.join(deployment.scratch, f"n{node.node_id}-{index}") if deployment.scratch else ""
    if scratch:
        os.makedirs(scratch, exist_ok=True)
    return OperatorContext(
        job_id=deployment.job_id,
        lineage=deployment.lineage,
        uid=node.uid,
        subtask=index,
        parallelism=plan.parallelism,
        max_parallelism=plan.max_parallelism,
        generation=deployment.generation,
        run_id=deployment.run_id,
        input_schemas=tuple(graph.nodes[edge.upstream].schema for edge in node.inputs),
        processing_time_ms=_processing_time,
        scratch=scratch,
    )


def _processing_time() -> int:
    import time

    return time.time_ns() // 1_000_000


def _open_operator(node: Node, index: int, context: OperatorContext, restored: Restored | None) -> StreamOperator:
    try:
        operator: StreamOperator
        if node.sink is not None:
            operator = SinkSpec(node.sink).create()
        else:
            assert node.spec is not None
            operator = node.spec.create()
        operator.open(context)
        if restored is not None:
            operator.restore(restored.parts.get((node.uid, index), ()))
        if isinstance(operator, SinkOperator):
            operator.recover(restored.permit if restored is not None else None)()
        return operator
    except Exception as error:
        raise OperatorFailure(node.uid, index, error) from error


def _input_ports(plan: ExecutionPlan, chain: Chain, index: int, channels: _Channels) -> list[InputPort]:
    ports: list[InputPort] = []
    for given in chain.inputs:
        sources = [index] if given.exchange == "forward" else range(plan.parallelism)
        for source_index in sources:
            channel_id = plan.channel_id(chain.chain_id, given.input_index, source_index, index)
            ports.append(InputPort(channels.input(channel_id, source_index, given.schema), given.input_index))
    return ports


def _router(plan: ExecutionPlan, chain: Chain, index: int, channels: _Channels) -> Router:
    edges: list[OutputEdge] = []
    for out in chain.outputs:
        targets = [index] if out.exchange == "forward" else range(plan.parallelism)
        ends = [
            channels.output(plan.channel_id(out.target_chain, out.input_index, index, target), target)
            for target in targets
        ]
        cut = None
        if out.exchange == "hash" and plan.parallelism > 1:
            cut = partial(
                partition_hash,
                columns=out.keys,
                parallelism=plan.parallelism,
                max_parallelism=plan.max_parallelism,
            )
        edges.append(OutputEdge(ends, cut, round_robin=out.exchange == "rebalance"))
    return Router(edges)
