"""Bounded DataFrames as input of a streaming job: written to the job directory once for each submission (S4.2).

Spark may return the rows of a DataFrame in another order, or other rows, the next time; a reader's position is a number
of rows. So positions count rows of files that do not change.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tidegate.connectors.interface import ReadBySpark, Split
from tidegate.connectors.spark.materialised_splits import as_declared, splits_of_files
from tidegate.connectors.storage import absolute_url, open_filesystem
from tidegate.errors import PipelineError, StoreError, TidegateError
from tidegate.jobs.artifacts.materialised_rows import Materialised, find_materialised, record_materialised
from tidegate.jobs.decision_log import GenerationLog
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Spec
from tidegate.jobs.stores.store import Store
from tidegate.spark.barrier_stage import first_line

logger = logging.getLogger("tidegate.spark")

WRITTEN_SCHEMA = pa.schema([("written", pa.string())])
"""Output of a task that writes: one JSON document, if it had rows."""
ROW_GROUP_ROWS = 128 * 1024
"""Rows in a row group of the files: splits consist of whole row groups."""


@dataclass(frozen=True)
class RowMaterialisation:
    """Materialisation of DataFrames by one driver.

    Attributes:
        session: returns the Spark session, and starts it if needed.
    """

    store: Store
    layout: JobLayout
    spec: Spec
    root: str
    storage_options: Mapping[str, Any]
    generation_log: GenerationLog
    now_iso: Callable[[], str]
    session: Callable[[], SparkSession]

    def splits(self, uid: str, source: ReadBySpark, parallelism: int) -> Sequence[Split]:
        """Return splits of the recorded files; write the files first if there are none. Blocks as long as Spark takes.

        Raises:
            PipelineError: the DataFrame cannot be created, or differs from its declaration.
            FencedError: a newer generation runs the job.
            StoreError: the job directory cannot be read or written.
        """
        found = find_materialised(self.store, self.layout, self.spec.number, uid)
        if found is None:
            files = self._written(uid, source, parallelism)
            # A fenced driver must not record its files, because the driver that replaced it may record its own.
            self.generation_log.check()
            made = Materialised(self.spec.number, uid, tuple(files), self.now_iso())
            found = record_materialised(self.store, self.layout, made)
        base = absolute_url(self.root).rstrip("/")
        urls = [f"{base}/{file['path']}" for file in found.files]
        return splits_of_files(urls, source.schema(), self.storage_options, parallelism)

    def _written(self, uid: str, source: ReadBySpark, parallelism: int) -> list[dict[str, Any]]:
        folder = self.layout.materialised_files(self.spec.number, uid, self.generation_log.generation)
        url = f"{absolute_url(self.root).rstrip('/')}/{folder}"
        where = f"source {uid!r}"
        # Imported here, because it imports Spark SQL, which few drivers of streaming mode need.
        from tidegate.spark.batch.spark_frames import declared_columns

        try:
            frame = declared_columns(self.session(), source).coalesce(parallelism)
            task = WriteTask(url, self.storage_options, source.schema(), where)
            rows = frame.mapInArrow(task, from_arrow_schema(WRITTEN_SCHEMA)).collect()
        except PipelineError as error:
            raise PipelineError(error.what, where=where, cause=error.cause, remedy=error.remedy) from error
        except TidegateError:
            raise
        except Exception as error:
            what = f"Spark could not read {source.describe()}"
            raise PipelineError(
                what, where=where, cause=first_line(error), remedy="Correct the function that makes the DataFrame"
            ) from error
        written = sorted((json.loads(row[0]) for row in rows), key=lambda file: str(file["name"]))
        return [{"path": f"{folder}/{file.pop('name')}", **file} for file in written]


@dataclass(frozen=True)
class WriteTask:
    """Writes one partition to a file of its own, with a name that no other attempt uses. Runs in Spark's workers."""

    url: str
    storage_options: Mapping[str, Any]
    schema: pa.Schema
    where: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield a description of the file, if there was a row."""
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        written = self.write(batches, f"part-{context.partitionId():05d}-{context.taskAttemptId():08d}.parquet")
        if written is not None:
            yield pa.RecordBatch.from_arrays([pa.array([json.dumps(written)])], schema=WRITTEN_SCHEMA)

    def write(self, batches: Iterable[pa.RecordBatch], name: str) -> dict[str, Any] | None:
        """Return {"name", "rows", "size_bytes"} of the file; None: there was no row, and no file was created."""
        filesystem, folder = open_filesystem(self.url, self.storage_options)
        writer: pq.ParquetWriter | None = None
        rows, path = 0, f"{folder}/{name}"
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if writer is None:
                    filesystem.makedirs(folder, exist_ok=True)
                    file = filesystem.open(path, "wb")
                    # Older versions of the format cannot store nanoseconds.
                    writer = pq.ParquetWriter(file, self.schema, version="2.6")
                writer.write_batch(as_declared(batch, self.schema, self.where), row_group_size=ROW_GROUP_ROWS)
                rows += batch.num_rows
        finally:
            if writer is not None:
                writer.close()
                file.close()
        return {"name": name, "rows": rows, "size_bytes": filesystem.size(path)} if rows else None


def forget_materialised(store: Store, layout: JobLayout) -> None:
    """Delete the files of all submissions. If the store fails, `tidegate gc` deletes them."""
    try:
        store.delete_folder(layout.all_materialised)
    except StoreError as error:
        logger.warning(
            "the stored rows of DataFrames in %s could not be deleted; `tidegate gc` deletes them: %s",
            layout.all_materialised,
            error,
        )
