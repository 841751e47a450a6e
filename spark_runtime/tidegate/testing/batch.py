"""Runs a batch job in this process, without Spark: the compiler's stages on lists of batches, one subtask after
another.

For tests of pipelines and operators in batch mode.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.api.pipeline import Pipeline
from tidegate.connectors.interface import ReadBySpark, Sink
from tidegate.connectors.sink_operator import handles_in_snapshot
from tidegate.connectors.split_documents import assign_splits, split_to_json
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.jobs.options import JobOptions
from tidegate.jobs.stores.store_registry import open_store
from tidegate.log_format import set_up_if_nobody_has
from tidegate.plan.batch_plan import plan_batch
from tidegate.plan.job_graph import JobGraph, Node
from tidegate.plan.spark_pushdown import SparkRows
from tidegate.snapshot.handles import SnapshotStreams, StateHandle
from tidegate.snapshot.parts import StatePart
from tidegate.snapshot.streams import encode_parts
from tidegate.spark.batch.exchange import TARGET, sort_columns
from tidegate.spark.batch.stage_compiler import compile_batch
from tidegate.spark.batch.stage_task import INDEX_SCHEMA, BatchJob, Counters, Task, rows_of_output, sum_counters

MAX_ROWS_PER_BATCH = 10_000
"""Spark's default size of batches for Python."""

Partitions = list[list[pa.RecordBatch]]
_names = itertools.count(1)


@dataclass(frozen=True)
class LocalRows:
    """Rows of a broadcast input."""

    rows: Sequence[pa.RecordBatch]

    def batches(self) -> Iterable[pa.RecordBatch]:
        """They."""
        return self.rows


@dataclass(frozen=True)
class LocalFrames:
    """Frames as lists of batches, by partition.

    Attributes:
        job: passed to every task.
        batch_rows: most rows of the batches passed to tasks.
    """

    job: BatchJob
    batch_rows: int = MAX_ROWS_PER_BATCH

    def subtask_indices(self) -> Partitions:
        """See `Frames`."""
        return [[pa.record_batch([[i]], schema=INDEX_SCHEMA)] for i in range(self.job.plan.parallelism)]

    def read_spark(self, graph: JobGraph, source: Node) -> tuple[Partitions, SparkRows]:
        """Raise the source's own error: there is no Spark here."""
        assert source.source is not None, f"{source.uid!r} is not a source"
        source.source.discover(self.job.plan.parallelism)
        raise AssertionError("a DataFrame was read without Spark")

    def map(self, frame: Partitions, task: Task, schema: pa.Schema) -> Partitions:
        """See `Frames`."""
        made = []
        for index, batches in enumerate(frame):
            results = list(task.run(self.job, index, iter(batches)))
            assert all(result.schema.equals(schema) for result in results), f"{task} returned another schema"
            made.append(results)
        return made

    def union(self, frames: Sequence[Partitions]) -> Partitions:
        """See `Frames`."""
        return [list(itertools.chain(*parts)) for parts in zip(*frames, strict=True)]

    def exchange(self, frames: Sequence[Partitions], schema: pa.Schema) -> Partitions:
        """See `Frames`."""
        rows = pa.Table.from_batches([b for frame in frames for part in frame for b in part], schema=schema)
        rows = rows.sort_by(
            [(TARGET, "ascending"), *((name, "ascending") for name in sort_columns(schema))]
        ).combine_chunks()
        targets = rows[TARGET].to_numpy()
        bounds = targets.searchsorted(range(self.job.plan.parallelism + 1))
        parts = [rows.slice(low, high - low) for low, high in itertools.pairwise(bounds.tolist())]
        return [part.to_batches(max_chunksize=self.batch_rows) for part in parts]

    def select_output(self, frame: Partitions, number: int, columns: int) -> Partitions:
        """See `Frames`."""
        return [[rows_of_output(batch, number, columns) for batch in part] for part in frame]

    def cache(self, frame: Partitions) -> Partitions:
        """See `Frames`."""
        return frame

    def broadcast(self, frame: Partitions) -> LocalRows:
        """See `Frames`."""
        return LocalRows([batch for part in frame for batch in part])


