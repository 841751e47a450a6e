"""Reducing states of the heap whose numbers are changed where they are: the same as folding them outside."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.state.heap.heap_backend import HeapBackend
from tidegate.state.heap.value_columns import HeapMerging
from tidegate.state.keyed_state import BackendContext, Reduction, StateDescriptor, TimeToLive

KEYS = pa.schema([("k", pa.int64())])
TTL_MS = 100
DAY = 86_400_000_000
NUMBERS: dict[pa.DataType, tuple[Any, ...]] = {
    pa.int64(): (None, -(2**40), 0, 7),
    pa.int16(): (None, -5, 3),
    pa.uint64(): (None, 0, 2**40),
    pa.float64(): (None, float("nan"), -0.0, 0.5, float("-inf")),
    pa.float32(): (None, float("nan"), 1.5),
    pa.bool_(): (None, True, False),
    pa.timestamp("us"): (None, -DAY, DAY),
    pa.date32(): (None, 1, 2),
}


class Twice:
    """The same reducing state twice: one changes numbers in place, one folds them outside."""

    def __init__(self, columns: pa.Schema, reductions: tuple[Reduction, ...], *, ttl: bool = False) -> None:
        self.now_ms = 0
        self.columns = columns
        descriptor = StateDescriptor(
            "r", "reducing", columns, reductions=reductions, ttl=TimeToLive(TTL_MS) if ttl else None
        )
        self.ends: list[tuple[HeapBackend, HeapMerging]] = []
        for in_place in (True, False):
            backend = HeapBackend()
            backend.open(BackendContext("op", KEYS, ("k",), 16, range(16), lambda: self.now_ms))
            state = backend.merging(descriptor)
            assert isinstance(state, HeapMerging) and state._numbers is not None, "these columns are changed in place"
            if not in_place:
                state._numbers = None
            self.ends.append((backend, state))

    def add(self, keys: list[int], owners: list[int] | None, rows: list[tuple[Any, ...]]) -> None:
        """Add rows; owners are by default the keys of the rows."""
        columns = [pa.array(column, type_) for column, type_ in zip(zip(*rows, strict=True), self.types, strict=True)]
        for backend, state in self.ends:
            found = backend.keys(pa.record_batch([pa.array(keys)], schema=KEYS))
            given = found.rows if owners is None else np.array(owners, np.int32)
            state.add(found, given, pa.RecordBatch.from_arrays(columns, schema=self.columns))

    @property
    def types(self) -> list[pa.DataType]:
        return list(self.columns.types)

    def clear(self, keys: list[int]) -> None:
        for backend, state in self.ends:
            state.clear(backend.keys(pa.record_batch([pa.array(keys)], schema=KEYS)))

    def get(self, keys: list[int]) -> list[list[str | None]]:
        """The rows of each end as text, None where there is none."""
        found = []
        for backend, state in self.ends:
            rows = state.get(backend.keys(pa.record_batch([pa.array(keys)], schema=KEYS)))
            texts = map(repr, rows.columns.to_pylist())
            found.append([text if there else None for text, there in zip(texts, rows.present.tolist(), strict=True)])
        return found

    def snapshots(self) -> list[list[str]]:
        """The rows of a snapshot of each end, as text."""
        return [
            sorted(map(repr, part.table.to_pylist()))
            for backend, _ in self.ends
            for part in backend.snapshot(1)()
            if part.name == "r"
        ]


def of_eight_bytes(reduction: Reduction, type_: pa.DataType) -> bool:
    """True if a result takes eight bytes: other results are folded outside."""
    return reduction == "count" or type_.bit_width == 64 or (reduction == "sum" and type_ in (pa.int16(), pa.float32()))


@pytest.mark.parametrize("ttl", [False, True])
@pytest.mark.parametrize("type_", NUMBERS, ids=str)
def test_numbers_that_are_changed_in_place_are_those_that_are_folded(type_: pa.DataType, ttl: bool) -> None:
    """S5.1, through writes, clearing, expiry and snapshots."""
    is_number = pa.types.is_integer(type_) or pa.types.is_floating(type_)
    every: tuple[Reduction, ...] = ("sum", "min", "max", "count") if is_number else ("min", "max", "count")
    reductions = tuple(reduction for reduction in every if of_eight_bytes(reduction, type_))
    names = [f"c{n}" for n in range(len(reductions))]
    for seed in range(20):
        rng = random.Random(seed)
        both = Twice(pa.schema([(name, type_) for name in names]), reductions, ttl=ttl)
        for _ in range(20):
            count = rng.randrange(1, 6)
            keys = [rng.randrange(8) for _ in range(count)]
            rows = [(rng.choice(NUMBERS[type_]),) * len(reductions) for _ in range(count)]
            # Owners of their own leave keys out.
            owners = None if rng.random() < 0.6 else [rng.randrange(len(set(keys))) for _ in range(count)]
            both.add(keys, owners, rows)
            if rng.random() < 0.3:
                both.clear([rng.randrange(8)])
            both.now_ms += rng.choice((0, 0, TTL_MS // 2))
            one, other = both.get(list(range(8)))
            assert one == other
        one, other = both.snapshots()
        assert one == other


def test_a_frozen_state_keeps_numbers_that_change_in_place_afterwards() -> None:
    """S5.2."""
    both = Twice(pa.schema([("n", pa.int64())]), ("sum",))
    both.add([1, 2, 3], None, [(1,), (2,), (3,)])
    writes = [backend.snapshot(1) for backend, _ in both.ends]
    both.add([1, 2, 4], None, [(10,), (None,), (5,)])
    for write in writes:
        (table,) = (part.table for part in write() if part.name == "r")
        assert sorted(zip(table["key:k"].to_pylist(), table["value:n"].to_pylist(), strict=True)) == [
            (1, 1),
            (2, 2),
            (3, 3),
        ]
    assert both.get([1, 2, 3, 4])[0] == ["{'n': 11}", "{'n': 2}", "{'n': 3}", "{'n': 5}"]


@pytest.mark.parametrize(
    ("field", "reduction"),
    [(pa.field("x", pa.int64()), "first"), (pa.field("x", pa.int32()), "min"), (pa.field("x", pa.string()), "max")],
)
def test_other_columns_are_folded_outside(field: pa.Field, reduction: Reduction) -> None:
    backend = HeapBackend()
    backend.open(BackendContext("op", KEYS, ("k",), 16, range(16), lambda: 0))
    columns = pa.schema([("n", pa.int64()), field])
    state = backend.merging(StateDescriptor("r", "reducing", columns, reductions=("sum", reduction)))
    assert isinstance(state, HeapMerging) and state._numbers is None
