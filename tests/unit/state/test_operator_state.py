"""Operator state: list, union and broadcast, through snapshots and rescales (S5.1, S5.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import PipelineError, SnapshotError
from tidegate.snapshot.parts import StatePart
from tidegate.snapshot.redistribution import Rescale, redistributed
from tidegate.snapshot.streams import decode_parts, encode_parts
from tidegate.state.operator_descriptor import OperatorDescriptor
from tidegate.state.operator_state import MAX_BATCHES, OperatorStates

COLUMNS = pa.schema([("n", pa.int64()), ("tags", pa.list_(pa.string()))])
DESCRIPTORS = (
    OperatorDescriptor("offsets", "list", COLUMNS),
    OperatorDescriptor("seen", "union", COLUMNS),
    OperatorDescriptor("rules", "broadcast", COLUMNS),
)


def rows(*numbers: int) -> pa.RecordBatch:
    tags = pa.array([[str(n)] for n in numbers], COLUMNS.field(1).type)
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.int64()), tags], schema=COLUMNS)


def numbers(table: pa.Table) -> list[int]:
    found: list[int] = table.column("n").to_pylist()
    assert table.column("tags").to_pylist() == [[str(n)] for n in found]
    return found


def started(parallelism: int, descriptors: Sequence[OperatorDescriptor] = DESCRIPTORS) -> list[OperatorStates]:
    return [OperatorStates("u", descriptors, index, parallelism) for index in range(parallelism)]


def rescaled(taken: Sequence[Sequence[StatePart]], parallelism: int) -> list[OperatorStates]:
    """The subtasks of a restore, by the redistribution of the runtime, from state streams."""
    former = {i: decode_parts(encode_parts(list(parts))) for i, parts in enumerate(taken)}
    later = started(parallelism)
    for index, states in enumerate(later):
        place = Rescale(len(taken), parallelism, 128, index)
        states.restore(redistributed(former, index % len(taken), place))
    return later


def taken_of(subtasks: Sequence[OperatorStates]) -> list[Sequence[StatePart]]:
    return [states.freeze()() for states in subtasks]


@settings(deadline=None, max_examples=60)
@given(data=st.data(), parallelisms=st.lists(st.integers(1, 5), min_size=2, max_size=4))
def test_rows_are_where_the_rules_say_after_any_rescales(data: st.DataObject, parallelisms: list[int]) -> None:
    subtasks = started(parallelisms[0])
    expected: list[list[int]] = [[] for _ in subtasks]
    union: list[int] = []
    rules: list[int] = []
    next_number = 0
    for parallelism in parallelisms[1:]:
        for index, states in enumerate(subtasks):
            for count in data.draw(st.lists(st.integers(0, 4), max_size=3)):
                fresh = list(range(next_number, next_number + count))
                next_number += count
                states.list("offsets").append(rows(*fresh))
                states.union("seen").append(rows(*fresh))
                expected[index] += fresh
                union += fresh
        rules += data.draw(st.lists(st.integers(0, 9), max_size=3))
        for states in subtasks:
            states.broadcast("rules").put(rows(*rules))
            assert numbers(states.list("offsets").get()) == expected[subtasks.index(states)]
        changes = parallelism != len(subtasks)
        subtasks = rescaled(taken_of(subtasks), parallelism)
        flat = [n for of_one in expected for n in of_one]
        if changes:
            cuts = [len(flat) * i // parallelism for i in range(parallelism + 1)]
            expected = [flat[a:b] for a, b in zip(cuts, cuts[1:])]
        for index, states in enumerate(subtasks):
            assert numbers(states.list("offsets").get()) == expected[index]
            assert sorted(numbers(states.union("seen").restored())) == sorted(union)
            assert numbers(states.broadcast("rules").get()) == rules
        assert sorted(n for states in subtasks for n in numbers(states.union("seen").get())) == sorted(union)


def test_a_union_that_every_subtask_replaces_holds_what_they_put() -> None:
    subtasks = started(2)
    for index, states in enumerate(subtasks):
        states.union("seen").append(rows(index, index + 10))
    subtasks = rescaled(taken_of(subtasks), 3)
    for index, states in enumerate(subtasks):
        mine = [n for n in numbers(states.union("seen").restored()) if n % 3 == index]
        states.union("seen").put(rows(*mine))
    again = rescaled(taken_of(subtasks), 1)[0]
    assert sorted(numbers(again.union("seen").restored())) == [0, 1, 10, 11]


def test_writes_after_a_freeze_are_not_in_it() -> None:
    states = started(1)[0]
    offsets = states.list("offsets")
    for n in range(2 * MAX_BATCHES):
        offsets.append(rows(n))
    write = states.freeze()
    offsets.append(rows(999))
    frozen = {part.name: part for part in write()}
    offsets.clear()
    assert numbers(frozen["offsets"].table) == list(range(2 * MAX_BATCHES))
    assert [(part.name, part.kind) for part in frozen.values()] == [(d.name, d.kind) for d in DESCRIPTORS]
    assert numbers(states.list("offsets").get()) == []


@pytest.mark.parametrize(
    ("later", "says"),
    [
        (
            OperatorDescriptor("offsets", "union", COLUMNS),
            r"'offsets'.*the snapshot has list, but the pipeline declares union",
        ),
        (
            OperatorDescriptor("offsets", "list", pa.schema([("n", pa.string())])),
            r"'n' was int64, now string",
        ),
        (OperatorDescriptor("other", "list", COLUMNS), r"'offsets'.*Declare state 'offsets' again"),
    ],
    ids=["kind", "columns", "unknown"],
)
def test_a_state_of_another_declaration_is_refused(later: OperatorDescriptor, says: str) -> None:
    states = started(1, DESCRIPTORS[:1])[0]
    states.list("offsets").append(rows(1))
    with pytest.raises(SnapshotError, match=says):
        started(1, [later])[0].restore(states.freeze()())


def test_a_state_is_asked_for_by_its_name_and_kind() -> None:
    states = started(1)[0]
    with pytest.raises(PipelineError, match=r"no UnionState 'rules'.*rules \(broadcast\)"):
        states.union("rules")
    with pytest.raises(PipelineError, match="no OperatorListState 'nothing'"):
        states.list("nothing")


def test_rows_of_other_columns_are_refused_and_change_nothing() -> None:
    offsets: Any = started(1)[0].list("offsets")
    offsets.append(rows(1))
    for write in (offsets.append, offsets.put):
        with pytest.raises(PipelineError, match="the state has n int64, tags.*the rows have n int64"):
            write(pa.record_batch({"n": pa.array([1])}))
        with pytest.raises(PipelineError, match="the rows are a list"):
            write([1])
    assert numbers(offsets.get()) == [1]


def test_nulls_are_refused_where_none_may_be() -> None:
    columns = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    state = started(1, [OperatorDescriptor("s", "list", columns)])[0].list("s")
    with pytest.raises(PipelineError, match="column 'n' has nulls"):
        state.append(pa.record_batch({"n": pa.array([None], pa.int64())}))


@pytest.mark.parametrize("columns", [pa.schema([]), pa.schema([("__owner", pa.int32())])])
def test_columns_of_the_runtimes_own_names_and_none_at_all_are_refused(columns: pa.Schema) -> None:
    with pytest.raises(PipelineError, match="'s'"):
        OperatorDescriptor("s", "list", columns)