def run_and_collect(ends: Sequence[Partitions]) -> list[dict[str, Any]]:
    """Return the reports of the sinks' subtasks, as JSON."""
    return [json.loads(text) for end in ends for part in end for b in part for text in b.column(0).to_pylist()]


@dataclass
class InProcessBatch:
    """One run of a pipeline in batch mode. `run` stages output; `commit` publishes it, as a driver does at the end.

    Args:
        build: creates the pipeline.
        options: JobOptions fields.
        scratch: local folder for state on disk; empty: operators have none.
    """

    build: Callable[[], Pipeline]
    options: Mapping[str, Any] = field(default_factory=dict)
    job_id: str = "job"
    lineage: str = "lineage-1"
    run_id: str = "r000001"
    scratch: str = ""
    batch_rows: int = MAX_ROWS_PER_BATCH
    counters: dict[str, dict[str, int]] = field(default_factory=dict)

    def run(self) -> None:
        """Run every stage to its end."""
        options = JobOptions.from_mapping({**self.options, "execution_mode": "batch"})
        graph = self.build().build()
        allowed = options.allow_mode_dependent
        plan = plan_batch(graph, options.parallelism, options.max_parallelism, allow_mode_dependent=allowed)
        root = open_store(f"memory://in-process-batch-{next(_names)}")
        self._factory = SnapshotStreams(root, "checkpoint")
        self._storage: tuple[str, Mapping[str, Any]] = (f"{root.url}/sinks", {})
        stages: list[Counters] = []
        job = BatchJob(
            plan=plan,
            options=options,
            job_id=self.job_id,
            lineage=self.lineage,
            generation=1,
            run_id=self.run_id,
            checkpoint_id=1,
            now_ms=1_700_000_000_000,
            store_state=self._store,
            store_counters=lambda _, counters: stages.append(counters),
            scratch=self.scratch,
            staging=(f"{root.url}/checkpoint", {}),
            sink_storage=self._storage,
        )
        sources = {node.uid: node.source for node in plan.graph.nodes if node.source is not None}
        splits = {
            uid: [split_to_json(split) for split in source.discover(plan.parallelism)]
            for uid, source in sources.items()
            if not isinstance(source, ReadBySpark)
        }
        ends = compile_batch(plan, assign_splits(splits, plan.parallelism), LocalFrames(job, self.batch_rows))
        self._plan = plan
        self._reports = run_and_collect(ends)
        self.counters = sum_counters([self.counters, *stages, *(report["counters"] for report in self._reports)])

    def commit(self) -> None:
        """Commit the staged output of all sinks."""
        for node in self._plan.graph.nodes:
            if node.sink is not None and node.sink.two_phase:
                self._commit_sink(node.uid, node.sink, node.schema)

    def _commit_sink(self, uid: str, sink: Sink, schema: pa.Schema) -> None:
        handles: list[Committable] = []
        for report in self._reports:
            if report["uid"] == uid and report["handle"] is not None:
                handles += handles_in_snapshot(self._factory.parts(StateHandle.from_json(report["handle"])))
        writer = sink.create_writer(
            SinkContext(
                self.job_id,
                self.lineage,
                uid,
                0,
                1,
                1,
                f"{self.run_id}~",
                schema,
                self.scratch,
                storage=self._storage,
            )
        )
        try:
            writer.commit(handles)
        finally:
            writer.close()

    def _store(self, uid: str, subtask: int, parts: Sequence[StatePart]) -> StateHandle:
        return self._factory.store(f"{uid}-{subtask}.state", encode_parts(parts))


def run_batch(build: Callable[[], Pipeline], options: Mapping[str, Any] | None = None) -> None:
    """Run a pipeline in batch mode and commit its output. Args: see `InProcessBatch`."""
    set_up_if_nobody_has("text")
    job = InProcessBatch(build, options or {})
    job.run()
    job.commit()
