"""Back ends by name, and what the back ends in memory promise beside the contract."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tidegate.errors import MissingExtraError, OptionError, SnapshotError
from tidegate.state.backend_registry import new_backend
from tidegate.state.copy_on_write import CHUNK_ENTRIES
from tidegate.state.heap.frozen_state import INLINE_ENTRIES
from tidegate.state.heap.heap_backend import HeapBackend, MemoryBackend
from tidegate.state.keyed_state import BackendContext, KeyedStateBackend, StateDescriptor, TimeToLive
from tidegate.state.rocksdb.rocksdb_backend import RocksDBBackend

KEYS = pa.schema([("k", pa.int64())])
VALUE = StateDescriptor("v", "value", pa.schema([("n", pa.int64())]))


def opened(backend: KeyedStateBackend) -> KeyedStateBackend:
    backend.open(BackendContext("rides", KEYS, ("k",), 128, range(128), lambda: 0))
    return backend


def put(backend: KeyedStateBackend, count: int, descriptor: StateDescriptor = VALUE) -> None:
    batch = pa.record_batch({"k": range(count)})
    backend.value(descriptor).put(backend.keys(batch), batch.rename_columns(["n"]))


def test_back_ends_are_made_by_name() -> None:
    assert type(new_backend("heap")) is HeapBackend
    assert type(new_backend("memory")) is MemoryBackend
    with pytest.raises(OptionError, match="'rocks'.*'heap', 'memory', 'rocksdb'"):
        new_backend("rocks")


def test_a_back_end_that_is_not_installed_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(new_backend.__globals__["BACKENDS"], "rocksdb", ("tidegate.state.not_there", "RocksBackend"))
    with pytest.raises(MissingExtraError, match=r"not_there.*tidegate\[rocksdb\]"):
        new_backend("rocksdb")


@pytest.mark.parametrize("name", ["heap", "memory"])
def test_files_of_rocksdb_are_refused_with_what_to_do(name: str, tmp_path: Path) -> None:
    """S5.2, S9.3: only a savepoint goes from one back end to another."""
    former = RocksDBBackend()
    former.open(BackendContext("rides", KEYS, ("k",), 128, range(128), lambda: 0, str(tmp_path)))
    put(former, 10)
    parts = former.snapshot(1)()
    backend = opened(new_backend(name))
    backend.value(VALUE)
    with pytest.raises(
        SnapshotError, match=r"operator 'rides', state 'v'.*state_backend='rocksdb'.*Restore with.*take a savepoint"
    ):
        backend.restore(parts)
    former.close()


def test_a_small_snapshot_in_memory_is_one_table_a_state() -> None:
    backend = opened(MemoryBackend())
    put(backend, 2 * INLINE_ENTRIES)
    (part, *_) = backend.snapshot(1)()
    assert (part.table.num_rows, part.blobs) == (2 * INLINE_ENTRIES, ())


def test_a_snapshot_in_memory_beyond_the_limit_says_to_use_heap() -> None:
    """S5.2."""
    backend = opened(MemoryBackend(limit_bytes=10_000))
    put(backend, 500)
    backend.snapshot(1)()
    put(backend, 5_000)
    with pytest.raises(
        SnapshotError, match=r"'memory'.*10000.*checkpoint 2, operator 'rides', state 'v'.*state_backend='heap'"
    ):
        backend.snapshot(2)()


def test_blobs_tell_about_how_large_they_are() -> None:
    backend = opened(HeapBackend())
    texts = StateDescriptor("v", "value", pa.schema([("s", pa.string())]))
    batch = pa.record_batch({"k": range(INLINE_ENTRIES + 1)})
    rows = pa.record_batch({"s": [f"{n:0200}" for n in range(INLINE_ENTRIES + 1)]})
    backend.value(texts).put(backend.keys(batch), rows)
    (part, *_) = backend.snapshot(1)()
    sizes = [blob.size_bytes for blob in part.blobs]
    assert len(sizes) == 3 and all(200 < size / CHUNK_ENTRIES < 300 for size in sizes)


def test_expired_entries_are_removed_though_nobody_asks_for_them() -> None:
    """S5.1; a bounded number with each batch."""
    now = [0]
    backend = HeapBackend()
    backend.open(BackendContext("rides", KEYS, ("k",), 128, range(128), lambda: now[0]))
    lasting = StateDescriptor("v", "value", VALUE.columns, ttl=TimeToLive(1_000))
    put(backend, 10_000, lasting)
    now[0] = 1_000
    for _ in range(10_000 // 1_024 + 1):
        backend.keys(pa.record_batch({"k": [1]}))
    (part, *_) = backend.snapshot(1)()
    assert part.table.num_rows == 0
