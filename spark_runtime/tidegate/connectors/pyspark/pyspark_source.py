"""`PySparkSource`: any data source of PySpark's Python data source API, unchanged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.connectors.interface import (
    Boundedness,
    ContinuousDiscovery,
    Source,
    SourceContext,
    SourceReader,
    Split,
    SplitEnumerator,
)
from tidegate.connectors.pyspark.data_source_class import DataSourceClass
from tidegate.errors import OptionError
from tidegate.units import parse_duration

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType


class PySparkSource(Source):
    """Reads a class that implements `pyspark.sql.datasource.DataSource`::

        p.read(PySparkSource(WeatherSource, options={"stations": "KJFK"}, stream=True), uid="weather")

    Args:
        source: the class. Each slot imports it from its module, so it must not be defined in a notebook or `__main__`.
        options: its options, texts. Values may be secret references, such as `secret:env/TOKEN`.
        schema: schema of the rows: StructType, pyarrow schema, or text such as "id BIGINT". None: the class is asked.
        stream: read its stream (unbounded) instead of its batch (bounded). `streamReader` is preferred to
            `simpleStreamReader`, as in Spark.
        every: pause between two searches of a stream that has no new rows.
        repeatable: another read of the same partition or offsets returns the same rows in the same order. If not, all
            rows of a partition are emitted as one batch, so that a snapshot never contains a part of them. They must
            then fit into memory.

    Raises:
        OptionError: not such a class, an option is no text or holds a secret in plain text, or `every` is not positive.
    """

    def __init__(
        self,
        source: type[DataSource],
        *,
        options: Mapping[str, str] | None = None,
        schema: StructType | pa.Schema | str | None = None,
        stream: bool = False,
        every: str | timedelta = "1 s",
        repeatable: bool = True,
    ) -> None:
        self._source = DataSourceClass(source, dict(options or {}))
        self._declared = schema
        self._stream, self._every, self._repeatable = stream, every, repeatable
        if self._pause <= timedelta(0):
            raise OptionError("every must be longer than 0", where="PySparkSource(every=)", remedy='Use "1 s"')

    @property
    def boundedness(self) -> Boundedness:
        """By `stream`."""
        return "unbounded" if self._stream else "bounded"

    def schema(self) -> pa.Schema:
        """Return the schema in Arrow's types. Without `schema=`, the class is asked."""
        from tidegate.connectors.pyspark.row_batches import arrow_schema

        return arrow_schema(self._struct())

    def discover(self, parallelism: int) -> Sequence[Split]:
        """Return a split for each partition of the batch, or the one split of a simple stream."""
        from tidegate.connectors.pyspark.partitions import partitions_of

        if self._stream:
            return [Split("0", {})]
        planned = partitions_of(self._source.create().reader(self._struct()), self._source.where("partitions"))
        return [Split(f"{i:06d}", {"index": i, "of": len(planned)}) for i in range(len(planned))]

    def continuous_discovery(self) -> ContinuousDiscovery | None:
        """Return settings for a stream of partitions."""
        return ContinuousDiscovery(self._pause, after_finished=True) if self._has_partitions else None

    def create_enumerator(self, state: Any) -> SplitEnumerator:
        """Return an enumerator that plans batches with a `streamReader`."""
        from tidegate.connectors.pyspark.batch_enumerator import BatchEnumerator

        return BatchEnumerator(
            self._source.create().streamReader(self._struct()), state, self._source.where("streamReader")
        )

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """Return a reader, which reads on a thread of its own."""
        from tidegate.connectors.pyspark.partition_reader import PartitionReader
        from tidegate.connectors.pyspark.simple_reader import SimpleReader

        if self._stream and not self._has_partitions:
            return SimpleReader(
                lambda: self._source.create().simpleStreamReader(self._struct()),
                self._struct(),
                ctx.wake,
                where=self._source.where("simpleStreamReader"),
                pause_s=self._pause.total_seconds(),
                whole=not self._repeatable,
            )
        return PartitionReader(self._opener(), ctx.wake, grows=self._stream, whole=not self._repeatable)

    def describe(self) -> str:
        """Describe the source by its class."""
        return f"PySparkSource({self._source.name}, {'stream' if self._stream else 'batch'})"

    @property
    def _pause(self) -> timedelta:
        return parse_duration(self._every, where="PySparkSource(every=)")

    @property
    def _has_partitions(self) -> bool:
        """Return whether the stream is planned in partitions: `streamReader` is overridden."""
        return self._stream and self._source.overrides("streamReader")

    def _opener(self) -> Any:
        from tidegate.connectors.pyspark.partitions import partition_of
        from tidegate.connectors.pyspark.row_batches import batches_of

        struct, where = self._struct(), self._source.where("read")
        readers: list[Any] = []

        def opened(data: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
            if not readers:  # on the reader's thread: creating it may block
                source = self._source.create()
                readers.append(source.streamReader(struct) if self._stream else source.reader(struct))
            (reader,) = readers
            return batches_of(reader.read(partition_of(reader, where, data)), struct, where)

        return opened

    def _struct(self) -> StructType:
        from tidegate.connectors.pyspark.schema_text import as_struct

        declared = self._declared if self._declared is not None else self._source.create().schema()
        return as_struct(declared, self._source.name)
