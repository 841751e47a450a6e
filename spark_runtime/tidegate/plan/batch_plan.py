"""Divides a JobGraph into stages of a batch job, and plans how each stage receives its rows (S8.1). Pure.

A stage is a chain of the execution plan. Sinks are always the end of a stage. An operator that reads from a sink reads
the sink's input instead, because a batch job never emits records before others are written.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

from tidegate.connectors.interface import ReadBySpark
from tidegate.errors import PipelineError
from tidegate.operators.async_specs import AsyncMapSpec
from tidegate.operators.row_specs import UnionSpec
from tidegate.operators.stream_operator import MAIN_OUTPUT
from tidegate.operators.time.watermark_specs import TimeUnit
from tidegate.plan.batch_columns import with_used_columns
from tidegate.plan.execution_plan import Chain, make_execution_plan
from tidegate.plan.job_graph import Edge, Exchange, JobGraph, Node, Partitioner
from tidegate.plan.partial_aggregation import merges_partial_rows, pane_column, with_partial_aggregates

Gathering = Literal["splits", "nothing", "rows", "exchange"]
"""How a stage receives its rows. "splits": it reads a source. "nothing": it has only broadcast inputs. "rows": it
continues with the rows of one stage, or of several with one schema. "exchange": rows are sent to their subtask and
sorted.
"""


@dataclass(frozen=True)
class StageInput:
    """One input of a stage's head.

    Attributes:
        input_index: position among the head's inputs.
        upstream: id of the stage that it reads.
        exchange: how records choose their subtask.
        keys: key columns for `hash`.
        schema: of the records.
        event_time: (column, unit) of the records; None: they have none.
        output: output of the upstream stage that it reads.
        partitioner: for `custom`.
    """

    input_index: int
    upstream: int
    exchange: Exchange
    keys: tuple[str, ...]
    schema: pa.Schema
    event_time: tuple[str, TimeUnit] | None
    output: str = MAIN_OUTPUT
    partitioner: Partitioner | None = None


@dataclass(frozen=True)
class Stage:
    """Operators that run in one task for each subtask.

    Attributes:
        stage_id: position in `BatchPlan.stages`, topological.
        nodes: ids, head first.
        gathers: how it receives its rows.
        inputs: inputs with rows, in input order.
        broadcasts: inputs that every subtask receives in full, before the first row.
        by_key: all state is by key, so the head may process some keys, end, and start again with the next ones.
        outputs: (name, schema) of the tail's outputs that something reads, the main one first (for a sink: its input).
        is_sink: its tail is a sink.
        is_ordered: every run emits its rows in the same order.
        merges: its head merges rows of partial aggregates, in any order.
        pane: if it merges: column with the start of the pane, if the results of a pane need no rows of other
            panes. So the head may process some panes, end, and start again with the next ones.
    """

    stage_id: int
    nodes: tuple[int, ...]
    gathers: Gathering
    inputs: tuple[StageInput, ...]
    broadcasts: tuple[StageInput, ...]
    by_key: bool
    outputs: tuple[tuple[str, pa.Schema], ...]
    is_sink: bool
    is_ordered: bool = True
    merges: bool = False
    pane: str | None = None

    @property
    def schema(self) -> pa.Schema:
        """Return the schema of the main output."""
        return self.outputs[0][1]


@dataclass(frozen=True)
class BatchPlan:
    """Stages in topological order; `stages[i].stage_id == i`.

    Attributes:
        graph: the graph that runs: nothing reads from a sink, partial aggregates are added, and columns that nothing
            reads are left out.
        parallelism: subtasks, and Spark partitions, of every stage.
        max_parallelism: key groups (S5.1).
        stages: the stages.
        digest: of this graph; see `ExecutionPlan.digest`.
    """

    graph: JobGraph
    parallelism: int
    max_parallelism: int
    stages: tuple[Stage, ...]
    digest: str

    def readers(self, stage_id: int) -> tuple[tuple[Stage, StageInput], ...]:
        """Return the stages that read a stage, with the input that reads it."""
        return tuple(
            (stage, given)
            for stage in self.stages
            for given in (*stage.inputs, *stage.broadcasts)
            if given.upstream == stage_id
        )


def plan_batch(
    graph: JobGraph, parallelism: int, max_parallelism: int, *, allow_mode_dependent: bool = False
) -> BatchPlan:
    """Plan the stages of a graph. Deterministic.

    Raises:
        PipelineError: an input is unbounded, or an operator depends on the execution mode and this is not allowed;
            names them.
        OptionError: not 1 <= parallelism <= max_parallelism.
    """
    _refuse_unbounded(graph)
    if not allow_mode_dependent:
        _refuse_mode_dependent(graph)
    runs = with_used_columns(with_partial_aggregates(with_sinks_last(graph)))
    execution = make_execution_plan(runs, parallelism, max_parallelism, prunes=False)
    stages: list[Stage] = []
    for chain in execution.chains:
        stage = _stage(runs, chain)
        given = (*stage.inputs, *stage.broadcasts)
        ordered = _keeps_order(runs, stage) and all(stages[one.upstream].is_ordered for one in given)
        stages.append(replace(stage, is_ordered=ordered))
    return BatchPlan(runs, parallelism, max_parallelism, tuple(stages), execution.digest)


def with_sinks_last(graph: JobGraph) -> JobGraph:
    """Return the graph with every edge out of a sink moved to the sink's input."""

    def behind(edge: Edge) -> Edge:
        upstream = edge.upstream
        while graph.nodes[upstream].sink is not None:
            upstream = graph.nodes[upstream].inputs[0].upstream
        return replace(edge, upstream=upstream)

    return JobGraph(tuple(replace(node, inputs=tuple(map(behind, node.inputs))) for node in graph.nodes))


