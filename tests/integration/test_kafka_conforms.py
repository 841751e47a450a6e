"""The Kafka source against the source contract, on a real broker (S4.1, S4.2, S4.3)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest
from kafka_broker import KafkaBroker

from tidegate.connectors.interface import Source
from tidegate.connectors.kafka.source.kafka_source import Kafka
from tidegate.testing.source_conformance import DiscoveringSourceConformance, SourceConformance

ROWS = 400
_numbers = count()


def fill(kafka: KafkaBroker, topic: str, partition: int, rows: int = ROWS) -> None:
    kafka.produce(topic, [b"%d/%d" % (partition, n) for n in range(rows)], partition, key=b"k")


@pytest.fixture(scope="class")
def topic(request: pytest.FixtureRequest, kafka: KafkaBroker) -> Iterator[None]:
    """Two partitions with records, one of them with an aborted transaction between and at its end; one is empty."""
    request.cls.kafka = kafka
    request.cls.topic = kafka.create_topic(f"source-conform-{next(_numbers)}", 3)
    fill(kafka, request.cls.topic, 0)
    for n in range(4):
        kafka.produce(request.cls.topic, [b"1/%d" % i for i in range(n * 100, n * 100 + 100)], 1)
        kafka.abort(request.cls.topic, [b"aborted"] * 20, 1)
    yield


@pytest.mark.usefixtures("topic")
class TestBounded(SourceConformance):
    """S4.2: with an end that a gap precedes."""

    kafka: KafkaBroker
    topic: str

    def make_source(self) -> Source:
        columns = ["key", "partition", "offset", "timestamp", "topic", "headers"]
        return Kafka(self.topic, servers=self.kafka.servers, until="latest", with_columns=columns)


@pytest.fixture(scope="class")
def growing(request: pytest.FixtureRequest, kafka: KafkaBroker) -> Iterator[None]:
    request.cls.kafka = kafka
    yield


@pytest.fixture
def growing_topic(request: pytest.FixtureRequest) -> Iterator[None]:
    """A topic for each test, since the suite adds partitions. It has more records than the suite reads."""
    kafka = request.cls.kafka
    request.cls.topic = kafka.create_topic(f"growing-{next(_numbers)}", 2)
    for partition in range(2):
        fill(kafka, request.cls.topic, partition, 20_000)
    yield


@pytest.mark.usefixtures("growing", "growing_topic")
class TestUnbounded(DiscoveringSourceConformance):
    """S4.3."""

    enough_rows = 200
    kafka: KafkaBroker
    topic: str

    def make_source(self) -> Source:
        return Kafka(self.topic, servers=self.kafka.servers, with_columns=["offset"])

    def add_input(self) -> None:
        added = len(self.kafka.admin().list_topics(timeout=20).topics[self.topic].partitions)
        self.kafka.add_partitions(self.topic, added + 1)
        fill(self.kafka, self.topic, added)
