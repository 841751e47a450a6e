"""The schema of files: columns that are missing or new, and numbers that would lose digits."""

from __future__ import annotations

import json
import re
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.connectors.files_read import read_all, write
from tidegate.connectors.files.source.files import Files
from tidegate.connectors.replay import Replay
from tidegate.errors import OptionError, PipelineError


def test_a_country_is_no_null_and_digits_stay_digits(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "country,zip,id,x\nNA,007,9223372036854775813,1.5\nDE,20095,1,2\n,,,\n")
    assert read_all(Files(tmp_path)).rows == [
        {"country": "NA", "zip": "007", "id": "9223372036854775813", "x": 1.5},
        {"country": "DE", "zip": "20095", "id": "1", "x": 2.0},
        {"country": None, "zip": None, "id": None, "x": None},
    ]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["1", "2"], pa.int64()),
        (["9223372036854775807", "-9223372036854775808"], pa.int64()),
        (["9223372036854775808"], pa.string()),
        (["9223372036854775808", "1.5"], pa.float64()),
        (["9007199254740993", "1.5"], pa.string()),
        (["0", "-0.5"], pa.float64()),
        (["-007"], pa.string()),
        (["00.5", "1.5"], pa.string()),
        (["0.30000000000000004", "1e-07"], pa.float64()),
        (["1.000000000000000056e-01"], pa.float64()),
        (["3.14159265358979323846"], pa.string()),
        (["1e400"], pa.string()),
        ([" 007", "8"], pa.string()),
        (['" 007"', "8"], pa.string()),
        ([" 0.1234567890123456789", "1.5"], pa.string()),
        (["\t9223372036854775808 ", "1"], pa.string()),
        ([" 7", "8\t"], pa.int64()),
        ([" 0.5 ", "\t1"], pa.float64()),
        (["0x00FF", "0x10"], pa.string()),
        ([" 0X1f", "1"], pa.string()),
    ],
)
def test_a_number_column_keeps_every_digit_or_is_text(tmp_path: Path, texts: list[str], expected: pa.DataType) -> None:
    write(tmp_path / "a.csv", "x\n" + "\n".join(texts))
    assert Files(tmp_path).schema().field("x").type == expected


def test_a_json_number_that_no_column_type_holds_is_text_in_structs_too(tmp_path: Path) -> None:
    write(
        tmp_path / "a.jsonl",
        '{"n": 9223372036854775813, "o": {"id": 18446744073709551616}, '
        '"l": [{"d": 3.14159265358979323846}], "x": 1.5}\n'
        '{"n": 7, "o": {"id": 1}, "l": [], "x": 2}\n',
    )
    assert read_all(Files(tmp_path)).rows == [
        {
            "n": "9223372036854775813",
            "o": {"id": "18446744073709551616"},
            "l": [{"d": "3.14159265358979323846"}],
            "x": 1.5,
        },
        {"n": "7", "o": {"id": "1"}, "l": [], "x": 2.0},
    ]


def test_a_json_number_beyond_a_float_is_text(tmp_path: Path) -> None:
    rows = '{"x": 1.5, "o": {"l": [-1e400]}, "t": "2026-01-02T10:00:00", "s": "say \\"1e400\\""}\n{"x": 1E+400}\n'
    write(tmp_path / "a.jsonl", rows)
    first = {"x": "1.5", "o": {"l": ["-1e400"]}, "t": datetime(2026, 1, 2, 10), "s": 'say "1e400"'}
    assert read_all(Files(tmp_path)).rows == [first, {"x": "1E+400", "o": None, "t": None, "s": None}]
    declared = pa.schema([("x", pa.string()), ("o", pa.struct([("l", pa.list_(pa.string()))]))])
    assert read_all(Files(tmp_path, schema=declared)).rows == [
        {"x": "1.5", "o": {"l": ["-1e400"]}},
        {"x": "1E+400", "o": None},
    ]


