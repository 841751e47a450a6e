"""Json: the same rules as for JSON files, one object in each value, and bad values among good ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tidegate import Files
from tidegate.connectors.formats.interface import DecodedRecords
from tidegate.connectors.interface import SourceContext
from tidegate.errors import OptionError, PipelineError
from tidegate.formats import Json

_settings = settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
        ("p", pa.decimal128(12, 3)),
        ("l", pa.list_(pa.string())),
        ("o", pa.struct([("n", pa.int32()), ("s", pa.string())])),
    ]
)


def decoded(format_: Json, values: Sequence[bytes | None]) -> DecodedRecords:
    return format_.create_decoder().decode(pa.array(values, pa.binary()))


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=15)
_ROW = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "x": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "s": st.none() | _text,
        "b": st.none() | st.booleans(),
        "d": st.none() | st.dates(),
        "t": st.none() | st.datetimes().map(lambda moment: moment.replace(year=max(moment.year, 1700))),
        "p": st.none() | st.decimals(-(10**8), 10**8, places=3),
        "l": st.none() | st.lists(st.none() | _text, max_size=3),
        "o": st.none() | st.fixed_dictionaries({"n": st.none() | st.integers(-9, 9), "s": st.none() | _text}),
    }
)


@_settings
@given(st.lists(_ROW, max_size=20))
def test_rows_are_written_and_read_again(rows: list[dict[str, Any]]) -> None:
    batch = pa.RecordBatch.from_pylist(rows, schema=SCHEMA)
    format_ = Json(SCHEMA)
    format_.check_encodable(batch.schema)
    values = format_.create_encoder(batch.schema).encode(batch)
    assert [json.loads(value) is not None for value in values.to_pylist()] == [True] * len(rows)
    found = format_.create_decoder().decode(values)
    assert found.batch.equals(batch) and not found.bad and found.records is None


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_whole_floats_are_written_as_json_numbers(kind: pa.DataType) -> None:
    """Arrow writes `1e+10` and `1000000000`; only the latter gets a `.0`."""
    numbers = [sign * digit * 10.0**power for sign in (1, -1) for digit in (1, 3, 7) for power in range(-20, 25)]
    column = pa.array(numbers, pa.float64()).cast(kind)
    values = Json({"x": "double"}).create_encoder(pa.schema([("x", kind)])).encode(pa.record_batch({"x": column}))
    texts = [value.decode() for value in values.to_pylist()]
    assert pa.array([json.loads(text)["x"] for text in texts], kind).equals(column)
    assert all(isinstance(json.loads(text)["x"], float) for text in texts)


VALUES = [
    b'{"n": 1, "x": 2, "s": "a", "b": true, "d": "2026-01-02", "t": "2026-01-02T03:04:05Z", "p": 1.5}',
    b'{"n": 1, "unknown": {"n": "x"}}',
    b'{"n": "1"}',
    b'{"n": 1.0}',
    b'{"n": 1e2}',
    b'{"n": 9223372036854775808}',
    b'{"n": -9223372036854775808}',
    b'{"x": 123456789012345678901234567890}',
    b'{"x": 1e400}',
    b'{"n": 5, "unknown": 1e400}',
    b'{"s": 12}',
    b'{"s": 12345678901234567890123}',
    b'{"s": 1.50}',
    b'{"s": true}',
    b'{"s": null, "n": null}',
    b'{"n": 1, "n": 2}',
    b'{"n": 1, "N": 2}',
    b'{"b": 0}',
    b'{"d": 20455}',
    b'{"d": "20260102"}',
    b'{"t": 5}',
    b'{"t": "2026-01-02T03:04:05"}',
    b'{"t": "2026-01-02T03:04:05+01:00"}',
    b'{"p": "1.25"}',
    b'{"p": 1.2345}',
    b'{"l": ["a", 1]}',
    b'{"l": []}',
    b'{"l": {}}',
    b'{"o": {"n": 1, "s": "x", "z": 1}}',
    b'{"o": {}}',
    b'{"o": [1]}',
    b'{"s": "\\ud83d\\ude00 \\u00e9"}',
    b'{"s": "\\ud83d"}',
    b'{"s": "\xc3\xa9"}',
    b'{"s": "\xc3"}',
    b"[1]",
    b'{"n": 1,}',
    b'{"n": NaN}',
    b"{} {}",
]


@pytest.mark.parametrize("value", VALUES)
def test_a_record_means_the_same_as_a_line_of_a_file(value: bytes, tmp_path: Path) -> None:
    """Same row, or refused by both. Only several objects on a line are allowed in a file."""
    (tmp_path / "in.jsonl").write_bytes(value + b"\n")
    source = Files(str(tmp_path / "in.jsonl"), schema=SCHEMA, on_bad_record="skip")
    reader = source.create_reader(SourceContext("r", 0, 1))
    reader.add_splits(source.discover(1))
    rows: list[Any] = []
    while (polled := reader.poll(0)).state != "end" or polled.batch is not None:
        rows += [] if polled.batch is None else polled.batch.to_pylist()
    found = decoded(Json(SCHEMA), [value])
    if value == b"{} {}":
        assert len(rows) == 2 and [one.reason for one in found.bad] == ["the record has several JSON objects"]
    else:
        assert str(found.batch.to_pylist()) == str(rows)
        assert len(found.bad) == 1 - len(rows)


@pytest.mark.parametrize("halves", [(b'{"n": 1, "o": ', b'{"n": 2}}'), (b'{"o": {}', b'{"n": 1}'), (b'{"s": "', b'"}')])
def test_half_an_object_is_not_completed_by_its_neighbour(halves: tuple[bytes, bytes]) -> None:
    values = [b'{"n": 1}', *halves, b'{"n": 3}{"n": 4}', b'{"n": 5}']
    found = decoded(Json(SCHEMA), values)
    alone = [index for index, value in enumerate(values) if not decoded(Json(SCHEMA), [value]).bad]
    assert found.records is not None and found.records.to_pylist() == alone
    assert {0, 4} <= set(alone) and 3 not in alone


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "the record is not one JSON object"),
        (b'{"n": 1}{"n": 2}', "the record has several JSON objects"),
        (b'{"n" 1}', "not JSON: expecting ':' delimiter (character 5)"),
        (b'{"n": "secret"}', "field 'n' has a value that is no int64"),
        (b'{"o": {"n": "secret"}}', "field 'o' has a value that is no struct<n: int32, s: string>"),
        (b'{"n": 1, "n": 2}', "a field is repeated in the record"),
        (b'{"s": "\xff"}', "the value is not UTF-8 text"),
        (b'{"d": "secret"}', "field 'd' has a value that is no date32[day]"),
        (b'{"q": 1e999}', "a number is too big for a 64-bit float"),
    ],
)
def test_the_reason_is_named_and_does_not_quote_the_record(value: bytes, reason: str) -> None:
    assert [one.reason for one in decoded(Json(SCHEMA), [b"{}", value]).bad] == [reason]


def test_a_required_field_must_be_there() -> None:
    format_ = Json(pa.schema([pa.field("n", pa.int64(), nullable=False), ("s", pa.string())]))
    found = decoded(format_, [b'{"n": 1}', b'{"s": "a"}', b'{"n": null}', None, b'{"n": 2}'])
    assert found.batch.column("n").to_pylist() == [1, 2]
    assert [one.index for one in found.bad] == [1, 2, 3]
    assert found.bad[0].reason == "field 'n' is missing or null"


def test_a_record_without_a_value_is_a_row_of_nulls() -> None:
    found = decoded(Json({"n": "int64"}), [None, b'{"n": 1}', None])
    assert found.batch.to_pylist() == [{"n": None}, {"n": 1}, {"n": None}] and found.records is None


def test_new_fields_are_refused_on_demand() -> None:
    format_ = Json({"n": "int64"}, on_new_field="refuse")
    found = decoded(format_, [b'{"n": 1}', b'{"n": 2, "m": 3}', b'{"n": 4}'])
    assert found.batch.to_pylist() == [{"n": 1}, {"n": 4}]
    assert [(one.index, "does not declare" in one.reason) for one in found.bad] == [(1, True)]


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({}, "no column"),
        ({"n": "integer"}, "'integer' of column 'n' is unknown"),
        (pa.schema([("n", pa.int64()), ("n", pa.int64())]), "twice"),
        (pa.schema([("m", pa.map_(pa.string(), pa.int64()))]), "cannot be read as map"),
        (pa.schema([("o", pa.struct([pa.field("n", pa.int64(), nullable=False)]))]), "nested field"),
        (["n"], "the schema is a list"),
    ],
)
def test_a_schema_that_cannot_be_read_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Json(schema)


def test_types_have_names() -> None:
    types = {"a": "int64", "b": "timestamp[us, UTC]", "c": "decimal(10, 2)", "d": pa.list_(pa.string()), "e": "date32"}
    expected = [pa.int64(), pa.timestamp("us", "UTC"), pa.decimal128(10, 2), pa.list_(pa.string()), pa.date32()]
    assert Json(types).schema() == pa.schema(list(zip(types, expected)))


def test_columns_without_a_form_in_json_are_refused() -> None:
    with pytest.raises(PipelineError, match="'raw'"):
        Json({"n": "int64"}).check_encodable(pa.schema([("n", pa.int64()), ("raw", pa.binary())]))


def test_many_bad_records_are_found_one_by_one() -> None:
    values = [b'{"n": %d}' % n if n % 3 else b'{"n": "%d"}' % n for n in range(1_000)]
    found = decoded(Json({"n": "int64"}), values)
    assert [one.index for one in found.bad] == list(range(0, 1_000, 3))
    assert found.batch.column("n").to_pylist() == [n for n in range(1_000) if n % 3]


def test_a_decimal_with_a_huge_negative_exponent_is_a_bad_record() -> None:
    """Arrow's own parser would end the process."""
    values = [b'{"d": 1}', b'{"d": 1e-99999999}', b'{"d": "2E-1234567"}', b'{"d": 5e-2, "s": "x e-99999999"}']
    found = decoded(Json({"d": "decimal(10, 2)"}), values)
    assert [one.index for one in found.bad] == [1, 2]
    assert found.batch.column("d").to_pylist() == [Decimal("1.00"), Decimal("0.05")]


