"""S5.5, S6.2, S6.3: how the state of old subtasks is shared out among new ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import SnapshotError
from tidegate.snapshot.handles import StateHandle
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.metadata import OperatorState, SubtaskState
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, OWNER_COLUMN, Blob, StateKind, StatePart
from tidegate.snapshot.redistribution import Rescale, RestoreShare, redistributed, restore_share
from tidegate.snapshot.streams import decode_parts, encode_parts
from tidegate.state.keys.key_hash import hash_keys, key_groups, partition_hash, subtask_of_key_groups

GROUPS = 16
PARALLELISM = st.integers(1, GROUPS)


class Snapshot:
    """One operator's state, subtask by subtask, as streams."""

    def __init__(self, parts: Mapping[int, Sequence[StatePart]], parallelism: int, ended: Sequence[int] = ()) -> None:
        self.parallelism = parallelism
        self.streams: dict[int, bytes] = {}
        subtasks = []
        for index in range(parallelism):
            handle = None
            if index in parts:
                self.streams[index] = encode_parts(parts[index])
                handle = StateHandle(f"op-{index}", None, 1, "", tuple({p.kind for p in parts[index]}))
            subtasks.append(SubtaskState(index, index in ended, handle))
        self.operator = OperatorState("op", "running", tuple(subtasks))

    def share(self, parallelism: int, index: int) -> RestoreShare | None:
        """What a new subtask loads, after a trip through a message."""
        found = restore_share(self.operator, Rescale(self.parallelism, parallelism, GROUPS, index))
        return None if found is None else RestoreShare.from_json(found.to_json())

    def loads(self, parallelism: int, index: int) -> list[int]:
        """Old subtasks whose streams a new subtask reads."""
        share = self.share(parallelism, index)
        return [] if share is None else [former for former, _ in share.handles]

    def restored(self, parallelism: int, index: int) -> dict[str, list[Any]]:
        """State name -> values that come to a new subtask."""
        share = self.share(parallelism, index)
        if share is None:
            return {}
        former = {former_index: decode_parts(self.streams[former_index]) for former_index, _ in share.handles}
        place = Rescale(self.parallelism, parallelism, GROUPS, index)
        parts = redistributed(former, share.broadcast_from, place)
        return {part.name: part.table.column("v").to_pylist() for part in parts}

    def of_all(self, parallelism: int, name: str) -> list[list[Any]]:
        """Values of one state, new subtask by new subtask."""
        return [self.restored(parallelism, index).get(name, []) for index in range(parallelism)]


def part(kind: StateKind, values: Sequence[Any], name: str = "s", **columns: pa.Array) -> StatePart:
    return StatePart(name, kind, pa.table({"v": pa.array(values, pa.int64()), **columns}))


def keyed(groups: Sequence[int]) -> StatePart:
    """A row for each key group, whose value it is."""
    return part("keyed", groups, **{KEY_GROUP_COLUMN: pa.array(groups, pa.uint16())})


@given(parallelism=st.integers(1, 300), more=st.integers(0, 300))
def test_each_key_group_has_exactly_one_owner_and_the_ranges_follow_one_another(parallelism: int, more: int) -> None:
    """S5.1."""
    ranges = [key_group_range(i, parallelism, parallelism + more) for i in range(parallelism)]
    assert [g for r in ranges for g in r] == list(range(parallelism + more))
    assert max(map(len, ranges)) - min(map(len, ranges)) <= 1


