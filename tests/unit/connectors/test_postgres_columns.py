"""Arrow columns as COPY's text, and which column takes which type; no server."""

from __future__ import annotations

import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from tidegate.connectors.postgres.copy_columns import TargetColumn, copy_text, problem_of


def column(base: str, modifier: int = -1, category: str = "N", always: bool = False) -> TargetColumn:
    return TargetColumn("c", base, base, category, modifier, "", required=False, filled=always, always_filled=always)


def text_of(array: pa.Array) -> list[str]:
    made = bytes(copy_text(pa.record_batch([array], ["c"]), {})).decode()
    assert made.endswith("\n")
    return made.removesuffix("\n").split("\n")


@pytest.mark.parametrize(
    ("array", "written"),
    [
        (pa.array([1, None, -(2**63)]), ["1", "\\N", str(-(2**63))]),
        (pa.array(["", None, "a\tb\nc\rd\\e", "\\N", "\\."]), ["", "\\N", "a\\tb\\nc\\rd\\\\e", "\\\\N", "\\\\."]),
        (pa.array(["x", None, "x"]).dictionary_encode(), ["x", "\\N", "x"]),
        (pa.array([b"", None, b"\x00\xff\n"]), ["\\\\x", "\\N", "\\\\x00ff0a"]),
        (pa.array([b"ab", None], pa.binary(2)), ["\\\\x6162", "\\N"]),
        (pa.array([True, False, None]), ["true", "false", "\\N"]),
        (pa.array([1.5, float("nan"), float("-inf")]), ["1.5", "nan", "-inf"]),
        (pa.array([1.5, None], pa.float16()), ["1.5", "\\N"]),
        (pa.array([Decimal("-0.10"), None]), ["-0.10", "\\N"]),
        (pa.array([datetime.date(2024, 2, 29)], pa.date32()), ["2024-02-29"]),
        (pa.array([0], pa.timestamp("ms", "Europe/Berlin")), ["1970-01-01 00:00:00.000Z"]),
        (pa.array([1], pa.timestamp("us")), ["1970-01-01 00:00:00.000001"]),
        (pa.array([90], pa.duration("s")), ["90 seconds"]),
    ],
)
def test_values_are_written_as_copy_reads_them(array: pa.Array, written: list[str]) -> None:
    assert text_of(array) == written
    assert text_of(array.slice(len(array) - 1)) == written[-1:]


def test_leading_columns_come_first_and_no_rows_are_no_text() -> None:
    batch = pa.record_batch({"n": pa.array([7, 8]), "s": pa.array(["a", None])})
    assert bytes(copy_text(batch, {"t": pa.array([1, 1])})) == b"1\t7\ta\n1\t8\t\\N\n"
    assert bytes(copy_text(batch.slice(2), {"t": pa.array([], pa.int64())})) == b""


@pytest.mark.parametrize(
    ("kind", "there", "said"),
    [
        (pa.int64(), column("int8"), None),
        (pa.int64(), column("int4"), "int4; cast the values, or use a column of type int8 or numeric"),
        (pa.uint32(), column("int4"), "int8 or numeric"),
        (pa.uint64(), column("numeric"), None),
        (pa.float64(), column("numeric"), "float8"),
        (pa.string(), column("uuid", category="U"), None),
        (pa.string(), column("bytea", category="U"), "does not fit"),
        (pa.int64(), column("text", category="S"), "does not fit"),
        (pa.binary(), column("bytea", category="U"), None),
        (pa.decimal128(10, 2), column("numeric", (10 << 16 | 1) + 4), "would round"),
        (pa.decimal128(10, 2), column("numeric", (10 << 16 | 2) + 4), None),
        (pa.timestamp("us", "UTC"), column("timestamp", category="D"), "timestamptz"),
        (pa.timestamp("us"), column("timestamp", 3, category="D"), "would round"),
        (pa.timestamp("ns"), column("timestamp", category="D"), "has no counterpart"),
        (pa.list_(pa.int64()), column("_int8", category="A"), "has no counterpart"),
        (pa.int64(), column("int8", always=True), "the database computes this column"),
    ],
)
def test_a_column_takes_a_type_only_when_no_value_is_lost(
    kind: pa.DataType, there: TargetColumn, said: str | None
) -> None:
    problem = problem_of(pa.field("c", kind), there)
    assert problem is None if said is None else said in str(problem)
