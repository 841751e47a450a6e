"""Transactional producer of one writer, and the marker that says which transaction it committed last.

The marker is an offset of a consumer group that no consumer uses, for partition 0 of the sink's topic. The broker
stores it in the same transaction as the records, so it exists if and only if they do:

    group, transactional id   tidegate,<writer>     `TransactionId.writer`: job, lineage, sink, subtask
    offset                    checkpoint id of the transaction; 0: the writer has committed nothing yet
    metadata                  generation and run that committed it
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from tidegate.connectors.kafka.cluster import KafkaCluster, load_confluent_kafka
from tidegate.connectors.kafka.sink.client_errors import error_of, passes
from tidegate.connectors.kafka.sink.staged_records import HEADERS, KEY, PARTITION, TIMESTAMP, TOPIC, VALUE
from tidegate.errors import OutageError, SinkConflictError

PREFIX = "tidegate,"
MARKER_PARTITION = 0
"""Every topic has this partition."""
CALL_TIMEOUT_S = 15.0
"""Longest wait, in seconds, for one answer of the brokers. A broker that restarts is back within it."""
HANG_MARGIN_S = 5.0
"""Time, in seconds, after its timeout at which a call counts as hanging."""
FLUSH_SLICE_S = 1.0
"""Interval, in seconds, at which a wait for deliveries looks for failures."""
MARKER_PAUSE_S = 0.1
"""Pause, in seconds, between two attempts to read the marker."""
ABORT_TIMEOUT_S = 10.0
"""Longest wait, in seconds, for an abort. The next producer of the writer aborts, too."""
FULL_QUEUE_WAIT_S = 0.1
"""Pause, in seconds, until some of the records in a full queue are delivered."""
QUEUE_KIB = 64 * 2**10
"""Memory for records that wait for the brokers, in KiB. A commit needs it once in each subtask."""
QUEUE_RECORDS = 200_000
CHOSEN = {
    "partitioner": "murmur2_random",
    "compression.type": "lz4",
    "linger.ms": 5,
    "queue.buffering.max.kbytes": QUEUE_KIB,
    "queue.buffering.max.messages": QUEUE_RECORDS,
    "log_level": 2,
}
"""Settings that the user may replace. Java clients have the same partitioner, so that keys meet in one partition.
Logs: fatal errors alone, since the others are raised."""

Record = tuple[str, bytes | None, bytes | None, int, dict[str, Any]]
"""Topic, value, key, partition, and further arguments of `Producer.produce`."""

logger = logging.getLogger("tidegate.connectors")


@dataclass(frozen=True, order=True)
class Committer:
    """Run that committed a transaction. A later run is greater."""

    generation: int
    run_id: str


@dataclass(frozen=True)
class Marker:
    """Last transaction that a writer committed, by its checkpoint; 0: none yet."""

    checkpoint_id: int
    by: Committer


class Clients(Protocol):
    """Makes clients of the cluster. In unit tests a fake."""

    @property
    def error(self) -> type[Exception]:
        """Exception whose first argument is a `KafkaError`."""

    def producer(self, transactional_id: str, events: ClientEvents) -> Any:
        """Return a `confluent_kafka.Producer`."""

    def group(self, group: str) -> Any:
        """Return a `confluent_kafka.Consumer` of a group, without a subscription."""

    def offset(self, topic: str, partition: int, offset: int, metadata: str) -> Any:
        """Return a `confluent_kafka.TopicPartition`."""

    def failure(self, name: str) -> Exception:
        """Return an `error` of this name, such as `_TIMED_OUT`."""


class ClientEvents:
    """Reports of a client between calls: the first record that was not delivered, and the last problem."""

    def __init__(self) -> None:
        self.undelivered: Any = None
        self.problem: Any = None

    def on_delivery(self, error: Any, _message: Any) -> None:
        """Keep the first error."""
        if error is not None and self.undelivered is None:
            self.undelivered = error

    def on_problem(self, error: Any) -> None:
        """Keep the last problem of a connection. A refused login stays, because it is why the brokers are away."""
        if self.problem is None or passes(self.problem):
            self.problem = error


@dataclass(frozen=True)
class KafkaClients:
    """Clients of a real cluster."""

    cluster: KafkaCluster
    transaction_timeout_ms: int

    @property
    def error(self) -> type[Exception]:
        """`KafkaException`."""
        exception: type[Exception] = load_confluent_kafka().KafkaException
        return exception

    def producer(self, transactional_id: str, events: ClientEvents) -> Any:
        """See `Clients`."""
        own = {
            **self._chosen(),
            "transactional.id": transactional_id,
            "transaction.timeout.ms": self.transaction_timeout_ms,
            # One callback for each record would cost more than the record. Errors alone are reported.
            "delivery.report.only.error": True,
            "on_delivery": events.on_delivery,
            "error_cb": events.on_problem,
            "logger": logger,
        }
        return load_confluent_kafka().Producer(self.cluster.client_settings(own))

    def group(self, group: str) -> Any:
        """See `Clients`."""
        own = {"group.id": group, "enable.auto.commit": False, "isolation.level": "read_committed", "log_level": 0}
        return load_confluent_kafka().Consumer(self.cluster.client_settings(own))

    def offset(self, topic: str, partition: int, offset: int, metadata: str) -> Any:
        """See `Clients`."""
        return load_confluent_kafka().TopicPartition(topic, partition, offset, metadata)

    def failure(self, name: str) -> Exception:
        """See `Clients`."""
        errors = load_confluent_kafka().KafkaError
        return self.error(errors(getattr(errors, name)))

    def _chosen(self) -> Mapping[str, Any]:
        return {name: value for name, value in CHOSEN.items() if name not in self.cluster.settings}


class MarkedProducer:
    """Producer of one writer. All methods block; one thread at a time.

    Call order: `open`, then for each transaction `begin`, any number of `send`, `flush`, `commit`. After any
    error, `close` it and open another: the marker then shows what happened to the transaction.

    Args:
        writer: `TransactionId.writer`.
        topic: the sink's topic: of records without a topic, and of the marker.
        limit_s: longest duration of a commit call, in seconds.

    Attributes:
        marker: marker at `open`, and after each commit; None: there is none.
        events: reports of the client.
    """

    def __init__(self, clients: Clients, writer: str, topic: str, limit_s: float) -> None:
        self.marker: Marker | None = None
        self.events = ClientEvents()
        self._clients = clients
        self._name = f"{PREFIX}{writer}"
        self._topic = topic
        self._limit_s = limit_s
        self._producer: Any = None
        self._group: Any = None

    def open(self) -> None:
        """Fence other producers of the writer, end their transaction, and read the marker.

        In this order: until then, another process may be committing, and the marker could change after it was read.
        """
        self.fence()
        group = self._clients.group(self._name)
        try:
            found = self._stored_offset(group)
            self._group = group.consumer_group_metadata()
        finally:
            group.close()
        self.marker = None if found.offset < 0 else _marker(found.offset, found.metadata, self._name)

    def _stored_offset(self, group: Any) -> Any:
        """Return the marker's offset. While groups move between brokers, none of them answers for some seconds."""
        where = self._clients.offset(self._topic, MARKER_PARTITION, -1, "")
        deadline = time.monotonic() + CALL_TIMEOUT_S
        while True:
            try:
                [found] = group.committed([where], timeout=CALL_TIMEOUT_S)
                if found.error is not None:
                    raise self._clients.error(found.error)
                return found
            except self._clients.error as e:
                if not passes(error_of(e)) or time.monotonic() > deadline:
                    raise
                time.sleep(MARKER_PAUSE_S)

    def fence(self) -> None:
        """Fence other producers of the writer, and end their transaction: it is committed or aborted afterwards."""
        self._producer = self._clients.producer(self._name, self.events)
        self._within(CALL_TIMEOUT_S, self._producer.init_transactions, CALL_TIMEOUT_S)

    def begin(self) -> None:
        """Begin a transaction."""
        self._producer.begin_transaction()

    def send(self, batch: pa.RecordBatch) -> None:
        """Send records, as far as the queue has room; the rest when it has."""
        produce, topic = self._producer.produce, self._topic
        with self._client_errors():
            if _is_plain(batch):
                # A loop of its own: for a small record, all else would cost a quarter of the call.
                keys = _values(batch, KEY) or [None] * batch.num_rows
                for value, key in zip(batch[VALUE].to_pylist(), keys, strict=True):
                    try:
                        produce(topic, value, key)
                    except BufferError:
                        self._produce_later(topic, value, key)
            else:
                for name, value, key, partition, more in _records(batch, topic):
                    try:
                        produce(name, value, key, partition, **more)
                    except BufferError:
                        self._produce_later(name, value, key, partition, **more)
            self._producer.poll(0)
        self._raise_undelivered()

    def _produce_later(self, *record: Any, **more: Any) -> None:
        """Send a record when the queue has room.

        It ends: a record that is not delivered within message.timeout.ms leaves the queue as failed.
        """
        while True:
            self._producer.poll(FULL_QUEUE_WAIT_S)
            self._raise_undelivered()
            with suppress(BufferError):
                self._producer.produce(*record, **more)
                return

    def flush(self) -> None:
        """Wait until the brokers have all records that were sent.

        A commit waits for that, too, but cannot be interrupted. This wait survives a restart of a broker.
        """
        deadline = time.monotonic() + self._limit_s
        with self._client_errors():
            while self._producer.flush(FLUSH_SLICE_S):
                self._raise_undelivered()
                if time.monotonic() > deadline:
                    raise self._clients.failure("_TIMED_OUT")
        self._raise_undelivered()

    @contextmanager
    def _client_errors(self) -> Iterator[None]:
        """Convert the error of a client with a fatal error: some of its calls then fail without a proper exception."""
        try:
            yield
        except SystemError as e:
            raise self._clients.failure("_FATAL") from e

    def commit(self, marker: Marker) -> None:
        """Commit the transaction with its marker."""
        metadata = json.dumps({"generation": marker.by.generation, "run": marker.by.run_id})
        offset = self._clients.offset(self._topic, MARKER_PARTITION, marker.checkpoint_id, metadata)
        deadline = time.monotonic() + self._limit_s
        self._repeated(deadline, self._producer.send_offsets_to_transaction, [offset], self._group, CALL_TIMEOUT_S)
        self._repeated(deadline, self._producer.commit_transaction, CALL_TIMEOUT_S)
        self.marker = marker

    def _raise_undelivered(self) -> None:
        if self.events.undelivered is not None:
            # The commit would only say that the transaction has failed.
            raise self._clients.error(self.events.undelivered)

    def _repeated(self, deadline_s: float, call: Callable[..., object], *arguments: Any) -> None:
        """Repeat a call that the client allows to repeat, until a time of the monotonic clock."""
        while True:
            try:
                self._within(CALL_TIMEOUT_S, call, *arguments)
                return
            except self._clients.error as e:
                self._raise_undelivered()
                if not error_of(e).retriable() or time.monotonic() > deadline_s:
                    raise

    def _within(self, timeout_s: float, call: Callable[..., object], *arguments: Any) -> None:
        """Make a call with a timeout, and give it up if the timeout passes without an answer.

        `send_offsets_to_transaction` of librdkafka 2.16 never returns if the connection to the coordinator breaks
        meanwhile. The thread of such a call stays until the process ends; the next producer fences it.
        """
        outcome: list[BaseException | None] = []

        def work() -> None:
            try:
                with self._client_errors():
                    call(*arguments)
                outcome.append(None)
            except BaseException as e:
                outcome.append(e)

        thread = threading.Thread(target=work, name="kafka-call", daemon=True)
        thread.start()
        thread.join(timeout_s + HANG_MARGIN_S)
        if not outcome:
            raise self._clients.failure("_TIMED_OUT")
        if outcome[0] is not None:
            raise outcome[0]

    def abort(self) -> bool:
        """Abort the transaction, and return whether the broker confirmed it."""
        try:
            self._within(ABORT_TIMEOUT_S, self._producer.abort_transaction, ABORT_TIMEOUT_S)
        except self._clients.error as e:
            logger.info("a transaction of %s was not aborted, the next producer does it: %s", self._name, e)
            return False
        return True

    def problem(self) -> Any:
        """Return the last problem of a connection; None: there was none."""
        if self._producer is not None:
            with suppress(self._clients.error, SystemError):
                self._producer.poll(0)
        return self.events.problem

    def close(self) -> None:
        """Release the client's threads and memory. The next producer ends an open transaction.

        Without the client's own `close`, which would abort, wait and warn.
        """
        producer, self._producer = self._producer, None
        if producer is not None:
            with suppress(self._clients.error, SystemError):
                producer.purge()
                # Reports of purged records; when the client is released, it could not call anybody.
                producer.poll(0)