def _stage(graph: JobGraph, chain: Chain) -> Stage:
    head = graph.nodes[chain.nodes[0]]
    inputs: list[StageInput] = []
    broadcasts: list[StageInput] = []
    for given, edge in zip(chain.inputs, head.inputs, strict=True):
        found = StageInput(
            given.input_index,
            given.upstream_chain,
            given.exchange,
            given.keys,
            given.schema,
            graph.nodes[edge.upstream].event_time if edge.output == MAIN_OUTPUT else None,
            edge.output,
            edge.partitioner,
        )
        (broadcasts if given.exchange == "broadcast" else inputs).append(found)
    gathers = _gather_kind(head, inputs)
    keyed = all(given.exchange == "hash" and given.keys for given in inputs)
    cuts_by_key = head.spec is not None and head.spec.groups_by_key
    by_key = gathers == "exchange" and not broadcasts and keyed and cuts_by_key
    tail = graph.nodes[chain.nodes[-1]]
    read = graph.side_outputs_read(tail.node_id)
    sides = tuple((name, schema) for name, schema in tail.side_outputs if name in read)
    outputs = ((MAIN_OUTPUT, chain.schema), *sides)
    merges = by_key and merges_partial_rows(head.spec)
    return Stage(
        chain.chain_id,
        chain.nodes,
        gathers,
        tuple(inputs),
        tuple(broadcasts),
        by_key,
        outputs,
        chain.is_sink,
        merges=merges,
        pane=pane_column(head.spec) if merges else None,
    )


def _keeps_order(graph: JobGraph, stage: Stage) -> bool:
    """Return whether rows keep their order: not with a DataFrame, which Spark reads in any order, or unordered
    answers."""
    nodes = [graph.nodes[node_id] for node_id in stage.nodes]
    as_they_come = any(isinstance(node.spec, AsyncMapSpec) and not node.spec.ordered for node in nodes)
    return not as_they_come and not any(isinstance(node.source, ReadBySpark) for node in nodes)


def _gather_kind(head: Node, inputs: list[StageInput]) -> Gathering:
    if head.source is not None:
        return "splits"
    if not inputs:
        return "nothing"
    forward = all(given.exchange == "forward" for given in inputs)
    return "rows" if forward and (len(inputs) == 1 or isinstance(head.spec, UnionSpec)) else "exchange"


def _refuse_unbounded(graph: JobGraph) -> None:
    endless = [node for node in graph.nodes if node.source is not None and node.source.boundedness == "unbounded"]
    if endless:
        raise PipelineError(
            "batch mode reads only bounded sources",
            where=", ".join(f"source {node.uid!r} at {node.location}" for node in endless),
            cause="the source never ends",
            remedy="Limit the source, for example DataGen(rows=...), or run with execution_mode=streaming",
        )


def _refuse_mode_dependent(graph: JobGraph) -> None:
    found = [(node, node.spec.mode_dependence()) for node in graph.nodes if node.spec is not None]
    dependent = [(node, why) for node, why in found if why]
    if dependent:
        raise PipelineError(
            "some operators may emit other rows in batch mode than in streaming mode",
            where="; ".join(f"{node.kind} {node.uid!r} at {node.location}" for node, _ in dependent),
            cause="; ".join(f"{node.uid!r}: {why}" for node, why in dependent),
            remedy="Read docs/modes.md. To run these operators anyway, set allow_mode_dependent=true",
        )
