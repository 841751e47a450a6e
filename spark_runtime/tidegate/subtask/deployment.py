"""Create the subtasks of one slot from an ExecutionPlan and a deployment message."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from tidegate.channel.column_blocks import block_layout
from tidegate.channel.elements import Element, Watermark
from tidegate.channel.memory import MemoryChannel
from tidegate.channel.ports import InputChannel, OutputChannel
from tidegate.connectors.interface import SourceContext
from tidegate.connectors.sink_operator import SinkOperator
from tidegate.connectors.split_documents import split_from_json, splits_from_parts
from tidegate.jobs.options import ProcessingTimeOnEnd, StateBackend
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.processes.process_specs import KeyedProcessSpec, ProcessSpec
from tidegate.operators.stream_operator import MERGED_BYTES, OperatorContext, StartRequests, StreamOperator
from tidegate.operators.time.watermark_specs import WatermarkSpec
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.plan.execution_plan import Chain, ChainInput, ChainOutput, ExecutionPlan
from tidegate.plan.job_graph import Node
from tidegate.plan.partial_aggregation import pre_aggregated_windows
from tidegate.snapshot.channel_state import Cut, InFlightElement, ReplayInput, replay_elements
from tidegate.snapshot.partial_rows import is_partial
from tidegate.state.keys.key_hash import hash_targets, partition_hash
from tidegate.subtask.alignment import AlignmentMode
from tidegate.subtask.chain import OperatorChain, OperatorFailure
from tidegate.subtask.partitioner import partition_batch
from tidegate.subtask.router import OutputEdge, PreAggregate, Router
from tidegate.subtask.scatter import Scatter
from tidegate.subtask.snapshots.restored_state import RestoredState
from tidegate.subtask.source import ExhaustedReader, SourceInput, SourceSignal
from tidegate.subtask.subtask import InputPort, Subtask, SubtaskHost

GATHERED_PART_BYTES = 4 * MERGED_BYTES
"""Parts for a channel are gathered up to this size: 16 polls of 64k rows of 24 bytes, with 32 slots.

With half of it and half of `GATHERED_POLLS`, such a job took 15 % more CPU for more messages.
"""

REPLAYABLE_KINDS = ("hash", "rebalance")
"""Exchanges whose in-flight records may become state.

At another parallelism, replayed records of a forward exchange would lose their order per key, and copies of a broadcast
exchange would differ. A user's partitioner might send a replayed record to two subtasks or to none. Subtasks with such
an input always align (S3.7).
"""


class Transport(Protocol):
    """Channels to and from other slots."""

    def open_input(self, channel_id: int, schema: pa.Schema) -> InputChannel:
        """Return the receiving end of `channel_id`."""

    def open_output(self, channel_id: int, target_slot: int) -> OutputChannel:
        """Return the sending end of `channel_id`."""


@dataclass(frozen=True)
class Deployment:
    """One run of the job as a slot sees it.

    Attributes:
        indices: subtask indices that this slot hosts (on Spark one: the slot's number).
        splits: source uid -> index -> split documents, for sources whose splits are assigned at the start of this run:
            all sources after a fresh start or a rescale, else those that the snapshot does not know.
        unaligned_after_ms: time from the first barrier of a checkpoint until it overtakes queued records; None: never
            (S3.7).
        processing_time_on_end: what happens to open processing-time windows when the input ends (S7.6).
        gated: nothing is committed without an approval (S7.8).
        state_backend: backend of keyed state (S5.2).
        state_memory_bytes: memory for the keyed state of all operators together, if the backend can also store it on
            disk.
        requests: how `map_async` sends its requests; None: on threads.
        gathered_part_bytes: see `OutputEdge.gathered_bytes`, for each channel; 0: nothing is gathered.
        sink_storage: see `SinkContext.storage`.
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
    restored: RestoredState | None = None
    idle_after_ms: int | None = None
    scratch: str = ""
    unaligned_after_ms: int | None = None
    processing_time_on_end: ProcessingTimeOnEnd = "fire"
    gated: bool = False
    state_backend: StateBackend = "heap"
    state_memory_bytes: int = 256 * 2**20
    requests: StartRequests | None = None
    gathered_part_bytes: int = GATHERED_PART_BYTES
    sink_storage: tuple[str, Mapping[str, Any]] | None = None

    @property
    def most_part_bytes(self) -> int:
        """Bytes of gathered parts for one channel. A barrier overtakes no batch that an operator has begun (S3.7), so
        that batches are not larger than merged ones if barriers overtake."""
        return (
            self.gathered_part_bytes if self.unaligned_after_ms is None else min(self.gathered_part_bytes, MERGED_BYTES)
        )

    @property
    def overdraft_bytes(self) -> int:
        """Bytes by which an emission may exceed a channel's capacity for an unaligned barrier: the same amount."""
        return 0 if self.unaligned_after_ms is None else self.channel_capacity_bytes


@dataclass
class _Channels:
    """Channels of one slot: deques if both ends are in this slot, else the transport."""

    deployment: Deployment
    transport: Transport | None
    local: dict[int, MemoryChannel] = field(default_factory=dict)

    def _memory(self, channel_id: int) -> MemoryChannel:
        if channel_id not in self.local:
            self.local[channel_id] = MemoryChannel(
                self.deployment.channel_capacity_bytes, self.deployment.overdraft_bytes
            )
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
    plan: ExecutionPlan,
    deployment: Deployment,
    host: SubtaskHost,
    transport: Transport | None,
) -> list[Subtask]:
    """Open, restore and recover every subtask of this slot, downstream ones first.

    May block: it reads state and commits permitted transactions.

    Raises:
        SnapshotError: in-flight records do not fit the pipeline. Raised before anything is opened or committed.
        OperatorFailure: an operator or a source failed.
    """
    channels = _Channels(deployment, transport)
    if deployment.restored is not None:
        host.restored_files(deployment.restored.files)
    places = [(chain, index) for chain in reversed(plan.chains) for index in deployment.indices]
    in_flight = [_in_flight(plan, chain, index, deployment.restored) for chain, index in places]
    return [
        _deploy_subtask(plan, chain, index, deployment, host, channels, replay)
        for (chain, index), replay in zip(places, in_flight, strict=True)
    ]