BEYOND = [
    (pa.float32(), b"1e39"),
    (pa.float32(), b"-3.5e38"),
    (pa.list_(pa.float32()), b"[1, 1e39]"),
    (pa.time64("us"), b"86400000000"),
    (pa.time64("us"), b"-1"),
    (pa.time32("s"), b"86400"),
    (pa.time32("ms"), b'"24:00:00"'),
    (pa.date32(), b'"0000-12-31"'),
    (pa.date32(), b"2932897"),
    (pa.date32(), b"99999999"),
    (pa.date32(), b"2147483648"),
    (pa.timestamp("us"), b'"0000-01-01T00:00:00"'),
    (pa.timestamp("s", "UTC"), b'"0001-01-01T00:00:00+23:59"'),
    (pa.timestamp("ms", "UTC"), b'"9999-12-31T23:59:59-00:01"'),
    (pa.timestamp("ns"), b'"1600-01-01T00:00:00"'),
    (pa.struct([("t", pa.time32("s"))]), b'{"t": 90000}'),
]
WITHIN = [
    (pa.float32(), b"3.4028234e38"),
    (pa.float32(), b"1e-50"),
    (pa.time64("us"), b"86399999999"),
    (pa.time32("s"), b"0"),
    (pa.date32(), b'"0001-01-01"'),
    (pa.date32(), b'"9999-12-31"'),
    (pa.date32(), b"-719162"),
    (pa.timestamp("us", "UTC"), b'"9999-12-31T23:59:59.999999Z"'),
    (pa.timestamp("ns"), b'"2262-01-01T00:00:00"'),
    (pa.struct([("t", pa.time32("s"))]), b'{"t": null}'),
    (pa.struct([("t", pa.time32("s"))]), b"null"),
]