@pytest.mark.parametrize("bad", ['{"x": 01e400}', '{"x": 1.2.3e400}', '{"x": 1e400.5}', '{"x": 1e400x}'])
def test_what_is_no_json_is_a_bad_record_beside_a_number_beyond_a_float(tmp_path: Path, bad: str) -> None:
    write(tmp_path / "a.jsonl", '{"x": 1e400}\n' + bad + "\n")
    found = read_all(Files(tmp_path, on_bad_record="dead_letter"))
    assert (found.rows, [row["raw"].decode() for row in found.bad]) == ([{"x": "1e400"}], [bad])


@pytest.mark.parametrize(
    ("name", "head", "late", "said"),
    [
        (
            "csv",
            "zip\n1\n",
            "zip\n2\n007\n",
            r"b\.csv, offset 6.*column 'zip' has a number that would lose its leading zeros",
        ),
        ("csv", "zip\n1\n", "zip\n2\n 007\n", r"b\.csv, offset 6.*would lose its leading zeros"),
        ("csv", "id\n1\n", "id\n2\n0x10\n", r"b\.csv, offset 5.*would lose its hexadecimal form"),
        ("csv", "x\n1.5\n", "x\n 0.1234567890123456789\n", r"b\.csv, offset 2.*would lose digits"),
        ("csv", "x\n1.5\n", "x\n3.14159265358979323846\n", r"b\.csv, offset 2.*would lose digits"),
        ("csv", "n\n1\n", "n\n9223372036854775813\n", r"b\.csv, offset 2.*int64.*'9223372036854775813'"),
        (
            "jsonl",
            '{"x": 1.5}\n',
            '{"x": 3.14159265358979323846}\n',
            r"b\.jsonl, offset 0.*'x'.*more digits than a float",
        ),
        ("jsonl", '{"x": 1.5}\n', '{"x": 2}\n{"x": 1e400}\n', r"b\.jsonl, offset 9.*a number is too big"),
        ("jsonl", '{"n": 1}\n', '{"n": 9223372036854775813}\n', r"b\.jsonl, offset 0.*9223372036854775813"),
    ],
)
def test_digits_of_a_later_file_are_not_lost_in_silence(
    tmp_path: Path, name: str, head: str, late: str, said: str
) -> None:
    write(tmp_path / f"a.{name}", head)
    write(tmp_path / f"b.{name}", late)
    with pytest.raises(PipelineError, match=said):
        read_all(Files(tmp_path))


def test_a_declared_type_is_the_users_word(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "zip,x\n007,3.14159265358979323846\n")
    schema = pa.schema([("zip", pa.int64()), ("x", pa.float64())])
    assert read_all(Files(tmp_path, schema=schema)).rows == [{"zip": 7, "x": 3.141592653589793}]
    texts = pa.schema([("zip", pa.string()), ("x", pa.decimal128(38, 20))])
    assert str(read_all(Files(tmp_path, schema=texts)).rows[0]["x"]) == "3.14159265358979323846"


def test_a_json_number_is_read_into_a_declared_string_as_it_is_written(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"id": 1.50, "more": 1}\n{"id": "007"}\n')
    assert read_all(Files(tmp_path, schema=pa.schema([("id", pa.string())]))).rows == [{"id": "1.50"}, {"id": "007"}]


@pytest.mark.parametrize("zone", ["Z", "+02:00", "-0500", "+01"])
def test_a_json_time_with_a_zone_is_never_taken_for_one_without(tmp_path: Path, zone: str) -> None:
    plain, zoned = "2024-06-01T10:00:00", f"2024-06-01T10:00:00{zone}"
    first = {"t": plain, "z": zoned, "m": plain, "s": {"l": [plain, zoned], "t": plain, "n": None}}
    second = {"t": plain, "z": zoned, "m": zoned, "s": {"l": [], "t": None, "n": None}}
    write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in (first, second)))
    ten = datetime(2024, 6, 1, 10)
    instant = datetime.fromisoformat(zoned)
    assert read_all(Files(tmp_path)).rows == [
        first | {"t": ten, "z": instant, "s": {"l": [plain, zoned], "t": ten, "n": None}},
        second | {"t": ten, "z": instant},
    ]
    for name, late in (("b", first | {"t": zoned}), ("c", first | {"s": {"l": [], "t": zoned, "n": None}})):
        write(tmp_path / f"{name}.jsonl", json.dumps(first) + "\n" + json.dumps(late) + "\n")
        found = read_all(Files([tmp_path / "a.jsonl", tmp_path / f"{name}.jsonl"], on_bad_record="dead_letter"))
        assert (len(found.rows), [row["offset"] for row in found.bad]) == (3, [len(json.dumps(first)) + 1])
        assert re.search(r"field '[ts]' has a value that .*, expected no zone offset", found.bad[0]["reason"])


