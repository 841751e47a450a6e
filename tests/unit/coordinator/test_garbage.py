"""S2.3: what a new driver finds to delete, and what it never touches."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from builders.jobs import submission
from hypothesis import given
from hypothesis import strategies as st

from tidegate.coordinator.garbage.abandoned_checkpoints import (
    claimed_savepoints,
    find_abandoned_folders,
    restored_checkpoint,
)
from tidegate.coordinator.recovery.restore_point import choose_restore_point
from tidegate.errors import SnapshotError
from tidegate.jobs.history.checkpoints import named_snapshots
from tidegate.jobs.records import Decision, RestoreFrom, Spec

AT = "2026-01-01T00:00:00Z"


def spec(number: int, restore: RestoreFrom | None = None) -> Spec:
    return submission(number, restore=restore)


def path_of(n: int) -> str:
    return f"job/checkpoints/chk-{n}"


class Job:
    """A log, written by hand, and the folders that go with it."""

    def __init__(self) -> None:
        self.log: list[Decision] = []
        self.specs: list[Spec] = []
        self.folders: set[str] = set()
        self.generation = 0
        self.ids = 0

    def add(self, entry_kind: Any, /, **data: Any) -> None:
        self.log.append(Decision(len(self.log) + 1, entry_kind, self.generation, "r", AT, "n", data))

    def driver(self, restore: RestoreFrom | None = None, *, same_spec: bool = False) -> Job:
        """A new generation_log: of the same submission, or of a new one."""
        self.generation += 1
        if not same_spec or not self.specs:
            self.specs.append(spec(len(self.specs) + 1, restore))
        self.add("fence", spec=self.specs[-1].number, launch=self.generation)
        return self

    def claim(self, kind: str = "checkpoint") -> int:
        self.ids += 1
        path = path_of(self.ids) if kind in ("checkpoint", "final") else f"job/savepoints/sp-{self.ids}"
        self.add("claim", checkpoint_id=self.ids, kind=kind, triggered_at=AT, path=path)
        self.folders.add(path)
        return self.ids

    def complete(self, kind: str = "checkpoint", **more: Any) -> int:
        n = self.claim(kind)
        self.add("complete", checkpoint_id=n, kind=kind, path=self.log[-1].data["path"], metrics={}, **more)
        return n

    def garbage(self, *, retained: int = 1, commits: bool = False) -> list[tuple[str, bool]]:
        found = find_abandoned_folders(
            self.log,
            self.folders,
            self.specs,
            spec_number=self.specs[-1].number,
            generation=self.generation,
            retained=retained,
            commits=commits,
        )
        return [(item.path, item.without_grace) for item in found]

    def gone(self, **options: Any) -> list[int]:
        return [n for n in range(1, self.ids + 1) if path_of(n) in dict(self.garbage(**options))]


def test_a_folder_that_was_claimed_and_never_completed_goes_with_the_next_driver() -> None:
    """S2.3."""
    job = Job().driver()
    orphan, done = job.claim(), job.complete()
    assert job.gone() == []
    job.driver(same_spec=True)
    assert job.gone() == [orphan]
    assert path_of(done) not in dict(job.garbage())


def test_what_a_driver_had_retired_and_not_deleted_when_it_died_goes() -> None:
    """S2.3."""
    job = Job().driver()
    done = [job.complete() for _ in range(4)]
    job.driver(same_spec=True)
    assert job.gone() == done[:3]
    assert job.gone(retained=3) == done[:1]


def test_claims_of_the_own_generation_are_the_coordinators_business() -> None:
    """S2.3: pending ones, and completed ones too."""
    job = Job().driver(same_spec=True)
    job.claim()
    job.complete()
    job.complete()
    assert job.garbage() == []


def test_the_last_committed_snapshot_stays_where_sinks_commit() -> None:
    """S2.3."""
    job = Job().driver()
    committed, between, newest = job.complete(), job.complete(), job.complete()
    job.add("committed", checkpoint_id=committed)
    job.driver(same_spec=True)
    assert job.gone(commits=True) == [between]
    assert job.gone(commits=False) == [committed, between]
    assert newest not in job.gone()


def test_completed_savepoints_are_never_garbage() -> None:
    """S2.3: they are the user's."""
    job = Job().driver()
    job.complete("savepoint")
    job.complete("stop-savepoint", stop="suspend")
    job.driver(RestoreFrom("latest"))
    assert job.garbage() == []