@pytest.mark.parametrize(("kind", "value", "is_good"), [(*b, False) for b in BEYOND] + [(*w, True) for w in WITHIN])
def test_a_value_beyond_the_range_of_its_type_is_a_bad_record(kind: pa.DataType, value: bytes, is_good: bool) -> None:
    """Arrow makes infinity of `1e39`, and times that Python and Spark do not have."""
    found = decoded(Json({"v": kind}), [b"{}", b'{"v": %b}' % value, b"{}"])
    assert [one.index for one in found.bad] == ([] if is_good else [1])
    if not is_good:
        assert found.bad[0].reason.startswith(f"field 'v' has a value that is no {kind}") or value.isdigit()


REPEATS = [
    b'{"n": 1, "n": 2}',
    b'{"x": 1, "x": 2}',
    b'{"n": 1, "x": {"y": 1, "z": 2, "y": 3}}',
    b'{"x": [{"a": 1}, {"a": 1, "a": 2}]}',
    b'{"x": 1, "\\u0078": 2}',
    b'{"o": {"n": 1, "other": 1, "other": 2}}',
    b'{"": 1, "": 2}',
    b'{"a name of more than sixteen bytes": 1, "a name of more than sixteen bytes": 2}',
]
NO_REPEATS = [
    b'{"x": {"x": {"x": 1}}, "y": {"x": 1}}',
    b'{"x": [{"a": 1}, {"a": 1}]}',
    b'{"x": "\\"x\\": 1, \\"x\\": 2", "y": "x"}',
    b'{"x": ":", "y": "{\\"x\\":1", "z": "\\\\"}',
    b'{"\\u0078": 1, "\\\\u0078": 2}',
    b'{"a name of more than sixteen bytes": 1, "a name of more than SIXTEEN bytes": 2}',
    b'{"x": 1, "X": 2, "n": 3}',
]


