"""S5.2: files of RocksDB with windows are durable. Version 1 has a row for each key and pane, and timers; version 2 has
sorted runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.batches import batch_of
from driven_aggregates import Subtasks

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.snapshot.parts import Blob, StatePart

GOLDEN = Path(__file__).parent / "golden"
CONTENT = "file_content"
"""Column that these files alone add: of each file that is a blob its bytes."""
INPUT = pa.schema([("k", pa.string()), ("t", pa.timestamp("us")), ("v", pa.int64()), ("s", pa.string())])
AGGREGATES = (
    BoundAggregate("n", "count"),
    BoundAggregate("total", "sum", "v"),
    BoundAggregate("texts", "collect", "s"),
)
BOUNDS = [("window_start", pa.timestamp("us")), ("window_end", pa.timestamp("us"))]
OUTPUT = pa.schema(
    [("k", pa.string()), *BOUNDS, ("n", pa.int64()), ("total", pa.int64()), ("texts", pa.list_(pa.string()))]
)
SPEC = WindowAggSpec(("k",), "t", "us", 12, 0, AGGREGATES, INPUT, OUTPUT, (), 4, 10)
"""Overlapping windows that stay after they have fired."""


def started(folder: Path, back_end: str) -> Subtasks:
    """The state of the golden files; how they were made, with the parts of a snapshot that follows."""
    subtasks = Subtasks(SPEC, folder, back_end)
    first = [("a", 1, 5, "x"), (None, 3, None, None), ("ü", 14, 1, "long " * 9), ("a", 2, 6, "y")]
    subtasks.feed(batch_of(INPUT, first))
    subtasks.watermark(13)
    subtasks.operators[0].snapshot(0)()
    subtasks.feed(batch_of(INPUT, [("a", 5, -1, "late"), ("b", 21, 2, ""), (None, 14, 7, "z")]))
    return subtasks


def with_content(part: StatePart) -> pa.Table:
    """The table of a golden file."""
    contents = {blob.id: blob.read() for blob in part.blobs}
    column = [contents.get(id) for id in part.table.column("blob").to_pylist()]
    return part.table.append_column(CONTENT, pa.array(column, pa.binary()))


def golden_part(version: int) -> StatePart:
    with pa.ipc.open_file(pa.OSFile(str(GOLDEN / f"windows-rocksdb-v{version}.arrow"))) as reader:
        table = reader.read_all()
    rows = zip(table.column("blob").to_pylist(), table.column(CONTENT).to_pylist(), strict=True)
    blobs = tuple(Blob(id, lambda data=data: data) for id, data in rows if id is not None)  # type: ignore[misc]
    return StatePart("rocksdb", "keyed", table.drop_columns([CONTENT]), (), blobs, "rocksdb")


def rest_of(subtasks: Subtasks) -> list[Any]:
    """The results that subtasks with the state of `started` emit afterwards."""
    told = subtasks.feed(batch_of(INPUT, [("a", 4, 100, "later"), ("ü", 9, 3, "w"), ("c", 30, 1, "c")]))
    told += subtasks.watermark(25) + subtasks.watermark(MAX_WATERMARK)
    return sorted(told, key=repr)


@pytest.mark.parametrize("version", [1, 2])
def test_files_of_each_version_are_restored(tmp_path: Path, version: int) -> None:
    memory = started(tmp_path / "memory", "heap")
    (operator,) = memory.operators
    progress = next(part for part in operator.snapshot(1)() if part.name == "progress")
    stored = Subtasks(SPEC, tmp_path / "stored", "rocksdb")
    stored.operators[0].restore([golden_part(version), progress])
    assert rest_of(stored) == rest_of(memory)
    stored.close()


def test_the_golden_file_holds_what_is_written_today(tmp_path: Path) -> None:
    """Columns and metadata of the table; the files themselves are RocksDB's."""
    subtasks = started(tmp_path, "rocksdb")
    part = next(part for part in subtasks.operators[0].snapshot(1)() if part.format == "rocksdb")
    assert part.table.schema.equals(golden_part(2).table.schema, check_metadata=True)
    subtasks.close()