def test_a_declared_json_time_has_a_zone_where_its_type_has_one(tmp_path: Path) -> None:
    """As in CSV: neither is a zone dropped nor one assumed."""
    bare, zoned, number = (
        '{"t": "2024-06-01T10:00:00"}\n',
        '{"t": "2024-06-01T10:00:00+02:00"}\n',
        '{"t": 1717228800}\n',
    )
    write(tmp_path / "a.jsonl", bare + zoned + number)
    without = read_all(Files(tmp_path, schema=pa.schema([("t", pa.timestamp("s"))]), on_bad_record="dead_letter"))
    assert without.rows == [{"t": datetime(2024, 6, 1, 10)}]
    assert ["expected no zone" in b["reason"] or "a number cannot" in b["reason"] for b in without.bad] == [True, True]
    utc = read_all(Files(tmp_path, schema=pa.schema([("t", pa.timestamp("s", "UTC"))]), on_bad_record="dead_letter"))
    assert utc.rows == [{"t": datetime(2024, 6, 1, 8, tzinfo=UTC)}]
    assert [b["offset"] for b in utc.bad] == [0, len(bare + zoned)]


def test_a_json_number_is_no_time(tmp_path: Path) -> None:
    for name, found_as in (
        ("2024-06-01", date(2024, 6, 1)),
        ("2024-06-01T00:00:00.5", datetime(2024, 6, 1, 0, 0, 0, 500_000)),
    ):
        write(tmp_path / "a.jsonl", f'{{"t": "{name}", "s": "a"}}\n')
        write(tmp_path / "b.jsonl", f'{{"t": 20240602, "s": "a"}}\n{{"t": "{name}", "s": 7}}\n')
        found = read_all(Files(tmp_path, on_bad_record="skip"))
        assert found.rows == [{"t": found_as, "s": "a"}, {"t": found_as, "s": "7"}]
        write(tmp_path / "b.jsonl", '{"t": 20240602}\n')
        assert len(read_all(Files(tmp_path, on_missing_field="null", on_bad_record="skip")).rows) == 1


US, NS = pa.timestamp("us"), pa.timestamp("ns")
UTC_US, UTC_NS = pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["2026-01-02T10:00:00.123", None], US),
        (["2026-01-02 10:00:00.000000"], US),
        (["2026-01-02T10:00:00.123Z", "2026-01-02T10:00:00+02:00"], UTC_US),
        (["2026-01-02T10:00:00", "2026-01-02T10:00:00.5"], US),
        (["2026-01-02", "2026-01-02T10:00:00.5"], US),
        ([None, "2026-01-02T10:00:00.123456789", "2026-01-02"], NS),
        (["2026-01-02T10:00:00.123456789Z", "2026-01-02T10:00Z"], UTC_NS),
        (["9999-12-31T10:00:00.5"], US),
        (["9999-12-31T10:00:00.123456789"], pa.string()),
        (["2026-01-02T10:00:00.5", "2026-01-02T10:00:00.5Z"], pa.string()),
        (["2026-01-02T10:00:00.5", "soon"], pa.string()),
        (["2026-01-02T10:00:00.5", ""], pa.string()),
        (["2026-01-02T10:00:00.1234567890"], pa.string()),
        (["2026-01-02T10:00:00", None], pa.timestamp("s")),
        (["2026-01-02", "2026-01-03", None], pa.date32()),
        (["2026-01-02", "2026-01-03T00:00"], pa.timestamp("s")),
        (["2026-01-02", "2026-01-03T00:00Z"], pa.string()),
        (["2026-01-02", "2026-02-30"], pa.string()),
        (["2026-01-02-a"], pa.string()),
    ],
)
def test_dates_and_times_with_fractions_are_found_in_json(
    tmp_path: Path, texts: list[str | None], expected: pa.DataType
) -> None:
    """In columns, structs and lists."""
    rows = [{"t": text, "o": {"t": text}, "l": [text], "s": "x"} for text in texts]
    write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in [{}, *rows, {"l": []}]))
    source = Files(tmp_path)
    assert source.schema().types == [expected, pa.struct([("t", expected)]), pa.list_(expected), pa.string()]
    read = pa.array([row["t"] for row in read_all(source).rows[1:-1]], expected)
    assert read.equals(pa.array(texts, pa.string()).cast(expected))


