"""Spark's schemas and values: DDL without a JVM, and the values that states of a StatefulProcessor give back."""

from __future__ import annotations

import datetime as dt
import decimal
import math
import time
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from pyspark.sql import Row
from pyspark.sql import types as st

from tidegate.compat.pyspark_stateful.spark_ddl import schema_of
from tidegate.compat.pyspark_stateful.spark_values import SparkRowCodec, python_values
from tidegate.errors import PipelineError

EVERYTHING = (
    "bo BOOLEAN, by BYTE, s SHORT, i INT, l BIGINT, f FLOAT, d DOUBLE, de DECIMAL(10, 2), st STRING, b BINARY, "
    "da DATE, t TIMESTAMP, n TIMESTAMP_NTZ, a ARRAY<INT>, m MAP<STRING, TIMESTAMP>, "
    "r STRUCT<x: INT, y: ARRAY<TIMESTAMP_NTZ>>"
)


def codec(ddl: str, *, as_key: bool = False) -> SparkRowCodec:
    return SparkRowCodec(schema_of(ddl, "it", "here"), "it", "here", as_key=as_key)


def through(a_codec: SparkRowCodec, value: Any) -> tuple[Any, ...]:
    """Kept in Arrow and back."""
    kept = a_codec.accepted(value)
    (back,) = a_codec.rows(a_codec.batch([kept]))
    assert a_codec.given(back) == a_codec.given(kept), "what is read is what was just written"
    return a_codec.given(back)


def test_ddl_is_read_as_spark_reads_it() -> None:
    assert schema_of("a INT, `b c``d`: string NOT NULL comment 'x, y', e dec, f varchar(5)", "it", "") == st.StructType(
        [
            st.StructField("a", st.IntegerType()),
            st.StructField("b c`d", st.StringType(), False),
            st.StructField("e", st.DecimalType(10, 0)),
            st.StructField("f", st.StringType()),
        ]
    )
    inner = st.StructType([st.StructField("x", st.MapType(st.StringType(), st.ArrayType(st.DoubleType())))])
    assert schema_of("s struct<x: map<string, array<double>>>", "it", "") == st.StructType([st.StructField("s", inner)])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "INT",
        "a",
        "a INT,, b INT",
        "a INT b INT",
        "a ARRAY<INT",
        "a nothing",
        "a INT, a INT",
        "a INT;",
        "a DECIMAL(x)",
    ],
)
def test_ddl_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(PipelineError, match="it "):
        schema_of(text, "it", "here")


def test_values_come_back_as_they_do_on_spark() -> None:
    """What Spark 4.3 gave for the same."""
    two = dt.timezone(dt.timedelta(hours=2))
    at, naive = dt.datetime(2024, 1, 1, 12, 0, 0, 123456, tzinfo=two), dt.datetime(2024, 1, 1, 12)
    values = (True, 7, 8, 9, 10, 0.1, 0.1, decimal.Decimal("1.005"), "s", bytearray(b"y"), naive, at, naive)
    found = through(codec(EVERYTHING), (*values, (1, None), {"q": at}, Row(x=5, y=[naive])))
    local = at.astimezone().replace(tzinfo=None)
    assert found[:6] == (True, 7, 8, 9, 10, 0.10000000149011612)
    assert found[6:13] == (0.1, decimal.Decimal("1.01"), "s", b"y", dt.date(2024, 1, 1), local, naive)
    assert found[13:] == ([1, None], {"q": local}, Row(x=5, y=[naive])) and found[15].y == [naive]


def test_nulls_come_back() -> None:
    a_codec = codec(EVERYTHING)
    assert through(a_codec, (None,) * 16) == (None,) * 16


