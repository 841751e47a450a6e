"""The shapes of data sources that Spark's own tests use, unchanged, as sources and sinks of jobs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.sinks import new_sink_name
from builders.spark_shapes import (
    AnyOutput,
    ArrowBatches,
    ArrowStream,
    CountingStream,
    Failing,
    Filtering,
    JsonFiles,
    OnceStream,
    Partitioned,
    SimpleStream,
    TwoRows,
)
from pyspark.sql.datasource import DataSource

from tidegate import DataGen, Pipeline, PySparkSink, PySparkSource
from tidegate.connectors.interface import Source
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import SnapshotError
from tidegate.jobs.records import RestoreFrom
from tidegate.subtask.chain import OperatorFailure
from tidegate.testing.batch import run_batch
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun


def until(run: InProcessRun, condition: Callable[[], bool]) -> None:
    """Let the run work until a condition holds. Readers read on threads."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end, "stuck"
        run.pump(5)
        run.tick(20)


def rows_of(source: type[DataSource], *, rows: int | None = None, **options: str) -> list[tuple[Any, ...]]:
    """The rows that a job with two slots reads: all, or at least `rows` of a stream."""
    sink = new_sink_name()

    def build() -> Pipeline:
        p = Pipeline()
        p.read(PySparkSource(source, options=options, stream=rows is not None, every="10 ms"), uid="in").write(
            CollectSink(sink), uid="out"
        )
        return p

    def found() -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for row in collected(sink).table().to_pylist()]

    run = InProcessJob(build, {"parallelism": 2}).submit()
    if rows is None:
        until(run, lambda: run.outcome is not None)
        assert isinstance(run.outcome, RunEnded)
    else:
        for n in range(1_000):
            run.pump(5)
            run.tick(20)
            run.ask(ev.SnapshotRequest("checkpoint", request_id=f"c{n}"))
            if len(found()) >= rows:
                break
            time.sleep(0.001)  # a reader's thread may need the processor
        run.crash()
    return sorted(found(), key=repr)


# ------------------------------------------------------------ sources


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        (TwoRows, {}, [(None, 0), (None, 1)]),
        (Partitioned, {}, [(0, "0"), (1, "1"), (2, "2")]),
        (Partitioned, {"num_partitions": "2"}, [(0, "0"), (1, "1")]),
        (ArrowBatches, {}, [(1, "one"), (2, "two"), (3, "three"), (4, "four"), (5, "five")]),
        (Filtering, {}, [(x, y) for x in range(4) for y in range(2)]),
        (AnyOutput, {"kind": "tuple"}, [(0, 1)]),
        (AnyOutput, {"kind": "list"}, [(0, 1)]),
        (AnyOutput, {"kind": "row"}, [(0, 1)]),
        (AnyOutput, {"kind": "named rows"}, [(0, 1), (1, 2)]),
        (AnyOutput, {"kind": "some empty"}, [(0, 1)]),
        (AnyOutput, {"kind": "tuple", "schema": "i LONG, j STRING"}, [(0, "1")]),
    ],
)
def test_a_batch_is_read_as_spark_reads_it(source: type[DataSource], options: Any, expected: Any) -> None:
    assert rows_of(source, **options) == expected


def test_a_batch_without_rows_ends() -> None:
    assert rows_of(AnyOutput, kind="no rows") == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"kind": "wrong names"}, "a row has the columns"),
        ({"kind": "too many values"}, "3 values instead of 2"),
        ({"kind": "tuple", "schema": "i INT"}, "2 values instead of 1"),
        ({"kind": "no tuple"}, "a row is a int"),
        ({"kind": "none"}, "it returned a NoneType and no iterator"),
    ],
)
def test_rows_that_spark_refuses_fail_the_job(options: Any, why: str) -> None:
    with pytest.raises(OperatorFailure, match=why):
        rows_of(AnyOutput, **options)


@pytest.mark.parametrize("place", ["reader", "partitions", "read"])
def test_an_error_of_the_class_reaches_the_user(place: str) -> None:
    with pytest.raises(Exception, match=f"fail to {place if place == 'read' else f'create {place}'}"):
        rows_of(Failing, place=place)


