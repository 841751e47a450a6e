"""Tasks of a batch stage: the work of one subtask from incoming to outgoing batches."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.clock import steady_clock
from tidegate.connectors.interface import Source, SourceContext
from tidegate.connectors.sink_operator import SinkOperator
from tidegate.connectors.spark.materialised_splits import as_declared
from tidegate.connectors.split_documents import split_from_json
from tidegate.errors import PipelineError
from tidegate.jobs.options import JobOptions
from tidegate.operators.async_specs import AsyncMapSpec
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.stream_operator import MAIN_OUTPUT, OperatorContext, SideOutput, StreamOperator
from tidegate.plan.batch_plan import BatchPlan, Stage, StageInput
from tidegate.plan.job_graph import Node
from tidegate.plan.spark_pushdown import SparkRows
from tidegate.snapshot.handles import StateHandle
from tidegate.snapshot.parts import StatePart
from tidegate.spark.batch.exchange import SortedBlock, SortedBlocks, exchange_schema
from tidegate.spark.batch.packs import PackedBlocks, gather
from tidegate.spark.batch.stage_operators import BLOCK_ROWS, Emitted, StageChain, run_exchanged, run_rows
from tidegate.spark.batch.wire_rows import from_wire, to_wire, wire_schema
from tidegate.subtask.chain import OperatorFailure

REPORT_SCHEMA = pa.schema([("report", pa.string())])
"""Output of a stage with a sink: one JSON document per subtask, see `_Subtask.report`."""
INDEX_SCHEMA = pa.schema([("id", pa.int64())])
"""Input of a stage without rows of its own: the number of its subtask."""
OUTPUT = "output"
"""Column with the number of the stage's output of a row, if several outputs are read."""
POLL_PAUSE_S = 0.05
"""Seconds between two polls of a source that has no rows now; a paced source returns when it has rows."""


Counters: TypeAlias = Mapping[str, Mapping[str, int]]
"""Uid -> name -> number."""


def known_uid(node: Node) -> str:
    """Return the uid under which users know a node of a batch plan."""
    return (node.spec.part_of if node.spec is not None else "") or node.uid


def sum_counters(counted: Iterable[Counters]) -> dict[str, dict[str, int]]:
    """Return the sums of counters of several subtasks: uid -> name -> number."""
    found: dict[str, dict[str, int]] = {}
    for counters in counted:
        for uid, counts in counters.items():
            mine = found.setdefault(uid, {})
            for name, n in counts.items():
                mine[name] = mine.get(name, 0) + n
    return found


class BroadcastRows(Protocol):
    """All rows of a broadcast input, in every task."""

    def batches(self) -> Iterable[pa.RecordBatch]:
        """Yield the rows, as on the wire."""


@dataclass(frozen=True)
class BatchJob:
    """Facts about the job for its tasks.

    Attributes:
        plan: the stages.
        options: options of the job.
        job_id, lineage, generation: ids of the submission and its generation.
        run_id: id of the attempt and task: of two tasks, the later has the greater one in text order.
        checkpoint_id: checkpoint whose completion permits the commit; claimed.
        now_ms: the time at which the run began, milliseconds since the epoch.
        store_state: writes a sink's state to the checkpoint: (uid, subtask, parts) -> handle.
        store_counters: stores the counters of the operators of a stage without a sink, under a name of the subtask; a
            rerun task stores the same.
        scratch: private writable directory on local disk; "": there is none.
        staging: URL and storage options of the checkpoint's folder; None: sinks have no place there.
        sink_storage: see `SinkContext.storage`.
    """

    plan: BatchPlan
    options: JobOptions
    job_id: str
    lineage: str
    generation: int
    run_id: str
    checkpoint_id: int
    now_ms: int
    store_state: Callable[[str, int, Sequence[StatePart]], StateHandle]
    scratch: str = ""
    staging: tuple[str, Mapping[str, Any]] | None = None
    sink_storage: tuple[str, Mapping[str, Any]] | None = None
    store_counters: Callable[[str, Counters], None] = lambda _, __: None


