"""Rows as a StatefulProcessor takes and gives them: as PySpark's worker makes and takes them."""

from __future__ import annotations

import datetime as dt
import gc
import pickle
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row

from tidegate.compat.pyspark_stateful import processor_rows
from tidegate.compat.pyspark_stateful.frame_blocks import (
    block_columns,
    block_parts,
    frame_access,
    public_columns,
    public_parts,
)
from tidegate.compat.pyspark_stateful.processor_rows import PandasFrames, RowObjects
from tidegate.errors import PipelineError

BERLIN = pa.timestamp("us", "Europe/Berlin")
NOON = dt.datetime(2024, 7, 1, 12, tzinfo=dt.UTC)


def keys(batch: pa.RecordBatch) -> Any:
    """One key for all rows."""
    return SimpleNamespace(rows=np.zeros(batch.num_rows, np.int32), size=1, columns=lambda: batch.slice(0, 1))


def frames(schema: pa.Schema) -> PandasFrames:
    return PandasFrames(schema, "It", "here")


def given(rows: Any, *results: Any) -> list[dict[str, Any]]:
    for result in results:
        rows.add(result, "handleInputRows")
    return [row for batch in rows.batches() for row in batch.to_pylist()]


def test_an_instant_that_a_frame_brings_is_the_same_when_it_is_given_back() -> None:
    """Its wall time is that of UTC on both ways, as in a Spark session of UTC, whatever zone the column has."""
    batch = pa.record_batch([pa.array([NOON], BERLIN), pa.array([12])], names=["at", "n"])
    rows = frames(pa.schema([("at", pa.timestamp("us", "UTC"))]))
    (frame,) = rows.by_key(batch, keys(batch)).of(0)
    assert frame["at"][0] == pd.Timestamp("2024-07-01 12:00")
    assert rows.keys(keys(batch))[0][0] == pd.Timestamp("2024-07-01 12:00")
    assert given(rows, frame[["at"]]) == [{"at": NOON}]


def test_a_dictionary_brings_its_values_to_a_frame() -> None:
    """Categories of one key would be those of all."""
    words = pa.array(["x", "y", "x", None]).dictionary_encode()
    batch = pa.record_batch([words, pa.array([1, 2, 3, 4])], names=["word", "n"])
    (frame,) = frames(pa.schema([("n", pa.int64())])).by_key(batch.slice(1), keys(batch.slice(1))).of(0)
    assert frame["word"].dtype == np.object_ and frame["word"].tolist() == ["y", "x", None]


def test_columns_of_a_frame_that_nobody_declared_are_left_out() -> None:
    """By name, or by position where no column has a name: as in Spark."""
    rows = frames(pa.schema([("k", pa.string()), ("n", pa.int64())]))
    named, numbered = pd.DataFrame({"n": [1], "beside": ["x"], "k": ["a"]}), pd.DataFrame({0: ["b"], 1: [2], 2: [None]})
    assert given(rows, named, numbered) == [{"k": "a", "n": 1}, {"k": "b", "n": 2}]


def test_frames_without_rows_give_nothing_and_are_not_kept() -> None:
    rows = frames(pa.schema([("k", pa.string())]))
    empty = pd.DataFrame({"k": []})
    kept = weakref.ref(empty)
    assert given(rows, empty, pd.DataFrame()) == []
    del empty
    gc.collect()
    assert kept() is None


def test_whole_numbers_are_of_64_bits_in_a_frame_and_none_becomes_another() -> None:
    columns = [pa.array([1, 2], pa.int8()), pa.array([2**64 - 1, 0], pa.uint64()), pa.array([1, None], pa.int32())]
    batch = pa.record_batch(columns, names=["small", "large", "gaps"])
    (frame,) = frames(pa.schema([("n", pa.int64())])).by_key(batch, keys(batch)).of(0)
    assert list(map(str, frame.dtypes)) == ["int64", "uint64", "float64"] and frame["large"][0] == 2**64 - 1


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"k": ["a"]}),
        pd.DataFrame({"k": ["a"], "m": [1]}),
        pd.DataFrame([["a", 1, 2]], columns=["k", "n", "n"]),
        pd.DataFrame({0: ["a"]}),
    ],
)
def test_a_frame_without_a_declared_column_is_refused(frame: Any) -> None:
    with pytest.raises(PipelineError, match="outputStructType") as refused:
        given(frames(pa.schema([("k", pa.string()), ("n", pa.int64())])), frame)
    assert "['k', 'n'] are declared" in refused.value.cause


@pytest.mark.parametrize("variant", ["row", "pandas"])
@pytest.mark.parametrize(
    "type_", [pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.duration("us"), pa.int64()]
)
def test_what_pandas_has_for_null_is_null_in_results(type_: pa.DataType, variant: str) -> None:
    """Once NaT was the date 0001-01-01, and a bare ValueError at times."""
    schema = pa.schema([("x", type_), ("a", pa.list_(type_)), ("r", pa.struct([("y", type_)]))])
    for missing in (pd.NaT, pd.NA, None):
        values = {"x": missing, "a": [missing], "r": {"y": missing}}
        rows: Any = RowObjects(schema, "It", "here") if variant == "row" else frames(schema)
        result = (
            Row(**values)
            if variant == "row"
            else pd.DataFrame({k: pd.Series([v], dtype=object) for k, v in values.items()})
        )
        assert given(rows, result) == [{"x": None, "a": [None], "r": {"y": None}}]


