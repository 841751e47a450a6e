"""Topics that the Kafka sink writes to: what they are, and whether records have a place in them."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.connectors.kafka.cluster import KafkaCluster, load_confluent_kafka
from tidegate.connectors.kafka.sink.client_errors import as_tidegate_error, error_of
from tidegate.connectors.kafka.sink.marked_producer import ClientEvents
from tidegate.connectors.kafka.sink.staged_records import KEY, PARTITION, TOPIC
from tidegate.errors import DataError

ANSWER_TIMEOUT_S = 30.0
"""Longest wait, in seconds, for an answer about topics."""
POLICY, SIZE_LIMIT = "cleanup.policy", "max.message.bytes"
NO_PARTITION = -1


@dataclass(frozen=True)
class TopicFacts:
    """A topic as the brokers describe it.

    Attributes:
        operations: names of operations that the user may do; None: the brokers do not say.
    """

    partitions: int
    operations: frozenset[str] | None


class KafkaTopics:
    """Questions about topics, each with a client of its own. All methods block.

    Raises:
        OutageError: the brokers do not answer.
        TidegateError: they refuse an answer.
    """

    def __init__(self, cluster: KafkaCluster) -> None:
        self._cluster = cluster

    def _admin(self) -> tuple[Any, ClientEvents]:
        events = ClientEvents()
        own = {"log_level": 0, "error_cb": events.on_problem}
        return _admin_module().AdminClient(self._cluster.client_settings(own)), events

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        """Return the topics that exist. Creates none, also where brokers create topics on demand."""
        from confluent_kafka import TopicCollection

        # The reference must live until the answers are there: a client that is gone answers nothing.
        admin, events = self._admin()
        asked = admin.describe_topics(
            TopicCollection(list(names)), include_authorized_operations=True, request_timeout=ANSWER_TIMEOUT_S
        )
        found = {}
        for name, answer in asked.items():
            topic = self._answer(
                answer, admin, events, "the topic cannot be described", name, ("UNKNOWN_TOPIC_OR_PART",)
            )
            if topic is None:
                continue
            operations = topic.authorized_operations
            names_of = None if operations is None else frozenset(one.name for one in operations)
            found[name] = TopicFacts(len(topic.partitions), names_of)
        return found

    def settings(self, name: str) -> dict[str, str]:
        """Return a topic's settings; {}: the user may not read them."""
        admin, events = self._admin()
        resource = _admin_module().ConfigResource("topic", name)
        [answer] = admin.describe_configs([resource], request_timeout=ANSWER_TIMEOUT_S).values()
        what = "the settings of the topic cannot be read"
        entries = self._answer(answer, admin, events, what, name, ("TOPIC_AUTHORIZATION_FAILED",))
        return {key: entry.value for key, entry in (entries or {}).items()}

    def create(self, name: str, partitions: int, replicas: int, settings: Mapping[str, str]) -> None:
        """Create a topic, unless it exists. Args: partitions, replicas: -1: the default of the brokers."""
        admin, events = self._admin()
        topic = _admin_module().NewTopic(name, partitions, replicas, config=dict(settings))
        [answer] = admin.create_topics([topic], request_timeout=ANSWER_TIMEOUT_S).values()
        self._answer(answer, admin, events, "the topic cannot be created", name, ("TOPIC_ALREADY_EXISTS",))

    def _answer(self, answer: Any, admin: Any, events: ClientEvents, what: str, topic: str, fine: Sequence[str]) -> Any:
        """Return an answer; None for the errors `fine`."""
        from confluent_kafka import KafkaError, KafkaException

        try:
            # The client itself notices first that there is no answer.
            return answer.result(ANSWER_TIMEOUT_S + 1)
        except KafkaException as e:
            error = error_of(e)
        except TimeoutError:
            error = KafkaError(KafkaError._TIMED_OUT)
        if error.name() in fine:
            return None
        where = f"{self._cluster.place}, topic {topic}"
        admin.poll(0)  # calls `on_problem`
        raise as_tidegate_error(what, error, where=where, problem=events.problem)


def _admin_module() -> Any:
    load_confluent_kafka()
    return importlib.import_module("confluent_kafka.admin")


def is_compacted(settings: Mapping[str, str]) -> bool:
    """Return whether a topic with these settings accepts only records with a key."""
    return "compact" in settings.get(POLICY, "")