def test_numbers_and_times_of_numpy_and_pandas_are_taken() -> None:
    given_ = (np.bool_(True), np.int8(1), np.int64(2), np.int32(3), np.int64(4), np.float64(0.5), np.float32(0.5))
    found = through(codec("bo BOOLEAN, by BYTE, s SHORT, i INT, l BIGINT, f FLOAT, d DOUBLE"), given_)
    assert found == (True, 1, 2, 3, 4, 0.5, 0.5) and [type(v) for v in found] == [bool, *[int] * 4, float, float]
    times = through(codec("n TIMESTAMP_NTZ, a ARRAY<BIGINT>"), [pd.Timestamp("2024-01-01"), np.array([1, 2])])
    assert times == (dt.datetime(2024, 1, 1), [1, 2])


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("x INT", "5"),
        ("x INT", 1.5),
        ("x INT", True),
        ("x INT", 2**31),
        ("x STRING", b"x"),
        ("x DOUBLE", "1"),
        ("x BOOLEAN", 1),
        ("x BINARY", 1),
        ("x STRING", dt.date(2024, 1, 1)),
        ("x STRING", ["x"]),
        ("x TIMESTAMP", "2024-07-01"),
        ("x TIMESTAMP", dt.date(2024, 7, 1)),
        ("x TIMESTAMP", np.datetime64("2024-07-01")),
        ("x MAP<STRING, INT>", {None: 1}),
        ("x DATE", 5),
        ("x DECIMAL(3, 2)", decimal.Decimal("10")),
        ("x DECIMAL(3, 2)", decimal.Decimal("Infinity")),
        ("x DECIMAL(3, 2)", decimal.Decimal("1e90")),
        ("x DOUBLE", 10**400),
        ("x TIMESTAMP", dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=2)))),
        ("x ARRAY<INT>", ["x"]),
        ("x STRUCT<a: INT>", (1, 2)),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_column(ddl: str, value: Any) -> None:
    """Spark makes null of it, or another number."""
    with pytest.raises(PipelineError, match="the value does not fit it") as refused:
        codec(ddl).accepted((value,))
    assert "column 'x'" in refused.value.cause and __file__ in refused.value.where


def test_types_that_no_state_keeps_are_refused_with_the_column() -> None:
    with pytest.raises(PipelineError, match="'x' of it has the unsupported type interval year"):
        SparkRowCodec(st.StructType([st.StructField("x", st.YearMonthIntervalType(0, 0))]), "it", "here")
    with pytest.raises(PipelineError, match="cannot be part of a map key"):
        codec("x ARRAY<INT>", as_key=True)


def test_equal_numbers_are_one_map_key() -> None:
    a_codec = codec("x DOUBLE", as_key=True)
    keys = {a_codec.accepted((x,)) for x in (0.0, -0.0, math.nan, float("nan"))}
    assert len(keys | set(a_codec.rows(a_codec.batch(list(keys))))) == 2


MISSING = [None, pd.NaT, pd.NA, np.datetime64("NaT"), np.datetime64("NaT", "ns"), np.timedelta64("NaT", "ns")]


@pytest.mark.parametrize("missing", MISSING, ids=repr)
def test_what_pandas_and_numpy_have_for_null_is_null_in_every_type(missing: Any) -> None:
    """At any depth; once it was a date of the year 1, or a bare ValueError."""
    everything = codec(EVERYTHING)
    width = len(everything.schema)
    assert through(everything, (missing,) * width) == (None,) * width
    nested = codec("a ARRAY<DATE>, m MAP<STRING, TIMESTAMP>, r STRUCT<d: DATE, t: TIMESTAMP_NTZ>, x ARRAY<DOUBLE>")
    kept = through(nested, ([missing], {"k": missing}, (missing, missing), [missing, 1.5]))
    assert kept == ([None], {"k": None}, Row(d=None, t=None), [None, 1.5])
    as_keys = codec("d DATE, t TIMESTAMP, s STRING", as_key=True)
    assert as_keys.accepted((missing,) * 3) == (None,) * 3


