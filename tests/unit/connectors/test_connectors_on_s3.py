"""File sinks, the Delta sink and Files on S3, as far as moto's server on loopback is S3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import fsspec
import pyarrow as pa
import pytest
import s3fs
from deltalake import DeltaTable as DeltaTableOfRust
from moto.server import ThreadedMotoServer

from tidegate.connectors.delta.delta_log import DeltaLog, log_options
from tidegate.connectors.delta.delta_sink import Delta
from tidegate.connectors.delta.source.delta_source import DeltaTable
from tidegate.connectors.files.sink.parquet import Parquet
from tidegate.connectors.files.sink.text_sinks import JsonLines
from tidegate.connectors.files.source.files import Files
from tidegate.connectors.interface import SourceContext
from tidegate.connectors.leftovers import NeededTransactions
from tidegate.errors import PipelineError
from tidegate.testing.one_sink_job import TestWriter, numbers

_buckets = count()


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def options(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    monkeypatch.setenv("TIDEGATE_TEST_S3_SECRET", "hidden")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    client = {"endpoint_url": endpoint, "region_name": "us-east-1"}
    return {"key": "test", "secret": "secret:env/TIDEGATE_TEST_S3_SECRET", "client_kwargs": client}


@pytest.fixture
def bucket(options: Mapping[str, Any]) -> str:
    name = f"connectors-{next(_buckets)}"
    s3fs.S3FileSystem(**{**options, "secret": "hidden"}).call_s3("create_bucket", Bucket=name)
    return name


def test_what_one_run_staged_on_s3_another_commits_and_files_reads_back(
    options: Mapping[str, Any], bucket: str
) -> None:
    url = f"s3://{bucket}/out"
    sink = Parquet(url, storage_options=options, target_file_rows=2)
    sink.check(TestWriter.schema)
    identity = TestWriter()
    first = sink.create_writer(identity.context())
    first.write(numbers(0, 2))
    first.write(numbers(2, 2))
    completed = first.prepare_commit(1)()
    first.write(numbers(4, 2))
    first.prepare_commit(2)()
    with pytest.raises(PipelineError, match="no input file"):
        Files(url, storage_options=options).schema()
    identity.run = 2
    second = sink.create_writer(identity.context())
    second.commit(completed)
    second.commit(completed)
    second.recover(1)

    source = Files(f"{url}/*.parquet", storage_options=options)
    reader = source.create_reader(SourceContext("files", 0, 1))
    reader.add_splits(source.discover(1))
    found: list[int] = []
    while (polled := reader.poll(0)).batch is not None:
        found += polled.batch.column("n").to_pylist()
    assert found == [0, 1, 2, 3]
    left = s3fs.S3FileSystem(**{**options, "secret": "hidden"}).find(f"{bucket}/out/_tidegate")
    assert [path.split("/")[-2] for path in left] == ["commits"]
    sink.check(TestWriter.schema)


def test_a_partitioned_folder_on_s3_is_taken_back_to_a_snapshot(options: Mapping[str, Any], bucket: str) -> None:
    """S9.3."""
    sink = JsonLines(f"s3://{bucket}/out", storage_options=options, partition_by="p", compression="zstd")
    schema = TestWriter.schema.append(pa.field("p", pa.string()))
    sink.check(schema)
    writer = sink.create_writer(replace(TestWriter().context(), schema=schema))
    for n in (1, 2, 3):
        writer.write(pa.record_batch({"n": [n, -n], "p": ["a b", "ü/"]}, schema=schema))
        writer.commit(writer.prepare_commit(n)())
    sink.check(schema)
    files = s3fs.S3FileSystem(**{**options, "secret": "hidden"})
    assert len(files.glob(f"{bucket}/out/p=*/*.jsonl.zst")) == 6
    sink.rewind_to(replace(TestWriter().context(0, 1), generation=2), 1)()
    left = files.find(f"{bucket}/out")
    marked, noted = sorted(path.split("/", 3)[3] for path in left if "/_tidegate/" in path)
    assert noted.endswith("/rewound-1-4.json") and marked.startswith("commits/")
    assert sorted(path.split("/")[2] for path in left) == ["_tidegate", "_tidegate", "p=a b", "p=ü%2F"]
    everybody, now = replace(TestWriter().context(0, 1), generation=2), datetime.now(UTC)
    assert sink.collect(everybody, NeededTransactions((), 0, now - timedelta(hours=1))).found == ()
    (one,) = sink.collect(everybody, NeededTransactions((), 0, now + timedelta(hours=1))).found
    assert (one.why, one.files) == ("markers", 1) and one.size_bytes > 0
    files.invalidate_cache()
    kept = [path.rsplit(".", 1)[-1] for path in files.find(f"{bucket}/out/_tidegate")]
    assert sorted(kept) == ["json", "parquet"], "the note and a pack, and no marker"
    source = Files(f"s3://{bucket}/out", storage_options=options)
    assert len(source.discover(1)) == 2
    with pytest.raises(PipelineError, match="partitioned differently"):
        JsonLines(f"s3://{bucket}/out", storage_options=options).check(schema)


def test_a_rival_on_s3_is_noticed_between_the_look_at_a_delta_log_and_the_append(
    options: Mapping[str, Any], bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.4. The server is a thread of this process: a call of delta-rs that kept the interpreter's lock, and so a
    slot's loop from running, would hang here."""
    url = f"s3://{bucket}/table"
    sink = Delta(url, storage_options=options, target_file_rows=2, partition_by="p")
    schema = TestWriter.schema.append(pa.field("p", pa.string()))
    monkeypatch.setattr(TestWriter, "schema", schema)
    sink.check(schema)
    identity = TestWriter()
    zombie = sink.create_writer(identity.context())
    zombie.write(pa.record_batch({"n": range(4), "p": ["a b", "a b", "c", None]}, schema=schema))
    handles = zombie.prepare_commit(1)()
    zombie.write(pa.record_batch({"n": [4], "p": ["c"]}, schema=schema))
    zombie.prepare_commit(2)()
    identity.generation = 2
    successor = sink.create_writer(identity.context())
    append, problems = DeltaLog.append, []

    def overtaken(*args: Any) -> str | None:
        monkeypatch.setattr(DeltaLog, "append", append)
        successor.commit(handles)
        problems.append(append(*args))
        return problems[0]

    monkeypatch.setattr(DeltaLog, "append", overtaken)
    zombie.commit(handles)
    assert problems[0] is not None and "Concurrent transaction" in problems[0]
    successor.commit(handles)
    successor.recover(1)

    table = DeltaTableOfRust(url, storage_options=log_options(url, options))
    assert (table.version(), sorted(table.to_pyarrow_table()["n"].to_pylist())) == (1, [0, 1, 2, 3])
    left = s3fs.S3FileSystem(**{**options, "secret": "hidden"}).find(f"{bucket}/table/_tidegate")
    assert [path.split("/")[-2] for path in left] == ["commits"]
    sink.check(schema)


