"""Data sources in the shapes that Spark's own tests of its Python data source API use, written anew.

Spark's tests are `test_python_datasource.py` and `test_python_streaming_datasource.py` in `python/pyspark/sql/tests`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualTo,
    InputPartition,
    SimpleDataSourceStreamReader,
    WriterCommitMessage,
)
from pyspark.sql.types import IntegerType, StructField, StructType

# ------------------------------------------------------------ batches


class TwoRowsReader(DataSourceReader):
    """Without partitions: `read` gets one that has no value."""

    def read(self, partition: Any) -> Iterator[Any]:
        assert partition.value is None
        yield None, 0
        yield None, 1


class TwoRows(DataSource):
    """Its schema is a StructType."""

    def schema(self) -> StructType:
        return StructType([StructField("id", IntegerType()), StructField("value", IntegerType())])

    def reader(self, schema: StructType) -> DataSourceReader:
        return TwoRowsReader()


class PartitionedReader(DataSourceReader):
    def __init__(self, options: Any) -> None:
        self.count = int(options["num_partitions"]) if "num_partitions" in options else 3

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(n) for n in range(self.count)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield partition.value, str(partition.value)


class Partitioned(DataSource):
    """As many rows as partitions, which an option counts; its name is not the name of the class."""

    @classmethod
    def name(cls) -> str:
        return "memory"

    def schema(self) -> str:
        return "x INT, y STRING"

    def reader(self, schema: StructType) -> DataSourceReader:
        return PartitionedReader(self.options)


class SomeEmptyReader(DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0), InputPartition(1)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return iter([(0, 1)] if partition.value == 1 else [])


class AnyOutputReader(DataSourceReader):
    """Returns what `OUTPUTS` has under its name. `partitions` is not implemented, and says so by an exception."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def partitions(self) -> Sequence[InputPartition]:
        raise NotImplementedError

    def read(self, partition: Any) -> Any:
        return OUTPUTS[self.kind]()


_UNNAMED: Any = Row
"""PySpark declares that a row without names has texts only."""
OUTPUTS: dict[str, Any] = {
    "tuple": lambda: iter([(0, 1)]),
    "list": lambda: iter([[0, 1]]),
    "row": lambda: iter([_UNNAMED(0, 1)]),
    "named rows": lambda: iter([Row(j=1, i=0), Row(i=1, j=2)]),
    "no rows": lambda: iter([]),
    "wrong names": lambda: iter([Row(i=1, j=2), Row(j=3, k=4)]),
    "too many values": lambda: iter([(0, 1, 2)]),
    "no tuple": lambda: iter([1]),
    "none": lambda: None,
}


class AnyOutput(DataSource):
    """Options: `kind`; `schema`."""

    def schema(self) -> str:
        return str(self.options.get("schema", "i INT, j INT"))

    def reader(self, schema: StructType) -> DataSourceReader:
        return SomeEmptyReader() if self.options["kind"] == "some empty" else AnyOutputReader(self.options["kind"])


class ArrowReader(DataSourceReader):
    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: Any) -> Iterator[Any]:
        yield five_rows()


def five_rows() -> pa.RecordBatch:
    keys = pa.array(range(1, 6), pa.int32())
    return pa.record_batch([keys, pa.array(["one", "two", "three", "four", "five"])], names=["key", "value"])


class ArrowBatches(DataSource):
    def schema(self) -> str:
        return "key INT, value STRING"

    def reader(self, schema: StructType) -> DataSourceReader:
        return ArrowReader()


class FilteringReader(DataSourceReader):
    """Applies the filters that it is given, of which it knows one kind."""

    def __init__(self) -> None:
        self.wanted: int | None = None

    def pushFilters(self, filters: Any) -> Iterator[Any]:
        for one in filters:
            if isinstance(one, EqualTo) and one.attribute == ("x",):
                self.wanted = one.value
            else:
                yield one

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(n) for n in range(2)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        for x in range(4):
            if self.wanted is None or x == self.wanted:
                yield x, partition.value


class Filtering(DataSource):
    def schema(self) -> str:
        return "x INT, y INT"

    def reader(self, schema: StructType) -> DataSourceReader:
        return FilteringReader()


class FailingReader(DataSourceReader):
    def __init__(self, place: str) -> None:
        self.place = place

    def partitions(self) -> Sequence[InputPartition]:
        if self.place == "partitions":
            raise Exception("fail to create partitions")
        return [InputPartition(1), InputPartition(2)]

    def read(self, partition: Any) -> Iterator[Any]:
        raise Exception("fail to read")


class Failing(DataSource):
    """Option `place`: where it fails."""

    def schema(self) -> str:
        return "x INT"

    def reader(self, schema: StructType) -> DataSourceReader:
        if self.options["place"] == "reader":
            raise Exception("fail to create reader")
        return FailingReader(self.options["place"])


# ------------------------------------------------------------ JSON files: read and written


@dataclass
class CountMessage(WriterCommitMessage):
    count: int


class JsonReader(DataSourceReader):
    def __init__(self, options: Any) -> None:
        self.options = options

    def read(self, partition: Any) -> Iterator[Any]:
        path = self.options.get("path")
        if path is None:
            raise Exception("path is not specified")
        with open(path) as file:
            for line in file:
                if line.strip():
                    data = json.loads(line)
                    yield data.get("name"), data.get("age")


