"""The Kafka source and a real broker: offsets, transactions, deleted topics, logins, outages (S4.2, S4.3, S9.1)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from kafka_broker import PASSWORD_VARIABLE, USER, KafkaBroker

from tidegate.connectors.interface import PollResult, SourceContext, SourceReader, Split
from tidegate.connectors.kafka.source.kafka_source import Kafka
from tidegate.errors import OutageError, PipelineError

PATIENCE_S = 60.0
BEGAN_MS = 1_700_000_000_000
_numbers = count()


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    """A topic of one partition."""
    return kafka.create_topic(f"source-{next(_numbers)}")


class Loop:
    """Polls a reader as a slot's loop does: it sleeps until it is woken."""

    def __init__(self, source: Kafka, splits: list[Split] | None = None) -> None:
        self._woken = threading.Event()
        self.reader: SourceReader = source.create_reader(SourceContext("in", 0, 1, self._woken.set))
        self.reader.add_splits(splits_of(source) if splits is None else splits)
        self.reader.no_more_splits()
        self.values: list[Any] = []

    def until(self, condition: Callable[[PollResult], bool]) -> None:
        """Poll until `condition` holds for a result. Collects the first column."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            polled = self.reader.poll(0)
            if polled.batch is not None:
                self.values += polled.batch.column(0).to_pylist()
            if condition(polled):
                return
            if polled.state == "nothing_now":
                self._woken.wait(1.0)
                self._woken.clear()
        raise AssertionError(f"waited {PATIENCE_S} s; values {self.values[:20]}, at {self.reader.snapshot()}")

    def offset(self) -> int:
        [split] = self.reader.snapshot()
        return int(split.data["start"] if split.position is None else split.position["offset"])


@contextmanager
def reading(source: Kafka, splits: list[Split] | None = None) -> Iterator[Loop]:
    loop = Loop(source, splits)
    try:
        yield loop
    finally:
        loop.reader.close()


def splits_of(source: Kafka) -> list[Split]:
    if source.boundedness == "bounded":
        return list(source.discover(1))
    return list(source.create_enumerator(None).discover().splits)


def everything(source: Kafka) -> list[Any]:
    """Values that a bounded source reads."""
    with reading(source) as loop:
        loop.until(lambda polled: polled.state == "end")
        return loop.values


def test_open_and_aborted_transactions_are_not_read_and_a_bounded_read_ends_over_their_markers(
    kafka: KafkaBroker, topic: str
) -> None:
    """S4.2: the last offsets before the end are markers, for which no record ever comes."""
    from confluent_kafka import Producer

    kafka.produce(topic, [b"1"])
    kafka.abort(topic, [b"aborted"])
    kafka.produce(topic, [b"2"])
    kafka.abort(topic, [b"aborted"] * 2)
    assert everything(Kafka(topic, servers=kafka.servers, until="latest")) == [b"1", b"2"]
    open_one = Producer({"bootstrap.servers": kafka.servers, "transactional.id": f"open-{topic}", "log_level": 0})
    open_one.init_transactions(30)
    open_one.begin_transaction()
    open_one.produce(topic, b"open")
    open_one.flush(30)
    kafka.produce(topic, [b"3"])
    both = {
        isolation: everything(Kafka(topic, servers=kafka.servers, until="latest", isolation=isolation))
        for isolation in ("read_committed", "read_uncommitted")
    }
    assert both["read_committed"] == [b"1", b"2"]
    assert both["read_uncommitted"] == [b"1", b"aborted", b"2", b"aborted", b"aborted", b"open", b"3"]
    with reading(Kafka(topic, servers=kafka.servers, start="latest")) as loop:
        open_one.commit_transaction(30)
        loop.until(lambda _: len(loop.values) == 2)
        assert loop.values == [b"open", b"3"], "what was open at the start is read when it is committed"


def test_a_reader_that_has_caught_up_is_at_the_end_also_after_a_marker(kafka: KafkaBroker, topic: str) -> None:
    """S4.2: tools would show a lag, and retention would delete the position, although nothing is lost."""
    kafka.produce(topic, [b"1"])
    kafka.abort(topic, [b"aborted"])
    with reading(Kafka(topic, servers=kafka.servers)) as loop:
        loop.until(lambda _: loop.offset() == 3)
        assert loop.values == [b"1"]


def test_starts_and_ends_by_time_and_by_offset(kafka: KafkaBroker, topic: str) -> None:
    kafka.produce(topic, [b"%d" % n for n in range(10)], timestamp_ms=BEGAN_MS)
    at = "2023-11-14T22:13:20.00{}Z"

    def read(**options: Any) -> list[int]:
        return [int(value) for value in everything(Kafka(topic, servers=kafka.servers, **options))]

    assert read(start=at.format(4), until="latest") == [4, 5, 6, 7, 8, 9]
    assert read(until=at.format(4)) == [0, 1, 2, 3]
    assert read(start={0: 2}, until={topic: {0: 5}}) == [2, 3, 4]
    assert read(start="latest", until="latest") == []
    assert read(start="2099-01-01T00:00:00Z", until="2099-01-02T00:00:00Z") == []


def test_a_snapshot_whose_offset_has_expired_is_an_error_before_and_in_the_run(kafka: KafkaBroker, topic: str) -> None:
    """S4.2: never a reset, which would lose rows in silence."""
    kafka.produce(topic, [b"x"] * 20)
    source = Kafka(topic, servers=kafka.servers)
    with reading(source) as loop:
        loop.until(lambda _: len(loop.values) == 20)
        taken = [Split(split.split_id, split.data, {"offset": 10, "rows": 10}) for split in loop.reader.snapshot()]
    assert source.unavailable_splits(taken) == []
    kafka.delete_records(topic, 0, 15)
    [(split_id, reason)] = source.unavailable_splits(taken)
    assert split_id == f"{topic}-0" and "offset 10" in reason and "15 to 20" in reason
    with reading(source, taken) as loop, pytest.raises(PipelineError, match="offset 10 of partition 0") as raised:
        loop.until(lambda _: False)
    assert "15 to 20" in raised.value.where and "5 offsets are lost" in raised.value.cause and loop.values == []


def test_a_snapshot_after_the_end_is_an_error(kafka: KafkaBroker, topic: str) -> None:
    kafka.produce(topic, [b"x"] * 3)
    source = Kafka(topic, servers=kafka.servers)
    [split] = splits_of(source)
    beyond = [Split(split.split_id, split.data, {"offset": 7, "rows": 7})]
    with reading(source, beyond) as loop, pytest.raises(PipelineError, match="the partition ends at offset 3"):
        loop.until(lambda _: False)
    [(_, reason)] = source.unavailable_splits(beyond)
    assert "offset 7" in reason and "ends at offset 3" in reason


def test_a_topic_that_was_created_again_is_noticed_at_a_restore_and_by_the_search(
    kafka: KafkaBroker, topic: str
) -> None:
    """S4.2: the new topic has the offset, but other records before it."""
    kafka.produce(topic, [b"old"] * 5)
    source = Kafka(topic, servers=kafka.servers)
    enumerator = source.create_enumerator(None)
    found = enumerator.discover()
    with reading(source, list(found.splits)) as loop:
        loop.until(lambda _: len(loop.values) == 5)
        taken = list(loop.reader.snapshot())
    assert source.unavailable_state(found.state) is None
    kafka.delete_topic(topic)
    kafka.create_topic(topic)
    kafka.produce(topic, [b"new"] * 9)
    with pytest.raises(PipelineError, match="created again"):
        enumerator.discover()
    with pytest.raises(PipelineError, match="created again"):
        source.create_enumerator(found.state).discover()
    with reading(source, taken) as loop, pytest.raises(PipelineError, match="created again"):
        loop.until(lambda _: False)
    assert loop.values == []
    assert "created again" in source.unavailable_splits(taken)[0][1]
    assert "created again" in str(source.unavailable_state(found.state)), "also if it has no open split"


def test_a_bounded_read_of_a_topic_that_is_deleted_does_not_wait_for_ever(kafka: KafkaBroker, topic: str) -> None:
    from confluent_kafka import Producer

    kafka.produce(topic, [b"x"])
    open_one = Producer({"bootstrap.servers": kafka.servers, "transactional.id": f"open-{topic}", "log_level": 0})
    open_one.init_transactions(30)
    open_one.begin_transaction()
    open_one.produce(topic, b"open")
    open_one.flush(30)
    source = Kafka(topic, servers=kafka.servers, until={0: 2}, discover_every="200 ms")
    with reading(source) as loop:
        loop.until(lambda _: loop.values == [b"x"])
        kafka.delete_topic(topic)
        with pytest.raises(PipelineError, match="does not exist any more"):
            loop.until(lambda _: False)


def test_the_offsets_of_checkpoints_are_published_and_a_job_can_start_with_them(kafka: KafkaBroker, topic: str) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

    kafka.produce(topic, [b"%d" % n for n in range(6)])
    group = f"group of {topic}"
    with reading(Kafka(topic, servers=kafka.servers, group=group)) as loop:
        loop.until(lambda _: len(loop.values) == 6)
        [split] = loop.reader.snapshot()
        loop.reader.checkpoint_completed(3, [Split(split.split_id, split.data, {"offset": 4, "rows": 4})])
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])
    found = kafka.admin().list_consumer_group_offsets([asked])[group].result(30)
    assert [at.offset for at in found.topic_partitions] == [4], "and closing has sent it"
    assert everything(Kafka(topic, servers=kafka.servers, start="group", group=group, until="latest")) == [b"4", b"5"]
    with pytest.raises(PipelineError, match="has no offset"):
        Kafka(topic, servers=kafka.servers, start="group", group="another", until="latest").discover(1)


def test_a_broker_that_is_killed_and_comes_back_loses_and_repeats_nothing(kafka: KafkaBroker, topic: str) -> None:
    """S9.1: the reader waits, and reads on."""
    kafka.produce(topic, [b"%d" % n for n in range(1_000)])
    with reading(Kafka(topic, servers=kafka.servers)) as loop:
        loop.until(lambda _: len(loop.values) == 1_000)
        kafka.kill()
        loop.until(lambda polled: polled.state == "nothing_now")
        kafka.start()
        kafka.produce(topic, [b"%d" % n for n in range(1_000, 2_000)])
        loop.until(lambda _: len(loop.values) >= 2_000)
        assert loop.values == [b"%d" % n for n in range(2_000)]


def test_a_broker_that_stays_away_fails_the_run_after_the_timeout() -> None:
    """S9.1, and the enumerator reports the outage, after which the driver searches again."""
    away = Kafka("t", servers="127.0.0.1:9", outage_timeout="500 ms")
    data = {"topic": "t", "partition": 0, "topic_id": "", "start": 0, "end": None}
    with (
        reading(away, [Split("t-0", data)]) as loop,
        pytest.raises(OutageError, match="has not answered for") as raised,
    ):
        loop.until(lambda _: False)
    assert "127.0.0.1:9" in raised.value.where


def test_a_start_without_a_cluster_is_refused_soon() -> None:
    """S9.1: the command line says so before it submits, and not only after `outage_timeout`."""
    began_s = time.monotonic()
    with pytest.raises(OutageError, match="Kafka did not") as raised:
        Kafka("t", servers="127.0.0.1:9").check_fresh_start()
    assert time.monotonic() - began_s < 20 and raised.value.where == "127.0.0.1:9"
    assert raised.value.remedy.startswith("Check that the brokers run")


@pytest.mark.parametrize(
    ("options", "what", "remedy"),
    [
        ({"topics": "sourse-right"}, "there is no topic 'sourse-right'", "there is a topic 'source-right'"),
        ({"topics": "zzzz"}, "there is no topic 'zzzz'", "Create the topic"),
        ({"start": {0: 7}}, "start= is offset 7 for partition 0 .* does not exist", "Give start= an offset"),
        ({"until": {0: 8}}, "until= is offset 8 for partition 0 .* does not exist", "Give until= an offset"),
    ],
)
def test_a_wrong_topic_or_offset_is_refused_before_the_start_with_its_remedy(
    kafka: KafkaBroker, options: dict[str, Any], what: str, remedy: str
) -> None:
    if "source-right" not in kafka.admin().list_topics(timeout=30).topics:
        kafka.create_topic("source-right")
    with pytest.raises(PipelineError, match=what) as raised:
        Kafka(**{"topics": "source-right", **options}, servers=kafka.servers).check_fresh_start()
    assert remedy in raised.value.remedy


def secured(kafka: KafkaBroker, topic: str, word: str = KafkaBroker.password, **options: Any) -> Kafka:
    settings = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": USER,
        "sasl.password": word,
    }
    return Kafka(topic, servers=kafka.secured_servers, settings=settings, **options)


def test_a_login_with_a_secret_works_and_nothing_contains_it(
    kafka: KafkaBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    kafka.produce(topic, [b"x"] * 3)
    source = secured(kafka, topic, until="latest")
    splits = splits_of(source)
    assert everything(source) == [b"x"] * 3
    told = [source.describe(), repr(splits), caplog.text, str(source.found_schema())]
    assert not [text for text in told if os.environ[PASSWORD_VARIABLE] in text]


def test_a_wrong_password_fails_at_once_and_is_not_shown(
    kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S9.1: in the driver and in the reader, long before a request would time out."""
    monkeypatch.setenv("WRONG_WORD", "swordfish-planted")
    good, wrong = secured(kafka, topic), secured(kafka, topic, "secret:env/WRONG_WORD")
    splits = splits_of(good)
    shown: list[str] = []

    def read() -> None:
        with reading(wrong, splits) as loop:
            loop.until(lambda _: False)

    for call in (lambda: wrong.create_enumerator(None).discover(), read):
        began_s = time.monotonic()
        with pytest.raises(PipelineError, match="Kafka refuses the client") as raised:
            call()
        assert time.monotonic() - began_s < 20
        shown.append(f"{raised.value} {raised.value.__cause__}")
    assert not [text for text in [*shown, caplog.text] if "swordfish" in text]


