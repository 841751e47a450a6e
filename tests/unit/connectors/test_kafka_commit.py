"""Commits of the Kafka sink at every point where a process may die or an answer may be lost (S7.4)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from fsspec.implementations.local import LocalFileSystem
from kafka_fakes import Crash, FakeBroker, FakeClients, FakeError, failure

from tidegate.connectors.files.sink.sink_layout import FileLayout
from tidegate.connectors.kafka.sink import kafka_writer, marked_producer
from tidegate.connectors.kafka.sink.kafka_writer import COMMIT_ATTEMPTS, KafkaWriter
from tidegate.connectors.kafka.sink.record_columns import RecordColumns, RecordsOfRows
from tidegate.connectors.kafka.sink.topics import RecordPlaces
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.errors import FencedError, OutageError, SinkConflictError, SnapshotError, TidegateError

SCHEMA = pa.schema([("value", pa.string())])
KEYED = pa.schema([("key", pa.string()), ("value", pa.string())])
TOPIC = "out"


class Job:
    """Runs of one sink on a broker in memory, with staged files in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.broker = FakeBroker()
        self.run = 0

    def writer(self, subtask: int = 0, parallelism: int = 1, *, topic: str = TOPIC, keyed: bool = False) -> KafkaWriter:
        """Of a new run."""
        self.run += 1
        schema = KEYED if keyed else SCHEMA
        ctx = SinkContext("job", "l", "out", subtask, parallelism, 1, f"r{self.run:03d}", schema)
        return self.writer_of(ctx, topic=topic, keyed=keyed)

    def writer_of(self, ctx: SinkContext, *, topic: str = TOPIC, keyed: bool = False) -> KafkaWriter:
        """In this place of the job."""
        columns = RecordColumns("value", key=("key",) if keyed else ())
        records = RecordsOfRows(columns, ctx.schema, 10**6, "test")
        layout = FileLayout(str(self.folder), ctx)
        places = RecordPlaces(None, topic, "test", keyed=keyed)  # type: ignore[arg-type]
        return KafkaWriter(LocalFileSystem(), layout, ctx, records, FakeClients(self.broker), topic, 1.0, places)

    def files(self, part: str) -> list[Path]:
        """Of the sink, whose path contains `part`."""
        return [path for path in self.folder.rglob("*") if path.is_file() and part in str(path)]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    monkeypatch.setattr(kafka_writer, "FIRST_PAUSE_S", 0.0)
    return Job(tmp_path)


def prepared(writer: KafkaWriter, checkpoint_id: int, *values: str) -> Sequence[Committable]:
    """Handles of a transaction with these values."""
    writer.write(pa.record_batch([pa.array(values)], schema=SCHEMA))
    return writer.prepare_commit(checkpoint_id)()


def crash_at(job: Job, point: str) -> None:
    """Let the process die when it first gets there."""

    def at(step: str) -> None:
        if step == point:
            raise Crash(point)

    job.broker.at = at


STEPS = (
    "init: before",
    "init: after",
    "read marker: before",
    "begin: before",
    "produce: before",
    "send offsets: before",
    "send offsets: after",
    "commit: before",
    "commit: after",
)


@pytest.mark.parametrize("point", STEPS)
@pytest.mark.parametrize("earlier", [0, 1])
def test_a_process_that_dies_in_a_commit_leaves_each_record_once(job: Job, point: str, earlier: int) -> None:
    """S7.4: at the first transaction of a writer, whose marker does not exist yet, and at a later one."""
    first = job.writer()
    wanted: list[bytes] = []
    if earlier:
        first.commit(prepared(first, 1, "old"))
        wanted = [b"old"]
        first = job.writer()
    handles = prepared(first, 2, "a", "b")
    crash_at(job, point)
    with pytest.raises(Crash):
        first.commit(handles)
    assert sorted(job.broker.values) in (wanted, sorted([*wanted, b"a", b"b"]))
    job.broker.at = lambda _: None
    second = job.writer()
    second.commit(handles)
    second.commit(handles)
    assert sorted(job.broker.values) == sorted([*wanted, b"a", b"b"])
    assert job.files(".staged") == []


@pytest.mark.parametrize("method", ["_mark", "_write_marker", "_remove_staged", "_check_staged"])
@pytest.mark.parametrize("after", [False, True])
def test_a_process_that_dies_between_broker_and_files_leaves_each_record_once(
    job: Job, monkeypatch: pytest.MonkeyPatch, method: str, after: bool
) -> None:
    """S7.4: the attempt record, the marker file, and the removal of staged files."""
    for nth in range(3):
        with monkeypatch.context() as patch:
            _crash_in(patch, method, nth, after)
            first = job.writer()
            handles = prepared(first, nth + 1, f"v{nth}")
            try:
                first.commit(handles)
            except Crash:
                pass
        job.writer().commit(handles)
        assert job.broker.values == [f"v{n}".encode() for n in range(nth + 1)]


