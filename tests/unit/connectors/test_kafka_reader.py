"""The reader of Kafka partitions, with a consumer that the test plays (S4.1, S4.2, S4.4)."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from builders.kafka_fakes import FakeConsumer, Numbers, Registry, event, message, reached
from confluent_kafka import KafkaError

from tidegate.connectors.files.source.bad_records import OnBadRecord
from tidegate.connectors.interface import PollResult, SourceContext, Split
from tidegate.connectors.kafka.cluster import KafkaCluster
from tidegate.connectors.kafka.source import inbox as inboxes
from tidegate.connectors.kafka.source.fetcher import Events, Fetcher, Limits
from tidegate.connectors.kafka.source.inbox import Inbox
from tidegate.connectors.kafka.source.kafka_reader import MOST_ROWS, RETRY_MS, KafkaReader
from tidegate.connectors.kafka.source.record_rows import METADATA, RowBuilder, RowShape
from tidegate.errors import DataError, OutageError, PipelineError, TidegateError

VALUES = RowShape(None, None, {})
NUMBERS = RowShape(Numbers(), None, {"offset": "offset"})


class _ByHand(Fetcher):
    """Has no thread: the test calls `step`."""

    is_started = False  # type: ignore[assignment]

    def start(self, name: str) -> None:
        self.is_started = True  # type: ignore[misc]


class Reading:
    """A reader, the consumer that the test plays, and a clock that it moves."""

    def __init__(
        self,
        *splits: Split,
        shape: RowShape = VALUES,
        bounded: bool = False,
        on_bad_record: OnBadRecord = "fail",
        check_s: float | None = None,
    ) -> None:
        self.consumer = FakeConsumer()
        self.now_s = 0.0
        self.checked: list[list[str]] = []
        self.check_raises: list[TidegateError] = []
        self.wakes = 0
        self.retention_ms: dict[str, int] = {}
        self.asked: list[set[str]] = []
        self._limits = Limits(outage_s=60.0, check_s=check_s)
        self.reader = KafkaReader(
            SourceContext("in", 0, 1, self._wake),
            RowBuilder(shape),
            self._fetcher,
            bounded=bounded,
            publishes=True,
            on_bad_record=on_bad_record,
            outage_s=60.0,
            monotonic_s=lambda: self.now_s,
        )
        self.reader.add_splits(splits)

    def _wake(self) -> None:
        self.wakes += 1

    def _fetcher(self, inbox: Inbox) -> Fetcher:
        cluster = KafkaCluster("broker:9092")
        self.inbox = inbox
        self.fetcher = _ByHand(
            cluster,
            self._connect,
            inbox,
            self._limits,
            self._check,
            retention=self._retention,
            monotonic_s=lambda: self.now_s,
        )
        return self.fetcher

    def _retention(self, topics: Any) -> dict[str, int]:
        self.asked.append(set(topics))
        if self.check_raises:
            raise self.check_raises.pop(0)
        return self.retention_ms

    def _connect(self, events: Events) -> FakeConsumer:
        self.events = events
        return self.consumer

    def _check(self, splits: Sequence[Split]) -> None:
        self.checked.append([split.split_id for split in splits])
        if self.check_raises:
            raise self.check_raises.pop(0)

    def step(self, *messages: Any) -> None:
        """The consumer's thread gets these messages."""
        if messages:
            self.consumer.coming.append(list(messages))
        self.fetcher.step()

    def poll(self) -> PollResult:
        return self.reader.poll(1_000)

    def values(self, *messages: Any) -> list[Any]:
        """First column of the next batch."""
        self.step(*messages)
        batch = self.poll().batch
        assert batch is not None
        return batch.column(0).to_pylist()

    def positions(self) -> dict[str, Any]:
        return {split.split_id: split.position for split in self.reader.snapshot()}

    def offset(self) -> int:
        """Position of the only split."""
        [position] = self.positions().values()
        return int(position["offset"])