def test_a_later_json_text_that_does_not_fit_a_found_date_or_time_is_a_bad_record(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"d": "2026-01-02", "t": "2026-01-02T10:00:00.5"}\n')
    late = [
        '{"d": "2026-01-02T10:00:00", "t": null}',
        '{"d": null, "t": "2026-01-02T10:00:00.5Z"}',
        '{"d": null, "t": "2026-01-02T10:00:00.1234567"}',
        '{"d": null, "t": "2026-01-02"}',
    ]
    write(tmp_path / "b.jsonl", "".join(line + "\n" for line in late))
    found = read_all(Files(tmp_path, on_bad_record="dead_letter"))
    assert found.rows == [
        {"d": date(2026, 1, 2), "t": datetime(2026, 1, 2, 10, 0, 0, 500_000)},
        {"d": None, "t": datetime(2026, 1, 2)},
    ]
    assert [bad["raw"].decode().strip() for bad in found.bad] == late[:3]
    assert [bad["reason"][:9] for bad in found.bad] == ["field 'd'", "field 't'", "field 't'"]


def test_what_is_null_or_empty_in_the_first_file_is_text_also_in_structs_and_lists(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"tags": [], "a": {"c": null}, "l": [{"d": [null]}]}\n')
    write(tmp_path / "b.jsonl", '{"tags": ["x"], "a": {"c": 5}, "l": [{"d": ["y"]}]}\n')
    assert read_all(Files(tmp_path)).rows == [
        {"tags": [], "a": {"c": None}, "l": [{"d": [None]}]},
        {"tags": ["x"], "a": {"c": "5"}, "l": [{"d": ["y"]}]},
    ]


def test_nulls_in_a_parquet_struct_are_text_too(tmp_path: Path) -> None:
    for name in ("a", "b"):
        pq.write_table(pa.table({"s": [{"c": None, "l": [None]}]}), tmp_path / f"{name}.parquet")
    source = Files(tmp_path)
    assert source.schema().field("s").type == pa.struct([("c", pa.string()), ("l", pa.list_(pa.string()))])
    assert read_all(source).rows == [{"s": {"c": None, "l": [None]}}] * 2


@pytest.mark.parametrize("beside", ["a", '""', '","""'])
def test_a_quoted_null_text_is_no_null_whatever_stands_beside_it(tmp_path: Path, beside: str) -> None:
    write(tmp_path / "a.csv", f'i,j,t\n1,"",{beside}\n"NA",1,b\nNA,2,c\n')
    schema = pa.schema([("i", pa.int64()), ("j", pa.int64()), ("t", pa.string())])
    found = read_all(Files(tmp_path, schema=schema, null_values=["", "NA"], on_bad_record="dead_letter"))
    assert [(row["i"], row["j"]) for row in found.rows] == [(1, None), (None, 2)]
    assert [(row["raw"], row["reason"]) for row in found.bad] == [
        (b'"NA",1,b', "column 'i' has a value that is no int64")
    ]
    inferred = Files(tmp_path, null_values=["", "NA"])
    assert inferred.schema().types == [pa.string(), pa.int64(), pa.string()]
    assert [(row["i"], row["j"]) for row in read_all(inferred).rows] == [("1", None), ("NA", 1), (None, 2)]


