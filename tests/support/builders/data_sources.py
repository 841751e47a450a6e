"""Data sources of PySpark's Python data source API, as users write them. Their input is a JSON file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    SimpleDataSourceStreamReader,
)
from pyspark.sql.types import StructType


class Ledger:
    """The input of a test: numbers 0, 1, ... below `end`, and the offsets that were committed."""

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._commits = self._path.with_suffix(".commits")

    @property
    def end(self) -> int:
        return int(json.loads(self._path.read_text()))

    @end.setter
    def end(self, end: int) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(end))
        new.replace(self._path)

    def commit(self, offset: dict[str, Any]) -> None:
        with self._commits.open("a") as file:
            file.write(json.dumps(offset) + "\n")

    @property
    def commits(self) -> list[Any]:
        return [json.loads(line) for line in self._commits.read_text().splitlines()] if self._commits.exists() else []


@dataclass
class Range(InputPartition):
    """Numbers begin <= n < end."""

    begin: int
    end: int


def ranges(begin: int, end: int, most: int) -> list[Range]:
    return [Range(at, min(at + most, end)) for at in range(begin, end, most)]


class NumbersBatch(DataSourceReader):
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def partitions(self) -> Sequence[InputPartition]:
        return ranges(0, self._ledger.end, 70)

    def read(self, partition: Any) -> Iterator[Any]:
        for n in range(partition.begin, partition.end):
            yield n, f"n{n}"


class NumbersStream(DataSourceStreamReader):
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def initialOffset(self) -> dict[str, Any]:
        return {"n": 0}

    def latestOffset(self, start: Any, limit: Any) -> dict[str, Any]:
        return {"n": min(self._ledger.end, start["n"] + 100)}

    def partitions(self, start: Any, end: Any) -> Sequence[InputPartition]:
        return ranges(start["n"], end["n"], 40)

    def read(self, partition: Any) -> Iterator[Any]:
        numbers = pa.array(range(partition.begin, partition.end), pa.int64())
        texts = pa.array([f"n{n}" for n in range(partition.begin, partition.end)])
        yield pa.record_batch([texts, numbers], names=["text", "n"])

    def commit(self, end: Any) -> None:
        self._ledger.commit(end)


class OldNumbersStream(NumbersStream):
    """As for PySpark 4.0: `latestOffset` has no arguments."""

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        return {"n": self._ledger.end}


class SimpleNumbers(SimpleDataSourceStreamReader):
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def initialOffset(self) -> dict[str, Any]:
        return {"n": 0}

    def read(self, start: Any) -> tuple[Iterator[Any], dict[str, Any]]:
        end = {"n": min(self._ledger.end, start["n"] + 100)}
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: Any, end: Any) -> Iterator[Any]:
        return iter([Row(text=f"n{n}", n=n) for n in range(start["n"], end["n"])])

    def commit(self, end: Any) -> None:
        self._ledger.commit(end)


class Numbers(DataSource):
    """Its schema is a text."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> StructType | str:
        return "n BIGINT, text STRING"

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.options["PATH"])  # Spark's options ignore case

    def reader(self, schema: StructType) -> DataSourceReader:
        return NumbersBatch(self.ledger)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return NumbersStream(self.ledger)


class OldNumbers(Numbers):
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return OldNumbersStream(self.ledger)


class FewNumbers(DataSource):
    """Has a simple stream only."""

    def schema(self) -> StructType | str:
        return "n BIGINT, text STRING"

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return SimpleNumbers(Ledger(self.options["path"]))
