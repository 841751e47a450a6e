"""Which partitions a Kafka source reads, from where to where (S4.3)."""

from __future__ import annotations

import contextlib
import difflib
import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidegate.connectors.interface import Discovery, Split, SplitEnumerator
from tidegate.connectors.kafka.cluster import KafkaCluster
from tidegate.connectors.kafka.source.kafka_errors import (
    FEWER,
    RECREATED,
    no_such_group_offset,
    no_such_offset,
    out_of_range,
    vanished,
)
from tidegate.connectors.kafka.source.offset_choice import Isolation, OffsetChoice, WithoutGroupOffset
from tidegate.connectors.kafka.source.topic_view import Part, Topic, TopicView
from tidegate.errors import PipelineError, TidegateError

logger = logging.getLogger("tidegate.connectors")

CONFIRMATIONS = 5
"""Searches for a missing topic until it counts as deleted: a broker that has just started may not know it yet."""
CONFIRM_S = 1.0
"""Seconds between two such looks."""


@dataclass(frozen=True)
class PartitionChoice:
    """Which partitions are read, and their range of offsets.

    Attributes:
        topics: names; (): those that match `pattern`, a regular expression for whole names.
        start, until: of the partitions that exist at the start of the job; until None: no end.
        group: consumer group whose offsets `start` may use.
        without_group_offset: see `WithoutGroupOffset`.
    """

    cluster: KafkaCluster
    topics: tuple[str, ...]
    pattern: str | None
    start: OffsetChoice
    until: OffsetChoice | None
    isolation: Isolation
    group: str | None
    without_group_offset: WithoutGroupOffset

    def describe(self) -> str:
        """Name the topics, for messages."""
        return ", ".join(self.topics) if self.topics else f"/{self.pattern}/"


def split_part(split: Split) -> Part:
    """Return the partition of a split."""
    return split.data["topic"], split.data["partition"]


def next_offset(split: Split) -> int:
    """Return the offset at which a split is read on."""
    return int(split.data["start"] if split.position is None else split.position["offset"])


def find_topics(view: TopicView, choice: PartitionChoice) -> Mapping[str, Topic]:
    """Return the topics that exist now."""
    if choice.topics:
        return view.topics(choice.topics)
    pattern = re.compile(choice.pattern or "")
    found = view.topics([name for name in view.names() if pattern.fullmatch(name)])
    return {name: topic for name, topic in found.items() if not topic.internal}


def first_splits(view: TopicView, choice: PartitionChoice) -> tuple[Mapping[str, Topic], list[Split]]:
    """Return the topics and splits that exist at the start of a job, in the order of their names.

    Raises:
        PipelineError: a topic does not exist, or a partition has no such offset.
        OutageError: the cluster does not answer.
    """
    found = find_topics(view, choice)
    absent = [name for name in choice.topics if name not in found]
    if absent:
        raise PipelineError(
            f"there is no topic {', '.join(map(repr, absent))}",
            where=choice.cluster.place,
            remedy=_topic_remedy(view, absent[0]),
        )
    parts = parts_of(found.values())
    if not parts and choice.until is not None:
        raise PipelineError(
            f"no topic matches {choice.pattern!r}", where=choice.cluster.place, remedy="Correct topic_pattern="
        )
    starts = _starts(view, choice, parts)
    ends = _ends(view, choice, parts)
    return found, [_split(found[part[0]], part, starts[part], ends.get(part)) for part in parts]


def _topic_remedy(view: TopicView, absent: str) -> str:
    """Return what to do about a missing topic: correct its name if another one has a similar name, or create it."""
    with contextlib.suppress(TidegateError):  # the user may not list topics
        if similar := difflib.get_close_matches(absent, view.names(), 1):
            return f"Correct topics=: there is a topic {similar[0]!r}"
    return "Create the topic"


def parts_of(topics: Collection[Topic], known: Mapping[str, int] | None = None) -> list[Part]:
    """Return the partitions, without the first `known` ones of each topic."""
    known = known or {}
    return [
        (topic.name, number)
        for topic in sorted(topics, key=lambda topic: topic.name)
        for number in range(known.get(topic.name, 0), topic.partitions)
    ]


def _split(topic: Topic, part: Part, start: int, end: int | None) -> Split:
    data = {"topic": part[0], "partition": part[1], "topic_id": topic.topic_id, "start": start, "end": end}
    return Split(f"{part[0]}-{part[1]}", data, weight=1 if end is None else max(1, end - start))


