"""The decision log: one order of entries for everybody, whatever the drivers and the store do (S2.1, S9.2)."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.errors import FencedError, RecordError, StoreError, UnclearAnswerError
from tidegate.jobs.decision_log import (
    CLIENT_TIMEOUT_S,
    LONGEST_PAUSE_S,
    SNAPSHOT_ENTRIES,
    DecisionLog,
    GenerationLog,
)
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Decision, encode
from tidegate.jobs.stores.in_memory import MemoryStore
from tidegate.jobs.stores.store import Store

LAYOUT = JobLayout("job")
NOW = "2026-11-21T09:25:00.000Z"
_nonces = itertools.count()

Answer = Literal["clear", "lost before", "lost after"]


class UnreliableStore(MemoryStore):
    """Answers creates as scripted: clearly, with an error before anything was written, or with one after it was."""

    def __init__(self, name: str, answers: list[Answer]) -> None:
        super().__init__(name)
        self.answers = answers

    def create(self, path: str, data: bytes) -> None:
        answer = self.answers.pop(0) if self.answers else "clear"
        if answer != "lost before":
            super().create(path, data)
        if answer != "clear":
            raise StoreError("connection reset")


class CountingStore(MemoryStore):
    """Counts reads and listings."""

    reads = 0

    def read(self, path: str) -> bytes:
        self.reads += 1
        return super().read(path)

    def list(self, folder: str) -> list[str]:
        self.reads += 1
        return super().list(folder)


def name() -> str:
    return secrets.token_hex(8)


class Clock:
    """Time that passes only in pauses and, while a store does not answer, in requests."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.pauses: list[float] = []
        self.on_pause: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds
        self.on_pause()


def log_on(store: Store, clock: Clock | None = None, timeout_s: float = CLIENT_TIMEOUT_S) -> DecisionLog:
    clock = clock or Clock()
    return DecisionLog(
        store,
        LAYOUT,
        lambda: NOW,
        lambda: f"n{next(_nonces)}",
        pause=clock.pause,
        timeout_s=timeout_s,
        clock=clock,
    )


def test_an_empty_log_has_no_entries() -> None:
    assert log_on(MemoryStore(name())).read() == ()


def test_a_reign_begins_with_a_fence_and_its_entries_follow_in_order() -> None:
    store = MemoryStore(name())
    generation_log = log_on(store).begin_generation(spec=1, launch=1)
    entry = generation_log.append("status", {"status": "RUNNING"}, run_id="r1")
    assert entry == Decision(2, "status", 1, "r1", NOW, entry.nonce, {"status": "RUNNING"})
    first, second = log_on(store).read()
    assert (first.number, first.kind, first.generation, first.data) == (1, "fence", 1, {"spec": 1, "launch": 1})
    assert second == entry
    assert generation_log.decisions == (first, second)


def test_a_reader_sees_new_entries_at_its_next_look_and_pays_one_request_for_nothing_new() -> None:
    store = CountingStore(name())
    reader, generation_log = log_on(store), log_on(store).begin_generation(spec=1, launch=1)
    assert len(reader.read()) == 1
    generation_log.append("status", {"status": "RUNNING"})
    assert [entry.kind for entry in reader.read()] == ["fence", "status"]
    store.reads = 0
    assert len(reader.read()) == 2
    assert store.reads == 1


def test_each_reign_has_the_next_generation() -> None:
    store = MemoryStore(name())
    assert [log_on(store).begin_generation(spec=1, launch=n).generation for n in (1, 2, 3)] == [1, 2, 3]


def test_what_an_older_generation_appends_after_a_fence_fails_and_leaves_no_trace() -> None:
    """S9.2."""
    store = MemoryStore(name())
    old = log_on(store).begin_generation(spec=1, launch=1)
    old.append("claim", {"checkpoint_id": 1})
    new = log_on(store).begin_generation(spec=1, launch=2)
    new.append("status", {"status": "RUNNING"})
    for _ in range(2):
        with pytest.raises(FencedError, match="generation 1 was replaced.*generation 2, of submission"):
            old.append("complete", {"checkpoint_id": 1})
    with pytest.raises(FencedError):
        old.check()
    new.check()
    assert [(e.kind, e.generation) for e in log_on(store).read()] == [
        ("fence", 1),
        ("claim", 1),
        ("fence", 2),
        ("status", 2),
    ]


