"""Numbers of a Python data source, sent to the subtask of their key. Slots import the data source from here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from tidegate import Parquet, Pipeline, PySparkSource

ROWS_PER_PARTITION = 500


@dataclass
class Range(InputPartition):
    """Numbers begin <= n < end."""

    begin: int
    end: int


class NumbersStream(DataSourceStreamReader):
    """Numbers below the content of a file; notes committed offsets beside it."""

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

    def commit(self, end: Any) -> None:
        with self._path.with_suffix(".commits").open("a") as file:
            file.write(f"{end['n']}\n")


class Numbers(DataSource):
    """The option `path` names the file."""

    def schema(self) -> str:
        return "n BIGINT, text STRING"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return NumbersStream(self.options["path"])


def build(args: Mapping[str, Any]) -> Pipeline:
    """Arguments: out (folder of the results); the file is `numbers` beside it."""
    p = Pipeline()
    path = Path(str(args["out"])).parent / "numbers"
    numbers = PySparkSource(Numbers, options={"path": str(path)}, stream=True, every="100 ms")
    p.read(numbers, uid="numbers").repartition("text").write(Parquet(str(args["out"])), uid="out")
    return p
