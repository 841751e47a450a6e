"""Protobuf messages: types, presence, times, and messages that a schema does not have."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.protobuf_messages import ORDER_FILES, order
from google.protobuf import descriptor_pb2, timestamp_pb2
from schema_registry_server import RegistryServer, registry_server

from tidegate.connectors.formats.protobuf.message_types import MAX_DEPTH
from tidegate.errors import OptionError, PipelineError
from tidegate.formats import Protobuf, SchemaRegistry

_Field = descriptor_pb2.FieldDescriptorProto


def files_of(*messages: tuple[str, list[tuple[str, int, str]]], syntax: str = "proto3") -> bytes:
    """A FileDescriptorSet of messages: (name, [(field, type, name of its type)]); `x*` is a repeated field."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax=syntax)
    for name, fields in messages:
        made = file.message_type.add(name=name)
        for number, (field, kind, type_name) in enumerate(fields, 1):
            label = _Field.LABEL_REPEATED if field.endswith("*") else _Field.LABEL_OPTIONAL
            made.field.add(name=field.rstrip("*"), number=number, type=kind, type_name=type_name or None, label=label)
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with registry_server() as running:
        yield running


def test_each_type_has_its_column() -> None:
    line = pa.struct([pa.field("sku", pa.string(), nullable=False), pa.field("count", pa.uint32(), nullable=False)])
    values = pa.field("value", line, nullable=False)
    assert Protobuf(ORDER_FILES, "shop.Order").schema() == pa.schema(
        [
            ("id", pa.int64()),
            ("shop", pa.string()),
            ("note", pa.string()),
            ("state", pa.string()),
            ("at", pa.timestamp("us", "UTC")),
            ("first", line),
            ("lines", pa.list_(pa.field("item", line, nullable=False))),
            ("sizes", pa.list_(pa.field("item", pa.int32(), nullable=False))),
            ("by_sku", pa.map_(pa.string(), values)),
            ("limit", pa.int64()),
            ("raw", pa.binary()),
            ("price", pa.float64()),
        ]
    )


def test_absent_fields_are_null_only_if_the_schema_can_tell() -> None:
    decoder = Protobuf(ORDER_FILES, "shop.Order").create_decoder()
    rows = decoder.decode(pa.array([b"", order(1)], pa.binary())).batch.to_pylist()
    nothing = {"id": 0, "shop": "", "note": None, "state": "NEW", "at": None, "first": None, "lines": [], "sizes": []}
    assert rows[0] == {**nothing, "by_sku": [], "limit": None, "raw": b"", "price": 0.0}
    assert rows[1] == {
        "id": 10**10,
        "shop": "café 1",
        "note": "",
        "state": "PAID",
        "at": datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC),
        "first": {"sku": "x", "count": 0},
        "lines": [{"sku": "s0", "count": 0}],
        "sizes": [-1, 0],
        "by_sku": [("s0", {"sku": "", "count": 0})],
        "limit": 1,
        "raw": b"\xff",
        "price": 1 / 3,
    }


def test_an_enum_keeps_a_number_that_has_no_name() -> None:
    decoder = Protobuf(ORDER_FILES, "shop.Order").create_decoder(["state"])
    assert decoder.decode(pa.array([b"\x20\x07"], pa.binary())).batch.to_pylist() == [{"state": "7"}]


def test_times_have_the_unit_of_the_option() -> None:
    moment = timestamp_pb2.Timestamp(seconds=1, nanos=1_234).SerializeToString()
    late = timestamp_pb2.Timestamp(seconds=250_000_000_000).SerializeToString()
    records = pa.array([b"\x2a" + bytes([len(one)]) + one for one in (moment, late)], pa.binary())
    micros = Protobuf(ORDER_FILES, "shop.Order").create_decoder(["at"]).decode(records)
    assert micros.batch.column("at").cast(pa.int64()).to_pylist() == [1_000_001, 250_000_000_000 * 10**6]
    nanos = Protobuf(ORDER_FILES, "shop.Order", timestamp_unit="ns").create_decoder(["at"]).decode(records)
    assert nanos.batch.column("at").cast(pa.int64()).to_pylist() == [1_000_001_234]
    assert [(one.index, one.reason) for one in nanos.bad] == [
        (1, "field 'at' has a value that is no timestamp[ns, tz=UTC]")
    ]


def test_a_text_of_proto2_that_is_no_utf8_makes_only_its_record_bad() -> None:
    files = files_of(("M", [("s", _Field.TYPE_STRING, ""), ("n", _Field.TYPE_INT32, "")]), syntax="proto2")
    records = pa.array([b"\x0a\x01a", b"\x0a\x01\xff\x10\x01", b"\x10\x02"], pa.binary())
    found = Protobuf(files).create_decoder().decode(records)
    assert found.batch.to_pylist() == [{"s": "a", "n": None}, {"s": None, "n": 2}]
    assert [one.index for one in found.bad] == [1]


