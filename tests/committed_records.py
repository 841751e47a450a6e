"""An independent consumer of a topic: what readers of committed records see."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

READ_LIMIT_S = 60.0
SETTLE_S = 3.0
"""Most time until the end of a committed transaction is on each partition. The broker answers a commit before that."""


class CommittedRecords:
    """Messages of one topic, read on from where the last call ended. Not for use by several threads.

    Attributes:
        messages: all that were read so far, by partition in their order.
    """

    def __init__(self, servers: str, topic: str) -> None:
        from confluent_kafka import Consumer
        from confluent_kafka.admin import AdminClient

        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self.messages: list[Any] = []
        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "tidegate-tests",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 5,
                "log_level": 0,
            }
        )
        partitions = self._consumer.list_topics(topic, READ_LIMIT_S).topics[topic].partitions
        self._next = dict.fromkeys(partitions, 0)

    def read(self) -> list[Any]:
        """Read to the present end of every partition, and return all messages so far."""
        from confluent_kafka import TopicPartition

        self._settle()
        # An assignment makes the client tell the end of each partition anew.
        self._consumer.assign([TopicPartition(self._topic, number, offset) for number, offset in self._next.items()])
        unread = set(self._next)
        deadline = time.monotonic() + READ_LIMIT_S
        while unread:
            assert time.monotonic() < deadline, f"partitions {unread} of {self._topic} do not end"
            for message in self._consumer.consume(1000, 0.2):
                if message.error() is None:
                    self.messages.append(message)
                    self._next[message.partition()] = message.offset() + 1
                else:
                    assert message.error().name() == "_PARTITION_EOF", message.error()
                    unread.discard(message.partition())
        return self.messages

    def _settle(self) -> None:
        """Wait until no transaction is unfinished, or for a while: one that a test left open stays unfinished."""
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        wanted = {TopicPartition(self._topic, number): OffsetSpec.latest() for number in self._next}
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            # A new topic may have no leader yet.
            with suppress(KafkaException):
                ends = [
                    {place.partition: answer.result().offset for place, answer in answers.items()}
                    for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
                    for answers in [
                        self._admin.list_offsets(wanted, isolation_level=level, request_timeout=READ_LIMIT_S)
                    ]
                ]
                if ends[0] == ends[1]:
                    return
            time.sleep(0.01)

    def close(self) -> None:
        """Release the client."""
        self._consumer.close()
