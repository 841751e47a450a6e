"""S2.3: `tidegate gc` deletes what nobody needs and nothing else, with a running driver or without."""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from builders.jobs import submission
from hypothesis import given
from hypothesis import strategies as st

from tidegate.coordinator.garbage.garbage_collection import CollectionReport, collect_garbage
from tidegate.coordinator.recovery.restore_point import choose_restore_point
from tidegate.errors import SnapshotError
from tidegate.jobs.artifacts.artifact import PackedArtifact, unpack_artifact, upload
from tidegate.jobs.layout import JobLayout
from tidegate.jobs.records import Decision, RestoreFrom, Spec, encode
from tidegate.jobs.stores.in_memory import MemoryStore
from tidegate.jobs.stores.store import Store
from tidegate.jobs.stores.store_registry import open_store
from tidegate.snapshot.blobs import BlobFile, StoredBlob
from tidegate.snapshot.handles import StateHandle
from tidegate.snapshot.location import open_location
from tidegate.snapshot.metadata import OperatorState, SnapshotMetadata, SubtaskState, write_metadata

AT = "2026-01-01T00:00:00Z"
LAYOUT = JobLayout("job")
NOW = datetime(2030, 1, 1, tzinfo=UTC)
"""Long after every object was written."""


class Job:
    """A job directory, written by hand."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.log: list[Decision] = []
        self.specs: list[Spec] = []
        self.generation = 0
        self.ids = 0

    def add(self, entry_kind: Any, /, **data: Any) -> None:
        self.log.append(Decision(len(self.log) + 1, entry_kind, self.generation, "r", AT, "n", data))

    def pinned(self, letter: str) -> str:
        """Folder of pinned code."""
        path = LAYOUT.artifact(letter * 64)
        self.store.create(f"{path}/code.zip", b"code")
        self.store.create(f"{path}/manifest.json", b"list")
        return path

    def submit(self, restore: RestoreFrom | None = None, code: str = "") -> None:
        """A submission that no driver has begun."""
        n = len(self.specs) + 1
        options: dict[str, Any] = {"retained_checkpoints": 1}
        self.specs.append(submission(n, artifact=code * 64, options=options, restore=restore))

    def driver(self, restore: RestoreFrom | None = None, *, same_spec: bool = False) -> Job:
        self.generation += 1
        if not same_spec or not self.specs:
            self.submit(restore)
        self.add("fence", spec=self.specs[-1].number, launch=self.generation)
        return self

    def claim(self, kind: str = "checkpoint", *names: str) -> int:
        """With a state file, and shared files that it uploads."""
        self.ids += 1
        path = LAYOUT.checkpoint(self.ids, self.generation)
        path = path if kind == "checkpoint" else f"job/savepoints/sp-{self.ids}"
        self.add("claim", checkpoint_id=self.ids, kind=kind, triggered_at=AT, path=path)
        self.store.create(f"{path}/op.state", b"state")
        for name in names:
            self.store.create(LAYOUT.shared_file(name), b"twelve bytes")
        return self.ids

    def complete(self, n: int, *names: str, **more: Any) -> str:
        """Using these shared files."""
        data = next(d.data for d in self.log if d.kind == "claim" and d.data["checkpoint_id"] == n)
        files = tuple(BlobFile(name, None, True, 12, (StoredBlob(name, 0, 12, ""),)) for name in names)
        handle = StateHandle("op.state", None, 5, "", ("keyed",), (), files)
        operators = (OperatorState("op", "running", (SubtaskState(0, False, handle),)),)
        write_metadata(
            self.store,
            data["path"],
            SnapshotMetadata(n, data["kind"], "job", "l", 1, "r", None, 1, 8, AT, {}, operators),
        )
        self.add("complete", checkpoint_id=n, kind=data["kind"], path=data["path"], metrics={}, **more)
        return str(data["path"])

    def ended(self, status: str = "FAILED") -> None:
        self.add("status", status=status)

    def collect(self, **more: Any) -> CollectionReport:
        return collect_garbage(self.store, LAYOUT, lambda: self.log, lambda: self.specs, **{"now": NOW, **more})

    def paths(self, **more: Any) -> list[str]:
        return [one.path for one in self.collect(**more).collected]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(open_store(str(tmp_path)))


def test_of_a_job_that_has_ended_what_is_retained_stays_and_the_rest_goes(job: Job) -> None:
    job.driver()
    first = job.complete(job.claim("checkpoint", "a", "b"), "a", "b")
    job.complete(job.claim("checkpoint", "c"), "b", "c")
    orphan = LAYOUT.checkpoint(job.claim("checkpoint", "d"), 1)
    job.complete(job.claim("savepoint"))
    job.ended()
    told = job.collect(dry_run=True)
    assert [(one.path, one.why) for one in told.collected] == [
        (first, "retired"),
        (orphan, "unfinished"),
        ("job/shared/a", "unused"),
        ("job/shared/d", "unused"),
    ]
    assert job.store.exists(f"{first}/_metadata"), "a dry run deletes nothing"
    assert job.collect() == told and told.size_bytes > 24
    assert job.store.list("job/checkpoints") == ["chk-2-g1"] and job.store.list("job/shared") == ["b", "c"]
    assert job.store.list("job/savepoints") == ["sp-4"]
    assert job.paths() == []


def test_more_recovery_points_stay_when_that_is_asked(job: Job) -> None:
    job.driver()
    paths = [job.complete(job.claim()) for _ in range(4)]
    job.ended()
    assert job.paths(keep=3, dry_run=True) == paths[:1]
    assert job.paths(dry_run=True) == paths[:3]


def test_what_the_reigning_driver_has_claimed_is_its_own_business(job: Job) -> None:
    job.driver()
    earlier = LAYOUT.checkpoint(job.claim(), 1)
    job.driver(same_spec=True)
    job.complete(job.claim())
    job.complete(job.claim())
    job.add("abort", checkpoint_id=job.claim(), reason="", code="expired", counts=True)
    assert job.paths() == [earlier]


def test_beside_a_running_job_shared_files_stay_while_a_checkpoint_is_on_its_way(job: Job) -> None:
    job.driver()
    job.complete(job.claim("checkpoint", "a"))
    pending = job.claim("checkpoint", "b")
    found = job.collect()
    assert found.collected == () and "pending checkpoints [2] may use" in found.kept_back
    job.add("abort", checkpoint_id=pending, reason="", code="expired", counts=True)
    found = job.collect()
    assert [one.path for one in found.collected] == ["job/shared/a", "job/shared/b"] and found.kept_back == ""


def test_what_is_young_stays_and_a_young_checkpoint_keeps_its_files(job: Job, tmp_path: Path) -> None:
    job.driver()
    first = job.complete(job.claim("checkpoint", "a", "b"), "a")
    job.complete(job.claim())
    job.ended()
    hour_ago = (NOW - timedelta(minutes=59)).timestamp()
    for young in (f"{first}/_metadata", "job/shared/b"):
        os.utime(tmp_path / young, (hour_ago, hour_ago))
    found = job.collect()
    assert (found.collected, found.too_young) == ((), 2)
    assert job.paths(older_than=timedelta(minutes=58)) == [first, "job/shared/a", "job/shared/b"]


def test_where_the_store_does_not_tell_ages_nothing_is_old() -> None:
    store = MemoryStore("gc-without-ages")
    store.delete_folder("job")
    job = Job(store).driver()
    job.complete(job.claim("checkpoint", "a"))
    job.ended()
    assert (job.collect().collected, job.collect().too_young) == ((), 1)


def test_a_checkpoint_that_cannot_be_read_keeps_all_shared_files(job: Job) -> None:
    """S9.3: somebody may put it back."""
    job.driver()
    path = job.complete(job.claim("checkpoint", "a", "b"), "a")
    job.ended()
    job.store.delete(f"{path}/_metadata")
    found = job.collect()
    assert found.collected == () and "chk-1-g1" in found.kept_back


@pytest.mark.parametrize("status", ["CANCELED", "FINISHED"])
def test_a_job_that_deleted_its_checkpoints_misses_none(job: Job, status: str) -> None:
    """S2.3: with retention=delete its driver, or who cancelled it, deleted them on purpose."""
    job.driver()
    job.specs[0] = replace(job.specs[0], options={**job.specs[0].options, "retention": "delete"})
    path = job.complete(job.claim("checkpoint", "a", "b"), "a")
    job.ended(status)
    job.store.delete_folder(path)
    assert [one.path for one in job.collect(dry_run=True).collected] == ["job/shared/a", "job/shared/b"]
    job.store.create(f"{path}/late.state", b"a zombie wrote it")
    found = job.collect()
    assert found.kept_back == "" and job.store.list("job/shared") == []


@pytest.mark.parametrize("stop", [None, {"outcome": "timed_out", "mode": "drain", "checkpoint_id": None, "path": None}])
def test_a_checkpoint_that_is_missing_for_no_known_reason_is_reported(job: Job, stop: Any) -> None:
    """S2.3: a cancellation by a stop keeps the state, also with retention=delete."""
    job.driver()
    options = {"retention": "keep" if stop is None else "delete"}
    job.specs[0] = replace(job.specs[0], options={**job.specs[0].options, **options})
    path = job.complete(job.claim("checkpoint", "a"), "a")
    job.add("status", status="CANCELED", stop=stop)
    job.store.delete_folder(path)
    found = job.collect()
    assert "chk-1-g1" in found.kept_back and job.store.list("job/shared") == ["a"]


def test_what_a_submission_names_stays_also_one_that_comes_meanwhile(job: Job) -> None:
    job.driver()
    first, second = job.complete(job.claim()), job.complete(job.claim())
    job.complete(job.claim())
    job.ended()

    def named_while_looking() -> list[Spec]:
        if len(job.specs) == 1:
            specs = list(job.specs)
            job.submit(RestoreFrom("checkpoint", first))
            return specs
        return job.specs

    found = collect_garbage(job.store, LAYOUT, lambda: job.log, named_while_looking, now=NOW)
    assert [one.path for one in found.collected] == [second]
    assert job.store.exists(f"{first}/_metadata")


def test_a_checkpoint_that_is_named_meanwhile_keeps_its_shared_files(job: Job) -> None:
    job.driver()
    first = job.complete(job.claim("checkpoint", "a", "b"), "a", "b")
    job.complete(job.claim("checkpoint", "c"), "b", "c")
    job.ended()

    def named_while_looking() -> list[Spec]:
        specs = list(job.specs)
        if len(specs) == 1:
            job.submit(RestoreFrom("checkpoint", first))
        return specs

    found = collect_garbage(job.store, LAYOUT, lambda: job.log, named_while_looking, now=NOW)
    assert found.collected == () and first in found.kept_back
    assert job.store.list("job/shared") == ["a", "b", "c"]


def test_a_job_that_never_ran_has_nothing_to_collect(job: Job) -> None:
    job.submit()
    assert job.collect() == CollectionReport((), 0, "")


def begin_savepoint(job: Job, path: str, run: str = "r") -> Store:
    """Claimed, with a part of run `run` of generation 1 in its folder; gives the store of the folder."""
    job.ids += 1
    job.add("claim", checkpoint_id=job.ids, kind="savepoint", triggered_at=AT, path=path)
    store, folder = open_location(job.store, job.specs[-1], path)
    store.create(f"{folder}/op-0-g1-{run}-00aa11bb.state", b"state")
    return store.child(folder)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_an_aborted_savepoint_wrote_goes_wherever_it_lies(job: Job, tmp_path: Path, elsewhere: bool) -> None:
    """S2.3: below the root, and in a folder of people's choice."""
    job.driver()
    place = f"{tmp_path}/of people" if elsewhere else "job/savepoints"
    left = begin_savepoint(job, f"{place}/savepoint-job-1-g1")
    job.add("abort", checkpoint_id=1, reason="expired", code="expired", counts=False)
    assert job.paths() == [], "the running driver sees to it"
    job.ended()
    assert job.paths(older_than=timedelta(days=9_999)) == [], "slow writers of zombies"
    assert left.list("") == ["op-0-g1-r-00aa11bb.state"]
    assert job.paths() == [f"{place}/savepoint-job-1-g1"]
    assert left.list("") == [] and job.paths() == []


