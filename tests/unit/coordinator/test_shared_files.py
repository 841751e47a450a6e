"""S2.3: what checkpoints share goes when nobody uses it, and never before."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tidegate.coordinator.garbage.shared_files import SharedFiles, pending_checkpoint_ids, split_deletable
from tidegate.errors import FencedError, SnapshotError
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Decision
from tidegate.jobs.stores.in_memory import MemoryStore
from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import open_store
from tidegate.snapshot.blobs import BlobFile, StoredBlob
from tidegate.snapshot.handles import StateHandle
from tidegate.snapshot.metadata import OperatorState, SnapshotMetadata, SubtaskState, write_metadata

AT = "2026-01-01T00:00:00Z"
LAYOUT = JobLayout("job")
NAMES = st.frozensets(st.sampled_from("abcdef"))
IDS = st.frozensets(st.integers(1, 6))


class Job:
    """A log and the files that go with it; `generation` is the running driver's."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.log: list[Decision] = []
        self.generation = 0
        self.ids = 0
        self.required: set[str] = set()
        self.checked = 0
        self.driver()

    def driver(self) -> None:
        self.generation += 1
        self.add("fence", spec=1, launch=self.generation)
        self.shared = SharedFiles(
            self.store,
            LAYOUT,
            self.generation,
            decisions=lambda: self.log,
            required=lambda: self.required,
            check=self.check,
        )

    def check(self) -> None:
        self.checked += 1

    def add(self, entry_kind: Any, /, **data: Any) -> None:
        self.log.append(Decision(len(self.log) + 1, entry_kind, self.generation, "r", AT, "n", data))

    def claim(self) -> int:
        self.ids += 1
        path = LAYOUT.checkpoint(self.ids, self.generation)
        self.add("claim", checkpoint_id=self.ids, kind="checkpoint", triggered_at=AT, path=path)
        return self.ids

    def upload(self, *names: str) -> None:
        for name in names:
            self.store.create(LAYOUT.shared_file(name), b"blobs")

    def complete(self, n: int, *names: str) -> str:
        """It uses these files."""
        path = next(d.data["path"] for d in self.log if d.kind == "claim" and d.data["checkpoint_id"] == n)
        write_metadata(self.store, path, metadata(n, names))
        self.add("complete", checkpoint_id=n, kind="checkpoint", path=path, metrics={})
        return str(path)

    def abort(self, n: int) -> None:
        self.add("abort", checkpoint_id=n, reason="", code="expired", counts=True)

    def retire(self, path: str) -> None:
        self.store.delete_folder(path)
        self.shared.deleted(path)
        self.shared.sweep()

    def there(self) -> list[str]:
        return self.store.list(LAYOUT.shared)


def metadata(n: int, names: tuple[str, ...]) -> SnapshotMetadata:
    files = tuple(BlobFile(name, None, True, 5, (StoredBlob(name, 0, 5, ""),)) for name in names)
    handle = StateHandle(None, b"", 0, "", ("keyed",), (), files)
    operator = OperatorState("op", "running", (SubtaskState(0, False, handle),))
    return SnapshotMetadata(n, "checkpoint", "job", "l", 1, "r", None, 1, 8, AT, {}, (operator,))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(open_store(str(tmp_path)))


def test_a_file_goes_with_the_last_checkpoint_that_uses_it(job: Job) -> None:
    job.upload("a", "b", "c")
    first = job.complete(job.claim(), "a", "b")
    second = job.complete(job.claim(), "b", "c")
    job.retire(first)
    assert job.there() == ["b", "c"]
    job.complete(job.claim(), "c")
    job.retire(second)
    assert job.there() == ["c"]


def test_uploads_of_an_aborted_checkpoint_go(job: Job) -> None:
    done = job.complete(job.claim())
    aborted = job.claim()
    job.upload("a")
    job.shared.sweep()
    assert job.there() == ["a"], "it may still complete"
    job.abort(aborted)
    job.retire(done)
    assert job.there() == []


def test_a_file_stays_while_a_checkpoint_is_on_its_way_that_may_use_it(job: Job) -> None:
    """Triggered before the file was given up, it may name it; what is claimed afterwards cannot."""
    job.upload("a")
    first = job.complete(job.claim(), "a")
    slow = job.claim()
    job.complete(job.claim())
    job.retire(first)
    assert job.there() == ["a"]
    later = job.claim()
    last = job.complete(slow, "a")
    job.shared.sweep()
    assert job.there() == ["a"]
    job.retire(last)
    assert job.there() == ["a"], "another was on its way then"
    job.abort(later)
    job.claim()
    job.shared.sweep()
    assert job.there() == []


def test_a_new_driver_knows_what_earlier_ones_completed_and_forgets_what_they_had_on_their_way(job: Job) -> None:
    job.upload("a", "b", "c")
    first = job.complete(job.claim(), "a")
    job.complete(job.claim(), "b")
    job.claim()
    job.driver()
    job.retire(first)
    assert job.there() == ["b"]


