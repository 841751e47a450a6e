"""A batch plan as frames: which stage reads what, with as few tasks between them as can be. Pure: what a frame is, a
Spark DataFrame or lists of batches, is the business of `Frames`."""

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


class Frames(Protocol[F]):
    """Makes frames of a batch job; every frame has one partition for each subtask."""

    def subtask_indices(self) -> F:
        """Partition i has one row, i, in `INDEX_SCHEMA`."""

    def read_spark(self, graph: JobGraph, source: Node) -> tuple[F, SparkRows]:
        """The rows of a DataFrame, in Spark's own types, of those that `graph` asks for; and how they come."""

    def map(self, frame: F, task: Task, schema: pa.Schema) -> F:
        """`task` over every partition. Args: schema: of what it gives."""

    def union(self, frames: Sequence[F]) -> F:
        """The rows of all of them, in any order."""

    def exchange(self, frames: Sequence[F], schema: pa.Schema) -> F:
        """Tagged rows of all of them, each in the partition of its target, sorted. Args: schema: of each."""

    def select_output(self, frame: F, number: int, columns: int) -> F:
        """Of rows of several outputs those of output `number`, with its so many columns named as they travel."""

    def cache(self, frame: F) -> F:
        """The frame, made once though several read it."""

    def broadcast(self, frame: F) -> BroadcastRows:
        """All rows, in every task; those in front of it run now."""


Made: TypeAlias = dict[tuple[int, str], F]
"""(stage, output) -> its frame."""


def compile_batch(plan: BatchPlan, assigned: Assigned, frames: Frames[F]) -> list[F]:
    """The frames of the stages with sinks, in order: each row of each tells what one subtask of a sink has staged
    (`REPORT_SCHEMA`)."""
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
    """A union and nothing else: no task."""
    specs = [plan.graph.nodes[node_id].spec for node_id in stage.nodes]
    return stage.gathers == "rows" and len(specs) == 1 and isinstance(specs[0], UnionSpec)


def _only_exchange(plan: BatchPlan, stage: Stage) -> tuple[int, int] | None:
    """Stage and input that the rows are made ready for at once: when nobody else reads them."""
    if _only_puts_together(plan, stage) or len(stage.outputs) > 1:
        return None
    readers = plan.readers(stage.stage_id)
    if len(readers) != 1:
        return None
    reader, given = readers[0]
    return (reader.stage_id, given.input_index) if given in reader.inputs and reader.gathers == "exchange" else None