def test_a_number_in_quotes_that_is_a_null_text_keeps_its_value_beside_empty_quotes(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", 'n\n1\n"0"\n""\n0\n')
    found = read_all(Files(tmp_path, schema=pa.schema([("n", pa.int64())]), null_values=["", "0"]))
    assert [row["n"] for row in found.rows] == [1, 0, None, None]


@pytest.mark.parametrize("schema", [None, pa.schema([("id", pa.int64()), ("amount", pa.int64())])])
def test_a_column_that_is_read_and_comes_twice_is_refused(tmp_path: Path, schema: pa.Schema | None) -> None:
    write(tmp_path / "a.csv", "id,amount,amount\n1,10,99\n")
    with pytest.raises(PipelineError, match=r"2 columns named 'amount'.*a\.csv"):
        read_all(Files(tmp_path, schema=schema))
    assert read_all(Files(tmp_path, schema=schema, columns=["id"])).rows == [{"id": 1}]


def test_a_column_that_comes_twice_in_a_later_file_is_refused_at_the_start(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "id,amount\n1,10\n")
    write(tmp_path / "b.csv", "id,amount,amount\n1,10,99\n")
    with pytest.raises(PipelineError, match=r"2 columns named 'amount'.*b\.csv"):
        Files(tmp_path).discover(1)


def test_no_column_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="list of columns is empty"):
        Files(tmp_path, columns=[])


def test_a_file_of_bad_records_alone_is_no_wait_for_data(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", "\n")
    write(tmp_path / "b.jsonl", '[{"a": 1}]\n{"a": 1}x\n')
    with pytest.raises(
        PipelineError,
        match=r"no input file has a readable record.*b\.jsonl, offset 0.*not a JSON object.*Correct the file",
    ):
        Files(tmp_path, on_bad_record="skip").schema()
    write(tmp_path / "b.jsonl", "")
    with pytest.raises(PipelineError, match="start the job when a file has records"):
        Files(tmp_path, on_bad_record="skip").schema()


# ------------------------------------------------------------ missing and new columns


def files_of(tmp_path: Path, name: str, first: dict[str, Any], second: dict[str, Any]) -> Path:
    """Two files of one format, each of one record."""
    for stem, row in (("a", first), ("b", second)):
        table = pa.Table.from_pylist([row])
        if name == "parquet":
            pq.write_table(table, tmp_path / f"{stem}.parquet")
        elif name == "csv":
            write(tmp_path / f"{stem}.csv", f"{','.join(row)}\n{','.join(map(str, row.values()))}\n")
        else:
            write(tmp_path / f"{stem}.jsonl", json.dumps(row) + "\n")
    return tmp_path


FORMATS = pytest.mark.parametrize("name", ["parquet", "csv", "jsonl"])


@FORMATS
def test_a_file_that_lacks_a_column_is_refused_before_the_start_by_name(tmp_path: Path, name: str) -> None:
    folder = files_of(tmp_path, name, {"k": 1, "n": 1}, {"n": 2})
    with pytest.raises(PipelineError, match=rf"no column 'k'.*b\.{name}.*a\.{name}"):
        Files(folder).discover(1)


@FORMATS
def test_a_file_that_lacks_a_column_can_be_read_with_nulls_which_are_counted(tmp_path: Path, name: str) -> None:
    folder = files_of(tmp_path, name, {"k": 1, "n": 1}, {"n": 2})
    found = read_all(Files(folder, on_missing_field="null"))
    assert found.rows == [{"k": 1, "n": 1}, {"k": None, "n": 2}]
    if name != "jsonl":  # any member may be missing from an object
        assert found.counters == {"missing_fields": 1}


@FORMATS
def test_a_declared_schema_may_have_columns_that_files_lack(tmp_path: Path, name: str) -> None:
    folder = files_of(tmp_path, name, {"k": 1, "n": 1}, {"n": 2})
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64())])
    assert read_all(Files(folder, schema=schema)).rows == [{"k": 1, "n": 1}, {"k": None, "n": 2}]
    with pytest.raises(PipelineError, match=r"no column 'k'"):
        Files(folder, schema=schema, on_missing_field="fail").discover(1)


