"""Kafka: a source that reads topics of an Apache Kafka cluster."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Self, get_args

import pyarrow as pa

from tidegate.connectors.files.source.bad_records import BAD_RECORDS, OnBadRecord
from tidegate.connectors.formats.found_formats import formats_with_found, found_by_formats
from tidegate.connectors.formats.interface import Format
from tidegate.connectors.found_schema import FoundSchema
from tidegate.connectors.interface import (
    Boundedness,
    ContinuousDiscovery,
    Source,
    SourceContext,
    SourceReader,
    Split,
    SplitEnumerator,
)
from tidegate.connectors.kafka.cluster import KafkaCluster, load_confluent_kafka
from tidegate.connectors.kafka.source.fetcher import Consumer, Events, Fetcher, Limits
from tidegate.connectors.kafka.source.kafka_reader import KafkaReader
from tidegate.connectors.kafka.source.offset_choice import (
    Isolation,
    OffsetValue,
    WithoutGroupOffset,
    end_choice,
    start_choice,
)
from tidegate.connectors.kafka.source.partitions import (
    PartitionChoice,
    PartitionEnumerator,
    check_topics,
    first_splits,
    known_topic,
    lost_topic,
    unavailable,
)
from tidegate.connectors.kafka.source.record_rows import BAD_RECORDS_SCHEMA, RowBuilder, RowShape, metadata_columns
from tidegate.connectors.kafka.source.topic_view import START_LIMIT_S, ClusterTopics, create_client
from tidegate.errors import OptionError
from tidegate.units import parse_duration

logger = logging.getLogger("tidegate.connectors")

NO_GROUP = "tidegate"
"""Consumer group of a reader without `group`: the client needs one. Nothing is committed to it."""
FETCH_WAIT_MS = 100
"""Longest time for which a broker holds a request that finds no records, instead of 500 ms. A new partition is first
read, and the end of a bounded partition first noticed, when a held request ends."""
QUEUE_BACKOFF_MS = 20
"""Pause after the client's queue was full, instead of 1 s: a reader empties the queue in less (6 times the rows/s)."""
OWN_SETTINGS: Mapping[str, str] = {
    "bootstrap.servers": "servers=",
    "group.id": "group=",
    "isolation.level": "isolation=",
    "auto.offset.reset": "start=",
    "enable.auto.commit": "group=",
    "enable.auto.offset.store": "group=",
    "enable.partition.eof": "until=",
}
"""Settings of the client that the source sets itself -> the argument to use instead."""


