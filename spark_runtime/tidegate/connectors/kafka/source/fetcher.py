"""The thread of a Kafka consumer: assigns partitions with their offsets, and moves their messages into an inbox."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tidegate.connectors.interface import Split
from tidegate.connectors.kafka.cluster import KafkaCluster, load_confluent_kafka
from tidegate.connectors.kafka.source.inbox import Inbox
from tidegate.connectors.kafka.source.kafka_errors import (
    damaged,
    meaning,
    out_of_range,
    refused,
    without_secrets,
)
from tidegate.connectors.kafka.source.partitions import next_offset, split_part
from tidegate.connectors.kafka.source.topic_view import Part
from tidegate.errors import OutageError, TidegateError

logger = logging.getLogger("tidegate.connectors")

MOST_CONSUMED = 8_192
"""Messages of one call of the client, which holds Python's lock meanwhile: some 4 ms."""
WAIT_S = 0.05
"""Seconds in which the thread notices new splits, and its end, while no messages arrive."""
LOOK_S = 1.0
"""Seconds between two requests to a cluster that does not answer, and between two updates of the lag."""
ANSWER_S = 5.0
"""Longest wait for an answer about one partition, seconds."""
NO_GROUP = "GROUP_AUTHORIZATION_FAILED"
"""Error of a user without rights on the consumer group, which a reader does not need."""
RETENTION_S = 600.0
"""Seconds between two requests for the retention of topics, which an administrator may change."""
CLOSE_S = 5.0
"""Seconds in which the thread should end. A client without brokers may need longer, and is then left alone."""


class Consumer(Protocol):
    """The part of `confluent_kafka.Consumer` that is used."""

    def incremental_assign(self, partitions: Sequence[Any]) -> None:
        """Begin to fetch partitions."""

    def incremental_unassign(self, partitions: Sequence[Any]) -> None:
        """End that."""

    def consume(self, num_messages: int, timeout: float) -> list[Any]:
        """Return messages that are there."""

    def poll(self, timeout: float) -> Any:
        """Wait for one message."""

    def commit(self, *, offsets: Sequence[Any], asynchronous: bool) -> Any:
        """Commit offsets of the group."""

    def get_watermark_offsets(self, partition: Any, timeout: float = 0, cached: bool = False) -> tuple[int, int]:
        """Return the first and the next offset of a partition."""

    def list_topics(self, *, timeout: float) -> Any:
        """Ask a broker."""

    def close(self) -> None:
        """End."""


@dataclass(frozen=True)
class Events:
    """Functions that a consumer calls, on the thread that polls it: about errors and commits."""

    on_error: Callable[[Any], None]
    on_commit: Callable[[Any, Sequence[Any]], None]


@dataclass(frozen=True)
class Limits:
    """Attributes:
    outage_s: seconds for which a cluster may not answer.
    check_s: seconds between two calls of the check of topics; None: only the one for restored splits.
    """

    outage_s: float
    check_s: float | None


