"""Rows as records of a topic, and the places that the records need."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from tidegate.change_rows import change_kind_field
from tidegate.connectors.formats.interface import Format, RecordDecoder, RecordEncoder
from tidegate.connectors.kafka.sink.kafka_sink import KafkaSink
from tidegate.connectors.kafka.sink.record_columns import RecordColumns, RecordsOfRows
from tidegate.connectors.kafka.sink.topics import RecordPlaces, TopicFacts, target_problems
from tidegate.errors import DataError, OptionError, PipelineError

LIMIT_BYTES = 1000


class Joined(Format):
    """All columns as text, joined; refuses nulls, as formats with required fields do."""

    def schema(self) -> pa.Schema:
        raise NotImplementedError

    def create_decoder(self, columns: Any = None) -> RecordDecoder:
        raise NotImplementedError

    def check_encodable(self, schema: pa.Schema) -> None:
        if "secret" in schema.names:
            raise PipelineError("secret")

    def create_encoder(self, schema: pa.Schema) -> RecordEncoder:
        return _JoinedEncoder()


class _JoinedEncoder(RecordEncoder):
    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        assert all(column.null_count == 0 for column in batch.columns)
        return pa.array(["|".join(map(str, row.values())).encode() for row in batch.to_pylist()], pa.binary())


def encoded(columns: RecordColumns, batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Records of the rows, without parts that they lack. Slices have offsets, so rows are put before and behind."""
    columns.check(batch.schema, "test")
    sliced = pa.concat_batches([batch, batch, batch]).slice(batch.num_rows, batch.num_rows)
    made = RecordsOfRows(columns, batch.schema, LIMIT_BYTES, "test").encode(sliced)
    made.validate(full=True)
    return [{name: value for name, value in row.items() if value is not None} for row in made.to_pylist()]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
        pa.dictionary(pa.int8(), pa.string()),
        pa.binary(1),
    ],
    ids=str,
)
def test_texts_and_bytes_are_sent_as_they_are(kind: pa.DataType) -> None:
    plain = pa.binary() if pa.types.is_binary(kind) or "binary" in str(kind) else pa.string()
    column, full = (pa.array(cells, pa.binary()).cast(plain).cast(kind) for cells in ([b"a", None, b"b"], [b"a", b"b"]))
    rows = pa.record_batch({"key": column, "value": column})
    assert encoded(RecordColumns("value"), rows) == [{"value": b"a"}, {}, {"value": b"b"}]
    filled = pa.record_batch({"key": full, "value": full})
    assert encoded(RecordColumns("value", key=("key",)), filled) == [
        {"key": b"a", "value": b"a"},
        {"key": b"b", "value": b"b"},
    ]


def test_a_format_gets_the_columns_without_another_part() -> None:
    rows = pa.record_batch({"id": [1], "name": ["x"], "to": ["t"], "p": [3], "at": [5], "h": ["z"]})
    columns = RecordColumns(
        Joined(), key=("id", "name"), key_format=Joined(), headers=("h",), partition="p", timestamp="at", topic="to"
    )
    record = {"topic": "t", "partition": 3, "timestamp_ms": 5, "key": b"1|x", "value": b"1|x"}
    assert encoded(columns, rows) == [{**record, "headers": [{"key": "h", "value": b"z"}]}]
    chosen = RecordColumns(Joined(), value_columns=("name",))
    assert encoded(chosen, rows) == [{"value": b"x"}]


def _changes(kinds: list[str], names: list[str | None]) -> pa.RecordBatch:
    schema = pa.schema([pa.field("id", pa.string()), pa.field("name", pa.string()), change_kind_field()])
    return pa.record_batch([pa.array([f"k{n}" for n in range(len(kinds))]), pa.array(names), kinds], schema=schema)


def test_changes_become_values_and_tombstones() -> None:
    """States before an update are left out; deleted rows are not encoded, so they may lack columns."""
    rows = _changes(["insert", "update_before", "update_after", "delete", "insert"], ["a", "b", "c", None, "d"])
    assert encoded(RecordColumns(Joined(), key=("id",)), rows) == [
        {"key": b"k0", "value": b"k0|a"},
        {"key": b"k2", "value": b"k2|c"},
        {"key": b"k3"},
        {"key": b"k4", "value": b"k4|d"},
    ]
    assert encoded(RecordColumns(Joined(), key=("id",)), _changes(["update_before"], ["b"])) == []
    assert encoded(RecordColumns(Joined(), key=("id",)), _changes(["delete"], [None])) == [{"key": b"k0"}]


def test_a_format_may_write_the_kind_of_change() -> None:
    rows = _changes(["delete", "update_before"], ["a", "b"])
    assert encoded(RecordColumns(Joined(), changes="encode"), rows) == [
        {"value": b"k0|a|delete"},
        {"value": b"k1|b|update_before"},
    ]