@FORMATS
def test_a_new_column_of_a_later_file_is_passed_over_and_counted(tmp_path: Path, name: str) -> None:
    folder = files_of(tmp_path, name, {"n": 1}, {"n": 2, "m": 3})
    found = read_all(Files(folder))
    assert found.rows == [{"n": 1}, {"n": 2}]
    assert found.counters == {"new_fields": 1}
    assert [split.position.get("new") for split in found.splits] == [None, ["m"]], "in the snapshot, too"


@FORMATS
def test_a_new_column_fails_the_job_by_name_when_it_is_to(tmp_path: Path, name: str) -> None:
    folder = files_of(tmp_path, name, {"n": 1}, {"n": 2, "m": 3})
    with pytest.raises(PipelineError, match=rf"new column 'm'.*b\.{name}"):
        Files(folder, on_new_field="fail").discover(1)


def test_columns_within_an_object_are_missing_and_new_as_any(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"o": {"x": 1, "y": 2}}\n')
    write(tmp_path / "b.jsonl", '{"o": {"x": 3, "z": {"w": 4}}}\n')
    with pytest.raises(PipelineError, match=r"no column 'o\.y'"):
        Files(tmp_path).discover(1)
    found = read_all(Files(tmp_path, on_missing_field="null"))
    assert found.rows == [{"o": {"x": 1, "y": 2}}, {"o": {"x": 3, "y": None}}]
    assert [split.position.get("new") for split in found.splits] == [None, ["o.z"]]


def test_a_struct_of_a_parquet_file_may_lack_a_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"o": [{"x": 1, "y": 2}]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"o": [{"x": 3, "z": 4}]}), tmp_path / "b.parquet")
    with pytest.raises(PipelineError, match=r"no column 'o\.y'"):
        Files(tmp_path).discover(1)
    found = read_all(Files(tmp_path, on_missing_field="null"))
    assert found.rows == [{"o": {"x": 1, "y": 2}}, {"o": {"x": 3, "y": None}}]


def test_a_member_that_first_comes_far_behind_the_head_is_counted_once(tmp_path: Path) -> None:
    lines = ['{"n": 1, "padding": "' + "x" * 1000 + '"}'] * 5_000 + ['{"n": 2, "late": true}'] * 2
    write(tmp_path / "a.jsonl", "\n".join(lines))
    found = read_all(Files(tmp_path))
    assert len(found.rows) == 5_002
    assert found.counters == {"new_fields": 1}


def test_the_schema_is_that_of_the_first_file_with_a_record(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "n,s\n")
    write(tmp_path / "b.csv", "\n\n")
    write(tmp_path / "c.csv", "n,s\n1,x\n")
    found = read_all(Files(tmp_path))
    assert found.rows == [{"n": 1, "s": "x"}]
    write(tmp_path / "json" / "a.jsonl", "\n")
    with pytest.raises(PipelineError, match=r"no input file has a record.*a\.jsonl.*schema="):
        Files(tmp_path / "json").schema()


def test_in_quotes_nothing_is_an_empty_string_and_in_a_number_column_null(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", '"n","s"\n"1","x"\n"",""\n2,\n')
    assert read_all(Files(tmp_path)).rows == [{"n": 1, "s": "x"}, {"n": None, "s": ""}, {"n": 2, "s": None}]


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "\ufeffn,s\n1,x\n")
    write(tmp_path / "json" / "a.jsonl", '\ufeff{"n": 1}\n')
    assert read_all(Files(tmp_path / "a.csv")).rows == [{"n": 1, "s": "x"}]
    assert read_all(Files(tmp_path / "json")).rows == [{"n": 1}]


