"""The Kafka sink with a real broker: records, checks before the start, and what goes wrong in a commit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka_broker import USER, KafkaBroker

from tidegate import KafkaSink
from tidegate.change_rows import change_kind_field
from tidegate.connectors.interface import SinkWriter
from tidegate.connectors.kafka.sink.kafka_sink import KafkaClients
from tidegate.connectors.kafka.sink.marked_producer import MarkedProducer
from tidegate.connectors.transactions import Committable, SinkContext
from tidegate.errors import DataError, OptionError, OutageError, PipelineError, TidegateError

PLAIN = pa.schema([("value", pa.string())])
MOMENT = datetime(2026, 11, 28, 1, 2, 3, tzinfo=UTC)


def context(schema: pa.Schema = PLAIN, *, lineage: str = "l", run: int = 1) -> SinkContext:
    """Of the only subtask."""
    return SinkContext("job", lineage, "out", 0, 1, 1, f"r{run}", schema)


def commit(writer: SinkWriter, checkpoint_id: int, rows: pa.RecordBatch) -> Sequence[Committable]:
    """Write, stage and publish."""
    writer.write(rows)
    handles = writer.prepare_commit(checkpoint_id)()
    writer.commit(handles)
    return handles


def values(*texts: str) -> pa.RecordBatch:
    """Rows of `PLAIN`."""
    return pa.record_batch([list(texts)], schema=PLAIN)


def test_every_part_of_a_record_arrives(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic, other = kafka.create_topic("parts", 3), kafka.create_topic("parts-other", 1)
    schema = pa.schema(
        [
            ("id", pa.string()),
            ("value", pa.binary()),
            ("p", pa.int32()),
            ("at", pa.timestamp("us", "UTC")),
            ("h", pa.map_(pa.string(), pa.string())),
            ("to", pa.string()),
        ]
    )
    rows = [
        {"id": "a", "value": b"1", "p": 2, "at": MOMENT, "h": [("x", "y"), ("x", None)], "to": None},
        {"id": "b", "value": None, "p": 1, "at": None, "h": None, "to": None},
        {"id": "c", "value": b"", "p": None, "at": None, "h": [], "to": other},
    ]
    sink = KafkaSink(
        topic,
        servers=kafka.servers,
        key="id",
        partition="p",
        timestamp="at",
        headers="h",
        topic_column="to",
        staging=tmp_path,
    )
    sink.check(schema)
    commit(sink.create_writer(context(schema)), 1, pa.RecordBatch.from_pylist(rows, schema))
    tombstone, first = kafka.read(topic)
    assert (first.partition(), first.key(), first.value()) == (2, b"a", b"1")
    assert first.timestamp()[1] == int(MOMENT.timestamp() * 1000)
    assert first.headers() == [("x", b"y"), ("x", None)]
    assert (tombstone.partition(), tombstone.key(), tombstone.value()) == (1, b"b", None)
    assert abs(tombstone.timestamp()[1] - datetime.now(UTC).timestamp() * 1000) < 600_000
    [third] = kafka.read(other)
    assert (third.key(), third.value(), third.headers()) == (b"c", b"", None)


def test_a_compacted_topic_follows_the_changes_of_a_table(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic = kafka.create_topic("changes", 1, cleanup_policy="compact")
    schema = pa.schema([pa.field("id", pa.string()), pa.field("value", pa.string()), change_kind_field()])
    kinds = ["insert", "insert", "update_before", "update_after", "delete"]
    rows = pa.record_batch([["a", "b", "a", "a", "b"], ["1", "2", "1", "3", "2"], kinds], schema=schema)
    sink = KafkaSink(topic, servers=kafka.servers, key="id", staging=tmp_path)
    sink.check(schema)
    commit(sink.create_writer(context(schema)), 1, rows)
    found = [(m.key(), m.value()) for m in kafka.read(topic)]
    assert found == [(b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"b", None)]
    with pytest.raises(PipelineError, match="compacted"):
        KafkaSink(topic, servers=kafka.servers, staging=tmp_path).check(PLAIN)
    rows = pa.record_batch([[None, "c"], ["1", "2"]], schema=pa.schema([("id", pa.string()), ("value", pa.string())]))
    writer = sink.create_writer(context(rows.schema))
    writer.write(rows)
    with pytest.raises(DataError, match="has no key"):
        writer.prepare_commit(2)()


def test_a_missing_topic_is_refused_or_created(kafka: KafkaBroker, tmp_path: Path) -> None:
    """The check creates nothing; a driver that starts fresh does."""
    with pytest.raises(PipelineError, match="does not exist"):
        KafkaSink("absent", servers=kafka.servers, staging=tmp_path).check(PLAIN)
    sink = KafkaSink(
        "created", servers=kafka.servers, create={"partitions": 3, "settings": {"retention.ms": -1}}, staging=tmp_path
    )
    sink.check(PLAIN)
    sink.check_fresh_start(context(lineage=""))
    assert "created" not in kafka.admin().list_topics(timeout=30).topics
    sink.check_fresh_start(context())
    sink.check_fresh_start(context())
    commit(sink.create_writer(context()), 1, values("a"))
    assert [m.value() for m in kafka.read("created")] == [b"a"]
    assert len(kafka.admin().list_topics(timeout=30).topics["created"].partitions) == 3


def test_a_sink_logs_in_with_a_secret_that_it_does_not_tell(
    kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.create_topic("secured", 1)
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": kafka.password,
    }
    sink = KafkaSink(topic, servers=kafka.secured_servers, settings=settings, staging=tmp_path)
    sink.check(PLAIN)
    sink.check_fresh_start(context())
    commit(sink.create_writer(context()), 1, values("a"))
    assert [m.value() for m in kafka.read(topic)] == [b"a"]
    monkeypatch.setenv("TIDEGATE_TEST_WRONG", "not-the-word")
    wrong = {**settings, "sasl.password": "secret:env/TIDEGATE_TEST_WRONG"}
    monkeypatch.setattr("tidegate.connectors.kafka.sink.topics.ANSWER_TIMEOUT_S", 3.0)
    with pytest.raises(TidegateError) as raised:
        KafkaSink(topic, servers=kafka.secured_servers, settings=wrong, staging=tmp_path).check(PLAIN)
    assert "Check sasl.username and sasl.password" in raised.value.remedy and "not-the-word" not in str(raised.value)
    assert "not-the-word" not in repr(KafkaSink(topic, servers=kafka.secured_servers, settings=wrong).describe())


def test_a_timeout_above_the_limit_of_the_brokers_is_refused_before_the_start(
    kafka: KafkaBroker, tmp_path: Path
) -> None:
    sink = KafkaSink(
        kafka.create_topic("limits", 1), servers=kafka.servers, transaction_timeout="1 h", staging=tmp_path
    )
    sink.check(PLAIN)
    with pytest.raises(PipelineError, match=r"transaction\.max\.timeout\.ms"):
        sink.check_fresh_start(context())


def test_the_limit_of_a_topic_for_records_is_checked(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic = kafka.create_topic("small", 1, max_message_bytes="5000")
    with pytest.raises(PipelineError, match=r"message\.max\.bytes in settings= to at most 5000"):
        KafkaSink(topic, servers=kafka.servers, staging=tmp_path).check(PLAIN)
    sink = KafkaSink(topic, servers=kafka.servers, settings={"message.max.bytes": 4000}, staging=tmp_path)
    sink.check(PLAIN)
    writer = sink.create_writer(context())
    commit(writer, 1, values("a" * 3964))
    with pytest.raises(DataError, match="4001 bytes"):
        writer.write(values("a" * 3965))
    assert [len(m.value()) for m in kafka.read(topic)] == [3964]


def test_a_topic_or_partition_that_a_row_names_must_exist(kafka: KafkaBroker, tmp_path: Path) -> None:
    schema = pa.schema([("value", pa.string()), ("to", pa.string()), ("p", pa.int32())])
    topic = kafka.create_topic("named", 2)
    writer = KafkaSink(topic, servers=kafka.servers, topic_column="to", partition="p", staging=tmp_path).create_writer(
        context(schema)
    )
    for row, words in (({"to": "nowhere"}, "does not exist"), ({"p": 2}, "partition 2 of topic 'named'")):
        writer.write(pa.RecordBatch.from_pylist([{"value": "a", **row}], schema))
        with pytest.raises(DataError, match=words):
            writer.prepare_commit(1)()
    assert kafka.read(topic) == []


def test_readers_of_committed_records_never_wait_for_a_checkpoint(kafka: KafkaBroker, tmp_path: Path) -> None:
    """No transaction is open between commits, while records are staged."""
    from confluent_kafka import IsolationLevel, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    topic = kafka.create_topic("open", 1)
    writer = KafkaSink(topic, servers=kafka.servers, staging=tmp_path).create_writer(context())
    commit(writer, 1, values("a"))
    writer.write(values("b"))
    writer.prepare_commit(2)()
    kafka.produce(topic, [b"other"])
    place = TopicPartition(topic, 0)
    ends = [
        kafka.admin().list_offsets({place: OffsetSpec.latest()}, isolation_level=level)[place].result(30).offset
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    ]
    assert ends[0] == ends[1]
    assert [m.value() for m in kafka.read(topic)] == [b"a", b"other"]


@pytest.mark.slow
@pytest.mark.gate
def test_a_commit_outlives_a_restart_of_the_broker(
    kafka: KafkaBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S7.4: the broker dies when the records are sent and before they are committed, and when they are committed."""
    topic = kafka.create_topic("restarted", 2)
    writer = KafkaSink(topic, servers=kafka.servers, staging=tmp_path).create_writer(context())
    commit(writer, 1, values("first"))
    for n, after in enumerate((False, True)):
        with monkeypatch.context() as patch:
            _restart_around(patch, kafka, after)
            commit(writer, n + 2, values(f"{n}-a", f"{n}-b"))
    assert sorted(m.value() for m in kafka.read(topic)) == [b"0-a", b"0-b", b"1-a", b"1-b", b"first"]