def _deploy_subtask(
    plan: ExecutionPlan,
    chain: Chain,
    index: int,
    deployment: Deployment,
    host: SubtaskHost,
    channels: _Channels,
    replay: Sequence[InFlightElement],
) -> Subtask:
    graph, restored = plan.graph, deployment.restored
    finished = restored is not None and (chain.chain_id, index) in restored.finished
    nodes = [graph.nodes[n] for n in chain.nodes]
    operators: list[StreamOperator] = []
    uids: list[str] = []
    contexts: list[OperatorContext] = []
    columns: list[tuple[str, ...] | None] = []
    for node in nodes:
        # A finished operator runs no user code (S6.2). Sinks are still opened, because they commit what is permitted.
        if node.source is not None or (finished and node.sink is None):
            continue
        context = _context(plan, node, index, deployment, host)
        operators.append(_open_operator(node, bool(graph.consumers(node.node_id)), index, context, restored))
        contexts.append(context)
        uids.append(node.uid)
        # The head's columns were selected where its channels begin.
        columns.append(None if node is nodes[0] else node.inputs[0].columns)
    source = None
    if nodes[0].source is not None:
        signal = SourceSignal(host.wake)
        place = _source_context(plan, nodes[0], index, deployment, signal)
        reader = ExhaustedReader() if finished else nodes[0].source.create_reader(place)
        group = next((n.spec.group for n in nodes if isinstance(n.spec, WatermarkSpec) and n.spec.group), None)
        read = graph.side_outputs_read(nodes[0].node_id)
        discovers = not finished and nodes[0].source.continuous_discovery() is not None
        source = SourceInput(
            nodes[0].uid,
            reader,
            contexts,
            index,
            deployment.idle_after_ms,
            group,
            read,
            signal,
            (lambda held: host.splits_held((chain.chain_id, index), *held)) if discovers else None,
        )
        if not finished:
            source.start(_splits(nodes[0].uid, index, deployment))
    router = _router(plan, chain, index, channels)
    if source is not None:
        router.announce_split(source.turn)
    head = nodes[0].spec
    timeless = head.timeless_inputs if isinstance(head, KeyedProcessSpec | ProcessSpec) else ()
    ports = _input_ports(plan, chain, index, channels, timeless)
    never_overtaken = any(given.exchange not in REPLAYABLE_KINDS for given in chain.inputs)
    return Subtask(
        (chain.chain_id, index),
        OperatorChain(operators, uids, index, columns),
        uids,
        ports,
        router,
        host,
        source=source,
        mode=deployment.mode,
        wait_for_final=deployment.wait_for_final,
        restored_finished=finished,
        unaligned_after_ms=None if never_overtaken else deployment.unaligned_after_ms,
        parallelism=plan.parallelism,
        replay=_by_port(replay, ports),
    )


def _source_context(
    plan: ExecutionPlan, node: Node, index: int, deployment: Deployment, signal: SourceSignal
) -> SourceContext:
    return SourceContext(
        node.uid,
        index,
        plan.parallelism,
        signal,
        deployment.job_id,
        deployment.lineage,
        deployment.generation,
        deployment.run_id,
    )