def test_an_older_driver_that_has_read_the_newer_fence_cannot_append_behind_it() -> None:
    """S9.2."""
    store = MemoryStore(name())
    log = log_on(store)
    old = log.begin_generation(spec=1, launch=1)
    log_on(store).begin_generation(spec=1, launch=2)
    assert len(log.read()) == 2
    with pytest.raises(FencedError):
        old.append("complete", {"checkpoint_id": 1})
    assert len(log_on(store).read()) == 2


def test_a_look_now_and_then_is_raised_by_a_newer_fence_and_not_by_a_store_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S9.2."""
    store = MemoryStore(name())
    older = log_on(store).begin_generation(spec=1, launch=1)
    assert older.check_quietly() is None

    def away(path: str) -> bytes:
        raise StoreError("away", where=path)

    with monkeypatch.context() as patched:
        patched.setattr(store, "read", away)
        assert "away" in str(older.check_quietly())
    log_on(store).begin_generation(spec=1, launch=2)
    with pytest.raises(FencedError):
        older.check_quietly()


def test_an_entry_that_cannot_be_read_is_not_taken_for_a_store_that_is_away() -> None:
    """S9.2: nothing can be appended behind it; a newer release may have written it."""
    store = MemoryStore(name())
    older = log_on(store).begin_generation(spec=1, launch=1)
    store.create(LAYOUT.decision(2), b"{}")
    with pytest.raises(RecordError):
        older.check_quietly()


def test_a_late_driver_of_an_older_submission_or_launch_cannot_begin() -> None:
    store = MemoryStore(name())
    generation_log = log_on(store).begin_generation(spec=2, launch=2)
    for spec, launch in ((1, 9), (2, 1)):
        with pytest.raises(FencedError, match=f"launch {launch} of submission {spec} was replaced"):
            log_on(store).begin_generation(spec=spec, launch=launch)
    generation_log.append("status", {"status": "RUNNING"})


def test_drivers_that_begin_at_once_get_different_generations() -> None:
    """S9.2."""
    store = MemoryStore(name())
    with ThreadPoolExecutor(8) as pool:
        generation_logs = list(pool.map(lambda _: log_on(store).begin_generation(spec=1, launch=1), range(8)))
    assert sorted(generation_log.generation for generation_log in generation_logs) == list(range(1, 9))
    living = 0
    for generation_log in generation_logs:
        try:
            generation_log.append("status", {"status": "RUNNING"})
            living += 1
        except FencedError:
            pass
    assert living == 1


def test_threads_of_one_driver_append_without_gaps() -> None:
    store = MemoryStore(name())
    generation_log = log_on(store).begin_generation(spec=1, launch=1)
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda n: generation_log.append("claim", {"checkpoint_id": n}).number, range(64)))
    assert sorted(numbers) == list(range(2, 66))
    assert len(log_on(store).read()) == 65


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["clear", "lost before", "lost after"]), max_size=12),
    st.lists(st.integers(0, 1), min_size=1, max_size=8),
)
def test_after_unclear_answers_every_entry_that_append_returned_is_there_once(
    answers: list[Answer], appends: list[int]
) -> None:
    """S9.2."""
    store = UnreliableStore(name(), [])
    generation_log = log_on(store).begin_generation(spec=1, launch=1)
    store.answers = answers
    returned: list[Decision] = []
    for checkpoint_id in appends:
        try:
            returned.append(generation_log.append("claim", {"checkpoint_id": checkpoint_id}))
        except StoreError:
            break
    store.answers = []
    stored = log_on(store).read()
    assert list(stored[1 : 1 + len(returned)]) == returned
    assert len(stored) - 1 - len(returned) in (0, 1)


@pytest.mark.parametrize("answer", ["lost before", "lost after"])
def test_an_unclear_answer_to_a_fence_begins_one_reign(answer: Answer) -> None:
    store = UnreliableStore(name(), [answer])
    assert log_on(store).begin_generation(spec=1, launch=1).generation == 1
    assert len(log_on(store).read()) == 1


def test_a_store_that_never_answers_clearly_ends_the_append() -> None:
    store = UnreliableStore(name(), [])
    generation_log = log_on(store).begin_generation(spec=1, launch=1)
    store.answers = ["lost before"] * 100
    with pytest.raises(
        UnclearAnswerError,
        match=r"in 10 s whether it wrote entry 2 \('status'\).*00000002.json.*connection reset.*Restore the job.*"
        r"store_timeout",
    ):
        generation_log.append("status", {"status": "RUNNING"})
    assert 0 < len(store.answers) < 100


class DeafStore(MemoryStore):
    """While it is deaf nothing is answered; the first create is carried out all the same when it `takes`."""

    deaf = takes = False

    def create(self, path: str, data: bytes) -> None:
        if not self.deaf or self.takes:
            super().create(path, data)
            self.takes = False
        if self.deaf:
            raise StoreError("connection reset")

    def read(self, path: str) -> bytes:
        if self.deaf:
            raise StoreError("connection reset")
        return super().read(path)


@pytest.mark.parametrize("takes", [True, False])
def test_a_reign_that_does_not_know_what_it_wrote_is_over(takes: bool) -> None:
    """S9.2: it appends nothing more and checks as over, however well the store is by then."""
    store = DeafStore(name())
    generation_log = log_on(store).begin_generation(spec=1, launch=1)
    store.deaf, store.takes = True, takes
    with pytest.raises(UnclearAnswerError) as first:
        generation_log.append("complete", {"checkpoint_id": 1})
    store.deaf = False
    for again in (lambda: generation_log.append("abort", {"checkpoint_id": 1}), generation_log.check):
        with pytest.raises(UnclearAnswerError) as later:
            again()
        assert later.value is first.value
    assert [entry.kind for entry in log_on(store).read()] == ["fence", "complete"][: 1 + takes]


def test_a_fence_without_a_clear_answer_begins_no_reign() -> None:
    """S9.2."""
    store = UnreliableStore(name(), ["lost before"] * 100)
    with pytest.raises(UnclearAnswerError, match=r"entry 1 \('fence'\)"):
        log_on(store).begin_generation(spec=1, launch=1)
    store.answers = []
    assert log_on(store).begin_generation(spec=1, launch=2).generation == 1


def test_pauses_between_attempts_double_up_to_a_limit_and_the_last_attempt_is_at_the_end_of_the_time() -> None:
    clock = Clock()
    store = UnreliableStore(name(), [])
    generation_log = log_on(store, clock, timeout_s=20.0).begin_generation(spec=1, launch=1)
    generation_log.append("status", {"status": "RUNNING"})
    assert clock.pauses == []
    store.answers = ["lost before"] * 100
    with pytest.raises(UnclearAnswerError):
        generation_log.append("status", {"status": "RESTARTING"})
    assert clock.pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 3.7])
    assert max(clock.pauses) == LONGEST_PAUSE_S


class OutOfOrderStore(MemoryStore):
    """Answers nothing before `until_s`; each request then takes `request_s`. The first create succeeds all the same
    when it `takes`."""

    def __init__(self, clock: Clock, until_s: float, request_s: float, takes: bool) -> None:
        super().__init__(name())
        self._clock, self._until_s, self._request_s = clock, until_s, request_s
        self._takes = takes
        self.out = False

    def _answer(self) -> None:
        if self.out and self._clock.now_s < self._until_s:
            self._clock.now_s += self._request_s
            raise StoreError("connection timed out")

    def create(self, path: str, data: bytes) -> None:
        if self.out and self._takes:
            super().create(path, data)
            self._takes = False
        self._answer()
        super().create(path, data)

    def read(self, path: str) -> bytes:
        self._answer()
        return super().read(path)


def appended_in_an_outage(
    clock: Clock, store: OutOfOrderStore, caplog: pytest.LogCaptureFixture
) -> tuple[GenerationLog, Decision]:
    generation_log = log_on(store, clock, timeout_s=120.0).begin_generation(spec=1, launch=1)
    store.out = True
    entry = generation_log.append("complete", {"checkpoint_id": 1})
    assert [record.message.partition(":")[0][:50] for record in caplog.records] == [
        "the store does not report whether it wrote entry 2",
        "entry 2 (complete) of the decision log is written,",
    ]
    return generation_log, entry


@pytest.mark.parametrize("takes", [True, False], ids=["succeeded unnoticed", "failed"])
@pytest.mark.parametrize("request_s", [0.0, 8.0], ids=["errors at once", "requests time out"])
def test_a_store_that_is_out_of_order_for_45_s_delays_an_append(
    takes: bool, request_s: float, caplog: pytest.LogCaptureFixture
) -> None:
    """S9.2: the entry is there once, also if the first attempt had succeeded."""
    clock = Clock()
    store = OutOfOrderStore(clock, 45.0, request_s, takes)
    generation_log, entry = appended_in_an_outage(clock, store, caplog)
    assert 45.0 <= clock.now_s < 45.0 + LONGEST_PAUSE_S + request_s
    generation_log.append("committed", {"checkpoint_id": 1})
    assert log_on(store).read()[1:] == generation_log.decisions[1:]
    assert log_on(store).read()[1] == entry


def test_a_driver_fenced_during_an_outage_appends_nothing() -> None:
    """S9.2."""
    clock = Clock()
    store = OutOfOrderStore(clock, 45.0, 0.0, takes=False)
    old = log_on(store, clock, timeout_s=120.0).begin_generation(spec=1, launch=1)
    store.out = True

    def fence_after_30_s() -> None:
        if clock.now_s >= 30.0:  # another host reaches the store
            clock.on_pause = lambda: None
            store.out = False
            log_on(store).begin_generation(spec=1, launch=2)
            store.out = True

    clock.on_pause = fence_after_30_s
    with pytest.raises(FencedError):
        old.append("complete", {"checkpoint_id": 1})
    assert [entry.kind for entry in log_on(store).read()] == ["fence", "fence"]


def test_an_entry_whose_owner_cannot_be_read_is_looked_at_again() -> None:
    """S9.2: the create says that something is there, the read does not say whose it is."""
    store = UnreliableStore(name(), [])
    generation_log = log_on(store).begin_generation(spec=1, launch=1)
    store.answers = ["lost after"]
    refusals = iter([StoreError("connection reset")])
    read = store.read

    def unreadable_once(path: str) -> bytes:
        for error in refusals:
            raise error
        return read(path)

    store.read = unreadable_once  # type: ignore[method-assign]
    assert generation_log.append("status", {"status": "RUNNING"}).number == 2
    assert len(log_on(store).read()) == 2


def test_the_winner_of_an_unclear_race_is_told_apart_by_its_nonce() -> None:
    """S9.2."""
    base = name()
    old = log_on(UnreliableStore(base, ["clear", "lost before"])).begin_generation(spec=1, launch=1)
    log_on(MemoryStore(base)).begin_generation(spec=1, launch=2)
    with pytest.raises(FencedError):
        old.append("complete", {"checkpoint_id": 1})


def long_log(store: Store, entries: int) -> None:
    generation_log = log_on(store).begin_generation(spec=1, launch=1)
    for n in range(entries - 1):
        generation_log.append("claim", {"checkpoint_id": n + 1})


def test_a_long_log_is_read_through_its_snapshots_with_few_requests() -> None:
    store = CountingStore(name())
    long_log(store, 2 * SNAPSHOT_ENTRIES + 3)
    store.reads = 0
    entries = log_on(store).read()
    assert [entry.number for entry in entries] == list(range(1, 2 * SNAPSHOT_ENTRIES + 4))
    assert store.reads == 1 + 2 + 3 + 1  # listing, snapshots, entries, the look past the end


@pytest.mark.parametrize("damage", [b"", b"{}", b"lost"])
def test_a_lost_or_damaged_snapshot_costs_time_only(damage: bytes) -> None:
    store = MemoryStore(name())
    long_log(store, 2 * SNAPSHOT_ENTRIES)
    intact = log_on(store).read()
    path = LAYOUT.decision_snapshot(SNAPSHOT_ENTRIES)
    if damage == b"lost":
        store.delete(path)
    else:
        store.replace(path, damage)
    assert log_on(store).read() == intact


def test_a_lost_snapshot_makes_readers_fetch_its_own_entries_singly_and_no_others() -> None:
    store = CountingStore(name())
    long_log(store, 4 * SNAPSHOT_ENTRIES + 3)
    for lost in (1, 3):
        store.delete(LAYOUT.decision_snapshot(lost * SNAPSHOT_ENTRIES))
    store.reads = 0
    assert len(log_on(store).read()) == 4 * SNAPSHOT_ENTRIES + 3
    assert store.reads == 1 + 2 + 2 * SNAPSHOT_ENTRIES + 3 + 1


def test_a_driver_makes_up_for_a_snapshot_that_the_one_before_could_not_write_and_a_reader_does_not() -> None:
    """Each file has one kind of writer."""
    store = MemoryStore(name())
    long_log(store, 2 * SNAPSHOT_ENTRIES + 3)
    paths = [LAYOUT.decision_snapshot(n * SNAPSHOT_ENTRIES) for n in (1, 2)]
    written = [store.read(path) for path in paths]
    for path in paths:
        store.delete(path)
    log_on(store).read()
    assert not any(map(store.exists, paths))
    log_on(store).begin_generation(spec=1, launch=2)
    assert [store.read(path) for path in paths] == written


def test_originals_stay_when_a_snapshot_holds_them_so_that_a_zombie_finds_its_number_taken() -> None:
    """S9.2."""
    store = MemoryStore(name())
    zombie = log_on(store).begin_generation(spec=1, launch=1)
    long_log_of_successor = log_on(store).begin_generation(spec=1, launch=2)
    for n in range(2 * SNAPSHOT_ENTRIES):
        long_log_of_successor.append("claim", {"checkpoint_id": n + 1})
    with pytest.raises(FencedError):
        zombie.append("complete", {"checkpoint_id": 1})


def test_a_missing_entry_is_named() -> None:
    store = MemoryStore(name())
    long_log(store, 5)
    store.delete(LAYOUT.decision(3))
    with pytest.raises(RecordError, match=r"entry 3 .*decisions/00000003.json.*missing, but the later entry 5 exists"):
        log_on(store).read()


@pytest.mark.parametrize(
    ("forged", "reason"),
    [
        (Decision(3, "status", 1, "", NOW, "x"), "the entry has the number 3"),
        (Decision(2, "status", 2, "", NOW, "x"), "generation 2 wrote the entry, but the current generation is 1"),
        (Decision(2, "fence", 3, "", NOW, "x", {"spec": 1, "launch": 1}), "begins generation 3 after generation 1"),
        (
            Decision(2, "fence", 2, "", NOW, "x", {}),
            "the entry begins a generation, but names no submission and launch",
        ),
    ],
)
def test_an_entry_that_cannot_follow_the_one_before_is_not_believed(forged: Decision, reason: str) -> None:
    store = MemoryStore(name())
    log_on(store).begin_generation(spec=1, launch=1)
    store.create(LAYOUT.decision(2), encode(forged))
    with pytest.raises(RecordError, match=reason):
        log_on(store).read()


def test_data_that_is_no_json_is_refused_and_the_reign_goes_on() -> None:
    store = MemoryStore(name())
    generation_log = log_on(store).begin_generation(spec=1, launch=1)
    with pytest.raises(RecordError, match="cannot be written as JSON"):
        generation_log.append("status", {"x": object()})
    assert generation_log.append("status", {"status": "RUNNING"}).number == 2