class Fetcher:
    """Fetches the messages of a reader's splits. `start` runs `step` on a thread, until `close`.

    An error goes into the inbox, and ends the thread. Other methods may be called from any thread; they do not block.
    """

    def __init__(
        self,
        cluster: KafkaCluster,
        connect: Callable[[Events], Consumer],
        inbox: Inbox,
        limits: Limits,
        check: Callable[[Sequence[Split]], None],
        *,
        retention: Callable[[Collection[str]], Mapping[str, int]] = lambda _: {},
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        connect: creates the consumer; called on the thread.
        check: raises an error if topics of splits are not there as before; blocks.
        retention: returns for topics the time for which a record stays there, milliseconds; without those that keep
            their records. Blocks.
        """
        self._retention = retention
        self._cluster, self._connect, self._inbox, self._limits, self._check = cluster, connect, inbox, limits, check
        self._now_s = monotonic_s
        self._consumer: Consumer | None = None
        self._new: deque[Split] = deque()
        self._ended: deque[str] = deque()
        self._to_commit: Mapping[Part, int] | None = None
        self._splits: dict[Part, Split] = {}
        self._one_topic: str | None = None
        self._refusal: tuple[Any, str] | None = None
        self._down_since_s: float | None = None
        self._down_cause = ""
        self._next_look_s = self._next_check_s = self._next_retention_s = 0.0
        self._commit_fails = False
        self.ends: dict[str, int] = {}
        self.retention_ms: Mapping[str, int] = {}
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    # ------------------------------------------------------------ called by the reader

    def start(self, name: str) -> None:
        """Begin, once."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def outage(self) -> tuple[float, str] | None:
        """Since how many seconds the cluster does not answer, and the newest cause; None: it answers."""
        since_s = self._down_since_s  # read once: the thread may clear it meanwhile
        return None if since_s is None else (self._now_s() - since_s, self._down_cause)

    @property
    def is_started(self) -> bool:
        """True after `start`."""
        return self._thread is not None

    def add(self, splits: Sequence[Split]) -> None:
        """Fetch these splits, too."""
        self._new.extend(splits)

    def end(self, split_id: str) -> None:
        """Fetch a split no longer."""
        self._ended.append(split_id)

    def commit(self, offsets: Mapping[Part, int]) -> None:
        """Publish offsets of the consumer group, soon. Newer ones replace those that were not sent yet."""
        self._to_commit = offsets

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            if self._thread.is_alive():
                logger.warning("the Kafka consumer %s has not ended within %g s", self._thread.name, CLOSE_S)

    # ------------------------------------------------------------ on the thread

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self.step()
            self._send_commit()
        except Exception as error:
            self._inbox.fail(error)
        finally:
            if self._consumer is not None:
                self._consumer.close()  # sends the commits that are on their way

    def step(self) -> None:
        """One round: assign what is new, and move the messages that are there, or wait for some.

        Raises:
            TidegateError: the run must fail.
        """
        if self._consumer is None:
            self._consumer = self._connect(Events(self._on_error, self._on_commit))
        self._apply()
        if self._inbox.wait_for_room(WAIT_S):
            messages = self._consumer.consume(MOST_CONSUMED, 0)
            if not messages:
                first = self._consumer.poll(WAIT_S)
                messages = [] if first is None else [first, *self._consumer.consume(MOST_CONSUMED, 0)]
            if messages:
                self._received(messages)
        self._look()

    def _apply(self) -> None:
        kafka, consumer = load_confluent_kafka(), self._consumer
        assert consumer is not None, "step() connects"
        while self._ended:
            split_id = self._ended.popleft()
            part = next((part for part, split in self._splits.items() if split.split_id == split_id), None)
            if part is not None:
                consumer.incremental_unassign([kafka.TopicPartition(*part)])
                del self._splits[part]
        new = [self._new.popleft() for _ in range(len(self._new))]
        restored = [split for split in new if split.position is not None]
        if restored and not self._check_now(restored):
            self._new.extendleft(reversed(new))  # they must not be read before they are checked
        elif new:
            self._splits |= {split_part(split): split for split in new}
            topics = {topic for topic, _ in self._splits}
            self._one_topic = next(iter(topics)) if len(topics) == 1 else None
            consumer.incremental_assign([kafka.TopicPartition(*split_part(split), next_offset(split)) for split in new])
        self._send_commit()

    def _send_commit(self) -> None:
        offsets, self._to_commit = self._to_commit, None
        if not offsets or self._consumer is None:
            return
        kafka = load_confluent_kafka()
        try:
            self._consumer.commit(
                offsets=[kafka.TopicPartition(*part, offset) for part, offset in offsets.items()], asynchronous=True
            )
        except kafka.KafkaException as error:
            self._on_commit(error.args[0], ())

    def _on_commit(self, error: Any, partitions: Sequence[Any]) -> None:
        """Log whether the group's offsets were published. Nothing depends on it."""
        failed = next((at.error for at in partitions if at.error is not None), error)
        if failed is not None and not self._commit_fails:
            text = without_secrets(self._cluster, failed.str())
            logger.warning("offsets of the consumer group could not be committed; the job continues: %s", text)
        elif failed is None and self._commit_fails:
            logger.info("offsets of the consumer group are committed again")
        self._commit_fails = failed is not None

    # ------------------------------------------------------------ messages

    def _received(self, messages: list[Any]) -> None:
        kind = load_confluent_kafka().Message
        n = len(messages)
        if any(map(kind.error, messages)):
            for with_error, group in itertools.groupby(messages, lambda message: message.error() is not None):
                if with_error:
                    for message in group:
                        self._event(message)
                else:
                    self._received(list(group))
            return
        self._answered()
        numbers = np.fromiter(map(kind.partition, messages), np.int32, n)
        is_first = np.empty(n, bool)
        is_first[0] = True
        np.not_equal(numbers[1:], numbers[:-1], out=is_first[1:])
        if self._one_topic is None:
            topics = list(map(kind.topic, messages))
            is_first[1:] |= [topics[i] != topics[i - 1] for i in range(1, n)]
        starts = np.flatnonzero(is_first).tolist()
        for begin, end in zip(starts, [*starts[1:], n], strict=True):
            part = self._one_topic or messages[begin].topic(), int(numbers[begin])
            split = self._splits.get(part)
            if split is not None:  # else it has ended
                mine = messages[begin:end]
                self._inbox.put(split.split_id, mine, sum(map(len, mine)))

    def _event(self, message: Any) -> None:
        """Process what the consumer reports about a partition."""
        error, part = message.error(), (message.topic(), message.partition())
        split = self._splits.get(part)
        if error.name() == "_PARTITION_EOF":
            self._answered()
            if split is not None:
                self._inbox.reached(split.split_id, message.offset())
            return
        found = meaning(error)
        if split is None or found not in ("out_of_range", "damaged", "missing"):
            self._on_error(error)
        elif found == "out_of_range":
            raise self._out_of_range(part, message.offset())
        elif found == "damaged":
            raise damaged(self._cluster, *part, error.str())
        else:
            self._check_now([split])

    def _out_of_range(self, part: Part, offset: int) -> Exception:
        kafka, consumer = load_confluent_kafka(), self._consumer
        assert consumer is not None, "step() connects"
        try:
            low, high = consumer.get_watermark_offsets(kafka.TopicPartition(*part), timeout=ANSWER_S)
        except kafka.KafkaException as error:
            cause = without_secrets(self._cluster, error.args[0].str())
            return OutageError(f"Kafka does not say which offsets {part[0]}-{part[1]} has", cause=cause)
        if low <= offset <= high:
            # It was not there a moment ago, as during a change of leader. The next run looks again.
            what = f"offset {offset} of {part[0]}-{part[1]} was not available for a moment"
            return OutageError(what, where=self._cluster.place, cause=f"the offsets {low} to {high} exist")
        return out_of_range(*part, offset, low, high)

    def _check_now(self, splits: Sequence[Split]) -> bool:
        """Check topics. Return whether the cluster has answered."""
        try:
            self._check(splits)
        except OutageError as error:
            self._is_down(str(error))
            return False
        return True

    # ------------------------------------------------------------ outages

    def _on_error(self, error: Any) -> None:
        """Note an event of the client. Called by the client, too, which expects no exception."""
        text = without_secrets(self._cluster, f"{error.name()}: {error.str()}")
        found = meaning(error)
        if found == "refused" and error.name() != NO_GROUP:
            self._refusal = error, text
        elif found == "outage" or error.fatal():
            self._is_down(text)
        else:
            logger.warning("the Kafka consumer reports %s", text)

    def _is_down(self, cause: str) -> None:
        if self._down_since_s is None:
            self._down_since_s = self._now_s()
            logger.warning("Kafka does not answer; the job waits for it for %g s: %s", self._limits.outage_s, cause)
        self._down_cause = cause

    def _answered(self) -> None:
        if self._down_since_s is not None:
            logger.info("Kafka answers again")
            self._down_since_s = None

    def _look(self) -> None:
        """Check, once in a while, whether the cluster answers again, and update the ends of partitions."""
        if self._refusal is not None:
            raise refused(self._cluster, *self._refusal)
        now_s = self._now_s()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_S
        if self._down_since_s is not None:
            self._look_for_brokers(now_s - self._down_since_s)
            return
        kafka, consumer = load_confluent_kafka(), self._consumer
        assert consumer is not None, "step() connects"
        for part, split in self._splits.items():
            with contextlib.suppress(kafka.KafkaException):  # only the status needs them
                self.ends[split.split_id] = consumer.get_watermark_offsets(kafka.TopicPartition(*part), cached=True)[1]
        if self._limits.check_s is not None and self._splits and now_s >= self._next_check_s:
            self._check_now(list(self._splits.values()))
            self._next_check_s = now_s + self._limits.check_s
        if self._splits and now_s >= self._next_retention_s:
            self._next_retention_s = now_s + RETENTION_S
            with contextlib.suppress(TidegateError):  # also without rights: only the status of snapshots needs it
                self.retention_ms = self._retention({topic for topic, _ in self._splits})

    def _look_for_brokers(self, silent_s: float) -> None:
        kafka, consumer = load_confluent_kafka(), self._consumer
        assert consumer is not None, "step() connects"
        try:
            consumer.list_topics(timeout=LOOK_S)
        except kafka.KafkaException:
            if silent_s >= self._limits.outage_s:
                raise OutageError(
                    f"Kafka has not answered for {silent_s:.0f} s",
                    where=self._cluster.place,
                    cause=self._down_cause,
                    remedy="Check its brokers; outage_timeout= sets how long the job waits before it restarts",
                ) from None
        else:
            self._answered()
