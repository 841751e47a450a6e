"""Values of every Spark type, as processors write them into states and give them as results; and a processor for each,
which knows nothing of the engine that runs it."""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

D = decimal.Decimal
NAN = float("nan")
NAIVE = dt.datetime(2024, 7, 1, 12, 0, 0, 123456)
AWARE = dt.datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Asia/Tokyo"))
NULLS = [None, NAN, pd.NaT, pd.NA, np.datetime64("NaT"), np.datetime64("NaT", "ns"), np.timedelta64("NaT", "ns")]
WHOLE = [0, 1, -1, 127, 128, 300, 2**31, 2**63 - 1, 2**63, True, 1.0, 1.5, D(1), "1", np.bool_(True)]
WHOLE += [np.int8(3), np.int16(-3), np.int32(5), np.int64(7), np.uint8(9), np.uint64(7), np.uint64(2**64 - 1)]
WHOLE += [np.float64(2.5)]
FLOATS = [
    0.0,
    -0.0,
    1.5,
    1e300,
    0.1,
    float("inf"),
    np.float16(0.5),
    np.float32(0.1),
    np.float64(2.5),
    np.float32("nan"),
]
FLOATS += [1, True, np.int64(5), D(1), "1"]
TIMES = [NAIVE, AWARE, NAIVE.date(), pd.Timestamp(NAIVE), pd.Timestamp("2024-07-01 12:00:00.123456789")]
TIMES += [pd.Timestamp(AWARE), pd.Timestamp("2024-07-01", tz="UTC"), dt.datetime(1900, 1, 1), dt.datetime(9999, 12, 30)]
TIMES += [
    np.datetime64(NAIVE, "us"),
    np.datetime64(NAIVE, "s"),
    np.datetime64(NAIVE, "ms"),
    np.datetime64("2024-07-01"),
]
TIMES += [
    np.datetime64(NAIVE, "ns"),
    dt.datetime(2024, 3, 31, 3, 30),
    dt.datetime(2024, 10, 27, 1, 30),
    "2024-07-01",
    0,
]
INT_OR_TEXT = [
    Row(a=1, b="x"),
    (1, "x"),
    [1, "x"],
    {"a": 1, "b": "x"},
    {"b": "x"},
    (np.int64(1), None),
    (1,),
    (None, None),
]
VALUES: dict[str, list[Any]] = {
    "BOOLEAN": [*NULLS, True, False, np.bool_(False), 1, "true"],
    "BYTE": [*NULLS, *WHOLE],
    "SHORT": [*NULLS, *WHOLE],
    "INT": [*NULLS, *WHOLE],
    "LONG": [*NULLS, *WHOLE],
    "FLOAT": [*NULLS, *FLOATS],
    "DOUBLE": [*NULLS, *FLOATS],
    "DECIMAL(10, 2)": [
        *NULLS,
        *map(D, ["1", "1.005", "1.015", "-1.005", "12345678.12", "0E-10", "1e3", "NaN", "123456789.12", "Infinity"]),
        *[1, 1.5, "1", np.int64(1), np.float64(1.5)],
    ],
    "DECIMAL(38, 18)": [D("12345678901234567890.123456789012345678"), D("-0.000000000000000001"), D("1e-19")],
    "STRING": [
        *NULLS,
        "x",
        "",
        "\u00e9\U0001f600",
        1,
        1.5,
        1e7,
        1e-5,
        -1e300,
        float("inf"),
        True,
        D("1e3"),
        np.str_("y"),
    ]
    + [np.int64(3), np.bool_(True), np.float64(0.5), b"x", dt.date(2024, 1, 1), ["a"], {"a": 1}],
    "BINARY": [*NULLS, b"", b"x\x00\xff", bytearray(b"y"), memoryview(b"m"), np.bytes_(b"n"), "z\u00e9", 1],
    "DATE": [*NULLS, *TIMES, dt.date.min, dt.date.max, dt.datetime(1, 1, 1)],
    "TIMESTAMP": [*NULLS, *TIMES],
    "TIMESTAMP_NTZ": [*NULLS, *TIMES, dt.datetime.min, dt.datetime.max],
    "ARRAY<INT>": [*NULLS, [1, None], (1, 2), [], np.array([1, 2]), [np.int64(1)], ["x"], [NAN], {1}, [[1]], range(3)],
    "ARRAY<DOUBLE>": [[NAN, None, -0.0], np.array([1.5, NAN]), [pd.NaT], [1]],
    "ARRAY<STRING>": [["a", None, 1]],
    "ARRAY<TIMESTAMP>": [[NAIVE, AWARE, None], [pd.Timestamp(NAIVE)], [pd.NaT], [np.datetime64(NAIVE, "ns")]],
    "ARRAY<DATE>": [[NAIVE.date(), None], [pd.Timestamp(NAIVE)], [pd.NaT], np.array(["2024-07-01"], "M8[D]")],
    "ARRAY<ARRAY<INT>>": [[[1], None, []]],
    "MAP<STRING, INT>": [*NULLS, {"a": 1, "b": None}, {}, {"a": np.int64(2)}, [("a", 1)], {None: 1}],
    "MAP<STRING, TIMESTAMP>": [{"a": NAIVE, "b": None, "c": pd.Timestamp(NAIVE)}, {"a": pd.NaT}],
    "MAP<STRING, STRUCT<x: INT>>": [{"a": (1,), "b": None, "c": {"x": None}}],
    "STRUCT<a: INT, b: STRING>": [*NULLS, *INT_OR_TEXT, Row(b="x", a=1)],
    "STRUCT<t: TIMESTAMP, d: DATE>": [(NAIVE, NAIVE.date()), {"t": AWARE}, Row(t=pd.Timestamp(NAIVE), d=AWARE)]
    + [(pd.NaT, None), (None, pd.NaT)],
    "STRUCT<r: STRUCT<x: DOUBLE>, a: ARRAY<TIMESTAMP_NTZ>>": [((1.5,), [NAIVE]), (None, None), {"r": {"x": NAN}}],
}
"""Spark type -> values that somebody might write into a state of it."""
TABLE = [(ddl, value) for ddl, values in VALUES.items() for value in values]
SAMPLE = [
    *[(ddl, value) for ddl in VALUES for value in [None, np.datetime64("NaT", "ns")]],
    *[("INT", 1), ("LONG", np.int64(7)), ("FLOAT", 0.1), ("DOUBLE", NAN), ("DECIMAL(10, 2)", D("1.005"))],
    *[("STRING", 1e7), ("STRING", "\u00e9"), ("BINARY", b"x\x00"), ("BOOLEAN", np.bool_(True)), ("INT", NAN)],
    *[(ddl, value) for ddl in ("DATE", "TIMESTAMP", "TIMESTAMP_NTZ") for value in (NAIVE, AWARE, pd.Timestamp(NAIVE))],
    *[("ARRAY<TIMESTAMP>", [NAIVE, AWARE, None]), ("MAP<STRING, INT>", {"a": 1, "b": None})],
    ("STRUCT<t: TIMESTAMP, d: DATE>", (pd.Timestamp(NAIVE), NAIVE.date())),
]
"""What both take, for one query."""


