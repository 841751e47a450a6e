"""Numbers of a Python data source, sent to the subtask of their key, into another Python data source. Slots import both
from here."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)

from tidegate import DataGen, Pipeline, PySparkSink, PySparkSource

ROWS_PER_PARTITION = 500


@dataclass
class Range(InputPartition):
    """Numbers begin <= n < end."""

    begin: int
    end: int


class NumbersStream(DataSourceStreamReader):
    """Numbers below the content of a file."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def initialOffset(self) -> dict[str, Any]:
        return {"n": 0}

    def latestOffset(self, start: Any, limit: Any) -> dict[str, Any]:
        return {"n": int(self._path.read_text())}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        begins = range(start["n"], end["n"], ROWS_PER_PARTITION)
        return [Range(at, min(at + ROWS_PER_PARTITION, end["n"])) for at in begins]

    def read(self, partition: Any) -> Iterator[Any]:
        for n in range(partition.begin, partition.end):
            yield n, f"n{n}"


@dataclass
class Written(WriterCommitMessage):
    """name: of the file; partition: who wrote it."""

    name: str
    partition: int


class BatchWriter(DataSourceWriter):
    """Writes files; a commit names them in `batches/<id>.json`, and the calls are noted in `calls`."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        for folder in ("files", "batches"):
            (self._path / folder).mkdir(parents=True, exist_ok=True)

    def write(self, iterator: Iterator[Any]) -> Written:
        context = TaskContext.get()
        assert context is not None
        name = f"{uuid.uuid4().hex}.json"
        with (self._path / "files" / name).open("w") as file:
            file.writelines(json.dumps(row.asDict()) + "\n" for row in iterator)
            os.fsync(file.fileno())
        return Written(name, context.partitionId())

    def commit(self, messages: list[Any], batchId: int = 0) -> None:
        with (self._path / "calls").open("a") as file:
            file.write(json.dumps([batchId, [message.partition for message in messages], os.getpid()]) + "\n")
        target = self._path / "batches" / f"{batchId}.json"
        names = sorted(message.name for message in messages)
        if target.exists():
            assert json.loads(target.read_text()) == names, "a repeated commit has the same messages"
            return
        new = target.with_suffix(f".{uuid.uuid4().hex}.new")
        new.write_text(json.dumps(names))
        os.replace(new, target)

    def abort(self, messages: list[Any], batchId: int = 0) -> None:
        for message in messages:
            if message is not None:
                (self._path / "files" / message.name).unlink(missing_ok=True)


class BatchStreamWriter(BatchWriter, DataSourceStreamWriter):
    """The same for a stream."""


class Numbers(DataSource):
    """The option `path` names a file or a folder."""

    def schema(self) -> str:
        return "n BIGINT, text STRING"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return NumbersStream(self.options["path"])

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self.options["path"])

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return BatchStreamWriter(self.options["path"])


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: out (folder of the results); the file is `numbers` beside it."""
    p = Pipeline()
    path = Path(str(args["out"])).parent / "numbers"
    numbers = PySparkSource(Numbers, options={"path": str(path)}, stream=True, every="100 ms")
    into = PySparkSink(Numbers, options={"path": str(args["out"])}, stream=True)
    p.read(numbers, uid="numbers").repartition("text").write(into, uid="out")
    return p


def build_bounded(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: out, rows, rate (rows per second)."""
    import pyarrow as pa

    p = Pipeline()
    numbers = DataGen(
        lambda n: {"n": n}, pa.schema([("n", pa.int64())]), rows=int(args["rows"]), splits=2, rate=float(args["rate"])
    )
    into = PySparkSink(Numbers, options={"path": str(args["out"])})
    p.read(numbers, uid="numbers").repartition("n").write(into, uid="out")
    return p
