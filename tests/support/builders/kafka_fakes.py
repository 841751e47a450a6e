"""Stand-ins for a Kafka cluster and a consumer, and a small format of numbers."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException, Message

from tidegate.connectors.formats.interface import (
    DecodedRecords,
    Format,
    RecordDecoder,
    RecordEncoder,
    UndecodableRecord,
)
from tidegate.connectors.kafka.source.offset_choice import Isolation
from tidegate.connectors.kafka.source.topic_view import Part, Topic, TopicView
from tidegate.errors import OutageError


@dataclass
class FakeTopics(TopicView):
    """Answers from dictionaries.

    Attributes:
        there: topics by name.
        low, high, stable: first and next offset, and the one before the first open transaction (default: `high`).
        times: partition -> offset of the first record at the time that is asked for.
        committed: offsets of any group.
        silent: answers that are missing: the next calls raise OutageError.
    """

    there: dict[str, Topic] = field(default_factory=dict)
    low: dict[Part, int] = field(default_factory=dict)
    high: dict[Part, int] = field(default_factory=dict)
    stable: dict[Part, int] = field(default_factory=dict)
    times: dict[Part, int] = field(default_factory=dict)
    committed: dict[Part, int] = field(default_factory=dict)
    silent: int = 0
    closed: bool = False

    def add(self, name: str, partitions: int, *, topic_id: str = "", internal: bool = False) -> None:
        """Create a topic, or add partitions to it; each with the offsets 0 to 100."""
        self.there[name] = Topic(name, topic_id or f"id of {name}", partitions, internal=internal)
        for number in range(partitions):
            self.low.setdefault((name, number), 0)
            self.high.setdefault((name, number), 100)

    def _answer(self) -> None:
        if self.silent:
            self.silent -= 1
            raise OutageError("Kafka did not answer")

    def names(self) -> Sequence[str]:
        self._answer()
        return list(self.there)

    def topics(self, names: Collection[str]) -> Mapping[str, Topic]:
        self._answer()
        return {name: self.there[name] for name in names if name in self.there}

    def earliest(self, parts: Collection[Part]) -> Mapping[Part, int]:
        return {part: self.low[part] for part in parts}

    def ends(self, parts: Collection[Part], isolation: Isolation) -> Mapping[Part, int]:
        ends = {**self.high, **self.stable} if isolation == "read_committed" else self.high
        return {part: ends[part] for part in parts}

    def at_time(self, parts: Collection[Part], time_ms: int) -> Mapping[Part, int | None]:
        return {part: self.times.get(part) for part in parts}

    def group_offsets(self, group: str, parts: Collection[Part]) -> Mapping[Part, int | None]:
        return {part: self.committed.get(part) for part in parts}

    def close(self) -> None:
        self.closed = True


def message(offset: int, value: bytes | None = b"", partition: int = 0, topic: str = "t", **others: Any) -> Message:
    """A record."""
    return Message(topic=topic, partition=partition, offset=offset, value=value, **others)


def event(code: int, offset: int = -1, partition: int = 0, topic: str = "t") -> Message:
    """What a consumer reports about a partition."""
    return Message(topic=topic, partition=partition, offset=offset, error=KafkaError(code))


def reached(offset: int, partition: int = 0, topic: str = "t") -> Message:
    """The end of a partition, for now."""
    return event(KafkaError._PARTITION_EOF, offset, partition, topic)


class FakeConsumer:
    """Returns what the test puts into `coming`, one list for each call.

    Attributes:
        assigned: partition -> offset.
        range: what it says of every partition.
        answers: whether brokers answer.
        commits: offsets that were committed.
    """

    def __init__(self) -> None:
        self.coming: deque[list[Message]] = deque()
        self.assigned: dict[Part, int] = {}
        self.range = (0, 100)
        self.answers = True
        self.commits: list[dict[Part, int]] = []
        self.refuses_commits = False
        self.closed = False

    def incremental_assign(self, partitions: Sequence[Any]) -> None:
        for at in partitions:
            assert (at.topic, at.partition) not in self.assigned
            self.assigned[at.topic, at.partition] = at.offset

    def incremental_unassign(self, partitions: Sequence[Any]) -> None:
        for at in partitions:
            del self.assigned[at.topic, at.partition]

    def consume(self, num_messages: int, timeout: float) -> list[Message]:
        return self.coming.popleft() if self.coming else []

    def poll(self, timeout: float) -> Message | None:
        return None

    def commit(self, *, offsets: Sequence[Any], asynchronous: bool) -> None:
        assert asynchronous
        if self.refuses_commits:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_MEMBER_ID))
        self.commits.append({(at.topic, at.partition): at.offset for at in offsets})

    def get_watermark_offsets(self, partition: Any, timeout: float = 0, cached: bool = False) -> tuple[int, int]:
        if not self.answers and not cached:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return self.range

    def list_topics(self, *, timeout: float) -> None:
        if not self.answers:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def close(self) -> None:
        self.closed = True


@dataclass
class Registry:
    """A system that a format needs for decoding. Attributes: silent: calls that it does not answer."""

    silent: int = 0


class Numbers(Format):
    """Whitespace-separated integers, a row each: a record may have no row or several. Others are refused.

    Attributes:
        decoded: columns that each decoder was created with.
    """

    def __init__(self, column: str = "n", registry: Registry | None = None) -> None:
        self.column, self.registry = column, registry or Registry()
        self.decoded: list[Sequence[str] | None] = []

    def schema(self) -> pa.Schema:
        return pa.schema([(self.column, pa.int64()), (f"{self.column}_text", pa.string())])

    def create_decoder(self, columns: Sequence[str] | None = None) -> RecordDecoder:
        self.decoded.append(columns)
        return _NumbersDecoder(self, columns)

    def check_encodable(self, schema: pa.Schema) -> None:
        raise NotImplementedError

    def create_encoder(self, schema: pa.Schema) -> RecordEncoder:
        raise NotImplementedError


class _NumbersDecoder(RecordDecoder):
    def __init__(self, format_: Numbers, columns: Sequence[str] | None) -> None:
        self._format, self._columns = format_, columns

    def decode(self, values: pa.Array) -> DecodedRecords:
        if self._format.registry.silent:
            self._format.registry.silent -= 1
            raise OutageError("the registry does not answer")
        rows: list[tuple[int, str]] = []
        records: list[int] = []
        bad: list[UndecodableRecord] = []
        for i, value in enumerate(values.to_pylist()):
            try:
                found = [(int(word), word.decode()) for word in (value or b"").split()]
            except ValueError:
                bad.append(UndecodableRecord(i, "it is no number"))
                continue
            rows += found
            records += [i] * len(found)
        schema = self._format.schema()
        batch = pa.RecordBatch.from_arrays(
            [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(schema)], schema=schema
        )
        if self._columns is not None:
            batch = batch.select(list(self._columns))
        plain = not bad and records == list(range(len(values)))
        return DecodedRecords(batch, None if plain else pa.array(records, pa.int64()), bad)