def test_what_a_row_does_not_have_is_null() -> None:
    """As in Spark, whether its name or only its value is missing; and its names may be in any order."""
    rows = RowObjects(pa.schema([("k", pa.string()), ("n", pa.int64())]), "It", "here")
    short = Row("k", "n")("a")
    assert given(rows, short, Row(k="b"), Row(n=3, k="c", other=1)) == [
        {"k": "a", "n": None},
        {"k": "b", "n": None},
        {"k": "c", "n": 3},
    ]


def by_two_keys(batch: pa.RecordBatch, *owners: int) -> Any:
    """Rows of two keys."""
    return SimpleNamespace(rows=np.array(owners, np.int32), size=2, columns=lambda: batch.slice(0, 2))


def test_an_input_row_does_what_a_row_of_pyspark_does() -> None:
    """Also where a column has the name of a method, two have one name, or a name is no identifier."""
    names = ["n", "count", "n", "two words", "__odd"]
    batch = pa.record_batch([pa.array([i]) for i in range(5)], names=names)
    (made,) = RowObjects(pa.schema([("n", pa.int64())]), "It", "here").by_key(batch, keys(batch)).of(0)
    row = Row(*names)(0, 1, 2, 3, 4)
    assert isinstance(made, Row) and made == row and repr(made) == repr(row) and hash(made) == hash(row)
    assert (made.n, made["n"], made["count"], made["two words"], made[4]) == (0, 0, 1, 3, 4)
    assert made.count(2) == row.count(2) == 1 and "count" in made and "other" not in made
    assert made.asDict() == row.asDict() and tuple(made) == (0, 1, 2, 3, 4)
    assert getattr(made, "two words") == 3
    for missing in ("other", "__odd"):
        with pytest.raises(AttributeError):
            getattr(made, missing)
    with pytest.raises(Exception, match="READ_ONLY"):
        made.n = 1
    again = pickle.loads(pickle.dumps(made))  # noqa: S301 - its own
    assert type(again) is Row and again == made and again.asDict() == made.asDict()


@pytest.mark.parametrize("way", ["blocks", "public"])
def test_a_frame_of_one_key_can_be_changed_and_others_do_not_see_it(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if way == "public":
        monkeypatch.setattr(processor_rows, "frame_access", lambda: (public_parts, public_columns))
    columns = [pa.array([1, 2, 3, 4]), pa.array(["a", "b", "c", "d"]), pa.array([NOON] * 4, BERLIN)]
    batch = pa.record_batch(columns, names=["n", "word", "at"])
    rows = frames(batch.schema)
    groups = rows.by_key(batch, by_two_keys(batch, 0, 1, 0, 1))
    (first,), (second,) = groups.of(0), groups.of(1)
    first.loc[0, "n"] = 7
    first["n"] += 1
    first.index.name = first.columns.name = "mine"
    assert first["n"].tolist() == [8, 4] and second["n"].tolist() == [2, 4]
    assert list(second.index) == [0, 1] and second.index.name is None
    assert second["word"].tolist() == ["b", "d"]
    assert [row["n"] for row in given(rows, first, second)] == [8, 4, 2, 4]


def test_this_pandas_has_the_blocks_that_make_frames_fast() -> None:
    """Else the public way would be used, and nobody would notice."""
    assert frame_access() == (block_parts, block_columns)


def test_columns_of_frames_with_differing_types_are_joined_as_each_frame_would_be_read() -> None:
    rows = frames(pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))]))
    utc, naive = pd.Timestamp(NOON), pd.Timestamp(NOON).tz_convert(None)
    results = [
        pd.DataFrame({"n": [1], "at": [utc]}),
        pd.DataFrame({"n": [2], "at": [utc]}),
        pd.DataFrame({"n": pd.array([3, None], dtype="Int64"), "at": [naive, pd.NaT]}),
        pd.DataFrame({"n": [5.0], "at": pd.Series([None], dtype=object)}),
    ]
    at = [NOON, NOON, NOON, None, None]
    assert given(rows, *results) == [{"n": n, "at": t} for n, t in zip([1, 2, 3, None, 5], at, strict=True)]


def test_results_beyond_a_part_are_converted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_rows, "CONVERTED_ROWS", 2)
    rows = RowObjects(pa.schema([("n", pa.int64())]), "It", "here")
    for i in range(5):
        rows.add(Row(n=i), "handleInputRows")
    (batch,) = rows.batches()
    assert batch.column("n").to_pylist() == list(range(5))
    assert list(rows.batches()) == []
