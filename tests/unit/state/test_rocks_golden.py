"""Files of RocksDB in snapshots are durable: what format version 1 wrote is restored by every later version."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from tidegate.snapshot.parts import Blob, StatePart
from tidegate.state.keyed_state import BackendContext, StateDescriptor, TimeToLive
from tidegate.state.rocksdb.rocksdb_backend import RocksDBBackend

GOLDEN = Path(__file__).parent / "golden" / "rocksdb-v1.arrow"
KEYS = pa.schema([("name", pa.string()), ("day", pa.date32())])
KEY_ROWS = pa.RecordBatch.from_pydict({"name": ["a", None, "ü"], "day": pa.array([0, 15887, None], pa.date32())}, KEYS)
VALUES = StateDescriptor(
    "values", "value", pa.schema([("s", pa.string()), ("l", pa.list_(pa.int64()))]), ttl=TimeToLive(10_000)
)
LISTS = StateDescriptor("lists", "list", pa.schema([("n", pa.int32())]))
MAPS = StateDescriptor("maps", "map", pa.schema([("f", pa.float64())]), map_key=pa.schema([("m", pa.int64())]))
SUMS = StateDescriptor("sums", "reducing", pa.schema([("n", pa.int32())]), reductions=("sum",))
ROWS = [{"s": "x", "l": [1, None]}, {"s": None, "l": None}, {"s": "", "l": []}]
CONTENT = "file_content"
"""Column that this file alone adds: of each file that is a blob its bytes."""


def opened(scratch: Path) -> RocksDBBackend:
    backend = RocksDBBackend()
    backend.open(BackendContext("rides", KEYS, ("name", "day"), 128, range(128), lambda: 1_000, str(scratch), 2**22))
    return backend


def written(backend: RocksDBBackend) -> StatePart:
    """The state of the golden file; how it was made."""
    keys = backend.keys(KEY_ROWS)
    owners = np.array([0, 0, 2], np.int32)
    numbers = pa.RecordBatch.from_pydict({"n": [1, 2, 3]}, LISTS.columns)
    backend.value(VALUES).put(keys, pa.RecordBatch.from_pylist(ROWS, VALUES.columns))
    backend.list(LISTS).append(keys, owners, numbers)
    map_keys = pa.RecordBatch.from_pydict({"m": [7, 8, 7]})
    backend.map(MAPS).put(keys, owners, map_keys, pa.RecordBatch.from_pydict({"f": [0.5, None, 1.5]}, MAPS.columns))
    backend.merging(SUMS).add(keys, owners, numbers)
    backend.timers("event").register(keys, owners, np.array([-1, 5, 2]))
    backend.timers("processing")
    (part,) = backend.snapshot(1)()
    return part


def with_content(part: StatePart) -> pa.Table:
    """The golden file's table."""
    contents = {blob.id: blob.read() for blob in part.blobs}
    column = [contents.get(id) for id in part.table.column("blob").to_pylist()]
    return part.table.append_column(CONTENT, pa.array(column, pa.binary()))


def golden_part() -> StatePart:
    with pa.ipc.open_file(pa.OSFile(str(GOLDEN))) as reader:
        table = reader.read_all()
    rows = zip(table.column("blob").to_pylist(), table.column(CONTENT).to_pylist(), strict=True)
    blobs = tuple(Blob(id, lambda data=data: data) for id, data in rows if id is not None)  # type: ignore[misc]
    return StatePart("rocksdb", "keyed", table.drop_columns([CONTENT]), (), blobs, "rocksdb")


def state_of(backend: RocksDBBackend) -> dict[str, object]:
    keys = backend.keys(KEY_ROWS)
    lists, maps = backend.list(LISTS).get(keys), backend.map(MAPS).entries(keys)
    sums, timers = backend.merging(SUMS).get(keys), backend.timers("event").of(keys)
    return {
        "values": backend.value(VALUES).get(keys).columns.to_pylist(),
        "lists": (lists.offsets.tolist(), lists.columns.to_pydict()),
        "maps": (maps.offsets.tolist(), sorted(maps.columns.slice(0, 2).to_pylist(), key=str), maps.columns.num_rows),
        "sums": (sums.present.tolist(), sums.columns.slice(0, 1).to_pylist(), sums.columns.slice(2).to_pylist()),
        "timers": (timers.offsets.tolist(), timers.columns.to_pydict()),
    }


EXPECTED = {
    "values": ROWS,
    "lists": ([0, 2, 2, 3], {"n": [1, 2, 3]}),
    "maps": ([0, 2, 2, 3], [{"m": 7, "f": 0.5}, {"m": 8, "f": None}], 3),
    "sums": ([True, False, True], [{"n": 3}], [{"n": 3}]),
    "timers": ([0, 2, 2, 3], {"time_us": [-1, 5, 2]}),
}


def restored(part: StatePart, scratch: Path) -> dict[str, object]:
    backend = opened(scratch)
    for descriptor, declare in (
        (VALUES, backend.value),
        (LISTS, backend.list),
        (MAPS, backend.map),
        (SUMS, backend.merging),
    ):
        declare(descriptor)
    backend.timers("event"), backend.timers("processing")
    backend.restore([part])
    state = state_of(backend)
    backend.close()
    return state


def test_files_of_format_version_1_are_restored(tmp_path: Path) -> None:
    assert restored(golden_part(), tmp_path) == EXPECTED


def test_the_golden_file_holds_what_is_written_today(tmp_path: Path) -> None:
    """Columns and metadata of the table; the files themselves are RocksDB's."""
    backend = opened(tmp_path / "a")
    part = written(backend)
    golden = golden_part().table
    assert part.table.schema.equals(golden.schema, check_metadata=True)
    assert restored(part, tmp_path / "b") == EXPECTED
    backend.close()