def _crash_in(patch: pytest.MonkeyPatch, method: str, nth: int, after: bool) -> None:
    original: Callable[..., object] = getattr(KafkaWriter, method)
    calls = []

    def call(*args: object) -> object:
        calls.append(args)
        if len(calls) == nth + 1 and not after:
            raise Crash(method)
        made = original(*args)
        if len(calls) == nth + 1:
            raise Crash(method)
        return made

    patch.setattr(KafkaWriter, method, call)


@pytest.mark.parametrize("point", STEPS)
@pytest.mark.parametrize("name", ["_TIMED_OUT", "_FENCED", "INVALID_PRODUCER_EPOCH", "COORDINATOR_NOT_AVAILABLE"])
def test_an_answer_that_is_lost_is_looked_up(job: Job, point: str, name: str) -> None:
    """S7.4: within one run, whether the broker has done what was asked or not."""
    writer = job.writer()
    writer.commit(prepared(writer, 1, "old"))
    writer = job.writer()
    handles = prepared(writer, 2, "a", "b")
    failures = [failure(name)]

    def at(step: str) -> None:
        if step == point and failures:
            raise failures.pop()

    job.broker.at = at
    writer.commit(handles)
    assert not failures, "the step was met"
    assert job.broker.values == [b"old", b"a", b"b"]