def test_nothing_goes_while_a_checkpoint_that_stays_cannot_be_read(job: Job) -> None:
    """S9.3: somebody may put it back."""
    job.upload("a", "b")
    first = job.complete(job.claim(), "a")
    second = job.complete(job.claim(), "b")
    whole = job.store.read(f"{second}/_metadata")
    job.driver()
    job.required = {second}
    job.store.delete(f"{second}/_metadata")
    with pytest.raises(SnapshotError):
        job.retire(first)
    assert job.there() == ["a", "b"]
    job.store.create(f"{second}/_metadata", whole)
    job.shared.sweep()
    assert job.there() == ["b"]


def test_a_checkpoint_that_cannot_be_read_keeps_no_files_any_more_when_somebody_has_removed_it(job: Job) -> None:
    job.upload("a", "b")
    unreadable = job.complete(job.claim(), "a")
    job.complete(job.claim(), "b")
    job.store.delete(f"{unreadable}/_metadata")
    job.store.create(f"{unreadable}/op.state", b"")
    job.driver()
    with pytest.raises(SnapshotError):
        job.shared.sweep()
    job.store.delete_folder(unreadable)
    job.shared.sweep()
    assert job.there() == ["b"]


def test_a_driver_that_is_fenced_deletes_nothing(job: Job) -> None:
    """S9.2."""
    job.upload("a")

    def fenced() -> None:
        raise FencedError("generation 1 is over")

    job.shared = SharedFiles(job.store, LAYOUT, 1, decisions=lambda: job.log, required=lambda: (), check=fenced)
    with pytest.raises(FencedError):
        job.shared.sweep()
    assert job.there() == ["a"]


def test_a_sweep_that_is_asked_for_during_another_follows_it(job: Job) -> None:
    """Nobody waits for the other."""
    job.upload("a")
    rounds = 0

    def check() -> None:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            job.upload("b")
            thread = threading.Thread(target=job.shared.sweep)
            thread.start()
            thread.join(20)
            assert not thread.is_alive()

    job.shared._check = check
    job.shared.sweep()
    assert (job.there(), rounds) == ([], 2)


@given(names=NAMES, used=NAMES, held=st.dictionaries(st.sampled_from("abcdef"), IDS, max_size=6), pending=IDS)
def test_what_is_used_or_waited_for_is_never_given_up(
    names: frozenset[str], used: frozenset[str], held: dict[str, frozenset[int]], pending: frozenset[int]
) -> None:
    gone, waiting = split_deletable(sorted(names), used, held, pending)
    assert not set(gone) & used and set(gone) | set(waiting) == names - used
    assert all(not held.get(name, pending) & pending for name in gone)
    assert all(ids and ids <= pending for ids in waiting.values())


def test_on_its_way_is_what_the_own_generation_claimed_and_did_not_end() -> None:
    job = Job(MemoryStore("on-their-way"))
    job.claim()
    job.driver()
    pending, done, aborted = job.claim(), job.claim(), job.claim()
    job.complete(done)
    job.abort(aborted)
    assert pending_checkpoint_ids(job.log, 2) == {pending}


class Sharing(RuleBasedStateMachine):
    """Checkpoints that share with the newest completed one at their trigger, in any order of events."""

    def __init__(self) -> None:
        super().__init__()
        MemoryStore("sharing").delete_folder("job")
        self.job = Job(MemoryStore("sharing"))
        self.pending: dict[int, tuple[str, ...]] = {}
        self.kept: dict[str, tuple[str, ...]] = {}
        self.newest: tuple[str, ...] = ()
        self.newest_id = 0
        self.files = 0

    @rule(data=st.data())
    def trigger(self, data: st.DataObject) -> None:
        reused = data.draw(st.lists(st.sampled_from(self.newest), unique=True)) if self.newest else []
        self.files += 1
        n = self.job.claim()
        self.job.upload(f"f{self.files:04d}")
        self.pending[n] = (*reused, f"f{self.files:04d}")

    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        if self.pending:
            n = data.draw(st.sampled_from(sorted(self.pending)))
            names = self.pending.pop(n)
            self.kept[self.job.complete(n, *names)] = names
            if n > self.newest_id:
                self.newest, self.newest_id = names, n

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.pending:
            n = data.draw(st.sampled_from(sorted(self.pending)))
            del self.pending[n]
            self.job.abort(n)

    @rule(data=st.data())
    def retire(self, data: st.DataObject) -> None:
        """Any but the newest: nothing is triggered upon what has been given up."""
        old = [path for path in self.kept if f"chk-{self.newest_id}-" not in path]
        if old:
            path = data.draw(st.sampled_from(sorted(old)))
            del self.kept[path]
            self.job.retire(path)

    @rule()
    def sweep(self) -> None:
        self.job.shared.sweep()

    @rule()
    def crash(self) -> None:
        """The next driver shares nothing with what it restores, and starts from what is there."""
        self.pending.clear()
        self.newest = ()
        self.job.driver()

    @invariant()
    def nothing_is_missing(self) -> None:
        there = set(self.job.there())
        assert all(set(names) <= there for names in (*self.kept.values(), *self.pending.values()))

    def teardown(self) -> None:
        """With nothing on its way, nothing unused stays."""
        for n in list(self.pending):
            self.job.abort(n)
        self.job.shared.sweep()
        assert set(self.job.there()) == {name for names in self.kept.values() for name in names}


def test_sharing_in_any_order_misses_nothing_and_leaves_nothing() -> None:
    run_state_machine_as_test(Sharing)  # type: ignore[no-untyped-call]
