"""Broadcast state by key: against a dict, and what it refuses (S5.1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import PipelineError
from tidegate.state import broadcast_map
from tidegate.state.broadcast_map import BroadcastMap

KEYS = {
    "whole numbers": (pa.schema([("k", pa.int64())]), lambda n: (None if n == 0 else n,)),
    "pairs": (pa.schema([("k", pa.string()), ("l", pa.int32())]), lambda n: (f"key {n % 3}", None if n > 5 else n)),
}
COLUMNS = pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.string()))])


def of_keys(schema: pa.Schema, keys: list[tuple[Any, ...]], values: list[int] | None = None) -> pa.RecordBatch:
    columns = {name: [key[i] for key in keys] for i, name in enumerate(schema.names)}
    if values is None:
        return pa.RecordBatch.from_pydict(columns, schema=schema)
    columns |= {"n": values, "tags": [[str(value)] for value in values]}
    return pa.RecordBatch.from_pydict(columns, schema=pa.schema([*schema, *COLUMNS]))


@pytest.mark.parametrize("kind", KEYS)
@settings(deadline=None, max_examples=60)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "remove", "clear", "freeze"]), st.lists(st.integers(0, 8), max_size=6)),
        max_size=80,
    )
)
def test_it_does_what_a_dict_does_and_what_was_frozen_stays(kind: str, steps: list[tuple[str, list[int]]]) -> None:
    schema, key_of = KEYS[kind]
    state, model = BroadcastMap("rules", schema, COLUMNS), dict[tuple[Any, ...], int]()
    frozen: list[tuple[Any, dict[tuple[Any, ...], int]]] = []
    number = 0
    for what, numbers in steps:
        keys = [key_of(n) for n in numbers]
        if what == "put":
            values = list(range(number, number + len(keys)))
            number += len(keys)
            state.put(of_keys(schema, keys, values))
            model.update(zip(keys, values, strict=True))
        elif what == "remove":
            state.remove(of_keys(schema, keys))
            for key in keys:
                model.pop(key, None)
        elif what == "clear" and not numbers:
            state.clear()
            model.clear()
        elif what == "freeze":
            frozen.append((state.freeze(), dict(model)))
        asked = [key_of(n) for n in range(9)]
        found = state.get(of_keys(schema, asked))
        assert found.present.tolist() == [key in model for key in asked]
        values_found = found.columns["n"].to_pylist()
        assert values_found == [model.get(key) for key in asked]
        assert len(state) == len(model) and rows_of(state.entries()) == model
    for held, was in frozen:
        assert rows_of(state.frozen_table(held)) == was


def rows_of(table: pa.RecordBatch | pa.Table) -> dict[tuple[Any, ...], int]:
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert all(row[-1] == [str(row[-2])] for row in rows)
    return {row[:-2]: row[-2] for row in rows}


def test_rows_that_were_replaced_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcast_map, "SPARE_ROWS", 10)
    schema = pa.schema([("k", pa.int64())])
    state = BroadcastMap("rules", schema, COLUMNS)
    for n in range(1000):
        state.put(of_keys(schema, [(n % 4,)], [n]))
    assert rows_of(state.entries()) == {(n % 4,): n for n in range(996, 1000)}
    batches, _ = state.freeze()
    assert sum(batch.num_rows for batch in batches) <= 2 * 4 + 11


SCHEMA = pa.schema([("k", pa.int64())])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda s: s.put(of_keys(SCHEMA, [(1,)])), "expected columns k int64, n int64"),
        (lambda s: s.put(of_keys(SCHEMA, [(1,)], [1]).to_pylist()), "rows are a list"),
        (lambda s: s.get(pa.record_batch([["text"]], names=["k"])), "the keys have k string"),
        (lambda s: s.remove(pa.record_batch([[1], [2]], names=["k", "l"])), "the keys have k int64, l int64"),
    ],
    ids=["columns", "list", "type", "too many"],
)
def test_what_does_not_fit_is_refused(call: Callable[[BroadcastMap], object], says: str) -> None:
    with pytest.raises(PipelineError, match=says):
        call(BroadcastMap("rules", SCHEMA, COLUMNS))


@pytest.mark.parametrize("call", ["put", "remove", "clear"])
def test_it_is_not_written_where_it_is_read_only(call: str) -> None:
    state = BroadcastMap("rules", SCHEMA, COLUMNS)
    state.writable = False
    arguments = {"put": [of_keys(SCHEMA, [(1,)], [1])], "remove": [of_keys(SCHEMA, [(1,)])], "clear": []}
    with pytest.raises(PipelineError, match="only in process_broadcast"):
        getattr(state, call)(*arguments[call])
    assert len(state) == 0
