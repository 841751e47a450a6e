"""Large states of the heap back end: snapshots written by other threads while everything changes (S5.2, S5.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from tidegate.snapshot.parts import StatePart
from tidegate.snapshot.row_streams import table_of
from tidegate.state.arrow import arrow_columns
from tidegate.state.heap import list_columns
from tidegate.state.heap.heap_backend import HeapBackend
from tidegate.state.keyed_state import BackendContext, StateDescriptor

KEYS = 100_000
COLUMNS = pa.schema([("n", pa.int64()), ("s", pa.string())])
MAP_KEY = pa.schema([("x", pa.int32())])


class Changing:
    """A back end with a value, a list and a map, all with rows for most of `KEYS` keys."""

    def __init__(self, seed: int) -> None:
        self.backend = HeapBackend()
        keys = pa.schema([("k", pa.string())])
        self.backend.open(BackendContext("op", keys, ("k",), 128, range(128), lambda: 0))
        self.value = self.backend.value(StateDescriptor("v", "value", COLUMNS))
        self.list = self.backend.list(StateDescriptor("l", "list", COLUMNS))
        self.map = self.backend.map(StateDescriptor("m", "map", COLUMNS, map_key=MAP_KEY))
        self._random = np.random.default_rng(seed)
        self.write(np.arange(KEYS))

    def write(self, numbers: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Put, append, set and clear something for these keys."""
        random = self._random
        keys = self.backend.keys(pa.record_batch({"k": pa.array(numbers).cast(pa.string())}))
        n = random.integers(0, 1000, len(numbers))
        rows = pa.record_batch({"n": n, "s": [f"{number}" * (number % 5) for number in n.tolist()]})
        self.value.put(keys, rows.slice(0, keys.size), random.random(keys.size) < 0.7)
        self.list.append(keys, keys.rows, rows)
        self.map.put(keys, keys.rows, pa.record_batch({"x": pa.array(n % 3, pa.int32())}), rows)
        for state in (self.value, self.list, self.map):
            state.clear(keys, random.random(keys.size) < 0.3)

    def change(self) -> None:
        """Write to some keys, scattered or in a row."""
        start = int(self._random.integers(0, KEYS - 5000))
        scattered = self._random.integers(0, KEYS, 3000)
        self.write(scattered if start % 2 else np.arange(start, start + 5000))


def rows_of(parts: Sequence[StatePart], shelf: dict[str, bytes]) -> dict[str, pa.Table]:
    """The rows of each part, sorted but for the order within a list. `shelf` has the bytes of every id so far."""
    found = {}
    for part in parts:
        tables = [part.table]
        for blob in part.blobs:
            data = b"".join(blob.pieces())
            assert shelf.setdefault(blob.id, data) == data, f"{blob.id} has two contents"
            tables.append(table_of(data))
        table = pa.concat_tables(tables)
        order = [(name, "ascending") for name in table.column_names if part.name != "l" or name == "key:k"]
        table = table.append_column("at", pa.array(np.arange(table.num_rows)))
        found[part.name] = table.sort_by([*order, ("at", "ascending")]).drop_columns(["at"]).combine_chunks()
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_what_two_threads_write_is_the_moment_of_each_freeze(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_columns, "COMPACT_BYTES", 20_000)
    monkeypatch.setattr(list_columns, "COMPACT_ROWS", 5_000)
    changing, shelf = Changing(seed), dict[str, bytes]()
    with ThreadPoolExecutor(2) as pool:
        for checkpoint in range(1, 4):
            expected = rows_of(changing.backend.snapshot(checkpoint)(), shelf)
            waiting: list[Callable[[], Sequence[StatePart]]] = [changing.backend.snapshot(checkpoint) for _ in range(2)]
            writing = [pool.submit(lambda write=write: rows_of(write(), shelf)) for write in waiting]
            for _ in range(8):
                changing.change()
            for written in writing:
                found = written.result()
                assert found.keys() == expected.keys()
                for name, table in expected.items():
                    assert found[name].equals(table), name


def test_a_map_finds_the_entries_of_an_array_that_has_changed_between_two_calls() -> None:
    """The state remembers the pairs of the last call, not the array of its caller."""
    backend = HeapBackend()
    backend.open(BackendContext("op", pa.schema([("k", pa.int64())]), ("k",), 128, range(128), lambda: 0))
    state = backend.map(StateDescriptor("m", "map", pa.schema([("v", pa.int64())]), map_key=MAP_KEY))
    keys = backend.keys(pa.record_batch({"k": [1, 2]}))
    owners, map_keys = np.array([0, 0], np.int32), pa.record_batch({"x": pa.array([5, 6], pa.int32())})
    state.put(keys, owners, map_keys, pa.record_batch({"v": [10, 20]}))
    assert state.get(keys, owners, map_keys).columns["v"].to_pylist() == [10, 20]
    owners[1] = 1
    assert state.get(keys, owners, map_keys).present.tolist() == [True, False]
    state.put(keys, owners, map_keys, pa.record_batch({"v": [11, 21]}))
    assert state.get(keys, owners, map_keys).columns["v"].to_pylist() == [11, 21]
    state.remove(keys, owners, map_keys)
    assert state.get(keys, owners, map_keys).present.tolist() == [False, False]
    assert state.get(keys, np.zeros(2, np.int32), map_keys).columns["v"].to_pylist() == [None, 20]
