"""The write-back cache of a RocksDB table against a plain dict."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tidegate.state.rocksdb.byte_rows import ByteRows
from tidegate.state.rocksdb.database import RocksDatabase
from tidegate.state.rocksdb.row_cache import ENTRY_BYTES, CacheMemory, FrozenRows, RowCache

KEYS = [b"k%d" % number * (1 + number % 3) for number in range(400)]
Pairs = dict[bytes, bytes]


@pytest.fixture
def database(tmp_path: Path) -> Iterator[RocksDatabase]:
    database = RocksDatabase(tmp_path, 2**22)
    yield database
    database.close()


class Model:
    """A cache beside a dict of what it must hold; and its frozen rows beside what they must hold."""

    def __init__(self, database: RocksDatabase, limit_bytes: int) -> None:
        self.table = database.table("t")
        self.memory = CacheMemory(limit_bytes)
        self.cache = RowCache(self.table, self.memory, self.settle)
        self.rows: Pairs = {}
        self.changed: Pairs = {}
        self.pending: FrozenRows | None = None

    def settle(self) -> None:
        """As the back end does before anything else is written."""
        if self.pending is not None:
            self.pending.write(self.table)
            self.pending = None

    def put(self, keys: list[bytes], rows: list[bytes | None]) -> None:
        self.cache.put(ByteRows.of_list(keys), ByteRows.of_list(rows))
        for key, row in zip(keys, rows, strict=True):
            self.rows[key] = b"" if row is None else row
            if row is None:
                del self.rows[key]

    def get(self, keys: list[bytes]) -> None:
        found = self.cache.get(ByteRows.of_list(keys))
        read = [row if there else None for row, there in zip(found.to_list(), found.present.tolist(), strict=True)]
        assert read == [self.rows.get(key) for key in keys]

    def freeze(self) -> None:
        self.settle()
        self.pending = self.cache.freeze()

    def stored(self) -> Pairs:
        return {k: r for ks, rs in self.table.scan() for k, r in zip(ks.to_list(), rs.to_list(), strict=True)}


@pytest.mark.parametrize("limit_bytes", [2**30, 40_000, 8_000])
@pytest.mark.parametrize("seed", range(4))
def test_it_holds_what_was_put_and_a_snapshot_what_was_there(
    database: RocksDatabase, limit_bytes: int, seed: int
) -> None:
    """S5.3: rows change in length, come and go; snapshots are written late, or by the cache itself."""
    rng, model = np.random.default_rng(seed), Model(database, limit_bytes)
    expected: Pairs = {}
    for _ in range(150):
        keys = [KEYS[i] for i in rng.integers(0, len(KEYS), rng.integers(1, 40))]
        kind = rng.integers(0, 10)
        if kind < 6:
            lengths = rng.integers(-1, 60, len(keys)) if kind < 4 else np.full(len(keys), 20)
            model.put(keys, [None if n < 0 else rng.bytes(n) for n in lengths])
        elif kind < 8:
            model.get(keys)
        elif model.pending is None:
            expected = dict(model.rows)
            model.freeze()
        else:
            # Written only now, after later changes: it must not contain them.
            model.settle()
            assert model.stored() == expected
    model.get(KEYS)
    model.cache.flush()
    assert model.stored() == model.rows


def test_replaced_rows_do_not_fill_the_memory(database: RocksDatabase) -> None:
    """S5.2: each change after a snapshot goes to another place, as long as the snapshot is not written."""
    model = Model(database, 2**20)
    for step in range(200):
        model.put(KEYS, [b"%08d" % step * 8] * len(KEYS))
        model.freeze()
    assert model.cache._arena.nbytes < 10 * 64 * len(KEYS)
    model.get(KEYS)


def test_used_rows_and_the_newest_stay_and_the_others_are_dropped(database: RocksDatabase) -> None:
    model = Model(database, 2**20)
    busy = KEYS[::4]
    model.put(KEYS, [b"x" * 30] * len(KEYS))
    for _ in range(3):
        model.get(list(busy))
    newest = KEYS[-20:]
    model.cache.shrink(sum(ENTRY_BYTES + len(key) + 30 for key in {*busy, *newest}))
    assert model.cache.size == len({*busy, *newest}) and model.cache.changes == 0
    reads: list[int] = []
    read = model.table.get
    model.cache._table.get = lambda keys: reads.append(len(keys)) or read(keys)  # type: ignore[method-assign, func-returns-value]
    model.get([*busy, *newest])
    assert not reads
    model.get(KEYS)
    assert reads == [len(KEYS) - len({*busy, *newest})]


def distinct_keys(count: int, start: int = 0) -> list[bytes]:
    return [b"%08d" % number for number in range(start, start + count)]


def test_rows_that_nobody_reads_leave_before_rows_that_are_read(database: RocksDatabase) -> None:
    """A timer that has fired is a key that does not recur. Such keys must not push out the state."""
    memory = CacheMemory(2**20)
    state = RowCache(database.table("state"), memory, lambda: None)
    timers = RowCache(database.table("timers"), memory, lambda: None, is_read=False)
    keys = ByteRows.of_list(distinct_keys(3_000))
    state.put(keys, ByteRows.of_list([b"x" * 20] * 3_000))
    for start in range(0, 60_000, 2_000):
        some = ByteRows.of_list(distinct_keys(2_000, start))
        timers.put(some, ByteRows.of_list([b"t"] * 2_000))
        timers.put(some, ByteRows.missing(2_000))
        assert state.size == 3_000
        assert memory.held_bytes <= 2**20
    assert timers.size < 60_000


def test_a_busy_cache_and_an_idle_one_both_keep_a_share(database: RocksDatabase) -> None:
    memory = CacheMemory(2**20)
    idle, busy = (RowCache(database.table(name), memory, lambda: None) for name in ("idle", "busy"))
    idle.put(ByteRows.of_list(distinct_keys(3_500)), ByteRows.of_list([b"x" * 20] * 3_500))
    least = None
    for start in range(0, 40_000, 1_000):
        busy.put(ByteRows.of_list(distinct_keys(1_000, start)), ByteRows.of_list([b"x" * 20] * 1_000))
        least = busy.size if least is None else min(least, busy.size)
    assert idle.size > 0
    assert least is not None and least >= 1_000