def test_nan_is_null_where_a_type_has_none_as_in_spark() -> None:
    nan = float("nan")
    kept = through(codec("i INT, b BOOLEAN, de DECIMAL(5, 2), d DATE, a ARRAY<INT>, s STRING"), (nan,) * 6)
    assert kept == (None, None, None, None, None, "NaN")
    assert math.isnan(codec("x DOUBLE").accepted((np.float32("nan"),))[0])


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_times_of_pandas_and_numpy_are_taken_as_those_of_python(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A naive one is local time of the process, as in PySpark; finer than a microsecond is cut off."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        a_codec = codec("t TIMESTAMP, n TIMESTAMP_NTZ, d DATE, a ARRAY<TIMESTAMP>")
        naive = dt.datetime(2024, 7, 1, 12, 0, 0, 123456)
        wanted = (naive, naive, dt.date(2024, 7, 1), [naive])
        for value in (
            naive,
            pd.Timestamp(naive),
            pd.Timestamp("2024-07-01 12:00:00.123456789"),
            np.datetime64("2024-07-01T12:00:00.123456"),
            np.datetime64("2024-07-01T12:00:00.123456789"),
        ):
            assert through(a_codec, (value, value, value, [value])) == wanted, repr(value)
        aware = pd.Timestamp("2024-07-01 12:00", tz="Asia/Tokyo")
        (kept, wall, day, _) = a_codec.accepted((aware, aware, aware, None))
        assert kept == int(aware.timestamp()) * 1_000_000
        assert a_codec.given((kept, wall, day, None))[1:3] == (dt.datetime(2024, 7, 1, 12), dt.date(2024, 7, 1))
        in_nanoseconds = np.array(["2024-07-01T12:00:00.123456", "NaT"], "M8[ns]")
        assert through(a_codec, (None, None, None, in_nanoseconds))[3] == [naive, None]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_numbers_become_the_texts_that_the_jvm_writes() -> None:
    a_codec = codec("s STRING")
    told = [
        1,
        True,
        1.5,
        1e7,
        1.5e-5,
        -1e300,
        math.inf,
        0.001,
        decimal.Decimal("1E+3"),
        np.int64(3),
        np.str_("y"),
        np.float64(0.5),
    ]
    wanted = ["1", "true", "1.5", "1.0E7", "1.5E-5", "-1.0E300", "Infinity", "0.001", "1E+3", "3", "y", "0.5"]
    assert [a_codec.accepted((value,))[0] for value in told] == wanted
    assert codec("b BINARY").accepted(("z\u00e9",))[0] == "z\u00e9".encode()


def test_intervals_are_kept_to_the_microsecond() -> None:
    a_codec = codec("i INTERVAL DAY TO SECOND, a ARRAY<INTERVAL HOUR>")
    one = dt.timedelta(days=-1, microseconds=1)
    for value in (one, pd.Timedelta(one), np.timedelta64(one), pd.Timedelta(one).to_timedelta64()):
        assert through(a_codec, (value, [value, None])) == (one, [one, None]), repr(value)
    assert through(a_codec, (np.timedelta64("NaT", "ns"), [pd.NaT])) == (None, [None])


LONGEST, SHORTEST = dt.timedelta(microseconds=2**63 - 1), dt.timedelta(days=-106_751_991)


@pytest.mark.parametrize(
    ("ddl", "value"),
    [
        ("i INTERVAL DAY TO SECOND", dt.timedelta.max),
        ("i INTERVAL DAY TO SECOND", dt.timedelta.min),
        ("i INTERVAL DAY TO SECOND", LONGEST + dt.timedelta(microseconds=1)),
        ("i INTERVAL DAY TO SECOND", SHORTEST - dt.timedelta(microseconds=1)),
        ("i ARRAY<INTERVAL DAY TO SECOND>", [dt.timedelta.max]),
        ("i INTERVAL DAY TO SECOND", np.timedelta64(10**15, "s")),
        ("s STRING", "\ud800"),
        ("b BINARY", "\ud800"),
        ("a MAP<STRING, INT>", {"\ud800": 1}),
        ("t TIMESTAMP", dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=14)))),
        ("t TIMESTAMP", dt.datetime(9999, 12, 31, 23, tzinfo=dt.timezone(dt.timedelta(hours=-12)))),
        ("n TIMESTAMP_NTZ", np.datetime64("10000-01-01")),
        ("d DATE", np.datetime64("-0001-01-01")),
        ("x DECIMAL(38, 0)", decimal.Decimal("Infinity")),
        ("x DECIMAL(38, 0)", decimal.Decimal(10) ** 38),
        ("x DOUBLE", 10**400),
        ("x BIGINT", 2**63),
    ],
    ids=repr,
)
def test_a_value_beyond_what_its_type_holds_is_refused_by_name(ddl: str, value: Any) -> None:
    """Before it is kept: a column that cannot be made would fail for all keys in hand, and name none."""
    with pytest.raises(PipelineError, match=f"column '{ddl[0]}' is .*, but got "):
        codec(ddl).accepted((value,))


