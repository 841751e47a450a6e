"""S5.5: parts of keyed states with the columns that are declared now, before a back end sees them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.errors import SnapshotError
from tidegate.jobs.restore.state_evolution import StateColumn, evolution, is_wider_key
from tidegate.jobs.restore.state_shapes import StateShape, compare_states
from tidegate.snapshot.evolved_columns import evolve_part, schema_columns
from tidegate.snapshot.parts import Blob, StatePart
from tidegate.state.evolved_parts import evolved_parts
from tidegate.state.keyed_state import StateDescriptor, TimeToLive
from tidegate.state.keys.key_hash import hash_keys
from tidegate.state.state_layout import part_schema, timer_part, timer_schema

KEYS = pa.schema([("k", pa.int32())])
WIDE_KEYS = pa.schema([("k", pa.int64())])
OLD = StateDescriptor("seen", "value", pa.schema([("n", pa.int32()), ("text", pa.string())]))


def part(descriptor: StateDescriptor, keys: pa.Schema = KEYS, blobs: int = 0) -> StatePart:
    schema = part_schema(descriptor, keys)
    rows = pa.table([[1, 2], [10, 20], [5, None], ["a", "b"]], schema=schema)

    def read() -> bytes:
        out = pa.BufferOutputStream()
        with pa.ipc.new_stream(out, schema) as writer:
            writer.write_table(rows)
        return bytes(out.getvalue())

    return StatePart(descriptor.name, "keyed", rows, blobs=tuple(Blob(f"b{i}", read) for i in range(blobs)))


def test_a_state_that_is_as_declared_is_passed_on_as_it_is() -> None:
    given = part(OLD)
    assert evolved_parts([given], [OLD], KEYS, "op")[0] is given


def test_columns_are_added_widened_and_renamed_in_every_piece() -> None:
    now = StateDescriptor(
        "seen",
        "value",
        pa.schema([("count", pa.int64()), ("note", pa.string()), ("text", pa.string())]),
        renamed={"n": "count"},
    )
    found = evolved_parts([part(OLD, blobs=2)], [now], WIDE_KEYS, "op")[0]
    for table in found.tables():
        assert table.schema.equals(part_schema(now, WIDE_KEYS))
        assert table.column("value:count").to_pylist() == [5, None]
        assert table.column("value:note").null_count == 2
    assert len(list(found.tables())) == 3


def test_timers_follow_the_key() -> None:
    timers = pa.table([[1], [10], [77]], schema=timer_schema(KEYS))
    renamed = pa.schema([("id", pa.int64())])
    given = [StatePart(timer_part("event"), "keyed", timers), part(OLD)]
    for found in evolved_parts(given, [OLD], renamed, "op", {"k": "id"}):
        assert found.table.column("key:id").type == pa.int64() and found.table.column("key:id").to_pylist()[0] == 10


def test_a_column_that_was_renamed_and_nothing_else_has_its_new_name() -> None:
    now = StateDescriptor(
        "seen", "value", pa.schema([("number", pa.int32()), *list(OLD.columns)[1:]]), renamed={"n": "number"}
    )
    (found,) = evolved_parts([part(OLD)], [now], KEYS, "op")
    assert found.table.schema.names == part_schema(now, KEYS).names
    assert found.table.column("value:number").equals(part(OLD).table.column("value:n"))


def test_a_state_of_another_kind_is_refused() -> None:
    now = StateDescriptor("seen", "list", OLD.columns)
    with pytest.raises(
        SnapshotError, match="'seen' of operator 'op'.*the snapshot has value, but the pipeline declares list"
    ):
        evolved_parts([part(OLD)], [now], KEYS, "op")


def test_a_state_that_nobody_declares_is_refused() -> None:
    with pytest.raises(SnapshotError, match="'seen'.*does not declare"):
        evolved_parts([part(OLD)], [], KEYS, "op")


def test_what_does_not_fit_is_refused_with_old_and_new_type() -> None:
    now = StateDescriptor("seen", "value", pa.schema([("n", pa.int16()), ("text", pa.string())]))
    with pytest.raises(SnapshotError, match="'seen' of operator 'op'.*'value:n' was int32, now int16"):
        evolved_parts([part(OLD)], [now], KEYS, "op")


def test_a_ttl_that_is_new_is_refused_by_name_in_the_restore_and_in_the_preflight() -> None:
    """Filled with null, every row would be over."""
    now = StateDescriptor("seen", "value", OLD.columns, ttl=TimeToLive(1_000))
    with pytest.raises(SnapshotError, match="'seen' of operator 'op'.*TTL is new"):
        evolved_parts([part(OLD)], [now], KEYS, "op")
    was, is_ = (StateShape("seen", "keyed", schema_columns(part_schema(one, KEYS))) for one in (OLD, now))
    ((name, why),) = compare_states([was], [StateShape.from_json(is_.to_json())]).refused
    assert name == "seen" and "TTL is new" in why


def test_a_new_column_that_is_only_called_like_that_of_a_ttl_is_null_in_what_is_restored() -> None:
    """Of a broadcast join, whose columns have no prefix."""
    assert not evolution(
        [StateColumn("a", "int64")], [StateColumn("a", "int64"), StateColumn("ttl_ms", "int64")]
    ).refused


def test_a_time_that_the_finer_unit_cannot_hold_is_refused_when_it_is_met() -> None:
    old = StateDescriptor("seen", "value", pa.schema([("at", pa.timestamp("s"))]))
    now = StateDescriptor("seen", "value", pa.schema([("at", pa.timestamp("ns"))]))
    rows = pa.table([[1], [10], pa.array([10**11], pa.timestamp("s"))], schema=part_schema(old, KEYS))
    with pytest.raises(SnapshotError, match="'value:at' cannot be converted to"):
        evolved_parts([StatePart("seen", "keyed", rows)], [now], KEYS, "op")


def test_files_of_a_back_end_that_has_its_own_are_not_evolved() -> None:
    now = StateDescriptor("seen", "value", pa.schema([("n", pa.int64()), ("text", pa.string())]))
    native = StatePart("seen", "keyed", part(OLD).table, format="rocksdb")
    assert evolved_parts([native], [now], KEYS, "op")[0] is native, "the back end compares them itself"
    with pytest.raises(SnapshotError, match="Take a savepoint"):
        evolve_part(native, part_schema(now, KEYS), "op")


NUMBERS = {"int8": pa.int8(), "int32": pa.int32(), "int64": pa.int64(), "uint16": pa.uint16(), "uint64": pa.uint64()}
OTHERS = {"float": pa.float32(), "double": pa.float64(), "timestamp[s]": pa.timestamp("s")}
OTHERS |= {"timestamp[us]": pa.timestamp("us"), "date32[day]": pa.date32(), "date64[ms]": pa.date64()}
KEY_TYPES = {**NUMBERS, **OTHERS}


@given(
    old=st.sampled_from(sorted(KEY_TYPES)),
    new=st.sampled_from(sorted(KEY_TYPES)),
    values=st.lists(st.one_of(st.none(), st.integers(0, 100)), min_size=1, max_size=20),
)
def test_a_key_that_may_become_wider_keeps_its_key_group(old: str, new: str, values: list[int | None]) -> None:
    """S5.1."""
    if not is_wider_key(old, new):
        return
    kind = KEY_TYPES[old]
    plain = pa.array(values, pa.int32() if old in NUMBERS or old in ("float", "date32[day]") else pa.int64())
    before = plain.cast(kind)
    batches = [pa.record_batch({"k": column}) for column in (before, before.cast(KEY_TYPES[new]))]
    assert [hash_keys(batches[0], ["k"]).tolist()] == [hash_keys(batches[1], ["k"]).tolist()]