def split(partition: int = 0, start: int = 0, end: int | None = None, topic: str = "t", position: Any = None) -> Split:
    data = {"topic": topic, "partition": partition, "topic_id": "id", "start": start, "end": end}
    return Split(f"{topic}-{partition}", data, position)


def test_each_partition_is_read_from_its_start_or_position() -> None:
    """S4.2: never from offsets of the group. Restored ones only when their topics are the same."""
    reading = Reading(split(0, start=7), split(1, start=7, position={"offset": 9, "rows": 2}))
    reading.step()
    assert reading.consumer.assigned == {("t", 0): 7, ("t", 1): 9}
    assert reading.checked == [["t-1"]]
    reading.reader.add_splits([split(2)])
    reading.step()
    assert reading.consumer.assigned == {("t", 0): 7, ("t", 1): 9, ("t", 2): 0}
    assert reading.checked == [["t-1"]]


def test_a_batch_has_messages_of_one_partition_and_the_positions_follow() -> None:
    """S4.1, S4.4."""
    reading = Reading(split(0), split(1), split(0, topic="u"))
    reading.step(
        *(message(n, b"a") for n in range(3)), message(0, b"b", 1), message(3, b"c"), message(0, b"d", topic="u")
    )
    seen = [(polled.split_id, polled.batch) for polled in (reading.poll() for _ in range(3))]
    assert [(one, batch and batch.column(0).to_pylist()) for one, batch in seen] == [
        ("t-0", [b"a", b"a", b"a", b"c"]),
        ("t-1", [b"b"]),
        ("u-0", [b"d"]),
    ]
    assert reading.positions() == {
        "t-0": {"offset": 4, "rows": 4},
        "t-1": {"offset": 1, "rows": 1},
        "u-0": {"offset": 1, "rows": 1},
    }
    facts = reading.reader.progress()
    assert facts["rows"] == 6 and facts["partitions"] == 3


def test_a_position_moves_over_gaps_and_to_the_end_that_the_broker_reports() -> None:
    """S4.2: markers of transactions, aborted records, and records that were compacted away."""
    reading = Reading(split())
    reading.step(message(2), message(5))
    assert reading.poll().batch is not None and reading.offset() == 6
    reading.step(reached(9))
    assert reading.poll().batch is None and reading.offset() == 9
    reading.step(message(9), reached(12))
    assert reading.poll().batch is not None and reading.offset() == 12


def test_the_end_of_a_partition_does_not_overtake_messages_that_wait() -> None:
    """S4.1: the position is never ahead of the rows."""
    reading = Reading(split())
    reading.step(*(message(n) for n in range(MOST_ROWS + 5)), reached(MOST_ROWS + 9))
    assert reading.poll().batch is not None and reading.offset() == MOST_ROWS
    assert reading.poll().batch is not None and reading.offset() == MOST_ROWS + 9


@pytest.mark.parametrize(
    "last",
    [
        [message(8), message(9)],
        [message(8), message(9), message(10), message(11)],
        [message(8), reached(10)],
        [message(8), reached(14)],
        [message(8), message(17)],
    ],
    ids=["last record", "later records", "gap at the end", "gap over the end", "gap, later record"],
)
def test_a_bounded_partition_ends_at_its_end(last: list[Any]) -> None:
    """S4.2: also when no record precedes the end, or follows it."""
    reading = Reading(split(end=10), split(1, end=3), bounded=True)
    reading.reader.no_more_splits()
    reading.step(message(2), *last)
    polled = reading.poll()
    assert polled.batch is not None and polled.batch.num_rows == 1 + sum(
        not m.error() and m.offset() < 10 for m in last
    )
    assert reading.reader.active_splits() == {"t-1"} and reading.poll().splits_changed
    reading.step()
    assert reading.consumer.assigned == {("t", 1): 0}, "it is fetched no longer"
    reading.step(reached(3, 1))
    assert reading.poll().state == "end"
    assert reading.poll().state == "end"
    assert all(one.finished for one in reading.reader.snapshot())


