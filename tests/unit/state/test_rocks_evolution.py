"""S5.5: a checkpoint in RocksDB's own files is restored with columns that have changed since, at any parallelism."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.errors import SnapshotError
from tidegate.snapshot.parts import StatePart
from tidegate.state.keyed_state import BackendContext, KeySet, StateDescriptor, TimeToLive
from tidegate.state.rocksdb.rocksdb_backend import RocksDBBackend

GROUPS = 8
KEYS, NOW = pa.schema([("k", pa.int32()), ("s", pa.string())]), pa.schema([("id", pa.int64()), ("s", pa.string())])
OLD = {
    "value": StateDescriptor("value", "value", pa.schema([("n", pa.int32()), ("t", pa.string())])),
    "list": StateDescriptor("list", "list", pa.schema([("n", pa.int32())]), ttl=TimeToLive(1_000)),
    "map": StateDescriptor("map", "map", pa.schema([("n", pa.int32())]), map_key=pa.schema([("at", pa.date32())])),
}
NEW = {
    "value": StateDescriptor(
        "value",
        "value",
        pa.schema([("text", pa.string()), ("n", pa.int64()), ("more", pa.float64())]),
        renamed={"t": "text"},
    ),
    "list": StateDescriptor("list", "list", pa.schema([("n", pa.int64())]), ttl=TimeToLive(1_000)),
    "map": StateDescriptor(
        "map", "map", pa.schema([("m", pa.int32())]), map_key=pa.schema([("at", pa.date32())]), renamed={"n": "m"}
    ),
}
COUNT = 300
Opener = Callable[..., RocksDBBackend]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    """opened(name, keys, key groups, renamed keys, fills)."""
    backends = []

    def open_(name: str, keys: pa.Schema, groups: range, renamed: Any = (), *, fills: bool = True) -> RocksDBBackend:
        place = ("rides", keys, tuple(keys.names), GROUPS, groups, lambda: 500, str(tmp_path / name), 2**22)
        backend = RocksDBBackend()
        backend.open(BackendContext(*place, renamed_keys=dict(renamed), fills=fills))
        backends.append(backend)
        return backend

    yield open_
    for backend in backends:
        backend.close()


def keys_of(backend: RocksDBBackend, schema: pa.Schema) -> KeySet:
    columns = [pa.array(range(COUNT), schema.types[0]), pa.array([str(n % 3) for n in range(COUNT)])]
    return backend.keys(pa.record_batch(columns, schema=schema))


def files_of(backend: RocksDBBackend) -> list[StatePart]:
    """A checkpoint of all kinds of state: n, 2 n and 3 n for key n, and a timer at n."""
    states = {name: getattr(backend, name)(descriptor) for name, descriptor in OLD.items()}
    keys, every = keys_of(backend, KEYS), np.arange(COUNT, dtype=np.int32)
    numbers = pa.array(every)
    states["value"].put(keys, pa.record_batch([numbers, numbers.cast(pa.string())], schema=OLD["value"].columns))
    states["list"].append(keys, every, pa.record_batch([pa.array(every * 2)], schema=OLD["list"].columns))
    days = pa.record_batch([pa.array(every % 50).cast(pa.date32())], schema=OLD["map"].map_key)
    states["map"].put(keys, every, days, pa.record_batch([pa.array(every * 3)], schema=OLD["map"].columns))
    backend.timers("event").register(keys, every, every.astype(np.int64))
    return list(backend.snapshot(1)())


@pytest.mark.parametrize("parallelism", [1, 2])
def test_columns_that_were_added_widened_or_renamed_are_restored_from_files(opened: Opener, parallelism: int) -> None:
    parts = files_of(opened("old", KEYS, range(GROUPS)))
    assert [part.format for part in parts] == ["rocksdb"]
    held = np.zeros(COUNT, np.int64)
    timers: list[int] = []
    for index in range(parallelism):
        width = GROUPS // parallelism
        backend = opened(f"new-{index}", NOW, range(index * width, (index + 1) * width), {"k": "id"})
        value, list_, map_ = (getattr(backend, name)(descriptor) for name, descriptor in NEW.items())
        service = backend.timers("event")
        backend.restore(parts)
        keys = keys_of(backend, NOW)
        found = value.get(keys)
        mine = np.flatnonzero(found.present)
        held[mine] += 1
        rows = found.columns.take(pa.array(mine)).to_pydict()
        assert rows == {"text": [str(n) for n in mine], "n": mine.tolist(), "more": [None] * len(mine)}
        lists, entries = list_.get(keys), map_.entries(keys)
        assert lists.columns["n"].to_pylist() == (mine * 2).tolist() and lists.columns["n"].type == pa.int64()
        assert entries.columns["m"].to_pylist() == (mine * 3).tolist()
        while (due := service.due(10**6, COUNT)) is not None:
            assert due.keys.columns()["id"].take(pa.array(due.owners)).to_pylist() == due.times_us.tolist()
            timers += due.times_us.tolist()
        (again,) = backend.snapshot(2)()
        assert again.format == "rocksdb"
    assert held.tolist() == [1] * COUNT and sorted(timers) == list(range(COUNT))


def test_columns_that_cannot_become_those_of_now_are_refused_by_name(opened: Opener) -> None:
    parts = files_of(opened("old", KEYS, range(GROUPS)))

    def restored(name: str, fills: bool = True, **changed: StateDescriptor) -> None:
        backend = opened(name, KEYS, range(GROUPS), fills=fills)
        backend.timers("event")
        for kind, descriptor in (OLD | changed).items():
            getattr(backend, kind)(descriptor)
        backend.restore(parts)

    restored("same")
    narrower = StateDescriptor("value", "value", pa.schema([("n", pa.int16()), ("t", pa.string())]))
    with pytest.raises(SnapshotError, match=r"'value'.*'rides'.*'value:n' was int32, now int16"):
        restored("narrower", value=narrower)
    more = StateDescriptor("value", "value", pa.schema([*OLD["value"].columns, ("more", pa.int64())]))
    with pytest.raises(SnapshotError, match="'value:more' is new"):
        restored("more", fills=False, value=more)
    restored("filled", value=more)