def test_what_others_put_beside_or_into_an_aborted_savepoint_stays(job: Job, tmp_path: Path) -> None:
    """S2.3: people, a completed savepoint, and a job of the same id below another root, whose runs have other ids."""
    job.driver()
    mine = begin_savepoint(job, f"{tmp_path}/sp/savepoint-job-1-g1")
    for name in ("notes.txt", "op-0-g1-theirs-00aa11bb.state", "_metadata", "deeper/op-0-g1-r-00aa11bb.state"):
        mine.create(name, b"of somebody else")
    job.store.create("sp/savepoint-job-9-g1/_metadata", b"another one")
    job.ended()
    assert job.paths() == [f"{tmp_path}/sp/savepoint-job-1-g1"]
    assert mine.walk("") == [
        "_metadata",
        "deeper/op-0-g1-r-00aa11bb.state",
        "notes.txt",
        "op-0-g1-theirs-00aa11bb.state",
    ]
    assert job.store.exists("sp/savepoint-job-9-g1/_metadata")


def test_a_place_of_savepoints_that_cannot_be_listed_keeps_nothing_else(job: Job) -> None:
    job.driver()
    begin_savepoint(job, "job/savepoints/savepoint-job-1-g1")
    job.add("claim", checkpoint_id=2, kind="savepoint", triggered_at=AT, path="gopher://away/savepoint-job-2-g1")
    job.ended()
    found = job.collect()
    assert [one.path for one in found.collected] == ["job/savepoints/savepoint-job-1-g1"]
    assert "gopher://away" in found.savepoints_kept[0]


