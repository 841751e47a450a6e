"""Which partitions a Kafka source reads, and from where to where (S4.2, S4.3)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from builders.kafka_fakes import FakeTopics

from tidegate.connectors.interface import Split
from tidegate.connectors.kafka.source.kafka_source import Kafka
from tidegate.connectors.kafka.source.partitions import (
    CONFIRMATIONS,
    PartitionEnumerator,
    first_splits,
    lost_topic,
    unavailable,
)
from tidegate.errors import OutageError, PipelineError

BROKER = "broker:9092"


def kafka(topics: Any = "t", **options: Any) -> Any:
    return Kafka(topics, servers=BROKER, **options)._partitions


def spans(topics: FakeTopics, choice: Any) -> dict[str, tuple[int, int | None]]:
    """Split -> start and end."""
    return {s.split_id: (s.data["start"], s.data["end"]) for s in first_splits(topics, choice)[1]}


@pytest.fixture
def topics() -> FakeTopics:
    """A topic `t` with the offsets 10 to 100, in partition 1 an open transaction from 90 on."""
    found = FakeTopics()
    found.add("t", 2)
    found.low |= {("t", 0): 10, ("t", 1): 10}
    found.stable[("t", 1)] = 90
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"t-0": (10, None), "t-1": (10, None)}),
        ({"start": "latest"}, {"t-0": (100, None), "t-1": (90, None)}),
        ({"start": "latest", "isolation": "read_uncommitted"}, {"t-0": (100, None), "t-1": (100, None)}),
        ({"start": "2026-01-01T00:00:00Z"}, {"t-0": (50, None), "t-1": (90, None)}),
        ({"start": {0: 10, 1: 100}}, {"t-0": (10, None), "t-1": (100, None)}),
        ({"start": "group", "group": "g", "without_group_offset": "latest"}, {"t-0": (33, None), "t-1": (90, None)}),
        ({"start": "group", "group": "g", "without_group_offset": "earliest"}, {"t-0": (33, None), "t-1": (10, None)}),
        ({"until": "latest"}, {"t-0": (10, 100), "t-1": (10, 90)}),
        ({"until": "2026-01-01T00:00:00Z"}, {"t-0": (10, 50), "t-1": (10, 90)}),
        ({"until": {0: 100, 1: 10}}, {"t-0": (10, 100), "t-1": (10, 10)}),
    ],
)
def test_each_partition_has_a_start_and_an_end(
    topics: FakeTopics, options: dict[str, Any], expected: dict[str, tuple[int, int | None]]
) -> None:
    topics.times[("t", 0)] = 50
    topics.committed[("t", 0)] = 33
    assert spans(topics, kafka(**options)) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": ["t", "u"]}, "there is no topic 'u'"),
        ({"topics": None, "topic_pattern": "x.*", "until": "latest"}, "no topic matches"),
        ({"start": {0: 10}}, "start gives no offset for t-1"),
        ({"start": {0: 10, 1: 10, 2: 10}}, "start gives an offset for missing partitions: t-2"),
        (
            {"start": {0: 9, 1: 10}},
            r"start= is offset 9 for partition 0 of the topic 't', which does not exist.*10 to 100",
        ),
        ({"until": {0: 20, 1: 101}}, r"until= is offset 101 for partition 1 .*does not exist"),
        ({"start": "group", "group": "g"}, "the consumer group 'g' has no offset for t-1"),
        ({"start": "group", "group": "g", "without_group_offset": "latest"}, "offset 5 of partition 0"),
    ],
)
def test_offsets_and_topics_that_do_not_exist_are_refused(
    topics: FakeTopics, options: dict[str, Any], message: str
) -> None:
    """An offset is never reset to one that exists."""
    topics.committed[("t", 0)] = 5
    with pytest.raises(PipelineError, match=message):
        first_splits(topics, kafka(**options))


def test_splits_of_a_bounded_source_weigh_what_they_have_to_read(topics: FakeTopics) -> None:
    _, splits = first_splits(topics, kafka(until={0: 10, 1: 40}))
    assert [split.weight for split in splits] == [1, 30]


class Search:
    """An enumerator over fake topics, with the pauses that it made."""

    def __init__(self, topics: FakeTopics, state: Any = None, **options: Any) -> None:
        self.topics, self.options = topics, options
        self.pauses: list[float] = []
        names = None if "topic_pattern" in options else options.pop("topics", "t")
        self.enumerator = PartitionEnumerator(kafka(names, **options), lambda: topics, state, pause=self.pauses.append)

    def __call__(self) -> dict[str, int]:
        """Split -> start."""
        found = self.enumerator.discover()
        self.state = json.loads(json.dumps(found.state))
        return {split.split_id: split.data["start"] for split in found.splits}


def test_partitions_that_appear_later_are_read_from_their_earliest_record(topics: FakeTopics) -> None:
    """S4.3: also if the job started at the end: what came before the search would be lost."""
    search = Search(topics, start="latest")
    assert search() == {"t-0": 100, "t-1": 90}
    assert search() == {}
    topics.add("t", 4)
    topics.low[("t", 3)] = 7
    before = search.state
    assert search() == {"t-2": 0, "t-3": 7}
    assert search() == {}
    assert Search(topics, before, start="latest")() == {"t-2": 0, "t-3": 7}
    assert Search(topics, search.state, start="latest")() == {}


def test_topics_that_match_later_are_read_from_their_earliest_record_and_internal_ones_never(
    topics: FakeTopics,
) -> None:
    topics.add("__offsets_t", 1, internal=True)
    search = Search(topics, topic_pattern=".*t", start="latest")
    assert search() == {"t-0": 100, "t-1": 90}
    topics.add("not", 1)
    topics.add("nothing", 1)
    assert search() == {"not-0": 0}


def test_a_pattern_without_a_topic_waits_for_one() -> None:
    topics = FakeTopics()
    search = Search(topics, topic_pattern="t")
    assert search() == {}
    topics.add("t", 1)
    assert search() == {"t-0": 0}


def test_a_search_without_an_answer_changes_nothing(topics: FakeTopics) -> None:
    search = Search(topics)
    topics.silent = 1
    with pytest.raises(OutageError):
        search()
    assert search() == {"t-0": 10, "t-1": 10}
    topics.silent = 1
    topics.add("t", 3)
    with pytest.raises(OutageError):
        search()
    assert search() == {"t-2": 0}


def test_a_topic_that_was_created_again_fails_the_job(topics: FakeTopics) -> None:
    search = Search(topics)
    search()
    topics.add("t", 2, topic_id="another")
    with pytest.raises(PipelineError, match="'t' was deleted and created again"):
        search()
    with pytest.raises(PipelineError, match="created again"):
        Search(topics, search.state)()


@pytest.mark.parametrize("partitions", [0, 1])
def test_a_topic_or_partition_that_is_missing_in_several_looks_fails_the_job(
    topics: FakeTopics, partitions: int
) -> None:
    search = Search(topics)
    search()
    if partitions:
        topics.add("t", partitions)
    else:
        del topics.there["t"]
    with pytest.raises(PipelineError, match="fewer partitions" if partitions else "does not exist any more"):
        search()
    assert len(search.pauses) == (0 if partitions else CONFIRMATIONS - 1)


def test_a_topic_that_a_broker_does_not_know_for_a_moment_is_no_failure(topics: FakeTopics) -> None:
    search = Search(topics)
    search()
    gone = topics.there.pop("t")
    search.enumerator._pause = lambda _: topics.there.setdefault("t", gone) and None
    assert search() == {}


def test_brokers_without_topic_ids_are_accepted(topics: FakeTopics) -> None:
    search = Search(topics)
    search()
    topics.there["t"] = type(topics.there["t"])("t", "", 3)
    topics.add("other", 1)
    topics.low[("t", 2)] = 0
    assert search() == {"t-2": 0}


def test_partitions_without_a_leader_are_logged_once(topics: FakeTopics, caplog: pytest.LogCaptureFixture) -> None:
    search = Search(topics)
    search()
    whole = topics.there["t"]
    topics.there["t"] = type(whole)("t", whole.topic_id, 2, leaderless=(1,))
    search()
    search()
    assert [r.message for r in caplog.records] == ["partitions have no leader and cannot be read: [('t', 1)]"]


def test_an_enumerator_forgets_its_client(topics: FakeTopics) -> None:
    search = Search(topics)
    search.enumerator.close()
    assert not topics.closed, "it has not connected"
    search()
    search.enumerator.close()
    assert topics.closed


def test_the_preflight_names_partitions_that_cannot_be_read_on(topics: FakeTopics) -> None:
    """S4.2: positions that have expired, ends that were cut off, topics that are not the same."""
    topics.add("gone", 1)
    topics.add("anew", 1)
    _, splits = first_splits(topics, kafka(["anew", "gone", "t"]))
    by_id = {split.split_id: split for split in splits}
    at = lambda split, offset: Split(split.split_id, split.data, {"offset": offset, "rows": 1})  # noqa: E731
    taken = [by_id["anew-0"], by_id["gone-0"], at(by_id["t-0"], 9), at(by_id["t-1"], 101)]
    del topics.there["gone"]
    topics.add("anew", 1, topic_id="another")

    found = dict(unavailable(topics, kafka().cluster, taken))

    assert found.keys() == {"anew-0", "gone-0", "t-0", "t-1"}
    assert "created again" in found["anew-0"] and "does not exist any more" in found["gone-0"]
    assert "offset 9 of partition 0" in found["t-0"] and "10 to 100" in found["t-0"] and "retention" in found["t-0"]
    assert "ends at offset 100" in found["t-1"]
    assert unavailable(topics, kafka().cluster, [at(by_id["t-0"], 10), at(by_id["t-1"], 100)]) == []


def test_the_preflight_names_a_topic_without_open_splits_that_is_gone(topics: FakeTopics) -> None:
    """S4.3, S9.3: later partitions of the topic would never be found."""
    search = Search(topics)
    search()
    pauses: list[float] = []
    check = lambda: lost_topic(topics, kafka().cluster, search.state, pause=pauses.append)  # noqa: E731
    assert check() is None
    topics.add("t", 2, topic_id="another")
    assert "created again" in str(check()) and not pauses
    del topics.there["t"]
    assert "does not exist any more" in str(check()) and len(pauses) == CONFIRMATIONS - 1