class Kafka(Source):
    """Reads topics of an Apache Kafka cluster, each record once.

    A split is a partition of a topic. Its position is the offset of the next record. It is part of the job's snapshots,
    and a restore reads on there; the offsets of a consumer group have no influence on it (S4.2). If this offset does
    not exist any more, the job fails; the position is never reset.

    Without `until` the source is unbounded, and partitions and topics that appear later are read from their earliest
    record (S4.3). With `until` it reads the partitions that exist when the job starts, and ends.

    Args:
        topics: a name, or several. None: those that match `topic_pattern`.
        servers: bootstrap servers: "host:port", several separated by commas or in a list.
        topic_pattern: regular expression for whole names of topics, instead of `topics`.
        settings: settings of librdkafka, such as `security.protocol`. Secrets are references (`secret:env/NAME`).
        value: format of the values; None: a column `value` with the bytes.
        key: format of the keys, whose columns follow; None: no columns.
        with_columns: metadata to add as columns: "key" (bytes), "topic", "partition", "offset", "timestamp" (ms, UTC),
            "headers". A mapping gives the columns other names.
        start: offset at which each partition begins at the fresh start of a job: "earliest", "latest", "group" (what
            `group` has committed), a time (a datetime with zone, or ISO text), or offsets (topic -> partition
            -> offset).
        until: offset before which each partition ends: "latest" (its end at the start of the job), a time, or offsets.
            None: no end.
        group: consumer group to which the offsets of completed checkpoints are committed, for tools that show the lag.
        without_group_offset: with start="group", for a partition without a committed offset: "fail", or begin at
            "earliest" or "latest".
        discover_every: pause between two searches for partitions and topics.
        isolation: "read_committed", or "read_uncommitted" to read records of open and aborted transactions, too.
        on_bad_record: what happens if a record cannot be decoded: "fail" the job, "skip" and count it (`bad_records`),
            or "dead_letter": count it, and emit it to the side output `bad_records` (topic, partition, offset, raw,
            reason), which must have a reader.
        outage_timeout: time for which the cluster may not answer before the job's run fails and restarts.

    Raises:
        OptionError: an argument is unknown, contradicts another one, or holds a secret in plain text.
    """

    def __init__(
        self,
        topics: str | Sequence[str] | None = None,
        *,
        servers: str | Sequence[str],
        topic_pattern: str | None = None,
        settings: Mapping[str, Any] | None = None,
        value: Format | None = None,
        key: Format | None = None,
        with_columns: Sequence[str] | Mapping[str, str] = (),
        start: OffsetValue = "earliest",
        until: OffsetValue | None = None,
        group: str | None = None,
        without_group_offset: WithoutGroupOffset = "fail",
        discover_every: str | timedelta = "30 s",
        isolation: Isolation = "read_committed",
        on_bad_record: OnBadRecord = "fail",
        outage_timeout: str | timedelta = "10 min",
    ) -> None:
        names = (topics,) if isinstance(topics, str) else tuple(topics or ())
        _check_topics_given(names, topic_pattern)
        known = {"without_group_offset": WithoutGroupOffset, "isolation": Isolation, "on_bad_record": OnBadRecord}
        given = {"without_group_offset": without_group_offset, "isolation": isolation, "on_bad_record": on_bad_record}
        for option, values in known.items():
            if given[option] not in get_args(values):
                raise _unknown(option, given[option], get_args(values))
        self._partitions = PartitionChoice(
            KafkaCluster(servers if isinstance(servers, str) else ",".join(servers), dict(settings or {})),
            names,
            topic_pattern,
            start_choice(start, names),
            None if until is None else end_choice(until, names),
            isolation,
            group,
            without_group_offset,
        )
        if self._partitions.start.kind == "group" and not group:
            raise OptionError('start="group" needs a group', where="Kafka(group=)", remedy="Name the consumer group")
        for name in self._cluster.settings.keys() & OWN_SETTINGS.keys():
            raise OptionError(
                f"the source itself sets {name!r}", where="Kafka(settings=)", remedy=f"Use {OWN_SETTINGS[name]} instead"
            )
        self._shape = RowShape(value, key, metadata_columns(with_columns))
        self._on_bad_record: OnBadRecord = on_bad_record
        self._discover_every = _positive("discover_every", discover_every)
        self._outage_timeout = _positive("outage_timeout", outage_timeout)

    @property
    def _cluster(self) -> KafkaCluster:
        return self._partitions.cluster

    @property
    def boundedness(self) -> Boundedness:
        """Return `unbounded`; with `until` `bounded`."""
        return "unbounded" if self._partitions.until is None else "bounded"

    def schema(self) -> pa.Schema:
        """Return the columns of value, key and metadata.

        Raises:
            PipelineError: two columns have one name, or a format has no schema.
        """
        return self._shape.schema()

    def found_schema(self) -> FoundSchema | None:
        """Return the schema that the formats found, as in a registry; None: the pipeline declares it."""
        return found_by_formats(self.schema(), self._formats())

    def with_found_schema(self, found: FoundSchema) -> Self:
        """Return the same source, whose formats use that schema (S5.5)."""
        formats = formats_with_found(self._formats(), found)
        other = copy.copy(self)
        other._shape = RowShape(formats.get("value"), formats.get("key"), self._shape.metadata, self._shape.columns)
        return other

    def _formats(self) -> dict[str, Format]:
        formats = {"value": self._shape.value, "key": self._shape.key}
        return {part: format_ for part, format_ in formats.items() if format_ is not None}

    def reading_only(self, columns: Sequence[str]) -> Self:
        """Return the same source; its readers decode and build only these columns."""
        other = copy.copy(self)
        other._shape = RowShape(self._shape.value, self._shape.key, self._shape.metadata, frozenset(columns))
        return other

    def side_outputs(self) -> Mapping[str, pa.Schema]:
        """Return `bad_records` with `on_bad_record="dead_letter"`."""
        return {BAD_RECORDS: BAD_RECORDS_SCHEMA} if self._on_bad_record == "dead_letter" else {}

    def required_side_outputs(self) -> Mapping[str, str]:
        """Return the same: without a reader, dead letters would be lost without notice."""
        why = 'on_bad_record="dead_letter" sends records there that would otherwise be lost'
        return dict.fromkeys(self.side_outputs(), why)

    def discover(self, parallelism: int) -> Sequence[Split]:
        """Return a split for each partition, from its start to its end.

        Raises:
            PipelineError: a topic does not exist, or has no such offset.
            OutageError: the cluster does not answer.
        """
        view = ClusterTopics(self._cluster)
        try:
            return first_splits(view, self._partitions)[1]
        finally:
            view.close()

    def check_fresh_start(self) -> None:
        """Check that the cluster answers, and that it has the topics and the offsets of `start` and `until`.

        Raises:
            PipelineError: a topic does not exist or has no such offset, or the client is refused.
            OutageError: the cluster does not answer.
        """
        view = ClusterTopics(self._cluster, limit_s=START_LIMIT_S)
        try:
            first_splits(view, self._partitions)
        finally:
            view.close()

    def continuous_discovery(self) -> ContinuousDiscovery | None:
        """Return the interval of `discover_every`; None with `until`."""
        return ContinuousDiscovery(self._discover_every) if self.boundedness == "unbounded" else None

    def create_enumerator(self, state: Any) -> SplitEnumerator:
        """Return an enumerator that searches for partitions."""
        return PartitionEnumerator(self._partitions, partial(ClusterTopics, self._cluster), state)

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        """Return a reader with a consumer of its own."""
        bounded = self.boundedness == "bounded"
        outage_s = self._outage_timeout.total_seconds()
        # The enumerator of an unbounded source checks the topics at every search.
        limits = Limits(outage_s, self._discover_every.total_seconds() if bounded else None)
        return KafkaReader(
            ctx,
            RowBuilder(self._shape),
            lambda inbox: Fetcher(
                self._cluster, partial(self._connect, ctx), inbox, limits, self._check, retention=self._retention
            ),
            bounded=bounded,
            publishes=self._partitions.group is not None,
            on_bad_record=self._on_bad_record,
            outage_s=outage_s,
        )

    def _connect(self, ctx: SourceContext, events: Events) -> Consumer:
        kafka = load_confluent_kafka()
        own = {
            "group.id": self._partitions.group or NO_GROUP,
            "isolation.level": self._partitions.isolation,
            # An offset that does not exist is an error (S4.2).
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "error_cb": events.on_error,
            "on_commit": events.on_commit,
        }
        defaults = {
            "client.id": f"tidegate-{ctx.uid}-{ctx.subtask}",
            "fetch.wait.max.ms": FETCH_WAIT_MS,
            "fetch.queue.backoff.ms": QUEUE_BACKOFF_MS,
        }
        own |= {name: value for name, value in defaults.items() if name not in self._cluster.settings}
        settings = self._cluster.client_settings(own)
        return create_client(self._cluster, lambda: kafka.Consumer(settings, logger=logger))

    def _check(self, splits: Sequence[Split]) -> None:
        """Check that the topics of splits are there as before. Blocks."""
        view = ClusterTopics(self._cluster)
        try:
            check_topics(view, self._cluster, {topic: known_topic(splits, topic) for topic in _topics(splits)})
        finally:
            view.close()

    def _retention(self, topics: Collection[str]) -> Mapping[str, int]:
        """Return for topics the time after which the cluster deletes a record, milliseconds. Blocks."""
        view = ClusterTopics(self._cluster)
        try:
            return view.retention_ms(topics)
        finally:
            view.close()

    def unavailable_splits(self, splits: Sequence[Split]) -> Sequence[tuple[str, str]]:
        """Return the partitions that do not exist any more, or do not have the offset.

        Raises:
            OutageError: the cluster does not answer.
        """
        view = ClusterTopics(self._cluster)
        try:
            return unavailable(view, self._cluster, splits)
        finally:
            view.close()

    def unavailable_state(self, state: Any) -> str | None:
        """Return which topic does not exist any more, or was created again, also if it has no open split.

        Raises:
            OutageError: the cluster does not answer.
        """
        view = ClusterTopics(self._cluster)
        try:
            return lost_topic(view, self._cluster, state)
        finally:
            view.close()

    def describe(self) -> str:
        """Describe cluster, topics and range."""
        choice = self._partitions
        until = "" if choice.until is None else f", until={str(choice.until)!r}"
        return f"Kafka({choice.cluster.place!r}, {choice.describe()!r}, start={str(choice.start)!r}{until})"


