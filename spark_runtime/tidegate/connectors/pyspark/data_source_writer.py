"""Calls of a data source's writer, as Spark makes them: `write` for a partition, then `commit` or `abort` for all."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.conversion import ArrowTableToRowsConversion
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from tidegate.connectors.pyspark.data_source_class import DataSourceClass
from tidegate.connectors.pyspark.message_documents import message_document, message_of
from tidegate.connectors.pyspark.row_batches import arrow_schema
from tidegate.connectors.pyspark.writing_task import writing_task
from tidegate.errors import PipelineError

ROWS_AT_ONCE = 4_096
"""Rows that are converted to `Row`s together: they are Python objects, and must fit into memory beside the batch."""

logger = logging.getLogger("tidegate.connectors")

Message = Mapping[str, Any]
"""A commit message as a document, see `message_documents`."""


@dataclass(frozen=True)
class WriterCalls:
    """Calls of the writers that a class makes. Each call makes a new writer, as Spark's processes do. Blocks.

    Attributes:
        records: schema of the records of the sink.
        stream: `streamWriter`, else `writer`.
        overwrite: passed to the class.
    """

    source: DataSourceClass
    records: pa.Schema
    stream: bool
    overwrite: bool = False

    @property
    def method(self) -> str:
        """Name of the method that makes the writer."""
        return "streamWriter" if self.stream else "writer"

    @property
    def struct(self) -> StructType:
        """Schema that the class gets."""
        return spark_schema(self.records)

    def create(self) -> Any:
        """Return a new writer.

        Raises:
            PipelineError: the class returned something else.
        """
        kind: type = DataSourceStreamWriter if self.stream else DataSourceWriter
        made = getattr(self.source.create(), self.method)(self.struct, self.overwrite)
        if not isinstance(made, kind):
            raise PipelineError(
                f"{self.method}() of a Python data source must return a {kind.__name__}",
                where=self.source.where(self.method),
                cause=f"it returned a {type(made).__name__}",
                remedy=f"Derive the class of the writer from pyspark.sql.datasource.{kind.__name__}",
            )
        return made

    def write(self, batches: Iterable[pa.RecordBatch], partition: int) -> Message:
        """Write the rows of a partition, and return the commit message.

        Raises:
            DataError: the message cannot be stored.
            Exception: whatever the class raises.
        """
        where = self.source.where("write")
        with writing_task(partition):
            writer = self.create()
            fitting = self._fitting(batches)
            takes_arrow = isinstance(writer, DataSourceArrowWriter | DataSourceStreamArrowWriter)
            rows: Iterator[Any] = fitting if takes_arrow else self._rows(fitting)
            message = writer.write(rows)
            if next(rows, None) is not None:
                logger.warning(
                    "write() has returned before it had read all rows; the others are not written: %s", where
                )
        return message_document(message, where)

    def commit(self, messages: Sequence[Message], batch: int) -> None:
        """Publish what partitions have written. Args: batch: number of the batch; only a stream gets it."""
        writer = self.create()
        read = self._read(messages)
        writer.commit(read, batch) if self.stream else writer.commit(read)

    def abort(self, messages: Sequence[Message | None], batch: int) -> None:
        """Give up what partitions have written. Args: messages: None stands for a write that failed."""
        writer = self.create()
        read = self._read(messages)
        writer.abort(read, batch) if self.stream else writer.abort(read)

    def _read(self, messages: Sequence[Message | None]) -> list[Any]:
        where = self.source.where("commit")
        return [None if document is None else message_of(document, where) for document in messages]

    def _fitting(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches in the types that Spark uses."""
        wanted = arrow_schema(self.struct)
        for batch in batches:
            # Unsafe, because Spark's times have microseconds; everything else fits.
            columns = [column.cast(field.type, safe=False) for column, field in zip(batch.columns, wanted, strict=True)]
            yield pa.RecordBatch.from_arrays(columns, schema=wanted)

    def _rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Any]:
        struct = self.struct
        for batch in batches:
            for start in range(0, batch.num_rows, ROWS_AT_ONCE):
                part = pa.Table.from_batches([batch.slice(start, ROWS_AT_ONCE)])
                yield from ArrowTableToRowsConversion.convert(part, struct)


def spark_schema(schema: pa.Schema) -> StructType:
    """Return the schema of records in Spark's types. Raises PySparkTypeError for a type that Spark does not have."""
    struct: StructType = from_arrow_schema(schema)
    return struct