def _restart_around(patch: pytest.MonkeyPatch, kafka: KafkaBroker, after: bool) -> None:
    original = MarkedProducer.commit
    done: list[bool] = []

    def call(producer: MarkedProducer, *args: Any) -> None:
        if after:
            original(producer, *args)
        if not done:
            done.append(True)
            kafka.kill()
            starting = threading.Thread(target=kafka.start)
            starting.start()
            starting.join() if after else None
        if not after:
            original(producer, *args)
        else:
            raise producer._clients.error(_lost())

    patch.setattr(MarkedProducer, "commit", call)


def _lost() -> Any:
    from confluent_kafka import KafkaError

    return KafkaError(KafkaError._TIMED_OUT)


def test_a_producer_that_is_fenced_is_replaced(kafka: KafkaBroker, tmp_path: Path) -> None:
    """S9.2: a zombie may take the transactional id for a moment."""
    topic = kafka.create_topic("fenced", 1)
    sink = KafkaSink(topic, servers=kafka.servers, staging=tmp_path)
    writer = sink.create_writer(context())
    commit(writer, 1, values("a"))
    zombie = MarkedProducer(KafkaClients(sink._cluster, 60_000), "job,l,out,0", topic, 1.0)
    zombie.open()
    assert zombie.marker is not None and zombie.marker.checkpoint_id == 1
    zombie.begin()
    zombie.close()
    commit(writer, 2, values("b"))
    assert [m.value() for m in kafka.read(topic)] == [b"a", b"b"]


def test_brokers_that_do_not_answer_are_an_outage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.connectors.kafka.sink.topics.ANSWER_TIMEOUT_S", 1.0)
    with pytest.raises(OutageError):
        KafkaSink("out", servers="127.0.0.1:1", staging=tmp_path).check(PLAIN)


def test_a_runner_without_a_job_directory_needs_a_staging_folder() -> None:
    with pytest.raises(OptionError, match="no place to stage"):
        KafkaSink("out", servers="127.0.0.1:1").create_writer(context())
