"""Files and Replay against the source contract."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from tidegate.connectors.files.source.files import Files
from tidegate.connectors.interface import Source
from tidegate.connectors.replay import Replay
from tidegate.testing.source_conformance import SourceConformance

START = datetime(2013, 1, 1)


def sample(rows: int, first: int = 0) -> pa.Table:
    """Rows in mixed time order, each third time equal to its neighbour's, some without a name."""
    numbers = [first + (i * 7) % rows for i in range(rows)]
    return pa.table(
        {
            "n": pa.array(numbers, pa.int64()),
            "at": pa.array([START + timedelta(minutes=n // 3) for n in numbers], pa.timestamp("s")),
            "name": pa.array([None if n % 5 == 0 else f"name {n}" for n in numbers], pa.string()),
        }
    )


@pytest.fixture(scope="class")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    made = tmp_path_factory.mktemp("input")
    pq.write_table(sample(300), made / "a.parquet", row_group_size=64)
    pq.write_table(sample(90, 300), made / "b.parquet")
    pa_csv.write_csv(sample(300), made / "a.csv")
    (made / "b.csv.gz").write_bytes(gzip.compress((made / "a.csv").read_bytes()))
    lines = "".join(f'{{"n": {n}, "name": "name {n}"}}\n' for n in range(300))
    (made / "a.jsonl").write_text(lines)
    request.cls.folder = made
    yield


@pytest.mark.usefixtures("folder")
class FolderSource(SourceConformance):
    folder: Path


class TestFilesParquet(FolderSource):
    def make_source(self) -> Source:
        return Files(self.folder / "*.parquet")


class TestFilesOnDemand(FolderSource):
    def make_source(self) -> Source:
        return Files(self.folder / "*.parquet", assign="on_demand")


class TestFilesCsv(FolderSource):
    def make_source(self) -> Source:
        return Files([self.folder / "a.csv", self.folder / "b.csv.gz"])


class TestFilesJson(FolderSource):
    def make_source(self) -> Source:
        return Files(self.folder / "a.jsonl")


class TestReplayPaced(FolderSource):
    def make_source(self) -> Source:
        return Replay(self.folder / "*.parquet", time_column="at", rate=100, batch_rows=20)


class TestReplayAtEventTimeSpeed(FolderSource):
    def make_source(self) -> Source:
        return Replay(self.folder / "*.parquet", time_column="at", speedup=60, batch_rows=20)


class TestReplayWithAnEnd(FolderSource):
    def make_source(self) -> Source:
        return Replay(self.folder / "*.parquet", time_column="at", at_end="end", batch_rows=20)


class TestReplayLooping(FolderSource):
    enough_rows = 1_000

    def make_source(self) -> Source:
        return Replay(self.folder / "*.parquet", time_column="at", at_end="loop", batch_rows=100)