def test_a_delta_table_on_s3_is_read_while_it_grows_and_its_sink_is_taken_back(
    options: Mapping[str, Any], bucket: str
) -> None:
    """S4.3, S9.3."""
    url = f"s3://{bucket}/table"
    sink = Delta(url, storage_options=options)
    identity = TestWriter()
    writer = sink.create_writer(identity.context())

    def commit(checkpoint_id: int) -> None:
        writer.write(numbers(10 * checkpoint_id, 3))
        writer.commit(writer.prepare_commit(checkpoint_id)())

    commit(1)
    source = DeltaTable(url, storage_options=options, follow="1 s")
    reader = source.create_reader(SourceContext("table", 0, 1))
    found: list[int] = []

    def read(state: Any) -> Any:
        search = source.create_enumerator(state).discover()
        assert source.unavailable_splits(search.splits) == []
        reader.add_splits(search.splits)
        while (polled := reader.poll(0)).batch is not None:
            found.extend(polled.batch["n"].to_pylist())
        return search

    first = read(None)
    assert found == [10, 11, 12] and first.readable_until_ms is not None
    commit(2)
    commit(3)
    second = read(first.state)
    assert found == [10, 11, 12, 20, 21, 22, 30, 31, 32]
    identity.generation = 2
    sink.rewind_to(identity.context(0, 1), 1)()
    table = DeltaTableOfRust(url, storage_options=log_options(url, options))
    assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == [10, 11, 12]
    with pytest.raises(PipelineError, match=r"version 4 .*removes or rewrites rows"):
        read(second.state)
    reader.close()
    bounded = DeltaTable(url, storage_options=options)
    assert sum(int(split.data["files"][0]["bytes"]) > 0 for split in bounded.discover(1)) == 1
    with pytest.raises(PipelineError, match="there is no Delta table"):
        DeltaTable(f"s3://{bucket}/nothing", storage_options=options).schema()