@given(keys=st.lists(st.integers(), max_size=40), parallelism=PARALLELISM)
def test_records_go_where_the_state_of_their_key_goes(keys: list[int], parallelism: int) -> None:
    """S5.1: routing and restore share one definition."""
    batch = pa.record_batch({"k": pa.array([k % 2**31 for k in keys], pa.int64())})
    owners = subtask_of_key_groups(parallelism, GROUPS)
    assert [int(o) for o in owners] == [g * parallelism // GROUPS for g in range(GROUPS)]
    assert [list(np.flatnonzero(owners == i)) for i in range(parallelism)] == [
        list(key_group_range(i, parallelism, GROUPS)) for i in range(parallelism)
    ]
    cut = partition_hash(batch, ["k"], parallelism, GROUPS)
    assert sum(b.num_rows for b in cut if b is not None) == len(keys)
    for index, mine in enumerate(cut):
        if mine is not None:
            assert set(key_groups(hash_keys(mine, ["k"]), GROUPS)) <= set(key_group_range(index, parallelism, GROUPS))


@settings(deadline=None)
@given(rows=st.lists(st.integers(0, GROUPS - 1), max_size=40), before=PARALLELISM, after=PARALLELISM)
def test_every_keyed_row_comes_to_the_owner_of_its_key_group_and_to_no_other(
    rows: list[int], before: int, after: int
) -> None:
    """S5.5."""
    ranges = {i: key_group_range(i, before, GROUPS) for i in range(before)}
    snapshot = Snapshot({i: [keyed([g for g in rows if g in r])] for i, r in ranges.items()}, before)
    found = snapshot.of_all(after, "s")
    assert Counter(g for mine in found for g in mine) == Counter(rows)
    assert all(set(mine) <= set(key_group_range(i, after, GROUPS)) for i, mine in enumerate(found))


@settings(deadline=None)
@given(counts=st.lists(st.integers(0, 7), min_size=1, max_size=GROUPS), after=PARALLELISM)
def test_every_list_row_comes_to_one_subtask_and_evenly(counts: list[int], after: int) -> None:
    """S5.1, S5.5: at the same parallelism each subtask gets its own back."""
    rows = [[100 * i + k for k in range(count)] for i, count in enumerate(counts)]
    snapshot = Snapshot({i: [part("list", mine)] for i, mine in enumerate(rows)}, len(counts))
    found = snapshot.of_all(after, "s")
    assert [v for mine in found for v in mine] == [v for mine in rows for v in mine]
    if after == len(counts):
        assert found == rows
    else:
        assert max(map(len, found)) - min(map(len, found)) <= 1


@settings(deadline=None)
@given(
    rows=st.lists(st.lists(st.one_of(st.none(), st.integers(0, 40)), max_size=5), min_size=1, max_size=6),
    after=st.integers(1, 6),
)
def test_list_rows_with_an_owner_come_to_who_stands_for_it_and_without_one_to_all(
    rows: list[list[int | None]], after: int
) -> None:
    """S5.5, S7.4."""
    parts = {
        i: [part("list", [k or 0 for k in mine], **{OWNER_COLUMN: pa.array(mine, pa.int32())})]
        for i, mine in enumerate(rows)
    }
    found = Snapshot(parts, len(rows)).of_all(after, "s")
    if after == len(rows):
        assert found == [[owner or 0 for owner in mine] for mine in rows]
    else:
        every = [owner for mine in rows for owner in mine]
        for index, mine in enumerate(found):
            assert mine == [owner or 0 for owner in every if owner is None or owner % after == index]


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3), (3, 3)])
def test_union_state_comes_whole_to_every_subtask(before: int, after: int) -> None:
    """S5.1."""
    snapshot = Snapshot({i: [part("union", [i, 10 + i])] for i in range(before)}, before)
    whole = [v for i in range(before) for v in (i, 10 + i)]
    assert snapshot.of_all(after, "s") == [whole] * after


@pytest.mark.parametrize(("before", "after", "expected"), [(2, 4, [0, 1, 0, 1]), (3, 2, [0, 1]), (2, 2, [0, 1])])
def test_broadcast_state_comes_from_the_subtask_of_the_same_number_modulo_the_old_parallelism(
    before: int, after: int, expected: list[int]
) -> None:
    """S5.1: one replica, whole."""
    snapshot = Snapshot({i: [part("broadcast", [i])] for i in range(before)}, before)
    assert snapshot.of_all(after, "s") == [[i] for i in expected]


