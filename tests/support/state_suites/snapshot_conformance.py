"""Conformance of keyed state back ends: snapshots, restores, rescales and the layout of portable ones (S5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from state_suites.backend_tests import KEY_CASES, VALUE_CASES, BackendTests, Rig, described, value_state
from state_suites.everything import DESCRIPTORS, LATEST, Everything
from state_suites.model_backend import ModelBackend
from state_suites.plain_states import INT_KEY, MAX_PARALLELISM, PlainBackend, Row, SnapshotShelf, plain
from tidegate.errors import SnapshotError
from tidegate.snapshot.key_groups import key_group_range
from tidegate.snapshot.parts import KEY_GROUP_COLUMN, AsyncSnapshot, StatePart
from tidegate.snapshot.streams import decode_parts, encode_parts
from tidegate.state.keyed_state import KeyedStateBackend, StateDescriptor, TimeToLive
from tidegate.state.keys.key_hash import hash_keys, key_groups
from tidegate.state.state_layout import part_schema, timer_schema

KEYS: list[Row] = [(None,), *((n,) for n in range(40))]
Taken = Sequence[tuple[int, Sequence[StatePart]]]


def restored(
    rig: Rig,
    taken: Taken,
    *,
    place: tuple[int, int] = (0, 1),
    make: Callable[[], KeyedStateBackend] | None = None,
    key_schema: pa.Schema = INT_KEY,
) -> Everything:
    """Everything of a new subtask.

    Args:
        rig: opens it.
        taken: (subtask, parts) of all subtasks of a snapshot.
        place: (index, parallelism) of the new subtask.
        make: another back end.
        key_schema: of the keys.
    """
    index, parallelism = place
    everything = Everything(rig.opened(make, key_schema=key_schema, index=index, parallelism=parallelism))
    mine = key_group_range(index, parallelism, MAX_PARALLELISM)
    parts: list[StatePart] = []
    for former, found in taken:
        theirs = key_group_range(former, len(taken), MAX_PARALLELISM)
        if theirs.start < mine.stop and mine.start < theirs.stop:
            parts += found
    everything.backend.backend.restore(parts)
    return everything


class RestoreTests(BackendTests):
    """`snapshot`, `restore`."""

    @pytest.mark.parametrize("portable", [False, True])
    @pytest.mark.parametrize("case", KEY_CASES)
    def test_a_restore_brings_everything_back(self, rig: Rig, case: str, portable: bool) -> None:
        schema, rows = KEY_CASES[case]
        former = Everything(rig.opened(key_schema=schema))
        former.write(rows, 1)
        former.write(rows[1:], 2)
        before = former.read(rows)
        later = restored(rig, [(0, former.backend.taken(1, rig.shelf, portable=portable))], key_schema=schema)
        assert later.read(rows) == before
        assert later.all_keys() == former.all_keys()
        for going in (former, later):
            going.write(rows[:2], 3)
            going.wipe(rows[2:3])
        assert later.read(rows) == former.read(rows)
        assert list(later.event.all_due(LATEST, 10)) == list(former.event.all_due(LATEST, 10))

    @pytest.mark.parametrize("portable", [False, True])
    @pytest.mark.parametrize("case", VALUE_CASES)
    def test_columns_of_any_type_survive_a_restore(self, rig: Rig, case: str, portable: bool) -> None:
        columns, rows = VALUE_CASES[case]
        value, elements = value_state("v", columns), described("list", "l", columns)
        entries = described("map", "m", columns)
        former = rig.opened()
        former.value(value).put([((n,), row) for n, row in enumerate(rows)])
        former.list(elements).append([((n % 2,), row) for n, row in enumerate(rows)])
        former.map(entries).put([((1,), (str(n),), row) for n, row in enumerate(rows)])
        parts = former.taken(1, rig.shelf, portable=portable)
        later = rig.opened()
        states = later.value(value), later.list(elements), later.map(entries)
        later.backend.restore(parts)
        expected = [plain(row) for row in rows]
        assert states[0].get([(n,) for n in range(len(rows))]) == expected
        assert states[1].get([(0,), (1,)]) == [expected[::2], expected[1::2]]
        assert states[2].get([((1,), (str(n),)) for n in range(len(rows))]) == expected

    @pytest.mark.parametrize("portable", [False, True])
    @pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 2), (2, 5), (5, 1), (4, 4)])
    def test_a_restore_at_another_parallelism_gives_each_key_to_the_owner_of_its_group(
        self, rig: Rig, before: int, after: int, portable: bool
    ) -> None:
        """S5.5: parts may hold foreign key groups, which are passed over."""
        former = [Everything(rig.opened(index=i, parallelism=before)) for i in range(before)]
        for subtask in former:
            subtask.write(subtask.backend.mine(KEYS), 1)
        taken = [(i, subtask.backend.taken(1, SnapshotShelf(), portable=portable)) for i, subtask in enumerate(former)]
        later = [restored(rig, taken, place=(i, after)) for i in range(after)]
        assert _together(later) == _together(former)
        for name, ids in former[0].all_keys().items():
            for other in former[1:]:
                ids |= other.all_keys()[name]
            found = [subtask.all_keys()[name] for subtask in later]
            assert sum(map(len, found)) == len(ids) and set().union(*found) == ids
        for subtask in later:
            assert _due(subtask) == {key: _due(*former)[key] for key in map(repr, subtask.backend.mine(KEYS))}

    @pytest.mark.parametrize("portable", [False, True])
    def test_a_snapshot_of_nothing_restores_to_nothing(self, rig: Rig, portable: bool) -> None:
        taken = Everything(rig.opened()).backend.taken(1, rig.shelf, portable=portable)
        later = restored(rig, [(0, taken)])
        assert all(found == set() for found in later.all_keys().values())
        assert later.event.next_us() is None
        assert later.event.due(LATEST) is None

    def test_portable_snapshots_go_from_any_back_end_to_any_other(self, rig: Rig) -> None:
        """Also at another parallelism, and when both sides go on."""
        mine, model = Everything(rig.opened()), Everything(rig.opened(ModelBackend))
        for everything in (mine, model):
            everything.write(KEYS, 1)
            everything.wipe(KEYS[5:9])
            everything.write(KEYS[::3], 2)
        expected = model.read(KEYS)
        assert mine.read(KEYS) == expected
        ours, theirs = (e.backend.taken(1, SnapshotShelf(), portable=True) for e in (mine, model))
        assert restored(rig, [(0, theirs)]).read(KEYS) == expected
        assert restored(rig, [(0, ours)], make=ModelBackend).read(KEYS) == expected
        for parts, make in ((theirs, None), (ours, ModelBackend)):
            halves = [restored(rig, [(0, parts)], place=(i, 2), make=make) for i in range(2)]
            for half in halves:
                half.write(half.backend.mine(KEYS[:4]), 3)
            models = [restored(rig, [(0, theirs)], place=(i, 2), make=ModelBackend) for i in range(2)]
            for half in models:
                half.write(half.backend.mine(KEYS[:4]), 3)
            assert _together(halves) == _together(models)

    def test_a_chain_of_snapshots_and_restores_loses_nothing(self, rig: Rig) -> None:
        model, going = Everything(rig.opened(ModelBackend)), Everything(rig.opened())
        for step in range(6):
            for everything in (model, going):
                everything.write(KEYS[step * 3 : step * 3 + 15], step)
                everything.wipe(KEYS[step * 5 : step * 5 + 3])
            parts = going.backend.taken(step + 1, SnapshotShelf(), portable=step % 2 == 1)
            going = restored(rig, [(0, parts)])
            assert going.read(KEYS) == model.read(KEYS)
        assert list(going.event.all_due(LATEST, 100)) == list(model.event.all_due(LATEST, 100))


class IsolationTests(BackendTests):
    """What the writing of a snapshot sees while the back end goes on (S5.3)."""

    @pytest.mark.parametrize("portable", [False, True])
    def test_writes_after_the_freeze_are_not_in_the_snapshot(self, rig: Rig, portable: bool) -> None:
        going = Everything(rig.opened())
        going.write(KEYS, 1)
        before = going.read(KEYS)
        write = going.backend.backend.snapshot(1, portable=portable)
        going.write(KEYS[:20], 2)
        going.write([(n,) for n in range(100, 300)], 3)
        going.wipe(KEYS[10:30])
        going.event.due(500)
        later = restored(rig, [(0, rig.shelf.take(write()))])
        assert later.read(KEYS) == before
        assert later.read([(100,)]) == Everything(rig.opened()).read([(100,)])

    @pytest.mark.parametrize("portable", [False, True])
    def test_a_snapshot_is_written_by_another_thread_while_writes_go_on(self, rig: Rig, portable: bool) -> None:
        going = Everything(rig.opened())
        going.write(KEYS, 1)
        with ThreadPoolExecutor(1) as pool:
            for step in range(2, 10):
                before = going.read(KEYS)
                write = going.backend.backend.snapshot(step, portable=portable)
                shelf = SnapshotShelf()
                writing = pool.submit(_written, write, shelf)
                going.write(KEYS[step:], step)
                going.write([(n,) for n in range(1_000 * step, 1_000 * step + 400)], step)
                going.wipe(KEYS[: 2 * step])
                going.event.due(step * 1_000)
                assert restored(rig, [(0, writing.result())]).read(KEYS) == before

    def test_several_snapshots_wait_to_be_written_and_one_never_is(self, rig: Rig) -> None:
        going = Everything(rig.opened())
        waiting: list[tuple[Any, Any]] = []
        for step in range(1, 5):
            going.write(KEYS[step * 4 : step * 4 + 12], step)
            going.wipe(KEYS[step * 2 : step * 2 + 3])
            waiting.append((going.read(KEYS), going.backend.backend.snapshot(step)))
        going.wipe(KEYS)
        waiting.pop(1)
        for before, write in reversed(waiting):
            assert restored(rig, [(0, rig.shelf.take(write()))]).read(KEYS) == before

    def test_pieces_of_unchanged_state_keep_their_ids_and_are_not_read_again(self, rig: Rig) -> None:
        """S5.2: one id, one content; `SnapshotShelf` compares the bytes."""
        backend, many = rig.opened(), self.many_keys
        state = backend.value(value_state())
        state.put([((n,), (n,)) for n in range(many)])
        first = backend.taken(1, rig.shelf)
        state.get([(5,), (many,)])
        second = backend.taken(2, rig.shelf)
        assert _ids(first) == _ids(second)
        state.put([((7,), (-7,)), ((many,), (0,))])
        state.clear([(8,)])
        completed = _ids(second)
        third = rig.shelf.take(backend.backend.snapshot(3)(), completed)
        restored_again = rig.opened()
        again = restored_again.value(value_state())
        restored_again.backend.restore(third)
        asked = [(n,) for n in (6, 7, 8, many - 1, many, many + 1)]
        assert again.get(asked) == [(6,), (-7,), None, (many - 1,), (0,), None]
        restored_before = rig.opened()
        before = restored_before.value(value_state())
        restored_before.backend.restore(first)
        assert before.get(asked) == [(6,), (7,), (8,), (many - 1,), None, None]

    def test_every_change_of_a_piece_gives_it_another_id(self, rig: Rig) -> None:
        backend, many = rig.opened(), self.many_keys
        state = backend.merging(described("reducing", reductions=("sum",)))
        for step in range(4):
            state.add([((n,), (1,)) for n in range(0, many, 1 if step == 0 else many // 7)])
            backend.taken(2 * step + 1, rig.shelf)
            backend.taken(2 * step + 2, rig.shelf, portable=True)


class LayoutTests(BackendTests):
    """What a portable snapshot holds: see `tidegate.state.state_layout`."""

    def test_a_portable_snapshot_has_a_part_of_rows_for_each_state(self, rig: Rig) -> None:
        going = Everything(rig.opened())
        for keys in ([], KEYS):
            going.write(keys, 1)
            parts = {part.name: part for part in going.backend.taken(1, SnapshotShelf(), portable=True)}
            declared = {descriptor.name: part_schema(descriptor, INT_KEY) for descriptor in DESCRIPTORS}
            timers = {f"timers:{kind}": timer_schema(INT_KEY) for kind in ("event", "processing")}
            assert declared.keys() <= parts.keys() <= declared.keys() | timers.keys()
            for name, part in parts.items():
                assert (part.kind, part.format) == ("keyed", "rows")
                schema = {**declared, **timers}[name]
                for table in part.tables():
                    assert (table.schema.names, table.schema.types) == (schema.names, schema.types)
                    assert table.schema.metadata == schema.metadata
                    _check_groups(table)

    def test_the_rows_of_each_kind(self, rig: Rig) -> None:
        backend = rig.opened(key_schema=pa.schema([("k", pa.string()), ("n", pa.int16())]))
        ttl = TimeToLive(5_000)
        one, two = ("a", 1), (None, 2)
        backend.value(value_state("v", ttl=ttl)).put([(one, (10,)), (two, (None,))])
        rig.clock.ms += 5
        backend.list(described("list", "l", ttl=ttl)).append([(one, (1,)), (two, (2,)), (one, (3,))])
        backend.map(described("map", "m")).put([(one, ("x",), (1,)), (one, (None,), (2,))])
        backend.merging(described("reducing", "r", reductions=("count",))).add([(one, (1,)), (one, (None,))])
        backend.timers("event").register([(one, 20), (one, 10), (two, -1)])
        parts = {part.name: part for part in backend.taken(1, rig.shelf, portable=True)}
        at = rig.clock.ms
        base = {"key:k": "a", "key:n": 1}
        other = {"key:k": None, "key:n": 2}
        assert _rows(parts["v"]) == _sorted(
            [{**base, "value:v": 10, "ttl_ms": at - 5}, {**other, "value:v": None, "ttl_ms": at - 5}]
        )
        of_one = [row["value:v"] for row in _rows(parts["l"], ordered=False) if row["key:k"] == "a"]
        assert of_one == [1, 3]
        assert _rows(parts["l"]) == _sorted(
            [{**key, "value:v": v, "ttl_ms": at} for key, v in ((base, 1), (base, 3), (other, 2))]
        )
        assert _rows(parts["m"]) == _sorted(
            [{**base, "map:m": "x", "value:v": 1}, {**base, "map:m": None, "value:v": 2}]
        )
        assert _rows(parts["r"]) == [{**base, "value:v": 1}]
        assert _rows(parts["timers:event"]) == _sorted(
            [{**base, "time_us": 10}, {**base, "time_us": 20}, {**other, "time_us": -1}]
        )

    def test_portable_parts_pass_through_a_state_stream(self, rig: Rig) -> None:
        going = Everything(rig.opened())
        going.write(KEYS, 1)
        parts = [
            replace(part, table=pa.concat_tables(part.tables()), blobs=())
            for part in going.backend.taken(1, rig.shelf, portable=True)
        ]
        read = decode_parts(encode_parts(parts))
        assert restored(rig, [(0, read)]).read(KEYS) == going.read(KEYS)


class WrongStateTests(BackendTests):
    """Restores that do not fit (S5.5)."""

    @pytest.mark.parametrize("portable", [False, True])
    @pytest.mark.parametrize(
        ("former", "later", "words"),
        [
            (described("value"), described("list"), ("value", "list")),
            (described("value"), value_state(columns=pa.schema([("v", pa.string())])), ("int64", "string")),
            (described("value"), value_state(columns=pa.schema([("w", pa.int64())])), (":v int64", ":w int64")),
            (described("map"), described("map", map_key=pa.schema([("m", pa.int64())])), ("string", "int64")),
            (
                described("reducing", reductions=("sum",)),
                described("reducing", reductions=("max",)),
                ("sum", "max"),
            ),
            (described("value"), value_state(ttl=TimeToLive(1)), ("the snapshot has", "ttl_ms")),
        ],
        ids=["kind", "type", "name", "map key", "reduction", "ttl"],
    )
    def test_a_state_of_another_declaration_is_refused_and_both_are_named(
        self, rig: Rig, former: StateDescriptor, later: StateDescriptor, words: Sequence[str], portable: bool
    ) -> None:
        backend = rig.opened()
        _fill(_declare(backend, former))
        parts = backend.taken(1, rig.shelf, portable=portable)
        other = rig.opened()
        _declare(other, later)
        with pytest.raises(SnapshotError, match=r"'state'.*'tested'") as error:
            other.backend.restore(parts)
        assert all(word in str(error.value) for word in words), str(error.value)

    @pytest.mark.parametrize("portable", [False, True])
    def test_another_type_of_the_key_is_refused(self, rig: Rig, portable: bool) -> None:
        backend = rig.opened()
        backend.value(value_state()).put([((1,), (1,))])
        parts = backend.taken(1, rig.shelf, portable=portable)
        other = rig.opened(key_schema=pa.schema([("k", pa.string())]))
        other.value(value_state())
        with pytest.raises(SnapshotError, match=r"int64.*string"):
            other.backend.restore(parts)

    @pytest.mark.parametrize("portable", [False, True])
    def test_a_state_that_nobody_declares_is_refused_and_not_dropped(self, rig: Rig, portable: bool) -> None:
        backend = rig.opened()
        backend.value(value_state("gone")).put([((1,), (1,))])
        parts = backend.taken(1, rig.shelf, portable=portable)
        other = rig.opened()
        other.value(value_state("new"))
        with pytest.raises(SnapshotError, match="'gone'"):
            other.backend.restore(parts)


def _declare(backend: PlainBackend, descriptor: StateDescriptor) -> Any:
    made = {"value": backend.value, "list": backend.list, "map": backend.map}.get(descriptor.kind, backend.merging)
    return made(descriptor)


def _fill(state: Any) -> None:
    kind = state.descriptor.kind
    if kind == "map":
        state.put([((1,), ("x",), (1,))])
    else:
        getattr(state, {"value": "put", "list": "append"}.get(kind, "add"))([((1,), (1,))])


def _together(subtasks: Sequence[Everything]) -> dict[str, Any]:
    together: dict[str, Any] = {}
    for subtask in subtasks:
        for name, found in subtask.read(subtask.backend.mine(KEYS)).items():
            together.setdefault(name, {}).update(found)
    return together


def _due(*subtasks: Everything) -> dict[str, list[int]]:
    return {
        repr(key): times
        for subtask in subtasks
        for key, times in zip(subtask.backend.mine(KEYS), subtask.event.of(subtask.backend.mine(KEYS)))
    }


def _written(write: AsyncSnapshot, shelf: SnapshotShelf) -> Sequence[StatePart]:
    return shelf.take(write())


def _ids(parts: Sequence[StatePart]) -> frozenset[str]:
    return frozenset(blob.id for part in parts for blob in part.blobs)


def _check_groups(table: pa.Table) -> None:
    for batch in table.combine_chunks().to_batches():
        names = [name for name in batch.schema.names if name.startswith("key:")]
        expected = key_groups(hash_keys(batch, names), MAX_PARALLELISM)
        assert batch.column(KEY_GROUP_COLUMN).to_pylist() == expected.tolist()


def _rows(part: StatePart, *, ordered: bool = True) -> list[dict[str, Any]]:
    rows = [row for table in part.tables() for row in table.drop_columns([KEY_GROUP_COLUMN]).to_pylist()]
    return _sorted(rows) if ordered else rows


def _sorted(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=repr)
