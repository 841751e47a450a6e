"""Which columns of a Parquet file have dictionaries, and how many row groups it has."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.connectors.files.sink.parquet_encoding import ParquetEncoding, dictionary_columns

ROWS = 20_000
NUMBERS = np.arange(ROWS)


def written(path: Path, *tables: pa.Table) -> pq.ParquetFile:
    file = ParquetEncoding().open(str(path), tables[0].schema)
    for table in tables:
        file.write(table)
    file.close()
    file.close()
    return pq.ParquetFile(path)


def encodings(file: pq.ParquetFile, group: int = 0) -> dict[str, bool]:
    """Column -> whether it has a dictionary."""
    found = file.metadata.row_group(group)
    columns = [found.column(n) for n in range(found.num_columns)]
    return {column.path_in_schema: "RLE_DICTIONARY" in column.encodings for column in columns}


def test_columns_whose_values_are_all_different_have_none(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": NUMBERS,
            "root": np.sqrt(NUMBERS),
            "at": pa.array(NUMBERS, pa.timestamp("us")),
            "name": [f"user-{n}" for n in NUMBERS],
            "shop": NUMBERS % 1000,
            "city": [f"city-{n % 300}" for n in NUMBERS],
            "price": NUMBERS % 500 / 100,
            "sorted": NUMBERS // 3,
        }
    )
    file = written(tmp_path / "a.parquet", table)
    different = {"id", "root", "at", "name"}
    assert encodings(file) == {name: name not in different for name in table.column_names}
    assert file.read().equals(table)


def test_values_that_come_again_at_a_distance_have_one(tmp_path: Path) -> None:
    """Judged by rows from the whole file, whatever batches they came in and whatever the period."""
    for period in (997, 1024, 4096, 5003):
        numbers = pa.table({"n": NUMBERS % period})
        table = pa.Table.from_batches(numbers.to_batches(max_chunksize=1000))
        assert dictionary_columns(table) == ["n"], period


def test_nulls_and_few_rows_are_judged_by_the_values_there_are() -> None:
    half = pa.array([n if n % 2 else None for n in range(ROWS)], pa.int64())
    table = pa.table({"half": half, "none": pa.nulls(ROWS, pa.int64()), "same": pa.array([1.0] * ROWS)})
    assert dictionary_columns(table) == ["none", "same"]
    assert dictionary_columns(pa.table({"n": [1, 2, 3]})) == []
    assert dictionary_columns(pa.table({"n": [1, 2, 2]})) == ["n"]
    assert dictionary_columns(pa.table({"n": pa.array([], pa.int64())})) is True


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string_view(), ["a", "b"]),
        (pa.binary_view(), [b"a", b"b"]),
        (pa.uuid(), [bytes(16), bytes([1] * 16)]),
        (pa.dictionary(pa.int32(), pa.string()), ["a", "b"]),
        (pa.bool_(), [True, False]),
        (pa.decimal128(9, 2), [1, 2]),
        (pa.large_string(), ["a", "b"]),
        (pa.float16(), [np.float16(1), np.float16(2)]),
        (pa.timestamp("ns", "Europe/Berlin"), [datetime(2026, 1, 1), None]),
        (pa.list_(pa.int64()), [[1, 2], None]),
        (pa.struct({"a": pa.int64()}), [{"a": 1}, {"a": 2}]),
    ],
)
def test_every_type_is_written_and_read_back(tmp_path: Path, kind: pa.DataType, values: list[Any]) -> None:
    table = pa.table({"x": pa.array(values, kind), "n": [1, 2]})
    assert written(tmp_path / "a.parquet", table).read().column("x").to_pylist() == table.column("x").to_pylist()


def test_the_first_rows_decide_for_the_whole_file(tmp_path: Path) -> None:
    first, second = pa.table({"n": NUMBERS}), pa.table({"n": NUMBERS % 5})
    file = written(tmp_path / "a.parquet", first, second)
    assert [encodings(file, group) for group in range(2)] == [{"n": False}, {"n": False}]
    assert file.metadata.num_row_groups == 2 and file.read().num_rows == 2 * ROWS


def test_a_file_without_rows_is_one(tmp_path: Path) -> None:
    file = ParquetEncoding().open(str(tmp_path / "a.parquet"), pa.schema({"n": pa.int64()}))
    file.close()
    assert pq.read_table(tmp_path / "a.parquet").schema == pa.schema({"n": pa.int64()})
