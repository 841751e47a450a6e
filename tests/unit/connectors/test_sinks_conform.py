"""The file sinks (local and object store, partitioned or not), Delta and CollectSink against the contract (S7.4)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from fsspec.core import url_to_fs
from upsert_conformance import UpsertConformance

from tidegate.connectors.delta.delta_sink import Delta
from tidegate.connectors.files.sink.parquet import Parquet
from tidegate.connectors.files.sink.text_sinks import Csv, JsonLines
from tidegate.connectors.interface import Sink, SinkWriter, SupportsQuarantine, SupportsRewind
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.jobs.client.staged_data import StagedData
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.sink_conformance import SinkConformance

_numbers = count()


class TestCollectSink(SinkConformance):
    name = ""

    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            clear_collected(self.name)
            self.name = f"conformance-{next(_numbers)}"
        return CollectSink(self.name)

    def visible(self) -> list[int]:
        table = collected(self.name).table()
        return [] if not table.num_columns else [int(n) for n in table.column("n").to_pylist()]


@pytest.fixture(scope="class")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    request.cls.folder = tmp_path_factory.mktemp("sink")
    yield


class _WithHalf(Sink):
    """Adds a column to partition by: whether n is odd."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def create_writer(self, ctx: SinkContext) -> SinkWriter:
        schema = self._with_half(ctx).schema
        writer = self.sink.create_writer(self._with_half(ctx))
        write = writer.write

        def write_both(batch: pa.RecordBatch) -> None:
            odd = [n % 2 == 1 for n in batch.column("n").to_pylist()]
            write(pa.record_batch([batch.column("n"), pa.array(odd, pa.bool_())], schema=schema))

        writer.write = write_both  # type: ignore[method-assign]
        return writer

    def quarantine(self, ctx: SinkContext, committables: Sequence[Committable], into: Quarantine) -> None:
        assert isinstance(self.sink, SupportsQuarantine)
        self.sink.quarantine(ctx, committables, into)

    def rewind_to(
        self, ctx: SinkContext, checkpoint_id: int, pending: Sequence[Committable] = (), **more: int
    ) -> Callable[[], None]:
        assert isinstance(self.sink, SupportsRewind)
        return self.sink.rewind_to(self._with_half(ctx), checkpoint_id, pending, **more)

    def _with_half(self, ctx: SinkContext) -> SinkContext:
        return replace(ctx, schema=ctx.schema.append(pa.field("odd", pa.bool_())))

    def staged(self, ctx: SinkContext, checkpoint_id: int, handle: Committable) -> StagedData:
        return self.sink.staged(ctx, checkpoint_id, handle)


@pytest.mark.usefixtures("folder")
class TestParquetOnLocalDisk(SinkConformance):
    folder: Path
    path = ""
    target = "{folder}/{number}"
    pattern = "*.parquet"

    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            self.path = self.target.format(folder=self.folder, number=next(_numbers))
        return self.sink_at(self.path)

    def sink_at(self, path: str) -> Sink:
        return Parquet(path, target_file_rows=2)

    def visible(self) -> list[int]:
        """As DuckDB, pandas and Spark look: files right in the folder, or in a partition's."""
        filesystem, root = url_to_fs(self.path)
        found: list[int] = []
        for path in filesystem.glob(f"{root}/{self.pattern}"):
            with filesystem.open(path, "rb") as file:
                found += self.read(file.read())
        return found

    def read(self, content: bytes) -> list[int]:
        return [int(n) for n in pq.read_table(pa.BufferReader(content)).column("n").to_pylist()]


class TestGrowingParquet(TestParquetOnLocalDisk):
    """ADR 0047."""

    def sink_at(self, path: str) -> Sink:
        return Parquet(path, target_file_rows=2, compact_below="1 MiB")


class TestParquetOnAnObjectStore(TestParquetOnLocalDisk):
    """The memory file system has no rename either, and shows an object whole or not at all."""

    target = "memory://sink-{number}"


class TestPartitionedParquet(TestParquetOnLocalDisk):
    pattern = "odd=*/*.parquet"

    def sink_at(self, path: str) -> Sink:
        return _WithHalf(Parquet(path, target_file_rows=2, partition_by="odd"))

    def read_staged(self, staged: StagedData) -> list[int] | None:
        for file in staged.files:
            (odd,) = {n % 2 == 1 for n in pq.read_table(file.path).column("n").to_pylist()}
            assert file.partition == {"odd": str(odd).lower()}
        return super().read_staged(staged)


class TestCsv(TestParquetOnLocalDisk):
    pattern = "*.csv"

    def sink_at(self, path: str) -> Sink:
        return Csv(path, target_file_rows=2)

    def read_staged(self, staged: StagedData) -> list[int] | None:
        assert staged.format == "csv"
        return [n for path in staged.paths for n in self.read(Path(path).read_bytes())]

    def read(self, content: bytes) -> list[int]:
        header, *lines = content.decode().splitlines()
        assert header == '"n"'
        return [int(line.strip('"')) for line in lines]


class TestPartitionedCsv(TestCsv):
    pattern = "odd=*/*.csv"

    def sink_at(self, path: str) -> Sink:
        return _WithHalf(Csv(path, target_file_rows=2, partition_by="odd"))


class TestJsonLines(TestParquetOnLocalDisk):
    pattern = "*.jsonl"

    def sink_at(self, path: str) -> Sink:
        return JsonLines(path, target_file_rows=2)

    def read_staged(self, staged: StagedData) -> list[int] | None:
        assert staged.format == "json" and staged.bytes
        opened = (url_to_fs(path) for path in staged.paths)
        return [n for filesystem, path in opened for n in self.read(filesystem.cat_file(path))]

    def read(self, content: bytes) -> list[int]:
        return [json.loads(line)["n"] for line in content.decode().splitlines()]


class TestGrowingPartitionedJsonLines(TestJsonLines):
    """ADR 0047: compressed files that follow each other are one file."""

    pattern = "odd=*/*.jsonl.gz"

    def sink_at(self, path: str) -> Sink:
        return _WithHalf(JsonLines(path, partition_by="odd", compression="gzip", compact_below="1 MiB"))

    def read(self, content: bytes) -> list[int]:
        return super().read(gzip.decompress(content))


class TestPartitionedJsonLinesOnAnObjectStore(TestJsonLines):
    target = "memory://sink-{number}"
    pattern = "odd=*/*.jsonl.gz"

    def sink_at(self, path: str) -> Sink:
        return _WithHalf(JsonLines(path, target_file_rows=2, partition_by="odd", compression="gzip"))

    def read(self, content: bytes) -> list[int]:
        return super().read(gzip.decompress(content))


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


class TestDeltaUpserts(UpsertConformance, TestDelta):
    """In upsert mode, with keys that never come twice, a table is as when rows are appended."""

    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            self.path = f"{self.folder}/{next(_numbers)}"
        return Delta(self.path, mode="upsert", key="n", target_file_rows=2)


class TestPartitionedDeltaUpserts(TestDeltaUpserts):
    """The partition column is no part of the key."""

    def make_sink(self, fresh: bool) -> Sink:
        if fresh:
            self.path = f"{self.folder}/{next(_numbers)}"
        return _WithHalf(Delta(self.path, mode="upsert", key="n", partition_by="odd", target_file_rows=2))