def test_a_replay_keeps_the_same_policy(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"t": 1, "k": "a"}\n')
    write(tmp_path / "b.jsonl", '{"t": 2, "m": 1}\n')
    with pytest.raises(PipelineError, match="no column 'k'"):
        Replay(tmp_path, time_column="t", at_end="end").discover(1)
    found = read_all(Replay(tmp_path, time_column="t", at_end="end", on_missing_field="null"))
    assert found.rows == [{"t": 1, "k": "a"}, {"t": 2, "k": None}]
    assert found.counters == {"new_fields": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"on_missing_field": "ignore"},
        {"on_new_field": "null"},
        {"on_bad_record": "drop"},
        {"encoding": "klingon"},
        {"encoding": "base64"},
        {"encoding": "rot13"},
    ],
)
def test_a_policy_that_is_none_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        Files("x", **wrong)


def test_every_new_field_of_a_json_file_is_counted_wherever_it_comes_first(tmp_path: Path) -> None:
    """Also in later blocks, in structs and lists, and where its values have several types."""
    schema = pa.schema(
        [
            ("n", pa.int64()),
            ("o", pa.struct([("x", pa.int64())])),
            ("l", pa.list_(pa.struct([("y", pa.int64())]))),
        ]
    )
    later: list[dict[str, Any]] = [{"n": i} for i in range(200_000)]
    later[10]["one"] = 1
    later[11]["o"] = {"x": 2, "two": "text"}
    later[150_000]["three"] = None
    later[150_001]["l"] = [{"y": 2}, {"four": 1}]
    later[190_000]["five"] = 1
    later[190_001]["five"] = "text"
    later[199_999]["one"] = 2
    write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, later)))
    found = read_all(Files(tmp_path, schema=schema))
    assert len(found.rows) == 200_000 and found.counters == {"new_fields": 5}
    assert set(found.splits[0].position["new"]) == {"one", "o.two", "three", "l.four", "five"}
    played = read_all(Replay(tmp_path, time_column="n", schema=schema, at_end="end", splits=1))
    assert len(played.rows) == 200_000 and played.counters == {"new_fields": 5}


def test_an_error_names_the_first_new_columns_and_counts_the_others(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "n\n1\n")
    write(tmp_path / "b.csv", "n," + ",".join(f"c{i}" for i in range(25)) + "\n")
    with pytest.raises(PipelineError, match=r"new columns: c0, .*c19 and 5 more"):
        Files(tmp_path, on_new_field="fail").discover(1)


TIMES = pa.schema(
    [
        ("d", pa.date32()),
        ("e", pa.date64()),
        ("s", pa.time32("s")),
        ("u", pa.time64("us")),
        ("t", pa.timestamp("us")),
        ("z", pa.timestamp("us", "UTC")),
        ("m", pa.decimal128(10, 2)),
    ]
)
TEXTS = {
    "d": "2024-05-01",
    "e": "2024-05-01",
    "s": "12:30:00",
    "u": "12:30:00.000250",
    "t": "2024-05-01T12:30:00.5",
    "z": "2024-05-01T12:30:00Z",
    "m": "12.50",
}
VALUES = {
    "d": date(2024, 5, 1),
    "e": date(2024, 5, 1),
    "s": time(12, 30),
    "u": time(12, 30, 0, 250),
    "t": datetime(2024, 5, 1, 12, 30, 0, 500_000),
    "m": Decimal("12.50"),
}


def known(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in VALUES}


@pytest.mark.parametrize("suffix", ["jsonl", "csv"])
def test_dates_times_and_decimals_are_read_from_iso_texts(tmp_path: Path, suffix: str) -> None:
    line = json.dumps(TEXTS) if suffix == "jsonl" else ",".join(TEXTS) + "\n" + ",".join(TEXTS.values())
    write(tmp_path / f"a.{suffix}", line + "\n")
    (row,) = read_all(Files(tmp_path, schema=TIMES)).rows
    assert known(row) == VALUES
    assert row["z"].isoformat().startswith("2024-05-01T12:30:00")


