"""S9.3, S7.4 in whole jobs: back to an older snapshot of the own lineage, with rows refused, repeated or taken back;
what becomes of the timeline that was left, and of the original of a fork."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders.sinks import new_sink_name

from tidegate.api.pipeline import Pipeline
from tidegate.connectors.datagen import DataGen
from tidegate.connectors.files.sink.parquet import Parquet
from tidegate.connectors.interface import Sink, Source
from tidegate.connectors.transactions import Committable, SinkContext, parse_transaction_id
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.errors import FencedError, PipelineError, SnapshotError, StoreError
from tidegate.jobs.artifacts.pinned_graph import PinnedGraph, write_pinned_graph
from tidegate.jobs.records import RestoreFrom, encode
from tidegate.jobs.status import derive
from tidegate.subtask.chain import OperatorFailure
from tidegate.testing.collect_sink import Collection, CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob

ROWS = 4_000
SCHEMA = pa.schema([("v", pa.int64())])
_ids = itertools.count(1)


def numbers_into(sinks: dict[str, Sink]) -> Pipeline:
    p = Pipeline()
    numbers = p.read(DataGen(lambda n: {"v": n}, SCHEMA, rows=ROWS, splits=2, batch_rows=8), uid="numbers")
    for uid, sink in sinks.items():
        numbers.write(sink, uid=uid)
    return p


class Traveller:
    """A job into a collection, and its newest run."""

    def __init__(self, sinks: dict[str, Sink] | None = None, **options: Any) -> None:
        self.name = new_sink_name()
        self.sinks = sinks or {"out": CollectSink(self.name)}
        given = {"parallelism": 2, "retained_checkpoints": 9, **options}
        self.job = InProcessJob(lambda: numbers_into(self.sinks), given)
        self.run = self.job.submit()

    @property
    def shown(self) -> Collection:
        return collected(self.name)

    @property
    def values(self) -> list[int]:
        return sorted(row["v"] for row in self.shown.table().to_pylist())

    def snapshot(self, kind: Any = "checkpoint") -> int:
        """Of some more rows than before."""
        self.run.pump(4)
        answer = self.run.ask(ev.SnapshotRequest(kind, request_id=f"q{next(_ids)}"))
        assert answer is not None and answer.ok, answer
        self.run.pump(10)
        return int(answer.data["checkpoint_id"])

    def back_to(self, n: int, mode: Any = "refuse", kind: Any = "checkpoint") -> None:
        path = next(
            d.data["path"] for d in self.job.log.read() if d.kind == "complete" and d.data["checkpoint_id"] == n
        )
        self.run = self.job.submit(RestoreFrom(kind, path, n, on_committed_after=mode))

    def decided(self, kind: str) -> list[int]:
        return [d.data["checkpoint_id"] for d in self.job.log.read() if d.kind == kind]

    def to_end(self) -> None:
        assert isinstance(self.run.to_end(), RunEnded)

    def transactions(self) -> list[int]:
        """Checkpoints of which rows are shown."""
        return sorted({parse_transaction_id(t).checkpoint_id for t in self.shown.committed})


@pytest.mark.parametrize("kind", ["checkpoint", "savepoint"])
def test_rows_behind_the_snapshot_are_taken_back_and_come_once(kind: str) -> None:
    """S9.3: to a checkpoint or an intermediate savepoint; rows that the savepoint holds are not lost."""
    job = Traveller()
    job.snapshot()
    n = job.snapshot(kind)
    before = job.values
    later = [job.snapshot(), job.snapshot()]
    assert len(job.values) > len(before) and job.transactions()[-1] == later[-1]
    job.run.crash()
    job.back_to(n, "rewind", kind)
    assert job.decided("rewind") == [n] and job.transactions()[-1] <= n
    assert len(job.values) >= len(before)
    again = job.snapshot()
    assert again > later[-1], "ids are never used again"
    job.to_end()
    assert job.values == list(range(ROWS))
    assert all(times == 1 for t, times in job.shown.publications.items() if t in job.shown.committed)


def test_a_job_that_has_finished_can_be_taken_back() -> None:
    """S9.3: its final snapshot is behind the checkpoint; the next latest is that of the new line."""
    job = Traveller()
    one = job.snapshot()
    job.to_end()
    assert job.values == list(range(ROWS))
    job.back_to(one, "rewind")
    assert 0 < len(job.values) < ROWS
    view = derive(job.job.specs, job.job.log.read(), None)
    assert view.latest_recovery_point.checkpoint_id == one
    assert [c.checkpoint_id for c in view.completed if c.taken_back] == [2]
    job.to_end()
    assert job.values == list(range(ROWS))


class Failing(CollectSink):
    """Fails to take anything back, as often as it is told to."""

    failures = 0

    def rewind_to(self, *args: Any, **more: Any) -> Callable[[], None]:
        take_back = super().rewind_to(*args, **more)

        def failing() -> None:
            if self.failures:
                self.failures -= 1
                raise OSError("the disk is full")
            take_back()

        return failing


@pytest.mark.parametrize("who", ["run", "driver", "submission"])
def test_a_rewind_that_failed_half_way_is_repeated_by_whoever_comes_next(who: str) -> None:
    """S9.3: the next run of this driver, the next driver, or the next submission, which does not ask for it."""
    first, second = new_sink_name(), new_sink_name()
    failing = Failing(second)
    job = Traveller({"out": CollectSink(first), "copy": failing})
    one = job.snapshot()
    job.snapshot()
    job.run.crash()
    failing.failures = 1
    with pytest.raises(
        StoreError, match="'copy' could not delete its output after snapshot 1 .*OSError: the disk is full"
    ):
        job.back_to(one, "rewind")
    assert len(collected(first).rows()) < len(collected(second).rows())
    again = {
        "run": job.job.rerun,
        "driver": job.job.relaunch,
        "submission": lambda: job.job.submit(RestoreFrom("latest")),
    }
    job.run = again[who]()
    assert len(collected(first).rows()) == len(collected(second).rows())
    job.to_end()
    assert job.decided("rewind") == [one]
    for name in (first, second):
        assert sorted(collected(name).rows()) == [(v,) for v in range(ROWS)]


class Unable(CollectSink):
    """Finds out late that it cannot."""

    def rewind_to(self, *args: Any, **more: Any) -> Callable[[], None]:
        raise SnapshotError("readers took the rows", remedy="Ask them")


def test_a_sink_that_cannot_stops_the_rewind_before_another_is_changed() -> None:
    """S9.3: nothing is in the log, so nothing is unreachable."""
    name = new_sink_name()
    job = Traveller({"out": CollectSink(name), "copy": Unable(f"{name}-copy")})
    one = job.snapshot()
    job.snapshot()
    rows = len(collected(name).rows())
    job.run.crash()
    with pytest.raises(SnapshotError, match="readers took the rows"):
        job.back_to(one, "rewind")
    assert len(collected(name).rows()) == rows and job.decided("rewind") == []
    job.back_to(2)
    job.to_end()
    assert sorted(collected(name).rows()) == [(v,) for v in range(ROWS)]


def test_what_was_taken_back_cannot_be_restored() -> None:
    """S9.3: neither where it is nor from a copy of its folder, in no way."""
    job = Traveller()
    one = job.snapshot()
    job.snapshot()
    saved = job.snapshot("savepoint")
    path = next(d.data["path"] for d in job.job.log.read() if d.kind == "complete" and d.data["checkpoint_id"] == saved)
    for name in job.job.store.list(path):
        job.job.store.create(f"elsewhere/copy/{name}", job.job.store.read(f"{path}/{name}"))
    job.run.crash()
    job.back_to(one, "rewind")
    job.snapshot()
    job.run.crash()
    for mode in ("refuse", "rewind", "accept_duplicates"):
        with pytest.raises(SnapshotError, match="sinks have deleted the output that it had committed"):
            job.back_to(saved, mode, "savepoint")
        with pytest.raises(
            SnapshotError,
            match="elsewhere/copy cannot be restored: sinks have deleted the output that it had committed",
        ):
            job.job.submit(RestoreFrom("savepoint", path="elsewhere/copy", on_committed_after=mode))


def test_a_driver_that_was_replaced_decides_no_rewind() -> None:
    """S9.2: it comes late, and changes nothing."""
    job = Traveller()
    one = job.snapshot()
    job.snapshot()
    job.run.crash()
    rows = job.values
    old_reign = job.job.generation_log
    job.job.submit(RestoreFrom("latest"))
    restore = RestoreFrom("checkpoint", None, one, on_committed_after="rewind")
    job.job.specs[-1] = job.job._spec = replace(job.job.specs[-1], restore=restore)
    job.job.generation_log = old_reign
    with pytest.raises(FencedError):
        job.job.rerun()
    assert job.values == rows and job.decided("rewind") == []


def test_accepted_duplicates_are_the_rows_of_the_checkpoints_that_are_told() -> None:
    """S9.3: those rows twice, all others once."""
    job = Traveller()
    one = job.snapshot()
    until = set(job.values)
    job.snapshot(), job.snapshot()
    passed = set(job.values) - until
    job.run.crash()
    with pytest.raises(SnapshotError, match=r"checkpoints \[2, 3\] were completed after .*sinks out"):
        job.back_to(one)
    job.back_to(one, "accept_duplicates")
    job.to_end()
    times = Counter(job.values)
    assert {v for v, count in times.items() if count == 2} == passed and set(times) == set(range(ROWS))


def test_who_was_refused_is_told_what_to_restore_by_its_id() -> None:
    """S9.3: "the latest" of the refused submission is what it names, and so it is for the next one."""
    job = Traveller()
    one = job.snapshot()
    job.snapshot()
    newest = job.snapshot()
    job.run.crash()
    for way in (lambda: job.back_to(one), lambda: job.job.submit(RestoreFrom("latest"))):
        with pytest.raises(SnapshotError, match=f"Restore snapshot {newest}, or set on_committed_after=rewind"):
            way()
    job.back_to(newest)
    job.to_end()
    assert job.values == list(range(ROWS))


def test_transactions_of_a_timeline_that_was_left_are_removed_and_never_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S7.4: completed, not yet committed when people went back past it; one who wants it after all is told loudly
    that its rows are lost."""
    job = Traveller()
    one = job.snapshot()
    with monkeypatch.context() as failing:

        def publish(_: Collection, transaction: str) -> None:
            raise OSError("not now")

        failing.setattr(Collection, "publish", publish)
        with pytest.raises(OperatorFailure, match="not now"):
            job.snapshot()
    job.run.crash()
    left = set(job.shown.staged)
    assert job.decided("complete") == [1, 2] and left
    job.back_to(one, "accept_duplicates")
    job.snapshot()
    assert not left & (set(job.shown.staged) | set(job.shown.committed))
    job.run.crash()
    with pytest.raises(OperatorFailure, match="transaction are lost"):
        job.back_to(2, "accept_duplicates")