def _topics(splits: Sequence[Split]) -> list[str]:
    return sorted({split.data["topic"] for split in splits})


def _check_topics_given(names: tuple[str, ...], pattern: str | None) -> None:
    if bool(names) == (pattern is not None) or not all(isinstance(name, str) and name for name in names):
        raise OptionError(
            "the source has no topics" if pattern is None else "the source has both topics and a pattern",
            where="Kafka(topics=)",
            remedy="Pass topics=, or topic_pattern=",
        )
    if len(set(names)) < len(names):
        raise OptionError("a topic is named twice", where="Kafka(topics=)", remedy="Name each topic once")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise OptionError(
                f"topic_pattern={pattern!r} is no regular expression",
                where="Kafka(topic_pattern=)",
                cause=str(error),
                remedy="Correct the expression",
            ) from error


def _unknown(option: str, value: object, known: tuple[str, ...]) -> OptionError:
    remedy = f"Use one of {', '.join(map(repr, known))}"
    return OptionError(f"{option}={value!r} is unknown", where=f"Kafka({option}=)", remedy=remedy)


def _positive(option: str, value: str | timedelta) -> timedelta:
    found = parse_duration(value, where=f"Kafka({option}=)")
    if found <= timedelta(0):
        remedy = 'Use a duration such as "30 s"'
        raise OptionError(f"{option} must be longer than 0", where=f"Kafka({option}=)", remedy=remedy)
    return found
