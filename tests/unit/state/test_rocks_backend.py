"""What the back end `rocksdb` promises beside the contract: shared files, bounded memory, a clean disk."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import rocksdict

from tidegate.errors import EnvironmentProblemError, MissingExtraError, SnapshotError
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, Blob, StatePart
from tidegate.state.keyed_state import BackendContext, Elements, KeySet, StateDescriptor, TimeToLive
from tidegate.state.rocksdb import portable_rows, row_cache
from tidegate.state.rocksdb.list_chunks import CHUNK_BYTES
from tidegate.state.rocksdb.rocksdb_backend import RocksDBBackend
from tidegate.state.state_layout import TIME_COLUMN

KEYS = pa.schema([("k", pa.int64())])
VALUE = StateDescriptor("v", "value", pa.schema([("n", pa.int64())]))
COUNTS = StateDescriptor("counts", "reducing", pa.schema([("n", pa.int64())]), reductions=("sum",))
LISTS = StateDescriptor("lists", "list", pa.schema([("n", pa.int64())]))
SMALL_BYTES = 2**20

Opener = Callable[..., RocksDBBackend]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    """Opens back ends; `name` of the scratch directory, key groups, clock and memory as wanted."""
    backends = []

    def open_(
        name: str = "a",
        *,
        key_groups: range = range(128),
        now_ms: Callable[[], int] = lambda: 0,
        memory_bytes: int = 16 * 2**20,
    ) -> RocksDBBackend:
        backend = RocksDBBackend()
        scratch = tmp_path / name
        context = BackendContext("rides", KEYS, ("k",), 128, key_groups, now_ms, str(scratch), memory_bytes)
        backend.open(context)
        backends.append(backend)
        return backend

    yield open_
    for backend in backends:
        backend.close()


def batch_of(keys: Any) -> pa.RecordBatch:
    return pa.record_batch({"k": pa.array(keys, pa.int64())})


def column(values: Any) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def put(backend: RocksDBBackend, keys: Any, values: Any) -> None:
    backend.value(VALUE).put(backend.keys(batch_of(keys)), column(values))


def values(backend: RocksDBBackend, keys: Any) -> list[int | None]:
    found = backend.value(VALUE).get(backend.keys(batch_of(keys)))
    pairs = zip(found.present.tolist(), found.columns.column("n").to_pylist(), strict=True)
    return [value if present else None for present, value in pairs]


def loaded(parts: Sequence[StatePart]) -> list[StatePart]:
    """As from a store: what blobs give is read now, and the writer has put something in front of their ids."""
    return [
        StatePart(part.name, part.kind, part.table, (), tuple(kept(blob) for blob in part.blobs), part.format)
        for part in parts
    ]


def kept(blob: Blob, data: bytes | None = None) -> Blob:
    content = bytes(blob.read()) if data is None else data
    return Blob(f"run-7-{blob.id}", lambda: content, len(content))


def disk_rows(backend: RocksDBBackend, name: str) -> int:
    return sum(len(keys) for keys, _ in backend._database.table(name).scan())


def test_a_busy_key_costs_the_database_one_write(opened: Opener) -> None:
    backend = opened()
    state = backend.merging(COUNTS)
    for _ in range(50):
        keys = backend.keys(batch_of(range(100)))
        state.add(keys, keys.rows, column([1] * 100))
    backend.snapshot(1)()
    assert backend._database.opened().latest_sequence_number() == 100
    assert state.get(backend.keys(batch_of([7]))).columns.to_pylist() == [{"n": 50}]


def test_more_keys_than_the_cache_holds_come_back_from_the_database(opened: Opener) -> None:
    backend = opened(memory_bytes=SMALL_BYTES)
    rng = np.random.default_rng(3)
    expected = np.zeros(40_000, np.int64)
    for _ in range(12):
        keys = rng.permutation(40_000)[:10_000]
        expected[keys] += keys
        put(backend, keys, expected[keys])
        assert backend._cache_memory.held_bytes <= SMALL_BYTES // 2
    there = np.flatnonzero(expected)
    assert values(backend, there) == expected[there].tolist()


def test_an_incremental_snapshot_adds_the_files_that_are_new(opened: Opener) -> None:
    """S5.2."""
    backend = opened()
    put(backend, range(20_000), range(20_000))
    (first,) = backend.snapshot(1)()
    before = {blob.id: blob.read() for blob in first.blobs}
    put(backend, [1], [-1])
    (second,) = backend.snapshot(2)()
    added = [blob for blob in second.blobs if blob.id not in before]
    assert before.keys() < {blob.id for blob in second.blobs}
    assert sum(len(blob.read()) for blob in added) < 2_000 < sum(map(len, before.values()))
    assert all(blob.read() == before[blob.id] for blob in second.blobs if blob.id in before)
    assert [blob.size_bytes for blob in second.blobs] == [len(blob.read()) for blob in second.blobs]


def test_what_is_written_after_the_barrier_is_not_in_the_snapshot(opened: Opener) -> None:
    """S5.3: also where the cache overflows before the snapshot writer comes."""
    backend = opened(memory_bytes=SMALL_BYTES)
    put(backend, range(5_000), range(5_000))
    write = backend.snapshot(1)
    for _ in range(5):
        put(backend, range(50_000), [-1] * 50_000)
    assert backend._pending is None, "the cache has overflowed"
    other = opened("b")
    other.value(VALUE)
    other.restore(loaded(write()))
    assert values(other, range(5_000)) == list(range(5_000))
    assert values(other, [5_000]) == [None]
    assert values(backend, [1]) == [-1]


def test_a_snapshot_leaves_no_files_when_nobody_holds_it(opened: Opener, tmp_path: Path) -> None:
    backend = opened(memory_bytes=SMALL_BYTES)
    put(backend, [1], [1])
    parts = backend.snapshot(1)()
    assert len(list((tmp_path / "a").glob("checkpoint-*"))) == 1
    del parts
    assert not list((tmp_path / "a").glob("checkpoint-*"))


def test_a_snapshot_that_is_given_up_is_not_made(opened: Opener, tmp_path: Path) -> None:
    """S2.4: an aborted checkpoint's function is never called."""
    backend = opened()
    put(backend, [1], [1])
    backend.snapshot(1)
    put(backend, [1], [2])
    backend._settle()
    assert not list((tmp_path / "a").glob("checkpoint-*"))
    assert values(backend, [1]) == [2]
    other = opened("b")
    other.value(VALUE)
    other.restore(loaded(backend.snapshot(2)()))
    assert values(other, [1]) == [2]