@pytest.mark.parametrize("kind", ["savepoint", "stop-savepoint"])
@pytest.mark.parametrize("aborted", [True, False])
def test_a_savepoint_that_was_never_completed_goes_with_the_next_driver(kind: str, aborted: bool) -> None:
    """S2.3: nobody has been given it; the driver may have died before it recorded the abort."""
    job = Job().driver()
    n = job.claim(kind)
    if aborted:
        job.add("abort", checkpoint_id=n, reason="expired", code="expired", counts=False)
    assert job.garbage() == [], "its own coordinator sees to it"
    job.driver(same_spec=True)
    assert job.garbage() == [(f"job/savepoints/sp-{n}", False)]


def test_an_unfinished_savepoint_that_a_submission_starts_from_is_left() -> None:
    """S2.3: somebody has found it, and named it by its path."""
    job = Job().driver()
    n = job.claim("savepoint")
    job.driver(RestoreFrom("savepoint", path=f"job/savepoints/sp-{n}"))
    assert job.garbage() == []


def test_after_a_stop_the_checkpoints_in_front_of_it_go() -> None:
    """S2.3."""
    job = Job().driver()
    done = [job.complete(), job.complete()]
    job.complete("stop-savepoint", stop="suspend")
    job.driver(RestoreFrom("latest"))
    assert job.gone(retained=5) == done


def test_what_the_submission_goes_back_to_stays_though_newer_ones_are_there() -> None:
    """S2.3, S9.3."""
    job = Job().driver()
    back, abandoned, newest = job.complete(), job.complete(), job.complete()
    job.driver(RestoreFrom("checkpoint", checkpoint_id=back))
    assert job.gone() == [abandoned]
    job.driver(same_spec=True)
    assert back not in job.gone() and newest not in job.gone()
    job.complete()
    job.driver(same_spec=True)
    assert job.gone() == [back, abandoned, newest]


def test_a_savepoint_goes_only_when_a_submission_claimed_it_and_nothing_starts_from_it() -> None:
    """S7.4."""
    job = Job().driver()
    kept, claimed = job.complete("savepoint"), job.complete("savepoint")
    job.driver(RestoreFrom("savepoint", path=f"job/savepoints/sp-{claimed}", claim_mode="claim"))
    assert job.garbage() == []
    job.complete()
    job.driver(same_spec=True)
    assert job.garbage() == [(f"job/savepoints/sp-{claimed}", False)]
    job.specs.append(spec(3, RestoreFrom("savepoint", path=f"job/savepoints/sp-{claimed}")))
    assert job.garbage() == [], "a later submission starts from it"
    assert kept != claimed


@pytest.mark.parametrize("had_a_driver", [True, False])
def test_a_claim_of_a_submission_that_was_refused_or_never_ran_is_none(had_a_driver: bool) -> None:
    """S7.4: the savepoint stays the user's, whatever is submitted next."""
    job = Job().driver()
    savepoint, newest = job.complete("savepoint"), job.complete()
    claim = RestoreFrom("savepoint", path=f"job/savepoints/sp-{savepoint}", claim_mode="claim")
    if had_a_driver:
        job.driver(claim)
        job.add("status", status="FAILED")
    else:
        job.specs.append(spec(2, claim))
    job.driver(RestoreFrom("checkpoint", checkpoint_id=newest))
    job.complete()
    assert claimed_savepoints(job.log, job.specs) == frozenset()
    job.driver(same_spec=True)
    assert job.garbage() == [(path_of(newest), False)]