@pytest.mark.parametrize("source", [CountingStream, SimpleStream])
def test_a_stream_that_grows_by_itself_is_read_in_order(source: type[DataSource]) -> None:
    found = [n for (n,) in rows_of(source, rows=20)]
    assert sorted(found) == list(range(len(found)))


def test_a_stream_with_one_batch_of_arrow_is_read_once() -> None:
    assert [key for key, _ in rows_of(OnceStream, rows=5)] == [1, 2, 3, 4, 5]


def test_json_lines_are_read(tmp_path: Path) -> None:
    (tmp_path / "people.json").write_text('{"name": "Michael"}\n\n{"name": "Andy", "age": 30}\n')
    assert rows_of(JsonFiles, path=str(tmp_path / "people.json")) == [("Andy", 30), ("Michael", None)]
    with pytest.raises(OperatorFailure, match="path is not specified"):
        rows_of(JsonFiles)


# ------------------------------------------------------------ sinks


def ids(first: int, count: int) -> Source:
    """Two splits of ids."""
    return DataGen(lambda n: {"id": n + first}, pa.schema([("id", pa.int64())]), rows=count, splits=2, batch_rows=4)


def into(
    folder: Path, source: type[DataSource], read: Callable[[], Source], **arguments: Any
) -> Callable[[], Pipeline]:
    def build() -> Pipeline:
        p = Pipeline()
        p.read(read(), uid="in").write(PySparkSink(source, options={"path": str(folder)}, **arguments), uid="out")
        return p

    return build


def json_rows(folder: Path) -> list[Any]:
    return [json.loads(line) for path in folder.glob("*.json") for line in path.read_text().splitlines()]


def test_json_files_are_written_with_one_note_of_success(tmp_path: Path) -> None:
    """S7.2, S7.4: a file for each subtask, over a crash and several checkpoints."""
    job = InProcessJob(into(tmp_path, JsonFiles, lambda: ids(-35, 40)), {"parallelism": 2})
    run = job.submit()
    for n in range(3):
        run.pump(1)
        run.ask(ev.SnapshotRequest("checkpoint", request_id=f"c{n}"))
    assert list(tmp_path.iterdir()) == [], "before its end, a job writes nothing"
    run.crash()
    assert isinstance(job.rerun().to_end(), RunEnded)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.json", "1.json", "_success.txt"]
    assert (tmp_path / "_success.txt").read_text() == "count: 40\n"
    assert sorted(row["id"] for row in json_rows(tmp_path)) == list(range(-35, 5))


def test_json_files_are_written_in_batch_mode(tmp_path: Path) -> None:
    """S8.1: one checkpoint, and one commit."""
    run_batch(into(tmp_path, JsonFiles, lambda: ids(-35, 40)), {"parallelism": 3})
    assert (tmp_path / "_success.txt").read_text() == "count: 40\n"
    assert sorted(row["id"] for row in json_rows(tmp_path)) == list(range(-35, 5))


def test_a_write_of_all_rows_that_fails_is_repeated_and_not_given_up(tmp_path: Path) -> None:
    """S7.4: the rows are safe, and another attempt may succeed: with a corrected class, or a target that is back."""
    job = InProcessJob(into(tmp_path, JsonFiles, lambda: ids(0, 8)), {"parallelism": 2})
    with pytest.raises(Exception, match="id > 5"):
        job.submit().to_end()
    with pytest.raises(Exception, match="id > 5"):
        job.rerun().to_end()
    assert not (tmp_path / "_failed.txt").exists() and not (tmp_path / "_success.txt").exists()


