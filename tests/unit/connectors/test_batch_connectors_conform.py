"""Connectors of batch mode against the contracts, without Spark: sources whose rows a driver has written to files, and
sinks with one commit or none (S8.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from batch_sink_suite import BatchSinkConformance

from tidegate.connectors.discard import Discard
from tidegate.connectors.interface import Sink, Source, Split
from tidegate.connectors.spark.materialised_splits import splits_of_files
from tidegate.connectors.spark.spark_source import SparkFrame, SparkTable
from tidegate.connectors.spark.spark_writer import SparkWriter
from tidegate.testing.source_conformance import SourceConformance

SCHEMA = pa.schema([("n", pa.int64()), ("s", pa.string())])
_numbers = count()


@pytest.fixture(scope="class")
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Files as a driver writes them for a DataFrame."""
    folder: Path = tmp_path_factory.mktemp("materialised")
    for part in range(3):
        rows = {"n": range(100 * part, 100 * part + 100), "s": [f"row {n}" for n in range(100)]}
        pq.write_table(pa.table(rows, schema=SCHEMA), folder / f"part-{part}.parquet", row_group_size=30)
    request.cls.urls = [str(path) for path in sorted(folder.glob("*.parquet"))]
    yield


class _Table(SparkTable):
    urls: Sequence[str] = ()

    def discover(self, parallelism: int) -> Sequence[Split]:
        return splits_of_files(self.urls, SCHEMA, {}, parallelism)


class _Frame(SparkFrame):
    urls: Sequence[str] = ()

    def discover(self, parallelism: int) -> Sequence[Split]:
        return splits_of_files(self.urls, SCHEMA, {}, parallelism)


@pytest.mark.usefixtures("written")
class TestSparkTable(SourceConformance):
    urls: Sequence[str]

    def make_source(self) -> Source:
        source = _Table("sales", schema=SCHEMA)
        source.urls = self.urls
        return source


@pytest.mark.usefixtures("written")
class TestSparkFrame(SourceConformance):
    urls: Sequence[str]

    def make_source(self) -> Source:
        source = _Frame(lambda session: session.table("sales"), schema=SCHEMA)
        source.urls = self.urls
        return source


class TestDiscard(BatchSinkConformance):
    def make_sink(self, fresh: bool) -> Sink:
        return Discard()

    def visible(self) -> list[int] | None:
        return None

    def test_it_promises_no_commit_and_counts_rows(self) -> None:
        writer = self.make_sink(fresh=True).create_writer(self.context())
        assert not self.make_sink(fresh=False).two_phase and self.prepared(self.make_sink(fresh=True), 9) == []
        writer.write(pa.record_batch({"n": [1, 2]}))
        assert writer.rows == 2  # type: ignore[attr-defined]


class _WithoutSession(SparkWriter):
    """Keeps the rows that Spark's workers would write."""

    rows: list[int]

    def publish(self, rows: Any) -> None:
        files = pa.record_batch({"id": pa.array(range(len(rows.files)), pa.int64())})
        self.rows += [n for batch in rows(iter([files])) for n in batch.column("n").to_pylist()]

    def check_target(self) -> None:
        """No session."""


class TestSparkWriter(BatchSinkConformance):
    rows: list[int]

    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            self.rows = []
            self.path = str(self.folder / f"out-{next(_numbers)}")
        sink = _WithoutSession(format="parquet", path=self.path)
        sink.rows = self.rows
        return sink

    def visible(self) -> list[int] | None:
        return sorted(self.rows)