@pytest.mark.parametrize("as_key", [False, True])
def test_a_row_that_is_kept_as_it_is_is_kept_as_its_values_are(as_key: bool) -> None:
    """A tuple of exact types takes a shorter way than a list."""
    values: dict[str, list[Any]] = {
        "BOOLEAN": [True, None, 1],
        "BYTE": [127, -128, 128, True, None],
        "SHORT": [32_767, 32_768],
        "INT": [-(2**31), 2**31, np.int32(1)],
        "BIGINT": [2**63 - 1, -(2**63), -(2**63) - 1, 1.0],
        "FLOAT": [0.1, math.nan],
        "DOUBLE": [0.1, -0.0, math.nan, 1],
        "STRING": ["a", "\u00e4", "\ud800", 1],
        "BINARY": [b"a", bytearray(b"a"), "a"],
    }
    taken = 0
    for type_, ones in values.items():
        a_codec = codec(f"n BIGINT, x {type_}", as_key=as_key)
        for one in ones:
            found: list[str] = []
            for row in ((1, one), [1, one]):
                try:
                    kept = a_codec.accepted(row)
                    taken += kept is row
                    found.append(f"{[(type(value), value) for value in kept]}")
                except PipelineError as error:
                    found.append(f"{error.cause}")
            assert found[0] == found[1]
    assert taken == (9 if as_key else 12)


def test_the_longest_intervals_that_a_state_holds_go_through_it() -> None:
    a_codec = codec("i INTERVAL DAY TO SECOND")
    for value in (LONGEST, SHORTEST):
        assert through(a_codec, (value,)) == (value,)


def test_a_time_that_does_not_exist_where_it_is_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        with pytest.raises(PipelineError, match="column 't' is timestamp"):
            codec("t TIMESTAMP").accepted((dt.datetime(1, 1, 1, tzinfo=dt.UTC),))
    finally:
        monkeypatch.undo()
        time.tzset()


def test_what_a_processor_changes_of_what_it_is_given_changes_no_state() -> None:
    a_codec = codec("a ARRAY<INT>, m MAP<STRING, INT>")
    mine = [1]
    kept = a_codec.accepted((mine, {"x": 1}))
    mine.append(2)
    a_codec.given(kept)[0].append(3)
    assert a_codec.given(kept) == ([1], {"x": 1})


MOMENTS = some.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1))


@settings(max_examples=60, deadline=None)
@given(
    some.lists(
        some.tuples(
            some.none() | some.integers(-(2**63), 2**63 - 1),
            some.none() | some.text(),
            some.none() | some.floats(allow_nan=False),
            some.none() | MOMENTS,
            some.none() | some.lists(some.none() | MOMENTS, max_size=3),
            some.none() | some.dictionaries(some.text(max_size=3), some.none() | some.binary(max_size=3), max_size=3),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_rows_go_through_arrow_and_back(rows: list[tuple[Any, ...]]) -> None:
    a_codec = codec("l BIGINT, s STRING, d DOUBLE, n TIMESTAMP_NTZ, a ARRAY<TIMESTAMP_NTZ>, m MAP<STRING, BINARY>")
    kept = [a_codec.accepted(row) for row in rows]
    batch = a_codec.batch(kept)
    assert batch.schema == a_codec.schema and isinstance(batch, pa.RecordBatch)
    assert [a_codec.given(row) for row in a_codec.rows(batch)] == rows


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin", "+02:00"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_columns_become_the_values_that_arrow_gives(zone: str | None, unit: str) -> None:
    times = pa.array([0, -1_000_000, None, 1_711_846_800], pa.timestamp(unit, zone))
    columns = [
        times,
        times.drop_null(),
        times.slice(1, 2),
        pa.array([1, 2]),
        pa.array([True, None]),
        pa.array(["a", "b"]),
    ]
    for column in [*columns, pa.array([], pa.int64()), pa.array([0.5, 1.5]), pa.array([[1], None])]:
        values = python_values(column)
        assert values == column.to_pylist() and list(map(type, values)) == list(map(type, column.to_pylist()))
        assert list(map(str, values)) == list(map(str, column.to_pylist()))
