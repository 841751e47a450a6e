"""`PySparkSink`: any data source of PySpark's Python data source API as a sink, unchanged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.connectors.interface import Sink, SinkWriter
from tidegate.connectors.leftovers import LeftoverReport, NeededTransactions
from tidegate.connectors.pyspark.data_source_class import DataSourceClass
from tidegate.connectors.pyspark.staging_place import StagingPlace
from tidegate.connectors.storage import absolute_url, check_target_folder, open_filesystem
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.errors import PipelineError
from tidegate.jobs.client.staged_data import StagedData
from tidegate.jobs.history.sink_identity import SinkIdentity
from tidegate.jobs.secrets import check_no_plain_secrets, redact

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource

    from tidegate.connectors.pyspark.data_source_writer import WriterCalls

_PLAIN = (bool, int, float, str, bytes, type(None))
"""Types of a writer's attributes that are compared."""


class PySparkSink(Sink):
    """Writes to a class that implements `pyspark.sql.datasource.DataSource`::

        rows.write(PySparkSink(SalesforceDataSource, options={"object": "Account"}, stream=True), uid="accounts")

    With `stream=True`, each checkpoint is one batch: `write` in each subtask that has rows, then one `commit` with all
    messages and the checkpoint's id, which grows. An interrupted commit is repeated with the same messages and id.
    Guarantee: each row is in one committed batch, whatever fails (S7.4), so exactly once if the class commits a batch
    once however often `commit` is called with its id.

    With `stream=False`, all rows of the job are one write, for sources that end: `write` in each subtask, then one
    `commit`, after the last checkpoint. Without an end of the data, nothing is written.

    Args:
        source: the class. Slots and drivers import it from its module, so it must not be defined in a notebook or
            `__main__`.
        options: its options, texts. Values may be secret references, such as `secret:env/TOKEN`.
        stream: use its `streamWriter` instead of its `writer`.
        overwrite: passed to `writer`. The class decides what it means.
        staging: folder for messages, and with `stream=False` for rows: a path that all slots and the driver share, or a
            URL of S3. None: the job's directory.
        staging_options: fsspec options of `staging`; values may be references to secrets.

    Raises:
        OptionError: not such a class, an option is no text or holds a secret in plain text.
        PipelineError: the class has no such writer, or `overwrite` is set for a stream.
    """

    def __init__(
        self,
        source: type[DataSource],
        *,
        options: Mapping[str, str] | None = None,
        stream: bool = False,
        overwrite: bool = False,
        staging: str | os.PathLike[str] | None = None,
        staging_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._source = DataSourceClass(source, dict(options or {}), "PySparkSink")
        self._stream, self._overwrite = stream, overwrite
        check_no_plain_secrets(staging_options, where="PySparkSink(staging_options=)", storage=True)
        self._staging = None if staging is None else StagingPlace(absolute_url(staging), dict(staging_options or {}))
        if stream and overwrite:
            raise PipelineError(
                "a stream cannot overwrite",
                where="PySparkSink(overwrite=)",
                cause="a batch holds the rows of one checkpoint, so that each batch would replace the batch before",
                remedy="Leave out overwrite=, or write a job that ends with stream=False",
            )

    # ------------------------------------------------------------ checks

    def check(self, schema: pa.Schema) -> None:
        """Check, before anything runs, that the class has the writer, and that Spark has a type for each column.

        Makes no object of the class.

        Raises:
            PipelineError: with the name of the method or the column; or the staging folder cannot be used.
        """
        from tidegate.connectors.pyspark.data_source_writer import spark_schema
        from tidegate.connectors.pyspark.row_batches import arrow_schema

        method, other = ("streamWriter", "writer") if self._stream else ("writer", "streamWriter")
        if not self._source.overrides(method):
            has_other = self._source.overrides(other)
            raise PipelineError(
                f"the Python data source {self._source.name} does not implement {method}()",
                where=self._source.where(method),
                remedy=f"Pass stream={not self._stream}: the class implements {other}()"
                if has_other
                else "Implement it",
            )
        for field in schema:
            try:
                # And back, as each batch is converted: Spark's decimals have at most 38 digits.
                arrow_schema(spark_schema(pa.schema([field])))
            except Exception as error:  # of PySpark, whose errors have no common class for this
                raise PipelineError(
                    f"Spark has no type for column {field.name!r} of type {field.type}",
                    where=self.describe(),
                    cause=str(error),
                    remedy="Cast the column with with_columns(), or leave it out with select()",
                ) from error
        if self._staging is not None:
            self._staging.store()
            options = self._staging.storage_options
            check_target_folder(*open_filesystem(self._staging.url, options), self._staging.url)

    def check_fresh_start(self, ctx: SinkContext) -> None:
        """Make writers of the class, and check them. Only in the driver, because a class may connect to its target.

        Raises:
            PipelineError: the class returns no writer, or for one write of all rows, two writers that differ.
        """
        if not ctx.lineage:
            return
        calls = self._calls(ctx.schema)
        if self._stream:
            calls.create()
            return
        first, second = (_plain_attributes(calls.create()) for _ in range(2))
        differing = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
        if differing:
            raise PipelineError(
                f"the writers of the Python data source {self._source.name} differ from each other",
                where=f"{self._source.where('writer')}, attribute {differing[0]!r}",
                cause="its constructor uses a random value or the time. Spark sends one writer to all tasks; tidegate "
                "makes one in each subtask, and another one for the commit",
                remedy="Make such a value in write(), and pass it to commit() in the message",
            )

    # ------------------------------------------------------------ writing

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        """Return a writer. It makes an object of the class when it first has something to write or to commit."""
        from tidegate.connectors.pyspark.bounded_sink_writer import BoundedSinkWriter
        from tidegate.connectors.pyspark.commit_claims import CommitClaims
        from tidegate.connectors.pyspark.stream_sink_writer import StreamSinkWriter

        place = self._place(ctx)
        kind = StreamSinkWriter if self._stream else BoundedSinkWriter
        return kind(self._calls(ctx.schema), *place.opened(ctx), CommitClaims(place, ctx), ctx)

    def staged(self, ctx: SinkContext, checkpoint_id: int, handle: Committable) -> StagedData:
        """Return the Parquet files with rows that the class has not got yet. Rows of a stream are where it put them."""
        from tidegate.connectors.files.sink.staged_files import staged_files

        if self._stream or not handle.data["files"]:
            return StagedData(ctx.uid, checkpoint_id)
        place = self._place(ctx)
        return staged_files(place.url, place.opened(ctx)[1], ctx.uid, checkpoint_id, handle)

    def collect(self, ctx: SinkContext, needed: NeededTransactions, *, dry_run: bool = False) -> LeftoverReport:
        """Let the class give up batches that no snapshot needs, remove their records, and pack commit markers."""
        from tidegate.connectors.pyspark.sink_leftovers import SinkLeftovers

        filesystem, layout = self._place(ctx).opened(ctx)
        calls = self._calls(ctx.schema) if self._stream else None
        return SinkLeftovers(filesystem, layout, needed, ctx, calls).collect(dry_run=dry_run)

    def identity(self) -> SinkIdentity:
        """Return the class with its options, without secrets."""
        source = self._source.source
        options = ", ".join(f"{name}={value}" for name, value in sorted(redact(self._source.options).items()))
        return SinkIdentity("PySparkSink", (f"{source.__module__}.{source.__qualname__}", options))

    def _place(self, ctx: SinkContext) -> StagingPlace:
        return StagingPlace.of(ctx, self._staging, self.describe())

    def _calls(self, records: pa.Schema) -> WriterCalls:
        from tidegate.connectors.pyspark.data_source_writer import WriterCalls

        return WriterCalls(self._source, records, self._stream, self._overwrite)


def _plain_attributes(writer: Any) -> dict[str, Any]:
    return {name: value for name, value in getattr(writer, "__dict__", {}).items() if type(value) in _PLAIN}
