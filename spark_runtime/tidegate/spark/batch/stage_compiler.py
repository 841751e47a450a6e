"""Compiles a batch plan to frames: which stage reads which frame, with as few tasks between them as possible.

Pure: a frame may be a Spark DataFrame or lists of batches; `Frames` implements it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from tidegate.connectors.interface import ReadBySpark
from tidegate.operators.row_specs import UnionSpec
from tidegate.plan.batch_plan import BatchPlan, Stage
from tidegate.plan.job_graph import JobGraph, Node
from tidegate.plan.spark_pushdown import SparkRows
from tidegate.spark.batch.exchange import exchange_schema
from tidegate.spark.batch.stage_task import BroadcastRows, SendTask, StageTask, Task, output_schema

F = TypeVar("F")
Assigned = Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]]
"""Source uid -> subtask -> splits as JSON."""
Made: TypeAlias = dict[tuple[int, str], F]
"""(stage, output) -> its frame."""


class Frames(Protocol[F]):
    """Creates frames of a batch job; every frame has one partition for each subtask."""

    def subtask_indices(self) -> F:
        """Return a frame whose partition i has one row, i, in `INDEX_SCHEMA`."""

    def read_spark(self, graph: JobGraph, source: Node) -> tuple[F, SparkRows]:
        """Return the selected rows of a DataFrame for `graph`, in Spark's own types, and how they arrive."""

    def map(self, frame: F, task: Task, schema: pa.Schema) -> F:
        """Return the result of `task` over every partition. Args: schema: schema of the result."""

    def union(self, frames: Sequence[F]) -> F:
        """Return the rows of all frames, in any order."""

    def exchange(self, frames: Sequence[F], schema: pa.Schema) -> F:
        """Return tagged rows of all frames, each in the partition of its target, sorted. Args: schema: schema of each
        frame.
        """

    def select_output(self, frame: F, number: int, columns: int) -> F:
        """Return the rows of output `number` among several outputs, with its `columns` columns named as on the wire."""

    def cache(self, frame: F) -> F:
        """Return a frame that is computed once, although several readers use it."""

    def broadcast(self, frame: F) -> BroadcastRows:
        """Return all rows for every task; the upstream frames run now."""


def needs_spark_sql(plan: BatchPlan) -> bool:
    """Return whether Spark itself reads or sorts rows. Packs of partial aggregates need not be sorted."""
    return any(stage.gathers == "exchange" and not stage.merges or _reads_spark(plan, stage) for stage in plan.stages)


def compile_batch(plan: BatchPlan, assigned: Assigned, frames: Frames[F]) -> list[F]:
    """Return the frames of the stages with sinks, in order.

    Each row of a frame reports what one subtask of a sink has staged (`REPORT_SCHEMA`).
    """
    made: Made[F] = {}
    ends: list[F] = []
    for stage in plan.stages:
        native = None
        if _reads_spark(plan, stage):
            frame, native = frames.read_spark(plan.graph, plan.graph.nodes[stage.nodes[0]])
        else:
            frame = _gathered(plan, stage, made, frames)
        if not _only_puts_together(plan, stage):
            task = StageTask(
                stage.stage_id,
                splits=_splits(plan, stage, assigned),
                native=native,
                broadcasts={g.input_index: frames.broadcast(made[g.upstream, g.output]) for g in stage.broadcasts},
                sends_to=_only_exchange(plan, stage),
            )
            frame = frames.map(frame, task, output_schema(plan, task))
        if stage.is_sink:
            ends.append(frame)
            continue
        if len(plan.readers(stage.stage_id)) > 1:
            frame = frames.cache(frame)
        for number, (name, schema) in enumerate(stage.outputs):
            several = len(stage.outputs) > 1
            made[stage.stage_id, name] = frames.select_output(frame, number, len(schema)) if several else frame
    return ends


def _gathered(plan: BatchPlan, stage: Stage, made: Made[F], frames: Frames[F]) -> F:
    if stage.gathers in ("splits", "nothing"):
        return frames.subtask_indices()
    found = [made[given.upstream, given.output] for given in stage.inputs]
    if stage.gathers == "rows":
        return found[0] if len(found) == 1 else frames.union(found)
    sent: list[F] = []
    for given, frame in zip(stage.inputs, found, strict=True):
        is_ready = _only_exchange(plan, plan.stages[given.upstream]) is not None
        send = SendTask(given.upstream, (stage.stage_id, given.input_index))
        sent.append(frame if is_ready else frames.map(frame, send, output_schema(plan, send)))
    return frames.exchange(sent, exchange_schema(stage))


def _splits(plan: BatchPlan, stage: Stage, assigned: Assigned) -> Mapping[int, Sequence[Mapping[str, Any]]] | None:
    if stage.gathers != "splits" or _reads_spark(plan, stage):
        return None
    return assigned.get(plan.graph.nodes[stage.nodes[0]].uid, {})


def _reads_spark(plan: BatchPlan, stage: Stage) -> bool:
    return isinstance(plan.graph.nodes[stage.nodes[0]].source, ReadBySpark)


def _only_puts_together(plan: BatchPlan, stage: Stage) -> bool:
    """Return whether the stage is only a union, which needs no task."""
    specs = [plan.graph.nodes[node_id].spec for node_id in stage.nodes]
    return stage.gathers == "rows" and len(specs) == 1 and isinstance(specs[0], UnionSpec)


def _only_exchange(plan: BatchPlan, stage: Stage) -> tuple[int, int] | None:
    """Return stage and input for which the task itself tags the rows: if it is their only reader."""
    if _only_puts_together(plan, stage) or len(stage.outputs) > 1:
        return None
    readers = plan.readers(stage.stage_id)
    if len(readers) != 1:
        return None
    reader, given = readers[0]
    return (reader.stage_id, given.input_index) if given in reader.inputs and reader.gathers == "exchange" else None