@dataclass
class UsedPlaces:
    """Topics, partitions and missing keys of the records of one transaction.

    Attributes:
        highest: topic -> its highest partition that a record names; `NO_PARTITION`: none does.
        without_key: topics of records without a key.
    """

    topic: str
    highest: dict[str, int] = field(default_factory=dict)
    without_key: set[str] = field(default_factory=set)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the records of a batch of `STAGED_SCHEMA`."""
        if batch[TOPIC].null_count == batch.num_rows:  # without a group per topic, which costs as much as the staging
            highest = pc.max(batch[PARTITION]).as_py()
            self._note(self.topic, NO_PARTITION if highest is None else highest, batch[KEY].null_count > 0)
            return
        topics = pc.fill_null(batch[TOPIC], self.topic)
        partitions = pc.fill_null(batch[PARTITION], NO_PARTITION)
        rows = pa.table({"topic": topics, "partition": partitions, "no_key": pc.is_null(batch[KEY])})
        found = rows.group_by("topic").aggregate([("partition", "max"), ("no_key", "max")]).to_pylist()
        for row in found:
            self._note(row["topic"], row["partition_max"], row["no_key_max"])

    def _note(self, name: str, highest: int, without_key: bool) -> None:
        self.highest[name] = max(highest, self.highest.get(name, NO_PARTITION))
        if without_key:
            self.without_key.add(name)


class RecordPlaces:
    """Checks that the records of a transaction have a place. Keeps the answers of the brokers.

    Args:
        topic: the sink's topic.
        keyed: the sink has keys. Without them, the sink has checked `topic` before the job began.
        where: the sink, for errors.
    """

    def __init__(self, topics: KafkaTopics, topic: str, where: str, *, keyed: bool) -> None:
        self._topics = topics
        self._keyed = keyed
        self._topic = topic
        self._where = where
        self._lock = threading.Lock()
        self._partitions: dict[str, int] = {}
        self._compacted: dict[str, bool] = {}

    def empty(self) -> UsedPlaces:
        """Return the places of no record."""
        return UsedPlaces(self._topic)

    def check(self, used: UsedPlaces) -> None:
        """Check the places. Asks the brokers only about what is new: other topics, partitions, records without a key.

        Raises:
            DataError: a topic or a partition does not exist, or a compacted topic gets a record without a key.
            OutageError, TidegateError: see `KafkaTopics`.
        """
        with self._lock:
            new = [n for n, highest in used.highest.items() if n != self._topic or highest != NO_PARTITION]
            unknown = [n for n in new if used.highest[n] >= self._partitions.get(n, 0)]
            unknown += [n for n in new if n not in self._partitions and n not in unknown]
            if unknown:
                self._partitions |= {n: facts.partitions for n, facts in self._topics.describe(unknown).items()}
            for name in new:
                self._check_partition(name, used.highest[name])
            for name in sorted(used.without_key):
                if self._keyed or name != self._topic:
                    self._check_keys(name)

    def _check_partition(self, name: str, highest: int) -> None:
        there = self._partitions.get(name)
        if there is None or highest >= there:
            raise DataError(
                f"a row names topic {name!r}, which does not exist"
                if there is None
                else f"a row names partition {highest} of topic {name!r}, which has {there}",
                where=self._where,
                remedy="Create the topic or the partitions, or fix the rows upstream of the sink",
            )

    def _check_keys(self, name: str) -> None:
        if name not in self._compacted:
            self._compacted[name] = is_compacted(self._topics.settings(name))
        if self._compacted[name]:
            raise DataError(
                f"a row for the compacted topic {name!r} has no key",
                where=self._where,
                cause="brokers refuse such records",
                remedy="Pass key=, and filter rows without a key upstream of the sink",
            )


def target_problems(
    facts: TopicFacts | None, settings: Mapping[str, str], *, keyed: bool, max_record_bytes: int, needed: Sequence[str]
) -> list[str]:
    """Return why a topic cannot be written. Pure.

    Args:
        facts: None: the topic does not exist.
        needed: names of the operations that the sink needs.
    """
    if facts is None:
        return ["the topic does not exist"]
    problems = []
    missing = [name for name in needed if facts.operations is not None and name not in facts.operations]
    if missing:
        problems.append(f"the user of the sink lacks the rights {', '.join(missing)} on the topic")
    if is_compacted(settings) and not keyed:
        problems.append("the topic is compacted and accepts only records with a key; pass key=")
    limit = int(settings.get(SIZE_LIMIT, max_record_bytes))
    if limit < max_record_bytes:
        problems.append(
            f"the topic accepts records up to {limit} bytes, but the sink sends up to {max_record_bytes}; set "
            f"message.max.bytes in settings= to at most {limit}"
        )
    return problems