STEPS = st.lists(
    st.sampled_from(["claim", "complete", "share", "abort", "savepoint", "stop", "restart", "latest", "first", "end"]),
    max_size=25,
)


@given(steps=STEPS, keep=st.none() | st.integers(1, 3))
def test_whatever_happened_nothing_that_can_be_reached_is_deleted(steps: list[str], keep: int | None) -> None:
    """Afterwards every restore point is whole, and so is what is on its way."""
    store = MemoryStore("gc-property")
    store.delete_folder("job")
    job = Job(store).driver()
    newest: tuple[str, ...] = ()
    pending: dict[int, tuple[str, ...]] = {}
    for number, step in enumerate(steps):
        own = [d.data["checkpoint_id"] for d in job.log if d.kind == "complete" and d.data["kind"] == "checkpoint"]
        match step:
            case "claim" | "share":
                reused = newest if step == "share" else ()
                pending[job.claim("checkpoint", f"f{number}")] = (*reused, f"f{number}")
            case "complete" if pending:
                n = max(pending)
                newest = pending.pop(n)
                job.complete(n, *newest)
            case "abort" if pending:
                n = min(pending)
                del pending[n]
                job.add("abort", checkpoint_id=n, reason="", code="expired", counts=True)
            case "savepoint":
                job.complete(job.claim("savepoint"))
            case "stop":
                job.complete(job.claim("stop-savepoint"), stop="suspend")
            case "restart" | "latest" | "first" | "end":
                pending, newest = {}, ()
                restore = RestoreFrom("checkpoint", checkpoint_id=own[0]) if step == "first" and own else None
                if step == "end":
                    job.ended()
                job.driver(restore, same_spec=step != "first")
    on_their_way = {name for names in pending.values() for name in names}
    _all_old(job, keep)
    needed = on_their_way | _used_by_what_is_there(job)
    assert needed <= set(store.list("job/shared"))
    if not pending:
        assert needed == set(store.list("job/shared")), "nothing unused stays"


