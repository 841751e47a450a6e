"""Frames of a batch job as Spark DataFrames (`Frames`), for jobs whose rows Spark reads or sorts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from tidegate.connectors.interface import ReadBySpark
from tidegate.errors import PipelineError
from tidegate.log_format import context
from tidegate.plan.job_graph import JobGraph, Node
from tidegate.plan.spark_pushdown import SparkRows
from tidegate.spark.batch.broadcast_table import BroadcastTable, broadcast_table
from tidegate.spark.batch.exchange import TARGET, sort_columns
from tidegate.spark.batch.pushdown_columns import plan_columns, quoted, select_columns
from tidegate.spark.batch.stage_task import INDEX_SCHEMA, OUTPUT, Task
from tidegate.spark.batch.worker_task import WorkerPlace, WorkerTask

logger = logging.getLogger("tidegate.spark")


@dataclass(frozen=True)
class SparkFrames:
    """Creates DataFrames; nothing runs before rows are collected or broadcast.

    Attributes:
        parallelism: partitions of every frame.
    """

    session: SparkSession
    place: WorkerPlace
    parallelism: int

    def subtask_indices(self) -> DataFrame:
        """See `Frames`."""
        return self.session.range(0, self.parallelism, 1, self.parallelism).toDF(*INDEX_SCHEMA.names)

    def read_spark(self, graph: JobGraph, source: Node) -> tuple[DataFrame, SparkRows]:
        """See `Frames`."""
        assert isinstance(source.source, ReadBySpark), f"{source.uid!r} is not a DataFrame"
        declared = declared_columns(self.session, source.source)
        read = plan_columns(declared, graph, source)
        logger.info("Spark reads %s", read.describe(graph), extra=context(operator=source.uid))
        frame = select_columns(declared, read).coalesce(self.parallelism)
        missing = self.parallelism - frame.rdd.getNumPartitions()
        return frame if missing <= 0 else frame.union(self._without_rows(frame, missing)), read.rows

    def _without_rows(self, frame: DataFrame, partitions: int) -> DataFrame:
        """Return the missing partitions of a frame: in a union of frames, the number of a partition determines its
        subtask.
        """
        nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields]
        return self.session.range(0, partitions, 1, partitions).where("id < 0").select(*nulls)

    def map(self, frame: DataFrame, task: Task, schema: pa.Schema) -> DataFrame:
        """See `Frames`."""
        return frame.mapInArrow(WorkerTask(self.place, task, self.parallelism), from_arrow_schema(schema))

    def union(self, frames: Sequence[DataFrame]) -> DataFrame:
        """See `Frames`."""
        return _union(frames).coalesce(self.parallelism)

    def exchange(self, frames: Sequence[DataFrame], schema: pa.Schema) -> DataFrame:
        """See `Frames`."""
        rows: Any = _union(frames)
        sent: DataFrame = rows.repartitionById(self.parallelism, TARGET)
        order = sort_columns(schema)
        return sent.sortWithinPartitions(*order) if order else sent

    def select_output(self, frame: DataFrame, number: int, columns: int) -> DataFrame:
        """See `Frames`."""
        rows = frame.where(frame[OUTPUT] == number)
        return rows.select(*(rows[f"o{number}_{n}"].alias(f"c{n}") for n in range(columns)))

    def cache(self, frame: DataFrame) -> DataFrame:
        """See `Frames`; on the executors' disks."""
        return frame.persist(StorageLevel.DISK_ONLY)

    def broadcast(self, frame: DataFrame) -> BroadcastTable:
        """See `Frames`; through the driver."""
        table = frame.toArrow()
        return broadcast_table(self.session.sparkContext, table.schema, table.to_batches())

    def run_and_collect(self, ends: Sequence[DataFrame]) -> list[str]:
        """Run everything in one Spark job, and return the reports of the sinks' subtasks."""
        return [row[0] for row in _union(ends).collect()]

    def close(self) -> None:
        """Delete the cached frames."""
        self.session.catalog.clearCache()


def declared_columns(session: SparkSession, source: ReadBySpark) -> DataFrame:
    """Return the declared columns of a DataFrame. Raises PipelineError if one is missing, or the DataFrame streams."""
    frame = source.frame(session)
    if not isinstance(frame, DataFrame) or frame.isStreaming:
        raise PipelineError(
            f"{source.describe()} returned "
            f"{'a streaming DataFrame' if isinstance(frame, DataFrame) else repr(frame)}, not a bounded DataFrame",
            remedy="Return a bounded DataFrame from the function: use spark.read, not spark.readStream",
        )
    missing = [name for name in source.schema().names if name not in frame.columns]
    if missing:
        raise PipelineError(
            f"the DataFrame of {source.describe()} has no column {missing[0]!r}",
            cause=f"the columns of the DataFrame are {', '.join(frame.columns)}",
            remedy="Correct schema= of the source, or the DataFrame",
        )
    return frame.select(*(quoted(frame, name) for name in source.schema().names))


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(DataFrame.union, frames)
