"""Conformance of keyed state back ends: time to live, and timers (S5.1)."""

from __future__ import annotations

import pytest

from state_suites.backend_tests import KEY_CASES, BackendHarness, BackendTests, described, value_state
from state_suites.plain_states import plain
from tidegate.state.keyed_state import TimerKind, TimeToLive

SECOND = TimeToLive(1_000)
SECOND_AFTER_READ = TimeToLive(1_000, on_read=True)


class TtlTests(BackendTests):
    """States whose entries expire in processing time."""

    def test_a_value_expires_when_its_time_has_passed_since_the_last_write(self, harness: BackendHarness) -> None:
        backend = harness.opened()
        state = backend.value(value_state(ttl=SECOND))
        state.put([((1,), (1,)), ((2,), (2,))])
        harness.clock.now += 999
        state.put([((2,), (3,))])
        assert state.get([(1,), (2,)]) == [(1,), (3,)]
        harness.clock.now += 1
        assert state.get([(1,), (2,)]) == [None, (3,)]
        assert backend.all_keys(state.descriptor) == backend.ids([(2,)])
        harness.clock.now += 999
        assert state.get([(1,), (2,)]) == [None, None]
        assert backend.all_keys(state.descriptor) == set()
        state.put([((1,), (4,))])
        assert state.get([(1,)]) == [(4,)]

    def test_reading_keeps_a_value_alive_where_the_descriptor_says_so(self, harness: BackendHarness) -> None:
        backend = harness.opened()
        kept = backend.value(value_state("kept", ttl=SECOND_AFTER_READ))
        lost = backend.value(value_state("lost", ttl=SECOND))
        for state in (kept, lost):
            state.put([((1,), (1,)), ((2,), (2,))])
        for _ in range(3):
            harness.clock.now += 500
            assert kept.get([(1,), (7,)]) == [(1,), None]
            lost.get([(1,)])
        assert kept.get([(1,), (2,), (7,)]) == [(1,), None, None]
        assert lost.get([(1,), (2,)]) == [None, None]

    def test_an_expired_value_that_is_read_does_not_come_back(self, harness: BackendHarness) -> None:
        state = harness.opened().value(value_state(ttl=SECOND_AFTER_READ))
        state.put([((1,), (1,))])
        harness.clock.now += 1_000
        assert state.get([(1,)]) == [None]
        harness.clock.now += 10
        assert state.get([(1,)]) == [None]

    def test_elements_of_a_list_expire_each_by_itself(self, harness: BackendHarness) -> None:
        backend = harness.opened()
        state = backend.list(described("list", ttl=SECOND))
        state.append([((1,), (1,)), ((2,), (2,))])
        harness.clock.now += 600
        state.append([((1,), (3,))])
        harness.clock.now += 400
        assert state.get([(1,), (2,)]) == [[(3,)], []]
        assert backend.all_keys(state.descriptor) == backend.ids([(1,)])
        state.append([((2,), (4,))])
        assert state.get([(1,), (2,)]) == [[(3,)], [(4,)]]

    def test_reading_a_list_keeps_its_elements_alive_where_the_descriptor_says_so(
        self, harness: BackendHarness
    ) -> None:
        state = harness.opened().list(described("list", ttl=SECOND_AFTER_READ))
        state.append([((1,), (1,)), ((2,), (2,))])
        harness.clock.now += 600
        assert state.get([(1,)]) == [[(1,)]]
        harness.clock.now += 600
        assert state.get([(1,), (2,)]) == [[(1,)], []]

    @pytest.mark.parametrize("on_read", [False, True])
    def test_entries_of_a_map_expire_each_by_itself(self, harness: BackendHarness, on_read: bool) -> None:
        backend = harness.opened()
        state = backend.map(described("map", ttl=TimeToLive(1_000, on_read)))
        state.put([((1,), (at,), (1,)) for at in "abc"] + [((2,), ("a",), (2,))])
        harness.clock.now += 600
        state.put([((1,), ("b",), (5,))])
        assert state.get([((1,), ("a",))]) == [(1,)]
        harness.clock.now += 400
        kept = {"a": (1,), "b": (5,)} if on_read else {"b": (5,)}
        ids = {at: state.map_ids([(at,)])[0] for at in kept}
        assert state.entries([(1,), (2,)]) == [{ids[at]: row for at, row in kept.items()}, {}]
        assert state.get([((1,), ("c",)), ((2,), ("a",))]) == [None, None]
        assert backend.all_keys(state.descriptor) == backend.ids([(1,)])

    def test_an_expired_reduction_begins_anew(self, harness: BackendHarness) -> None:
        state = harness.opened().merging(described("reducing", reductions=("sum",), ttl=SECOND))
        state.add([((1,), (1,)), ((2,), (2,))])
        harness.clock.now += 600
        state.add([((1,), (10,))])
        harness.clock.now += 400
        state.add([((1,), (100,)), ((2,), (5,))])
        assert state.get([(1,), (2,)]) == [(111,), (5,)]

    @pytest.mark.parametrize("portable", [False, True])
    def test_age_counts_on_after_a_restore(self, harness: BackendHarness, portable: bool) -> None:
        backend = harness.opened()
        backend.value(value_state(ttl=SECOND)).put([((1,), (1,)), ((2,), (2,))])
        harness.clock.now += 600
        backend.value(value_state(ttl=SECOND)).put([((2,), (3,))])
        parts = backend.taken(1, harness.shelf, portable=portable)
        harness.clock.now += 300
        restored = harness.opened()
        state = restored.value(value_state(ttl=SECOND))
        restored.backend.restore(parts)
        assert state.get([(1,), (2,)]) == [(1,), (3,)]
        harness.clock.now += 100
        assert state.get([(1,), (2,)]) == [None, (3,)]
        harness.clock.now += 600
        assert restored.all_keys(state.descriptor) == set()

    def test_what_expired_before_a_restore_is_not_seen_after_it(self, harness: BackendHarness) -> None:
        backend = harness.opened()
        backend.list(described("list", ttl=SECOND)).append([((1,), (1,)), ((2,), (2,))])
        harness.clock.now += 500
        backend.list(described("list", ttl=SECOND)).append([((1,), (3,))])
        harness.clock.now += 500
        parts = backend.taken(1, harness.shelf)
        restored = harness.opened()
        state = restored.list(described("list", ttl=SECOND))
        restored.backend.restore(parts)
        assert state.get([(1,), (2,)]) == [[(3,)], []]


