"""SparkWriter: a sink that writes a batch job's rows to any format that Spark can write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq

from tidegate.connectors.interface import Sink, SinkWriter
from tidegate.connectors.storage import open_filesystem
from tidegate.connectors.transactions import Committable, SinkContext, check_writer, transaction_id
from tidegate.errors import OptionError, PipelineError, TidegateError
from tidegate.jobs.secrets import check_no_plain_secrets, resolve_secrets

SaveMode = Literal["append", "overwrite", "error", "ignore"]


class SparkWriter(Sink):
    """Passes the rows to a Spark writer at the end of the job. In batch mode only.

    Rows are staged as Parquet files in the checkpoint's folder. The commit, in the driver, is one Spark write of all
    rows. A marker next to the files records that the write has ended. Guarantee: no row is visible before the job's
    checkpoint is complete; then all rows are written.

    If the driver dies during that write, the next driver repeats it. With "overwrite", the result is the same. With
    "append", rows exist twice if Spark's own commit had been reached. With "error", the job fails if the target exists
    by then. With "ignore", it accepts the existing target as the result.

    Times are cut to microseconds, the precision of Spark.

    Args:
        format: as in `DataFrame.write.format(...)`.
        path: target, for formats that have a path.
        table: name in Spark's catalog, instead of a path.
        mode: what happens to existing data, as in `DataFrame.write.mode(...)`.
        options: options of the writer; values may be references to secrets.
        partition_by: partition columns.

    Raises:
        OptionError: an unknown mode, both a path and a table, or a secret in plain text.
    """

    def __init__(
        self,
        *,
        format: str,
        path: str | None = None,
        table: str | None = None,
        mode: SaveMode = "error",
        options: Mapping[str, Any] | None = None,
        partition_by: Sequence[str] = (),
    ) -> None:
        if mode not in get_args(SaveMode):
            raise OptionError(
                f"mode={mode!r} is unknown", where="mode", remedy=f"Use one of {', '.join(get_args(SaveMode))}"
            )
        if path is not None and table is not None:
            raise OptionError(
                "SparkWriter has both a path and a table", where="path, table", remedy="Pass only one of path and table"
            )
        check_no_plain_secrets(options, where="options")
        self._format, self._path, self._table, self._mode = format, path, table, mode
        self._options = dict(options or {})
        self._partition_by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)

    def check(self, schema: pa.Schema) -> None:
        """Check that Spark has a type for each column.

        Raises:
            PipelineError: with the column's name.
        """
        missing = [name for name in self._partition_by if name not in schema.names]
        if missing:
            raise PipelineError(
                f"partition_by names column {missing[0]!r}, which does not exist",
                where=self.describe(),
                cause=f"the columns are {', '.join(schema.names)}",
                remedy="Name one of these columns",
            )
        if self._partition_by and not set(schema.names) - set(self._partition_by):
            raise PipelineError(
                "partition_by names all columns, so that no column is left for the files",
                where=self.describe(),
                remedy="Remove at least one column from partition_by",
            )
        folded = [name.casefold() for name in schema.names]
        if twice := [name for name in schema.names if folded.count(name.casefold()) > 1]:
            raise PipelineError(
                f"columns {', '.join(map(repr, twice))} have the same name in Spark, which ignores case",
                where=self.describe(),
                remedy="Rename one of the columns with select()",
            )
        for field in schema:
            try:
                if pa.types.is_null(field.type):
                    raise TypeError("few formats can store a column that holds only nulls")
                _spark_schema(pa.schema([field]))
            except Exception as error:
                raise PipelineError(
                    f"Spark has no type for column {field.name!r} of type {field.type}",
                    where=self.describe(),
                    cause=str(error),
                    remedy="Cast the column with with_columns(), or leave it out with select()",
                ) from error

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """Return a writer of one subtask, or of the driver, which commits."""
        return _StagingWriter(self, ctx)

    def check_target(self) -> None:
        """With mode "error", check that the target does not exist, as far as Spark can check. In a driver, before the
        job runs.

        Raises:
            PipelineError: the target exists.
        """
        if self._mode != "error":
            return
        session = _session()
        if self._table is not None:
            is_there = session.catalog.tableExists(self._table)
        elif self._path is not None:
            context = session.sparkContext
            path = context._jvm.org.apache.hadoop.fs.Path(self._path)
            is_there = path.getFileSystem(context._jsc.hadoopConfiguration()).exists(path)
        else:
            return
        if is_there:
            raise PipelineError(
                f"{self._table or self._path} already exists",
                where=self.describe(),
                cause='mode is "error", the default',
                remedy='Remove the existing data, or set mode="append" or "overwrite"',
            )

    def publish(self, rows: _StagedRows) -> None:
        """Write all rows with one Spark write. Blocks until it ends."""
        writer = rows.frame(_session()).write.format(self._format).mode(self._mode)
        writer = writer.options(**resolve_secrets(self._options))
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        if self._table is not None:
            writer.saveAsTable(self._table)
        else:
            writer.save(self._path)

    def describe(self) -> str:
        """Describe format, target and mode."""
        target = self._table or self._path or ""
        return f"SparkWriter({', '.join(filter(None, [self._format, target, self._mode]))})"


@dataclass(frozen=True)
class _StagedRows:
    """Files of one schema, as a DataFrame. Runs in Spark's workers, too.

    Attributes:
        files: (URL, storage options with references to secrets) of each file.
    """

    files: Sequence[tuple[str, Mapping[str, Any]]]
    schema: pa.Schema

    def frame(self, session: Any) -> Any:
        """Return a DataFrame with one partition for each file."""
        n = len(self.files)
        return session.range(0, n, 1, max(n, 1)).mapInArrow(self, _spark_schema(self.schema))

    def __call__(self, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the files of these numbers, in the types that Spark accepts."""
        from pyspark.sql.pandas.types import to_arrow_schema

        taken = to_arrow_schema(_spark_schema(self.schema), timezone="UTC")
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                url, storage_options = self.files[number]
                filesystem, path = open_filesystem(url, storage_options)
                with filesystem.open(path, "rb") as file:
                    for rows in pq.ParquetFile(file).iter_batches():
                        yield rows.cast(self.schema).cast(taken, safe=False)


