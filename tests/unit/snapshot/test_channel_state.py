"""S3.7: in-flight data as state, and its replay at any parallelism."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import partial
from random import Random

import pyarrow as pa
import pytest

from tidegate.errors import SnapshotError
from tidegate.snapshot.channel_state import InFlightElement, ReplayInput, channel_part, replay_elements
from tidegate.snapshot.partial_rows import ROWS_COLUMN, is_partial, partial_schema
from tidegate.snapshot.parts import StatePart
from tidegate.snapshot.streams import decode_parts, encode_parts
from tidegate.state.keys.key_hash import partition_hash

SCHEMA = pa.schema([("k", pa.int64()), ("n", pa.int64())])
KEYS, MAX_PARALLELISM = 20, 16


def batch(*rows: tuple[int, int]) -> pa.RecordBatch:
    return pa.record_batch([pa.array([k for k, _ in rows]), pa.array([n for _, n in rows])], schema=SCHEMA)


def cut(parallelism: int) -> partial[list[pa.RecordBatch | None]]:
    return partial(partition_hash, columns=["k"], parallelism=parallelism, max_parallelism=MAX_PARALLELISM)


def hashed(parallelism: int) -> dict[int, ReplayInput]:
    return {0: ReplayInput(SCHEMA, cut(parallelism) if parallelism > 1 else None)}


def stored(part: StatePart) -> StatePart:
    """After a round trip through a state stream."""
    return decode_parts(encode_parts([part]))[0]


def rows_of(replay: Sequence[InFlightElement]) -> list[tuple[int, int]]:
    return [
        (row["k"], row["n"]) for e in replay if isinstance(e.element, pa.RecordBatch) for row in e.element.to_pylist()
    ]


def test_at_the_same_parallelism_a_subtask_gets_its_own_back_channel_by_channel() -> None:
    elements = [
        InFlightElement(0, 0, batch((1, 1))),
        InFlightElement(0, 0, 77),
        InFlightElement(0, 1, batch((2, 2), (3, 3))),
    ]
    part = stored(channel_part(elements, 1, 2))
    other = channel_part([InFlightElement(0, 0, batch((9, 9)))], 0, 2)
    assert replay_elements([part, other], hashed(2), 1, 2, where="x") == elements


@pytest.mark.parametrize("seed", range(20))
def test_at_another_parallelism_every_row_of_a_hash_input_goes_to_its_key_groups_in_the_order_of_its_key(
    seed: int,
) -> None:
    """S3.7, S5.5: each row once, none lost."""
    random = Random(seed)
    former, parallelism = random.randint(1, 5), random.randint(1, 5)
    sent: dict[int, list[int]] = {}
    parts = []
    number = 0
    captured: list[list[InFlightElement]] = [[] for _ in range(former)]
    for _ in range(30):
        rows = [(random.randrange(KEYS), number + i) for i in range(random.randint(1, 6))]
        number += len(rows)
        owners = cut(former)(batch(*rows)) if former > 1 else [batch(*rows)]
        # A key's rows come from one channel, so that they have an order.
        for k, n in rows:
            sent.setdefault(k, []).append(n)
        for owner, piece in enumerate(owners):
            if piece is not None and piece.num_rows:
                captured[owner] += [InFlightElement(0, 0, piece), InFlightElement(0, 0, number)]
    parts = [stored(channel_part(elements, owner, former)) for owner, elements in enumerate(captured) if elements]
    got: dict[int, list[int]] = {}
    for index in range(parallelism):
        replay = replay_elements(parts, hashed(parallelism), index, parallelism, where="x")
        for k, n in rows_of(replay):
            owners = cut(parallelism)(batch((k, n))) if parallelism > 1 else [batch((k, n))]
            assert owners[index] is not None
            got.setdefault(k, []).append(n)
        if former != parallelism:
            assert all(isinstance(e.element, pa.RecordBatch) and e.source == 0 for e in replay)
    assert got == sent


@pytest.mark.parametrize(("former", "parallelism"), [(5, 2), (2, 5), (3, 1), (1, 3)])
def test_a_rebalanced_input_moves_by_old_subtask(former: int, parallelism: int) -> None:
    """S3.7, S5.5."""
    parts = [
        channel_part([InFlightElement(0, 0, batch((j, j))), InFlightElement(0, 0, 5)], j, former) for j in range(former)
    ]
    inputs = {0: ReplayInput(SCHEMA)}
    for index in range(parallelism):
        rows = rows_of(replay_elements(parts, inputs, index, parallelism, where="x"))
        assert rows == [(j, j) for j in range(former) if j % parallelism == index]


def test_parts_of_several_subtasks_may_come_as_one_table_in_any_order() -> None:
    parts = [channel_part([InFlightElement(0, 0, batch((j, i))) for i in range(3)], j, 3) for j in (2, 0, 1)]
    one = StatePart("x", "channel", pa.concat_tables([part.table for part in parts]))
    assert rows_of(replay_elements([one], {0: ReplayInput(SCHEMA)}, 0, 1, where="x")) == [
        (j, i) for j in range(3) for i in range(3)
    ]


def test_other_parts_of_the_operator_are_left_alone() -> None:
    assert replay_elements([StatePart("v", "list", pa.table({"v": [1]}))], {}, 0, 1, where="x") == []


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input 0 of the operator, which the pipeline no longer has"),
        ({0: ReplayInput(SCHEMA, may_replay=False)}, "forward or broadcast"),
        ({0: ReplayInput(pa.schema([("k", pa.string())]))}, r"other types \(k: int64\)"),
        ({0: ReplayInput(SCHEMA.append(pa.field("m", pa.int64())))}, r"without the columns \['m'\].*\['k', 'n'\]"),
    ],
)
def test_a_pipeline_that_cannot_take_the_records_is_refused_with_operator_and_remedy(
    inputs: dict[int, ReplayInput], message: str
) -> None:
    """S3.7, S9.3: refused, never dropped or misread."""
    part = channel_part([InFlightElement(0, 0, batch((1, 1)))], 0, 1)
    with pytest.raises(SnapshotError, match=message) as refused:
        replay_elements([part], inputs, 0, 1, where="operator 'windows'")
    assert refused.value.where == "operator 'windows'"
    assert "savepoint" in (refused.value.remedy or "")


@pytest.mark.parametrize("parallelism", [1, 2])
def test_records_that_differ_from_the_declared_schema_in_nullability_alone_come_back(parallelism: int) -> None:
    """S3.7: processing does not look at nullability either; in nested types it is part of the type."""
    declared = pa.schema(
        [
            pa.field("k", pa.int64(), nullable=False),
            pa.field("l", pa.list_(pa.field("item", pa.int64(), nullable=False))),
        ]
    )
    given = pa.record_batch({"k": pa.array([1]), "l": pa.array([[2]])})
    part = stored(channel_part([InFlightElement(0, 0, given)], 0, 1))
    inputs = {0: ReplayInput(declared, cut(parallelism) if parallelism > 1 else None)}
    replays = [replay_elements([part], inputs, index, parallelism, where="x") for index in range(parallelism)]
    assert [e.element.to_pylist() for replay in replays for e in replay] == [[{"k": 1, "l": [2]}]]  # type: ignore[union-attr]
    changes = {
        "other types": declared.set(1, pa.field("l", pa.list_(pa.int32()))),
        "without the columns": declared.set(1, pa.field("m", pa.int64())),
    }
    for message, other in changes.items():
        with pytest.raises(SnapshotError, match=message):
            replay_elements([part], {0: ReplayInput(other)}, 0, 1, where="x")


def test_columns_that_the_pipeline_does_not_read_are_dropped() -> None:
    """S3.7, S5.5: also columns between others, before the rows are divided."""
    given = pa.record_batch({"a": ["x"], "k": [1], "b": [None], "n": [2]})
    part = stored(channel_part([InFlightElement(0, 0, given)], 0, 1))
    for parallelism in (1, 2):
        inputs = {0: ReplayInput(SCHEMA, cut(parallelism) if parallelism > 1 else None)}
        replays = [replay_elements([part], inputs, index, parallelism, where="x") for index in range(parallelism)]
        assert [e.element.to_pydict() for replay in replays for e in replay] == [{"k": [1], "n": [2]}]  # type: ignore[union-attr]


def test_dictionaries_and_empty_columns_survive() -> None:
    schema = pa.schema([("d", pa.dictionary(pa.int8(), pa.string())), ("x", pa.list_(pa.int32()))])
    words = pa.array(["a", "b", None]).dictionary_encode().cast(schema.field("d").type)
    given = pa.record_batch([words, pa.array([None, [], [1]], schema.field("x").type)], schema=schema)
    part = stored(channel_part([InFlightElement(1, 0, given)], 0, 1))
    (back,) = replay_elements([part], {1: ReplayInput(schema)}, 0, 1, where="x")
    assert isinstance(back.element, pa.RecordBatch)
    assert back.element.equals(given)
    assert back.input_index == 1


def test_streams_with_in_flight_data_say_so_in_their_version_and_others_stay_readable_for_older_ones() -> None:
    """S9.3: an older version must not take the unknown kind for damage."""
    plain = encode_parts([StatePart("v", "list", pa.table({"v": [1]}))])
    with_channels = encode_parts([channel_part([InFlightElement(0, 0, 1)], 0, 1)])
    assert [struct.unpack_from("<H", data, 8)[0] for data in (plain, with_channels)] == [1, 2]


PARTIAL = partial_schema(
    [pa.field("window_start_us", pa.int64()), pa.field("key:k", pa.int64()), pa.field("sum:n", pa.int64())]
)


def partial_batch(*keys: int) -> pa.RecordBatch:
    columns = {"window_start_us": [0] * len(keys), "key:k": keys, "sum:n": [10 * k for k in keys], ROWS_COLUMN: keys}
    return pa.RecordBatch.from_pydict(columns, schema=PARTIAL)


def test_partial_rows_come_back_beside_rows_at_any_parallelism() -> None:
    """S3.7, S5.5."""
    part = stored(
        channel_part([InFlightElement(0, 0, partial_batch(*range(KEYS))), InFlightElement(0, 0, batch((1, 1)))], 0, 1)
    )
    for parallelism in (1, 3):

        def cut_both(given: pa.RecordBatch, p: int = parallelism) -> list[pa.RecordBatch | None]:
            key = "key:k" if is_partial(given.schema) else "k"
            return partition_hash(given, [key], parallelism=p, max_parallelism=MAX_PARALLELISM)

        inputs = {0: ReplayInput(SCHEMA, cut_both if parallelism > 1 else None, partial_schema=PARTIAL)}
        found = [
            e.element for i in range(parallelism) for e in replay_elements([part], inputs, i, parallelism, where="x")
        ]
        kinds = [
            [e for e in found if isinstance(e, pa.RecordBatch) and is_partial(e.schema) == kind] for kind in (0, 1)
        ]
        assert [e.to_pylist() for e in kinds[False]] == [[{"k": 1, "n": 1}]]
        assert len(kinds[True]) == parallelism
        assert sorted(k for e in kinds[True] for k in e["key:k"].to_pylist()) == list(range(KEYS))


def test_columns_of_partial_rows_change_as_the_state_of_their_operator_does() -> None:
    """S5.5: renamed columns and wider types are accepted, other changes are refused."""
    part = stored(channel_part([InFlightElement(0, 0, partial_batch(1, 2))], 0, 1))
    renamed = partial_schema(
        [pa.field("window_start_us", pa.int64()), pa.field("key:id", pa.int64()), pa.field("sum:total", pa.float64())]
    )
    inputs = {0: ReplayInput(SCHEMA, partial_schema=renamed, renamed={"k": "id", "n": "total"}, uid="w")}
    with pytest.raises(SnapshotError, match=r"'sum:total' was int64, now double"):
        replay_elements([part], inputs, 0, 1, where="x")
    renamed = renamed.set(2, pa.field("sum:total", pa.int64()))
    inputs = {0: ReplayInput(SCHEMA, partial_schema=renamed, renamed={"k": "id", "n": "total"}, uid="w")}
    (back,) = replay_elements([part], inputs, 0, 1, where="x")
    assert isinstance(back.element, pa.RecordBatch) and is_partial(back.element.schema)
    assert back.element.to_pydict() == dict(zip(renamed.names, partial_batch(1, 2).to_pydict().values(), strict=True))
    with pytest.raises(SnapshotError, match=r"'__in_flight' of operator 'w'.*'key:k' is no longer declared"):
        replay_elements([part], {0: ReplayInput(SCHEMA, partial_schema=renamed, uid="w")}, 0, 1, where="x")


def test_partial_rows_are_refused_where_whole_rows_are_needed() -> None:
    """S3.7, S9.3: such as windows that have got a side output for late rows."""
    part = channel_part([InFlightElement(0, 0, partial_batch(1))], 0, 1)
    with pytest.raises(SnapshotError, match="partial rows in flight to input 0 of the operator.*whole rows") as refused:
        replay_elements([part], {0: ReplayInput(SCHEMA)}, 0, 1, where="operator 'w'")
    assert refused.value.where == "operator 'w'" and "savepoint" in (refused.value.remedy or "")
