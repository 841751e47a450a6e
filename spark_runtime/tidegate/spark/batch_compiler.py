"""A batch plan as frames: which stage reads what, with as few tasks between them as can be. Pure: what a frame is, a
Spark DataFrame or lists of batches, is the business of `Frames`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from tidegate.connectors.spark_source import SparkSource
from tidegate.operators.specs import UnionSpec
from tidegate.plan.batch import BatchPlan, Stage
from tidegate.spark.batch_task import BroadcastRows, SendTask, StageTask, Task, output_schema

F = TypeVar("F")
Assigned = Mapping[str, Mapping[int, Sequence[Mapping[str, Any]]]]
"""Source uid -> subtask -> splits as JSON."""


class Frames(Protocol[F]):
    """Makes frames of a batch job; every frame has one partition for each subtask."""

    def indices(self) -> F:
        """Partition i has one row, i, in `INDEX_SCHEMA`."""

    def native(self, source: SparkSource) -> F:
        """The rows of a DataFrame, in Spark's own types."""

    def mapped(self, frame: F, task: Task, schema: pa.Schema) -> F:
        """`task` over every partition. Args: schema: of what it gives."""

    def together(self, frames: Sequence[F]) -> F:
        """The rows of all of them, in any order."""

    def exchanged(self, frames: Sequence[F], schema: pa.Schema) -> F:
        """Tagged rows of all of them, each in the partition of its target, sorted. Args: schema: of each."""

    def kept(self, frame: F) -> F:
        """The frame, made once though several read it."""

    def everywhere(self, frame: F) -> BroadcastRows:
        """All rows, in every task; those in front of it run now."""


def compile_batch(plan: BatchPlan, assigned: Assigned, frames: Frames[F]) -> list[F]:
    """The frames of the stages with sinks, in order: each row of each tells what one subtask of a sink has staged
    (`TOLD_SCHEMA`)."""
    made: dict[int, F] = {}
    ends: list[F] = []
    for stage in plan.stages:
        if _only_puts_together(plan, stage):
            frame = _gathered(plan, stage, made, frames)
            made[stage.stage_id] = frames.kept(frame) if len(plan.readers(stage.stage_id)) > 1 else frame
            continue
        task = StageTask(
            stage.stage_id,
            splits=_splits(plan, stage, assigned),
            native=_reads_spark(plan, stage),
            broadcasts={given.input_index: frames.everywhere(made[given.upstream]) for given in stage.broadcasts},
            sends_to=_only_exchange(plan, stage),
        )
        frame = frames.mapped(_gathered(plan, stage, made, frames), task, output_schema(plan, task))
        if stage.is_sink:
            ends.append(frame)
        else:
            made[stage.stage_id] = frames.kept(frame) if len(plan.readers(stage.stage_id)) > 1 else frame
    return ends


def _gathered(plan: BatchPlan, stage: Stage, made: Mapping[int, F], frames: Frames[F]) -> F:
    if stage.gathers == "splits":
        source = plan.graph.nodes[stage.nodes[0]].source
        return frames.native(source) if isinstance(source, SparkSource) else frames.indices()
    if stage.gathers == "nothing":
        return frames.indices()
    if stage.gathers == "rows":
        found = [made[given.upstream] for given in stage.inputs]
        return found[0] if len(found) == 1 else frames.together(found)
    sent: list[F] = []
    schema = None
    for given in stage.inputs:
        frame = made[given.upstream]
        send = SendTask(given.upstream, (stage.stage_id, given.input_index))
        schema = output_schema(plan, send)
        if _only_exchange(plan, plan.stages[given.upstream]) is None:
            frame = frames.mapped(frame, send, schema)
        sent.append(frame)
    assert schema is not None, "an exchange has inputs"
    return frames.exchanged(sent, schema)


def _splits(plan: BatchPlan, stage: Stage, assigned: Assigned) -> Mapping[int, Sequence[Mapping[str, Any]]] | None:
    if stage.gathers != "splits" or _reads_spark(plan, stage):
        return None
    return assigned.get(plan.graph.nodes[stage.nodes[0]].uid, {})


def _reads_spark(plan: BatchPlan, stage: Stage) -> bool:
    return isinstance(plan.graph.nodes[stage.nodes[0]].source, SparkSource)


def _only_puts_together(plan: BatchPlan, stage: Stage) -> bool:
    """A union and nothing else: no task."""
    specs = [plan.graph.nodes[node_id].spec for node_id in stage.nodes]
    return stage.gathers == "rows" and len(specs) == 1 and isinstance(specs[0], UnionSpec)


def _only_exchange(plan: BatchPlan, stage: Stage) -> tuple[int, int] | None:
    """Stage and input that the rows are made ready for at once: when nobody else reads them."""
    if _only_puts_together(plan, stage):
        return None
    readers = plan.readers(stage.stage_id)
    if len(readers) != 1:
        return None
    reader, given = readers[0]
    return (reader.stage_id, given.input_index) if given in reader.inputs and reader.gathers == "exchange" else None