@pytest.mark.parametrize(
    ("kind", "wrap"),
    [
        (pa.map_(pa.string(), pa.string()), list),
        (pa.map_(pa.string(), pa.binary()), list),
        (
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            lambda pairs: [{"key": key, "value": value} for key, value in pairs],
        ),
    ],
    ids=["texts", "bytes", "structs"],
)
def test_a_column_may_hold_all_headers(kind: pa.DataType, wrap: Any) -> None:
    pairs: list[list[tuple[str, Any]] | None] = [[("a", b"1"), ("a", None)], None, []]
    if kind == pa.map_(pa.string(), pa.string()):
        pairs = [[("a", "1"), ("a", None)], None, []]
    column = pa.array([None if one is None else wrap(one) for one in pairs], kind)
    rows = pa.record_batch({"value": ["x", "y", "z"], "h": column})
    assert encoded(RecordColumns("value", headers=("h",)), rows) == [
        {"value": b"x", "headers": [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]},
        {"value": b"y"},
        {"value": b"z", "headers": []},
    ]


def test_columns_may_be_headers_each() -> None:
    rows = pa.record_batch({"value": ["x", "y", "z"], "a": ["1", None, None], "b": [None, b"2", None]})
    rows = rows.set_column(2, "b", pa.array([b"3", b"2", None], pa.binary()))
    assert [one["headers"] for one in encoded(RecordColumns("value", headers=("a", "b")), rows)] == [
        [{"key": "a", "value": b"1"}, {"key": "b", "value": b"3"}],
        [{"key": "b", "value": b"2"}],
        [],
    ]


def test_times_are_milliseconds() -> None:
    moment = datetime(2026, 11, 28, 1, 2, 3, 456_789, tzinfo=UTC)
    wanted = int(moment.timestamp() * 1000)
    for kind in (pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("ms", "Europe/Berlin")):
        column = pa.array([moment, None], pa.timestamp("us", "UTC")).cast(pa.timestamp("us")).cast(kind, safe=False)
        found = encoded(RecordColumns("value", timestamp="at"), pa.record_batch({"value": ["a", "b"], "at": column}))
        assert [one.get("timestamp_ms") for one in found] == [wanted, None]


@pytest.mark.parametrize(
    ("columns", "rows", "words"),
    [
        (RecordColumns("value", partition="n"), {"value": ["a"], "n": [-1]}, "negative partition"),
        (RecordColumns("value", partition="n"), {"value": ["a"], "n": [2**31]}, "too large a partition"),
        (RecordColumns("value", timestamp="n"), {"value": ["a"], "n": [-5]}, "negative timestamp"),
        (RecordColumns("value"), {"value": ["a" * 1001]}, "1037 bytes"),
        (RecordColumns("value", key=("k",)), {"value": ["a" * 600], "k": ["b" * 600]}, "1236 bytes"),
        (RecordColumns("value", headers=("h",)), {"value": ["a" * 600], "h": ["b" * 600]}, "1247 bytes"),
        (RecordColumns("value", key=("k",)), {"value": pa.nulls(1, pa.string()), "k": pa.nulls(1, pa.string())}, "key"),
    ],
)
def test_a_row_that_no_topic_accepts_is_refused_before_its_checkpoint(
    columns: RecordColumns, rows: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        encoded(columns, pa.record_batch(rows))


def test_changes_without_a_key_or_of_an_unknown_kind_are_refused() -> None:
    with pytest.raises(DataError, match="unknown kind of change"):
        encoded(RecordColumns(Joined(), key=("id",)), _changes(["upsert"], ["a"]))
    rows = _changes(["delete"], ["a"]).set_column(0, pa.field("id", pa.string()), pa.nulls(1, pa.string()))
    with pytest.raises(DataError, match="has no key"):
        encoded(RecordColumns("name", key=("id",)), rows)


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (RecordColumns("nothing"), "no column 'nothing'"),
        (RecordColumns("n"), "value column 'n' has type int64"),
        (RecordColumns("value", key=("n",)), "key column 'n' has type int64"),
        (RecordColumns("value", partition="value"), "is no integer"),
        (RecordColumns("value", timestamp="value"), "neither a timestamp"),
        (RecordColumns("value", topic="n"), "is no text"),
        (RecordColumns("value", headers=("n",)), "headers column 'n'"),
        (RecordColumns(Joined(), value_columns=()), "no column is left"),
        (RecordColumns("value", headers=("h", "value")), "headers column 'h'"),
    ],
)
def test_columns_that_do_not_fit_are_refused_when_the_pipeline_is_checked(columns: RecordColumns, words: str) -> None:
    schema = pa.schema([("value", pa.string()), ("n", pa.int64()), ("h", pa.map_(pa.string(), pa.string()))])
    with pytest.raises(PipelineError, match=words):
        columns.check(schema, "test")


