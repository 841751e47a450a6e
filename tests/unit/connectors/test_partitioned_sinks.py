"""File sinks with partition columns: folders as readers understand them, what is refused, power cuts (S7.4)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.dataset as pa_dataset
import pytest

from tidegate.connectors.files.sink import file_writer
from tidegate.connectors.files.sink.encoded_file import EncodedFile, begin_on_encoder_thread
from tidegate.connectors.files.sink.file_sink import FileSink
from tidegate.connectors.files.sink.hive_partitions import hive_folder
from tidegate.connectors.files.sink.parquet import Parquet
from tidegate.connectors.files.sink.text_sinks import Csv, JsonLines
from tidegate.connectors.interface import SinkWriter
from tidegate.connectors.transactions import SinkContext
from tidegate.errors import OptionError, PipelineError, TidegateError

SINKS: list[Any] = [Parquet, Csv, JsonLines]
ODD = ["a b", "ü=/%", 'q"\\', "..", "1:2?", None, ""]
TABLE = pa.table(
    {
        "shop": pa.array(ODD * 3),
        "n": range(21),
        "day": pa.array([date(2026, 11, 21), None, date(2026, 1, 2)] * 7, pa.date32()),
        "x": [float(n) for n in range(21)],
    }
)


def writer_of(sink: FileSink, schema: pa.Schema = TABLE.schema) -> SinkWriter:
    return sink.create_writer(SinkContext("job-1", "lineage-1", "out", 0, 1, 1, "run-1", schema))


def write(sink: FileSink, table: pa.Table = TABLE) -> None:
    """Batch by batch, as one committed transaction."""
    sink.check(table.schema)
    writer = writer_of(sink, table.schema)
    for batch in table.to_batches(max_chunksize=5):
        writer.write(batch)
    writer.commit(writer.prepare_commit(1)())


def folders(root: Path) -> set[str]:
    return {f.parent.relative_to(root).as_posix() for f in root.rglob("part-*") if "_tidegate" not in f.parts}


@pytest.mark.parametrize("sink", SINKS)
def test_rows_lie_in_folders_that_name_their_values(sink: Callable[..., FileSink], tmp_path: Path) -> None:
    write(sink(tmp_path, partition_by=["day", "shop"]))
    found = folders(tmp_path)
    assert len(found) == 18, "an empty string and null share one"
    assert "day=2026-11-21/shop=a b" in found
    assert "day=__HIVE_DEFAULT_PARTITION__/shop=ü%3D%2F%25" in found
    assert {f.split("/")[0] for f in found} == {
        "day=2026-11-21",
        "day=2026-01-02",
        "day=__HIVE_DEFAULT_PARTITION__",
    }


@pytest.mark.parametrize(("sink", "kind"), list(zip(SINKS, ["parquet", "csv", "json"], strict=True)))
def test_readers_find_the_values_again(sink: Callable[..., FileSink], kind: str, tmp_path: Path) -> None:
    write(sink(tmp_path, partition_by=["day", "shop"]))
    by = pa_dataset.partitioning(pa.schema([("day", pa.date32()), ("shop", pa.string())]), flavor="hive")
    read = pa_dataset.dataset(tmp_path, format=kind, partitioning=by).to_table(columns=["shop", "n", "day", "x"])
    expected = [{**row, "shop": row["shop"] or None} for row in TABLE.to_pylist()]
    assert sorted(read.to_pylist(), key=lambda row: row["n"]) == expected
    suffix = "jsonl" if kind == "json" else kind
    query = f"select n, day, shop from read_{kind}('{tmp_path}/*/*/*.{suffix}', hive_partitioning=true)"
    rows = sorted(duckdb.connect().execute(query).fetchall())
    assert [(n, str(day)) for n, day, _ in rows] == [(r["n"], str(r["day"])) for r in expected]
    assert [shop for _, _, shop in rows] == [row["shop"] for row in expected]


@pytest.mark.parametrize("sink", SINKS)
def test_integers_booleans_and_dictionaries_are_partition_columns_too(
    sink: Callable[..., FileSink], tmp_path: Path
) -> None:
    table = pa.table(
        {
            "i": pa.array([1, None, -3], pa.int8()),
            "b": [True, False, None],
            "w": pa.array(["x", None, "x"]).dictionary_encode(),
            "n": range(3),
        }
    )
    write(sink(tmp_path, partition_by=("i", "b", "w")), table)
    null = "__HIVE_DEFAULT_PARTITION__"
    assert folders(tmp_path) == {"i=1/b=true/w=x", f"i={null}/b=false/w={null}", f"i=-3/b={null}/w=x"}


def test_files_are_cut_within_each_partition(tmp_path: Path) -> None:
    table = pa.table({"p": [n % 2 for n in range(30)], "n": range(30)})
    write(Parquet(tmp_path, partition_by="p", target_file_rows=5), table)
    per_folder = Counter(f.parent.name for f in tmp_path.glob("p=*/*.parquet"))
    assert per_folder == {"p=0": 3, "p=1": 3}


def test_more_partitions_than_files_may_be_open_are_written_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "OPEN_FILES", 3)
    monkeypatch.setattr(file_writer, "WAITING_BYTES", 100)
    table = pa.table({"p": [n % 8 for n in range(100)], "n": range(100)})
    write(JsonLines(tmp_path, partition_by="p"), table)
    read = pa_dataset.dataset(tmp_path, format="json", partitioning="hive").to_table()
    assert sorted(zip(read["n"].to_pylist(), read["p"].to_pylist(), strict=True)) == [(n, n % 8) for n in range(100)]


def test_a_value_too_long_for_a_folder_is_a_loud_failure(tmp_path: Path) -> None:
    assert hive_folder(["p"], ("ü" * 126,)) == f"p={'ü' * 126}/"
    table = pa.table({"p": ["ü" * 127], "n": [1]})
    with pytest.raises(TidegateError, match=r"'p' is too long.*256 bytes; a folder name can have at most 255"):
        writer_of(Csv(tmp_path, partition_by="p"), table.schema).write(table.to_batches()[0])


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("shops", "column 'shops' does not exist"),
        ("x", "type double cannot be a partition column"),
        ("_hidden", "begin with _"),
        (("shop", "n", "day", "x", "_hidden"), "cannot be a partition column"),
    ],
)
@pytest.mark.parametrize("sink", SINKS)
def test_what_cannot_be_partitioned_by_is_refused(
    sink: Callable[..., FileSink], columns: Any, said: str, tmp_path: Path
) -> None:
    schema = TABLE.schema.append(pa.field("_hidden", pa.string()))
    with pytest.raises(PipelineError, match=said):
        sink(tmp_path, partition_by=columns).check(schema)
    with pytest.raises(OptionError, match="named twice"):
        sink(tmp_path, partition_by=["n", "n"])
    with pytest.raises(PipelineError, match="all columns"):
        sink(tmp_path, partition_by=["n"]).check(pa.schema([("n", pa.int64())]))


@pytest.mark.parametrize("sink", SINKS)
def test_a_folder_partitioned_in_another_way_is_refused(sink: Callable[..., FileSink], tmp_path: Path) -> None:
    write(sink(tmp_path / "by", partition_by=["day", "shop"]))
    write(sink(tmp_path / "flat"))
    sink(tmp_path / "by", partition_by=["day", "shop"]).check(TABLE.schema)
    for folder, by in (("by", ()), ("by", "day"), ("by", ("shop", "day")), ("flat", "day")):
        with pytest.raises(PipelineError, match="are partitioned differently"):
            sink(tmp_path / folder, partition_by=by).check(TABLE.schema)


def test_a_partitioned_folder_of_another_schema_is_refused(tmp_path: Path) -> None:
    write(Parquet(tmp_path, partition_by="shop"))
    with pytest.raises(PipelineError, match="another schema"):
        Parquet(tmp_path, partition_by="shop").check(TABLE.schema.remove(3))


def test_every_new_folder_is_made_durable_before_the_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.4: with a marker a commit is never repeated, so a power cut may not take a folder back."""
    writer = writer_of(Parquet(tmp_path, partition_by=["day", "shop"]))
    writer.write(TABLE.to_batches()[0])
    handles = writer.prepare_commit(1)()
    synced: list[str] = []
    monkeypatch.setattr(file_writer, "sync_to_disk", synced.append)
    writer.commit(handles)
    markers = synced.index(f"{tmp_path}/_tidegate/commits")
    needed = {str(tmp_path), *(f"{tmp_path}/{folder}" for folder in folders(tmp_path))}
    assert needed | {str(Path(folder).parent) for folder in needed} - {str(tmp_path.parent)} <= set(synced[:markers])