class TimerTests(BackendTests):
    """`TimerService`."""

    def test_timers_come_due_in_order_of_time_and_once(self, harness: BackendHarness) -> None:
        timers = harness.opened().timers()
        assert timers.next_us() is None and timers.due(2**62) is None
        timers.register([((1,), 30), ((2,), 10), ((1,), 20), ((None,), -5), ((3,), 99)])
        assert timers.next_us() == -5
        assert timers.due(-6) is None
        assert timers.due(30) == [((None,), -5), ((2,), 10), ((1,), 20), ((1,), 30)]
        assert timers.next_us() == 99 and timers.due(30) is None
        assert timers.due(99) == [((3,), 99)]
        assert timers.next_us() is None and timers.due(2**62) is None

    def test_registering_a_timer_twice_is_once(self, harness: BackendHarness) -> None:
        timers = harness.opened().timers()
        timers.register([((1,), 10), ((1,), 10), ((2,), 10)])
        timers.register([((1,), 10), ((1,), 11)])
        assert timers.of([(1,), (2,)]) == [[10, 11], [10]]
        found = timers.due(10)
        assert found is not None and sorted(found) == [((1,), 10), ((2,), 10)]
        assert timers.due(100) == [((1,), 11)]

    def test_deleted_timers_do_not_come_due_and_can_be_registered_again(self, harness: BackendHarness) -> None:
        timers = harness.opened().timers()
        timers.register([((1,), 10), ((1,), 20), ((2,), 10)])
        timers.delete([((1,), 10), ((2,), 20), ((3,), 10), ((1,), 10)])
        assert timers.next_us() == 10
        assert timers.of([(1,), (2,), (3,)]) == [[20], [10], []]
        timers.delete([((2,), 10)])
        assert timers.next_us() == 20
        timers.register([((2,), 10), ((1,), 5)])
        timers.delete([((1,), 5)])
        assert list(timers.all_due(100)) == [((2,), 10), ((1,), 20)]
        timers.register([((1,), 20)])
        assert timers.due(100) == [((1,), 20)]

    def test_the_limit_is_kept_and_the_rest_comes_with_the_next_calls(self, harness: BackendHarness) -> None:
        timers = harness.opened().timers()
        timers.register([((n % 7,), 1_000 - n) for n in range(100)])
        assert timers.due(950, 3) == [((1,), 901), ((0,), 902), ((6,), 903)]
        assert timers.next_us() == 904
        assert list(timers.all_due(950, 4)) == [((n % 7,), 1_000 - n) for n in range(96, 49, -1)]
        assert timers.next_us() == 951

    def test_timers_of_one_time_all_come_due_whatever_the_limit(self, harness: BackendHarness) -> None:
        timers = harness.opened().timers()
        timers.register([((n,), 5) for n in range(10)] + [((0,), 4), ((0,), 6)])
        found = list(timers.all_due(5, 3))
        assert found[0] == ((0,), 4)
        assert sorted(found[1:]) == [((n,), 5) for n in range(10)]
        assert timers.due(6) == [((0,), 6)]

    def test_timers_that_are_registered_in_answer_come_with_the_next_call(self, harness: BackendHarness) -> None:
        timers = harness.opened().timers()
        timers.register([((1,), 10), ((2,), 30)])
        assert timers.due(50, 1) == [((1,), 10)]
        timers.register([((1,), 5), ((1,), 40), ((3,), 60)])
        assert timers.next_us() == 5
        assert timers.due(50) == [((1,), 5), ((2,), 30), ((1,), 40)]
        timers.delete([((3,), 60)])
        assert timers.next_us() is None

    def test_the_kinds_are_apart_and_each_is_one_object(self, harness: BackendHarness) -> None:
        backend = harness.opened()
        kinds: tuple[TimerKind, TimerKind] = ("event", "processing")
        event, processing = (backend.timers(kind) for kind in kinds)
        event.register([((1,), 10)])
        assert processing.next_us() is None and processing.due(100) is None
        processing.register([((1,), 20)])
        assert (event.due(100), processing.of([(1,)])) == ([((1,), 10)], [[20]])
        assert all(backend.backend.timers(kind) is backend.backend.timers(kind) for kind in kinds)

    @pytest.mark.parametrize("case", KEY_CASES)
    def test_timers_have_keys_of_any_type(self, harness: BackendHarness, case: str) -> None:
        schema, rows = KEY_CASES[case]
        backend = harness.opened(key_schema=schema)
        timers = backend.timers()
        timers.register([(row, i) for i, row in enumerate(rows)])
        timers.register([(row, i) for i, row in enumerate(rows)])
        timers.delete([(rows[1], 1)])
        assert list(timers.all_due(2**62)) == [(plain(row), i) for i, row in enumerate(rows) if i != 1]

    def test_the_ends_of_time_are_times(self, harness: BackendHarness) -> None:
        timers = harness.opened().timers()
        timers.register([((1,), 2**63 - 1), ((2,), -(2**63))])
        assert timers.next_us() == -(2**63)
        assert timers.due(2**63 - 2) == [((2,), -(2**63))]
        assert timers.due(2**63 - 1) == [((1,), 2**63 - 1)]

    def test_thousands_of_timers(self, harness: BackendHarness) -> None:
        timers = harness.opened().timers()
        times = [(n * 7_919) % 20_011 for n in range(20_000)]
        for first in range(0, 20_000, 4_000):
            timers.register([((n % 501,), times[n]) for n in range(first, first + 4_000)])
        timers.delete([((n % 501,), times[n]) for n in range(0, 20_000, 3)])
        expected = sorted((times[n], n % 501) for n in range(20_000) if n % 3)
        found = [(time_us, key[0]) for key, time_us in timers.all_due(10_000, 999)]
        assert found == [pair for pair in expected if pair[0] <= 10_000]
        assert timers.next_us() == min(time_us for time_us, _ in expected if time_us > 10_000)