@pytest.mark.parametrize("after", [3, 2, 4])
def test_broadcast_state_of_a_partially_finished_operator_comes_from_a_running_subtask(after: int) -> None:
    """S6.3: subtask 0 has left nothing, subtask 1 had ended; its replica is not taken."""
    parts = {i: [part("broadcast", [i], "b"), part("list", [i], "l")] for i in (1, 2)}
    snapshot = Snapshot(parts, 3, ended=(0, 1))
    assert snapshot.of_all(after, "b") == [[2]] * after
    assert sorted(v for mine in snapshot.of_all(after, "l") for v in mine) == [1, 2]


def test_in_flight_rows_come_to_their_own_subtask_or_at_another_parallelism_to_all() -> None:
    """S3.7: who picks from them is `channel_state.replay_for`."""
    channels = Snapshot({i: [part("channel", [i])] for i in range(3)}, 3)
    assert channels.of_all(3, "s") == [[0], [1], [2]]
    assert channels.of_all(2, "s") == [[0, 1, 2]] * 2


def test_a_subtask_reads_only_the_streams_that_hold_something_for_it() -> None:
    """S5.5."""
    keyed_alone = Snapshot({i: [keyed(list(key_group_range(i, 4, GROUPS)))] for i in range(4)}, 4)
    assert [keyed_alone.loads(4, i) for i in range(4)] == [[0], [1], [2], [3]]
    assert [keyed_alone.loads(2, i) for i in range(2)] == [[0, 1], [2, 3]]
    assert [keyed_alone.loads(3, i) for i in range(3)] == [[0, 1], [1, 2], [2, 3]]
    replicas = Snapshot({i: [part("broadcast", [i])] for i in range(4)}, 4)
    assert [replicas.loads(3, i) for i in range(3)] == [[0], [1], [2]]
    lists = Snapshot({i: [part("list", [i])] for i in range(4)}, 4)
    assert lists.loads(4, 2) == [2] and lists.loads(3, 2) == [0, 1, 2, 3]


def test_an_operator_without_state_has_nothing_to_share() -> None:
    assert Snapshot({}, 2).share(3, 0) is None


def test_subtasks_that_disagree_about_a_state_are_named_not_mixed() -> None:
    """S5.5."""
    place = Rescale(2, 1, GROUPS, 0)
    with pytest.raises(SnapshotError, match="state 's'.*operator 'op'.*kinds are list, union"):
        redistributed({0: [part("list", [1])], 1: [part("union", [1])]}, None, place, where="operator 'op'")
    other = StatePart("s", "list", pa.table({"v": ["text"]}))
    with pytest.raises(SnapshotError, match="state 's'.*operator 'op'"):
        redistributed({0: [part("list", [1])], 1: [other]}, None, place, where="operator 'op'")


def test_the_kinds_in_a_stream_are_part_of_its_handle() -> None:
    handle = StateHandle(None, b"abc", 3, "x", ("keyed", "list"))
    assert StateHandle.from_json(handle.to_json()) == handle
    before = StateHandle(None, b"abc", 3, "x")
    assert "kinds" not in before.to_json()
    assert StateHandle.from_json(before.to_json()).kinds is None


def in_pieces(groups: Sequence[int], size: int) -> StatePart:
    """As `keyed`, in blobs of `size` rows, which are in no order."""
    pieces = [keyed(groups[n : n + size]).table for n in range(0, len(groups), size)]
    blobs = tuple(Blob(f"c{n}", partial(_stream, piece)) for n, piece in enumerate(pieces))
    return StatePart("s", "keyed", keyed([]).table, (), blobs)