def test_a_snapshot_that_is_written_after_the_back_end_closed_fails(opened: Opener, tmp_path: Path) -> None:
    """It would be one of an empty database."""
    backend = opened()
    put(backend, range(100), range(100))
    backend.snapshot(1)()
    put(backend, [1], [-1])
    write = backend.snapshot(2)
    backend.close()
    with pytest.raises(EnvironmentProblemError, match="closed"):
        write()
    with pytest.raises(EnvironmentProblemError, match="closed"):
        backend._database.family("v")
    assert not (tmp_path / "a").exists()


def test_a_file_that_is_cut_short_is_refused(opened: Opener) -> None:
    backend = opened()
    put(backend, range(1_000), range(1_000))
    (part,) = loaded(backend.snapshot(1)())
    damaged = StatePart(
        part.name, part.kind, part.table, (), tuple(kept(b, b.read()[:-10]) for b in part.blobs), part.format
    )
    other = opened("b")
    other.value(VALUE)
    with pytest.raises(SnapshotError, match=r"\.sst of the snapshot is damaged.*rides.*bytes, not"):
        other.restore([damaged])


def test_a_file_with_other_bytes_is_refused_when_it_is_read(opened: Opener) -> None:
    backend = opened()
    put(backend, range(1_000), range(1_000))
    (part,) = loaded(backend.snapshot(1)())

    def flipped(data: bytes) -> bytes:
        return data[:200] + bytes([data[200] ^ 255]) + data[201:]

    damaged = tuple(kept(blob, flipped(bytes(blob.read()))) for blob in part.blobs)
    other = opened("b")
    other.value(VALUE)
    with pytest.raises(SnapshotError, match=r"damaged.*Corruption"):
        other.restore([StatePart(part.name, part.kind, part.table, (), damaged, part.format)])
        values(other, range(1_000))


