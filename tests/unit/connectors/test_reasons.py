"""Reasons of bad records name the field and the type, and never quote the record: it may hold secrets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from tests.unit.connectors.files_read import read_all, write
from tidegate import Files
from tidegate.formats import Avro, Debezium, Json

SECRET = "hunter2"
TYPES = {
    "i": pa.int64(),
    "f": pa.float64(),
    "b": pa.bool_(),
    "d": pa.date32(),
    "t": pa.timestamp("us"),
    "z": pa.timestamp("us", "UTC"),
    "h": pa.time32("s"),
    "p": pa.decimal128(9, 2),
}
SCHEMA = pa.schema(list(TYPES.items()))


def planted(reasons: Sequence[str]) -> list[str]:
    return [reason for reason in reasons if SECRET in reason or "4711" in reason or not reason]


@pytest.mark.parametrize(
    "value", [SECRET, "4711-4711", f"2026-01-01T10:00:00{SECRET}", "4711.4711471147114711", "4711e-99999"]
)
@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("inferred", [True, False])
def test_reasons_of_text_files_quote_nothing(tmp_path: Path, name: str, value: str, inferred: bool) -> None:
    good = {"i": 1, "f": 1.5, "b": True, "d": "2026-01-02", "t": "2026-01-02T03:04:05", "h": "03:04:05", "p": 2.5}
    good["z"] = "2026-01-02T03:04:05Z"
    bad = {**good, name: value}
    write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in (good, bad)))
    write(tmp_path / "a.csv", "\n".join([",".join(good), *(",".join(map(str, row.values())) for row in (good, bad))]))
    for file in ("a.jsonl", "a.csv"):
        found = read_all(Files(tmp_path / file, schema=None if inferred else SCHEMA, on_bad_record="dead_letter"))
        assert not planted([row["reason"] for row in found.bad])


@pytest.mark.parametrize(
    "line", [f'{{"i": {SECRET}}}', f'{{"i": "{SECRET}', f'"{SECRET}"', f"{{}} {SECRET}", f'{{"{SECRET}": \\q}}']
)
def test_reasons_of_lines_that_are_not_json_quote_nothing(tmp_path: Path, line: str) -> None:
    write(tmp_path / "a.jsonl", f'{{"i": 1}}\n{line}\n')
    found = read_all(Files(tmp_path, schema=SCHEMA, on_bad_record="dead_letter"))
    assert len(found.bad) == 1 and not planted([row["reason"] for row in found.bad])
    decoded = Json(SCHEMA).create_decoder().decode(pa.array([b"{}", line.encode()], pa.binary()))
    assert len(decoded.bad) == 1 and not planted([bad.reason for bad in decoded.bad])


def test_a_line_with_too_many_fields_is_counted_and_not_quoted(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", f"i,f\n1,2\n1,2,{SECRET}\n")
    (bad,) = read_all(Files(tmp_path, on_bad_record="dead_letter")).bad
    assert bad["reason"] == "Expected 2 columns, got 3"


@pytest.mark.parametrize("digits", ["1e39", "-1e400", "4e38"])
def test_a_number_of_a_csv_file_does_not_become_infinite(tmp_path: Path, digits: str) -> None:
    """`inf` is a value of a float; digits must keep theirs."""
    write(tmp_path / "a.csv", f"f\n1\ninf\n-inf\n{digits}\n")
    found = read_all(Files(tmp_path, schema=pa.schema([("f", pa.float32())]), on_bad_record="dead_letter"))
    assert [row["f"] for row in found.rows] == [1.0, float("inf"), float("-inf")]
    assert [row["reason"] for row in found.bad] == ["column 'f' has a value that is no float in its range"]


@pytest.mark.parametrize(("kind", "text"), [(pa.date32(), "0000-01-01"), (pa.timestamp("s"), "0000-01-01 00:00:00")])
def test_a_date_of_a_csv_file_has_a_year(tmp_path: Path, kind: pa.DataType, text: str) -> None:
    write(tmp_path / "a.csv", f"d\n2026-01-02\n{text}\n")
    found = read_all(Files(tmp_path, schema=pa.schema([("d", kind)]), on_bad_record="dead_letter"))
    assert len(found.rows) == 1 and [row["reason"] for row in found.bad] == [
        f"column 'd' has a value that is no {kind} in its range"
    ]


def test_reasons_of_other_formats_quote_nothing() -> None:
    avro = Avro(json.dumps({"type": "record", "name": "R", "fields": [{"name": "s", "type": "string"}]}))
    found = avro.create_decoder().decode(
        pa.array([b"\x80" + SECRET.encode(), b"\x02\xff", SECRET.encode()], pa.binary())
    )
    events = [{"op": SECRET}, {"op": "c", "after": {"i": SECRET}}, {"op": "u", "after": {"i": 4711}}, SECRET]
    values = pa.array([json.dumps(event).encode() for event in events], pa.binary())
    changes = Debezium(Json({"i": "int64"})).create_decoder().decode(values)
    assert len(found.bad) == 3 and len(changes.bad) == 4
    assert not planted([bad.reason for bad in (*found.bad, *changes.bad)])
