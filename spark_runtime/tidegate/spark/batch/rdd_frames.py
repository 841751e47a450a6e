"""Frames of a batch job as RDDs of encoded Arrow batches (`Frames`), without Spark SQL.

For jobs whose rows Spark neither reads nor sorts (`needs_spark_sql`). Spark starts the tasks, repeats failed ones and
moves packs, and does not look into them. Spark SQL takes some CPU seconds to start, and would convert each pack twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import pyarrow as pa
from pyspark import RDD, SparkContext, StorageLevel
from pyspark.serializers import NoOpSerializer, pack_long

from tidegate.plan.job_graph import JobGraph, Node
from tidegate.spark.batch.broadcast_table import BroadcastTable, broadcast_table
from tidegate.spark.batch.exchange import PACK, PACK_SCHEMA, TARGET
from tidegate.spark.batch.stage_task import Task, rows_of_output, schema_of_output
from tidegate.spark.batch.worker_task import WorkerPlace, WorkerTask


@dataclass(frozen=True)
class RddFrame:
    """Rows in `parallelism` partitions, of which the number is the subtask's.

    Attributes:
        rdd: batches as Arrow encodes them, without their schema; packs as they are.
        schema: schema of the rows; None: there are none.
    """

    rdd: RDD[Any]
    schema: pa.Schema | None


@dataclass(frozen=True)
class RddFrames:
    """Creates RDDs; nothing runs before rows are collected or broadcast.

    Attributes:
        parallelism: partitions of every frame.
        cached: frames to delete after the run.
    """

    context: SparkContext
    place: WorkerPlace
    parallelism: int
    cached: list[RddFrame] = field(default_factory=list)

    def subtask_indices(self) -> RddFrame:
        """See `Frames`. Its rows are not read: Spark passes the number to the task."""
        return RddFrame(self.context.parallelize(range(self.parallelism), self.parallelism), None)

    def read_spark(self, graph: JobGraph, source: Node) -> NoReturn:
        """Fail: only Spark SQL reads DataFrames."""
        raise AssertionError(f"{source.uid!r} needs Spark SQL")

    def map(self, frame: RddFrame, task: Task, schema: pa.Schema) -> RddFrame:
        """See `Frames`."""
        work = PartitionTask(WorkerTask(self.place, task, self.parallelism), frame.schema, schema)
        rdd: Any = frame.rdd.mapPartitionsWithIndex(work)
        # As in `RDD.partitionBy`: the JVM reads target and pack in turn, and nothing is pickled.
        rdd._bypass_serializer = schema == PACK_SCHEMA
        return RddFrame(rdd, schema)

    def union(self, frames: Sequence[RddFrame]) -> RddFrame:
        """See `Frames`."""
        return RddFrame(
            self.context.union([frame.rdd for frame in frames]).coalesce(self.parallelism), frames[0].schema
        )

    def exchange(self, frames: Sequence[RddFrame], schema: pa.Schema) -> RddFrame:
        """See `Frames`; only of packs, which need not be sorted and have one upstream stage."""
        assert schema == PACK_SCHEMA, "only Spark SQL sorts rows"
        ((packs, jvm),) = ((frame.rdd, self.context._jvm) for frame in frames)
        assert jvm is not None, "the context is running"
        # `RDD.partitionBy` would keep several packs in memory, and pickle them.
        pairs = jvm.PairwiseRDD(packs._jrdd.rdd()).asJavaPairRDD()
        sent = pairs.partitionBy(jvm.PythonPartitioner(self.parallelism, 0))
        return RddFrame(RDD(jvm.PythonRDD.valueOfPair(sent), self.context, NoOpSerializer()), schema)

    def select_output(self, frame: RddFrame, number: int, columns: int) -> RddFrame:
        """See `Frames`."""
        assert frame.schema is not None, "outputs have rows"
        selection = OutputSelection(frame.schema, number, columns)
        return RddFrame(frame.rdd.mapPartitions(selection), schema_of_output(frame.schema, number, columns))

    def cache(self, frame: RddFrame) -> RddFrame:
        """See `Frames`; on the executors' disks, until `close`."""
        self.cached.append(RddFrame(frame.rdd.persist(StorageLevel.DISK_ONLY), frame.schema))
        return self.cached[-1]

    def broadcast(self, frame: RddFrame) -> BroadcastTable:
        """See `Frames`; through the driver."""
        assert frame.schema is not None, "a broadcast input has rows"
        return broadcast_table(self.context, frame.schema, _decoded(frame.rdd.collect(), frame.schema))

    def run_and_collect(self, ends: Sequence[RddFrame]) -> list[str]:
        """Run everything in one Spark job, and return the reports of the sinks' subtasks."""
        found = self.context.union([frame.rdd for frame in ends]).collect()
        schemas = {frame.schema for frame in ends}
        (schema,) = schemas
        assert schema is not None, "a sink reports"
        return [text for batch in _decoded(found, schema) for text in batch.column(0).to_pylist()]

    def close(self) -> None:
        """Delete the cached frames."""
        for frame in self.cached:
            frame.rdd.unpersist()


@dataclass(frozen=True)
class PartitionTask:
    """A task as Spark calls it for one partition, in a Python worker.

    Attributes:
        reads: schema of the rows; None: there are none.
        emits: schema of the result.
    """

    work: WorkerTask
    reads: pa.Schema | None
    emits: pa.Schema

    def __call__(self, index: int, encoded: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the results, encoded. Raises TaskFailedError."""
        given = iter(encoded)
        results = self.work.run(index, () if self.reads is None else _decoded(given, self.reads))
        if self.emits == PACK_SCHEMA:
            yield from _targets_and_packs(results)
        else:
            for batch in results:
                yield batch.serialize().to_pybytes()
        # As in `WorkerTask`.
        for _ in given:
            pass


@dataclass(frozen=True)
class OutputSelection:
    """Selects one of several outputs of a stage. Attributes: see `rows_of_output`; `schema`: of all outputs."""

    schema: pa.Schema
    number: int
    columns: int

    def __call__(self, encoded: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the rows of the output, encoded."""
        for batch in _decoded(encoded, self.schema):
            rows = rows_of_output(batch, self.number, self.columns)
            if rows.num_rows:
                yield rows.serialize().to_pybytes()


def _decoded(encoded: Iterable[bytes], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    if schema != PACK_SCHEMA:
        return (pa.ipc.read_record_batch(batch, schema) for batch in encoded)
    # One batch per pack, without a copy. The column of targets is not read: each pack has arrived.
    return (_one_pack(pack) for pack in encoded)


def _one_pack(pack: bytes) -> pa.RecordBatch:
    ends = pa.array([0, len(pack)], pa.int32()).buffers()[1]
    column = pa.Array.from_buffers(pa.binary(), 1, [None, ends, pa.py_buffer(pack)])
    return pa.RecordBatch.from_arrays([pa.nulls(1, pa.int32()), column], schema=PACK_SCHEMA)


def _targets_and_packs(batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
    for batch in batches:
        for target, pack in zip(batch.column(TARGET).to_pylist(), batch.column(PACK), strict=True):
            yield pack_long(target)
            yield memoryview(pack.as_buffer())