def test_messages_that_were_on_their_way_when_a_partition_ended_are_dropped() -> None:
    reading = Reading(split(end=2), split(1, end=9), bounded=True)
    reading.step(message(0), message(1))
    reading.step(message(2), message(3), message(0, b"", 1))
    assert reading.poll().split_id == "t-0"
    assert reading.poll().split_id == "t-1"
    assert reading.poll().batch is None


def test_an_end_that_is_not_reached_is_no_end() -> None:
    """S4.2: an open transaction is before it."""
    reading = Reading(split(end=10), bounded=True)
    reading.reader.no_more_splits()
    reading.step(message(2), reached(5))
    assert reading.poll().batch is not None
    polled = reading.poll()
    assert polled.state == "nothing_now" and not polled.idle and reading.offset() == 5


def test_a_partition_without_records_to_read_ends_at_once() -> None:
    reading = Reading(split(start=7, end=7), split(1, start=7, end=7, position={"offset": 7}), bounded=True)
    assert reading.poll().idle, "more splits may come"
    reading.reader.no_more_splits()
    assert reading.poll().state == "end" and not reading.fetcher.is_started


def test_a_reader_is_idle_only_without_partitions_and_says_nothing_of_silence() -> None:
    """S4.4: whether silence means idleness, `idle_after` decides."""
    reading = Reading()
    assert reading.poll().idle
    reading.reader.add_splits([split()])
    reading.step(reached(0))
    polled = reading.poll()
    assert not polled.idle and polled.state == "nothing_now" and polled.retry_at_ms == 1_000 + RETRY_MS


def test_the_loop_is_woken_once_for_messages_after_a_poll_without_any() -> None:
    reading = Reading(split())
    reading.step(message(0))
    assert reading.wakes == 0, "the loop has not asked yet"
    assert reading.poll().batch is not None and reading.poll().batch is None
    reading.step(message(1))
    reading.step(message(2))
    assert reading.wakes == 1
    assert reading.poll().batch is not None


def test_a_message_from_before_the_position_is_dropped() -> None:
    """Nothing twice, whatever the client returns."""
    reading = Reading(split(start=5))
    assert reading.values(message(3, b"3"), message(4, b"4"), message(5, b"5")) == [b"5"]
    reading.step(message(4, b"4"))
    assert reading.poll().batch is None and reading.offset() == 6


@pytest.mark.parametrize(
    ("offset", "cause"), [(3, "deleted the records before offset 10, so 7 offsets"), (50, "the partition ends at")]
)
def test_an_offset_that_does_not_exist_is_an_error_with_the_range_and_a_remedy(offset: int, cause: str) -> None:
    """S4.2: never a reset."""
    reading = Reading(split(start=offset))
    reading.consumer.range = (10, 40)
    with pytest.raises(PipelineError, match=cause) as raised:
        reading.step(event(KafkaError._AUTO_OFFSET_RESET, offset))
    assert f"offset {offset} of partition 0 of the topic 't' does not exist" in str(raised.value)
    assert "10 to 40" in raised.value.where and "start=" in raised.value.remedy


def test_an_offset_that_was_missing_for_a_moment_is_an_outage() -> None:
    reading = Reading(split(start=20))
    reading.consumer.range = (10, 40)
    with pytest.raises(OutageError, match="was not available for a moment"):
        reading.step(event(KafkaError._AUTO_OFFSET_RESET, 20))
    reading.consumer.answers = False
    with pytest.raises(OutageError, match="does not say which offsets"):
        reading.step(event(KafkaError._AUTO_OFFSET_RESET, 20))


def test_damaged_records_fail_the_run() -> None:
    reading = Reading(split())
    with pytest.raises(DataError, match="records of partition 0 of the topic 't' are damaged"):
        reading.step(event(KafkaError._BAD_MSG))


