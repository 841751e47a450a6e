"""Clients of a schema registry: schemas requested once, errors without secrets, ids in records."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from schema_registry_server import RegistryServer, registry_server

from tidegate.connectors.formats.found_formats import formats_with_found, found_by_formats
from tidegate.connectors.formats.schema_registry import UnknownSchemaError
from tidegate.connectors.found_schema import FoundSchema
from tidegate.errors import OptionError, OutageError, PipelineError
from tidegate.formats import Avro, Json, SchemaRegistry


def order(*names: str, **options: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": "long", **options} for name in names]
    return {"type": "record", "name": "Order", "fields": fields}


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


def record(schema_id: int, *numbers: int) -> bytes:
    schema = fastavro.parse_schema(order(*"abc"[: len(numbers)]))
    out = io.BytesIO(b"\0" + schema_id.to_bytes(4, "big"))
    out.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(out, schema, dict(zip("abc", numbers)))
    return out.getvalue()


def test_schemas_are_requested_once(server: RegistryServer) -> None:
    one = server.add("orders-value", json.dumps(order("a")))
    other = server.add("orders-value", json.dumps(order("a", "b", default=0)))
    format_ = Avro(registry=SchemaRegistry(server.url), subject="orders-value")
    assert format_.schema().names == format_.schema().names == ["a", "b"]
    decoder = format_.create_decoder()
    for _ in range(3):
        found = decoder.decode(pa.array([record(one, 1), record(other, 2, 3), record(one, 4)], pa.binary()))
        assert found.batch.to_pylist() == [{"a": 1, "b": 0}, {"a": 2, "b": 3}, {"a": 4, "b": 0}]
        assert found.records is None
    assert sorted(server.requests) == [
        f"GET /schemas/ids/{one}",
        f"GET /schemas/ids/{other}",
        "GET /subjects/orders-value/versions/latest",
    ]


def test_the_schema_of_the_first_build_is_used_when_the_subject_has_a_newer_one(server: RegistryServer) -> None:
    """S5.5: a source keeps what its formats found, in its own found schema."""
    server.add("orders-value", json.dumps(order("a")))
    value = Avro(registry=SchemaRegistry(server.url), subject="orders-value")
    formats = {"key": Json({"k": "int64"}), "value": value}
    schema = pa.schema([*formats["key"].schema(), *value.schema()])
    found = found_by_formats(schema, formats)
    assert found is not None
    newer = server.add("orders-value", json.dumps(order("a", "b", default=0)))
    again = formats_with_found(
        {**formats, "value": Avro(registry=SchemaRegistry(server.url), subject="orders-value")},
        FoundSchema.from_json(json.loads(json.dumps(found.to_json())), where="test"),
    )
    assert again["key"] is formats["key"]
    assert again["value"].schema().names == ["a"]
    decoded = again["value"].create_decoder().decode(pa.array([record(newer, 1, 2)], pa.binary()))
    assert decoded.batch.to_pylist() == [{"a": 1}]
    assert found_by_formats(schema, {"key": formats["key"]}) is None


def test_an_outage_is_reported_and_the_same_values_are_decoded_later(server: RegistryServer) -> None:
    number = server.add("orders-value", json.dumps(order("a")))
    decoder = Avro(json.dumps(order("a")), registry=SchemaRegistry(server.url, {"max.retries": 0})).create_decoder()
    server.status = 503
    values = pa.array([record(number, 5)], pa.binary())
    for _ in range(2):
        with pytest.raises(OutageError, match="does not answer"):
            decoder.decode(values)
    server.status = 0
    assert decoder.decode(values).batch.to_pylist() == [{"a": 5}]


def test_a_registry_that_cannot_be_reached_is_an_outage() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(OutageError, match=url):
            Avro(registry=SchemaRegistry(url, {"max.retries": 0}), subject="a").schema()


@pytest.mark.parametrize("status", [401, 403])
def test_refused_access_fails_the_job(server: RegistryServer, status: int) -> None:
    server.status = status
    decoder = Avro(json.dumps(order("a")), registry=SchemaRegistry(server.url)).create_decoder()
    with pytest.raises(PipelineError, match="refuses access"):
        decoder.decode(pa.array([record(1, 5)], pa.binary()))


def test_an_unknown_subject_and_a_schema_of_another_kind_are_refused(server: RegistryServer) -> None:
    registry = SchemaRegistry(server.url)
    with pytest.raises(UnknownSchemaError, match="no subject 'nothing'"):
        Avro(registry=registry, subject="nothing").schema()
    server.add("json", "{}", "JSON")
    with pytest.raises(PipelineError, match="it is a JSON schema"):
        Avro(registry=registry, subject="json").schema()


def test_an_unknown_id_is_asked_for_again(server: RegistryServer) -> None:
    """Another node of the registry may learn of a schema a moment after its records arrive."""
    decoder = Avro(json.dumps(order("a")), registry=SchemaRegistry(server.url)).create_decoder()
    values = pa.array([record(1, 5)], pa.binary())
    assert [one.reason for one in decoder.decode(values).bad] == ["the schema registry has no schema with the id 1"]
    server.add("orders-value", json.dumps(order("a")))
    assert decoder.decode(values).batch.to_pylist() == [{"a": 5}]


def test_schemas_that_use_others_are_read(server: RegistryServer) -> None:
    inner = {"type": "record", "name": "shop.Line", "fields": [{"name": "n", "type": "int"}]}
    server.add("line", json.dumps(inner))
    outer = {"type": "record", "name": "shop.Order", "fields": [{"name": "line", "type": "shop.Line"}]}
    references = [{"name": "shop.Line", "subject": "line", "version": 1}]
    number = server.add("orders-value", json.dumps(outer), references=references)
    format_ = Avro(registry=SchemaRegistry(server.url), subject="orders-value")
    assert format_.schema() == pa.schema([("line", pa.struct([pa.field("n", pa.int32(), nullable=False)]))])
    head = b"\0" + number.to_bytes(4, "big")
    found = format_.create_decoder().decode(pa.array([head + b"\x06"], pa.binary()))
    assert found.batch.to_pylist() == [{"line": {"n": 3}}]


def test_secrets_are_resolved_where_they_are_used_and_appear_in_no_error(
    server: RegistryServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server.add("orders-value", json.dumps(order("a")))
    server.password = "etl:sesame"
    (tmp_path / "login").write_text("etl:sesame\n")
    registry = SchemaRegistry(server.url, {"basic.auth.user.info": f"secret:file{tmp_path}/login"})
    assert Avro(registry=registry, subject="orders-value").schema().names == ["a"]
    monkeypatch.setenv("WRONG", "etl:tulips")
    wrong = SchemaRegistry(server.url, {"basic.auth.user.info": "secret:env/WRONG"})
    with pytest.raises(PipelineError) as caught:
        Avro(registry=wrong, subject="orders-value").schema()
    assert "tulips" not in str(caught.value) and "etl" not in str(caught.value)
    assert "sesame" not in repr(registry) + Avro(registry=registry, subject="a").describe()
    with pytest.raises(OptionError, match="cannot be read"):
        missing = SchemaRegistry(server.url, {"basic.auth.user.info": "secret:env/NOT_SET_ANYWHERE"})
        Avro(registry=missing, subject="orders-value").schema()


@pytest.mark.parametrize(
    ("url", "settings", "message"),
    [
        ("registry:8081", {}, "URL"),
        ("http://etl:sesame@registry", {}, "user or password"),
        ("http://registry", {"basic.auth.user.info": "etl:sesame"}, "plain text"),
        ("http://registry", {"ssl.key.password": "sesame"}, "plain text"),
    ],
)
def test_secrets_in_plain_text_are_refused(url: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        SchemaRegistry(url, settings)
    assert "sesame" not in str(caught.value)


def test_a_wrong_setting_is_named(server: RegistryServer) -> None:
    with pytest.raises(OptionError, match=r"tiemout"):
        Avro(registry=SchemaRegistry(server.url, {"tiemout": 3}), subject="a").schema()


def test_rows_are_written_with_the_newest_schema_of_the_subject(server: RegistryServer) -> None:
    server.add("orders-value", json.dumps(order("a")))
    number = server.add("orders-value", json.dumps(order("a", "b")))
    batch = pa.record_batch({"b": [2, 4], "a": [1, 3]})
    format_ = Avro(registry=SchemaRegistry(server.url), subject="orders-value")
    format_.check_encodable(batch.schema)
    values = format_.create_encoder(batch.schema).encode(batch).to_pylist()
    assert values == [record(number, 1, 2), record(number, 3, 4)]


def test_a_declared_schema_must_be_registered_unless_told_otherwise(server: RegistryServer) -> None:
    registry, batch = SchemaRegistry(server.url), pa.record_batch({"a": [7]})
    text = json.dumps(order("a"))
    with pytest.raises(UnknownSchemaError):
        Avro(text, registry=registry, subject="orders-value").create_encoder(batch.schema).encode(batch)
    made = Avro(text, registry=registry, subject="orders-value", register=True).create_encoder(batch.schema)
    assert made.encode(batch).to_pylist() == [record(1, 7)]
    again = Avro(text, registry=registry, subject="orders-value").create_encoder(batch.schema)
    assert again.encode(batch).to_pylist() == [record(1, 7)]


def test_a_schema_is_derived_from_the_columns_and_registered(server: RegistryServer) -> None:
    registry = SchemaRegistry(server.url)
    batch = pa.record_batch(
        {
            "n": pa.array([1, None]),
            "small": pa.array([1, 2], pa.int8()),
            "t": pa.array([1, 2], pa.timestamp("us", "UTC")),
            "o": pa.array(
                [{"x": 1, "l": ["a", None]}, None], pa.struct([("x", pa.uint16()), ("l", pa.list_(pa.string()))])
            ),
            "m": pa.array([[("k", 1.5)], []], pa.map_(pa.string(), pa.float64())),
            "code": pa.array(["x", "y"]).dictionary_encode(),
            "p": pa.array([1, 2], pa.int64()).cast(pa.decimal128(21, 2)),
        }
    )
    format_ = Avro(registry=registry, subject="shop.orders-value", register=True)
    format_.check_encodable(batch.schema)
    values = format_.create_encoder(batch.schema).encode(batch)
    found = Avro(registry=registry, subject="shop.orders-value").create_decoder().decode(values)
    assert found.batch.to_pylist() == batch.to_pylist()
    with pytest.raises(PipelineError, match="no digit at the beginning"):
        format_.check_encodable(pa.schema([("1st", pa.int64())]))
    with pytest.raises(PipelineError, match="uint64"):
        format_.check_encodable(pa.schema([("a", pa.uint64())]))


def test_rows_need_a_subject(server: RegistryServer) -> None:
    with pytest.raises(PipelineError, match="Pass subject="):
        Avro(json.dumps(order("a")), registry=SchemaRegistry(server.url)).check_encodable(
            pa.schema([("a", pa.int64())])
        )