def _is_plain(batch: pa.RecordBatch) -> bool:
    """Return whether the records of a batch of `STAGED_SCHEMA` have no parts but values and keys."""
    return all(batch[name].null_count == batch.num_rows for name in (TOPIC, PARTITION, TIMESTAMP, HEADERS))


def _records(batch: pa.RecordBatch, topic: str) -> Iterator[Record]:
    """Yield the records of a batch of `STAGED_SCHEMA`."""
    rows = batch.num_rows
    topics = _values(batch, TOPIC) or [topic] * rows
    keys = _values(batch, KEY) or [None] * rows
    partitions = _values(batch, PARTITION) or [None] * rows
    times, headers = _values(batch, TIMESTAMP), _values(batch, HEADERS)
    values = batch[VALUE].to_pylist()
    if times is None and headers is None:
        for name, value, key, partition in zip(topics, values, keys, partitions, strict=True):
            yield name or topic, value, key, -1 if partition is None else partition, {}
        return
    both = zip(times or [None] * rows, headers or [None] * rows, strict=True)
    for name, value, key, partition, (time_ms, listed) in zip(topics, values, keys, partitions, both, strict=True):
        more: dict[str, Any] = {}
        if time_ms is not None:
            more["timestamp"] = time_ms
        if listed:
            more["headers"] = [(one["key"], one["value"]) for one in listed]
        yield name or topic, value, key, -1 if partition is None else partition, more


def _values(batch: pa.RecordBatch, name: str) -> list[Any] | None:
    """Return the column as a list; None if it holds nothing."""
    column = batch[name]
    return None if column.null_count == len(column) else column.to_pylist()


def _marker(offset: int, metadata: str | None, group: str) -> Marker:
    try:
        found = json.loads(metadata or "")
        return Marker(offset, Committer(int(found["generation"]), str(found["run"])))
    except (ValueError, KeyError, TypeError) as e:
        raise SinkConflictError(
            "the group of a sink's commit markers holds an offset that no sink stored",
            where=f"group {group}",
            cause="a consumer uses this group, or somebody has reset its offset",
            remedy="Find out whether the records of the newest checkpoint are in the topic. Then delete the group",
        ) from e


def closing_error(where: str) -> OutageError:
    """Return the error of a commit that ends because its run ends."""
    return OutageError(
        "the commit was interrupted, because the run ended",
        where=where,
        remedy="Do nothing: the next start repeats the commit",
    )
