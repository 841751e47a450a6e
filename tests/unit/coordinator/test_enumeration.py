"""S4.3: which reader gets which split of a source that discovers splits while the job runs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.channel.control.protocol import (
    AssignSplits,
    SplitsHeld,
    SubtaskFinished,
    Trigger,
)
from tidegate.coordinator.enumeration import (
    MAX_WAITING_SPLITS,
    Enumerations,
    EnumerationState,
    SearchFailed,
    SearchOutage,
    SourceEnumeration,
    SplitsDiscovered,
)

CHAIN = 3


def splits(*numbers: int) -> tuple[dict[str, Any], ...]:
    return tuple({"split_id": f"s{n}"} for n in numbers)


def found(*numbers: int, complete: bool = False, more: bool = False) -> SplitsDiscovered:
    return SplitsDiscovered("src", splits(*numbers), numbers[-1] if numbers else None, complete, more)


def trigger(n: int, *readers: int, stop: Any = None) -> Trigger:
    kind: Any = "checkpoint" if stop is None else "stop-savepoint"
    return Trigger(n, kind, stop, f"chk-{n}", 0, tuple((CHAIN, i) for i in readers))


class Readers:
    """The enumerations of one source with two readers, which take all that they are given."""

    def __init__(
        self, begun: EnumerationState | None = None, open_splits: int | None = None, after_finished: bool = False
    ) -> None:
        source = SourceEnumeration(
            CHAIN,
            (0, 1),
            begun or EnumerationState(),
            interval_ms=100,
            open_splits=open_splits,
            after_finished=after_finished,
        )
        self.enumerations = Enumerations({"src": source})
        self.given: dict[int, list[str]] = {0: [], 1: []}
        self.last: dict[int, bool] = {0: False, 1: False}
        self.ended = {0: 0, 1: 0}
        self.aborted = 0
        self.passed = {0: 0, 1: 0}

    def take(self, assigned: list[AssignSplits]) -> dict[int, list[str]]:
        """Note what is assigned, and return it."""
        for message in assigned:
            chain, index = message.subtask
            assert chain == CHAIN and not self.last[index], "splits after the last ones"
            self.given[index] += [split["split_id"] for split in message.splits]
            self.last[index] = message.last
        return {message.subtask[1]: [split["split_id"] for split in message.splits] for message in assigned}

    def report(self, index: int, ended: int = 0) -> dict[int, list[str]]:
        """The reader reports what it has, after it has read `ended` more splits."""
        self.ended[index] += ended
        received = len(self.given[index])
        open_splits = received - self.ended[index]
        held = SplitsHeld((CHAIN, index), open_splits, received, self.passed[index], self.aborted)
        return self.take(self.enumerations.held(held))

    def passes(self, n: int, *indices: int) -> dict[int, list[str]]:
        """The barrier of snapshot `n` passes readers, which report it."""
        given: dict[int, list[str]] = {}
        for index in indices:
            self.passed[index] = n
            given |= self.report(index)
        return given

    def up(self) -> Readers:
        """Both have reported."""
        self.report(0)
        self.report(1)
        return self

    def search(self, outcome: SplitsDiscovered | SearchFailed, now_ms: int = 0) -> dict[int, list[str]]:
        """A search ends."""
        return self.take(self.enumerations.searched(outcome, now_ms))


def test_splits_wait_until_all_readers_have_reported_and_are_then_divided() -> None:
    readers = Readers()
    assert readers.search(found(1, 2, 3)) == {} and readers.report(0) == {}
    assert readers.report(1) == {0: ["s1", "s3"], 1: ["s2"]}


def test_a_split_goes_to_the_reader_with_the_fewest_unfinished_ones() -> None:
    readers = Readers().up()
    assert readers.search(found(1, 2, 3)) == {0: ["s1", "s3"], 1: ["s2"]}
    readers.report(0, ended=2)
    assert readers.search(found(4)) == {0: ["s4"]}


def test_a_split_on_its_way_counts_although_the_reader_does_not_know_it_yet() -> None:
    readers = Readers(open_splits=1).up()
    readers.search(found(1, 2))
    assert readers.take(readers.enumerations.held(SplitsHeld((CHAIN, 0), 0, 0, 0, 0))) == {}, "a report of before"
    assert readers.search(found(3)) == {}


def test_with_a_limit_a_reader_gets_the_next_split_when_it_has_finished_one() -> None:
    readers = Readers(open_splits=1).up()
    assert readers.search(found(1, 2, 3, 4)) == {0: ["s1"], 1: ["s2"]}
    assert readers.report(1, ended=1) == {1: ["s3"]}
    assert readers.report(1, ended=1) == {1: ["s4"]}, "reader 0 is slow, and keeps nobody waiting"


def test_splits_that_are_discovered_one_at_a_time_all_go_to_the_first_reader() -> None:
    """S4.3: so a source whose records have an order keeps it, also if a restored split was read by another reader."""
    for begun in (EnumerationState(), EnumerationState("s0", splits(0))):
        readers = Readers(begun, after_finished=True)
        readers.report(1)
        readers.report(0)
        for number in range(1, 6):
            readers.report(0, ended=len(readers.given[0]) - readers.ended[0])
            assert readers.enumerations.take_searches(number * 1_000) == ["src"]
            assert readers.search(found(number, more=number % 2 == 0), number * 1_000) == {0: [f"s{number}"]}
            readers.report(1)
            assert readers.enumerations.search_ms is None, "the split is not read to its end"
        assert readers.given[1] == []


@pytest.mark.parametrize("how", ["passed", "finished", "aborted"])
def test_nothing_is_assigned_from_the_trigger_until_the_barrier_has_passed_all_readers(how: str) -> None:
    readers = Readers().up()
    readers.enumerations.triggered(trigger(7, 0, 1))
    assert readers.search(found(1)) == {}
    assert readers.passes(6, 0, 1) == readers.passes(7, 0) == {}
    assert readers.take(readers.enumerations.finished(SubtaskFinished((CHAIN + 1, 1)))) == {}
    match how:
        case "passed":
            assert readers.passes(7, 1) == {0: ["s1"]}
        case "finished":
            assert readers.take(readers.enumerations.finished(SubtaskFinished((CHAIN, 1)))) == {0: ["s1"]}
        case _:
            assert readers.take(readers.enumerations.aborted(7)) == {0: ["s1"]}


def test_every_pending_snapshot_holds_assignments_back() -> None:
    readers = Readers().up()
    readers.enumerations.triggered(trigger(7, 0, 1))
    readers.enumerations.triggered(trigger(8, 0, 1))
    readers.search(found(1))
    assert readers.take(readers.enumerations.aborted(7)) == {}
    assert readers.passes(8, 0, 1) == {0: ["s1"]}


def test_a_snapshot_holds_what_waited_at_its_trigger() -> None:
    readers = Readers(open_splits=1).up()
    readers.search(found(1, 2, 3))
    readers.enumerations.triggered(trigger(7, 0, 1))
    readers.search(found(4))
    part = readers.enumerations.parts(7)
    assert part == {"src": {"state": 3, "waiting": [{"split_id": "s3"}], "complete": False}}
    assert readers.enumerations.parts(7) == {}, "it is forgotten"
    assert EnumerationState.from_json(part["src"]) == EnumerationState(3, splits(3), False)


def test_after_a_stop_nothing_is_assigned_unless_it_is_aborted_and_all_readers_read_on() -> None:
    """S4.3, S7.2, S7.7: a reader may have ended its data before it heard of the abort."""
    readers = Readers().up()
    readers.enumerations.triggered(trigger(7, 0, 1, stop="suspend"))
    readers.search(found(1))
    assert readers.passes(7, 0, 1) == {}
    assert readers.take(readers.enumerations.aborted(7)) == {}
    readers.aborted = 6
    assert readers.report(0) == readers.report(1) == {}, "they do not know of it yet"
    readers.aborted = 7
    assert readers.report(1) == {}
    assert readers.report(0) == {0: ["s1"]}


def test_readers_are_told_once_that_no_split_follows() -> None:
    readers = Readers(open_splits=1).up()
    readers.search(found(1, 2, 3, complete=True))
    assert readers.last == {0: False, 1: False}, "one waits"
    assert readers.report(0, ended=1) == {0: ["s3"], 1: []}
    assert readers.last == {0: True, 1: True}
    assert readers.report(0, ended=1) == {}


def test_a_restored_enumeration_continues_with_what_waited() -> None:
    readers = Readers(EnumerationState(3, splits(3), complete=True))
    assert readers.enumerations.search_ms is None, "there is nothing to search for"
    readers.up()
    assert readers.given == {0: ["s3"], 1: []} and readers.last == {0: True, 1: True}


def test_searches_follow_in_intervals_or_at_once_where_more_is_known() -> None:
    readers = Readers().up()
    enumerations = readers.enumerations
    assert enumerations.search_ms == 0 and enumerations.take_searches(5) == ["src"]
    assert enumerations.search_ms is None and enumerations.take_searches(5) == []
    readers.search(found(1), now_ms=50)
    assert enumerations.search_ms == 150 and enumerations.take_searches(149) == []
    assert enumerations.take_searches(150) == ["src"]
    readers.search(SearchFailed("src"), now_ms=160)
    assert enumerations.search_ms == 260
    enumerations.take_searches(260)
    readers.search(found(2, more=True), now_ms=270)
    assert enumerations.search_ms == 270
    enumerations.take_searches(270)
    readers.search(found(more=True), now_ms=280)
    assert enumerations.search_ms == 380, "it would search without a pause, and find nothing"


def test_an_outage_lasts_from_the_first_failed_search_to_the_next_answer() -> None:
    readers = Readers().up()
    enumerations = readers.enumerations
    assert enumerations.outages() == {}
    readers.search(SearchFailed("src", "no broker"), now_ms=50)
    readers.search(SearchFailed("src", "no leader"), now_ms=160)
    assert enumerations.outages() == {"src": SearchOutage(50, "no leader")}
    readers.search(found(1), now_ms=270)
    assert enumerations.outages() == {}


def test_no_search_starts_while_enough_splits_wait() -> None:
    """Snapshots contain them."""
    readers = Readers(open_splits=1).up()
    readers.enumerations.take_searches(0)
    readers.search(found(*range(MAX_WAITING_SPLITS + 2), more=True))
    assert readers.enumerations.search_ms is None
    readers.report(0, ended=1)
    assert readers.enumerations.search_ms == 0


def test_a_run_without_such_sources_does_nothing() -> None:
    none = Enumerations()
    none.triggered(trigger(1, 0))
    assert none.search_ms is None and none.take_searches(0) == [] and none.parts(1) == {} and none.aborted(1) == []
    assert none.finished(SubtaskFinished((CHAIN, 0))) == []


@given(st.data())
def test_every_split_is_assigned_once_and_held_once_by_each_snapshot(data: st.DataObject) -> None:
    """S4.3, whatever the order of searches, reports, snapshots and their ends."""
    limit = data.draw(st.sampled_from([None, 1, 2]))
    readers = Readers(open_splits=limit).up()
    number, snapshot = 0, 0
    pending: dict[int, set[int]] = {}
    at_trigger: dict[int, set[str]] = {}
    for action in data.draw(st.lists(st.sampled_from(["search", "read", "trigger", "pass", "abort"]), max_size=40)):
        if action == "search":
            count = data.draw(st.integers(0, 3))
            readers.search(found(*range(number, number + count)))
            number += count
        elif action == "read":
            index = data.draw(st.integers(0, 1))
            if readers.ended[index] < len(readers.given[index]):
                readers.report(index, ended=1)
        elif action == "trigger":
            snapshot += 1
            readers.enumerations.triggered(trigger(snapshot, 0, 1))
            pending[snapshot] = {0, 1}
            at_trigger[snapshot] = {s for given in readers.given.values() for s in given}
        elif pending:
            if action == "abort":
                n = data.draw(st.sampled_from(sorted(pending)))
                del pending[n]
                readers.take(readers.enumerations.aborted(n))
                continue
            n = min(pending)  # barriers pass in the order of their triggers
            index = data.draw(st.sampled_from(sorted(pending[n])))
            assert {s for given in readers.given.values() for s in given} == at_trigger[n]
            pending[n].discard(index)
            if not pending[n]:
                del pending[n]
                waiting = {s["split_id"] for s in readers.enumerations.parts(n)["src"]["waiting"]}
                assert not waiting & at_trigger[n]
            readers.passes(n, index)
    for n in pending:
        readers.take(readers.enumerations.aborted(n))
    everything = [s for given in readers.given.values() for s in given]
    assert len(everything) == len(set(everything))
    if limit is None:
        assert set(everything) == {f"s{n}" for n in range(number)}


def test_with_after_finished_a_search_waits_until_readers_have_read_everything() -> None:
    """S4.3: also splits that wait, and splits on their way to a reader."""
    readers = Readers(open_splits=1, after_finished=True)
    assert readers.enumerations.search_ms is None, "a restored reader may have splits"
    readers.up()
    assert readers.enumerations.take_searches(0) == ["src"]
    readers.search(found(1, 2, 3, more=True))
    assert readers.enumerations.search_ms is None
    readers.report(0, ended=1)
    assert readers.enumerations.search_ms is None, "s3 is on its way to reader 0"
    readers.report(1, ended=1)
    assert readers.enumerations.search_ms is None
    readers.report(0, ended=1)
    assert readers.enumerations.take_searches(0) == ["src"], "at once, because there was more"
    readers.search(found())
    assert readers.enumerations.search_ms == 100


def test_with_after_finished_restored_splits_are_read_before_the_first_search() -> None:
    readers = Readers(EnumerationState(1, splits(1)), after_finished=True).up()
    assert readers.enumerations.search_ms is None
    readers.report(0, ended=1)
    assert readers.enumerations.search_ms == 0


def test_the_states_of_a_completed_snapshot_are_returned_once_it_is_permitted() -> None:
    readers = Readers().up()
    for n in (1, 2, 3):
        readers.search(found(n))
        readers.enumerations.triggered(trigger(n, 0, 1))
        readers.passes(n, 0, 1)
        readers.enumerations.parts(n)
    assert readers.enumerations.permitted(2) == {"src": 2}
    assert readers.enumerations.permitted(1) == readers.enumerations.permitted(2) == {}
    assert readers.enumerations.permitted(3) == {"src": 3}
    assert readers.enumerations.permitted(9) == {}, "of an earlier run"