def test_files_are_ended_behind_the_last_record_before_the_pre_commit(tmp_path: Path) -> None:
    for kind in SINKS:
        writer = writer_of(kind(tmp_path / kind.__name__, partition_by="day"))
        writer.write(TABLE.to_batches()[0])
        writer.end_input()
        begin_on_encoder_thread(lambda: None).result(20)  # what was begun before is done
        staged = list((tmp_path / kind.__name__).rglob("*.staged"))
        before = {path: path.stat() for path in staged}
        assert len(staged) == 3 and all(status.st_size > 0 for status in before.values())
        handles = writer.prepare_commit(1)()
        after = {path: path.stat() for path in staged}
        assert {p: s.st_mtime_ns for p, s in before.items()} == {p: s.st_mtime_ns for p, s in after.items()}
        assert sorted(f["bytes"] for f in handles[0].data["files"]) == sorted(s.st_size for s in after.values())


def test_a_file_that_could_not_be_ended_ahead_fails_the_pre_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once and for all: its rows may be in it in part."""
    tries: list[str] = []

    def full(file: EncodedFile) -> None:
        tries.append(file.name)
        raise OSError("disk full")

    writer = writer_of(Parquet(tmp_path))
    writer.write(TABLE.to_batches()[0])
    with monkeypatch.context() as patched:
        patched.setattr(EncodedFile, "close", full)
        writer.end_input()
        begin_on_encoder_thread(lambda: None).result(20)
    with pytest.raises(OSError, match="disk full"):
        writer.prepare_commit(1)()
    assert len(tries) == 1


def test_a_writer_that_is_closed_waits_for_files_that_are_being_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, gone = threading.Event(), threading.Event(), threading.Event()
    close = EncodedFile.close

    def slowly(file: EncodedFile) -> None:
        begun.set()
        assert go_on.wait(20)
        assert not gone.is_set(), "it was dropped meanwhile"
        close(file)

    monkeypatch.setattr(EncodedFile, "close", slowly)
    writer = writer_of(Parquet(tmp_path))
    writer.write(TABLE.to_batches()[0])
    writer.end_input()
    assert begun.wait(20)
    closing = threading.Thread(target=lambda: (writer.close(), gone.set()))
    closing.start()
    assert not gone.wait(0.05)
    go_on.set()
    closing.join(20)
    assert gone.is_set() and list(tmp_path.rglob("*.staged")) == []


def test_a_sink_says_how_it_is_partitioned(tmp_path: Path) -> None:
    assert Csv(tmp_path, partition_by="day").describe() == f"Csv({str(tmp_path)!r}, partition_by=['day'])"
    assert JsonLines(tmp_path).describe() == f"JsonLines({str(tmp_path)!r})"