def test_a_delta_table_on_s3_is_upserted_and_taken_back(
    options: Mapping[str, Any], bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.4, S9.3: with a rival that commits the same transaction during the search for its keys."""
    url = f"s3://{bucket}/table"
    sink = Delta(url, storage_options=options, mode="upsert", key="n", partition_by="p")
    schema = TestWriter.schema.append(pa.field("p", pa.string()))
    monkeypatch.setattr(TestWriter, "schema", schema)
    sink.check(schema)
    identity = TestWriter()

    def staged(writer: Any, checkpoint_id: int, **columns: Any) -> Any:
        writer.write(pa.record_batch(columns, schema=schema))
        return writer.prepare_commit(checkpoint_id)()

    def rows() -> list[tuple[int, str | None]]:
        table = DeltaTableOfRust(url, storage_options=log_options(url, options)).to_pyarrow_table()
        return sorted((row["n"], row["p"]) for row in table.to_pylist())

    first = sink.create_writer(identity.context())
    first.commit(staged(first, 1, n=[1, 2, 3], p=["a b", "a b", None]))
    handles = staged(first, 2, n=[2, 4], p=["c", "a b"])
    identity.generation = 2
    successor = sink.create_writer(identity.context())
    change, problems = DeltaLog.change, []

    def overtaken(*args: Any) -> str | None:
        monkeypatch.setattr(DeltaLog, "change", change)
        successor.commit(handles)
        problems.append(change(*args))
        return problems[0]

    monkeypatch.setattr(DeltaLog, "change", overtaken)
    first.commit(handles)
    assert problems[0] is not None
    assert rows() == [(1, "a b"), (2, "c"), (3, None), (4, "a b")]
    left = s3fs.S3FileSystem(**{**options, "secret": "hidden"}).find(f"{bucket}/table/_tidegate")
    assert [path.split("/")[-2] for path in left] == ["commits", "commits"]
    identity.generation = 3
    sink.rewind_to(identity.context(0, 1), 1)()
    assert rows() == [(1, "a b"), (2, "a b"), (3, None)]


def test_a_missing_bucket_is_named_before_the_start(options: Mapping[str, Any]) -> None:
    with pytest.raises(PipelineError, match="no-such-bucket"):
        Parquet("s3://no-such-bucket/out", storage_options=options).check(TestWriter.schema)
    with pytest.raises(PipelineError, match="no-such-bucket"):
        Delta("s3://no-such-bucket/out", storage_options=options).check(TestWriter.schema)
    with pytest.raises(PipelineError, match="no-such-bucket"):
        Files("s3://no-such-bucket/in", storage_options=options).schema()


def test_an_object_that_was_replaced_by_one_of_its_size_is_refused_by_its_etag(
    options: Mapping[str, Any], bucket: str
) -> None:
    url = f"s3://{bucket}/in/a.csv"
    with fsspec.open(url, "wb", **{**options, "secret": "hidden"}) as file:
        file.write(b"n\n1\n")
    source = Files(f"s3://{bucket}/in", storage_options=options)
    splits = source.discover(1)
    assert splits[0].data["etag"]
    assert source.unavailable_splits(splits) == []
    with fsspec.open(url, "wb", **{**options, "secret": "hidden"}) as file:
        file.write(b"n\n2\n")
    assert "ETag of the file was" in dict(source.unavailable_splits(splits))[splits[0].split_id]
    reader = source.create_reader(SourceContext("files", 0, 1))
    reader.add_splits(splits)
    with pytest.raises(PipelineError, match=r"changed after.*a\.csv.*ETag of the file was"):
        reader.poll(0)
