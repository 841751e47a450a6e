"""State of more than one Arrow array holds (2 GiB; here less) is snapshotted in several, and reads say so (S5.2)."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from state_suites.plain_states import SnapshotShelf

from tidegate.errors import PipelineError, SnapshotError
from tidegate.snapshot.parts import StatePart
from tidegate.state.arrow import array_limits, arrow_columns
from tidegate.state.arrow.array_limits import ArrayTooLarge, in_parts
from tidegate.state.heap import frozen_state, list_columns
from tidegate.state.heap.heap_backend import TIMER_KINDS, HeapBackend, MemoryBackend
from tidegate.state.keyed_state import BackendContext, KeyedStateBackend, StateDescriptor, TimeToLive

LIMIT = 4_000
KEYS = 600
COLUMNS = pa.schema([("s", pa.string()), ("words", pa.list_(pa.string())), ("large", pa.large_string())])
MAP_KEY = pa.schema([("m", pa.string())])
STATES = (
    StateDescriptor("value", "value", COLUMNS),
    StateDescriptor("list", "list", COLUMNS, ttl=TimeToLive(10_000)),
    StateDescriptor("map", "map", COLUMNS, map_key=MAP_KEY),
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(array_limits, "MAX_ARRAY_BYTES", LIMIT)
    monkeypatch.setattr(frozen_state, "INLINE_BYTES", LIMIT)
    monkeypatch.setattr(arrow_columns, "COMPACT_BYTES", 1_000)
    monkeypatch.setattr(list_columns, "COMPACT_ROWS", 100)


def opened(backend: KeyedStateBackend) -> KeyedStateBackend:
    backend.open(BackendContext("texts", pa.schema([("k", pa.string())]), ("k",), 128, range(128), lambda: 0))
    for state in STATES:
        getattr(backend, state.kind)(state)
    return backend


def written(backend: KeyedStateBackend, seed: int) -> None:
    """Some rows for each key, a few keys at a time, overwritten often."""
    rng = random.Random(seed)
    value, list_, map_ = (getattr(backend, state.kind)(state) for state in STATES)
    for start in range(0, 5 * KEYS, 10):
        names = [f"{n % KEYS:020}" for n in range(start, start + 10)]
        keys = backend.keys(pa.record_batch({"k": names}))
        texts = [rng.choice([None, "", "x" * rng.randint(1, 90)]) for _ in names]
        rows = pa.record_batch([texts, [[text, "w"] for text in texts], texts], schema=COLUMNS)
        value.put(keys, rows)
        if start % 3:
            list_.clear(keys)
        list_.append(keys, keys.rows, rows)
        map_.put(keys, keys.rows, pa.record_batch({"m": [f"{start % 7}"] * 10}), rows)
        for kind in TIMER_KINDS:
            backend.timers(kind).register(keys, keys.rows, np.arange(start, start + 10))


def sizes(array: pa.Array) -> list[int]:
    """Bytes or elements of an array and of what is in it."""
    if not pa.types.is_list(array.type):
        return [pc.sum(pc.binary_length(array)).as_py() or 0] if pa.types.is_string(array.type) else [0]
    return [len(array.flatten()), *sizes(array.flatten())]


def rows_of(parts: Sequence[StatePart]) -> dict[str, list[dict[str, Any]]]:
    """Rows by state, in an order of their own; those of one list stay in order."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        found = [row for table in part.tables() for row in table.to_pylist()]
        rows[part.name] = sorted(found, key=lambda row: row["key:k"] if part.name == "list" else repr(row))
    return rows


def test_snapshots_cut_what_is_too_large_for_one_array_and_restores_put_it_together() -> None:
    backend = opened(HeapBackend())
    written(backend, 1)
    parts = SnapshotShelf().take(backend.snapshot(1)())
    for part in parts:
        batches = [batch for table in part.tables() for batch in table.to_batches()]
        assert len(batches) > 3
        assert max(max(sizes(column)) for batch in batches for column in batch.columns) <= LIMIT
    again = opened(HeapBackend())
    again.restore(parts)
    assert rows_of(SnapshotShelf().take(again.snapshot(2)())) == rows_of(parts)
    assert len(rows_of(parts)["value"]) == KEYS


def test_a_batch_whose_values_are_too_large_together_is_refused_and_told_what_to_do() -> None:
    backend = opened(HeapBackend())
    written(backend, 2)
    value = backend.value(STATES[0])
    some = [f"{n:020}" for n in range(KEYS)]
    with pytest.raises(PipelineError, match=r"type string.*limit is 4000.*large_string.*batches smaller"):
        value.get(backend.keys(pa.record_batch({"k": some})))
    assert value.get(backend.keys(pa.record_batch({"k": some[:10]}))).present.all()


def test_a_snapshot_in_memory_tells_its_limit_before_all_of_it_is_one_table() -> None:
    backend = opened(MemoryBackend(LIMIT))
    written(backend, 3)
    with pytest.raises(SnapshotError, match="'memory' holds at most 4000"):
        backend.snapshot(1)()


def test_a_single_value_that_does_not_fit_is_not_cut_for_ever() -> None:
    def make(numbers: Any) -> Any:
        raise ArrayTooLarge("too large")

    with pytest.raises(ArrayTooLarge):
        list(in_parts(make, slice(None), 5))


def test_parts_are_as_large_as_they_may_be_and_in_order() -> None:
    def make(numbers: Any) -> list[int]:
        if isinstance(numbers, slice) or len(numbers) > 3:
            raise ArrayTooLarge("too large")
        return list(numbers)

    assert list(in_parts(make, slice(None), 10)) == [[0, 1], [2, 3, 4], [5, 6], [7, 8, 9]]