def test_a_stream_is_counted_once_for_each_checkpoint(tmp_path: Path) -> None:
    """S7.4: with the messages of both partitions."""
    job = InProcessJob(into(tmp_path, CountingStream, lambda: ids(0, 30), stream=True), {"parallelism": 2})
    run = job.submit()
    run.pump(3)
    run.ask(ev.SnapshotRequest("checkpoint", request_id="c"))
    assert isinstance(run.to_end(), RunEnded)
    first, last = sorted(tmp_path.glob("*.json"), key=lambda path: int(path.stem))
    status = [json.loads(path.read_text()) for path in (first, last)]
    assert sum(one["rows"] for one in status) == 30 and [one["num_partitions"] for one in status] == [2, 2]


def test_a_stream_whose_write_fails_gives_the_batch_up(tmp_path: Path) -> None:
    """As in Spark: subtask 1 writes ids above 50, and the message of subtask 0 is given up by the next run."""
    job = InProcessJob(into(tmp_path, CountingStream, lambda: ids(11, 80), stream=True), {"parallelism": 2})
    run = job.submit()
    run.pump(20)
    (failed,) = tmp_path.iterdir()
    assert failed.read_text() == f"failed in batch {failed.stem}"
    run.crash()
    failed.unlink()
    job.rerun()
    assert failed.exists() and not list(tmp_path.glob("*.json")), "nothing was committed"


def test_a_stream_of_arrow_batches_is_written_and_counted(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("value", pa.float64())])

    def read() -> Source:
        return DataGen(
            lambda n: {"id": n, "name": [f"name_{i}" for i in n], "value": n * 2.5}, schema, rows=40, splits=3
        )

    job = InProcessJob(into(tmp_path, ArrowStream, read, stream=True), {"parallelism": 3})
    assert isinstance(job.submit().to_end(), RunEnded)
    (commit,) = tmp_path.glob("commit_*.json")
    status = json.loads(commit.read_text())
    assert status == {"batch_id": int(commit.stem[7:]), "num_partitions": 3, "total_batches": 3, "total_rows": 40}
    written = [row for path in tmp_path.glob("partition_*.json") for row in json.loads(path.read_text())]
    assert sorted(row["id"] for row in written) == list(range(40)) and len(list(tmp_path.glob("partition_*"))) == 3


def test_a_stream_waits_for_its_approval_and_goes_on_after_it(tmp_path: Path) -> None:
    """S7.8: with the commit gate, over a restart of the job."""
    options = {"parallelism": 2, "commit": "on_request", "checkpoint_interval": "1 h"}
    job = InProcessJob(into(tmp_path, CountingStream, lambda: ids(0, 40), stream=True), options)
    run = job.submit()
    run.pump(2)
    run.ask(ev.SnapshotRequest("checkpoint", request_id="c1"))
    run.crash()
    run = job.rerun()
    run.pump(2)
    run.ask(ev.SnapshotRequest("checkpoint", request_id="c2"))
    assert list(tmp_path.iterdir()) == []
    waiting = job.answers["c2"].data["checkpoint_id"]
    run.run.handle_command(ev.Verdict("v", True, waiting, "anna"))
    until(run, lambda: len(list(tmp_path.iterdir())) == 2)
    status = [json.loads(path.read_text()) for path in sorted(tmp_path.iterdir(), key=lambda path: int(path.stem))]
    assert sum(one["rows"] for one in status) > 0


def test_a_sink_is_not_rewound(tmp_path: Path) -> None:
    """S9.3: the class has no call that takes a committed batch back, and the refusal names the sink."""
    job = InProcessJob(
        into(tmp_path, CountingStream, lambda: ids(0, 40), stream=True), {"parallelism": 2, "retained_checkpoints": 5}
    )
    run = job.submit()
    run.pump(2)
    answers = [run.ask(ev.SnapshotRequest("checkpoint", request_id=f"c{n}")) for n in range(2)]
    run.pump(2)
    run.ask(ev.SnapshotRequest("checkpoint", request_id="c3"))
    run.crash()
    assert answers[0] is not None
    restore = RestoreFrom(
        kind="checkpoint", checkpoint_id=answers[0].data["checkpoint_id"], on_committed_after="rewind"
    )
    with pytest.raises(SnapshotError, match=r"sinks 'out' \(PySparkSink\) do not support rewind"):
        job.submit(restore)