def _splits(uid: str, index: int, deployment: Deployment) -> list[Any]:
    if deployment.restored is not None and uid not in deployment.splits:
        return splits_from_parts(deployment.restored.parts.get((uid, index), ()))
    return [split_from_json(document) for document in deployment.splits.get(uid, {}).get(index, ())]


def _context(plan: ExecutionPlan, node: Node, index: int, deployment: Deployment, host: SubtaskHost) -> OperatorContext:
    graph = plan.graph
    scratch = os.path.join(deployment.scratch, f"n{node.node_id}-{index}") if deployment.scratch else ""
    if scratch:
        os.makedirs(scratch, exist_ok=True)
    specs = [other.spec for other in graph.nodes if other.spec is not None]
    # max: a graph without keyed state must not divide by zero below.
    back_ends = max(1, sum(spec.uses_backend(deployment.state_backend) for spec in specs))
    return OperatorContext(
        job_id=deployment.job_id,
        lineage=deployment.lineage,
        uid=node.uid,
        subtask=index,
        parallelism=plan.parallelism,
        max_parallelism=plan.max_parallelism,
        generation=deployment.generation,
        run_id=deployment.run_id,
        input_schemas=tuple(graph.edge_schema(edge) for edge in node.inputs),
        processing_time_ms=host.now_ms,
        side_outputs=graph.side_outputs_read(node.node_id),
        wake=host.wake,
        requests=deployment.requests,
        scratch=scratch,
        processing_time_on_end=deployment.processing_time_on_end,
        drained=deployment.restored is not None and node.uid in deployment.restored.drained,
        after_drain=deployment.restored is not None and deployment.restored.after_drain,
        gated=deployment.gated,
        state_backend=deployment.state_backend,
        state_memory_bytes=deployment.state_memory_bytes // (back_ends * len(deployment.indices)),
        storage=deployment.sink_storage,
    )


def _open_operator(
    node: Node, is_read: bool, index: int, context: OperatorContext, restored: RestoredState | None
) -> StreamOperator:
    try:
        operator: StreamOperator
        if node.sink is not None:
            operator = SinkOperator(node.sink, passes_on=is_read)
        else:
            assert node.spec is not None
            operator = create_operator(node.spec)
        operator.open(context)
        if restored is not None:
            parts = restored.parts.get((node.uid, index), ())
            # Channel state is not the operator's: the subtask replays it through its inputs (S3.7).
            operator.restore([part for part in parts if part.kind != "channel"])
        if isinstance(operator, SinkOperator):
            _quarantine_for(operator, restored)  # before `recover`, which deletes unknown staged output
            operator.recover(restored.permit if restored is not None else None)()
        return operator
    except Exception as error:
        raise OperatorFailure(node.uid, index, error) from error


def _quarantine_for(operator: SinkOperator, restored: RestoredState | None) -> None:
    """Move the snapshot's output that a verdict has withheld since.

    Not in a fork: its original owns the transactions.
    """
    if restored is None or restored.permit is None or restored.quarantine is None:
        return
    for withheld in restored.withheld:
        work = operator.quarantine(withheld, restored.quarantine)
        if work is not None:
            work()


def _input_ports(
    plan: ExecutionPlan, chain: Chain, index: int, channels: _Channels, timeless: Collection[int]
) -> list[InputPort]:
    ports: list[InputPort] = []
    for given in chain.inputs:
        sources = [index] if given.exchange == "forward" else range(plan.parallelism)
        for source_index in sources:
            channel_id = plan.channel_id(chain.chain_id, given.input_index, source_index, index)
            channel = channels.input(channel_id, source_index, given.schema)
            brings_no_time = given.input_index in timeless
            ports.append(InputPort(channel, given.input_index, source=source_index, timeless=brings_no_time))
    return ports


def _in_flight(plan: ExecutionPlan, chain: Chain, index: int, restored: RestoredState | None) -> list[InFlightElement]:
    """Return the elements that were in flight to this subtask when the snapshot was taken (S3.7)."""
    if restored is None:
        return []
    head = plan.graph.nodes[chain.nodes[0]]
    windows = pre_aggregated_windows(plan.graph, head)
    inputs = {
        given.input_index: ReplayInput(
            given.schema,
            _cut(plan, given, windows),
            given.exchange in REPLAYABLE_KINDS,
            None if windows is None else windows.partial_schema,
            {} if windows is None else dict(windows.renamed),
            head.uid,
        )
        for given in chain.inputs
    }
    replay: list[InFlightElement] = []
    for position, node_id in enumerate(chain.nodes):
        uid = plan.graph.nodes[node_id].uid
        parts = restored.parts.get((uid, index), ())
        mine = inputs if position == 0 else {}
        replay += replay_elements(parts, mine, index, plan.parallelism, where=f"operator {uid!r}, subtask {index}")
    return replay