def test_changes_need_a_key_and_formats_check_their_columns() -> None:
    with pytest.raises(PipelineError, match="a key is needed"):
        RecordColumns(Joined()).check(_changes([], []).schema, "test")
    with pytest.raises(PipelineError, match="secret"):
        RecordColumns(Joined()).check(pa.schema([("secret", pa.string())]), "test")
    with pytest.raises(PipelineError, match="same name"):
        RecordColumns("a").check(pa.schema([("a", pa.string()), ("a", pa.string())]), "test")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": " "}, "topic is empty"),
        ({"key": ("a", "b")}, "2 key columns have no format"),
        ({"key_format": Joined()}, "key_format has no columns"),
        ({"value_columns": ["a"]}, "value_columns needs a format"),
        ({"changes": "merge"}, "'merge' is unknown"),
        ({"create": {"replicas": 1}}, "'replicas' is unknown"),
        ({"settings": {"acks": 1}}, "sets 'acks' itself"),
        ({"settings": {"transaction.timeout.ms": 1}}, "pass transaction_timeout="),
        ({"settings": {"sasl.password": "x"}}, "secret in plain text"),
        ({"staging_options": {"secret": "x"}}, "secret in plain text"),
        ({"transaction_timeout": "1 ms"}, "too short"),
        ({"servers": ""}, "servers is empty"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        KafkaSink(**{"servers": "broker:9092", "topic": "out", **options})


def test_the_identity_names_the_topic_and_no_secret() -> None:
    sink = KafkaSink("out", servers="b:9092", key="k", topic_column="t", settings={"sasl.password": "secret:env/WORD"})
    assert sink.describe() == "KafkaSink('b:9092', 'out', key=['k'], topic_column='t')"


# ---------------------------------------------------------------- places


class Topics:
    """Of a cluster with one plain and one compacted topic. `asked`: every question."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.partitions = {"plain": 2, "compact": 1}

    def describe(self, names: Iterable[str]) -> dict[str, TopicFacts]:
        self.asked += names
        return {name: TopicFacts(n, None) for name, n in self.partitions.items() if name in names}

    def settings(self, name: str) -> dict[str, str]:
        self.asked.append(f"settings of {name}")
        return {"cleanup.policy": "compact,delete" if name == "compact" else "delete"}


def _check(places: RecordPlaces, *records: tuple[str | None, int | None, str | None]) -> None:
    rows = pa.record_batch(
        {"value": ["v"] * len(records), **{name: [r[i] for r in records] for i, name in enumerate(("t", "p", "k"))}},
        schema=pa.schema([("value", pa.string()), ("t", pa.string()), ("p", pa.int32()), ("k", pa.string())]),
    )
    columns = RecordColumns("value", topic="t", partition="p", key=("k",))
    used = places.empty()
    used.add(RecordsOfRows(columns, rows.schema, LIMIT_BYTES, "test").encode(rows))
    places.check(used)


def test_only_new_topics_and_partitions_are_asked_for() -> None:
    topics = Topics()
    places = RecordPlaces(topics, "plain", "test", keyed=True)  # type: ignore[arg-type]
    _check(places, (None, None, "k"), ("plain", None, "k"))
    assert topics.asked == []
    _check(places, (None, 1, "k"), ("compact", 0, "k"))
    _check(places, (None, 0, "k"), ("compact", None, "k"))
    assert topics.asked == ["plain", "compact"]
    topics.partitions["plain"] = 3
    _check(places, (None, 2, "k"), ("compact", None, "k"))
    assert topics.asked == ["plain", "compact", "plain"]


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (("missing", None, "k"), "topic 'missing', which does not exist"),
        (("plain", 2, "k"), "partition 2 of topic 'plain', which has 2"),
        (("compact", None, None), "compacted topic 'compact' has no key"),
    ],
)
def test_records_without_a_place_are_refused_before_their_checkpoint(
    record: tuple[str, int | None, str | None], words: str
) -> None:
    with pytest.raises(DataError, match=words):
        _check(RecordPlaces(Topics(), "plain", "test", keyed=True), (None, None, "k"), record)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "settings", "words"),
    [
        (None, {}, "does not exist"),
        (TopicFacts(1, frozenset({"DESCRIBE"})), {}, "lacks the rights WRITE, READ"),
        (TopicFacts(1, None), {"cleanup.policy": "compact"}, "only records with a key"),
        (TopicFacts(1, None), {"max.message.bytes": "10"}, "up to 10 bytes"),
    ],
)
def test_a_topic_that_cannot_be_written_is_found(
    facts: TopicFacts | None, settings: dict[str, str], words: str
) -> None:
    needed = ("WRITE", "READ", "DESCRIBE")
    [problem] = target_problems(facts, settings, keyed=False, max_record_bytes=100, needed=needed)
    assert words in problem
    good = TopicFacts(1, frozenset(needed))
    assert target_problems(good, {}, keyed=False, max_record_bytes=100, needed=needed) == []