@pytest.mark.parametrize("around", [b"{}", b'{"x": 1, "y": 2}', b'{"q": "text with : and {", "x": 5, "n": 1}'])
@pytest.mark.parametrize(("value", "is_bad"), [(v, True) for v in REPEATS] + [(v, False) for v in NO_REPEATS])
def test_a_repeated_field_is_refused_wherever_it_is(value: bytes, is_bad: bool, around: bytes) -> None:
    """Declared or not, and whatever records stand beside it."""
    format_ = Json(pa.schema([("n", pa.int64()), ("o", pa.struct([("n", pa.int64())]))]))
    for values in ([value], [around] * 20 + [value] + [around] * 20):
        found = decoded(format_, values)
        assert [one.index for one in found.bad] == ([values.index(value)] if is_bad else [])
        assert {one.reason for one in found.bad} <= {"a field is repeated in the record"}


def _object(members: list[tuple[str, str]]) -> str:
    return "{" + ", ".join(f'"{name}": {value}' for name, value in members) + "}"


_NAMES = ["a", "b", "abcdefgh", "abcdefghi", "é", "x\\u0041", "xA", '\\"', "", "a much longer name, with : and {"]
_json_text = st.recursive(
    st.sampled_from(["1", "-2.5e-7", "null", "true", '"x"', '"a\\"b\\":1,"', '"\\\\"', '":{}"', '"0123456789"', "[]"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda many: f"[{','.join(many)}]")
        | st.lists(st.tuples(st.sampled_from(_NAMES), inner), max_size=4).map(_object)
    ),
    max_leaves=6,
)


class _RepeatedError(Exception):
    pass


def _repeats(text: str) -> bool:
    """By Python's parser."""

    def checked(members: list[tuple[str, Any]]) -> None:
        if len(dict(members)) < len(members):
            raise _RepeatedError

    try:
        json.loads(text, object_pairs_hook=checked)
    except _RepeatedError:
        return True
    return False


@_settings
@given(
    st.lists(st.lists(st.tuples(st.sampled_from(_NAMES), _json_text), max_size=4).map(_object), min_size=1, max_size=8),
    st.lists(st.integers(0, 7), max_size=40),
)
def test_exactly_records_with_a_repeated_field_are_refused(kinds: list[str], order: list[int]) -> None:
    """Equal records in a row take another path than the first ones."""
    values = [kinds[n % len(kinds)] for n in order]
    found = decoded(Json({"unrelated": "int64"}), [value.encode() for value in values])
    assert [one.index for one in found.bad] == [n for n, value in enumerate(values) if _repeats(value)]


@pytest.mark.parametrize("value", [b'{"n": 1, "s": "\\ud800"}', b'{"n": 1, "x": ["\\udc00 "]}', b'{"\\ud800": 1}'])
def test_half_of_a_surrogate_pair_is_named_and_no_other_field(value: bytes) -> None:
    (bad,) = decoded(Json({"d": "date32", "n": "int64", "s": "string"}), [b"{}", value]).bad
    assert bad.reason == "a text has half of a surrogate pair, which is no character"