def _stream(table: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue().to_pybytes()


@settings(deadline=None)
@given(rows=st.lists(st.integers(0, GROUPS - 1), max_size=40), before=PARALLELISM, after=PARALLELISM)
def test_rows_in_blobs_come_to_the_owners_of_their_key_groups_too(rows: list[int], before: int, after: int) -> None:
    """S5.5."""
    old = [[in_pieces([g for g in rows if g in key_group_range(i, before, GROUPS)], 3)] for i in range(before)]
    found: list[list[int]] = []
    for index in range(after):
        place = Rescale(before, after, GROUPS, index)
        taken = {i: parts for i, parts in enumerate(old) if place.receives_from("keyed", i, None)}
        (part,) = redistributed(taken, None, place)
        found.append([v for table in part.tables() for v in table["v"].to_pylist()])
    assert all(g in key_group_range(i, after, GROUPS) for i, mine in enumerate(found) for g in mine)
    assert Counter(g for mine in found for g in mine) == Counter(rows)


def test_blobs_are_read_when_the_operator_asks_and_keep_their_ids_while_their_content_is_the_same() -> None:
    def fail() -> bytes:
        raise AssertionError("read too soon")

    part = StatePart("s", "keyed", keyed([]).table, (), (Blob("c0", fail),))
    (same,) = redistributed({0: [part]}, None, Rescale(1, 1, GROUPS, 0))
    (cut,) = redistributed({0: [part]}, None, Rescale(1, 2, GROUPS, 0))
    assert [same.blobs[0].id, cut.blobs[0].id] == ["c0", "c0.0-8"]


def test_files_of_a_database_come_uncut_one_part_for_each_old_subtask() -> None:
    """The back end takes from them what is its own."""
    parts = {
        i: [StatePart("s", "keyed", pa.table({"name": [f"{i}.sst"]}), (), (Blob(f"{i}.sst", bytes),), "rocksdb")]
        for i in range(4)
    }
    found = redistributed({i: parts[i] for i in (1, 2)}, None, Rescale(4, 3, GROUPS, 1))
    assert found == [parts[1][0], parts[2][0]]
    with pytest.raises(SnapshotError, match="state 's'.*formats are rocksdb, rows"):
        redistributed({0: parts[0], 1: [keyed([5])]}, None, Rescale(2, 1, GROUPS, 0))


def test_rows_of_a_list_in_blobs_are_shared_out_as_those_of_a_table() -> None:
    pieces = tuple(Blob(f"c{n}", partial(_stream, part("list", [n]).table)) for n in range(3))
    old = StatePart("s", "list", part("list", []).table, (), pieces)
    found = [redistributed({0: [old]}, None, Rescale(1, 3, GROUPS, i))[0].table["v"].to_pylist() for i in range(3)]
    assert found == [[0], [1], [2]]


@given(st.data(), st.integers(1, 6), st.integers(1, 6))
@settings(max_examples=200, deadline=None)
def test_every_subtask_gets_broadcast_state_whichever_replicas_hold_it(
    data: st.DataObject, before: int, after: int
) -> None:
    """S5.5, S6.3: a stream that holds other states alone is no replica."""
    holders = data.draw(st.sets(st.integers(0, before - 1), min_size=1))
    others = data.draw(st.sets(st.integers(0, before - 1)))
    ended = data.draw(st.sets(st.integers(0, before - 1)))
    kinds = st.sampled_from(["list", "union", "keyed"])
    parts: dict[int, list[StatePart]] = {}
    for index in sorted(others):
        kind = data.draw(kinds)
        own = keyed(list(key_group_range(index, before, GROUPS))) if kind == "keyed" else part(kind, [index])
        parts[index] = [StatePart(f"of {kind}", own.kind, own.table)]
    for index in holders:
        parts.setdefault(index, []).append(part("broadcast", [1, 2, 3, index], "b"))
    found = Snapshot(parts, before, ended=tuple(ended)).of_all(after, "b")
    assert [values[:3] for values in found] == [[1, 2, 3]] * after
    running = holders - ended
    assert {values[3] for values in found} <= (running or holders)


def test_each_broadcast_state_comes_from_a_replica_that_holds_it() -> None:
    """S5.5: the streams are read anyhow, for their list state."""
    parts = {i: [part("broadcast", [i], f"b{i}"), part("list", [i], "l")] for i in range(2)}
    snapshot = Snapshot(parts, 2)
    assert snapshot.of_all(3, "b0") == [[0]] * 3 and snapshot.of_all(3, "b1") == [[1]] * 3