@pytest.mark.parametrize("approved", [0, 2, 3])
def test_behind_a_gate_a_rewind_takes_back_what_was_approved_and_drops_the_rest(approved: int) -> None:
    """S7.8, S9.3: going back past approved, rejected and waiting checkpoints; later words on them do nothing."""
    job = Traveller(commit="on_request", max_uncommitted_checkpoints=10)

    def say(approves: bool, n: int, then: ev.Then = "replay") -> ev.CommandAnswer:
        request_id = f"v{next(_ids)}"
        job.run.run.handle_command(ev.Verdict(request_id, approves, n, "anna", then))
        job.run.pump(20)
        return job.job.answers[request_id]

    one = job.snapshot()
    assert say(True, one).ok
    first = job.values
    job.snapshot(), job.snapshot(), job.snapshot()
    if approved:
        assert say(True, approved).ok
    assert say(False, 4).ok
    job.run.slot.close()
    job.back_to(one, "rewind")
    assert job.decided("rewind") == ([one] if approved else [])
    assert job.values == first
    assert say(True, 3).code == "abandoned" and say(True, 4).code == "rejected"
    five = job.snapshot()
    assert say(True, five).ok and job.transactions()[-1] == five
    assert len(job.values) == len(set(job.values))
    view = derive(job.job.specs, job.job.log.read(), None)
    assert view.checkpoint(five).committed and not view.checkpoint(2).committed