@pytest.mark.parametrize("code", [KafkaError._AUTHENTICATION, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_a_client_that_is_refused_fails_the_run(code: int) -> None:
    """S9.1: a restart cannot help."""
    reading = Reading(split())
    reading.step()
    reading.events.on_error(KafkaError(code))
    with pytest.raises(PipelineError, match="refuses the client"):
        reading.step()


def test_a_user_without_rights_on_the_group_may_read(caplog: pytest.LogCaptureFixture) -> None:
    reading = Reading(split())
    reading.step()
    reading.events.on_error(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    assert reading.values(message(0, b"x")) == [b"x"]
    assert "GROUP_AUTHORIZATION_FAILED" in caplog.text


def test_a_topic_that_the_consumer_misses_is_looked_for() -> None:
    reading = Reading(split())
    reading.step(event(KafkaError.UNKNOWN_TOPIC_OR_PART))
    assert reading.checked == [["t-0"]], "and it is there"
    reading.check_raises = [PipelineError("the topic was deleted")]
    with pytest.raises(PipelineError, match="deleted"):
        reading.step(event(KafkaError.UNKNOWN_TOPIC_OR_PART))


def test_a_restored_partition_is_not_read_before_its_topic_is_checked() -> None:
    """S4.2: offsets of another topic of the same name mean something else."""
    reading = Reading(split(position={"offset": 5, "rows": 5}), split(1))
    reading.check_raises = [OutageError("no answer"), OutageError("no answer")]
    for _ in range(2):
        reading.step()
        assert reading.consumer.assigned == {}
    reading.step()
    assert reading.consumer.assigned == {("t", 0): 5, ("t", 1): 0}
    again = Reading(split(position={"offset": 5, "rows": 5}))
    again.check_raises = [PipelineError("created again")]
    with pytest.raises(PipelineError, match="created again"):
        again.step()


def test_a_bounded_source_looks_for_its_topics_itself() -> None:
    """It has no enumerator: without records and end, a deleted topic would never be noticed."""
    reading = Reading(split(end=10), bounded=True, check_s=30.0)
    for reading.now_s in (0.0, 29.0, 31.0, 40.0, 62.0):
        reading.step()
    assert len(reading.checked) == 3


def test_an_outage_is_waited_for_and_ends_with_an_answer_or_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """S9.1."""
    caplog.set_level("INFO")
    reading = Reading(split())
    reading.step()
    reading.consumer.answers = False
    reading.events.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    for reading.now_s in (1.0, 30.0, 59.0):
        reading.step()
    reading.consumer.answers = True
    reading.now_s = 61.0
    reading.step()
    assert [r.message.partition(";")[0] for r in caplog.records] == ["Kafka does not answer", "Kafka answers again"]
    reading.consumer.answers = False
    reading.events.on_error(KafkaError(KafkaError._TRANSPORT))
    reading.now_s = 120.0
    reading.step()
    reading.now_s = 121.0
    with pytest.raises(OutageError, match="has not answered for 60 s") as raised:
        reading.step()
    assert "_TRANSPORT" in raised.value.cause and "outage_timeout=" in raised.value.remedy


def test_the_status_says_since_when_and_until_when_an_outage_is_waited_for() -> None:
    """S9.1: the beginning stays the same, although the time of the last poll moves."""
    reading = Reading(split())
    reading.step()
    assert "outage" not in reading.reader.progress()
    reading.consumer.answers = False
    reading.now_s = 3.0
    reading.events.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    seen = []
    for reading.now_s, polled_ms in ((5.0, 1_700_000_005_000), (9.0, 1_700_000_009_100)):
        reading.step()
        reading.reader.poll(polled_ms)
        seen.append(reading.reader.progress()["outage"])
    assert seen[0] == seen[1]
    assert (seen[0]["since"], seen[0]["until"]) == ("2023-11-14T22:13:23.000Z", "2023-11-14T22:14:23.000Z")
    assert seen[0]["cause"].startswith("_ALL_BROKERS_DOWN")
    assert reading.values(message(0, b"x")) == [b"x"]
    assert "outage" not in reading.reader.progress()


def test_messages_end_an_outage_at_once() -> None:
    reading = Reading(split())
    reading.step()
    reading.consumer.answers = False
    reading.events.on_error(KafkaError(KafkaError._TRANSPORT))
    assert reading.values(message(0, b"x")) == [b"x"]
    reading.now_s = 100.0
    reading.step()


def test_the_consumer_waits_while_the_reader_has_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """S4.2: a paused source holds its messages back, and neither loses any nor collects them without limit."""
    monkeypatch.setattr(inboxes, "MOST_MESSAGES", 3)
    reading = Reading(split())
    reading.step(message(0), message(1), message(2))
    reading.step(message(3))
    assert len(reading.consumer.coming) == 1
    assert reading.poll().batch is not None
    reading.step()
    assert reading.offset() == 3 and reading.poll().batch is not None and reading.offset() == 4


def test_the_error_of_the_thread_reaches_the_reader_and_wakes_the_loop() -> None:
    reading = Reading(split())
    reading.poll()
    reading.inbox.fail(OutageError("no broker"))
    assert reading.wakes == 1
    with pytest.raises(OutageError, match="no broker"):
        reading.poll()


# ---------------------------------------------------------------- offsets of the group


def test_completed_checkpoints_publish_the_offsets_of_their_positions() -> None:
    """Those of the checkpoint, and not what was read since."""
    reading = Reading(split(start=3), split(1, start=8))
    reading.step(message(5))
    reading.poll()
    taken = reading.reader.snapshot()
    reading.step(message(6))
    reading.poll()
    reading.reader.checkpoint_completed(1, taken)
    reading.step()
    assert reading.consumer.commits == [{("t", 0): 6, ("t", 1): 8}]


def test_offsets_that_cannot_be_published_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    reading = Reading(split())
    reading.consumer.refuses_commits = True
    for n in range(3):
        reading.reader.checkpoint_completed(n, reading.reader.snapshot())
        reading.step()
    reading.consumer.refuses_commits = False
    reading.events.on_commit(None, [])
    assert [r.message.partition(";")[0] for r in caplog.records] == [
        "offsets of the consumer group could not be committed",
        "offsets of the consumer group are committed again",
    ]


def test_the_lag_is_known_when_all_ends_are() -> None:
    reading = Reading(split(0), split(1, start=90))
    reading.step(message(39))
    reading.poll()
    assert reading.reader.progress()["lag"] == (100 - 40) + (100 - 90)
    reading.consumer.range = (-1001, -1001)
    reading.now_s = 5.0
    reading.step()
    assert "lag" not in reading.reader.progress()


def test_closing_ends_the_thread_and_sends_the_last_commit() -> None:
    consumer = FakeConsumer()
    inbox = Inbox(lambda: None)
    assigned = threading.Event()
    consumer.poll = lambda timeout: assigned.set()  # type: ignore[assignment,func-returns-value]
    fetcher = Fetcher(KafkaCluster("b:1"), lambda _: consumer, inbox, Limits(60.0, None), lambda _: None)
    fetcher.add([split()])
    fetcher.start("kafka-test")
    assert assigned.wait(20)
    fetcher.commit({("t", 0): 4})
    fetcher.close()
    assert consumer.closed and consumer.commits == [{("t", 0): 4}]
    assert not [thread for thread in threading.enumerate() if thread.name == "kafka-test"]


# ---------------------------------------------------------------- rows


def test_records_without_a_format_are_bytes_with_metadata() -> None:
    reading = Reading(split(3), shape=RowShape(None, None, {name: name for name in METADATA}))
    headers = [("h", b"1"), ("h", None)]
    reading.step(
        message(7, b"x", 3, key=b"k", timestamp=(1, 1_500), headers=headers), message(9, None, 3, timestamp=(0, -1))
    )
    batch = reading.poll().batch
    assert batch is not None
    time = batch.column("timestamp")[0].as_py()
    assert batch.to_pylist() == [
        {
            "value": b"x",
            "key": b"k",
            "topic": "t",
            "partition": 3,
            "offset": 7,
            "timestamp": time,
            "headers": [{"key": "h", "value": b"1"}, {"key": "h", "value": None}],
        },
        {"value": None, "key": None, "topic": "t", "partition": 3, "offset": 9, "timestamp": None, "headers": []},
    ]
    assert time.timestamp() == 1.5 and time.utcoffset().total_seconds() == 0


def test_metadata_follow_the_rows_of_their_record() -> None:
    """A record may have no row, or several."""
    shape = RowShape(Numbers("v"), Numbers("k"), {"offset": "at"})
    reading = Reading(split(), shape=shape)
    reading.step(message(0, b"1 2", key=b"5"), message(1, b"", key=b"6"), message(2, b"3", key=b""))
    batch = reading.poll().batch
    assert batch is not None
    assert [list(row.values()) for row in batch.to_pylist()] == [
        [1, "1", 5, "5", 0],
        [2, "2", 5, "5", 0],
        [3, "3", None, None, 2],
    ]
    assert reading.offset() == 3


@pytest.mark.parametrize("on_bad_record", ["skip", "dead_letter"])
def test_records_that_cannot_be_decoded_are_counted_and_emitted(on_bad_record: OnBadRecord) -> None:
    """S4.2: the count is part of the position."""
    shape = RowShape(Numbers("v"), Numbers("k"), {"offset": "at"})
    reading = Reading(split(), shape=shape, on_bad_record=on_bad_record)
    good = [message(n, b"%d" % n, key=b"1") for n in range(3)]
    reading.step(good[0], message(1, b"x", key=b"1"), message(2, b"2", key=b"y"), message(3, b"z", key=b"y"), good[2])
    polled = reading.poll()
    assert polled.batch is not None and polled.batch.column("v").to_pylist() == [0, 2]
    dead = [list(row.values()) for batch in polled.sides.values() for row in batch.to_pylist()]
    expected = [
        ["t", 0, 1, b"x", "it is no number"],
        ["t", 0, 2, b"y", "key: it is no number"],
        ["t", 0, 3, b"z", "it is no number"],
    ]
    assert dead == (expected if on_bad_record == "dead_letter" else [])
    assert reading.reader.counters() == {"bad_records": 3}
    restored = Reading(*reading.reader.snapshot(), shape=shape, on_bad_record=on_bad_record)
    assert restored.reader.counters() == {"bad_records": 3}


def test_a_batch_of_bad_records_alone_moves_the_position() -> None:
    reading = Reading(split(end=2), shape=NUMBERS, bounded=True, on_bad_record="dead_letter")
    reading.reader.no_more_splits()
    reading.step(message(0, b"x"), message(1, b"y"))
    polled = reading.poll()
    assert polled.batch is None and polled.splits_changed and polled.sides["bad_records"].num_rows == 2
    assert reading.poll().state == "end" and reading.offset() == 2


def test_a_bad_record_fails_the_run_by_default_and_is_shown() -> None:
    reading = Reading(split(), shape=NUMBERS)
    reading.step(message(0, b"1"), message(1, b"x" * 500))
    with pytest.raises(PipelineError, match="it is no number") as raised:
        reading.poll()
    assert raised.value.where == "t-0, offset 1" and "x" * 120 + "...'" in str(raised.value)
    assert reading.positions() == {"t-0": None}


def test_a_registry_that_does_not_answer_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """S4.1: neither rows nor position advance meanwhile."""
    registry = Registry(silent=3)
    reading = Reading(split(), shape=RowShape(Numbers(registry=registry), None, {}))
    reading.step(message(0, b"1"))
    for reading.now_s in (0.0, 30.0, 59.0):
        polled = reading.poll()
        assert polled.batch is None and polled.state == "nothing_now" and not polled.idle
        assert reading.positions() == {"t-0": None}
    assert len(caplog.records) == 1
    polled = reading.poll()
    assert polled.batch is not None and polled.batch.column("n").to_pylist() == [1]


def test_a_registry_that_does_not_answer_for_long_fails_the_run() -> None:
    reading = Reading(split(), shape=RowShape(Numbers(registry=Registry(silent=9)), None, {}))
    reading.step(message(0, b"1"))
    reading.poll()
    reading.now_s = 60.0
    with pytest.raises(OutageError, match="registry"):
        reading.poll()


@pytest.mark.parametrize(
    ("columns", "decoded"),
    [(None, None), (["n"], ["n"]), (["offset"], ["n"]), (["n", "n_text", "offset"], None)],
)
def test_only_columns_that_are_used_are_decoded_and_the_same_records_are_refused(
    columns: list[str] | None, decoded: list[str] | None
) -> None:
    numbers = Numbers()
    used = None if columns is None else frozenset(columns)
    shape = RowShape(numbers, None, {"offset": "offset", "topic": "topic"}, used)
    reading = Reading(split(), shape=shape, on_bad_record="skip")
    reading.step(message(0, b"5"), message(1, b"x"), message(2, b"6"))
    batch = reading.poll().batch
    assert batch is not None and batch.num_rows == 2
    assert batch.schema.names == (columns or ["n", "n_text", "offset", "topic"])
    assert numbers.decoded == [decoded]
    assert reading.reader.counters() == {"bad_records": 1}


def test_large_backlogs_are_read_in_turn() -> None:
    """S4.4: no partition starves, whose silence would hold the watermark back."""
    reading = Reading(split(0), split(1))
    reading.step(*(message(n) for n in range(MOST_ROWS * 2)))
    reading.step(message(0, b"", 1))
    turns = [polled.split_id for polled in itertools.takewhile(lambda p: p.batch, iter(reading.poll, None))]
    assert turns == ["t-0", "t-1", "t-0"]


def timed(offset: int, time_ms: int, partition: int = 0) -> Any:
    return message(offset, b"x", partition, timestamp=(1, time_ms))


def test_a_position_can_be_read_until_the_topic_deletes_the_next_record() -> None:
    """S4.2: no earlier than the age of the last record allows. The end of a partition is not written yet."""
    read = Reading(split(0), split(1))
    read.retention_ms = {"t": 5_000}
    assert read.reader.readable_until_ms() is None
    read.step(timed(0, 700), timed(0, 900, 1))
    read.poll()
    assert read.reader.readable_until_ms() == 5_700, "partition 0 has the older record"
    read.poll()
    read.consumer.range = (0, 1)
    read.now_s += 10
    read.step()
    assert read.reader.readable_until_ms() == 6_000, "all is read, and it is 1,000 ms now"
    assert {"t"} in read.asked


def test_a_restored_position_knows_the_time_of_its_last_record() -> None:
    first = Reading(split(0))
    first.step(timed(0, 700))
    first.poll()
    [taken] = first.reader.snapshot()
    assert taken.position["time_ms"] == 700
    read = Reading(taken)
    read.retention_ms = {"t": 100}
    read.step()
    assert read.reader.readable_until_ms() == 800


def test_a_topic_that_keeps_its_records_or_does_not_say_so_gives_no_limit() -> None:
    read = Reading(split(0))
    read.check_raises = [PipelineError("no rights")]
    read.step(timed(0, 700))
    read.poll()
    assert read.reader.readable_until_ms() is None
    read.now_s += 599
    read.step()
    assert len(read.asked) == 1
    read.now_s += 2
    read.step()
    assert len(read.asked) == 2 and read.reader.readable_until_ms() is None


def test_partitions_that_are_read_to_their_end_set_no_limit() -> None:
    read = Reading(split(0, end=1), split(1, end=9), bounded=True)
    read.retention_ms = {"t": 100}
    read.step(timed(0, 5), timed(0, 800, 1))
    read.poll()
    read.poll()
    assert read.reader.readable_until_ms() == 900
