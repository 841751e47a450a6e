"""DataGen: records from row numbers (S4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from tidegate.connectors.datagen import DataGen
from tidegate.connectors.interface import Source, SourceContext, SourceReader
from tidegate.errors import OptionError, PipelineError
from tidegate.testing.source_conformance import SourceConformance

SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us"))])


def rows_of(numbers: npt.NDArray[np.int64]) -> Mapping[str, Any]:
    return {"n": numbers, "at": numbers * 1_000}


def reader_of(source: Source, parallelism: int = 1, subtask: int = 0) -> SourceReader:
    reader = source.create_reader(SourceContext("gen", subtask, parallelism))
    reader.add_splits(source.discover(parallelism)[subtask::parallelism])
    return reader


def all_numbers(reader: SourceReader) -> list[int]:
    seen: list[int] = []
    while (polled := reader.poll(0)).batch is not None:
        seen += polled.batch.column("n").to_pylist()
    assert polled.state == "end"
    return seen


class TestBounded(SourceConformance):
    def make_source(self) -> Source:
        return DataGen(rows_of, SCHEMA, rows=401, splits=3, batch_rows=17)


class TestUnboundedAndPaced(SourceConformance):
    enough_rows = 60

    def make_source(self) -> Source:
        return DataGen(rows_of, SCHEMA, splits=3, batch_rows=50, rate=900)


def test_bounded_splits_hold_contiguous_ranges_that_cover_all_rows() -> None:
    source = DataGen(rows_of, SCHEMA, rows=10)
    parts = [all_numbers(reader_of(source, 3, subtask)) for subtask in range(3)]
    assert parts == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]


def test_unbounded_splits_hold_every_nth_row() -> None:
    source = DataGen(rows_of, SCHEMA, batch_rows=4)
    batch = reader_of(source, 3, 1).poll(0).batch
    assert batch is not None
    assert batch.column("n").to_pylist() == [1, 4, 7, 10]


def test_no_rows_end_at_once() -> None:
    assert all_numbers(reader_of(DataGen(rows_of, SCHEMA, rows=0))) == []


def test_the_rate_is_that_of_all_splits_together_and_lost_time_is_made_up() -> None:
    reader = reader_of(DataGen(rows_of, SCHEMA, rate=1_000, splits=2))
    emitted = 0

    def emit_until_nothing(now_ms: int) -> int:
        nonlocal emitted
        while (polled := reader.poll(now_ms)).batch is not None:
            emitted += polled.batch.num_rows
        return polled.retry_at_ms

    again_ms = emit_until_nothing(50)
    assert emitted == 2, "the first row of each split is due at once"
    assert again_ms == 53, "one batch in 1000 / 170 ms"
    emit_until_nothing(1_050)
    assert emitted == 1_002
    emit_until_nothing(11_050)
    assert emitted == 11_002


def test_strings_and_arrow_arrays_are_taken_too() -> None:
    schema = pa.schema([("s", pa.string()), ("n", pa.int32())])
    source = DataGen(lambda n: {"n": pa.array(n, pa.int32()), "s": [f"row {i}" for i in n]}, schema, rows=2)
    batch = reader_of(source).poll(0).batch
    assert batch is not None
    assert batch.to_pylist() == [{"s": "row 0", "n": 0}, {"s": "row 1", "n": 1}]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda n: {"n": n}, r"missing \['at'\]"),
        (lambda n: {"n": n, "at": n, "x": n}, r"undeclared \['x'\]"),
        (lambda n: {"n": n[:-1], "at": n[:-1]}, "returned 4 rows for 5"),
        (lambda n: {"n": n[:-1], "at": n}, "one value per row number|cannot form one batch"),
        (lambda n: {"n": ["x"] * len(n), "at": n}, "column 'n'"),
        (lambda n: pa.record_batch({"n": n}), "a schema that differs"),
        (lambda n: [n], "returned list"),
    ],
)
def test_an_output_that_breaks_the_declaration_is_a_clear_error_naming_the_source(function: Any, said: str) -> None:
    reader = reader_of(DataGen(function, SCHEMA, rows=5))
    with pytest.raises(PipelineError, match=said) as caught:
        reader.poll(0)
    assert "'gen'" in str(caught.value)


@pytest.mark.parametrize("wrong", [{"rows": -1}, {"splits": 0}, {"batch_rows": 0}, {"rate": 0}])
def test_a_number_out_of_range_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        DataGen(rows_of, SCHEMA, **wrong)