def test_a_fork_of_what_was_taken_back_commits_and_removes_nothing_of_its_original() -> None:
    """S7.4, S9.3: a savepoint belongs to the user; as another job's beginning it is as good as before."""
    job = Traveller()
    one = job.snapshot()
    saved = job.snapshot("savepoint")
    path = next(d.data["path"] for d in job.job.log.read() if d.kind == "complete" and d.data["checkpoint_id"] == saved)
    job.snapshot()
    job.run.crash()
    job.back_to(one, "rewind")
    rows, staged = job.values, set(job.shown.staged)
    sinks: dict[str, Sink] = {"out": CollectSink(f"{job.name}-fork")}
    fork = InProcessJob(
        lambda: numbers_into(sinks), {"parallelism": 2}, job_id="fork", lineage="fork", root=job.job.root
    )
    assert isinstance(fork.submit(RestoreFrom("savepoint", path=path)).to_end(), RunEnded)
    assert job.values == rows and set(job.shown.staged) == staged
    forked = {row["v"] for row in collected(f"{job.name}-fork").table().to_pylist()}
    assert forked and 0 not in forked, "what the original had read before is not its own to write"


def test_files_that_readers_see_are_taken_back(tmp_path: Path) -> None:
    """S9.3: with the sink that people use."""

    job = Traveller({"out": Parquet(tmp_path)})
    one = job.snapshot()
    job.snapshot()
    job.run.crash()
    there = {path.name for path in tmp_path.glob("*.parquet")}
    job.back_to(one, "rewind")
    left = {path.name for path in tmp_path.glob("*.parquet")}
    assert left < there and left
    job.to_end()
    found = [v for path in tmp_path.glob("*.parquet") for v in pq.read_table(path).column("v").to_pylist()]
    assert sorted(found) == list(range(ROWS))


