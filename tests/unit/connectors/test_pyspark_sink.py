"""`PySparkSink`: who calls the class when, with which messages, and what happens after a crash (S7.2, S7.4, S7.8)."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.data_sinks import ArrowRows, Rows, StreamWriter, Target
from builders.data_sources import FewNumbers
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage

from tidegate.connectors.interface import SinkWriter
from tidegate.connectors.leftovers import ALL_CHECKPOINTS, NeededTransactions
from tidegate.connectors.pyspark import data_source_writer
from tidegate.connectors.pyspark.batch_records import BatchRecords
from tidegate.connectors.pyspark.pyspark_sink import PySparkSink
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.errors import AlreadyExistsError, DataError, OptionError, PipelineError, SinkConflictError, SnapshotError
from tidegate.jobs.stores import local_disk
from tidegate.testing.one_sink_job import TestWriter, numbers


class World:
    """A sink, its target, and its contexts."""

    def __init__(self, folder: Path, source: type[DataSource] = Rows, *, stream: bool = True, **options: Any) -> None:
        self.target = Target(folder / "target")
        self.staging = folder / "staging"
        self.identity = TestWriter()
        self.sink = PySparkSink(
            source, options={"path": str(self.target.path)}, stream=stream, staging=self.staging, **options
        )

    def writer(self, subtask: int = 0, parallelism: int = 2) -> SinkWriter:
        return self.sink.create_writer(self.identity.context(subtask, parallelism))

    def everybody(self) -> SinkContext:
        return self.identity.context(0, parallelism=1)

    def numbers(self) -> list[int]:
        return sorted(row["n"] for row in self.target.rows())

    def files(self) -> list[str]:
        """All files that are left, without commit markers and records of ends."""
        found = (path.relative_to(self.staging).as_posix() for path in self.staging.rglob("*") if path.is_file())
        return sorted(name for name in found if "/commits/" not in name and not name.endswith(".committed.json"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def prepared(writer: SinkWriter, checkpoint_id: int, first: int, count: int) -> list[Committable]:
    writer.write(numbers(first, count))
    return [replace(c, data=json.loads(json.dumps(dict(c.data)))) for c in writer.prepare_commit(checkpoint_id)()]


# ------------------------------------------------------------ a stream: one commit for each checkpoint


def test_one_subtask_commits_the_messages_of_all(world: World) -> None:
    """S7.4: with the checkpoint's id, in order of the subtasks; the commits of the others find that it is done."""
    writers = [world.writer(n, 3) for n in range(3)]
    handles = [prepared(writer, 7, 10 * n, 2) for n, writer in enumerate(writers)]
    for n in (1, 0, 2):
        writers[n].commit(handles[n])
        assert world.numbers() == [0, 1, 10, 11, 20, 21]
    ((batch, names),) = world.target.calls("commit")
    assert batch == "7" and [rows_of(world, name) for name in names] == [[0, 1], [10, 11], [20, 21]]
    assert world.files() == [], "messages and claims are removed"


def rows_of(world: World, name: str | None) -> list[int]:
    assert name is not None
    return [row["n"] for row in json.loads((world.target.path / "staged" / name).read_text())]


def test_batches_are_committed_in_order_whoever_commits_them(world: World) -> None:
    """S7.4: subtask 1 has the permit for batch 8, which covers the rows of subtask 0 in batch 7."""
    first, second = world.writer(0), world.writer(1)
    early, late = prepared(first, 7, 0, 2), prepared(second, 8, 2, 2)
    second.commit(late)
    assert [batch for batch, _ in world.target.calls("commit")] == ["7", "8"]
    first.commit(early)
    assert len(world.target.calls("commit")) == 2 and world.numbers() == [0, 1, 2, 3]


def test_adopted_batches_are_committed_before_later_ones(world: World) -> None:
    """S7.8: the batch waits for its verdict over a restart, and another subtask has the permit for the next one."""
    waiting = prepared(world.writer(0), 5, 0, 2)
    prepared(world.writer(1), 6, 50, 2)  # a leftover: it is part of no snapshot
    world.identity.generation = 2
    first, second = world.writer(0), world.writer(1)
    first.recover(5, waiting)
    second.recover(5)
    second.commit(prepared(second, 9, 2, 2))
    assert [batch for batch, _ in world.target.calls("commit")] == ["5", "9"]
    first.commit(waiting)
    assert world.numbers() == [0, 1, 2, 3] and world.files() == []


