"""Sources of which a job uses some columns: rows, positions, counts and refusals stay the same."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.connectors.files_read import read_all, write
from tidegate.connectors.datagen import DataGen
from tidegate.connectors.files.source.files import Files
from tidegate.connectors.interface import SourceContext
from tidegate.connectors.spark.materialised_splits import splits_of_files
from tidegate.connectors.spark.spark_source import SparkTable
from tidegate.errors import PipelineError

BAD_TEXT = pa.Array.from_buffers(pa.string(), 3, pa.array([b"a", b"\xff", b"c"], pa.binary()).buffers())
"""The second value is not UTF-8."""


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"n": [1, 2, 3], "m": [4, 5, 6], "s": BAD_TEXT}), path)
    return path


def test_parquet_columns_that_are_not_used_are_not_read(parquet: Path) -> None:
    found = read_all(Files(parquet).reading_only(["m"]))
    assert found.rows == [{"m": 4}, {"m": 5}, {"m": 6}]
    with pytest.raises(PipelineError, match="cannot be read"):
        read_all(Files(parquet).reading_only(["m", "s"]))


@pytest.mark.parametrize("on_bad_record", ["skip", "dead_letter"])
def test_a_row_that_is_left_out_for_its_text_is_left_out_whoever_reads_the_text(
    parquet: Path, on_bad_record: str
) -> None:
    source = Files(parquet, on_bad_record=on_bad_record)  # type: ignore[arg-type]
    whole, used = read_all(source), read_all(source.reading_only(["n"]))
    assert [row["n"] for row in used.rows] == [row["n"] for row in whole.rows] == [1, 3]
    assert (used.bad, used.counters) == (whole.bad, whole.counters)
    assert [split.position for split in used.splits] == [split.position for split in whole.splits]
    assert "m" not in used.rows[0], "a number cannot make a record bad"


@pytest.mark.parametrize(
    ("name", "text"),
    [("a.csv", "n,m\n1,2\nx,3\n4,5\n"), ("a.jsonl", '{"n":1,"m":2}\n{"n":"x","m":3}\n{"n":4,"m":5}\n')],
)
def test_a_bad_value_in_a_text_file_is_found_in_a_column_that_is_not_used(tmp_path: Path, name: str, text: str) -> None:
    path = write(tmp_path / name, text)
    schema = pa.schema([("n", pa.int64()), ("m", pa.int64())])
    skipping = read_all(Files(path, schema=schema, on_bad_record="skip").reading_only(["m"]))
    assert [row["m"] for row in skipping.rows] == [2, 5]
    assert skipping.counters == {"bad_records": 1}
    with pytest.raises(PipelineError, match="cannot be read"):
        read_all(Files(path, schema=schema).reading_only(["m"]))


def test_files_are_compared_in_all_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1], "m": [2], "s": ["x"]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": [3], "new": [4]}), tmp_path / "b.parquet")
    schema = pa.schema([("n", pa.int64()), ("m", pa.int64()), ("s", pa.string())])
    found = read_all(Files(tmp_path, schema=schema).reading_only(["n"]))
    assert [row["n"] for row in found.rows] == [1, 3]
    assert found.counters == {"missing_fields": 2, "new_fields": 1}
    with pytest.raises(PipelineError, match="no column 'm'"):
        read_all(Files(tmp_path).reading_only(["n"]))


def test_rows_of_a_file_without_any_used_column_are_kept(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(10)}), tmp_path / "a.parquet")
    schema = pa.schema([("n", pa.int64()), ("m", pa.int64())])
    source = Files(tmp_path, schema=schema).reading_only(["m"])
    (split,) = source.discover(1)
    assert read_all(source).rows == [{"m": None}] * 10
    reader = source.create_reader(SourceContext("files", 0, 1))
    reader.add_splits([split.__class__(**{**vars(split), "position": {"at": 4, "rows": 4}})])
    batch = reader.poll(0).batch
    assert batch is not None and batch.num_rows == 6


def test_rows_that_spark_wrote_are_read_by_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": [1, 2], "m": [3, 4]}), tmp_path / "a.parquet")
    schema = pa.schema([("n", pa.int64()), ("m", pa.int64())])
    splits = splits_of_files([str(tmp_path / "a.parquet")], schema, {}, 1)
    source = SparkTable("rows", schema=schema)
    found = read_all(source.reading_only(["m"]), splits)
    assert found.rows == [{"m": 3}, {"m": 4}]
    assert not found.counters
    assert read_all(source, splits).rows == [{"n": 1, "m": 3}, {"n": 2, "m": 4}]


def test_a_source_that_makes_whole_rows_makes_whole_rows() -> None:
    source = DataGen(lambda n: {"n": n, "m": n}, pa.schema([("n", pa.int64()), ("m", pa.int64())]), rows=2)
    assert source.reading_only(["m"]) is source