@pytest.mark.parametrize(
    ("files", "message", "text"),
    [
        (b"\xff", None, "no FileDescriptorSet"),
        (b"", None, "no file"),
        (ORDER_FILES, "shop.Nothing", "shop.Line, shop.Order"),
        (files_of(("M", [("m", _Field.TYPE_MESSAGE, ".t.M")])), None, "contains itself"),
        (files_of(("M", [("m", _Field.TYPE_MESSAGE, ".t.Nothing")])), None, "cannot be used"),
        (
            files_of(
                *((f"M{n}", [("m", _Field.TYPE_MESSAGE, f".t.M{n + 1}")]) for n in range(MAX_DEPTH)),
                (f"M{MAX_DEPTH}", [("n", _Field.TYPE_INT32, "")]),
            ),
            "t.M0",
            f"nests more than {MAX_DEPTH} messages",
        ),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(files: bytes, message: str | None, text: str) -> None:
    with pytest.raises(PipelineError, match=text):
        Protobuf(files, message).schema()


def test_a_file_is_read_and_pinned(tmp_path: Path) -> None:
    """S5.5"""
    file = tmp_path / "order.desc"
    file.write_bytes(ORDER_FILES)
    format_ = Protobuf(file, "shop.Order")
    schema, found = format_.schema(), format_.found_schema()
    assert found is not None and found.where == str(file)
    file.write_bytes(b"")
    assert Protobuf(file, "shop.Order").with_found_schema(found).schema() == schema


@pytest.mark.parametrize(
    "options", [{}, {"descriptor": b"", "subject": "a"}, {"descriptor": b"", "timestamp_unit": "ms"}]
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Protobuf(**options)


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"nothing": pa.int64()}, "no field 'nothing'"),
        ({"shop": pa.int64()}, "'shop': int64 cannot be written as string"),
        ({"id": pa.uint64()}, "uint64 cannot"),
        ({"first": pa.struct([("x", pa.int32())])}, "no field 'x'"),
        ({"at": pa.timestamp("us")}, "without loss"),
        ({"sizes": pa.list_(pa.int64())}, "without loss"),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns: dict[str, pa.DataType], text: str) -> None:
    with pytest.raises(PipelineError, match=text):
        Protobuf(ORDER_FILES, "shop.Order").check_encodable(pa.schema(columns))


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"sizes": pa.array([[1, None]], pa.list_(pa.int32()))}),
        pa.record_batch({"state": ["SOMETHING"]}),
    ],
)
def test_values_that_do_not_fit_are_an_error(batch: pa.RecordBatch) -> None:
    format_ = Protobuf(ORDER_FILES, "shop.Order")
    encoder = format_.create_encoder(batch.schema)
    with pytest.raises(PipelineError, match="cannot be encoded"):
        encoder.encode(batch)


def test_narrow_columns_are_written_and_read(tmp_path: Path) -> None:
    batch = pa.record_batch(
        {
            "id": pa.array([1, None], pa.int8()),
            "price": pa.array([0.5, 2], pa.float32()),
            "shop": pa.array(["a", None]).dictionary_encode(),
            "at": pa.array([1, None], pa.timestamp("s", "UTC")),
            "lines": pa.array([[{"sku": "x"}], None], pa.list_(pa.struct([("sku", pa.string())]))),
        }
    )
    format_ = Protobuf(ORDER_FILES, "shop.Order")
    values = format_.create_encoder(batch.schema).encode(batch)
    found = format_.create_decoder(["id", "shop", "at", "lines", "price"]).decode(values).batch.to_pylist()
    second = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)
    line = {"sku": "x", "count": 0}
    assert found == [
        {"id": 1, "shop": "a", "at": second, "lines": [line], "price": 0.5},
        {"id": 0, "shop": "", "at": None, "lines": [], "price": 2.0},
    ]


def test_a_record_of_another_message_of_the_schema_is_bad(server: RegistryServer) -> None:
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(ORDER_FILES).file
    number = server.add("orders", base64.b64encode(file.SerializeToString()).decode(), "PROTOBUF")
    format_ = Protobuf(registry=SchemaRegistry(server.url), subject="orders", message="shop.Order")
    head = b"\0" + number.to_bytes(4, "big")
    found = format_.create_decoder().decode(pa.array([head + b"\0", head + b"\x02\x02" + order(2)], pa.binary()))
    assert [one.reason for one in found.bad] == ["the record holds a message shop.Line, and not shop.Order"]
    assert found.batch.column("id").to_pylist() == [2 * 10**10]
    assert server.requests.count(f"GET /schemas/ids/{number}") == 1