def test_files_of_another_format_version_are_refused(opened: Opener) -> None:
    backend = opened()
    (part,) = backend.snapshot(1)()
    metadata = {key: text.replace(b'"version": 1', b'"version": 3') for key, text in part.table.schema.metadata.items()}
    newer = StatePart(part.name, part.kind, part.table.replace_schema_metadata(metadata), (), part.blobs, part.format)
    with pytest.raises(SnapshotError, match=r"format version 3.*rides.*reads versions 1 and 2"):
        opened("b").restore([newer])


def test_files_of_a_state_whose_columns_cannot_become_those_of_now_are_refused(opened: Opener) -> None:
    """S5.5."""
    backend = opened()
    put(backend, [1], [1])
    parts = loaded(backend.snapshot(1)())
    other = opened("b")
    other.value(StateDescriptor("v", "value", pa.schema([("n", pa.float64())])))
    with pytest.raises(SnapshotError, match=r"'v'.*int64.*double"):
        other.restore(parts)
    with pytest.raises(SnapshotError, match="does not declare"):
        opened("c").restore(parts)


def test_leftovers_of_a_killed_process_go_when_it_opens_and_its_own_when_it_closes(
    opened: Opener, tmp_path: Path
) -> None:
    (tmp_path / "a" / "database").mkdir(parents=True)
    (tmp_path / "a" / "database" / "CURRENT").write_text("MANIFEST-000099\n")
    (tmp_path / "a" / "checkpoint-9").mkdir()
    backend = opened()
    put(backend, [1], [1])
    write = backend.snapshot(1)
    assert values(backend, [1]) == [1]
    write()
    backend.close()
    assert not (tmp_path / "a").exists()


def test_without_rocksdict_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, opened: Opener) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    with pytest.raises(MissingExtraError, match=r'pip install "tidegate\[rocksdb\]"'):
        opened()


def test_rows_that_are_over_and_never_read_go_from_the_disk(opened: Opener) -> None:
    """S5.1: for every row that is written, one is looked at."""
    now = 0
    backend = opened(now_ms=lambda: now, memory_bytes=SMALL_BYTES)
    state = backend.value(StateDescriptor("v", "value", VALUE.columns, ttl=TimeToLive(1_000)))
    state.put(backend.keys(batch_of(range(10_000))), column(range(10_000)))
    now = 2_000
    for start in range(10_000, 60_000, 5_000):
        state.put(backend.keys(batch_of(range(start, start + 5_000))), column(range(5_000)))
    backend._caches["v"].flush()
    assert disk_rows(backend, "v") == 50_000


