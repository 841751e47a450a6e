"""S4.3: which subtask reads which split."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidegate.connectors.interface import Split
from tidegate.connectors.split_documents import (
    assign_splits,
    split_documents,
    split_from_json,
    split_to_json,
    splits_from_parts,
    splits_part,
)


def document(name: str, weight: int = 1, finished: bool = False) -> dict[str, Any]:
    return split_to_json(Split(name, {}, position=weight, finished=finished, weight=weight))


@given(splits=st.lists(st.tuples(st.integers(1, 100), st.booleans()), max_size=20), parallelism=st.integers(1, 7))
def test_every_split_is_read_by_one_subtask_in_the_order_of_discovery(
    splits: list[tuple[int, bool]], parallelism: int
) -> None:
    """S4.3: finished ones too, with their positions."""
    documents = [document(f"s{i}", weight, finished) for i, (weight, finished) in enumerate(splits)]
    found = assign_splits({"source": documents}, parallelism)["source"]
    assert sorted(found) == list(range(parallelism))
    places = [[documents.index(dict(split)) for split in found[i]] for i in range(parallelism)]
    assert sorted(place for mine in places for place in mine) == list(range(len(documents)))
    assert all(mine == sorted(mine) for mine in places)


def test_the_heaviest_come_first_to_the_least_loaded() -> None:
    """S4.3."""
    documents = [document("a", 1), document("b", 5), document("c", 4), document("d", 2)]
    found = assign_splits({"source": documents}, 2)["source"]
    assert [[s["split_id"] for s in found[i]] for i in range(2)] == [["a", "b"], ["c", "d"]]


def test_what_has_been_read_weighs_nothing() -> None:
    """S4.3: after a restore work is shared out, not history."""
    documents = [document("read", 100, finished=True), document("a", 3), document("b", 2)]
    found = assign_splits({"source": documents}, 2)["source"]
    assert [[s["split_id"] for s in found[i] if not s["finished"]] for i in range(2)] == [["a"], ["b"]]


def test_splits_come_back_from_a_readers_state_as_they_were() -> None:
    """S4.2."""
    splits = [Split("a", {"path": "p"}, position=[1, "x"], weight=3), Split("b", {}, finished=True)]
    part = splits_part(splits)
    assert (part.name, part.kind) == ("splits", "list")
    assert splits_from_parts([part]) == splits
    assert [split_from_json(d) for d in split_documents([part])] == splits