def test_a_setting_that_the_client_does_not_know_is_named(kafka: KafkaBroker, topic: str) -> None:
    wrong = Kafka(topic, servers=kafka.servers, settings={"sasl.mechanisn": "PLAIN"}, until="latest")
    with pytest.raises(PipelineError, match="sasl.mechanisn"):
        wrong.discover(1)


def test_a_reader_knows_how_long_its_topic_keeps_records(kafka: KafkaBroker) -> None:
    """S4.2: so a snapshot records until when it can be restored."""
    kept = kafka.create_topic(f"source-{next(_numbers)}")
    topic = kafka.create_topic(f"source-{next(_numbers)}", retention_ms="3600000")
    began_ms = int(time.time() * 1_000)
    for name in (kept, topic):
        kafka.produce(name, [b"a"])
    with reading(Kafka(topic, servers=kafka.servers)) as loop:
        loop.until(lambda polled: polled.batch is not None)
        loop.until(lambda _: loop.reader.readable_until_ms() is not None)
        until_ms = loop.reader.readable_until_ms()
        # At the end of the partition it is an hour from the loop's clock, which stands still.
        assert until_ms == 3_600_000 or (until_ms or 0) >= began_ms + 3_600_000
    with reading(Kafka(kept, servers=kafka.servers)) as loop:
        loop.until(lambda polled: polled.batch is not None)
        loop.until(lambda _: bool(loop.offset()))
        assert loop.reader.readable_until_ms() is None
