"""Requests to a Kafka cluster about topics, partitions and offsets. Calls block."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any, Protocol

from tidegate.connectors.kafka.cluster import KafkaCluster, load_confluent_kafka
from tidegate.connectors.kafka.source.kafka_errors import meaning, refused, request_error, without_secrets
from tidegate.connectors.kafka.source.offset_choice import Isolation
from tidegate.errors import PipelineError, TidegateError

logger = logging.getLogger("tidegate.connectors")

Part = tuple[str, int]
"""A partition: topic and number."""

REQUEST_LIMIT_S = 30.0
"""Longest wait for an answer, seconds. A broker that restarts answers within it."""
START_LIMIT_S = 10.0
"""The same for the check before a job starts, whose user waits for the answer."""
LOOK_S = 0.1
"""Seconds between two checks why a request is not answered."""
LOOK_FACTOR = 2
"""The client itself ends a request after its limit, so that looks for twice that time are never needed."""
NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"
"""Id of every topic of brokers that have no topic ids (before version 2.8)."""


@dataclass(frozen=True)
class Topic:
    """A topic as the cluster describes it.

    Attributes:
        topic_id: unique, also among earlier topics of the same name; "": unknown.
        partitions: their number.
        leaderless: partitions that cannot be read now.
        internal: Kafka's own topic.
    """

    name: str
    topic_id: str
    partitions: int
    leaderless: tuple[int, ...] = ()
    internal: bool = False


class TopicView(Protocol):
    """Requests that a source sends to a cluster. Not thread-safe; calls block.

    Every call raises OutageError if the cluster does not answer, and PipelineError if it refuses the client.
    """

    def names(self) -> Sequence[str]:
        """Return the names of all topics."""

    def topics(self, names: Collection[str]) -> Mapping[str, Topic]:
        """Return these topics. Those that do not exist are left out."""

    def earliest(self, parts: Collection[Part]) -> Mapping[Part, int]:
        """Return the offset of the first record that a partition has."""

    def ends(self, parts: Collection[Part], isolation: Isolation) -> Mapping[Part, int]:
        """Return the offset after the last record; `read_committed`: before the first open transaction."""

    def at_time(self, parts: Collection[Part], time_ms: int) -> Mapping[Part, int | None]:
        """Return the offset of the first record with this time or a later one; None: there is none."""

    def group_offsets(self, group: str, parts: Collection[Part]) -> Mapping[Part, int | None]:
        """Return the offsets that a consumer group has committed; None: none."""

    def close(self) -> None:
        """Release resources."""


class ClusterTopics(TopicView):
    """Asks a real cluster."""

    def __init__(self, cluster: KafkaCluster, *, limit_s: float = REQUEST_LIMIT_S) -> None:
        """Connect; no request is sent yet.

        Args:
            limit_s: longest wait for an answer, seconds.

        Raises:
            MissingExtraError: confluent-kafka is not installed.
            OptionError, PipelineError: a secret or a setting is wrong.
        """
        load_confluent_kafka()
        from confluent_kafka import admin

        self._cluster = cluster
        self._admin_module: Any = admin
        self._limit_s = limit_s
        self._reported = ""
        self._refusal: tuple[Any, str] | None = None
        # Settings of consumers are not for this client, which would log a warning for each. Errors are raised.
        own = {"error_cb": self._on_error, "log_level": 2}
        self._client = create_client(cluster, lambda: admin.AdminClient(cluster.client_settings(own), logger=logger))

    def names(self) -> Sequence[str]:
        """See `TopicView`."""
        what = "list its topics"
        self._answer(what, self._client.describe_cluster(request_timeout=self._limit_s))  # which can be interrupted
        return sorted(self._request(what, lambda: self._client.list_topics(timeout=self._limit_s)).topics)

    def topics(self, names: Collection[str]) -> Mapping[str, Topic]:
        """See `TopicView`."""
        if not names:
            return {}
        what = "describe topics"
        wanted = load_confluent_kafka().TopicCollection(sorted(names))
        asked = self._request(what, lambda: self._client.describe_topics(wanted, request_timeout=self._limit_s))
        found = {name: self._answer(what, future, missing_is_none=True) for name, future in asked.items()}
        return {name: _topic(name, one) for name, one in found.items() if one is not None}

    def earliest(self, parts: Collection[Part]) -> Mapping[Part, int]:
        """See `TopicView`."""
        return self._offsets(parts, self._admin_module.OffsetSpec.earliest(), "read_uncommitted")

    def ends(self, parts: Collection[Part], isolation: Isolation) -> Mapping[Part, int]:
        """See `TopicView`."""
        return self._offsets(parts, self._admin_module.OffsetSpec.latest(), isolation)

    def at_time(self, parts: Collection[Part], time_ms: int) -> Mapping[Part, int | None]:
        """See `TopicView`."""
        found = self._offsets(parts, self._admin_module.OffsetSpec.for_timestamp(time_ms), "read_uncommitted")
        return {part: offset if offset >= 0 else None for part, offset in found.items()}

    def group_offsets(self, group: str, parts: Collection[Part]) -> Mapping[Part, int | None]:
        """See `TopicView`."""
        kafka = load_confluent_kafka()
        wanted = [kafka.ConsumerGroupTopicPartitions(group, [kafka.TopicPartition(*part) for part in sorted(parts)])]
        what = f"return the offsets of the consumer group {group!r}"
        asked = self._request(
            what, lambda: self._client.list_consumer_group_offsets(wanted, request_timeout=self._limit_s)
        )
        found: dict[Part, int | None] = {}
        for committed in self._answer(what, asked[group]).topic_partitions:
            if committed.error is not None:
                raise request_error(self._cluster, what, committed.error, reason=self._reported)
            found[committed.topic, committed.partition] = committed.offset if committed.offset >= 0 else None
        return {part: found.get(part) for part in parts}

    def retention_ms(self, names: Collection[str]) -> Mapping[str, int]:
        """Return for topics the time after which the cluster deletes a record, without topics that keep their records.

        Raises:
            OutageError, PipelineError: the cluster does not answer, or refuses.
        """
        if not names:
            return {}
        admin, what = self._admin_module, "describe the settings of topics"
        wanted = [admin.ConfigResource(admin.ConfigResource.Type.TOPIC, name) for name in sorted(names)]
        asked = self._request(what, lambda: self._client.describe_configs(wanted, request_timeout=self._limit_s))
        found = {}
        for resource, future in asked.items():
            settings = self._answer(what, future)
            limit_ms = int(settings["retention.ms"].value)
            if limit_ms >= 0 and "delete" in settings["cleanup.policy"].value:
                found[resource.name] = limit_ms
        return found

    def close(self) -> None:
        """Forget the client, which ends with its last reference."""
        del self._client

    def _offsets(self, parts: Collection[Part], spec: Any, isolation: Isolation) -> dict[Part, int]:
        if not parts:
            return {}
        kafka = load_confluent_kafka()
        what = "return the offsets of partitions"
        levels = kafka.IsolationLevel
        level = levels.READ_COMMITTED if isolation == "read_committed" else levels.READ_UNCOMMITTED
        wanted = {kafka.TopicPartition(*part): spec for part in sorted(parts)}
        asked = self._request(
            what,
            lambda: self._client.list_offsets(wanted, isolation_level=level, request_timeout=self._limit_s),
        )
        return {(at.topic, at.partition): self._answer(what, future).offset for at, future in asked.items()}

    def _request(self, what: str, call: Callable[[], Any]) -> Any:
        self._client.poll(0)  # what the client has reported since the last request
        self._reported = ""
        try:
            return call()
        except load_confluent_kafka().KafkaException as error:
            raise self._failed(what, error.args[0]) from None

    def _answer(self, what: str, future: Any, *, missing_is_none: bool = False) -> Any:
        try:
            for _ in range(round(LOOK_FACTOR * self._limit_s / LOOK_S)):
                if self._refusal is not None or wait([future], LOOK_S).done:
                    break
                # Here the client reports that it cannot log in; the request itself would only time out.
                self._client.poll(0)
            if self._refusal is not None:
                raise refused(self._cluster, *self._refusal)
            return future.result(LOOK_S)
        except load_confluent_kafka().KafkaException as error:
            if missing_is_none and meaning(error.args[0]) == "missing":
                return None
            raise self._failed(what, error.args[0]) from None

    def _failed(self, what: str, error: Any) -> TidegateError:
        self._client.poll(0)
        if self._refusal is not None:
            return refused(self._cluster, *self._refusal)
        return request_error(self._cluster, what, error, reason=self._reported)

    def _on_error(self, error: Any) -> None:
        text = without_secrets(self._cluster, f"{error.name()}: {error.str()}")
        if meaning(error) == "refused":
            self._refusal = error, text
        self._reported = text


def create_client(cluster: KafkaCluster, create: Callable[[], Any]) -> Any:
    """Create a client of confluent-kafka.

    Raises:
        PipelineError: a setting is unknown or has a wrong value.
    """
    try:
        return create()
    except (load_confluent_kafka().KafkaException, TypeError, ValueError) as error:
        # The client's own error is left out: it may quote the value of a setting.
        raise PipelineError(
            "the settings of the Kafka client are wrong",
            where="Kafka(settings=)",
            cause=without_secrets(cluster, str(error)),
            remedy="Correct the setting; librdkafka's CONFIGURATION.md lists all",
        ) from None


def _topic(name: str, described: Any) -> Topic:
    found = str(described.topic_id) if described.topic_id is not None else ""
    leaderless = tuple(p.id for p in described.partitions if p.leader is None or p.leader.id < 0)
    return Topic(
        name,
        "" if found == NO_ID else found,
        len(described.partitions),
        leaderless,
        internal=bool(described.is_internal),
    )