def test_rows_that_are_over_go_from_the_disk_also_when_snapshots_write_them_all(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5.1: between two snapshots there is never enough for the cache to write by itself."""
    monkeypatch.setattr(row_cache, "MAX_CHANGES", 1_000)
    now = 0
    backend = opened(now_ms=lambda: now)
    state = backend.value(StateDescriptor("v", "value", VALUE.columns, ttl=TimeToLive(1_000)))
    for step in range(100):
        now += 500
        state.put(backend.keys(batch_of(range(step * 100, step * 100 + 100))), column(range(100)))
        backend.snapshot(step)()
    assert disk_rows(backend, "v") < 3_000


def test_a_long_list_that_is_over_goes_from_the_disk_whole_and_its_key_begins_anew(opened: Opener) -> None:
    now = 0
    backend = opened(now_ms=lambda: now)
    state = backend.list(StateDescriptor("lists", "list", LISTS.columns, ttl=TimeToLive(1_000)))

    def append(key: int, count: int) -> None:
        state.append(backend.keys(batch_of([key])), np.zeros(count, np.int32), column(range(count)))
        backend._caches["lists"].flush()

    sweep = backend._caches["lists"]._after_write
    assert sweep is not None
    sweep(1_000)
    for key in (1, 2):
        append(key, 2_000)
    assert disk_rows(backend, "lists") == 4, "a closed chunk and an empty head each"
    now = 500
    append(2, 2_000)
    now = 1_200
    append(3, 1)
    for _ in range(3):
        sweep(1_000)
    assert disk_rows(backend, "lists") == 1 + 2, "of key 2 what is not over, and its head; of key 3 its head"
    now = 9_000
    append(1, 5)
    for _ in range(2):
        sweep(1_000)
    assert disk_rows(backend, "lists") == 1
    backend._caches["lists"].shrink(0)
    got = state.get(backend.keys(batch_of([1, 2, 3])))
    assert got.offsets.tolist() == [0, 5, 5, 5]
    append(1, 2_000)
    backend._caches["lists"].shrink(0)
    assert state.get(backend.keys(batch_of([1]))).columns.num_rows == 2_005


def test_a_long_list_is_in_chunks_that_an_append_does_not_read(opened: Opener) -> None:
    backend = opened()
    state = backend.list(LISTS)
    for start in range(0, 3_000, 100):
        keys = backend.keys(batch_of([1, 2]))
        state.append(keys, np.zeros(100, np.int32), column(range(start, start + 100)))
        state.append(keys, np.ones(1, np.int32), column([start]))
    backend._caches["lists"].flush()
    assert 2 + 3_000 * 13 // (2 * CHUNK_BYTES) < disk_rows(backend, "lists") < 30
    got = state.get(backend.keys(batch_of([3, 1, 2])))
    assert got.offsets.tolist() == [0, 0, 3_000, 3_030]
    assert got.columns.column("n").to_pylist() == [*range(3_000), *range(0, 3_000, 100)]
    keys = backend.keys(batch_of([1]))
    state.put(keys, Elements(np.array([0, 2]), column([8, 9])))
    assert state.get(keys).columns.column("n").to_pylist() == [8, 9]
    state.clear(backend.keys(batch_of([1, 2])))
    backend._caches["lists"].flush()
    assert disk_rows(backend, "lists") == 0


def test_a_portable_snapshot_of_large_state_is_in_pieces_that_are_read_one_at_a_time(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5.2."""
    monkeypatch.setattr(portable_rows, "PIECE_BYTES", 2**16)
    backend = opened(memory_bytes=4 * SMALL_BYTES)
    rng = np.random.default_rng(1)
    expected = rng.integers(-(2**62), 2**62, 200_000)
    for start in range(0, 200_000, 20_000):
        put(backend, range(start, start + 20_000), expected[start : start + 20_000])
    parts = backend.snapshot(1, portable=True)()
    put(backend, range(100), [0] * 100)
    (part,) = parts
    assert len(part.blobs) > 2 and part.table.num_rows == 0
    pieces = list(part.tables())
    groups = np.concatenate([piece.column(KEY_GROUP_COLUMN).to_numpy() for piece in pieces])
    assert len(groups) == 200_000 and (np.diff(groups.astype(int)) >= 0).all()
    assert max(piece.num_rows for piece in pieces) < 10_000
    other = opened("b", key_groups=range(64))
    other.value(VALUE)
    other.restore(parts)
    keys = other.keys(batch_of(range(200_000)))
    mine = keys.groups < 64
    found = other.value(VALUE).get(keys)
    assert (found.present == mine).all()
    assert (found.columns.column("n").to_numpy()[mine] == expected[mine]).all()


def fired(backend: RocksDBBackend) -> list[tuple[int, int]]:
    due = backend.timers("event").due(10**6, 10**6)
    if due is None:
        return []
    keys = due.keys.columns().column("k").to_pylist()
    return [(keys[owner], time) for owner, time in zip(due.owners.tolist(), due.times_us.tolist(), strict=True)]


@pytest.mark.parametrize("portable", [False, True])
def test_timers_in_files_go_to_the_owners_of_their_keys(opened: Opener, portable: bool) -> None:
    """S5.5: 2 -> 3 -> 1 subtasks."""
    expected = sorted((key, time) for key in range(300) for time in (-5, 100 + key % 7))

    def register(backend: RocksDBBackend) -> KeySet:
        keys = backend.keys(batch_of(range(300)))
        start, stop = backend._ctx.key_groups.start, backend._ctx.key_groups.stop
        mine = np.flatnonzero((keys.groups >= start) & (keys.groups < stop)).astype(np.int32)
        times = 100 + mine.astype(np.int64) % 7
        backend.timers("event").register(
            keys, np.repeat(mine, 2), np.stack([np.full_like(times, -5), times], 1).ravel()
        )
        return keys

    former = [opened("a0", key_groups=range(64)), opened("a1", key_groups=range(64, 128))]
    for backend in former:
        register(backend)
    parts = [part for backend in former for part in loaded(backend.snapshot(1, portable=portable)())]
    middle = [opened(f"b{i}", key_groups=groups) for i, groups in enumerate([range(43), range(43, 86), range(86, 128)])]
    for backend in middle:
        backend.timers("event")
        backend.restore(parts)
    again = [part for backend in middle for part in loaded(backend.snapshot(2, portable=portable)())]
    last = opened("c")
    last.timers("event")
    last.restore(again)
    assert sorted(row for backend in middle for row in fired(backend)) == expected
    assert last.timers("event").next_us() == -5
    of_seven = last.timers("event").of(last.keys(batch_of([7]))).columns
    assert of_seven.column(TIME_COLUMN).to_pylist() == [-5, 100]
    assert sorted(fired(last)) == expected
    assert last.timers("event").next_us() is None


def test_files_keep_their_ids_through_restores(opened: Opener) -> None:
    """S5.2: those under which the snapshot has them, with all that a writer has put in front of them."""
    backend = opened()
    put(backend, range(1_000), range(1_000))
    (first,) = backend.snapshot(1)()
    parts = loaded([first])
    for name in ("b", "c"):
        other = opened(name)
        other.value(VALUE)
        other.restore(parts)
        put(other, [1], [5])
        snapshot = other.snapshot(2)()
        assert {blob.id for blob in parts[0].blobs} < {blob.id for blob in snapshot[0].blobs}
        parts = loaded(snapshot)


def test_a_snapshot_takes_hold_of_changes_without_copying_them(opened: Opener) -> None:
    """S5.3: the synchronous part hands over the buffers, whatever the number of changes."""
    backend = opened()
    put(backend, range(10_000), range(10_000))
    cache = backend._caches["v"]
    arena, log = cache._arena, cache._log
    frozen = cache.freeze()
    assert frozen is not None and len(frozen) == 10_000
    assert frozen._arena is arena and frozen._log is log
    put(backend, range(5_000), [7] * 5_000)
    keys, rows = next(iter(frozen.pieces()))
    decoded = backend._cells["v"].expiry.decoded(rows).column("n").to_pylist()
    assert len(set(keys.to_list())) == 10_000 and sorted(decoded) == list(range(10_000))
    assert values(backend, [0, 4_999, 5_000]) == [7, 7, 5_000]


def test_the_states_of_an_operator_share_the_memory_of_their_caches(opened: Opener) -> None:
    """S5.2: a state may use the memory that the others do not use, and gives it up to them."""
    backend = opened(memory_bytes=4 * SMALL_BYTES)
    others = [backend.value(StateDescriptor(f"other-{i}", "value", VALUE.columns)) for i in range(4)]
    put(backend, range(10_000), range(10_000))
    assert backend._caches["v"].size == 10_000 and backend._caches["v"].held_bytes > SMALL_BYTES // 2
    for other in others:
        other.put(backend.keys(batch_of(range(8_000))), column(range(8_000)))
        assert backend._cache_memory.held_bytes <= 2 * SMALL_BYTES
    assert backend._caches["v"].size < 10_000
    assert values(backend, range(10_000)) == list(range(10_000))


def test_memory_is_flushed_before_a_checkpoint(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """S5.3: a checkpoint of rocksdict holds the interpreter lock, so it must have nothing to write."""
    unflushed = []

    made = rocksdict.Checkpoint

    def checkpoint(database: rocksdict.Rdict) -> rocksdict.Checkpoint:
        family = backend._database.family("v")
        unflushed.append(family.property_int_value("rocksdb.num-entries-active-mem-table"))
        return made(database)

    monkeypatch.setattr(rocksdict, "Checkpoint", checkpoint)
    backend = opened()
    put(backend, range(1_000), range(1_000))
    (part,) = backend.snapshot(1)()
    assert unflushed == [0] and part.blobs
