"""Resolution of a writer's Avro schema to a reader's."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from builders.avro_records import written

from tidegate.connectors.formats.interface import DecodedRecords
from tidegate.errors import PipelineError
from tidegate.formats import Avro


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    """A record of fields: dicts, or (name, type) pairs."""
    described = [field if isinstance(field, dict) else {"name": field[0], "type": field[1]} for field in fields]
    return {"type": "record", "name": name, "fields": described}


def resolved(writer: Any, reader: Any, rows: Sequence[Any]) -> DecodedRecords:
    format_ = Avro(json.dumps(reader), writer_schema=json.dumps(writer))
    found = format_.create_decoder().decode(pa.array(written(writer, rows), pa.binary()))
    assert found.batch.schema == format_.schema()
    found.batch.validate(full=True)
    return found


def enum(*symbols: str, **options: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **options}


INNER = record(("x", "int"), ("y", ["null", "string"]), name="Inner")
ROWS: list[tuple[Any, Any, list[Any]]] = [
    # Added fields with defaults, also within a record, a list and a map.
    (record(("a", "int")), record(("a", "int"), {"name": "b", "type": "string", "default": "none"}), [{"a": 1}]),
    (
        record(("r", record(("x", "int"), name="Inner"))),
        record(("r", record(("x", "int"), {"name": "z", "type": ["null", "long"], "default": None}, name="Inner"))),
        [{"r": {"x": 1}}, {"r": {"x": 2}}],
    ),
    (
        record(("l", {"type": "array", "items": record(("x", "int"), name="Inner")})),
        record(
            (
                "l",
                {
                    "type": "array",
                    "items": record(("x", "int"), {"name": "z", "type": "int", "default": 4}, name="Inner"),
                },
            )
        ),
        [{"l": [{"x": 1}, {"x": 2}]}, {"l": []}, {"l": [{"x": 3}]}],
    ),
    (
        record(("a", "int")),
        record(
            ("a", "int"),
            {"name": "l", "type": {"type": "array", "items": "int"}, "default": [1, 2]},
            {"name": "r", "type": INNER, "default": {"x": 5, "y": None}},
            {"name": "f", "type": "double", "default": 1.5},
        ),
        [{"a": 1}, {"a": 2}],
    ),
    # Removed fields of all kinds.
    (
        record(
            ("l", {"type": "array", "items": {"type": "map", "values": INNER}}),
            ("u", ["null", "string", "Inner"]),
            ("e", enum("A", "B")),
            ("f", {"type": "fixed", "name": "F", "size": 2}),
            ("b", "boolean"),
            ("d", "double"),
            ("n", "null"),
            ("a", "int"),
        ),
        record(("a", "int")),
        [
            {
                "l": [{"k": {"x": 1, "y": "q"}}, {}],
                "u": {"x": 1, "y": None},
                "e": "B",
                "f": b"xy",
                "b": True,
                "d": 1.5,
                "n": None,
                "a": 7,
            },
            {"l": [], "u": None, "e": "A", "f": b"xy", "b": False, "d": 2.5, "n": None, "a": 8},
        ],
    ),
    # Order of fields.
    (record(("a", "int"), ("b", "string")), record(("b", "string"), ("a", "int")), [{"a": 1, "b": "x"}]),
    # Promotions.
    (record(("a", "int")), record(("a", "long")), [{"a": -3}]),
    (record(("a", "int")), record(("a", "float")), [{"a": 2**24}]),
    (record(("a", "int")), record(("a", "double")), [{"a": -7}]),
    (record(("a", "long")), record(("a", "double")), [{"a": 2**40}]),
    (record(("a", "long")), record(("a", "float")), [{"a": 2**30}]),
    (record(("a", "float")), record(("a", "double")), [{"a": 1.5}]),
    (record(("a", "string")), record(("a", "bytes")), [{"a": "x"}]),
    (record(("a", "bytes")), record(("a", "string")), [{"a": b"x"}]),
    (
        record(("l", {"type": "array", "items": "int"})),
        record(("l", {"type": "array", "items": "double"})),
        [{"l": [1]}],
    ),
    # Aliases of a field and of a type.
    (record(("old", "int")), record({"name": "new", "type": "int", "aliases": ["old"]}), [{"old": 4}]),
    (
        record(("f", {"type": "fixed", "name": "Old", "size": 1})),
        record(("f", {"type": "fixed", "name": "New", "size": 1, "aliases": ["Old"]})),
        [{"f": b"x"}],
    ),
    # Unions.
    (record(("a", "int")), record(("a", ["null", "int"])), [{"a": 1}]),
    (record(("a", ["null", "int"])), record(("a", ["int", "null"])), [{"a": 1}, {"a": None}]),
    (record(("a", ["null", "int"])), record(("a", ["null", "double"])), [{"a": 1}, {"a": None}]),
    (record(("a", ["int", "long"])), record(("a", "long")), [{"a": 1}, {"a": 2**40}]),
    (record(("a", ["null", "int", "float"])), record(("a", ["null", "double"])), [{"a": 1}, {"a": 1.5}, {"a": None}]),
    (record(("r", INNER)), record(("r", ["null", INNER])), [{"r": {"x": 1, "y": "a"}}]),
    (
        record(("l", {"type": "array", "items": "int"})),
        record(("l", {"type": "array", "items": ["null", "int"]})),
        [{"l": [1]}],
    ),
    # Enums.
    (record(("e", enum("A", "B"))), record(("e", enum("B", "A"))), [{"e": "A"}, {"e": "B"}]),
    (record(("e", enum("A", "B", "C"))), record(("e", enum("A", "Z", default="Z"))), [{"e": "A"}, {"e": "C"}]),
]


@pytest.mark.parametrize(("writer", "reader", "rows"), ROWS)
def test_records_are_resolved_as_fastavro_does(writer: Any, reader: Any, rows: list[Any]) -> None:
    parsed = fastavro.parse_schema(json.loads(json.dumps(writer)))
    wanted = fastavro.parse_schema(json.loads(json.dumps(reader)))
    expected = [fastavro.schemaless_reader(io.BytesIO(one), parsed, wanted) for one in written(writer, rows)]
    assert resolved(writer, reader, rows).batch.to_pylist() == expected


def test_a_union_of_several_types_is_a_struct_with_one_member_set() -> None:
    writer = record(("u", ["null", "string", INNER]))
    reader = record(("u", ["null", INNER, "string", "long"]))
    rows = [{"u": "a"}, {"u": None}, {"u": {"x": 1, "y": None}}]
    found = resolved(writer, reader, rows).batch.column("u").to_pylist()
    other = {"member0": None, "member1": None, "member2": None}
    assert found == [{**other, "member1": "a"}, None, {**other, "member0": {"x": 1, "y": None}}]


@pytest.mark.parametrize(
    ("writer", "reader", "rows", "good", "reason"),
    [
        (["null", "int"], "int", [{"a": 1}, {"a": None}, {"a": 3}], [1, 3], "null"),
        (["int", "string"], "int", [{"a": 1}, {"a": "x"}, {"a": 3}], [1, 3], "type that the reader's schema"),
        (enum("A", "B"), enum("A"), [{"a": "A"}, {"a": "B"}, {"a": "A"}], ["A", "A"], "symbol"),
    ],
)
def test_a_record_that_cannot_be_resolved_is_bad_and_its_neighbours_are_not(
    writer: Any, reader: Any, rows: list[Any], good: list[Any], reason: str
) -> None:
    found = resolved(record(("a", writer)), record(("a", reader)), rows)
    assert found.batch.column("a").to_pylist() == good
    assert [(one.index, reason in one.reason) for one in found.bad] == [(1, True)]


@pytest.mark.parametrize(
    ("writer", "reader", "message"),
    [
        (
            record(("a", "int")),
            record(("a", "int"), ("b", "int")),
            "'b' is not in the writer's schema, and has no default",
        ),
        (record(("a", "string")), record(("a", "int")), "'a': the writer's type string is not int"),
        (record(("a", "double")), record(("a", "float")), "double is not float"),
        (record(("a", "int")), record(("a", "int"), {"name": "b", "type": "int", "default": "x"}), "does not fit"),
        (
            record(("a", {"type": "fixed", "name": "F", "size": 2})),
            record(("a", {"type": "fixed", "name": "F", "size": 3})),
            "2 bytes, and not 3",
        ),
        (
            record(("a", {"type": "long", "logicalType": "timestamp-micros"})),
            record(("a", {"type": "long", "logicalType": "timestamp-millis"})),
            "cannot be read as timestamp-millis",
        ),
        (
            record(("a", {"type": "int", "logicalType": "date"})),
            record(("a", {"type": "long", "logicalType": "timestamp-millis"})),
            "date cannot be read",
        ),
        (
            record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2})),
            record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3})),
            r"decimal\(9, 2\) cannot",
        ),
        ("string", record({"name": "value", "type": "string", "default": ""}), "is not a record, unlike"),
        (
            record(("a", [record(("x", "int"), name="P"), record(("x", "int"), ("z", "int"), name="Q")])),
            record(("a", record(("x", "int"), {"name": "z", "type": "int", "default": 1}, name="S"))),
            "",
        ),
    ],
)
def test_schemas_that_cannot_be_resolved_are_refused(writer: Any, reader: Any, message: str) -> None:
    format_ = Avro(json.dumps(reader), writer_schema=json.dumps(writer))
    if message:
        with pytest.raises(PipelineError, match=message):
            format_.schema()
        return
    # Two records with different fields, read as one: records with the second are bad, instead of a wrong default.
    rows = written(writer, [{"a": ("P", {"x": 1})}, {"a": ("Q", {"x": 2, "z": 3})}])
    found = format_.create_decoder().decode(pa.array(rows, pa.binary()))
    assert found.batch.to_pylist() == [{"a": {"x": 1, "z": 1}}] and [one.index for one in found.bad] == [1]


def test_a_time_is_read_in_a_finer_unit() -> None:
    writer = record(
        ("t", {"type": "long", "logicalType": "timestamp-millis"}), ("d", {"type": "int", "logicalType": "time-millis"})
    )
    reader = record(
        ("t", {"type": "long", "logicalType": "timestamp-micros"}),
        ("d", {"type": "long", "logicalType": "time-micros"}),
    )
    moment = datetime(2026, 1, 2, 3, 4, 5, 6_000, tzinfo=UTC)
    found = resolved(writer, reader, [{"t": moment, "d": moment.time()}, {"t": 2**62, "d": moment.time()}])
    assert found.batch.to_pylist() == [{"t": moment, "d": moment.time()}]
    assert [(one.index, one.reason) for one in found.bad] == [
        (1, "a time does not fit the unit of the reader's schema")
    ]


def test_a_default_of_bytes_has_their_codes() -> None:
    reader = record(("a", "int"), {"name": "b", "type": "bytes", "default": "\u00ff\u0000"})
    assert resolved(record(("a", "int")), reader, [{"a": 1}]).batch.to_pylist() == [{"a": 1, "b": b"\xff\0"}]


def test_a_decimal_may_grow() -> None:
    writer = record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}))
    reader = record(("a", {"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2}))
    assert [
        str(one["a"]) for one in resolved(writer, reader, [{"a": b"\xff"}, {"a": b"\x04\xd2"}]).batch.to_pylist()
    ] == [
        "-0.01",
        "12.34",
    ]