def test_what_a_later_submission_names_stays() -> None:
    """S2.3: it was submitted while this driver starts."""
    job = Job().driver()
    first, second, third = job.complete(), job.complete(), job.complete()
    job.driver(same_spec=True)
    job.specs.append(spec(2, RestoreFrom("savepoint", path=path_of(first))))
    found = find_abandoned_folders(
        job.log, job.folders, job.specs, spec_number=1, generation=job.generation, retained=1, commits=False
    )
    assert [item.path for item in found] == [path_of(second)]
    assert named_snapshots(job.log, job.specs, 2) == {path_of(first)}
    assert named_snapshots(job.log, job.specs, 1) == {path_of(first), path_of(third)}


def test_folders_that_the_log_does_not_know_are_left_alone() -> None:
    """S2.3."""
    job = Job().driver()
    job.driver(same_spec=True)
    job.folders.add("job/checkpoints/of-somebody-else")
    assert job.garbage() == []


def test_a_folder_that_is_not_there_is_not_deleted_again() -> None:
    job = Job().driver()
    job.claim()
    job.folders.clear()
    job.driver(same_spec=True)
    assert job.garbage() == []


def test_zombies_are_waited_for_unless_the_driver_before_ended_in_order() -> None:
    """S2.3: the grace."""
    job = Job().driver()
    of_killed = job.claim()
    job.add("status", status="RUNNING")
    job.driver(same_spec=True)
    of_clean = job.claim()
    job.complete()
    job.add("status", status="FINISHED")
    job.driver(RestoreFrom("latest"))
    assert job.garbage() == [(path_of(of_killed), False), (path_of(of_clean), True)]


def test_a_submission_restarts_from_what_it_named_until_it_has_its_own() -> None:
    """S9.3."""
    job = Job().driver()
    first = job.complete()
    job.complete()
    assert restored_checkpoint(job.log, job.specs, 1) is None
    job.driver(RestoreFrom("checkpoint", checkpoint_id=first))
    assert restored_checkpoint(job.log, job.specs, 2) == first
    job.complete("savepoint")
    assert restored_checkpoint(job.log, job.specs, 2) == first
    job.complete()
    assert restored_checkpoint(job.log, job.specs, 2) is None


STEPS = st.lists(
    st.sampled_from(["claim", "complete", "savepoint", "stop", "commit", "restart", "latest", "first", "fresh"]),
    max_size=30,
)


def take_step(job: Job, step: str, stop: str) -> None:
    """Args: stop: how a stop-savepoint ends the job."""
    completed = [d.data["checkpoint_id"] for d in job.log if d.kind == "complete"]
    match step:
        case "claim":
            job.claim()
        case "complete":
            job.complete()
        case "savepoint":
            job.complete("savepoint")
        case "stop":
            job.complete("stop-savepoint", stop=stop)
        case "commit":
            if completed:
                job.add("committed", checkpoint_id=completed[-1])
        case "restart":
            job.driver(same_spec=True)
        case "latest":
            job.driver(RestoreFrom("latest") if completed else None)
        case "first":
            job.driver(RestoreFrom("checkpoint", checkpoint_id=completed[0]) if completed else None)
        case "fresh":
            job.driver()


@given(STEPS, st.integers(1, 3), st.booleans())
def test_whatever_happened_nothing_that_a_restore_could_start_from_is_garbage(
    steps: list[str], retained: int, commits: bool
) -> None:
    """S2.3: reachable is what this submission restarts from, the newest, and what commits may still need."""
    job = Job().driver()
    for step in steps:
        take_step(job, step, stop="drain" if len(steps) % 2 else "suspend")
    job.driver(same_spec=True)
    gone = dict(job.garbage(retained=retained, commits=commits))
    point = None
    with contextlib.suppress(SnapshotError):  # "latest" of nothing: refused when it is submitted
        point = choose_restore_point(job.log, job.specs, job.specs[-1].number)
    assert point is None or point.location not in gone
    recovery = [d.data for d in job.log if d.kind == "complete" and d.data["kind"] != "savepoint"]
    assert not recovery or recovery[-1]["path"] not in gone
    if recovery and recovery[-1]["kind"] == "checkpoint":
        assert not {data["path"] for data in recovery[-retained:]} & gone.keys()
    assert all(path.startswith("job/checkpoints/") for path in gone)
