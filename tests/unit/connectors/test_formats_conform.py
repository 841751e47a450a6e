"""Every built-in format passes the conformance suite of formats."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from builders.protobuf_messages import ORDER_FILES, order
from schema_registry_server import RegistryServer, registry_server

from tidegate import formats
from tidegate.testing import FormatConformance

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "shop", "type": ["null", "string"]},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "parts", "type": {"type": "map", "values": ["null", "double"]}},
        {"name": "who", "type": ["null", {"type": "record", "name": "Who", "fields": [{"name": "n", "type": "int"}]}]},
        {"name": "choice", "type": ["null", "string", "boolean"]},
        {"name": "weight", "type": "float"},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 3}},
    ],
}
ROWS = pa.RecordBatch.from_pylist(
    [
        {
            "id": n * 10**9,
            "shop": None if n % 3 == 0 else f"café {n}",
            "price": Decimal(n - 3) / 100,
            "state": ("NEW", "PAID")[n % 2],
            "at": n * 1_000,
            "tags": [f"t{i}" for i in range(n)],
            "parts": [(f"p{i}", None if i else n / 4) for i in range(n % 3)],
            "who": None if n % 2 else {"n": -n},
            "choice": (None, {"member0": "x", "member1": None}, {"member0": None, "member1": True})[n % 3],
            "weight": n / 2,
            "code": b"abc",
        }
        for n in range(7)
    ],
    schema=formats.Avro(json.dumps(ORDER)).schema(),
)


def avro_records() -> list[bytes]:
    encoder = formats.Avro(json.dumps(ORDER)).create_encoder(ROWS.schema)
    records: list[bytes] = encoder.encode(ROWS).to_pylist()
    return records


class TestRawBytes(FormatConformance):
    def make_format(self) -> formats.Format:
        return formats.Raw()

    def good_records(self) -> Sequence[bytes]:
        return [b"", b"a", b"\xff\x00", b"b" * 100, b"c"]

    def bad_records(self) -> Sequence[bytes]:
        return []


class TestRawText(TestRawBytes):
    def make_format(self) -> formats.Format:
        return formats.Raw("line", "string")

    def good_records(self) -> Sequence[bytes]:
        return [b"", b"a", "é€😀".encode(), b"b" * 100, b"c"]

    def bad_records(self) -> Sequence[bytes]:
        return [b"\xff", b"abcdefgh\xc3", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"]


class TestRawNumber(TestRawBytes):
    def make_format(self) -> formats.Format:
        return formats.Raw("key", "int64")

    def good_records(self) -> Sequence[bytes]:
        return [number.to_bytes(8, "big", signed=True) for number in (0, 1, -1, 2**63 - 1, -(2**63))]

    def bad_records(self) -> Sequence[bytes]:
        return [b"", b"1", b"123456789"]


class TestJson(FormatConformance):
    def make_format(self) -> formats.Format:
        kinds: dict[str, Any] = {
            "id": "int64",
            "name": "string",
            "day": "date32",
            "at": "timestamp[us, UTC]",
            "x": "double",
        }
        kinds |= {"tags": pa.list_(pa.string()), "who": pa.struct([("n", pa.int32()), ("t", pa.time32("ms"))])}
        return formats.Json({**kinds, "price": "decimal(9, 2)", "ok": "bool"})

    def good_records(self) -> Sequence[bytes]:
        return [
            b'{"id": 1, "name": "a", "day": "2026-01-02", "at": "2026-01-02T03:04:05.000006Z", "x": 1.5, "ok": true}',
            b'{"id": 2, "tags": ["a", null], "who": {"n": 3, "t": "01:02:03"}, "price": 12.34, "other": {"x": [1]}}',
            b'  {"id": null}\n',
            b'{"id":\n 4,\r\n "name": "a\\nb { } \\""}',
            b"{}",
            '{"name": "é€😀"}'.encode(),
            b'{"name": 12345678901234567890.123}',
        ]

    def bad_records(self) -> Sequence[bytes]:
        return [
            b"",
            b" \n",
            b"null",
            b"[1]",
            b"7",
            b'{"id": 1',
            b'{"who": {}',
            b'{"id": 1}{"id": 2}',
            b'{"id": 1}\n{"id": 2}',
            b'{"id": 1} x',
            b'{"id": "one hundred and five"}',
            b'{"id": 1.5}',
            b'{"id": 9223372036854775808}',
            b'{"id": 1, "id": 2}',
            b'{"day": "the second of January"}',
            b'{"at": "2026-01-02T03:04:05, perhaps"}',
            b'{"at": 1767323045}',
            b'{"ok": 1}',
            b'{"name": {"first": "a", "last": "b"}}',
            b'{"name": "a\nb"}',
            b'{"name": "\xff\xfe"}',
            b'{"tags": "not a list at all"}',
            b'{"x": 1e999}',
            b'{"a":' * 300 + b"1" + b"}" * 300,
        ]


class TestAvro(FormatConformance):
    def make_format(self) -> formats.Format:
        return formats.Avro(json.dumps(ORDER))

    def good_records(self) -> Sequence[bytes]:
        return avro_records()

    def bad_records(self) -> Sequence[bytes]:
        good = avro_records()
        text = good[1].index("café".encode())
        no_text = good[1][: text + 3] + b"\xff" + good[1][text + 4 :]
        return [b"", good[5][:-1], good[5] + b"\0", no_text, b"\x02\x04", b"\xff" * 30, b"\x02" + b"\x01" * 40]


class TestAvroInARegistry(FormatConformance):
    @pytest.fixture(autouse=True)
    def registry(self) -> Iterator[RegistryServer]:
        with registry_server() as server:
            self.server = server
            older = {**ORDER, "fields": [*ORDER["fields"][1:], {"name": "old", "type": "int"}]}
            self.older = server.add("orders-value", json.dumps(older))
            newer: Any = json.loads(json.dumps(ORDER))
            newer["fields"][0]["default"] = -5
            self.newest = server.add("orders-value", json.dumps(newer))
            self.other = server.add("other", '"string"')
            self.protobuf = server.add("proto", "", "PROTOBUF")
            yield server

    def make_format(self) -> formats.Format:
        registry = formats.SchemaRegistry(self.server.url, {"timeout": 5})
        return formats.Avro(registry=registry, subject="orders-value")

    def good_records(self) -> Sequence[bytes]:
        return [
            *(_head(self.newest) + record for record in avro_records()),
            # The older schema has no id, and a field of its own at the end.
            *(_head(self.older) + record[_long_bytes(record) :] + b"\x06" for record in avro_records()),
        ]

    def bad_records(self) -> Sequence[bytes]:
        good = avro_records()[5]
        heads = [_head(self.other), _head(self.protobuf), _head(99), b"\x01" + _head(self.newest)[1:], b"\0\0\0"]
        return [b"", good, _head(self.newest), _head(self.newest) + good[:-1], *(head + good for head in heads)]


class TestProtobuf(FormatConformance):
    def make_format(self) -> formats.Format:
        return formats.Protobuf(ORDER_FILES, "shop.Order")

    def good_records(self) -> Sequence[bytes]:
        return [order(n) for n in range(6)]

    def bad_records(self) -> Sequence[bytes]:
        return [b"\xff", order(5)[:-1], b"\x12\x02\xff\xfe", b"\x0f"]


class TestProtobufInARegistry(TestProtobuf):
    @pytest.fixture(autouse=True)
    def registry(self) -> Iterator[RegistryServer]:
        with registry_server() as server:
            self.server = server
            self.id = server.add("orders-value", _serialized(ORDER_FILES), "PROTOBUF")
            self.avro = server.add("avro", '"string"')
            yield server

    def make_format(self) -> formats.Format:
        registry = formats.SchemaRegistry(self.server.url)
        return formats.Protobuf(registry=registry, subject="orders-value", message="shop.Order")

    def good_records(self) -> Sequence[bytes]:
        # The message is the second one of its file.
        return [_head(self.id) + b"\x02\x02" + order(n) for n in range(6)]

    def bad_records(self) -> Sequence[bytes]:
        body = order(3)
        heads = [_head(self.avro) + b"\0", _head(77) + b"\0", _head(self.id) + b"\0", _head(self.id) + b"\x02\x20"]
        return [b"", body, _head(self.id), *(head + body for head in heads), _head(self.id) + b"\xff" * 12]


class TestDebeziumJson(FormatConformance):
    encodes = False

    def make_format(self) -> formats.Format:
        columns = {"id": "int64", "name": "string"}
        return formats.Debezium(
            formats.Json(columns), key=formats.Json({"id": "int64"}), metadata={"at": "source.ts_ms"}
        )

    def key_of(self, value: bytes | None) -> bytes | None:
        return None if value is None or b"no key" in value else b'{"id": 7}'

    def good_records(self) -> Sequence[bytes]:
        row, other = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}
        source = {"ts_ms": 5, "lsn": 3}
        events: list[dict[str, Any]] = [
            {"op": "c", "before": None, "after": row, "source": source, "ts_ms": 6},
            {"op": "r", "after": row},
            {"op": "u", "before": row, "after": other},
            {"op": "d", "before": row, "after": None},
            {"op": "d", "before": None},
            {"schema": {"type": "struct"}, "payload": {"op": "u", "before": row, "after": other, "source": source}},
        ]
        return [json.dumps(event).encode() for event in events]

    def bad_records(self) -> Sequence[bytes]:
        row = {"id": 1, "name": "a"}
        events: list[dict[str, Any]] = [
            {},
            {"op": "x", "after": row},
            {"op": "t"},
            {"op": "c", "before": row},
            {"op": "u", "after": row},
            {"op": "d", "note": "no key"},
            {"op": "c", "after": {"id": "twelve or thirteen"}},
            {"payload": None},
        ]
        return [b"", b"{", *(json.dumps(event).encode() for event in events)]


def _head(schema_id: int) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big")


def _long_bytes(record: bytes) -> int:
    """Bytes of the number at the beginning of a record."""
    return next(at for at, byte in enumerate(record, 1) if byte < 0x80)


def _serialized(files: bytes) -> str:
    """The one file of a set, as a registry sends it."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    (file,) = FileDescriptorSet.FromString(files).file
    return base64.b64encode(file.SerializeToString()).decode()
