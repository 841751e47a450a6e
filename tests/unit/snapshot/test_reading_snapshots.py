"""Reading a snapshot without a job (S5.3): states in pieces, of several subtasks, and of a back end's own files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tidegate.errors import SnapshotError
from tidegate.jobs.stores.store_registry import open_store
from tidegate.snapshot.handles import SnapshotStreams, StateHandle
from tidegate.snapshot.metadata import OperatorState, SnapshotMetadata, SubtaskState, write_metadata
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, Blob, StateKind, StatePart
from tidegate.snapshot.reader import SnapshotReader
from tidegate.snapshot.streams import encode_parts
from tidegate.state.backend_registry import new_backend
from tidegate.state.keyed_state import BackendContext, StateDescriptor, TimeToLive
from tidegate.state.keys.key_hash import hash_keys, key_groups
from tidegate.state.state_reader import open_reader, read_state, read_state_batches

SCHEMA = pa.schema([(KEY_GROUP_COLUMN, pa.uint16()), ("value:v", pa.int64())])
FOLDER = "job/checkpoints/chk-1-g1"


def rows(*values: int) -> pa.Table:
    return pa.table([[1] * len(values), values], schema=SCHEMA)


def blob(name: str, *values: int) -> Blob:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, SCHEMA) as writer:
        writer.write_table(rows(*values))
    data = out.getvalue().to_pybytes()
    return Blob(name, lambda: data)


def written(root: Path, parts: Sequence[StatePart], *, finished: Sequence[int] = ()) -> str:
    """A checkpoint whose operator "op" has these parts, one for each subtask."""
    store = open_store(str(root))
    streams = SnapshotStreams.at(FOLDER, lambda location: (store, location), 0)
    subtasks = []
    for index, part in enumerate(parts):
        handle = streams.store(f"op-{index}", encode_parts([part]), (part.kind,))
        blobs = [(b.id, b.pieces()) for b in part.blobs]
        files = (streams.store_blobs(f"blobs-{index}", blobs, shared=True),) if blobs else ()
        told = StateHandle(handle.path, None, handle.size_bytes, handle.sha256, handle.kinds, files=files)
        subtasks.append(SubtaskState(index, index in finished, told))
    operators = (OperatorState("op", "partially_finished" if finished else "running", tuple(subtasks)),)
    metadata = SnapshotMetadata(1, "checkpoint", "job", "l", 1, "r", None, len(parts), 128, "t", {}, operators)
    write_metadata(store, FOLDER, metadata)
    return f"{root}/{FOLDER}"


def test_a_state_in_pieces_is_read_piece_by_piece(tmp_path: Path) -> None:
    """S5.2: pieces lie in the folder that checkpoints share."""
    parts = [
        StatePart("v", "keyed", rows(n), blobs=(blob(f"a{n}", n + 1, n + 2), blob(f"b{n}", n + 3))) for n in (0, 10)
    ]
    path = written(tmp_path, parts)
    assert read_state(path, "op", "v").column("value:v").to_pylist() == [0, 1, 2, 3, 10, 11, 12, 13]
    assert [batch.num_rows for batch in read_state_batches(path, "op", "v")] == [1, 2, 1, 1, 2, 1]
    (shape,) = SnapshotReader(path).states("op")
    assert (shape.rows, shape.subtasks, shape.columns[1]) == (8, 2, ("value:v", "int64"))


def test_broadcast_state_is_read_once_and_from_a_running_subtask(tmp_path: Path) -> None:
    """S6.3."""
    kind: StateKind = "broadcast"
    path = written(tmp_path, [StatePart("v", kind, rows(1, 1)), StatePart("v", kind, rows(2))], finished=[0])
    assert read_state(path, "op", "v").column("value:v").to_pylist() == [2]
    assert SnapshotReader(path).states("op")[0].rows == 1


def test_a_state_without_rows_has_its_columns(tmp_path: Path) -> None:
    table = read_state(written(tmp_path, [StatePart("v", "keyed", rows())]), "op", "v")
    assert (table.num_rows, table.schema) == (0, SCHEMA)


def test_subtasks_that_differ_are_refused(tmp_path: Path) -> None:
    other = pa.table({KEY_GROUP_COLUMN: pa.array([1], pa.uint16()), "value:w": [1]})
    path = written(tmp_path, [StatePart("v", "keyed", rows(1)), StatePart("v", "keyed", other)])
    with pytest.raises(SnapshotError, match="different columns in the subtasks"):
        read_state(path, "op", "v")


def test_a_damaged_piece_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, [StatePart("v", "keyed", rows(1), blobs=(blob("a", 2),))])
    file = tmp_path / "job" / "shared" / "blobs-0"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(SnapshotError, match="blob a in blobs-0 is damaged"):
        read_state(path, "op", "v")


def test_files_of_an_unknown_format_are_told_but_not_read(tmp_path: Path) -> None:
    native = StatePart("v", "keyed", pa.table({"file": ["000009.sst"]}), blobs=(blob("a", 2),), format="rocksdb")
    reader = SnapshotReader(written(tmp_path, [native]))
    (shape,) = reader.states("op")
    assert (shape.name, shape.rows, shape.columns, shape.format) == ("v", None, (), "rocksdb")
    with pytest.raises(SnapshotError, match="'v' is stored in rocksdb files.*Read a savepoint"):
        list(reader.tables("op", "v"))


DESCRIPTORS = (
    StateDescriptor("seen", "value", pa.schema([("n", pa.int64())]), ttl=TimeToLive(1000)),
    StateDescriptor("log", "list", pa.schema([("text", pa.string())])),
    StateDescriptor("by", "map", pa.schema([("n", pa.int32())]), pa.schema([("m", pa.string())])),
    StateDescriptor("sums", "reducing", pa.schema([("a", pa.int32()), ("b", pa.float64())]), reductions=("sum", "max")),
)


def kept(name: str, index: int) -> list[StatePart]:
    """What back end `name` gives for a checkpoint of subtask `index` of two, with every kind of state."""
    place = ("op", pa.schema([("k", pa.int64())]), ("k",), 4, range(2 * index, 2 * index + 2))
    backend = new_backend(name)
    backend.open(BackendContext(*place, now_ms=lambda: 5))
    value, log, by, sums = DESCRIPTORS
    states = backend.value(value), backend.list(log), backend.map(by), backend.merging(sums)
    batch = pa.record_batch({"k": range(100)})
    batch = batch.filter(pa.array(key_groups(hash_keys(batch, ["k"]), 4) // 2 == index))
    numbers = batch.column("k")
    keys = backend.keys(batch)
    states[0].put(keys, pa.record_batch({"n": numbers}))
    states[1].append(keys, keys.rows, pa.record_batch({"text": numbers.cast(pa.string())}))
    states[1].append(keys, keys.rows, pa.record_batch({"text": pa.array(["again"] * len(numbers))}))
    names = pa.record_batch({"m": pa.array(["x"] * len(numbers))})
    states[2].put(keys, keys.rows, names, pa.record_batch({"n": numbers.cast(pa.int32())}))
    states[3].add(keys, keys.rows, pa.record_batch({"a": numbers.cast(pa.int32()), "b": numbers.cast(pa.float64())}))
    backend.timers("event").register(keys, keys.rows, np.asarray(numbers) * 1000)
    parts = list(backend.snapshot(1)())
    parts = [replace(p, blobs=tuple(Blob(b.id, partial(b"".join, b.pieces())) for b in p.blobs)) for p in parts]
    backend.close()
    return parts


def test_states_of_rocksdb_files_are_read_as_rows(tmp_path: Path) -> None:
    """S5.2: every kind, of two subtasks; the same rows as another back end writes."""
    (first,), (second,) = kept("rocksdb", 0), kept("rocksdb", 1)
    assert first.format == "rocksdb"
    path = written(tmp_path, [first, second])
    names = ["seen", "log", "by", "sums", "timers:event"]
    shapes = {shape.name: shape for shape in open_reader(path).states("op")}
    assert set(names) <= set(shapes) and shapes["seen"].columns[1] == ("key:k", "int64")
    assert shapes["seen"].format == "rocksdb" and shapes["seen"].subtasks == 2
    for name in names:
        found = read_state(path, "op", name)
        parts = [part for i in (0, 1) for part in kept("heap", i) if part.name == name]
        expected = pa.concat_tables([table for part in parts for table in part.tables()])
        assert found.num_rows == expected.num_rows > 0
        assert Counter(map(str, found.to_pylist())) == Counter(map(str, expected.to_pylist()))
