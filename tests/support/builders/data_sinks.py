"""Data sources of PySpark's Python data source API to which jobs write, as users write them. A target is a folder."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)


class Target:
    """A folder: what writers staged, what was committed, and which calls were made.

    staged/<name>.json: rows of one `write`; batches/<id>.json: names of the staged files of a committed batch.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def stage(self, rows: list[Any]) -> str:
        name = f"{uuid.uuid4().hex}.json"
        self._put(f"staged/{name}", rows)
        return name

    def commit(self, batch: str, names: Sequence[str]) -> None:
        """As a target that knows the ids of batches: a repeated commit changes nothing."""
        self.log("commit", batch, names)
        missing = [name for name in names if not (self.path / "staged" / name).exists()]
        if missing:
            raise FileNotFoundError(f"staged files are missing: {missing}")
        if not (self.path / "batches" / f"{batch}.json").exists():
            self._put(f"batches/{batch}.json", list(names))

    def abort(self, batch: str, names: Sequence[str | None]) -> None:
        self.log("abort", batch, names)
        for name in names:
            if name is not None:
                (self.path / "staged" / name).unlink()

    def log(self, what: str, batch: str, names: Sequence[str | None]) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / "calls").open("a") as file:
            file.write(json.dumps([what, batch, list(names)]) + "\n")

    def calls(self, what: str) -> list[tuple[str, list[str | None]]]:
        """The calls of a kind: batch and names, in order."""
        lines = (self.path / "calls").read_text().splitlines() if (self.path / "calls").exists() else []
        return [(batch, names) for kind, batch, names in map(json.loads, lines) if kind == what]

    def rows(self) -> list[Any]:
        """What readers of the target see."""
        names = [name for path in self.path.glob("batches/*.json") for name in json.loads(path.read_text())]
        return [row for name in names for row in json.loads((self.path / "staged" / name).read_text())]

    def staged(self) -> int:
        """The number of staged files, committed or not."""
        return len(list(self.path.glob("staged/*.json")))

    def _put(self, name: str, content: Any) -> None:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{uuid.uuid4().hex}.new")
        new.write_text(json.dumps(content, default=str))
        os.replace(new, path)


@dataclass
class Written(WriterCommitMessage):
    """name: of the staged file."""

    name: str
    rows: int
    partition: int


class StreamWriter(DataSourceStreamWriter):
    def __init__(self, target: Target) -> None:
        self._target = target

    def write(self, iterator: Iterator[Any]) -> Written:
        return self._written([row.asDict(recursive=True) for row in iterator])

    def _written(self, rows: list[Any]) -> Written:
        if any(row.get("n") == -1 for row in rows):
            raise ValueError("-1 cannot be written")
        context = TaskContext.get()
        assert context is not None
        return Written(self._target.stage(rows), len(rows), context.partitionId())

    def commit(self, messages: list[Any], batchId: int) -> None:
        self._target.commit(str(batchId), [message.name for message in messages])

    def abort(self, messages: list[Any], batchId: int) -> None:
        self._target.abort(str(batchId), [message.name if message is not None else None for message in messages])


class StreamArrowWriter(StreamWriter, DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[Any]) -> Written:
        rows = []
        for batch in iterator:
            assert isinstance(batch, pa.RecordBatch)
            rows += batch.to_pylist()
        return self._written(rows)


class BatchWriter(DataSourceWriter):
    def __init__(self, target: Target, overwrite: bool) -> None:
        self._target = target
        self._overwrite = overwrite

    def write(self, iterator: Iterator[Any]) -> Written:
        return StreamWriter(self._target).write(iterator)

    def commit(self, messages: list[Any]) -> None:
        # Without a number of a batch, the names of the files are what a repeated commit has in common with the first.
        names = [message.name for message in messages]
        self._target.commit(f"{'overwritten' if self._overwrite else 'all'}-{min(names)}", names)

    def abort(self, messages: list[Any]) -> None:
        self._target.abort("all", [message.name for message in messages])


class BatchArrowWriter(BatchWriter, DataSourceArrowWriter):
    def write(self, iterator: Iterator[Any]) -> Written:
        return StreamArrowWriter(self._target).write(iterator)


class Rows(DataSource):
    """Writes rows. The option `path` names the folder."""

    @property
    def target(self) -> Target:
        return Target(self.options["PATH"])  # Spark's options ignore case

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(self.target)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        return BatchWriter(self.target, overwrite)


class ArrowRows(Rows):
    """As `Rows`, with writers that take Arrow batches."""

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return StreamArrowWriter(self.target)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        return BatchArrowWriter(self.target, overwrite)
