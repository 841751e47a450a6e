"""Conformance of keyed state back ends: keys, and states of every kind (S5.1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from state_suites.backend_tests import (
    KEY_CASES,
    NAN,
    OTHER_NAN,
    VALUE_CASES,
    BackendHarness,
    BackendTests,
    described,
    value_state,
)
from state_suites.everything import joined
from state_suites.plain_states import MAX_PARALLELISM, batch_of, plain, rows_of
from tidegate.state.aggregates.numbers import SumOverflowError
from tidegate.state.keys.key_hash import hash_keys, key_groups


class KeyTests(BackendTests):
    """`keys`, `all_keys`."""

    @pytest.mark.parametrize("case", KEY_CASES)
    def test_keys_are_distinct_in_order_of_first_sight_with_their_groups(
        self, harness: BackendHarness, case: str
    ) -> None:
        schema, rows = KEY_CASES[case]
        backend = harness.opened(key_schema=schema)
        keys = backend.keys([*rows, *reversed(rows)])
        count = len(rows)
        assert keys.size == count
        assert keys.rows.dtype == np.int32 and keys.rows.tolist() == [*range(count), *reversed(range(count))]
        assert keys.columns().schema.names == schema.names and keys.columns().schema.types == schema.types
        assert rows_of(keys.columns()) == [plain(row) for row in rows]
        hashes = hash_keys(batch_of(rows, schema), schema.names)
        assert keys.groups.dtype == np.uint16
        assert keys.groups.tolist() == key_groups(hashes, MAX_PARALLELISM).tolist()

    @pytest.mark.parametrize("case", ["pair", "float and date", "decimal and time"])
    def test_namespaces_tell_keys_apart_and_leave_their_key_groups_alone(
        self, harness: BackendHarness, case: str
    ) -> None:
        schema, rows = KEY_CASES[case]
        backend = harness.opened(key_schema=schema, namespace_columns=1)
        keys = backend.keys([*rows, *reversed(rows)])
        expected = key_groups(hash_keys(batch_of(rows, schema), schema.names[:1]), MAX_PARALLELISM)
        assert keys.size == len(rows) and keys.groups.tolist() == expected.tolist()
        state = backend.list(described("list"))
        state.append([(row, (i,)) for i, row in enumerate(rows)])
        assert state.get(rows) == [[(i,)] for i in range(len(rows))]
        timers = backend.backend.timers("event")
        timers.register(keys, np.arange(len(rows), dtype=np.int32), np.arange(len(rows), dtype=np.int64))
        due = timers.due(len(rows), len(rows))
        assert due is not None and due.keys.groups[due.owners].tolist() == expected.tolist()

    def test_namespaces_come_back_with_the_key_groups_of_their_keys(self, harness: BackendHarness) -> None:
        schema, rows = KEY_CASES["pair"]
        old = harness.opened(key_schema=schema, namespace_columns=1)
        old.list(described("list")).append([(row, (i,)) for i, row in enumerate(rows)])
        parts = harness.shelf.take(old.backend.snapshot(1, portable=True)())
        groups = key_groups(hash_keys(batch_of(rows, schema), schema.names[:1]), MAX_PARALLELISM)
        found = [group for part in parts if part.name == "state" for t in part.tables() for group in t[0].to_pylist()]
        assert sorted(found) == sorted(groups.tolist())
        halves = [harness.opened(key_schema=schema, namespace_columns=1, index=i, parallelism=2) for i in range(2)]
        taken = []
        for half in halves:
            state = half.list(described("list"))
            half.backend.restore(parts)
            taken += [row for row, got in zip(rows, state.get(rows)) if got and row in half.mine(rows)]
        assert sorted(taken, key=repr) == sorted(rows, key=repr)

    def test_a_batch_without_rows_has_no_keys(self, harness: BackendHarness) -> None:
        backend = harness.opened()
        state = backend.value(value_state())
        assert backend.keys([]).size == 0
        state.put([])
        assert list(state.get([])) == []

    def test_every_nan_is_one_key_and_both_zeros_are_one(self, harness: BackendHarness) -> None:
        backend = harness.opened(key_schema=pa.schema([("k", pa.float64())]))
        state = backend.value(value_state())
        state.put([((NAN,), (1,)), ((0.0,), (2,))])
        assert state.get([(OTHER_NAN,), (-0.0,)]) == [(1,), (2,)]
        state.put([((OTHER_NAN,), (3,)), ((-0.0,), (4,))])
        assert state.get([(NAN,), (0.0,), (1.0,)]) == [(3,), (4,), None]
        assert len(backend.all_keys(value_state())) == 2

    @pytest.mark.parametrize("case", KEY_CASES)
    def test_all_keys_gives_every_key_of_a_state_once(self, harness: BackendHarness, case: str) -> None:
        schema, rows = KEY_CASES[case]
        backend = harness.opened(key_schema=schema)
        state, other = backend.value(value_state("a")), backend.value(value_state("b"))
        assert backend.all_keys(state.descriptor) == set()
        state.put([(row, (i,)) for i, row in enumerate(rows)])
        other.put([(rows[0], (0,))])
        state.clear(rows[-1:])
        assert backend.all_keys(state.descriptor, limit=2) == backend.ids(rows[:-1])
        assert backend.all_keys(other.descriptor, limit=2) == backend.ids(rows[:1])

    def test_only_asking_for_keys_makes_no_entries(self, harness: BackendHarness) -> None:
        backend = harness.opened()
        value, elements, entries = (
            backend.value(value_state("v")),
            backend.list(described("list", "l")),
            backend.map(described("map", "m")),
        )
        keys = [(n,) for n in range(10)]
        assert value.get(keys) == [None] * 10
        assert elements.get(keys) == [[]] * 10
        assert entries.get([(key, ("x",)) for key in keys]) == [None] * 10
        assert entries.entries(keys) == [{}] * 10
        for state in (value, elements, entries):
            assert backend.all_keys(state.descriptor) == set()

    def test_many_keys_come_and_go(self, harness: BackendHarness) -> None:
        """Tables and chunks grow, and are used again."""
        backend, step = harness.opened(), self.many_keys // 5
        state = backend.value(value_state())
        for first in range(0, 5 * step, step):
            state.put([((n,), (n * 3,)) for n in range(first, first + step)])
            state.clear([(n,) for n in range(first, first + step) if n % 10])
        expected = [(n * 3,) if n % 10 == 0 else None for n in range(0, 5 * step, 5)]
        assert state.get([(n,) for n in range(0, 5 * step, 5)]) == expected
        assert len(backend.all_keys(state.descriptor, step // 6)) == -(-5 * step // 10)


class ValueTests(BackendTests):
    """`ValueState`."""

    @pytest.mark.parametrize("case", KEY_CASES)
    def test_values_are_kept_by_key_of_any_type(self, harness: BackendHarness, case: str) -> None:
        schema, rows = KEY_CASES[case]
        state = harness.opened(key_schema=schema).value(value_state())
        state.put([(row, (i,)) for i, row in enumerate(rows[1:])])
        assert state.get(rows) == [None, *((i,) for i in range(len(rows) - 1))]
        state.put([(rows[0], (-1,)), (rows[-1], (-2,))])
        assert state.get(rows)[0] == (-1,)
        assert state.get(rows)[-1] == (-2,)

    @pytest.mark.parametrize("case", VALUE_CASES)
    def test_values_of_any_type_come_back_as_they_were(self, harness: BackendHarness, case: str) -> None:
        columns, rows = VALUE_CASES[case]
        backend = harness.opened()
        state = backend.value(value_state(columns=columns))
        keys = [(n,) for n in range(len(rows))]
        state.put(list(zip(keys, rows)))
        assert state.get([*keys, (99,)]) == [*(plain(row) for row in rows), None]
        state.put(list(zip(keys, reversed(rows))))
        assert state.get(keys) == [plain(row) for row in reversed(rows)]
        got = backend.backend.value(state.descriptor).get(backend.keys([(99,), (0,)]))
        assert got.present.tolist() == [False, True]
        assert got.columns.schema.names == columns.names and got.columns.schema.types == columns.types

    def test_a_null_is_a_value_and_not_an_absence(self, harness: BackendHarness) -> None:
        state = harness.opened().value(value_state())
        state.put([((1,), (None,))])
        assert state.get([(1,), (2,)]) == [(None,), None]

    def test_only_masked_keys_are_set_or_cleared(self, harness: BackendHarness) -> None:
        state = harness.opened().value(value_state())
        keys = [(n,) for n in range(6)]
        state.put([(key, (1,)) for key in keys], where=lambda key: key[0] < 4)
        state.put([(key, (2,)) for key in keys], where=lambda key: key[0] == 3)
        state.clear(keys, where=lambda key: key[0] in (0, 5))
        assert state.get(keys) == [None, (1,), (1,), (2,), None, None]
        state.put([(key, (3,)) for key in keys], where=lambda key: False)
        state.clear(keys, where=lambda key: False)
        assert state.get(keys) == [None, (1,), (1,), (2,), None, None]

    def test_a_cleared_key_is_absent_until_it_is_set_again(self, harness: BackendHarness) -> None:
        backend = harness.opened()
        state = backend.value(value_state())
        state.put([((1,), (10,)), ((2,), (20,))])
        state.clear([(1,), (3,)])
        assert state.get([(1,), (2,), (3,)]) == [None, (20,), None]
        assert backend.all_keys(state.descriptor) == backend.ids([(2,)])
        state.put([((1,), (11,))])
        assert state.get([(1,)]) == [(11,)]

    def test_states_of_one_key_are_apart(self, harness: BackendHarness) -> None:
        backend = harness.opened()
        one, two = backend.value(value_state("one")), backend.value(value_state("two"))
        one.put([((1,), (10,))])
        assert two.get([(1,)]) == [None]
        two.put([((1,), (20,))])
        one.clear([(1,)])
        assert (one.get([(1,)]), two.get([(1,)])) == ([None], [(20,)])

    def test_what_was_read_stays_as_it_was_when_more_is_written(self, harness: BackendHarness) -> None:
        """Operators hand on what they read; a back end gives no view of memory that it writes to."""
        backend = harness.opened()
        plainly = backend.value(value_state())
        plainly.put([((n,), (n,)) for n in range(5)])
        keys = backend.keys([(n,) for n in range(5)])
        found = backend.backend.value(value_state()).get(keys)
        plainly.put([((n,), (-n,)) for n in range(5)])
        plainly.clear([(3,)])
        assert found.present.all() and rows_of(found.columns) == [(n,) for n in range(5)]


class ListTests(BackendTests):
    """`ListState`."""

    def test_elements_come_in_the_order_of_appending_also_of_interleaved_keys(self, harness: BackendHarness) -> None:
        state = harness.opened().list(described("list"))
        state.append([((1,), (10,)), ((2,), (20,)), ((1,), (11,)), ((None,), (0,))])
        state.append([((2,), (21,)), ((1,), (12,)), ((2,), (20,))])
        assert state.get([(1,), (2,), (3,), (None,)]) == [[(10,), (11,), (12,)], [(20,), (21,), (20,)], [], [(0,)]]

    @pytest.mark.parametrize("case", VALUE_CASES)
    def test_elements_of_any_type_come_back_as_they_were(self, harness: BackendHarness, case: str) -> None:
        columns, rows = VALUE_CASES[case]
        state = harness.opened().list(described("list", columns=columns))
        state.append([((n % 2,), row) for n, row in enumerate(rows)])
        state.append([((0,), row) for row in rows])
        expected = [plain(row) for row in [*rows[::2], *rows]]
        assert state.get([(0,), (1,)]) == [expected, [plain(row) for row in rows[1::2]]]

    def test_putting_replaces_lists_and_an_empty_one_is_none(self, harness: BackendHarness) -> None:
        backend = harness.opened()
        state = backend.list(described("list"))
        state.append([((n,), (n,)) for n in (1, 1, 2, 3)])
        state.put([((1,), [(7,), (8,), (9,)]), ((2,), []), ((4,), [(4,)])])
        assert state.get([(1,), (2,), (3,), (4,)]) == [[(7,), (8,), (9,)], [], [(3,)], [(4,)]]
        assert backend.all_keys(state.descriptor) == backend.ids([(1,), (3,), (4,)])
        state.append([((1,), (10,)), ((2,), (5,))])
        assert state.get([(1,), (2,)]) == [[(7,), (8,), (9,), (10,)], [(5,)]]

    def test_cleared_lists_are_empty_and_begin_anew(self, harness: BackendHarness) -> None:
        state = harness.opened().list(described("list"))
        state.append([((n,), (n,)) for n in (1, 2, 3, 1)])
        state.clear([(1,), (2,), (9,)], where=lambda key: key[0] != 2)
        assert state.get([(1,), (2,), (3,)]) == [[], [(2,)], [(3,)]]
        state.append([((1,), (5,))])
        assert state.get([(1,)]) == [[(5,)]]
        state.clear([(1,), (2,), (3,)])
        assert state.get([(1,), (2,), (3,)]) == [[], [], []]

    def test_a_long_list_grows_by_small_appends(self, harness: BackendHarness) -> None:
        state = harness.opened().list(described("list"))
        for n in range(0, 600, 3):
            state.append([((1,), (n,)), ((1,), (n + 1,)), ((n,), (n,)), ((1,), (n + 2,))])
        assert state.get([(1,)])[0] == [(n,) for n in range(600)]
        assert state.get([(300,)]) == [[(300,)]]


class MapTests(BackendTests):
    """`MapState`."""

    def test_entries_are_found_by_key_and_map_key_and_null_is_one(self, harness: BackendHarness) -> None:
        state = harness.opened().map(described("map"))
        state.put([((1,), ("a",), (1,)), ((1,), (None,), (2,)), ((None,), (None,), (3,)), ((2,), ("a",), (4,))])
        asked = [((1,), (None,)), ((1,), ("a",)), ((1,), ("",)), ((None,), (None,)), ((2,), (None,)), ((2,), ("a",))]
        assert state.get(asked) == [(2,), (1,), None, (3,), None, (4,)]
        state.put([((1,), (None,), (None,))])
        assert state.get(asked)[0] == (None,)

    @pytest.mark.parametrize("case", KEY_CASES)
    def test_map_keys_may_be_of_any_key_type(self, harness: BackendHarness, case: str) -> None:
        schema, rows = KEY_CASES[case]
        map_key = pa.schema([field.with_name(f"m{i}") for i, field in enumerate(schema)])
        state = harness.opened().map(described("map", map_key=map_key))
        state.put([((1,), row, (i,)) for i, row in enumerate(rows)])
        assert state.get([((1,), row) for row in rows]) == [(i,) for i in range(len(rows))]
        state.remove([((1,), rows[0])])
        entries = state.entries([(1,), (2,)])
        assert entries == [dict(zip(state.map_ids(rows[1:]), [(i,) for i in range(1, len(rows))])), {}]

    def test_every_nan_is_one_map_key_and_both_zeros_are_one(self, harness: BackendHarness) -> None:
        state = harness.opened().map(described("map", map_key=pa.schema([("m", pa.float64())])))
        state.put([((1,), (NAN,), (1,)), ((1,), (0.0,), (2,))])
        state.put([((1,), (OTHER_NAN,), (3,)), ((1,), (-0.0,), (4,))])
        assert state.get([((1,), (NAN,)), ((1,), (0.0,))]) == [(3,), (4,)]
        assert [len(entries) for entries in state.entries([(1,)])] == [2]

    @pytest.mark.parametrize("case", VALUE_CASES)
    def test_map_values_of_any_type_come_back_as_they_were(self, harness: BackendHarness, case: str) -> None:
        columns, rows = VALUE_CASES[case]
        state = harness.opened().map(described("map", columns=columns))
        state.put([((1,), (str(i),), row) for i, row in enumerate(rows)])
        assert state.get([((1,), (str(i),)) for i in range(len(rows))]) == [plain(row) for row in rows]
        ids = state.map_ids([(str(i),) for i in range(len(rows))])
        assert state.entries([(1,)]) == [dict(zip(ids, [plain(row) for row in rows]))]

    def test_of_equal_entries_in_one_batch_the_last_stays(self, harness: BackendHarness) -> None:
        state = harness.opened().map(described("map"))
        state.put([((1,), ("a",), (1,)), ((2,), ("a",), (2,)), ((1,), ("a",), (3,))])
        assert state.get([((1,), ("a",)), ((2,), ("a",)), ((1,), ("a",))]) == [(3,), (2,), (3,)]

    def test_removing_takes_entries_and_the_key_with_its_last(self, harness: BackendHarness) -> None:
        backend = harness.opened()
        state = backend.map(described("map"))
        state.put([((key,), (at,), (key,)) for key in (1, 2) for at in "abc"])
        state.remove([((1,), (at,)) for at in "abcd"] + [((2,), ("b",)), ((3,), ("a",)), ((2,), ("b",))])
        assert [len(entries) for entries in state.entries([(1,), (2,), (3,)])] == [0, 2, 0]
        assert backend.all_keys(state.descriptor) == backend.ids([(2,)])
        state.put([((1,), ("b",), (5,))])
        assert state.entries([(1,)]) == [{state.map_ids([("b",)])[0]: (5,)}]

    def test_clearing_takes_all_entries_of_a_key(self, harness: BackendHarness) -> None:
        state = harness.opened().map(described("map"))
        state.put([((key,), (at,), (key,)) for key in (1, 2, 3) for at in "abc"])
        state.clear([(1,), (2,)], where=lambda key: key[0] == 1)
        assert [len(entries) for entries in state.entries([(1,), (2,), (3,)])] == [0, 3, 3]
        assert state.get([((1,), ("a",)), ((2,), ("a",))]) == [None, (2,)]
        state.clear([(2,), (9,)])
        assert [len(entries) for entries in state.entries([(1,), (2,), (3,)])] == [0, 0, 3]

    def test_a_map_of_many_entries(self, harness: BackendHarness) -> None:
        state = harness.opened().map(described("map", map_key=pa.schema([("m", pa.int64())])))
        for first in range(0, 5_000, 500):
            state.put([((n % 3,), (n,), (-n,)) for n in range(first, first + 500)])
            state.remove([((n % 3,), (n,)) for n in range(first, first + 500) if n % 2])
        expected = [{n: (-n,) for n in range(5_000) if n % 3 == key and n % 2 == 0} for key in range(3)]
        ids = dict(zip(range(5_000), state.map_ids([(n,) for n in range(5_000)])))
        assert state.entries([(0,), (1,), (2,)]) == [{ids[n]: row for n, row in found.items()} for found in expected]


class MergingTests(BackendTests):
    """`MergingState`."""

    ALL = ("sum", "min", "max", "count", "first", "last")

    @pytest.mark.parametrize(
        ("type_", "values", "expected"),
        [
            (pa.int64(), [3, None, -5, 4], (2, -5, 4, 3, 3, 4)),
            (pa.int16(), [300, 300], (600, 300, 300, 2, 300, 300)),
            (pa.uint64(), [1, 2**62], (2**62 + 1, 1, 2**62, 2, 1, 2**62)),
            (pa.float64(), [0.5, NAN, None, -1.0], ("nan", -1.0, "nan", 3, 0.5, -1.0)),
            (pa.float32(), [0.5, 2.0], (2.5, 0.5, 2.0, 2, 0.5, 2.0)),
            (pa.int64(), [None, None], (None, None, None, 0, None, None)),
        ],
        ids=["int64", "int16", "uint64", "float64", "float32", "nulls"],
    )
    @pytest.mark.parametrize("at_once", [True, False])
    def test_numbers_are_reduced_as_sql_has_it(
        self, harness: BackendHarness, type_: Any, values: list[Any], expected: tuple[Any, ...], at_once: bool
    ) -> None:
        columns = pa.schema([(name, type_) for name in self.ALL])
        backend = harness.opened()
        state = backend.merging(described("reducing", columns=columns, reductions=self.ALL))
        rows = [((1,), (value,) * 6) for value in values]
        for batch in [rows] if at_once else [[row] for row in rows]:
            state.add(batch)
        assert state.get([(1,), (2,)]) == [expected, None]
        types = backend.backend.merging(state.descriptor).get(backend.keys([(1,)])).columns.schema.types
        total = pa.int64() if pa.types.is_integer(type_) else pa.float64()
        assert types == [total, type_, type_, pa.int64(), type_, type_]

    def test_keys_are_reduced_apart_in_order_of_arrival(self, harness: BackendHarness) -> None:
        columns = pa.schema([("f", pa.string()), ("l", pa.string()), ("n", pa.int64())])
        state = harness.opened().merging(described("reducing", columns=columns, reductions=("first", "last", "sum")))
        state.add([((1,), ("a", "a", 1)), ((None,), ("x", "x", 9)), ((1,), ("b", None, None)), ((2,), (None, "c", 3))])
        state.add([((2,), ("d", "e", 4)), ((1,), ("z", None, 10))])
        assert state.get([(1,), (2,), (None,)]) == [("a", "a", 11), ("d", "e", 7), ("x", "x", 9)]

    def test_times_and_dates_have_a_least_and_a_greatest(self, harness: BackendHarness) -> None:
        _, (first, second, *_) = KEY_CASES["date"]
        columns = pa.schema([("d", pa.date32()), ("t", pa.timestamp("ms", "UTC"))])
        state = harness.opened().merging(described("reducing", columns=columns, reductions=("min", "max")))
        noon = KEY_CASES["timestamp"][1][0][0]
        state.add([((1,), (first[0], noon)), ((1,), (second[0], None))])
        assert state.get([(1,)]) == [(first[0], noon)]

    @pytest.mark.parametrize("values", [[2**63 - 1, 1], [-(2**63), -1]])
    @pytest.mark.parametrize("at_once", [True, False])
    def test_a_sum_beyond_64_bits_fails_and_names_the_column(
        self, harness: BackendHarness, values: list[int], at_once: bool
    ) -> None:
        state = harness.opened().merging(described("reducing", reductions=("sum",)))
        rows = [((1,), (value,)) for value in values]
        with pytest.raises(SumOverflowError, match="'v'"):
            for batch in [rows] if at_once else [[row] for row in rows]:
                state.add(batch)

    def test_a_cleared_reduction_begins_anew(self, harness: BackendHarness) -> None:
        backend = harness.opened()
        state = backend.merging(described("reducing", reductions=("sum",)))
        state.add([((n,), (n,)) for n in (1, 2, 3)])
        state.clear([(1,), (2,), (9,)], where=lambda key: key[0] != 2)
        assert state.get([(1,), (2,), (3,)]) == [None, (2,), (3,)]
        assert backend.all_keys(state.descriptor) == backend.ids([(2,), (3,)])
        state.add([((1,), (5,)), ((2,), (5,))])
        assert state.get([(1,), (2,)]) == [(5,), (7,)]

    def test_accumulators_are_merged_by_the_users_function(self, harness: BackendHarness) -> None:
        columns = pa.schema([("text", pa.string()), ("n", pa.int64())])
        backend = harness.opened()
        state = backend.merging(described("aggregating", columns=columns, merge=joined))
        state.add([((1,), ("a", 1)), ((2,), ("x", 5)), ((1,), ("b", 2))])
        state.add([((3,), ("q", 0)), ((1,), ("c", 3)), ((2,), ("y", 5)), ((1,), ("d", 4))])
        assert state.get([(1,), (2,), (3,), (4,)]) == [("abcd", 10), ("xy", 10), ("q", 0), None]
        state.clear([(1,)])
        state.add([((1,), ("z", 1))])
        assert state.get([(1,), (2,)]) == [("z", 1), ("xy", 10)]
        assert backend.all_keys(state.descriptor) == backend.ids([(1,), (2,), (3,)])