def _starts(view: TopicView, choice: PartitionChoice, parts: Sequence[Part]) -> Mapping[Part, int]:
    kind = choice.start.kind
    if kind == "earliest":
        return view.earliest(parts)
    if kind == "latest":
        return view.ends(parts, choice.isolation)
    if kind == "timestamp":
        return _at_time(view, choice, parts, choice.start.time_ms)
    if kind == "offsets":
        starts = _given(choice, parts, choice.start, "start")
        _check_range(view, starts, partial(no_such_offset, "start="))
    else:
        starts = _of_group(view, choice, parts)
        _check_range(view, starts, partial(no_such_group_offset, str(choice.group)))
    return starts


def _ends(view: TopicView, choice: PartitionChoice, parts: Sequence[Part]) -> Mapping[Part, int]:
    if choice.until is None:
        return {}
    if choice.until.kind == "latest":
        return view.ends(parts, choice.isolation)
    if choice.until.kind == "timestamp":
        return _at_time(view, choice, parts, choice.until.time_ms)
    ends = _given(choice, parts, choice.until, "until")
    _check_range(view, ends, partial(no_such_offset, "until="))
    return ends


def _at_time(view: TopicView, choice: PartitionChoice, parts: Sequence[Part], time_ms: int) -> Mapping[Part, int]:
    # The ends are asked first: a record that arrives between the two requests is then found by its time.
    ends = view.ends(parts, choice.isolation)
    return {part: ends[part] if at is None else at for part, at in view.at_time(parts, time_ms).items()}


def _given(choice: PartitionChoice, parts: Sequence[Part], given: OffsetChoice, option: str) -> dict[Part, int]:
    offsets = {(topic, n): offset for topic, found in given.offsets.items() for n, offset in found.items()}
    missing = [part for part in parts if part not in offsets]
    unknown = sorted(offsets.keys() - set(parts))
    for wrong, what in ((missing, "gives no offset for"), (unknown, "gives an offset for missing partitions:")):
        if wrong:
            raise PipelineError(
                f"{option} {what} {', '.join(f'{topic}-{n}' for topic, n in wrong)}",
                where=choice.cluster.place,
                remedy=f"Give {option}= an offset for each partition that exists",
            )
    return offsets


def _of_group(view: TopicView, choice: PartitionChoice, parts: Sequence[Part]) -> dict[Part, int]:
    assert choice.group is not None, "Kafka() checks it"
    committed = view.group_offsets(choice.group, parts)
    without = [part for part in parts if committed[part] is None]
    if without and choice.without_group_offset == "fail":
        names = ", ".join(f"{topic}-{n}" for topic, n in without)
        raise PipelineError(
            f"the consumer group {choice.group!r} has no offset for {names}",
            where=choice.cluster.place,
            remedy='Set without_group_offset="earliest" or "latest", or another start=',
        )
    if choice.without_group_offset == "earliest":
        others = view.earliest(without)
    else:
        others = view.ends(without, choice.isolation)
    return {**{part: offset for part, offset in committed.items() if offset is not None}, **others}


def _check_range(view: TopicView, offsets: Mapping[Part, int], error: Callable[..., PipelineError]) -> None:
    for part, (low, high) in ranges(view, offsets.keys()).items():
        if not low <= offsets[part] <= high:
            raise error(*part, offsets[part], low, high)


def ranges(view: TopicView, parts: Collection[Part]) -> dict[Part, tuple[int, int]]:
    """Return the first and the next offset of each partition, with open transactions."""
    low, high = view.earliest(parts), view.ends(parts, "read_uncommitted")
    return {part: (low[part], high[part]) for part in parts}


def changed_topics(
    cluster: KafkaCluster, found: Mapping[str, Topic], known: Mapping[str, tuple[str, int]]
) -> dict[str, TidegateError]:
    """Return the topics that are not there as before, with the error for each.

    Args:
        known: topic -> its id and its number of partitions.
    """
    wrong: dict[str, TidegateError] = {}
    for name, (topic_id, partitions) in known.items():
        topic = found.get(name)
        if topic is None:
            wrong[name] = vanished(cluster, name)
        elif topic_id and topic.topic_id and topic.topic_id != topic_id:
            wrong[name] = vanished(cluster, name, RECREATED)
        elif topic.partitions < partitions:
            wrong[name] = vanished(cluster, name, FEWER)
    return wrong


def check_topics(
    view: TopicView,
    cluster: KafkaCluster,
    known: Mapping[str, tuple[str, int]],
    *,
    pause: Callable[[float], None] = time.sleep,
) -> Mapping[str, Topic]:
    """Check that topics are there as before, and return them. See `changed_topics`.

    Raises:
        PipelineError: a topic was deleted, or created again.
        OutageError: the cluster does not answer.
    """
    for look in range(CONFIRMATIONS):
        found = view.topics(known.keys())
        wrong = changed_topics(cluster, found, known)
        if not wrong:
            return found
        # A topic that is missing may be there in a moment. One with another id never is the former one.
        if look == CONFIRMATIONS - 1 or any(name in found for name in wrong):
            break
        pause(CONFIRM_S)
    raise next(iter(wrong.values()))


