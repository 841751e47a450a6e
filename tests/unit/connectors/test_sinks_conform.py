"""Parquet (local and object store), Delta and CollectSink against the sink contract (S7.4)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import fsspec
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tidegate.connectors.contract import Sink
from tidegate.connectors.delta import Delta
from tidegate.connectors.parquet import Parquet
from tidegate.testing.collect import CollectSink, collected, forget_collected
from tidegate.testing.sink_conformance import SinkConformance

_numbers = count()


class TestCollectSink(SinkConformance):
    name = ""

    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            forget_collected(self.name)
            self.name = f"conformance-{next(_numbers)}"
        return CollectSink(self.name)

    def visible(self) -> list[int]:
        table = collected(self.name).table()
        return [] if not table.num_columns else [int(n) for n in table.column("n").to_pylist()]


@pytest.fixture(scope="class")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    request.cls.folder = tmp_path_factory.mktemp("sink")
    yield


@pytest.mark.usefixtures("folder")
class TestParquetOnLocalDisk(SinkConformance):
    folder: Path
    path = ""

    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            self.path = f"{self.folder}/{next(_numbers)}"
        return Parquet(self.path, target_file_rows=2)

    def visible(self) -> list[int]:
        """As DuckDB, pandas and Spark look: Parquet files right in the folder."""
        return [n for file in Path(self.path).glob("*.parquet") for n in pq.read_table(file).column("n").to_pylist()]


class TestParquetOnAnObjectStore(SinkConformance):
    """The memory file system has no rename either, and shows an object whole or not at all."""

    path = ""

    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            self.path = f"memory://sink-{next(_numbers)}"
        return Parquet(self.path, target_file_rows=2)

    def visible(self) -> list[int]:
        filesystem = fsspec.filesystem("memory")
        found: list[int] = []
        for path in filesystem.glob(f"{self.path}/*.parquet"):
            with filesystem.open(path) as file:
                found += pq.read_table(file).column("n").to_pylist()
        return found


@pytest.mark.usefixtures("folder")
class TestDelta(SinkConformance):
    folder: Path
    path = ""

    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            self.path = f"{self.folder}/{next(_numbers)}"
        return Delta(self.path, target_file_rows=2)

    def visible(self) -> list[int]:
        """As delta-rs reads the table."""
        try:
            table = DeltaTable(self.path)
        except TableNotFoundError:
            return []
        return [int(n) for n in table.to_pyarrow_table().column("n").to_pylist()]