@dataclass(frozen=True)
class StageTask:
    """A stage as a task for each subtask; small, and without the user's code.

    Attributes:
        stage_id: number of the stage.
        splits: splits of its source, by subtask, as JSON; None: it reads no splits.
        native: rows of a Spark DataFrame arrive, in this form.
        broadcasts: broadcast rows, by input of the head.
        sends_to: stage and input for which rows are tagged; None: rows are not tagged.
    """

    stage_id: int
    splits: Mapping[int, Sequence[Mapping[str, Any]]] | None = None
    native: SparkRows | None = None
    broadcasts: Mapping[int, BroadcastRows] = field(default_factory=dict)
    sends_to: tuple[int, int] | None = None

    def run(self, job: BatchJob, index: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one subtask.

        Args:
            batches: input as the stage gathers it: numbers of subtasks, rows as on the wire, or tagged and sorted rows.

        Raises:
            OperatorFailure: an operator or a source failed.
        """
        stage = job.plan.stages[self.stage_id]
        subtask = _Subtask(job, stage, index)
        try:
            results = subtask.results(self, batches)
            if stage.is_sink:
                for _ in results:
                    pass
                yield subtask.report()
            else:
                yield from _as_sent(job, stage, self.sends_to, index, results)
                subtask.store_counters()
        finally:
            subtask.close()


@dataclass(frozen=True)
class SendTask:
    """Tags rows that several stages read for one of these stages. Attributes: see `StageTask`."""

    stage_id: int
    sends_to: tuple[int, int]

    def run(self, job: BatchJob, index: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run one subtask."""
        stage = job.plan.stages[self.stage_id]
        given = _given(job.plan, self.sends_to)
        rows = (from_wire(batch.columns, given.schema) for batch in batches)
        yield from _as_sent(job, stage, self.sends_to, index, rows)


Task = StageTask | SendTask


class _Subtask:
    """The opened operators of one subtask."""

    def __init__(self, job: BatchJob, stage: Stage, index: int) -> None:
        self._job = job
        self._stage = stage
        self._index = index
        self._nodes = [job.plan.graph.nodes[node_id] for node_id in stage.nodes]
        self._sink: SinkOperator | None = None
        self._opened: list[StreamOperator] = []
        self._counters: dict[str, dict[str, int]] = {}
        self._made = 0
        self._roused = threading.Event()

    def results(self, task: StageTask, batches: Iterable[pa.RecordBatch]) -> Iterator[Emitted]:
        stage = self._stage
        broadcasts = {
            given.input_index: (
                from_wire(b.columns, given.schema) for b in task.broadcasts[given.input_index].batches()
            )
            for given in stage.broadcasts
        }
        if stage.gathers == "exchange":
            blocks: Iterable[SortedBlock] = (
                PackedBlocks(stage, batches, self._job.scratch)
                if stage.merges
                else SortedBlocks(stage, batches, BLOCK_ROWS if stage.by_key else None)
            )
            tail = StageChain(self._open(self._nodes[1:]), self._index, self._roused)
            inputs = [given.input_index for given in stage.inputs]
            yield from run_exchanged(self._new_head, tail, blocks, inputs, broadcasts)
            return
        nodes = self._nodes[1:] if stage.gathers == "splits" else self._nodes
        if task.native is not None:
            nodes = [node for node in nodes if node.node_id not in task.native.runs]
        pipe = StageChain(self._open(nodes), self._index, self._roused)
        if stage.gathers == "nothing":
            yield from run_rows(pipe, (), broadcasts, None)
            return
        yield from run_rows(pipe, self._rows(task, batches), broadcasts, self._row_input())

    def _row_input(self) -> int:
        return self._stage.inputs[0].input_index if self._stage.inputs else 0

    def _rows(self, task: StageTask, batches: Iterable[pa.RecordBatch]) -> Iterator[Emitted]:
        stage, head = self._stage, self._nodes[0]
        if task.splits is not None:
            assert head.source is not None, "only a source has splits"
            yield from self._read(head, head.source, task.splits.get(self._index, ()))
        elif task.native is not None:
            for batch in batches:
                yield _whole(batch, task.native, f"source {head.uid!r} at {head.location}")
        else:
            for batch in batches:
                yield from_wire(batch.columns, stage.inputs[0].schema)

    def _read(self, node: Node, source: Source, splits: Sequence[Mapping[str, Any]]) -> Iterator[Emitted]:
        now_ms = steady_clock()
        sides = self._job.plan.graph.side_outputs_read(node.node_id)
        try:
            reader = source.create_reader(SourceContext(node.uid, self._index, self._job.plan.parallelism))
            try:
                reader.add_splits([split_from_json(split) for split in splits])
                reader.no_more_splits()
                while (polled := reader.poll(now_ms())).state != "end":
                    yield from (SideOutput(name, rows) for name, rows in polled.sides.items() if name in sides)
                    if polled.batch is not None:
                        yield polled.batch
                    elif polled.state == "nothing_now":
                        wait_ms = polled.poll_again_ms(before := now_ms()) - before
                        time.sleep(max(0.0, min(POLL_PAUSE_S, wait_ms / 1000)))
                if polled.batch is not None:
                    yield polled.batch
                self._counters.setdefault(node.uid, {}).update(reader.counters())
            finally:
                reader.close()
        except OperatorFailure:
            raise
        except Exception as error:
            raise OperatorFailure(node.uid, self._index, error) from error

    def _new_head(self) -> StageChain:
        head = self._nodes[0]
        return StageChain([(known_uid(head), self._operator(head))], self._index, self._roused)

    def _open(self, nodes: Sequence[Node]) -> list[tuple[str, StreamOperator]]:
        made = []
        for node in nodes:
            operator = self._operator(node)
            self._opened.append(operator)
            made.append((known_uid(node), operator))
        return made

    def _operator(self, node: Node) -> StreamOperator:
        try:
            if node.sink is not None:
                operator: StreamOperator = SinkOperator(node.sink)
            else:
                assert node.spec is not None, "a source is not an operator"
                operator = create_operator(node.spec)
            operator.open(self._context(node))
        except Exception as error:
            raise OperatorFailure(known_uid(node), self._index, error) from error
        if isinstance(operator, SinkOperator):
            self._sink = operator
        return operator

    def _context(self, node: Node) -> OperatorContext:
        job, options = self._job, self._job.options
        self._made += 1  # a closed head may not have removed its folder
        scratch = os.path.join(job.scratch, f"n{node.node_id}-{self._made}") if job.scratch else ""
        if scratch:
            os.makedirs(scratch, exist_ok=True)
        graph = job.plan.graph
        return OperatorContext(
            job_id=job.job_id,
            lineage=job.lineage,
            uid=known_uid(node),
            subtask=self._index,
            parallelism=job.plan.parallelism,
            max_parallelism=job.plan.max_parallelism,
            generation=job.generation,
            run_id=job.run_id,
            input_schemas=tuple(graph.edge_schema(edge) for edge in node.inputs),
            processing_time_ms=self._clock(node),
            wake=self._roused.set,
            side_outputs=graph.side_outputs_read(node.node_id),
            counters=self._counters.setdefault(known_uid(node), {}),
            scratch=scratch,
            processing_time_on_end=options.processing_time_on_end,
            gated=options.commit == "on_request",
            state_backend=node.spec.backend_in_batch(options.state_backend) if node.spec else options.state_backend,
            state_memory_bytes=options.state_memory_bytes,
            staging=job.staging,
            storage=job.sink_storage,
        )

    def _clock(self, node: Node) -> Callable[[], int]:
        """Return the clock of an operator.

        An operator that waits for requests measures time, but its results do not depend on it.
        """
        return steady_clock() if isinstance(node.spec, AsyncMapSpec) else partial(_stopped_clock, node, self._job)

    def store_counters(self) -> None:
        """Store the counters of a stage that has no sink to report them."""
        counted = {uid: counts for uid, counts in self._counters.items() if counts}
        if counted:
            self._job.store_counters(f"{self._stage.stage_id}-{self._index}", counted)

    def report(self) -> pa.RecordBatch:
        """Return the driver's input for the commit: the sink's state, as in a checkpoint, and the counters of the
        stage.
        """
        sink, node = self._sink, self._nodes[-1]
        assert sink is not None, "only a stage with a sink reports"
        try:
            snapshot = sink.snapshot(self._job.checkpoint_id)
            handle = None
            if snapshot is not None:
                handle = self._job.store_state(node.uid, self._index, snapshot()).to_json()
        except Exception as error:
            raise OperatorFailure(node.uid, self._index, error) from error
        document = {"uid": node.uid, "subtask": self._index, "handle": handle, "counters": self._counters}
        return pa.RecordBatch.from_arrays([pa.array([json.dumps(document)])], schema=REPORT_SCHEMA)

    def close(self) -> None:
        """Close the operators that stay open until the end."""
        StageChain([("", operator) for operator in self._opened], self._index).close()


def output_schema(plan: BatchPlan, task: Task) -> pa.Schema:
    """Return the schema of a task's output."""
    stage = plan.stages[task.stage_id]
    if stage.is_sink:
        return REPORT_SCHEMA
    if task.sends_to is not None:
        return exchange_schema(plan.stages[task.sends_to[0]])
    return wire_schema(stage.schema) if len(stage.outputs) == 1 else outputs_schema(stage)


def outputs_schema(stage: Stage) -> pa.Schema:
    """Return the schema of a stage with several outputs that are read.

    It has the number of the output, then the columns of each output in turn, named `o<output>_<number>`. A row has the
    columns of its output.
    """
    fields = [pa.field(OUTPUT, pa.int8())]
    for number, (_, schema) in enumerate(stage.outputs):
        fields += list(wire_schema(schema, f"o{number}_"))
    return pa.schema(fields)


def schema_of_output(schema: pa.Schema, number: int, columns: int) -> pa.Schema:
    """Return the schema of the rows of output `number`, which has `columns` columns, as on the wire.

    Args:
        schema: of all outputs, see `outputs_schema`.
    """
    return pa.schema([schema.field(f"o{number}_{n}").with_name(f"c{n}") for n in range(columns)])


def rows_of_output(batch: pa.RecordBatch, number: int, columns: int) -> pa.RecordBatch:
    """Return the rows of one of several outputs. Args: see `schema_of_output`."""
    rows = batch.filter(pc.equal(batch.column(OUTPUT), number))
    found = [rows.column(f"o{number}_{n}") for n in range(columns)]
    return pa.RecordBatch.from_arrays(found, schema=schema_of_output(batch.schema, number, columns))


def _whole(batch: pa.RecordBatch, native: SparkRows, where: str) -> pa.RecordBatch:
    """Return rows of a DataFrame in the required schema; columns without readers are null."""
    schema, present = native.schema, native.present
    read = as_declared(batch.rename_columns(list(present)), pa.schema([schema.field(name) for name in present]), where)
    nulls = (field.name not in present for field in schema)
    columns = iter(read.columns)
    arrays = [pa.nulls(len(batch), f.type) if n else next(columns) for f, n in zip(schema, nulls, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _given(plan: BatchPlan, sends_to: tuple[int, int]) -> StageInput:
    return next(given for given in plan.stages[sends_to[0]].inputs if given.input_index == sends_to[1])


def _as_sent(
    job: BatchJob, stage: Stage, sends_to: tuple[int, int] | None, index: int, rows: Iterable[Emitted]
) -> Iterator[pa.RecordBatch]:
    if sends_to is not None:
        # Imported here, because only workers need the kernels that it imports.
        from tidegate.spark.batch.exchange_senders import ExchangeSender, PackSender

        reader, given = job.plan.stages[sends_to[0]], _given(job.plan, sends_to)
        batches = map(_main_rows, rows)
        if reader.merges:
            gathered = gather(batches, job.plan.parallelism, reader.pane)
            yield from map(PackSender(job.plan, reader, index).tagged, gathered)
        else:
            yield from map(ExchangeSender(job.plan, reader, given, index).tagged, batches)
        return
    schema = wire_schema(stage.schema)
    for emitted in rows:
        if len(stage.outputs) > 1:
            yield _one_of_outputs(stage, emitted)
        else:
            yield pa.RecordBatch.from_arrays(to_wire(_main_rows(emitted)), schema=schema)


def _main_rows(emitted: Emitted) -> pa.RecordBatch:
    assert isinstance(emitted, pa.RecordBatch), "a side output has no reader here"
    return emitted


def _one_of_outputs(stage: Stage, emitted: Emitted) -> pa.RecordBatch:
    name, batch = (emitted.name, emitted.batch) if isinstance(emitted, SideOutput) else (MAIN_OUTPUT, emitted)
    own = next(number for number, output in enumerate(stage.outputs) if output[0] == name)
    columns = [pa.array(np.full(batch.num_rows, own, np.int8))]
    for number, (_, schema) in enumerate(stage.outputs):
        nulls = (pa.nulls(batch.num_rows, field.type) for field in wire_schema(schema))
        columns += to_wire(batch) if number == own else nulls
    return pa.RecordBatch.from_arrays(columns, schema=outputs_schema(stage))


def _stopped_clock(node: Node, job: BatchJob) -> int:
    """Return the processing time of an operator: the start of the run, if the options allow it (S8.2)."""
    if job.options.allow_mode_dependent:
        return job.now_ms
    raise PipelineError(
        f"{node.kind} {node.uid!r} uses processing time, which batch mode does not support",
        where=f"{node.kind} {node.uid!r} at {node.location}",
        cause="the results of the operator would depend on the execution mode",
        remedy="Use event time, or set allow_mode_dependent=true to stop the clock at the start of the run",
    )
