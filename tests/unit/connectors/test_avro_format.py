"""Avro records against fastavro, damaged records, and rows that a schema does not accept."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from builders.avro_records import written
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate.connectors.formats.avro.avro_schema import MAX_NESTING
from tidegate.connectors.formats.avro.decode_kernels import SPARE_ELEMENTS
from tidegate.connectors.formats.interface import DecodedRecords
from tidegate.errors import OptionError, PipelineError
from tidegate.formats import Avro

_settings = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Kind:
    """An Avro type, a strategy of values as fastavro writes them, and the value that is read for one."""

    schema: Any
    values: st.SearchStrategy[Any]
    read: Any = staticmethod(lambda value: value)


def _moments(unit_us: int) -> st.SearchStrategy[datetime]:
    most = 10**15 // unit_us
    return st.integers(-most, most).map(lambda n: _EPOCH + timedelta(microseconds=n * unit_us))


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
PLAIN = (
    Kind("boolean", st.booleans()),
    Kind("int", st.integers(-(2**31), 2**31 - 1)),
    Kind("long", st.integers(-(2**63), 2**63 - 1)),
    Kind("float", st.floats(width=32, allow_nan=False)),
    Kind("double", st.floats(allow_nan=False)),
    Kind("bytes", st.binary(max_size=12)),
    Kind("string", _text),
    Kind({"type": "int", "logicalType": "date"}, st.dates(date(1900, 1, 1))),
    Kind(
        {"type": "int", "logicalType": "time-millis"},
        st.integers(0, 86_399).map(lambda s: time(s // 3600, s // 60 % 60)),
    ),
    Kind({"type": "long", "logicalType": "timestamp-micros"}, _moments(1)),
    Kind({"type": "long", "logicalType": "timestamp-millis"}, _moments(1_000)),
    Kind(
        {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3},
        st.integers(-(10**20) + 1, 10**20 - 1).map(lambda n: Decimal(n).scaleb(-3)),
    ),
    Kind(
        {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 0},
        st.integers(-(10**27), 10**27).map(Decimal),
    ),
)


def _named(number: int) -> Sequence[Kind]:
    symbols = ["A", "B", "C"]
    return (
        Kind({"type": "enum", "name": f"e{number}", "symbols": symbols}, st.sampled_from(symbols)),
        Kind({"type": "fixed", "name": f"f{number}", "size": 5}, st.binary(min_size=5, max_size=5)),
        Kind(
            {"type": "fixed", "name": f"d{number}", "size": 6, "logicalType": "decimal", "precision": 12, "scale": 2},
            st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-2)),
        ),
    )


@st.composite
def kinds(draw: st.DrawFn, depth: int = 3) -> Kind:
    number = draw(st.integers(0, 10**9))
    shape = draw(st.sampled_from(["plain", "plain", "named", "optional", "array", "map", "record", "union"]))
    if depth == 0 or shape == "plain":
        return draw(st.sampled_from(PLAIN))
    if shape == "named":
        return draw(st.sampled_from(_named(number)))
    if shape == "record":
        return draw(records(number, depth))
    if shape == "union":
        return Kind(["null", "string", "long"], st.one_of(st.none(), _text, st.integers(0, 9)), _member)
    inner = draw(kinds(depth - 1))
    if shape == "array":
        return Kind({"type": "array", "items": inner.schema}, st.lists(inner.values, max_size=4), _each(inner))
    if shape == "map":
        schema = {"type": "map", "values": inner.schema}
        return Kind(schema, st.dictionaries(_text, inner.values, max_size=3), _items(inner))
    if isinstance(inner.schema, list):
        return inner
    schema = ["null", inner.schema] if number % 2 else [inner.schema, "null"]
    return Kind(schema, st.one_of(st.none(), inner.values), _optional(inner))


def _member(value: Any) -> Any:
    if value is None:
        return None
    return {"member0": value, "member1": None} if isinstance(value, str) else {"member0": None, "member1": value}


def _each(inner: Kind) -> Any:
    return lambda values: [inner.read(value) for value in values]


def _items(inner: Kind) -> Any:
    return lambda values: [(key, inner.read(value)) for key, value in values.items()]


def _optional(inner: Kind) -> Any:
    return lambda value: None if value is None else inner.read(value)


@st.composite
def records(draw: st.DrawFn, number: int = 0, depth: int = 3) -> Kind:
    fields = draw(st.lists(kinds(depth - 1), min_size=1, max_size=4))
    named = {f"f{i}": field for i, field in enumerate(fields)}
    schema = {
        "type": "record",
        "name": f"r{number}_{depth}",
        "fields": [{"name": name, "type": field.schema} for name, field in named.items()],
    }
    values = st.fixed_dictionaries({name: field.values for name, field in named.items()})
    return Kind(schema, values, lambda row: {name: field.read(row[name]) for name, field in named.items()})


def decoded(format_: Avro, values: Sequence[bytes | None]) -> DecodedRecords:
    return format_.create_decoder().decode(pa.array(values, pa.binary()))


def unique(schema: Any, seen: set[str]) -> bool:
    """Whether no name is defined twice: the strategy draws names at random."""
    if isinstance(schema, list):
        return all(unique(one, seen) for one in schema)
    if not isinstance(schema, dict):
        return True
    if "name" in schema and schema["type"] in ("record", "enum", "fixed"):
        if schema["name"] in seen:
            return False
        seen.add(schema["name"])
    inner = [schema.get("items", "int"), schema.get("values", "int"), *(f["type"] for f in schema.get("fields", ()))]
    return all(unique(one, seen) for one in inner)


@_settings
@given(st.data())
def test_records_of_any_schema_are_read_and_written_as_fastavro_does(data: st.DataObject) -> None:
    kind = data.draw(records().filter(lambda one: unique(one.schema, set())))
    rows = data.draw(st.lists(kind.values, max_size=12))
    values = written(kind.schema, rows)
    format_ = Avro(json.dumps(kind.schema))
    found = decoded(format_, values)
    assert not found.bad and found.records is None
    found.batch.validate(full=True)
    assert found.batch.to_pylist() == [kind.read(row) for row in rows]
    format_.check_encodable(found.batch.schema)
    encoded = format_.create_encoder(found.batch.schema).encode(found.batch).to_pylist()
    parsed = fastavro.parse_schema(json.loads(json.dumps(kind.schema)))
    assert [fastavro.schemaless_reader(io.BytesIO(one), parsed) for one in encoded] == [
        fastavro.schemaless_reader(io.BytesIO(one), parsed) for one in values
    ]


@_settings
@given(st.data())
def test_no_bytes_make_the_decoder_fail(data: st.DataObject) -> None:
    """Bytes are cut, replaced and inserted; every record is read or refused, and good neighbours are read."""
    kind = data.draw(records().filter(lambda one: unique(one.schema, set())))
    rows = data.draw(st.lists(kind.values, min_size=2, max_size=4))
    good = written(kind.schema, rows)
    broken = [
        one[:at] + put + one[at + cut :]
        for one, at, cut, put in data.draw(
            st.lists(
                st.tuples(st.sampled_from(good), st.integers(0, 40), st.integers(0, 3), st.binary(max_size=9)),
                max_size=8,
            )
        )
    ]
    values = [good[0], *broken, good[1]]
    found = decoded(Avro(json.dumps(kind.schema)), values)
    found.batch.validate(full=True)
    bad = {one.index for one in found.bad}
    assert bad <= set(range(1, len(values) - 1))
    assert len(found.batch) == len(values) - len(bad)
    # Damaged rows are not looked at: Python has no value for a time in the year 300000.
    ends = [*found.batch.slice(0, 1).to_pylist(), *found.batch.slice(len(found.batch) - 1).to_pylist()]
    assert ends == [kind.read(rows[0]), kind.read(rows[1])]


ONE = {"type": "record", "name": "One", "fields": [{"name": "n", "type": "long"}]}


@pytest.mark.parametrize(
    ("type_", "record", "reason"),
    [
        ("long", b"\xff" * 10, "longer than its type"),
        ("long", b"\x80" * 9 + b"\x02", "longer than its type"),
        ("long", b"\x80", "ends before"),
        ("int", b"\x80\x80\x80\x80\x10", "longer than its type"),
        ("boolean", b"\x02", "neither 0 nor 1"),
        ("double", b"\x00" * 7, "ends before"),
        ("string", b"\x01", "a length is negative"),
        ("string", b"\x08abc", "beyond the end"),
        ("string", b"\x04\xff\xfe", "not UTF-8"),
        (["null", "int"], b"\x04", "not in its union"),
        (["null", "int", "string"], b"\x06", "not in its union"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02", "a symbol"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}, b"\x02\x64", "too many digits"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}, b"\x00", "no bytes"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 0}, b"\x22\x01" + b"\0" * 16, "digits"),
        ({"type": "int", "logicalType": "time-millis"}, b"\x01", "within a day"),
        ({"type": "long", "logicalType": "time-micros"}, b"\x80\x80\xa6\xfa\xa9\x05", "within a day"),
        ({"type": "array", "items": "null"}, b"\x80\x80\x80\x80\x80\x40\x00", "more elements"),
        ({"type": "array", "items": "int"}, b"\x02", "ends before"),
        ({"type": "array", "items": "string"}, b"\x04\x02a\x02\xff\x00", "not UTF-8"),
        ("int", b"\x02\x02", "bytes follow"),
    ],
)
def test_a_bad_record_has_a_reason_and_leaves_its_neighbours(type_: Any, record: bytes, reason: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}, {"name": "b", "type": type_}]}
    kind = type_[0] if isinstance(type_, list) else type_["type"] if isinstance(type_, dict) else type_
    plain = {"enum": "A", "array": [], "bytes": Decimal(1), "boolean": True, "double": 1.5, "string": "é", "null": None}
    good = written(schema, [{"a": 7, "b": plain.get(kind, 3)}])[0]
    found = decoded(Avro(json.dumps(schema)), [good, b"\x02" + record, good])
    (bad,) = found.bad
    assert bad.index == 1 and reason in bad.reason
    assert found.records is not None and found.records.to_pylist() == [0, 2]
    assert found.batch.column("a").to_pylist() == [7, 7]


def test_a_list_in_blocks_is_read() -> None:
    """Writers may split a list, and write the size of a block after a negative number of elements."""
    schema = {"type": "record", "name": "R", "fields": [{"name": "l", "type": {"type": "array", "items": "long"}}]}
    found = decoded(Avro(json.dumps(schema)), [b"\x02\x02\x03\x04\x04\x06\x00"])
    assert found.batch.to_pylist() == [{"l": [1, 2, 3]}]


def test_a_list_may_have_elements_without_bytes() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "l", "type": {"type": "array", "items": "null"}}]}
    values = written(schema, [{"l": [None] * SPARE_ELEMENTS}, {"l": []}])
    assert [len(row["l"]) for row in decoded(Avro(json.dumps(schema)), values).batch.to_pylist()] == [SPARE_ELEMENTS, 0]


def test_more_elements_than_expected_are_read_in_a_second_pass() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "l", "type": {"type": "array", "items": "string"}}]}
    rows = [{"l": [f"x{i}" for i in range(n)]} for n in (0, 500, 3, 0, 77)]
    decoder = Avro(json.dumps(schema)).create_decoder()
    for _ in range(2):
        assert decoder.decode(pa.array(written(schema, rows), pa.binary())).batch.to_pylist() == rows


@pytest.mark.parametrize("schema", ['"long"', "long", '["null", "long"]', '{"type": "long"}'])
def test_a_schema_that_is_no_record_gives_one_column(schema: str) -> None:
    """Keys often have such a schema."""
    format_ = Avro(schema, column="id")
    optional = schema.startswith("[")
    values = [b"\x02\x0a" if optional else b"\x0a", None]
    found = decoded(format_, values)
    assert found.batch.to_pylist() == [{"id": 5}, {"id": None}]
    assert format_.create_encoder(found.batch.schema).encode(found.batch.slice(0, 1)).to_pylist() == values[:1]


def test_a_schema_in_a_file_is_pinned_with_its_text(tmp_path: Path) -> None:
    """S5.5: the job keeps the schema of its first build, whatever the file holds later."""
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(ONE))
    format_ = Avro(str(file))
    schema = format_.schema()
    found = format_.found_schema()
    assert found is not None and found.where == str(file)
    file.write_text('"string"')
    assert format_.schema() == schema
    assert Avro(file).with_found_schema(found).schema() == schema
    assert Avro(file).schema() != schema


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"nothing\.avsc"):
        Avro(tmp_path / "nothing.avsc").schema()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "not JSON"),
        ('{"type": "record", "name": "R", "fields": [{"name": "a", "type": "number"}]}', "'number' is not defined"),
        ('{"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}', "contains itself"),
        (
            '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "a", "type": "int"}]}',
            "twice",
        ),
        ('{"type": "enum", "name": "E", "symbols": []}', "no symbols"),
        ('["int", "int"]', "twice"),
        ('{"type": "fixed", "name": "F", "size": -1}', "size"),
    ],
)
def test_an_invalid_schema_is_refused(schema: str, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        Avro(schema).schema()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs a schema"),
        ({"subject": "a"}, "needs a schema"),
        ({"schema": '"int"', "register": True}, "needs a schema"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Avro(**options)


@pytest.mark.parametrize(
    ("column", "type_", "message"),
    [
        (pa.array([1.5]), "long", "double cannot be written as long"),
        (pa.array([2**40]), "int", "int64 cannot be written as int"),
        (pa.array([1], pa.uint64()), "long", "uint64 cannot"),
        (pa.array(["a"]), "bytes", "string cannot"),
        (pa.array([[1]]), "long", "list"),
        (pa.array([{"y": 1}]), {"type": "record", "name": "X", "fields": [{"name": "z", "type": "int"}]}, "'z'"),
        (pa.array([Decimal("1.23")]), {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 1}, "loss"),
        (pa.array([1], pa.timestamp("us")), {"type": "long", "logicalType": "timestamp-micros"}, "loss"),
    ],
)
def test_columns_that_would_lose_something_are_refused(column: pa.Array, type_: Any, message: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": type_}]}
    with pytest.raises(PipelineError, match=message):
        Avro(json.dumps(schema)).check_encodable(pa.schema([("a", column.type)]))


@pytest.mark.parametrize(
    ("column", "type_"),
    [
        (pa.array([1, None]), "long"),
        (pa.array(["A", "C"]), {"type": "enum", "name": "E", "symbols": ["A", "B"]}),
        (pa.array([b"abc", b"a"]), {"type": "fixed", "name": "F", "size": 3}),
        (pa.array([1_000, 1_001], pa.timestamp("us", "UTC")), {"type": "long", "logicalType": "timestamp-millis"}),
        (pa.array([[1], [None]]), {"type": "array", "items": "long"}),
        (
            pa.array([Decimal(1), Decimal(200)], pa.decimal128(4, 0)),
            {"type": "fixed", "name": "D", "size": 1, "logicalType": "decimal", "precision": 4, "scale": 0},
        ),
    ],
)
def test_a_row_that_the_schema_does_not_accept_is_an_error_that_names_the_column(column: pa.Array, type_: Any) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "amount", "type": type_}]}
    batch = pa.record_batch({"amount": column})
    format_ = Avro(json.dumps(schema))
    format_.check_encodable(batch.schema)
    encoder = format_.create_encoder(batch.schema)
    with pytest.raises(PipelineError, match="amount"):
        encoder.encode(batch)
    assert len(encoder.encode(batch.slice(0, 1))) == 1


def test_columns_are_widened_and_missing_fields_get_their_default() -> None:
    fields = [
        {"name": "a", "type": ["null", "long"]},
        {"name": "b", "type": "double"},
        {"name": "c", "type": "string", "default": "none"},
        {"name": "d", "type": ["int", "null", "string"], "default": 4},
        {"name": "e", "type": ["null", "int", "long"]},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ]
    schema = {"type": "record", "name": "R", "fields": fields}
    columns = {
        "a": pa.array([1, None], pa.int8()),
        "b": pa.array([1.5, 2.5], pa.float32()),
        "e": pa.array([2**40, None]),
        "t": pa.array([1, 2], pa.timestamp("ms", "UTC")),
    }
    batch = pa.record_batch(columns)
    format_ = Avro(json.dumps(schema))
    format_.check_encodable(batch.schema)
    values = format_.create_encoder(batch.schema).encode(batch).to_pylist()
    read = [fastavro.schemaless_reader(io.BytesIO(value), fastavro.parse_schema(dict(schema))) for value in values]
    assert [tuple(row.values())[:5] for row in read] == [(1, 1.5, "none", 4, 2**40), (None, 2.5, "none", 4, None)]
    assert [row["t"] - _EPOCH for row in read] == [timedelta(milliseconds=1), timedelta(milliseconds=2)]


def test_other_columns_than_the_schema_has_are_refused() -> None:
    with pytest.raises(PipelineError, match="no field 'extra'"):
        Avro(json.dumps(ONE)).check_encodable(pa.schema([("n", pa.int64()), ("extra", pa.int64())]))


def test_a_large_batch_is_encoded_and_decoded() -> None:
    batch = pa.record_batch({"n": np.arange(300_000) * 7_919})
    format_ = Avro(json.dumps(ONE))
    values = format_.create_encoder(batch.schema).encode(batch)
    assert format_.create_decoder().decode(values).batch.column("n").equals(batch.column("n"))


def _nested(levels: int, kind: str) -> str:
    """A record in whose field lists, maps or records are inside each other. The record counts as a level."""
    inner = '"int"'
    for level in range(levels - 2):
        if kind == "record":
            field = f'{{"name": "f", "type": ["null", {inner}]}}'
            inner = f'{{"type": "record", "name": "R{level}", "fields": [{field}]}}'
        else:
            inner = f'{{"type": "{kind}", "{"items" if kind == "array" else "values"}": ["null", {inner}]}}'
    return f'{{"type": "record", "name": "Top", "fields": [{{"name": "v", "type": {inner}}}]}}'


@pytest.mark.parametrize("kind", ["array", "map", "record"])
def test_a_schema_may_nest_types_up_to_a_limit(kind: str) -> None:
    """Beyond it, Python's stack would end in some place or other."""
    format_ = Avro(_nested(MAX_NESTING, kind))
    found = decoded(format_, [b"\0"])  # no element, or null
    assert found.batch.num_rows == 1 and not found.bad
    encoder = format_.create_encoder(format_.schema())
    assert decoded(format_, encoder.encode(found.batch).to_pylist()).batch.equals(found.batch)
    for levels in (MAX_NESTING + 1, 500, 20_000):
        with pytest.raises(PipelineError, match=f"nests more than {MAX_NESTING} types"):
            Avro(_nested(levels, kind)).schema()


def test_types_that_are_used_by_name_count_as_nested() -> None:
    fields = [{"name": "f0", "type": {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}}]
    for n in range(1, MAX_NESTING):
        inner = {"type": "record", "name": f"R{n}", "fields": [{"name": "x", "type": f"R{n - 1}"}]}
        fields.append({"name": f"f{n}", "type": inner})
    with pytest.raises(PipelineError, match=f"nests more than {MAX_NESTING} types"):
        Avro(json.dumps({"type": "record", "name": "Top", "fields": fields})).schema()
