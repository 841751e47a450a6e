"""Options of the Kafka source: what is refused when the pipeline is built, and what is described."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pyarrow as pa
import pytest
from builders.kafka_fakes import Numbers

from tidegate import Discard, Pipeline
from tidegate.connectors.connector_registry import find_connector
from tidegate.connectors.formats.interface import Format
from tidegate.connectors.found_schema import FoundSchema
from tidegate.connectors.kafka.source.kafka_errors import without_secrets
from tidegate.connectors.kafka.source.kafka_source import Kafka
from tidegate.connectors.kafka.source.offset_choice import OffsetChoice, end_choice, start_choice
from tidegate.errors import OptionError, PipelineError

BROKER = "broker:9092"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("earliest", OffsetChoice("earliest")),
        ("latest", OffsetChoice("latest")),
        ("group", OffsetChoice("group")),
        ("1970-01-01T00:00:01.5Z", OffsetChoice("timestamp", 1_500)),
        ("1970-01-01T01:00:00+01:00", OffsetChoice("timestamp", 0)),
        (datetime(1970, 1, 2, tzinfo=UTC), OffsetChoice("timestamp", 86_400_000)),
        (datetime(1970, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), OffsetChoice("timestamp", 0)),
        ({0: 5, 1: 7}, OffsetChoice("offsets", offsets={"t": {0: 5, 1: 7}})),
        ({"t": {3: 0}}, OffsetChoice("offsets", offsets={"t": {3: 0}})),
    ],
)
def test_a_start_is_a_word_a_time_or_offsets(value: Any, expected: OffsetChoice) -> None:
    assert start_choice(value, ("t",)) == expected


@pytest.mark.parametrize(
    "value",
    [
        "newest",
        "",
        "2026-01-01T00:00:00",
        datetime(2026, 1, 1),
        5,
        {},
        {0: -1},
        {0: True},
        {"other": {0: 1}},
        {"t": 5},
        None,
    ],
)
def test_another_start_is_refused(value: Any) -> None:
    with pytest.raises(OptionError, match="start"):
        start_choice(value, ("t",))


@pytest.mark.parametrize("value", ["earliest", "group"])
def test_an_end_is_no_beginning(value: Any) -> None:
    with pytest.raises(OptionError, match="until"):
        end_choice(value, ("t",))


def test_offsets_without_a_topic_need_one_topic() -> None:
    with pytest.raises(OptionError, match="does not give an offset"):
        start_choice({0: 1}, ("a", "b"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topics": None}, "no topics"),
        ({"topics": []}, "no topics"),
        ({"topics": "t", "topic_pattern": "t.*"}, "both"),
        ({"topics": ["t", "t"]}, "twice"),
        ({"topics": None, "topic_pattern": "("}, "regular expression"),
        ({"servers": " "}, "servers is empty"),
        ({"start": "group"}, "needs a group"),
        ({"isolation": "serializable"}, "isolation='serializable' is unknown"),
        ({"on_bad_record": "drop"}, "on_bad_record='drop' is unknown"),
        ({"without_group_offset": "newest"}, "without_group_offset='newest' is unknown"),
        ({"with_columns": ["value"]}, "with_columns"),
        ({"with_columns": "offset"}, "with_columns"),
        ({"discover_every": "0 s"}, "longer than 0"),
        ({"outage_timeout": "0 s"}, "longer than 0"),
        ({"settings": {"auto.offset.reset": "latest"}}, r"auto.offset.reset.*Use start= instead"),
        ({"settings": {"group.id": "g"}}, r"group.id.*Use group= instead"),
        ({"settings": {"sasl.password": "swordfish"}}, "plain text"),
        ({"settings": {"ssl.key.pem": "-----BEGIN"}}, "plain text"),
    ],
)
def test_options_that_are_wrong_or_contradict_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as raised:
        Kafka(**{"topics": "t", "servers": BROKER, **options})
    assert "swordfish" not in str(raised.value)


def test_the_source_is_found_by_its_name_and_describes_itself_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_WORD", "swordfish")
    settings = {"sasl.password": "secret:env/KAFKA_WORD"}
    source = find_connector("Kafka")(["a", "b"], servers=["x:1", "y:2"], settings=settings, until="latest")
    assert source.describe() == "Kafka('x:1,y:2', 'a, b', start='earliest', until='latest')"
    assert source.boundedness == "bounded" and source.continuous_discovery() is None
    pattern = Kafka(topic_pattern="a.*", servers=BROKER, start="2026-01-01T00:00:00Z", discover_every="5 s")
    assert pattern.describe() == "Kafka('broker:9092', '/a.*/', start='2026-01-01T00:00:00.000Z')"
    found = pattern.continuous_discovery()
    assert pattern.boundedness == "unbounded" and found is not None and found.interval == timedelta(seconds=5)
    assert without_secrets(source._cluster, "bad swordfish, sword") == "bad ***, sword"


def test_columns_are_those_of_value_key_and_metadata() -> None:
    assert Kafka("t", servers=BROKER).schema() == pa.schema([("value", pa.binary())])
    columns = {"timestamp": "at", "headers": "headers", "key": "raw_key"}
    source = Kafka("t", servers=BROKER, value=Numbers("v"), key=Numbers("k"), with_columns=columns)
    assert source.schema().names == ["v", "v_text", "k", "k_text", "at", "headers", "raw_key"]
    assert source.schema().field("at").type == pa.timestamp("ms", tz="UTC")


@pytest.mark.parametrize(
    ("options", "columns"),
    [
        ({"value": Numbers("n"), "key": Numbers("n")}, "the value and of the key"),
        ({"value": Numbers("offset"), "with_columns": ["offset"]}, r"the value and of with_columns= \(offset\)"),
        ({"with_columns": {"key": "value"}}, r"the value and of with_columns= \(key\)"),
    ],
)
def test_columns_of_one_name_are_refused_when_the_pipeline_is_built(options: dict[str, Any], columns: str) -> None:
    with pytest.raises(PipelineError, match=columns) as raised:
        Pipeline().read(Kafka("t", servers=BROKER, **options), uid="in")
    assert "in" in raised.value.where


def test_dead_letters_need_a_reader() -> None:
    p = Pipeline()
    p.read(Kafka("t", servers=BROKER, on_bad_record="dead_letter"), uid="in").write(Discard(), uid="out")
    with pytest.raises(PipelineError, match="bad_records"):
        p.build()


class _Registered(Numbers):
    """A format whose schema comes from elsewhere."""

    def __init__(self, where: str, found: FoundSchema | None = None) -> None:
        super().__init__("n")
        self.where, self.found = where, found

    def found_schema(self) -> FoundSchema | None:
        return FoundSchema(self.schema(), self.where)

    def with_found_schema(self, found: FoundSchema) -> Format:
        return _Registered(self.where, found)


def test_the_schema_that_a_format_found_belongs_to_the_job() -> None:
    """S5.5."""
    assert Kafka("t", servers=BROKER, value=Numbers()).found_schema() is None
    source = Kafka("t", servers=BROKER, value=_Registered("schema 7 of registry"), with_columns=["offset"])
    found = source.found_schema()
    assert found is not None and found.where == "schema 7 of registry"
    again = source.with_found_schema(FoundSchema.from_json(found.to_json(), where="test"))
    used = again._shape.value
    assert isinstance(used, _Registered) and used.found is not None and used.found.where == "schema 7 of registry"
    assert again.schema() == source.schema()
