"""`PySparkSink` with a stream of batches against the contract (S7.4)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from builders.data_sinks import ArrowRows, Rows, Target
from pyspark.sql.datasource import DataSource

from tidegate.connectors.interface import Sink
from tidegate.connectors.pyspark.pyspark_sink import PySparkSink
from tidegate.testing.sink_conformance import SinkConformance

_numbers = count()


@pytest.fixture(scope="class")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    request.cls.folder = tmp_path_factory.mktemp("data-source")
    yield


@pytest.mark.usefixtures("folder")
class TestStreamOfRows(SinkConformance):
    folder: Path
    source: type[DataSource] = Rows
    path = Path()

    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            self.path = self.folder / str(next(_numbers))
        options = {"path": str(self.path / "target")}
        return PySparkSink(self.source, options=options, stream=True, staging=self.path / "staging")

    def visible(self) -> list[int]:
        return [row["n"] for row in Target(self.path / "target").rows()]


class TestStreamOfArrowBatches(TestStreamOfRows):
    source = ArrowRows
