"""Records that cannot be read: refused with file and offset, skipped and counted, or given to a side output."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.connectors.files_read import read_all, write
from tidegate.connectors.files.source import text_records
from tidegate.connectors.files.source.files import Files
from tidegate.connectors.interface import Source, SourceContext, Split
from tidegate.connectors.replay import Replay
from tidegate.errors import PipelineError
from tidegate.testing.source_conformance import SourceConformance

GOOD_CSV = "n,s\n" + "".join(f"{n},row {n}\n" for n in range(50))
GOOD_JSON = "".join(json.dumps({"n": n, "s": f"row {n}"}) + "\n" for n in range(50))


def test_text_of_another_encoding_is_decoded(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "name,n\nGrößer €,1\n".encode("cp1252"))
    write(tmp_path / "b.jsonl", '{"name": "Größer €", "n": 1}\n'.encode("cp1252"))
    for name in ("a.csv", "b.jsonl"):
        assert read_all(Files(tmp_path / name, encoding="cp1252")).rows == [{"name": "Größer €", "n": 1}]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "cp037"])
def test_text_of_an_encoding_without_single_bytes_is_decoded(tmp_path: Path, encoding: str) -> None:
    rows = "".join(f"größer,{n}\n" for n in range(50_000))
    write(tmp_path / "a.csv", ("name,n\n" + rows).encode(encoding))
    source = Files(tmp_path, encoding=encoding)
    whole = read_all(source)
    assert len(whole.rows) == 50_000
    assert whole.rows[-1] == {"name": "größer", "n": 49_999}
    at = len(b"name,n\n") + sum(len(f"größer,{n}\n".encode()) for n in range(49_990))
    rest = read_all(source, [replace(source.discover(1)[0], position={"at": at, "rows": 49_990})])
    assert rest.rows == whole.rows[49_990:], "offsets are those of the text in UTF-8"


def test_half_a_character_is_a_bad_record_and_the_next_is_read(tmp_path: Path) -> None:
    text = "s\na\n".encode("utf-16-le") + b"\x00\xd8" + "\nb\n".encode("utf-16-le")
    write(tmp_path / "a.csv", text)
    found = read_all(Files(tmp_path, encoding="utf-16-le", on_bad_record="dead_letter"))
    assert found.rows == [{"s": "a"}, {"s": "b"}]
    assert [(row["offset"], row["reason"].partition(";")[0]) for row in found.bad] == [
        (4, "the record is not utf-16-le text")
    ]


def test_what_is_no_text_of_the_encoding_is_a_bad_record(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", b"s\nok\n\x81\n")
    with pytest.raises(PipelineError, match=r"offset 5.*not cp1252 text \(byte 0x81"):
        read_all(Files(tmp_path, encoding="cp1252"))


def test_text_in_a_parquet_file_that_is_none_is_a_bad_record(tmp_path: Path) -> None:
    raw = pa.array([b"a", b"\xff", b"c"], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    pq.write_table(pa.table({"n": [1, 2, 3], "s": texts}), tmp_path / "a.parquet")
    with pytest.raises(PipelineError, match=r"a\.parquet, offset 1"):
        read_all(Files(tmp_path))
    found = read_all(Files(tmp_path, on_bad_record="dead_letter"))
    assert [row["n"] for row in found.rows] == [1, 3]
    assert [(row["offset"], row["raw"]) for row in found.bad] == [(1, b"\xff")]


@pytest.mark.parametrize(
    ("name", "good", "bad", "why"),
    [
        ("a.jsonl", GOOD_JSON, '{"n": 1, "s": "cut', "not JSON: unterminated string.*character 14"),
        ("a.jsonl", GOOD_JSON, '{"n": "no number", "s": "x"}', "field 'n' has a value that is no int64"),
        ("a.jsonl", GOOD_JSON, "null", "not a JSON object"),
        ("a.jsonl", GOOD_JSON, "[1, 2]", "not a JSON object"),
        ("a.jsonl", GOOD_JSON, '{"n": 1, "s": "x"} null', "not a JSON object"),
        ("a.jsonl", GOOD_JSON, "this is no JSON", "not a JSON object"),
        ("a.jsonl", GOOD_JSON, '{"d": ' + "[" * 1500 + "]" * 1500 + "}", "levels of nested objects"),
        ("a.csv", GOOD_CSV, "1,x,more", "Expected 2 columns, got 3"),
        ("a.csv", GOOD_CSV, "1", "Expected 2 columns, got 1"),
        ("a.csv", GOOD_CSV, "one,x", "column 'n' has a value that is no int64"),
        ("a.csv", GOOD_CSV, '1,"x', "not closed"),
    ],
)
@pytest.mark.parametrize("place", [0, 25, 50])
def test_a_bad_record_is_the_only_one_that_is_lost_and_says_where_it_was(
    tmp_path: Path, name: str, good: str, bad: str, why: str, place: int
) -> None:
    lines = good.splitlines(keepends=True)
    header = lines[:1] if name.endswith("csv") else []
    records = lines[len(header) :]
    before = "".join(header + records[:place])
    path = write(tmp_path / name, before + bad + "\n" + "".join(records[place:]))
    schema = pa.schema([("n", pa.int64()), ("s", pa.string())])
    with pytest.raises(PipelineError, match=rf"{name}, offset {len(before):,}\]: .*{why}"):
        read_all(Files(path, schema=schema))
    skipped = read_all(Files(path, schema=schema, on_bad_record="skip"))
    assert [row["n"] for row in skipped.rows] == list(range(50))
    assert (skipped.bad, skipped.counters) == ([], {"bad_records": 1})
    letters = read_all(Files(path, schema=schema, on_bad_record="dead_letter"))
    assert letters.rows == skipped.rows
    assert [(r["file"], r["offset"], r["raw"]) for r in letters.bad] == [(str(path), len(before), bad.encode())]
    assert letters.counters == {"bad_records": 1}


def test_a_bad_record_in_the_head_does_not_decide_the_types(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"n": 1}\n{"n": "x"}\nbroken\n{"n": 3}\n')
    found = read_all(Files(tmp_path, on_bad_record="skip"))
    assert found.rows == [{"n": 1}, {"n": 3}]
    with pytest.raises(PipelineError, match=r"a\.jsonl, offset 20"):
        Files(tmp_path).schema()


def test_a_file_of_bad_records_alone_is_read_in_small_turns(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "n\n" + "x\n" * 5_000)
    source = Files(tmp_path, schema=pa.schema([("n", pa.int64())]), on_bad_record="skip")
    reader = source.create_reader(SourceContext("files", 0, 1))
    reader.add_splits(source.discover(1))
    reader.poll(0)
    assert 0 < reader.counters()["bad_records"] <= text_records.ISOLATED_RECORDS
    assert read_all(source).counters == {"bad_records": 5_000}


def test_a_replay_gives_each_bad_record_once_whoever_reads_the_files(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"t": 1}\nbad\n{"t": 3}\n{"t": 2}\n')
    write(tmp_path / "b.jsonl", '{"t": 4}\nworse\n')
    source = Replay(tmp_path, time_column="t", at_end="end", splits=3, on_bad_record="dead_letter")
    found = [read_all(source, [split]) for split in source.discover(2)]
    assert [row["t"] for one in found for row in one.rows] == [1, 4, 2, 3]
    assert [row["raw"] for one in found for row in one.bad] == [b"bad", b"worse"]
    again = read_all(source, [split for one in found for split in one.splits])
    assert (again.rows, again.bad, again.counters) == ([], [], {"bad_records": 2})


# ------------------------------------------------------------ positions


def bad_lines(folder: Path) -> Path:
    """Two hundred records over 18 blocks of 256 bytes, each ninth of them bad; empty lines between."""
    lines = ["not json" if n % 9 == 0 else json.dumps({"n": n, "s": f"row {n}"}) for n in range(150)]
    write(folder / "a.jsonl", "\n".join(lines) + "\n\n\n")
    write(folder / "b.jsonl", "\r\n".join(lines[:50]))
    return folder


def test_what_a_reader_has_counted_is_known_after_it_was_closed(tmp_path: Path) -> None:
    """The last heartbeat of a slot comes when its readers are closed."""
    source = Files(bad_lines(tmp_path), on_bad_record="skip")
    reader = source.create_reader(SourceContext("files", 0, 1))
    reader.add_splits(source.discover(1))
    while reader.poll(0).batch is None:
        pass
    counted, told = reader.counters(), reader.progress()
    assert counted["bad_records"] > 0
    reader.close()
    assert (reader.counters(), reader.progress()) == (counted, told)


class BadRecordSource(SourceConformance):
    """Small blocks, so that there are many positions."""

    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(text_records, "READ_BLOCK_BYTES", 256)
        monkeypatch.setattr(text_records.text_chunks, "__kwdefaults__", {"block_bytes": 256})
        monkeypatch.setattr(text_records, "ISOLATED_RECORDS", 3)
        self.input = bad_lines(tmp_path)


class TestFilesWithDeadLetters(BadRecordSource):
    def make_source(self) -> Source:
        return Files(self.input, on_bad_record="dead_letter")


class TestFilesThatSkip(BadRecordSource):
    def make_source(self) -> Source:
        return Files(self.input, on_bad_record="skip")


class TestReplayWithDeadLetters(BadRecordSource):
    def make_source(self) -> Source:
        return Replay(self.input, time_column="n", at_end="end", batch_rows=20, on_bad_record="dead_letter")


@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_compressed_file_is_read_on_from_where_it_was(tmp_path: Path, suffix: str) -> None:
    rows = b"n\n" + b"".join(b"%d\n" % n for n in range(50_000))
    path = write(
        tmp_path / f"a.csv.{suffix}",
        gzip.compress(rows) if suffix == "gz" else pa.compress(rows, codec="zstd", asbytes=True),
    )
    source = Files(path)
    split = source.discover(1)[0]
    at = len(b"n\n") + sum(len(b"%d\n" % n) for n in range(40_000))
    rest = read_all(source, [replace(split, position={"at": at, "rows": 40_000})])
    assert [row["n"] for row in rest.rows] == list(range(40_000, 50_000))
    with pytest.raises(PipelineError, match="shorter"):
        read_all(source, [replace(split, position={"at": 10**7, "rows": 40_000})])


def test_a_position_of_the_version_before_is_read_on_from(tmp_path: Path) -> None:
    """Golden: what snapshots of the version before hold. No pins, and the number of records as position."""
    write(tmp_path / "a.csv", GOOD_CSV)
    pq.write_table(pa.table({"n": range(50)}), tmp_path / "a.parquet")
    size = (tmp_path / "a.csv").stat().st_size
    text = Split("0:a", {"given": 0, "path": str(tmp_path / "a.csv"), "size_bytes": size, "groups": None}, 20)
    found = read_all(Files(tmp_path / "a.csv"), [text])
    assert [row["n"] for row in found.rows] == list(range(20, 50))
    assert found.splits[0].position == {"at": size, "rows": 50}
    size = (tmp_path / "a.parquet").stat().st_size
    table = Split("0:a", {"given": 0, "path": str(tmp_path / "a.parquet"), "size_bytes": size, "groups": [0, 1]}, 20)
    assert [row["n"] for row in read_all(Files(tmp_path / "a.parquet"), [table]).rows] == list(range(20, 50))
    played = Split(
        "r", {"index": 0, "of": 1, "files": [[0, str(tmp_path / "a.parquet"), size]]}, {"loop": 0, "rows": 20}
    )
    source = Replay(tmp_path / "a.parquet", time_column="n", at_end="end")
    assert [row["n"] for row in read_all(source, [played]).rows] == list(range(20, 50))


def test_brackets_in_strings_and_beside_each_other_are_not_deep(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", json.dumps({"s": '["\\' * 500, "l": [[]] * 500, "x": 1.5}) + "\n")
    assert [row["x"] for row in read_all(Files(tmp_path)).rows] == [1.5]


def test_a_deeply_nested_record_beside_numbers_to_look_at_is_skipped(tmp_path: Path) -> None:
    """Types are found without it: Python, which looks at the digits of numbers, would not read it."""
    deep = '{"d": ' + "[" * 1500 + "]" * 1500 + "}\n"
    write(tmp_path / "a.jsonl", '{"a": 1.5}\n' + deep + '{"a": 2.5}\n')
    found = read_all(Files(tmp_path, on_bad_record="skip"))
    assert (found.rows, found.counters) == ([{"a": 1.5}, {"a": 2.5}], {"bad_records": 1})