def unavailable(view: TopicView, cluster: KafkaCluster, splits: Sequence[Split]) -> list[tuple[str, str]]:
    """Return the splits that cannot be read on, with the reason."""
    known = {topic: known_topic(splits, topic) for topic in {split.data["topic"] for split in splits}}
    found = view.topics(known.keys())
    wrong = changed_topics(cluster, found, known)
    there = [split for split in splits if split.data["topic"] not in wrong]
    spans = ranges(view, [split_part(split) for split in there])
    reasons = {split.split_id: str(wrong[split.data["topic"]]) for split in splits if split.data["topic"] in wrong}
    for split in there:
        low, high = spans[split_part(split)]
        if not low <= next_offset(split) <= high:
            reasons[split.split_id] = str(out_of_range(*split_part(split), next_offset(split), low, high))
    return [(split.split_id, reasons[split.split_id]) for split in splits if split.split_id in reasons]


def lost_topic(
    view: TopicView,
    cluster: KafkaCluster,
    state: Mapping[str, Any],
    *,
    pause: Callable[[float], None] = time.sleep,
) -> str | None:
    """Return which topic of an enumerator's state is not there as before, and why; None: all are. See `check_topics`.

    Raises:
        OutageError: the cluster does not answer.
    """
    try:
        check_topics(view, cluster, known_topics(state), pause=pause)
    except PipelineError as error:
        return error.what_and_why
    return None


def known_topics(state: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Return the topics of an enumerator's state: name -> id and number of partitions."""
    return {name: (topic["id"], topic["partitions"]) for name, topic in state["topics"].items()}


def known_topic(splits: Sequence[Split], topic: str) -> tuple[str, int]:
    """Return the id of a topic, and how many partitions it has at least."""
    mine = [split for split in splits if split.data["topic"] == topic]
    return mine[0].data["topic_id"], max(split.data["partition"] for split in mine) + 1


class PartitionEnumerator(SplitEnumerator):
    """Finds partitions of topics. Partitions that appear later are read from their earliest record.

    Its state has the id and the number of partitions of each topic.
    """

    def __init__(
        self,
        choice: PartitionChoice,
        connect: Callable[[], TopicView],
        state: Mapping[str, Any] | None,
        *,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """Args: state: see `Source.create_enumerator`."""
        self._choice, self._connect, self._pause = choice, connect, pause
        self._view: TopicView | None = None
        self._known: dict[str, tuple[str, int]] | None = None
        self._leaderless: set[Part] = set()
        if state is not None:
            self._known = known_topics(state)

    def discover(self) -> Discovery:
        """Return the partitions that were not returned before.

        Raises:
            OutageError: the cluster does not answer.
            PipelineError: a topic was deleted or created again; at the first search see `first_splits`.
        """
        if self._view is None:
            self._view = self._connect()
        view = self._view
        if self._known is None:
            topics, splits = first_splits(view, self._choice)
        else:
            topics, splits = self._later(view, self._known)
        self._known = {name: (topic.topic_id, topic.partitions) for name, topic in topics.items()}
        self._report_leaderless(topics.values())
        state = {name: {"id": topic_id, "partitions": n} for name, (topic_id, n) in sorted(self._known.items())}
        return Discovery(splits, {"topics": state})

    def _later(self, view: TopicView, known: Mapping[str, tuple[str, int]]) -> tuple[Mapping[str, Topic], list[Split]]:
        topics = dict(check_topics(view, self._choice.cluster, known, pause=self._pause))
        if self._choice.pattern is not None:
            topics = {**find_topics(view, self._choice), **topics}
        parts = parts_of(topics.values(), {name: partitions for name, (_, partitions) in known.items()})
        # Not where `start` says: records that came before the search would be lost.
        starts = view.earliest(parts)
        return topics, [_split(topics[part[0]], part, starts[part], None) for part in parts]

    def _report_leaderless(self, topics: Collection[Topic]) -> None:
        now = {(topic.name, number) for topic in topics for number in topic.leaderless}
        if now - self._leaderless:
            logger.warning("partitions have no leader and cannot be read: %s", sorted(now - self._leaderless))
        if self._leaderless - now:
            logger.info("partitions have a leader again: %s", sorted(self._leaderless - now))
        self._leaderless = now

    def close(self) -> None:
        """Forget the client."""
        if self._view is not None:
            self._view.close()