def test_a_call_that_never_returns_is_given_up(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.4: the client may hang although it has a timeout."""
    monkeypatch.setattr(marked_producer, "CALL_TIMEOUT_S", 0.0)
    monkeypatch.setattr(marked_producer, "HANG_MARGIN_S", 0.3)
    writer = job.writer()
    writer.commit(prepared(writer, 1, "old"))
    hangs, released = [True], threading.Event()

    def at(step: str) -> None:
        if step == "send offsets: before" and hangs:
            hangs.clear()
            released.wait(60)
            raise failure("_TIMED_OUT")

    job.broker.at = at
    writer.commit(prepared(writer, 2, "a"))
    released.set()
    assert job.broker.values == [b"old", b"a"]


def test_a_commit_whose_answer_says_so_is_repeated_by_the_same_producer(job: Job) -> None:
    """S7.4: for a retriable error, the client asks for the same call."""
    writer = job.writer()
    writer.commit(prepared(writer, 1, "old"))
    failures = [failure("_TIMED_OUT", may_retry=True)]

    def at(step: str) -> None:
        if step == "commit: before" and failures:
            raise failures.pop()

    job.broker.at = at
    inits = job.broker.steps.count("init: before")
    writer.commit(prepared(writer, 2, "a"))
    assert job.broker.values == [b"old", b"a"]
    assert job.broker.steps.count("init: before") == inits


def test_a_run_fails_with_an_outage_after_some_attempts(job: Job) -> None:
    """S9.1: the records stay staged, and the next run commits them."""
    writer = job.writer()
    handles = prepared(writer, 1, "a")

    def at(step: str) -> None:
        if step == "init: before":
            raise failure("_TRANSPORT")

    job.broker.at = at
    with pytest.raises(OutageError, match="broker: _TRANSPORT"):
        writer.commit(handles)
    assert job.broker.steps == ["init: before"] * COMMIT_ATTEMPTS
    job.broker.at = lambda _: None
    job.writer().commit(handles)
    assert job.broker.values == [b"a"]


@pytest.mark.parametrize("name", ["TOPIC_AUTHORIZATION_FAILED", "INVALID_TRANSACTION_TIMEOUT"])
def test_an_error_that_does_not_pass_is_not_tried_again(job: Job, name: str) -> None:
    writer = job.writer()
    handles = prepared(writer, 1, "a")

    def at(step: str) -> None:
        if step == "init: before":
            raise failure(name)

    job.broker.at = at
    with pytest.raises(TidegateError, match=name) as raised:
        writer.commit(handles)
    assert not isinstance(raised.value, OutageError) and raised.value.remedy
    assert job.broker.steps == ["init: before"]


def test_a_closing_run_does_not_begin_another_attempt(job: Job) -> None:
    """S9.1: the next run commits."""
    writer = job.writer()
    handles = prepared(writer, 1, "a")

    def at(step: str) -> None:
        if step == "init: before":
            writer.close()
            raise failure("_TRANSPORT")

    job.broker.at = at
    with pytest.raises(OutageError, match="interrupted"):
        writer.commit(handles)
    assert job.broker.steps == ["init: before"]


def test_a_full_queue_is_waited_for(job: Job) -> None:
    job.broker.room = 2
    writer = job.writer()
    writer.commit(prepared(writer, 1, *"abcdefg"))
    assert job.broker.values == [letter.encode() for letter in "abcdefg"]


def test_a_record_that_is_not_delivered_aborts_the_transaction(job: Job) -> None:
    """S7.4: with the reason of the record, not with the one of the commit."""
    job.broker.undelivered = FakeError("MSG_SIZE_TOO_LARGE")
    job.broker.room = 1
    writer = job.writer()
    handles = prepared(writer, 1, "a", "b")
    with pytest.raises(TidegateError, match="MSG_SIZE_TOO_LARGE"):
        writer.commit(handles)
    assert job.broker.values == [] and not job.broker.open
    assert job.files(".attempt") == [], "the broker confirmed the abort, so nothing was committed"
    job.broker.undelivered = None
    job.writer().commit(handles)
    assert job.broker.values == [b"a", b"b"]


# ---------------------------------------------------------------- markers that expire


def _died_after_the_commit(job: Job) -> Sequence[Committable]:
    first = job.writer()
    first.commit(prepared(first, 1, "old"))
    handles = prepared(first, 2, "a")
    crash_at(job, "commit: after")
    with pytest.raises(Crash):
        first.commit(handles)
    job.broker.at = lambda _: None
    return handles


def test_an_outcome_that_nobody_knows_any_more_is_refused(job: Job) -> None:
    """S7.4: records may be there, but the broker has forgotten the marker."""
    handles = _died_after_the_commit(job)
    job.broker.offsets.clear()
    for _ in range(2):
        with pytest.raises(SnapshotError, match="unknown whether the records of checkpoint 2") as raised:
            job.writer().commit(handles)
        assert job.broker.values == [b"old", b"a"]
    assert raised.value.remedy.startswith("Read the topic. If it has these records, create the file /")


def test_the_user_may_say_that_the_records_are_there(job: Job) -> None:
    """S7.4: by the file that the error names."""
    handles = _died_after_the_commit(job)
    job.broker.offsets.clear()
    with pytest.raises(SnapshotError) as raised:
        job.writer().commit(handles)
    Path(raised.value.remedy.partition("create the file ")[2].partition(". ")[0]).touch()
    writer = job.writer()
    writer.commit(handles)
    writer.commit(prepared(writer, 3, "b"))
    assert job.broker.values == [b"old", b"a", b"b"]


def test_the_user_may_say_that_the_records_are_not_there(job: Job) -> None:
    """S7.4: by deleting the file that the error names."""
    first = job.writer()
    first.commit(prepared(first, 1, "old"))
    handles = prepared(first, 2, "a")
    crash_at(job, "commit: before")
    with pytest.raises(Crash):
        first.commit(handles)
    job.broker.at = lambda _: None
    job.broker.offsets.clear()
    with pytest.raises(SnapshotError) as raised:
        job.writer().commit(handles)
    os.remove(raised.value.remedy.partition("delete the file ")[2].partition(", and")[0])
    job.writer().commit(handles)
    assert job.broker.values == [b"old", b"a"]


def test_a_marker_that_expired_after_its_file_was_written_does_not_matter(job: Job) -> None:
    """S7.4: a job that was stopped for a month, with an old savepoint restored."""
    first = job.writer()
    committed, staged = prepared(first, 1, "a"), prepared(first, 2, "b")
    first.commit(committed)
    job.broker.offsets.clear()
    second = job.writer()
    second.commit([*committed, *staged])
    second.commit(prepared(second, 3, "c"))
    assert job.broker.values == [b"a", b"b", b"c"]


def test_a_marker_that_is_none_of_a_sink_is_refused(job: Job) -> None:
    writer = job.writer()
    writer.commit(prepared(writer, 1, "a"))
    [group] = job.broker.offsets
    job.broker.offsets[group] = replace(job.broker.offsets[group], offset=7, metadata="")
    second = job.writer()
    with pytest.raises(SinkConflictError, match="an offset that no sink stored"):
        second.commit(prepared(second, 2, "b"))
    assert job.broker.values == [b"a"]


# ---------------------------------------------------------------- other runs, other subtasks


def test_a_zombie_that_commits_late_is_refused(job: Job) -> None:
    """S9.2: after a later run has committed, an older one sends nothing."""
    zombie = job.writer()
    late = prepared(zombie, 1, "a")
    writer = job.writer()
    writer.commit(prepared(writer, 2, "b"))
    with pytest.raises(FencedError):
        zombie.commit(late)
    assert job.broker.values == [b"b"]
    writer.commit(prepared(writer, 3, "c"))
    assert job.broker.values == [b"b", b"c"], "the zombie fenced the producer, and the run opened another"


def test_another_subtask_commits_by_the_name_of_the_one_that_staged(job: Job) -> None:
    """S5.5, S7.4: what subtask 5 of 6 committed, subtask 1 of 2 does not commit again."""
    fifth = job.writer(5, 6)
    handles = prepared(fifth, 1, "a")
    crash_at(job, "commit: after")
    fifth.commit([])
    with pytest.raises(Crash):
        _commit_past_the_first_marker(job, fifth, handles)
    job.broker.at = lambda _: None
    first = job.writer(1, 2)
    first.commit([*handles, *prepared(first, 2, "b")])
    assert job.broker.values == [b"a", b"b"]
    assert {name.rpartition(",")[2] for name in job.broker.offsets} == {"5", "1"}


def _commit_past_the_first_marker(job: Job, writer: KafkaWriter, handles: Sequence[Committable]) -> None:
    commits = []

    def at(step: str) -> None:
        commits.extend([step] if step == "commit: after" else [])
        if len(commits) == 2:
            raise Crash(step)

    job.broker.at = at
    writer.commit(handles)


def test_recovery_ends_the_transaction_of_a_run_that_died(job: Job) -> None:
    """S7.4: an open transaction would hold readers back, and a zombie might still commit it."""
    zombie = job.writer()
    zombie.commit(prepared(zombie, 1, "a"))
    crash_at(job, "commit: before")
    with pytest.raises(Crash):
        zombie.commit(prepared(zombie, 2, "b"))
    assert job.broker.open
    epochs = dict(job.broker.epochs)
    job.broker.at = lambda _: None
    job.writer().recover(1)
    assert job.broker.epochs == {name: epoch + 1 for name, epoch in epochs.items()} and not job.broker.open
    assert job.files(".staged") == []
    job.writer().recover(1)
    assert job.broker.epochs == {name: epoch + 1 for name, epoch in epochs.items()}, "nothing is left to end"


def test_newer_records_of_a_key_wait_for_older_ones_of_other_subtasks(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5.5, S7.8: after a rescale with a gate, subtasks commit side by side."""
    monkeypatch.setattr(kafka_writer, "OLDER_POLL_S", 0.001)
    row = pa.record_batch([["k"], ["v"]], schema=KEYED)
    old = job.writer(3, 4, keyed=True)
    old.write(row)
    held = old.prepare_commit(1)()
    job.run += 1
    here, there = (
        job.writer_of(SinkContext("job", "l", "out", n, 2, 1, f"r{job.run:03d}", KEYED), keyed=True) for n in (0, 1)
    )
    here.write(row)
    newer = here.prepare_commit(2)()
    monkeypatch.setattr(kafka_writer, "OLDER_TIMEOUT_S", 0.01)
    with pytest.raises(OutageError, match="older checkpoints"):
        here.commit(newer)
    assert job.broker.records == []
    there.commit(held)
    here.commit(newer)
    assert len(job.broker.records) == 2


# ---------------------------------------------------------------- staged files


def test_staged_records_that_are_lost_or_damaged_are_refused(job: Job) -> None:
    """S7.4: nothing of them is committed."""
    writer = job.writer()
    damaged, lost = prepared(writer, 1, "a"), prepared(writer, 2, "b")
    first, second = sorted(job.files(".arrow.staged"))
    content = first.read_bytes()
    first.write_bytes(content[:100] + b"?" + content[101:])
    os.remove(second)
    with pytest.raises(SnapshotError, match="damaged"):
        writer.commit(damaged)
    with pytest.raises(SnapshotError, match="lost"):
        writer.commit(lost)
    assert job.broker.values == [] and not job.broker.open
    first.write_bytes(content)
    writer.commit(damaged)
    assert job.broker.values == [b"a"]


def test_a_transaction_for_another_topic_is_refused(job: Job) -> None:
    handles = prepared(job.writer(), 1, "a")
    with pytest.raises(SinkConflictError, match="for topic out, but the sink writes to new"):
        job.writer(topic="new").commit(handles)
    assert job.broker.steps == []


def test_a_large_transaction_has_several_files(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_writer, "STAGED_FILE", kafka_writer.FileCut(rows=2, size_bytes=2**30))
    writer = job.writer()
    for n in range(5):
        writer.write(pa.record_batch([[f"{n}a", f"{n}b"]], schema=SCHEMA))
    handles = writer.prepare_commit(1)()
    assert len(handles[0].data["files"]) == 5
    writer.commit(handles)
    assert job.broker.values == [f"{n}{letter}".encode() for n in range(5) for letter in "ab"]
