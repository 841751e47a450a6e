"""A broker in memory with transactions, groups and faults, behind the calls of the Kafka client that the sink uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


class Crash(BaseException):
    """The process dies here."""


@dataclass(frozen=True)
class FakeError:
    """Like `KafkaError`."""

    text: str
    may_retry: bool = False

    def name(self) -> str:
        return self.text

    def str(self) -> str:
        return f"broker: {self.text}"

    def retriable(self) -> bool:
        return self.may_retry


class FakeKafkaException(Exception):
    """Like `KafkaException`."""


def failure(name: str, *, may_retry: bool = False) -> FakeKafkaException:
    """An error of the client."""
    return FakeKafkaException(FakeError(name, may_retry))


@dataclass
class FakeOffset:
    """Like `TopicPartition`."""

    topic: str
    partition: int
    offset: int
    metadata: str
    error: Any = None


@dataclass
class FakeBroker:
    """Committed records, offsets of groups, and open transactions by transactional id.

    Attributes:
        at: called at every step with its name, such as "commit: before"; may raise.
        room: records that the queue of a producer has room for.
    """

    records: list[tuple[str, Any, Any, int, dict[str, Any]]] = field(default_factory=list)
    offsets: dict[str, FakeOffset] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    open: dict[str, tuple[list[Any], dict[str, FakeOffset]]] = field(default_factory=dict)
    at: Callable[[str], None] = lambda _: None
    room: int = 10**9
    steps: list[str] = field(default_factory=list)
    undelivered: FakeError | None = None

    def step(self, name: str) -> None:
        self.steps.append(name)
        self.at(name)

    @property
    def values(self) -> list[Any]:
        return [value for _, value, *_ in self.records]


class FakeClients:
    """Like `KafkaClients`."""

    error = FakeKafkaException

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker

    def producer(self, transactional_id: str, events: Any) -> FakeProducer:
        return FakeProducer(self.broker, transactional_id, events)

    def group(self, group: str) -> FakeGroup:
        return FakeGroup(self.broker, group)

    def offset(self, topic: str, partition: int, offset: int, metadata: str) -> FakeOffset:
        return FakeOffset(topic, partition, offset, metadata)

    def failure(self, name: str) -> FakeKafkaException:
        return failure(name)


class FakeGroup:
    """Like a `Consumer` without a subscription."""

    def __init__(self, broker: FakeBroker, group: str) -> None:
        self._broker, self._group = broker, group

    def committed(self, places: list[FakeOffset], timeout: float) -> list[FakeOffset]:
        self._broker.step("read marker: before")
        assert not any(self._group in offsets for _, offsets in self._broker.open.values()), "waits for a transaction"
        [place] = places
        found = self._broker.offsets.get(self._group)
        return [found or FakeOffset(place.topic, place.partition, -1001, "")]

    def consumer_group_metadata(self) -> str:
        return self._group

    def close(self) -> None:
        self._group = "closed"


class FakeProducer:
    """Like a transactional `Producer`."""

    def __init__(self, broker: FakeBroker, transactional_id: str, events: Any) -> None:
        self._broker, self._id, self._events = broker, transactional_id, events
        self._queued = 0
        self._epoch = -1

    def init_transactions(self, timeout: float) -> None:
        self._broker.step("init: before")
        self._broker.open.pop(self._id, None)
        self._epoch = self._broker.epochs[self._id] = self._broker.epochs.get(self._id, 0) + 1
        self._broker.step("init: after")

    def _check(self) -> None:
        if self._broker.epochs[self._id] != self._epoch:
            raise failure("_FENCED")

    def begin_transaction(self) -> None:
        self._check()
        self._broker.step("begin: before")
        self._broker.open[self._id] = [], {}

    def produce(self, topic: str, value: Any, key: Any, partition: int = -1, **more: Any) -> None:
        self._check()
        if self._queued >= self._broker.room:
            raise BufferError
        self._broker.step("produce: before")
        self._queued += 1
        self._broker.open[self._id][0].append((topic, value, key, partition, more))

    def poll(self, timeout: float) -> None:
        self._queued = 0
        if self._broker.undelivered is not None:
            self._events.on_delivery(self._broker.undelivered, None)

    def flush(self, timeout: float) -> int:
        self.poll(timeout)
        return 0

    def send_offsets_to_transaction(self, offsets: list[FakeOffset], group: str, timeout: float) -> None:
        self._check()
        self._broker.step("send offsets: before")
        self._broker.open[self._id][1][group] = offsets[0]
        self._broker.step("send offsets: after")

    def commit_transaction(self, timeout: float) -> None:
        self._check()
        self._broker.step("commit: before")
        records, offsets = self._broker.open.pop(self._id, ([], {}))
        self._broker.records += records
        self._broker.offsets |= offsets
        self._broker.step("commit: after")

    def abort_transaction(self, timeout: float) -> None:
        self._check()
        self._broker.step("abort: before")
        self._broker.open.pop(self._id, None)

    def purge(self) -> None:
        self._queued = 0