def text(value: Any) -> str:
    """What a state gives back; `fold` says nothing in it."""
    return repr(value).replace(", fold=1", "")


class Keeping(StatefulProcessor):
    """Writes each value into a state of its type, and notes in a file what it reads back, or why it was refused: a
    refusal of the JVM is the end of Spark's connection to it."""

    def __init__(self, table: Sequence[tuple[str, Any]], first: int, notes: Path, pandas: bool = False) -> None:
        self.table, self.first, self.notes, self.pandas = table, first, str(notes), pandas

    def init(self, handle: StatefulProcessorHandle) -> None:
        """A value state of each type."""
        types = dict.fromkeys(ddl for ddl, _ in self.table)
        self.states = {ddl: handle.getValueState(f"s{n}", f"x {ddl}") for n, ddl in enumerate(types)}

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """The rest of the table; a line for each value."""
        for _ in rows:
            pass
        for number, (ddl, value) in enumerate(self.table):
            if number < self.first:
                continue
            state = self.states[ddl]
            try:
                state.clear()
                state.update((value,))
                told = text(state.get()[0])
            except Exception as error:
                told = f"refused: {error!s}".replace("\n", " ")
            with open(self.notes, "a", encoding="utf-8") as notes:
                notes.write(f"{number} {told}\n")
            if told.startswith("refused: Error "):
                break
        yield pd.DataFrame({"k": [key[0]]}) if self.pandas else Row(k=key[0])


RESULTS: dict[str, list[Any]] = {
    "BOOLEAN": [None, True, np.bool_(False)],
    "BYTE": [None, 127, np.int8(-3)],
    "SHORT": [None, -300, np.int16(3)],
    "INT": [None, 2**31 - 1, np.int32(5)],
    "LONG": [None, -(2**63), np.int64(7)],
    "FLOAT": [None, 0.1, NAN, -0.0, np.float32(0.1)],
    "DOUBLE": [None, 0.1, NAN, float("inf"), np.float64(2.5)],
    "DECIMAL(10, 2)": [None, D("1.05"), D("12345678.12")],
    "STRING": [None, "", "\u00e9\U0001f600", np.str_("y")],
    "BINARY": [None, b"", b"x\x00\xff"],
    "DATE": [None, NAIVE.date(), pd.Timestamp(NAIVE), dt.date.min, dt.date.max],
    "TIMESTAMP": [None, NAIVE, AWARE, pd.Timestamp(NAIVE), pd.Timestamp(AWARE)],
    "TIMESTAMP_NTZ": [None, NAIVE, pd.Timestamp(NAIVE)],
    "INTERVAL DAY TO SECOND": [None, dt.timedelta(days=-1, microseconds=1), pd.Timedelta("1D 1us")],
    "ARRAY<INT>": [None, [1, None], [], np.array([1, 2])],
    "MAP<STRING, INT>": [None, {"a": 1, "b": None}, {}],
    "STRUCT<a: INT, t: TIMESTAMP>": [None, {"a": 1, "t": AWARE}, {"a": None, "t": None}],
}
"""Spark type -> results that Spark takes."""
RESULT_TABLE = [(ddl, value) for ddl, values in RESULTS.items() for value in values]


def result_schema(table: Sequence[tuple[str, Any]]) -> str:
    """A column for each type."""
    columns = [f"c{n} {ddl}" for n, ddl in enumerate(dict.fromkeys(ddl for ddl, _ in table))]
    return ", ".join(["number INT", *columns])


class Giving(StatefulProcessor):
    """Gives each value as a result, in a column of its type."""

    def __init__(self, table: Sequence[tuple[str, Any]], pandas: bool = False) -> None:
        self.table, self.pandas = table, pandas

    def init(self, handle: StatefulProcessorHandle) -> None:
        """No state."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """All of them, for the first key."""
        for _ in rows:
            pass
        names = {ddl: f"c{n}" for n, ddl in enumerate(dict.fromkeys(ddl for ddl, _ in self.table))}
        for number, (ddl, value) in enumerate(self.table):
            row = {"number": number, **dict.fromkeys(names.values()), names[ddl]: value}
            if self.pandas:
                columns = {name: pd.Series([one], dtype=object) for name, one in row.items()}
                yield pd.DataFrame({**columns, "number": [number]})
            else:
                yield Row(**row)