def test_iso_texts_are_read_in_structs_and_lists_beside_numbers_and_nulls(tmp_path: Path) -> None:
    """Numbers are what they were: days, and units since midnight; all in one file, or one beside the other."""
    schema = pa.schema([("o", pa.struct([("d", pa.date32())])), ("l", pa.list_(pa.time32("s"))), ("d", pa.date32())])
    lines = [
        {"o": {"d": "2024-05-01"}, "l": ["12:30:00", None], "d": "2024-05-01"},
        {"o": {"d": 19_844}, "l": [45_000], "d": 19_844},
        {"o": {"d": None}, "l": None, "d": None},
        {"o": None, "l": [], "d": None},
    ]
    day, half = date(2024, 5, 1), time(12, 30)
    expected = [
        {"o": {"d": day}, "l": [half, None], "d": day},
        {"o": {"d": day}, "l": [half], "d": day},
        {"o": {"d": None}, "l": None, "d": None},
        {"o": None, "l": [], "d": None},
    ]
    write(tmp_path / "a.jsonl", "\n".join(map(json.dumps, lines)))
    assert read_all(Files(tmp_path, schema=schema)).rows == expected
    write(tmp_path / "a.jsonl", json.dumps(lines[1]))
    assert read_all(Files(tmp_path, schema=schema)).rows == expected[1:2]


def test_a_decimal_is_read_from_a_number_as_from_a_text(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"m": 12.5}\n{"m": "12.50"}\n{"m": 12}\n')
    rows = read_all(Files(tmp_path, schema=pa.schema([("m", pa.decimal128(10, 2))]))).rows
    assert [row["m"] for row in rows] == [Decimal("12.50"), Decimal("12.50"), Decimal(12)]


@pytest.mark.parametrize("text", ['"2024-13-01"', '"yesterday"', "1.5", '""', "99999999999"])
def test_what_is_no_date_is_a_bad_record_that_names_its_field(tmp_path: Path, text: str) -> None:
    write(tmp_path / "a.jsonl", f'{{"d": "2024-05-01"}}\n{{"d": {text}}}\n')
    source = Files(tmp_path, schema=pa.schema([("d", pa.date32())]), on_bad_record="dead_letter")
    found = read_all(source)
    assert [row["d"] for row in found.rows] == [date(2024, 5, 1)]
    assert [bad["raw"] for bad in found.bad] == [f'{{"d": {text}}}'.encode()]


@pytest.mark.parametrize("text", ["25:00:00", "12:30:00Z", "noon"])
def test_what_is_no_time_of_day_is_a_bad_record_that_names_field_and_type(tmp_path: Path, text: str) -> None:
    write(tmp_path / "a.jsonl", json.dumps({"t": text}))
    source = Files(tmp_path, schema=pa.schema([("t", pa.time32("s"))]), on_bad_record="dead_letter")
    (bad,) = read_all(source).bad
    assert bad["reason"].startswith("field 't' has a value that is no time32[s]")


@pytest.mark.parametrize("then", ["skip", "dead_letter"])
def test_a_csv_file_of_bad_records_alone_says_nothing_about_types(tmp_path: Path, then: Any) -> None:
    write(tmp_path / "a.csv", "k,n\n1\n1,2,3\n")
    write(tmp_path / "b.csv", "k,n\n1,2\n")
    source = Files(tmp_path, on_bad_record=then)
    assert source.schema() == pa.schema([("k", pa.int64()), ("n", pa.int64())])
    found = read_all(source)
    assert found.rows == [{"k": 1, "n": 2}] and found.counters == {"bad_records": 2}


@pytest.mark.parametrize("then", ["skip", "dead_letter"])
def test_csv_files_without_any_good_record_are_refused_with_the_first_bad_one(tmp_path: Path, then: Any) -> None:
    write(tmp_path / "a.csv", "k,n\n")
    write(tmp_path / "b.csv", "k,n\n1\n1,2,3\n")
    with pytest.raises(PipelineError, match=r"no input file has a readable record.*b\.csv, offset 4"):
        Files(tmp_path, on_bad_record=then).schema()