def _by_port(replay: Sequence[InFlightElement], ports: Sequence[InputPort]) -> list[tuple[int, Element]]:
    number = {(port.input_index, port.source): n for n, port in enumerate(ports)}
    return [
        (number[(e.input_index, e.source)], Watermark(e.element) if isinstance(e.element, int) else e.element)
        for e in replay
    ]


def _cut(plan: ExecutionPlan, edge: ChainInput | ChainOutput, windows: WindowAggSpec | None) -> Cut | None:
    """Return the function that partitions records of a hash edge, or None for one subtask or other edges.

    Args:
        windows: spec of the windows that read the records, if some of them may be partial rows.
    """
    if edge.exchange != "hash" or plan.parallelism == 1:
        return None
    cut = partial(partition_hash, columns=edge.keys, parallelism=plan.parallelism, max_parallelism=plan.max_parallelism)
    if windows is None:
        return cut
    partial_cut = partial(cut, columns=windows.partial_keys)
    return lambda batch: partial_cut(batch) if is_partial(batch.schema) else cut(batch)


def _scatter(
    plan: ExecutionPlan, edge: ChainOutput, deployment: Deployment, channels: Sequence[OutputChannel]
) -> Scatter | None:
    """Return what writes rows of a hash edge straight to their subtasks; None: its rows are cut into batches."""
    if edge.exchange != "hash" or edge.partitioner is not None or plan.parallelism == 1:
        return None
    layout = block_layout(plan.chains[edge.target_chain].inputs[edge.input_index].schema)
    if layout is None or not deployment.gathered_part_bytes:
        return None
    return Scatter(
        partial(hash_targets, columns=edge.keys, parallelism=plan.parallelism, max_parallelism=plan.max_parallelism),
        layout,
        channels,
    )


def _pre_aggregate(windows: WindowAggSpec | None, cut: Cut | None) -> PreAggregate | None:
    """Return what aggregates batches before an exchange to `windows`; None: nothing does."""
    if windows is None or cut is None:
        return None
    # Not imported by slots without such windows, so that they start sooner.
    from tidegate.operators.windows.pre_aggregation import WindowPreAggregate

    return WindowPreAggregate(windows)


def _announces_splits(plan: ExecutionPlan, out: ChainOutput) -> bool:
    """Return whether an operator downstream creates watermarks per split.

    It must receive all its input through forward edges from a single source.
    """
    target = plan.chains[out.target_chain]
    if out.exchange != "forward" or len(target.inputs) > 1:
        return False
    makes_watermarks = any(isinstance(plan.graph.nodes[n].spec, WatermarkSpec) for n in target.nodes)
    return makes_watermarks or any(_announces_splits(plan, further) for further in target.outputs)


def _can_be_joined(data_type: pa.DataType) -> bool:
    """Return whether Arrow concatenates columns of the type, whatever their values: not so for dictionaries, whose
    values together may be too many for the type of their indices."""
    if pa.types.is_dictionary(data_type) or pa.types.is_run_end_encoded(data_type):
        return False
    return all(_can_be_joined(data_type.field(i).type) for i in range(data_type.num_fields))


def _router(plan: ExecutionPlan, chain: Chain, index: int, channels: _Channels) -> Router:
    edges: list[OutputEdge] = []
    for out in chain.outputs:
        targets = [index] if out.exchange == "forward" else range(plan.parallelism)
        ends = [
            channels.output(plan.channel_id(out.target_chain, out.input_index, index, target), target)
            for target in targets
        ]
        reader = plan.graph.nodes[plan.chains[out.target_chain].nodes[0]]
        windows = pre_aggregated_windows(plan.graph, reader)
        cut = _cut(plan, out, windows)
        pre_aggregate = _pre_aggregate(windows, cut)
        if out.partitioner is not None:
            cut = partition_batch(out.partitioner, plan.parallelism, reader.uid, index)
        in_turn, tells_splits = out.exchange == "rebalance", _announces_splits(plan, out)
        part_bytes, capacity_bytes = 0, channels.deployment.channel_capacity_bytes
        target = plan.chains[out.target_chain].inputs[out.input_index]
        if cut is not None and all(_can_be_joined(field.type) for field in target.schema):
            part_bytes = min(channels.deployment.most_part_bytes, capacity_bytes)
        edges.append(
            OutputEdge(
                ends,
                cut,
                in_turn,
                out.output,
                index % len(ends),
                tells_splits,
                out.columns,
                gathered_bytes=part_bytes * len(ends),
                channel_bytes=capacity_bytes,
                pre_aggregate=pre_aggregate,
                scatter=_scatter(plan, out, channels.deployment, ends),
            )
        )
    return Router(edges)