class JsonWriter(DataSourceWriter):
    """Writes to its place at once, so that readers see rows before the commit. The commit leaves a note of success."""

    def __init__(self, options: Any) -> None:
        self.path = options.get("path")

    def write(self, iterator: Iterator[Any]) -> CountMessage:
        context = TaskContext.get()
        assert context is not None
        count = 0
        with open(os.path.join(self.path, f"{context.partitionId()}.json"), "w") as file:
            for row in iterator:
                count += 1
                if "id" in row and row.id > 5:
                    raise Exception("id > 5")
                file.write(json.dumps(row.asDict()) + "\n")
        return CountMessage(count=count)

    def commit(self, messages: list[Any]) -> None:
        total = sum(message.count for message in messages)
        with open(os.path.join(self.path, "_success.txt"), "a") as file:
            file.write(f"count: {total}\n")

    def abort(self, messages: list[Any]) -> None:
        with open(os.path.join(self.path, "_failed.txt"), "a") as file:
            file.write("failed")


class JsonFiles(DataSource):
    @classmethod
    def name(cls) -> str:
        return "my-json"

    def schema(self) -> str:
        return "name STRING, age INT"

    def reader(self, schema: StructType) -> DataSourceReader:
        return JsonReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return JsonWriter(self.options)


# ------------------------------------------------------------ streams


class RangePartition(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end


class CountingStreamReader(DataSourceStreamReader):
    """Two rows more at each search, which a reader counts: `latestOffset` has no arguments, as in PySpark 4.0."""

    current = 0

    def initialOffset(self) -> dict[str, Any]:
        return {"offset": 0}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        self.current += 2
        return {"offset": self.current}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        return [RangePartition(start["offset"], end["offset"])]

    def read(self, partition: Any) -> Iterator[Any]:
        for n in range(partition.start, partition.end):
            yield (n,)


@dataclass
class PartitionMessage(WriterCommitMessage):
    partition_id: int
    count: int


class StatusStreamWriter(DataSourceStreamWriter):
    """Counts rows. The commit writes `<batch>.json`, and the abort `<batch>.txt`."""

    def __init__(self, options: Any) -> None:
        self.path = options.get("path")
        assert self.path is not None

    def write(self, iterator: Iterator[Any]) -> PartitionMessage:
        context = TaskContext.get()
        assert context is not None
        count = 0
        for row in iterator:
            if row.id > 50:
                raise Exception("invalid value")
            count += 1
        return PartitionMessage(partition_id=context.partitionId(), count=count)

    def commit(self, messages: list[Any], batchId: int) -> None:
        status = {"num_partitions": len(messages), "rows": sum(message.count for message in messages)}
        with open(os.path.join(self.path, f"{batchId}.json"), "a") as file:
            file.write(json.dumps(status) + "\n")

    def abort(self, messages: list[Any], batchId: int) -> None:
        with open(os.path.join(self.path, f"{batchId}.txt"), "w") as file:
            file.write(f"failed in batch {batchId}")


class CountingStream(DataSource):
    """A stream that has no end, and a sink that counts."""

    def schema(self) -> str:
        return "id INT"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return CountingStreamReader()

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StatusStreamWriter(self.options)


class OnceStreamReader(DataSourceStreamReader):
    """One batch, of Arrow; `latestOffset` always returns the same."""

    def initialOffset(self) -> dict[str, Any]:
        return {"offset": 0}

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        return {"offset": 2}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: Any) -> Iterator[Any]:
        yield five_rows()


class OnceStream(DataSource):
    def schema(self) -> str:
        return "key INT, value STRING"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return OnceStreamReader()


class SimpleStreamReader(SimpleDataSourceStreamReader):
    """Two rows at each read, without an end."""

    def initialOffset(self) -> dict[str, Any]:
        return {"offset": 0}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[Any], dict[str, Any]]:
        begin = start["offset"]
        return iter([(n,) for n in range(begin, begin + 2)]), {"offset": begin + 2}

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[Any]:
        return iter([(n,) for n in range(start["offset"], end["offset"])])

    def commit(self, end: dict[str, Any]) -> None:
        pass


class SimpleStream(DataSource):
    def schema(self) -> str:
        return "id INT"

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return SimpleStreamReader()


@dataclass
class ArrowMessage(WriterCommitMessage):
    partition_id: int
    batch_count: int
    total_rows: int


class ArrowStatusWriter(DataSourceStreamArrowWriter):
    """Writes each Arrow batch to a file; the commit writes `commit_<batch>.json`."""

    def __init__(self, options: Any) -> None:
        self.path = options.get("path")
        assert self.path is not None

    def write(self, iterator: Iterator[Any]) -> ArrowMessage:
        context = TaskContext.get()
        assert context is not None
        partition, batches, rows = context.partitionId(), 0, 0
        for batch in iterator:
            assert isinstance(batch, pa.RecordBatch)
            batches += 1
            rows += batch.num_rows
            path = os.path.join(self.path, f"partition_{partition}_batch_{batches}.json")
            batch.to_pandas().to_json(path, orient="records")
        return ArrowMessage(partition_id=partition, batch_count=batches, total_rows=rows)

    def commit(self, messages: list[Any], batchId: int) -> None:
        status = {
            "batch_id": batchId,
            "num_partitions": len([message for message in messages if message]),
            "total_batches": sum(message.batch_count for message in messages if message),
            "total_rows": sum(message.total_rows for message in messages if message),
        }
        with open(os.path.join(self.path, f"commit_{batchId}.json"), "w") as file:
            json.dump(status, file)

    def abort(self, messages: list[Any], batchId: int) -> None:
        with open(os.path.join(self.path, f"abort_{batchId}.txt"), "w") as file:
            file.write(f"Batch {batchId} aborted")


class ArrowStream(DataSource):
    def schema(self) -> str:
        return "id INT, name STRING, value DOUBLE"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return ArrowStatusWriter(self.options)
