"""Files that change while a job, or a snapshot of it, uses them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.connectors.files_read import read_all, write
from tidegate.connectors.files.source.files import Files
from tidegate.connectors.interface import Source, SourceContext
from tidegate.connectors.replay import Replay
from tidegate.errors import PipelineError

OLD, NEW = "n,at\n1,1\n2,2\n", "n,at\n8,8\n9,9\n"
HOUR_NS = 3_600 * 10**9


def changed(path: Path, text: str = NEW) -> None:
    """Of the same size, and written an hour later."""
    written_ns = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(written_ns + HOUR_NS, written_ns + HOUR_NS))


def files(path: Path) -> Source:
    return Files(path)


def replay(path: Path) -> Source:
    return Replay(path, time_column="at", at_end="end")


SOURCES = pytest.mark.parametrize("make", [files, replay])


@SOURCES
def test_another_file_of_the_same_size_is_refused_by_name(tmp_path: Path, make: Callable[[Path], Source]) -> None:
    path = write(tmp_path / "a.csv", OLD)
    splits = make(path).discover(1)
    changed(path)
    with pytest.raises(PipelineError, match=r"changed after.*a\.csv.*written at"):
        read_all(make(path), splits)


@SOURCES
def test_a_preflight_tells_of_a_changed_file(tmp_path: Path, make: Callable[[Path], Source]) -> None:
    path = write(tmp_path / "a.csv", OLD)
    splits = make(path).discover(1)
    assert make(path).unavailable_splits(splits) == []
    changed(path)
    told = make(path).unavailable_splits(splits)
    assert told is not None
    assert [why for _, why in told] == [told[0][1]]
    assert "written at" in told[0][1]


def test_a_text_file_that_is_written_on_while_it_is_read_fails_with_its_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "n\n" + "1\n" * 2_000_000)
    source = Files(path)
    reader = source.create_reader(SourceContext("files", 0, 1))
    reader.add_splits(source.discover(1))
    assert reader.poll(0).batch is not None
    with path.open("a") as file:
        file.write("2\n")
    with pytest.raises(PipelineError, match=r"changed after.*a\.csv.*4,000,002 bytes when .* has 4,000,004 now"):
        reader.poll(0)


def test_a_parquet_file_that_is_replaced_while_it_is_read_fails_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": range(10)}), path)
    source = Files(path)
    reader = source.create_reader(SourceContext("files", 0, 1))
    reader.add_splits(source.discover(1))
    assert reader.poll(0).batch is not None
    pq.write_table(pa.table({"n": range(10, 20)}), tmp_path / "new")
    os.replace(tmp_path / "new", path)
    os.utime(path, ns=(HOUR_NS, HOUR_NS))
    with pytest.raises(PipelineError, match=r"changed after.*a\.parquet"):
        reader.poll(0)


def test_a_snapshot_holds_what_the_file_was(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", OLD)
    data = Files(path).discover(1)[0].data
    assert (data["size_bytes"], data["mtime"], data["etag"]) == (len(OLD), str(path.stat().st_mtime), None)