def _used_by_what_is_there(job: Job) -> set[str]:
    """The shared files of the restore point, which is whole, and of all other checkpoints."""
    needed: set[str] = set()
    point = None
    with contextlib.suppress(SnapshotError):
        point = choose_restore_point(job.log, job.specs, job.specs[-1].number)
    if point is not None and point.location.startswith("job/checkpoints/"):
        assert job.store.exists(f"{point.location}/_metadata")
        needed |= _used(job, point.location)
    for folder in job.store.list("job/checkpoints"):
        if job.store.exists(f"job/checkpoints/{folder}/_metadata"):
            needed |= _used(job, f"job/checkpoints/{folder}")
    return needed


def _all_old(job: Job, keep: int | None) -> None:
    """Collect as if the memory store told that everything is old."""
    from tidegate.jobs.stores.store import ObjectStat

    long_ago = datetime(2000, 1, 1, tzinfo=UTC)
    store = job.store
    store.stat = lambda path: ObjectStat(len(store.read(path)), long_ago)  # type: ignore[method-assign]
    job.collect(keep=keep)


def _used(job: Job, folder: str) -> frozenset[str]:
    from tidegate.snapshot.metadata import read_metadata

    return read_metadata(job.store, folder).shared_files()


def test_code_that_no_submission_names_goes_when_it_is_old(job: Job) -> None:
    first, unnamed, newest = (job.pinned(letter) for letter in "abc")
    job.submit(code="a")
    job.driver()
    job.submit(code="c")
    job.store.create("job/artifacts/readme", b"not ours")
    assert job.paths(now=datetime.now(UTC)) == [] and job.collect(now=datetime.now(UTC)).too_young == 1
    assert [(one.path, one.why, one.size_bytes) for one in job.collect().collected] == [(unnamed, "unnamed", 8)]
    assert job.store.list("job/artifacts") == [first.rpartition("/")[2], newest.rpartition("/")[2], "readme"]


def test_code_that_a_submission_in_the_making_has_found_there_is_left_to_it(job: Job, tmp_path: Path) -> None:
    code = PackedArtifact("", (("p.py", b"x = 1"),))
    code = replace(code, sha256=hashlib.sha256(encode(code.manifest)).hexdigest())
    upload(job.store, LAYOUT, code)
    for path in (tmp_path / LAYOUT.artifact(code.sha256)).iterdir():
        os.utime(path, (0, 0))
    upload(job.store, LAYOUT, code)
    assert job.paths(now=datetime.now(UTC)) == []
    unpack_artifact(job.store, LAYOUT, code.sha256, str(tmp_path / "out"))
    assert job.paths() == [LAYOUT.artifact(code.sha256)]
    upload(job.store, LAYOUT, code)
    unpack_artifact(job.store, LAYOUT, code.sha256, str(tmp_path / "again"))


def test_code_that_a_submission_names_since_its_age_was_asked_stays(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    path = job.pinned("a")
    job.driver()
    stat = job.store.stat

    def submits_meanwhile(asked: str) -> Any:
        found = stat(asked)
        if asked.startswith(path) and len(job.specs) == 1:
            job.submit(code="a")
        return found

    monkeypatch.setattr(job.store, "stat", submits_meanwhile)
    assert job.paths() == []
    assert job.store.exists(f"{path}/code.zip")