class _StagingWriter(SinkWriter):
    """Writer of one Parquet file per subtask, in the checkpoint's folder, which is deleted with the checkpoint."""

    def __init__(self, sink: SparkWriter, ctx: SinkContext) -> None:
        self._sink = sink
        self._ctx = ctx
        self._file: Any = None
        self._writer: pq.ParquetWriter | None = None
        self._url = ""

    def write(self, batch: pa.RecordBatch) -> None:
        """Write the batch to the file, which is created for the first rows."""
        if batch.num_rows:
            self._open().write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=self._ctx.schema))

    def prepare_commit(self, checkpoint_id: int) -> Callable[[], Sequence[Committable]]:
        """End the file. It exists also without rows, because a table that is overwritten may become empty."""
        self._open()
        self.close()
        data = {"url": self._url, "storage_options": dict(self._staging()[1])}
        handle = Committable(transaction_id(self._ctx, checkpoint_id, 1), data)
        return lambda: (handle,)

    def _open(self) -> pq.ParquetWriter:
        if self._writer is None:
            folder, storage_options = self._staging()
            uid = quote(self._ctx.uid, safe="")
            self._url = f"{folder}/{uid}-{self._ctx.subtask}-{self._ctx.run_id}.parquet"
            filesystem, path = open_filesystem(self._url, storage_options)
            filesystem.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
            self._file = filesystem.open(path, "wb")
            # Older versions of the format cannot store nanoseconds.
            self._writer = pq.ParquetWriter(self._file, self._ctx.schema, version="2.6")
        return self._writer

    def commit(self, committables: Sequence[Committable]) -> None:
        """Write all rows with one Spark write, unless the marker exists. Called with the handles of all subtasks."""
        for handle in committables:
            check_writer(self._ctx, handle)
        files = [(handle.data["url"], handle.data["storage_options"]) for handle in committables]
        folder = files[0][0].rsplit("/", 1)[0]
        filesystem, marker = open_filesystem(f"{folder}/{quote(self._ctx.uid, safe='')}.written", files[0][1])
        if filesystem.exists(marker):
            return
        self._sink.publish(_StagedRows(files, self._ctx.schema))
        filesystem.pipe_file(marker, b"")

    def recover(self, checkpoint_id: int, pending: Sequence[Committable] = ()) -> None:
        """Check the target before a fresh run. Remove nothing: files are deleted with their checkpoint's folder."""
        if not checkpoint_id:
            self._sink.check_target()

    def abort(self, committables: Sequence[Committable]) -> None:
        """Do nothing: files are deleted with the folder of their checkpoint."""

    def close(self) -> None:
        """Close the file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
            self._file.close()

    def _staging(self) -> tuple[str, Mapping[str, Any]]:
        if self._ctx.staging is None:
            raise TidegateError(
                "SparkWriter works in batch mode only",
                where=f"sink {self._ctx.uid!r}",
                remedy="Set execution_mode=batch, or use another sink such as Parquet",
            )
        return self._ctx.staging


def _session() -> Any:
    """Return the driver's Spark session."""
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    return builder.getOrCreate()


def _spark_schema(schema: pa.Schema) -> Any:
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)