def test_handles_that_the_snapshot_holds_are_committed_after_the_rewind(monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.4, S9.3: a savepoint's are; the sink is told to keep them."""
    kept: list[Committable] = []
    real = CollectSink.rewind_to

    def spy(self: CollectSink, ctx: SinkContext, n: int, pending: Any = (), **more: Any) -> Callable[[], None]:
        kept.extend(pending)
        return real(self, ctx, n, pending, **more)

    monkeypatch.setattr(CollectSink, "rewind_to", spy)
    job = Traveller()
    saved = job.snapshot("savepoint")
    job.snapshot()
    job.run.crash()
    job.back_to(saved, "rewind", "savepoint")
    assert {parse_transaction_id(c.transaction_id).checkpoint_id for c in kept} == {saved}
    assert {c.transaction_id for c in kept} <= set(job.shown.committed)
    job.to_end()
    assert job.values == list(range(ROWS))


class TestForkBeside:
    """S7.4: a fork that was asked for as one, by its job's name."""

    @pytest.fixture
    def original(self) -> Traveller:
        job = Traveller()
        job.snapshot()
        return job

    def fork(self, original: Traveller, sink: Sink, source: Source | None = None, job_id: str = "fork") -> InProcessJob:
        def build() -> Pipeline:
            p = Pipeline()
            numbers = source or DataGen(lambda n: {"v": n}, SCHEMA, rows=ROWS, splits=2, batch_rows=8)
            p.read(numbers, uid="numbers").write(sink, uid="out")
            return p

        return InProcessJob(build, {"parallelism": 2}, job_id=job_id, lineage=job_id, root=original.job.root)

    def beginning(self, original: Traveller, kind: Any = "savepoint") -> RestoreFrom:
        saved = original.snapshot(kind)
        done = [d.data for d in original.job.log.read() if d.kind == "complete"]
        path = next(data["path"] for data in done if data["checkpoint_id"] == saved)
        return RestoreFrom("savepoint", path=path, fork_of="job")

    def test_it_works_off_the_rest_and_leaves_its_original_alone(self, original: Traveller) -> None:
        """S7.4."""
        restore = self.beginning(original)
        rows, staged, log = original.values, set(original.shown.staged), original.job.log.read()
        fork = self.fork(original, CollectSink(f"{original.name}-fork"))
        assert isinstance(fork.submit(restore).to_end(), RunEnded)
        forked = [row["v"] for row in collected(f"{original.name}-fork").table().to_pylist()]
        assert max(forked) == ROWS - 1 and len(forked) == len(set(forked)) < ROWS
        assert original.values == rows and set(original.shown.staged) == staged
        assert original.job.log.read() == log, "not an entry in the original's log"
        original.to_end()
        assert original.values == list(range(ROWS)), "which goes on as if there were no fork"

    def test_the_live_sink_is_refused_before_a_slot_starts(self, original: Traveller) -> None:
        restore = self.beginning(original)
        with pytest.raises(
            PipelineError, match="sink 'out' of the fork writes to the same place as sink 'out' of the original"
        ):
            self.fork(original, original.sinks["out"]).submit(restore)

    @pytest.mark.parametrize("ended", [None, "refused"])
    def test_a_sink_that_the_original_has_had_since_its_last_checkpoint_is_refused(
        self, original: Traveller, ended: str | None
    ) -> None:
        """S7.4: it runs, and has completed nothing with that sink; unless it never ran."""
        restore = self.beginning(original)
        job, moved = original.job, CollectSink(f"{original.name}-moved")
        later = replace(job.specs[-1], number=len(job.specs) + 1, submission_id="moved", restore=RestoreFrom("latest"))
        for spec in (*job.specs, later):
            job.store.create(job.layout.spec(spec.number), encode(spec))
        write_pinned_graph(
            job.store, job.layout, PinnedGraph(later.number, 2, 128, {}, "now", {"out": moved.describe()})
        )
        generation_log = job.log.begin_generation(spec=later.number, launch=9)
        if ended is not None:
            generation_log.append("failure", {"message": "no", "code": "snapshot"})
            generation_log.append("status", {"status": "FAILED"})
            assert isinstance(self.fork(original, moved).submit(restore).to_end(), RunEnded)
            return
        with pytest.raises(
            PipelineError, match=f"to the same place as sink 'out of submission {later.number}' of the original"
        ):
            self.fork(original, moved).submit(restore)
        with pytest.raises(PipelineError, match="to the same place as sink 'out' of the original"):
            self.fork(original, original.sinks["out"]).submit(restore)

    def test_the_live_sink_is_refused_to_a_fork_of_a_fork(self, original: Traveller) -> None:
        """S7.4: "its original" is whatever it stems from."""
        fork = self.fork(original, CollectSink(f"{original.name}-fork"))
        fork.submit(self.beginning(original)).to_end()
        fork.store.create(fork.layout.spec(1), encode(fork.specs[0]))
        path = next(d.data["path"] for d in fork.log.read() if d.kind == "complete")
        again = self.fork(original, original.sinks["out"], job_id="again")
        with pytest.raises(PipelineError, match="writes to the same place as sink 'out of job' of the original"):
            again.submit(RestoreFrom("savepoint", path=path, fork_of="fork"))

    def test_an_unbounded_source_is_refused_before_a_slot_starts(self, original: Traveller) -> None:
        endless = DataGen(lambda n: {"v": n}, SCHEMA, rows=None, splits=2, batch_rows=8)
        with pytest.raises(PipelineError, match="these sources are unbounded: 'numbers'"):
            self.fork(original, CollectSink("x"), endless).submit(self.beginning(original))

    def test_a_restored_fork_is_held_to_the_same(self, original: Traveller) -> None:
        sinks: list[Sink] = [CollectSink(f"{original.name}-fork")]
        fork = self.fork(original, sinks[0])
        fork.submit(self.beginning(original)).to_end()
        fork.build = self.fork(original, original.sinks["out"]).build
        with pytest.raises(PipelineError, match="writes to the same place as"):
            fork.submit(RestoreFrom("latest", fork_of="job"))
