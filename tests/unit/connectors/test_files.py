"""Files: which files, which columns, which errors."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tidegate.connectors.files.source.file_formats import MAX_BATCH_ROWS, format_of
from tidegate.connectors.files.source.files import MIN_SPLIT_ROWS, Files
from tidegate.connectors.interface import Source, SourceContext, Split
from tidegate.errors import OptionError, PipelineError


def read(source: Source, splits: Sequence[Split] | None = None) -> list[dict[str, Any]]:
    reader = source.create_reader(SourceContext("files", 0, 1))
    reader.add_splits(source.discover(1) if splits is None else splits)
    seen: list[dict[str, Any]] = []
    while (polled := reader.poll(0)).batch is not None:
        seen += polled.batch.to_pylist()
    assert polled.state == "end"
    return seen


def numbers_of(source: Source) -> list[int]:
    return [row["n"] for row in read(source)]


def write(path: Path, numbers: Sequence[int], **more: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": pa.array(numbers, pa.int64())}), path, **more)
    return path


def test_a_folder_is_read_to_the_bottom_in_order_of_paths_without_hidden_names(tmp_path: Path) -> None:
    write(tmp_path / "b.parquet", [3])
    write(tmp_path / "a" / "x.parquet", [1])
    write(tmp_path / "a" / "y.parquet", [2])
    write(tmp_path / "_tidegate" / "z.parquet", [9])
    write(tmp_path / ".hidden.parquet", [9])
    write(tmp_path / "a" / "_tmp" / "z.parquet", [9])
    (tmp_path / "_SUCCESS").touch()
    assert numbers_of(Files(tmp_path)) == [1, 2, 3]


def test_a_folder_whose_own_path_has_a_hidden_part_is_read(tmp_path: Path) -> None:
    write(tmp_path / "_data" / "a.parquet", [1])
    assert numbers_of(Files(tmp_path / "_data")) == [1]


def test_globs_match_files_and_folders_and_no_file_is_read_twice(tmp_path: Path) -> None:
    write(tmp_path / "day=1" / "a.parquet", [1])
    write(tmp_path / "day=2" / "a.parquet", [2])
    write(tmp_path / "other" / "a.parquet", [9])
    assert numbers_of(Files(tmp_path / "day=*")) == [1, 2]
    assert numbers_of(Files([tmp_path / "day=*" / "*.parquet", tmp_path / "day=1"])) == [1, 2]


def test_several_paths_are_read_in_the_order_given(tmp_path: Path) -> None:
    paths = [write(tmp_path / "b.parquet", [1]), write(tmp_path / "a.parquet", [2])]
    assert numbers_of(Files(paths)) == [1, 2]


def test_any_fsspec_url_can_be_read() -> None:
    with fsspec.open("memory://files/in.csv", "wb") as file:
        file.write(b"n\n1\n2\n")
    assert numbers_of(Files("memory://files/*.csv")) == [1, 2]


def test_csv_types_are_found_nulls_kept_and_line_breaks_in_quotes_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('n,x,text,at,none\n1,1.5,"two\nlines",2013-01-01T05:00:00Z,\n,,,,\n')
    source = Files(tmp_path / "a.csv")
    assert source.schema() == pa.schema(
        [
            ("n", pa.int64()),
            ("x", pa.float64()),
            ("text", pa.string()),
            ("at", pa.timestamp("s", "UTC")),
            ("none", pa.string()),
        ]
    )
    first, second = read(source)
    assert (first["n"], first["text"], first["none"]) == (1, "two\nlines", None)
    assert set(second.values()) == {None}


def test_the_texts_that_mean_null_can_be_chosen(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("code\nNA\n-\n")
    assert [r["code"] for r in read(Files(tmp_path / "a.csv", null_values=["-"]))] == ["NA", None]


def test_compressed_csv_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"n\n1\n") + gzip.compress(b"2\n"))
    assert numbers_of(Files(tmp_path)) == [1, 2]


def test_json_lines_may_lack_members(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1, "tags": ["x"]}\n{"tags": []}\n')
    assert read(Files(tmp_path)) == [{"n": 1, "tags": ["x"]}, {"n": None, "tags": []}]


def test_columns_are_read_in_the_order_asked_in_every_format(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": ["x"], "c": [2.0]}), tmp_path / "t.parquet")
    (tmp_path / "t.csv").write_text("a,b,c\n1,x,2.0\n")
    (tmp_path / "t.json").write_text('{"a": 1, "b": "x", "c": 2.0}\n')
    for name in ("t.parquet", "t.csv", "t.json"):
        source = Files(tmp_path / name, columns=["c", "a"])
        assert source.schema().names == ["c", "a"]
        assert [tuple(row.items()) for row in read(source)] == [(("c", 2.0), ("a", 1))]


def test_dictionary_columns_arrive_as_their_values(tmp_path: Path) -> None:
    pq.write_table(pa.table({"s": pa.array(["x", "y", "x"]).dictionary_encode()}), tmp_path / "a.parquet")
    source = Files(tmp_path)
    assert source.schema() == pa.schema([("s", pa.string())])
    assert [r["s"] for r in read(source)] == ["x", "y", "x"]


def test_given_types_are_applied_in_every_format(tmp_path: Path) -> None:
    schema = pa.schema([("n", pa.float32())])
    write(tmp_path / "t.parquet", [1])
    (tmp_path / "t.csv").write_text("n\n1\n")
    (tmp_path / "t.json").write_text('{"n": 1, "more": 2}\n')
    for name in ("t.csv", "t.json"):
        assert read(Files(tmp_path / name, schema=schema)) == [{"n": 1.0}]
    with pytest.raises(PipelineError, match="int64 in this file, but float is expected"):
        Files(tmp_path / "t.parquet", schema=schema).discover(1)


def test_a_parquet_file_with_many_rows_is_cut_at_row_groups_for_each_subtask(tmp_path: Path) -> None:
    rows = 4 * MIN_SPLIT_ROWS
    write(tmp_path / "a.parquet", range(rows), row_group_size=MIN_SPLIT_ROWS // 2)
    source = Files(tmp_path)
    splits = source.discover(2)
    assert [split.data["groups"] for split in splits] == [[0, 4], [4, 8]]
    assert len(source.discover(1)) == 1
    assert [row["n"] for split in splits for row in read(source, [split])] == list(range(rows))


def test_batches_of_large_row_groups_are_bounded(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", range(3 * MAX_BATCH_ROWS))
    source = Files(tmp_path)
    reader = source.create_reader(SourceContext("files", 0, 1))
    reader.add_splits(source.discover(1))
    sizes = []
    while (polled := reader.poll(0)).batch is not None:
        sizes.append(polled.batch.num_rows)
    assert max(sizes) <= MAX_BATCH_ROWS
    assert sum(sizes) == 3 * MAX_BATCH_ROWS


def test_files_without_rows_are_no_error(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [])
    write(tmp_path / "b.parquet", [1])
    (tmp_path / "empty.parquet").touch()
    assert numbers_of(Files(tmp_path)) == [1]


@pytest.mark.parametrize("name", ["not-there.parquet", "not-there/*.csv", "empty"])
def test_a_path_without_files_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(PipelineError, match="no input file") as caught:
        Files(tmp_path / name).schema()
    assert f"{tmp_path}/{name}" in str(caught.value)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ({"n": [1]}, {"m": [1]}, "no column 'n'"),
        ({"n": [1]}, {"n": ["x"]}, "column 'n' has type string in this file, but int64 is expected"),
        ({"n": [1]}, {"n": [1], "m": [1]}, "a new column 'm'"),
    ],
)
def test_files_that_differ_are_both_named(tmp_path: Path, first: Any, second: Any, said: str) -> None:
    pq.write_table(pa.table(first), tmp_path / "a.parquet")
    pq.write_table(pa.table(second), tmp_path / "b.parquet")
    with pytest.raises(PipelineError, match=said) as caught:
        Files(tmp_path, on_new_field="fail").discover(1)
    assert "a.parquet" in str(caught.value)
    assert "b.parquet" in str(caught.value)


def test_csv_headers_that_differ_are_found_before_the_start(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n")
    (tmp_path / "b.csv").write_text("n,m\n1,2\n")
    with pytest.raises(PipelineError, match="a new column 'm'"):
        Files(tmp_path, on_new_field="fail").discover(1)


def test_csv_columns_in_another_order_are_taken_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("n,m\n1,2\n")
    (tmp_path / "b.csv").write_text("m,n\n4,3\n")
    assert read(Files(tmp_path)) == [{"n": 1, "m": 2}, {"n": 3, "m": 4}]


def test_a_wrong_value_far_into_a_csv_file_names_file_offset_and_column(tmp_path: Path) -> None:
    padding = "x" * 60
    lines = ["skipped,n", *(f"{padding},{i}" for i in range(100_000)), "x,oops"]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    with pytest.raises(
        PipelineError, match=r"a\.csv, offset 6,688,900.*column 'n' has a value that is no int64.*oops.*schema="
    ):
        read(Files(tmp_path / "a.csv", columns=["n"]))


def test_a_json_member_that_was_not_in_the_head_is_an_error_where_new_ones_are(tmp_path: Path) -> None:
    lines = ['{"n": 1, "padding": "' + "x" * 1000 + '"}'] * 5_000 + ['{"n": 2, "late": true}']
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(PipelineError, match=r"a new column 'late'.*a\.jsonl"):
        read(Files(tmp_path, on_new_field="fail"))


def test_a_file_that_changed_after_the_start_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [1])
    source = Files(tmp_path)
    splits = source.discover(1)
    write(tmp_path / "a.parquet", range(1_000))
    with pytest.raises(PipelineError, match=r"changed.*a\.parquet|a\.parquet.*changed") as caught:
        read(source, splits)
    assert "a.parquet" in str(caught.value)


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [1])
    source = Files(tmp_path)
    splits = source.discover(1)
    path.unlink()
    with pytest.raises(PipelineError, match=r"an input file is missing.*a\.parquet"):
        read(source, splits)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1 this is not Parquet")
    with pytest.raises(PipelineError, match=r"the input file cannot be read.*a\.parquet"):
        Files(tmp_path).schema()


@pytest.mark.parametrize(("name", "said"), [("a.txt", "is unknown"), ("a.csv", "different formats")])
def test_a_file_of_unknown_or_mixed_format_is_named(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / name).write_text("n\n1\n")
    write(tmp_path / "b.parquet", [1])
    with pytest.raises(PipelineError, match=said):
        Files(tmp_path).schema()


def test_a_column_that_is_not_there_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", [1])
    with pytest.raises(PipelineError, match=r"column 'm' does not exist.*columns are n"):
        Files(tmp_path, columns=["m"]).schema()


def test_no_path_at_all_is_refused() -> None:
    with pytest.raises(OptionError, match="empty list of paths"):
        Files([])


@pytest.mark.parametrize("wrong", [{"format": "orc"}, {"columns": "n"}, {"null_values": "NA"}])
def test_a_wrong_argument_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        Files("x", **wrong)


def test_the_format_is_told_from_the_last_suffix_before_a_compression() -> None:
    assert [format_of(n) for n in ("a.csv", "a.CSV.gz", "x.y/a.ndjson", "a.parquet", "csv", "a.gz", "a.txt")] == [
        "csv",
        "csv",
        "json",
        "parquet",
        None,
        None,
        None,
    ]
