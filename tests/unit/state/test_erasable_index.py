"""Indexes that keys can leave, against a dict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.state.heap.erasable_index import new_erasable
from tidegate.state.keys.key_index import KeyReader

SCHEMAS = {"int": pa.schema([("k", pa.int64())]), "text": pa.schema([("k", pa.string())])}
KEYS: dict[str, st.SearchStrategy[Any]] = {
    "int": st.one_of(st.none(), st.integers(-200, 200)),
    "text": st.one_of(st.none(), st.text("ab", max_size=6)),
}


@pytest.mark.parametrize("kind", SCHEMAS)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_keys_come_and_go_and_their_numbers_come_back(kind: str, data: st.DataObject) -> None:
    reader = KeyReader(SCHEMAS[kind], ["k"])
    index = new_erasable(reader)
    held: dict[Any, int] = {}
    highest = 0
    steps = st.tuples(st.booleans(), st.lists(KEYS[kind], max_size=120, unique=True))
    for adds, chosen in data.draw(st.lists(steps, max_size=8)):
        keys = reader.read(pa.record_batch({"k": pa.array(chosen, SCHEMAS[kind].field(0).type)}))
        found = index.find(keys)
        assert found.tolist() == [held.get(key, -1) for key in chosen]
        if adds:
            missing = np.flatnonzero(found < 0)
            entries = index.add(keys, missing).tolist()
            held.update(zip((chosen[row] for row in missing), entries, strict=True))
        else:
            index.erase(found[found >= 0])
            for key in chosen:
                held.pop(key, None)
        highest = max(highest, len(held))
        assert len(set(held.values())) == len(held) == index.count
        assert max(held.values(), default=-1) < index.size <= min(highest, index.capacity)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_an_index_takes_many_keys_after_as_many_were_erased(kind: str) -> None:
    reader = KeyReader(SCHEMAS[kind], ["k"])
    index = new_erasable(reader)
    for step in range(5):
        array = pa.array(np.arange(step * 10_000, (step + 1) * 10_000))
        keys = reader.read(pa.record_batch({"k": array.cast(SCHEMAS[kind].field(0).type)}))
        entries = index.add(keys, np.arange(10_000))
        assert index.find(keys).tolist() == entries.tolist()
        index.erase(entries[: 9_000 if step < 4 else 10_000])
        assert (index.find(keys)[:9_000] == -1).all()
    assert index.size <= 10_000 + 4 * 1_000