def test_a_message_that_a_zombie_leaves_late_is_not_committed(world: World) -> None:
    """S9.2: an earlier run stages a batch after the next run has cleaned up."""
    zombie = world.writer(0)
    world.identity.generation = 2
    first, second = world.writer(0), world.writer(1)
    first.recover(0)
    second.recover(0)
    prepared(zombie, 3, 50, 2)
    second.commit(prepared(second, 4, 0, 2))
    assert world.numbers() == [0, 1]


def test_a_commit_that_was_interrupted_is_repeated_with_the_same_messages_and_id(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.4: the process dies after the class has committed, before the marker."""
    first, second = world.writer(0), world.writer(1)
    handles = prepared(first, 3, 0, 2), prepared(second, 3, 2, 2)

    def dies(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr("tidegate.connectors.pyspark.batch_records.BatchRecords.mark", dies)
        with pytest.raises(SystemExit):
            second.commit(handles[1])
    world.identity.run = 2
    later = world.writer(0)
    later.commit(handles[0])
    later.recover(3)
    one, again = world.target.calls("commit")
    assert one == again and world.numbers() == [0, 1, 2, 3]


def test_the_claim_of_a_dead_run_stops_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """S9.1: the process dies while it holds the claim."""
    handles = prepared(world.writer(0), 3, 0, 2)
    with monkeypatch.context() as patch:
        patch.setattr("tidegate.connectors.pyspark.commit_claims.CommitClaims._release", lambda *_: None)
        with patch.context() as inner:
            inner.setattr(Target, "commit", lambda *_: (_ for _ in ()).throw(SystemExit))
            with pytest.raises(SystemExit):
                world.writer(0).commit(handles)
    assert [name for name in world.files() if ".claim" in name]
    world.identity.run = 2
    later = world.writer(0)
    later.commit(handles)
    later.recover(3)
    assert world.numbers() == [0, 1] and world.files() == []


def test_while_a_subtask_commits_the_others_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time calls the class, and a commit returns when the rows are visible."""
    writers = [world.writer(n) for n in range(2)]
    handles = [prepared(writer, 4, 2 * n, 2) for n, writer in enumerate(writers)]
    entered, leave = threading.Event(), threading.Event()
    commit = Target.commit

    def slow(target: Target, batch: str, names: Any) -> None:
        entered.set()
        assert leave.wait(30)
        commit(target, batch, names)

    refused = threading.Event()
    create = local_disk.LocalStore.create

    def noted(store: local_disk.LocalStore, path: str, data: bytes) -> None:
        try:
            create(store, path, data)
        except AlreadyExistsError:
            refused.set()
            raise

    monkeypatch.setattr(Target, "commit", slow)
    monkeypatch.setattr(local_disk.LocalStore, "create", noted)
    first = threading.Thread(target=writers[0].commit, args=(handles[0],))
    first.start()
    assert entered.wait(30)
    second = threading.Thread(target=writers[1].commit, args=(handles[1],))
    second.start()
    assert refused.wait(30), "the second one waits"
    assert second.is_alive() and world.numbers() == []
    leave.set()
    first.join(30)
    second.join(30)
    assert len(world.target.calls("commit")) == 1 and world.numbers() == [0, 1, 2, 3]


def test_a_wait_ends_with_the_run(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    writers = [world.writer(n) for n in range(2)]
    handles = [prepared(writer, 4, 2 * n, 2) for n, writer in enumerate(writers)]
    entered, leave = threading.Event(), threading.Event()

    def hangs(*_: Any) -> None:
        entered.set()
        assert leave.wait(30)

    monkeypatch.setattr(Target, "commit", hangs)
    first = threading.Thread(target=writers[0].commit, args=(handles[0],), daemon=True)
    first.start()
    assert entered.wait(30)
    errors: list[BaseException] = []

    def waits() -> None:
        try:
            writers[1].commit(handles[1])
        except BaseException as error:
            errors.append(error)

    second = threading.Thread(target=waits)
    second.start()
    writers[1].close()
    second.join(30)
    leave.set()
    first.join(30)
    assert "another subtask commits the batch" in str(errors)


def test_a_lost_message_is_a_failure_also_if_others_have_committed(world: World) -> None:
    """S7.4: never "already done"."""
    writers = [world.writer(n) for n in range(2)]
    handles = [prepared(writer, 4, 2 * n, 2) for n, writer in enumerate(writers)]
    (lost,) = [path for path in world.staging.rglob("*.handle.json.staged") if path.parent.name == "0"]
    lost.unlink()
    with pytest.raises(SnapshotError, match="the commit message of a pre-committed transaction is lost"):
        writers[0].commit(handles[0])
    writers[1].commit(handles[1])
    with pytest.raises(SinkConflictError, match="batch 4 was committed without a transaction of the snapshot"):
        writers[0].commit(handles[0])


def test_an_error_of_the_class_is_its_own_and_the_commit_can_be_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = world.writer()
    handles = prepared(writer, 4, 0, 2)
    with monkeypatch.context() as patch:
        patch.setattr(Target, "commit", lambda *_: (_ for _ in ()).throw(ConnectionError("the target is away")))
        with pytest.raises(ConnectionError, match="the target is away"):
            writer.commit(handles)
    writer.commit(handles)
    assert world.numbers() == [0, 1]


# ------------------------------------------------------------ what the class is asked to give up


def test_messages_of_an_unfinished_checkpoint_are_given_up_by_the_next_run(world: World) -> None:
    """S7.4: each subtask gives up its own, and those of indices that are no more."""
    for n in range(4):
        prepared(world.writer(n, 4), 2, 10 * n, 1)
    world.identity.run = 2
    for n in range(2):
        world.writer(n, 2).recover(1)
    assert world.target.staged() == 0 and world.files() == []
    assert [batch for batch, _ in world.target.calls("abort")] == ["2"] * 4


def test_a_write_that_fails_is_given_up_without_a_message(world: World) -> None:
    """As in Spark, where a task without a message is None in the list."""
    writer = world.writer()
    writer.write(numbers(-1, 1))
    with pytest.raises(ValueError, match="-1 cannot be written"):
        writer.prepare_commit(6)()
    assert world.target.calls("abort") == [("6", [None])] and world.files() == []


def test_a_write_that_ends_the_process_is_given_up_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Target, "stage", lambda *_: sys.exit(3))
    writer = world.writer()
    writer.write(numbers(0, 1))
    with pytest.raises(SystemExit):
        writer.prepare_commit(6)()
    assert world.target.calls("abort") == [("6", [None])]


def test_a_restore_before_a_commit_without_a_marker_gives_its_batch_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page demands that the class compares numbers, because only the class knows of the commit."""
    writer = world.writer()
    handles = prepared(writer, 4, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(BatchRecords, "mark", lambda *_: (_ for _ in ()).throw(ConnectionError("died")))
        with pytest.raises(ConnectionError):
            writer.commit(handles)
    world.identity.run = 2
    monkeypatch.setattr(Target, "abort", lambda self, *given: self.log("abort", *given))
    world.writer().recover(3)
    assert [batch for batch, _ in world.target.calls("abort")] == ["4"] and world.numbers() == [0]


def test_an_abort_that_fails_is_logged_and_the_job_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prepared(world.writer(), 2, 0, 1)
    world.identity.run = 2
    monkeypatch.setattr(Target, "abort", lambda *_: (_ for _ in ()).throw(ConnectionError("away")))
    world.writer().recover(1)
    assert "abort() of batch 2 failed" in caplog.text and world.files() == []


def test_a_committed_batch_is_never_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies between the marker and the removal of the messages."""
    writer = world.writer()
    handles = prepared(writer, 2, 0, 2)
    with monkeypatch.context() as patch:
        patch.setattr("tidegate.connectors.files.sink.commit_group.CommitGroups.forget", lambda *_: None)
        writer.commit(handles)
    assert world.files()
    world.identity.run = 2
    world.writer().recover(2)
    assert world.files() == [] and world.target.calls("abort") == [] and world.numbers() == [0, 1]


def test_a_duplicate_attempt_is_not_given_up_while_its_batch_waits(world: World) -> None:
    """S8.1: in batch mode two attempts of a Spark task may write the same partition, and `abort` may mean the batch."""
    kept = prepared(world.writer(0, 1), 1, 0, 2)
    world.identity.run = 2
    prepared(world.writer(0, 1), 1, 0, 2)
    world.identity.run = 3
    driver = world.writer(0, 1)
    driver.recover(1, kept)
    assert world.target.calls("abort") == []
    driver.commit(kept)
    assert world.numbers() == [0, 1]


def test_collecting_gives_up_batches_of_dead_lineages(world: World) -> None:
    """S2.3: `tidegate gc --sinks`."""
    waiting = prepared(world.writer(), 2, 0, 2)
    world.identity.run = 2
    world.writer().recover(2, waiting)
    needed = NeededTransactions([], ALL_CHECKPOINTS, datetime.max.replace(tzinfo=UTC))
    would = world.sink.collect(world.everybody(), needed, dry_run=True)
    assert world.target.staged() == 1 and len(would.found) == 2, "the message, and the note that it waits"
    assert world.sink.collect(world.everybody(), needed) == would
    assert world.target.calls("abort") == [("2", [world.target.calls("abort")[0][1][0]])]
    assert world.target.staged() == 0 and world.files() == []


# ------------------------------------------------------------ all rows in one write


@pytest.fixture
def bounded(tmp_path: Path) -> World:
    return World(tmp_path, stream=False)


def ended(writer: SinkWriter, checkpoint_id: int) -> list[Committable]:
    writer.end_input()
    return list(writer.prepare_commit(checkpoint_id)())


def test_all_rows_of_a_job_are_one_write_for_each_subtask_and_one_commit(bounded: World) -> None:
    """S7.2, S7.4: checkpoints before the end keep the rows, and the class is not called."""
    writers = [bounded.writer(n) for n in range(2)]
    for n, writer in enumerate(writers):
        writer.commit(prepared(writer, 1, 10 * n, 2))
        writer.commit(prepared(writer, 2, 10 * n + 2, 2))
    assert bounded.target.staged() == 0
    writers[1].write(numbers(14, 1))
    writers[1].commit(ended(writers[1], 3))
    assert bounded.numbers() == [] and bounded.target.staged() == 1, "one of two partitions is written"
    writers[0].commit(ended(writers[0], 4))
    assert bounded.numbers() == [0, 1, 2, 3, 10, 11, 12, 13, 14]
    ((batch, names),) = bounded.target.calls("commit")
    assert batch.startswith("all-") and len(names) == 2 and bounded.files() == []


def test_a_subtask_without_rows_writes_an_empty_partition(bounded: World) -> None:
    """As an empty partition in Spark."""
    writers = [bounded.writer(n) for n in range(2)]
    for writer in writers:
        writer.commit(ended(writer, 1))
    ((_, names),) = bounded.target.calls("commit")
    assert len(names) == 2 and bounded.numbers() == []


def test_after_a_rescale_the_rows_of_all_subtasks_are_written(bounded: World) -> None:
    """S5.5: the files of four subtasks are read by three."""
    for n in range(4):
        writer = bounded.writer(n, 4)
        writer.commit(prepared(writer, 1, 10 * n, 1))
    bounded.identity.generation = 2
    for n in range(3):
        writer = bounded.writer(n, 3)
        writer.commit(ended(writer, 2))
    assert bounded.numbers() == [0, 10, 20, 30]


@pytest.mark.parametrize("dies_in", ["_put", "_commit_end", "_clean"])
def test_the_end_is_repeated_after_a_crash(bounded: World, monkeypatch: pytest.MonkeyPatch, dies_in: str) -> None:
    """S7.4: before the message is stored, before the commit, and after it."""
    writers = [bounded.writer(n) for n in range(2)]
    handles = []
    for n, writer in enumerate(writers):
        writer.commit(prepared(writer, 1, 10 * n, 2))
        handles += ended(writer, 2)

    def dies(*_: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(f"tidegate.connectors.pyspark.bounded_sink_writer.BoundedSinkWriter.{dies_in}", dies)
        with pytest.raises(SystemExit):
            for writer, handle in zip(writers, handles, strict=True):
                writer.commit([handle])
    bounded.identity.generation = 2
    for _ in range(2):
        bounded.writer(0, 1).commit(handles)
    assert bounded.numbers() == [0, 1, 10, 11] and bounded.files() == []


def test_a_repeated_commit_has_the_same_messages(bounded: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies after the class has committed, before the record of the end."""
    writer = bounded.writer(0, 1)
    writer.write(numbers(0, 2))
    handles = ended(writer, 1)
    with monkeypatch.context() as patch:
        original = type(writer)._put  # type: ignore[attr-defined]

        def dies(self: Any, path: str, document: Any) -> None:
            if path.endswith(".committed.json"):
                raise SystemExit
            original(self, path, document)

        patch.setattr(type(writer), "_put", dies)
        with pytest.raises(SystemExit):
            writer.commit(handles)
    bounded.identity.run = 2
    bounded.writer(0, 1).commit(handles)
    one, again = bounded.target.calls("commit")
    assert one == again and bounded.numbers() == [0, 1]


def test_what_comes_after_a_drain_is_a_write_of_its_own(bounded: World) -> None:
    """S7.2: the job was restored from the savepoint of a drain."""
    writer = bounded.writer(0, 1)
    writer.write(numbers(0, 2))
    handles = ended(writer, 1)
    writer.commit(handles)
    bounded.identity.generation = 2
    again = bounded.writer(0, 1)
    again.commit(handles)
    again.recover(1)
    again.write(numbers(2, 2))
    later = ended(again, 2)
    again.commit(later)
    first, second = bounded.target.calls("commit")
    assert len(first[1]) == len(second[1]) == 1 and first[1] != second[1]


def test_rows_that_the_class_has_not_got_can_be_read(bounded: World) -> None:
    """S7.8: for an approval of a checkpoint."""
    writer = bounded.writer()
    (handle,) = prepared(writer, 1, 0, 3)
    staged = bounded.sink.staged(bounded.everybody(), 1, handle)
    assert staged.rows == 3 and staged.format == "parquet" and Path(staged.paths[0]).exists()
    (empty,) = ended(bounded.writer(1), 1)
    assert bounded.sink.staged(bounded.everybody(), 1, empty).kind == "opaque"


def test_collecting_removes_kept_rows_when_no_snapshot_exists(bounded: World) -> None:
    """S2.3: as long as there is one, the job may be restored and needs the rows."""
    writer = bounded.writer()
    writer.commit(prepared(writer, 1, 0, 2))
    last = datetime.max.replace(tzinfo=UTC)
    bounded.sink.collect(bounded.everybody(), NeededTransactions([], 2, last))
    assert len(bounded.files()) == 1
    bounded.sink.collect(bounded.everybody(), NeededTransactions([], ALL_CHECKPOINTS, last))
    assert bounded.files() == []


def test_overwrite_reaches_the_class(tmp_path: Path) -> None:
    world = World(tmp_path, ArrowRows, stream=False, overwrite=True)
    writer = world.writer(0, 1)
    writer.write(numbers(0, 2))
    writer.commit(ended(writer, 1))
    ((batch, _),) = world.target.calls("commit")
    assert batch.startswith("overwritten-") and world.numbers() == [0, 1]


# ------------------------------------------------------------ rows and tasks, as Spark has them


def test_rows_have_spark_s_types_and_partitions_their_number(tmp_path: Path) -> None:
    at = datetime(2026, 3, 1, 12, 30, 0, 123456)
    table = pa.table(
        {
            "n": pa.array([1], pa.int32()),
            "text": pa.array(["a"], pa.large_string()),
            "at": pa.array([at], pa.timestamp("ns")),
            "utc": pa.array([at.replace(tzinfo=UTC)], pa.timestamp("ms", "UTC")),
            "tags": pa.array([{"x": ["y", None]}], pa.struct([("x", pa.list_(pa.string()))])),
            "pairs": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())),
            "raw": pa.array([b"\x00"], pa.binary()),
        }
    )
    seen: list[Any] = []

    class Writer(StreamWriter):
        def write(self, iterator: Iterator[Any]) -> Any:
            seen.extend(iterator)
            return super().write(iter(()))

    class Source(Rows):
        def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
            seen.append(schema.simpleString())
            return Writer(self.target)

    world = World(tmp_path, Source)
    context = replace(world.identity.context(3, 4), schema=table.schema)
    writer = world.sink.create_writer(context)
    writer.write(table.to_batches()[0])
    (handle,) = writer.prepare_commit(1)()
    schema, row = seen
    assert schema == (
        "struct<n:int,text:string,at:timestamp_ntz,utc:timestamp,tags:struct<x:array<string>>,pairs:map<string,bigint>,"
        "raw:binary>"
    )
    assert (row.n, row.text, row.at, row.tags.x, row.pairs, row.raw) == (1, "a", at, ["y", None], {"k": 1}, b"\x00")
    assert row.utc == at.replace(tzinfo=UTC, microsecond=123000).astimezone().replace(tzinfo=None)
    (record,) = world.staging.rglob(handle.data["files"][0]["staged"])
    assert json.loads(record.read_text())["data"]["message"]["fields"]["partition"] == 3


def test_rows_are_converted_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_source_writer, "ROWS_AT_ONCE", 3)
    world = World(tmp_path)
    writer = world.writer()
    writer.commit(prepared(writer, 1, 0, 10))
    assert world.numbers() == list(range(10))


class _Answers(DataSource):
    """Its writers return what the test wants."""

    message: Any = None
    made: Callable[[], Any] = staticmethod(lambda: None)

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:
        return type(self).made()


def test_rows_that_write_does_not_read_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Hasty(DataSourceStreamWriter):
        def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
            next(iterator)
            return WriterCommitMessage()

    class Source(_Answers):
        made = Hasty

    writer = World(tmp_path, Source).writer()
    writer.commit(prepared(writer, 1, 0, 2))
    assert "write() has returned before it had read all rows" in caplog.text


def test_something_else_than_a_message_or_a_writer_is_refused(tmp_path: Path) -> None:
    class Silent(DataSourceStreamWriter):
        def write(self, iterator: Iterator[Any]) -> Any:
            return None

    class SilentSource(_Answers):
        made = Silent

    with pytest.raises(DataError, match="must return a WriterCommitMessage.*it returned None"):
        prepared(World(tmp_path, SilentSource).writer(), 1, 0, 1)
    with pytest.raises(PipelineError, match="must return a DataSourceStreamWriter.*it returned a NoneType"):
        prepared(World(tmp_path, _Answers).writer(), 1, 0, 1)


# ------------------------------------------------------------ checks


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"source": Rows({})}, "PySparkSink needs a class"),
        ({"options": {"n": 1}}, "n is a int"),
        ({"options": {"password": "hunter2"}}, "plain text"),
        ({"staging_options": {"secret": "hunter2"}}, "plain text"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionError, match=why) as refused:
        PySparkSink(**{"source": Rows, **arguments})
    assert "hunter2" not in str(refused.value)


def test_a_stream_that_overwrites_is_refused() -> None:
    with pytest.raises(PipelineError, match="a stream cannot overwrite"):
        PySparkSink(Rows, stream=True, overwrite=True)


def test_a_class_without_the_writer_is_refused(tmp_path: Path) -> None:
    class OnlyStreams(DataSource):
        streamWriter = Rows.streamWriter

    with pytest.raises(PipelineError, match=r"does not implement writer\(\).*Pass stream=True"):
        PySparkSink(OnlyStreams).check(TestWriter.schema)
    with pytest.raises(PipelineError, match=r"does not implement streamWriter\(\).*Implement it"):
        PySparkSink(FewNumbers, stream=True).check(TestWriter.schema)
    PySparkSink(OnlyStreams, stream=True, staging=tmp_path).check(TestWriter.schema)


def test_a_column_without_a_type_of_spark_is_refused() -> None:
    with pytest.raises(PipelineError, match="Spark has no type for column 'half' of type halffloat"):
        PySparkSink(Rows).check(pa.schema([("half", pa.float16())]))
    with pytest.raises(PipelineError, match=r"Spark has no type for column 'wide' of type decimal256\(39, 2\)"):
        PySparkSink(Rows).check(pa.schema([("wide", pa.decimal256(39, 2))]))
    PySparkSink(Rows).check(pa.schema([("wide", pa.decimal256(38, 2))]))


def test_a_job_without_a_directory_needs_a_staging_folder() -> None:
    with pytest.raises(OptionError, match="no place for commit messages"):
        PySparkSink(Rows).create_writer(TestWriter().context())


def test_writers_that_differ_from_each_other_are_refused_when_the_job_starts(tmp_path: Path) -> None:
    """Spark sends one writer of a batch to all tasks; here each subtask makes its own."""

    class Source(Rows):
        made = iter(range(100))

        def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
            writer = super().writer(schema, overwrite)
            writer.folder = f"tmp-{next(self.made)}"  # type: ignore[attr-defined]
            return writer

    world = World(tmp_path, Source, stream=False)
    with pytest.raises(PipelineError, match="writers .* differ from each other.*attribute 'folder'"):
        world.sink.check_fresh_start(world.everybody())
    world.sink.check_fresh_start(replace(world.everybody(), lineage=""))
    for stream in (True, False):
        World(tmp_path, stream=stream).sink.check_fresh_start(world.everybody())


def test_a_writer_of_the_wrong_kind_is_refused_when_the_job_starts(tmp_path: Path) -> None:
    world = World(tmp_path, _Answers)
    with pytest.raises(PipelineError, match="must return a DataSourceStreamWriter"):
        world.sink.check_fresh_start(world.everybody())


def test_the_identity_names_class_and_options_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "hunter2")
    options = {"path": "/out", "token": "secret:env/TOKEN"}
    assert PySparkSink(Rows, options=options).describe() == (
        "PySparkSink('builders.data_sinks.Rows', 'path=/out, token=secret:env/TOKEN')"
    )
