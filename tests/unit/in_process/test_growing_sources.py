"""S4.3 in whole jobs: splits that appear while the job runs are read once, whatever happens between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from builders.growing_source import Growing, Shelf, ShelfEnumerator
from builders.sinks import new_sink_name
from fed_splits import passed

from tidegate.api.pipeline import Pipeline
from tidegate.connectors.interface import Boundedness, Discovery, SplitEnumerator
from tidegate.coordinator import events as ev
from tidegate.coordinator.enumeration import SplitsDiscovered
from tidegate.coordinator.job_run import RunEnded, RunFailed
from tidegate.coordinator.recovery.source_positions import judge_source
from tidegate.coordinator.split_search import SplitSearch
from tidegate.errors import OutageError, SnapshotError
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.batch import run_batch
from tidegate.testing.collect_sink import CollectSink, collected
from tidegate.testing.in_process_job import InProcessJob


class Job:
    """Reads a shelf, in order of arrival."""

    def __init__(
        self,
        boundedness: Boundedness = "bounded",
        open_splits: int | None = 1,
        after_finished: bool = False,
        **options: Any,
    ) -> None:
        self.shelf = Shelf()
        self.sink = new_sink_name()
        self.grows = True
        self._boundedness, self._open_splits, self._after_finished = boundedness, open_splits, after_finished
        self.options: dict[str, Any] = {"parallelism": 2, **options}
        self.job = InProcessJob(self._build, self.options)

    def _build(self) -> Pipeline:
        p = Pipeline()
        source = Growing(
            self.shelf,
            boundedness=self._boundedness,
            open_splits=self._open_splits,
            grows=self.grows,
            after_finished=self._after_finished,
        )
        p.read(source, uid="shelf").write(CollectSink(self.sink), uid="out")
        return p

    def rows(self) -> list[tuple[str, int]]:
        """What is committed."""
        return sorted((row["split"], row["n"]) for row in collected(self.sink).table().to_pylist())


def checkpoint(n: int) -> ev.SnapshotRequest:
    return ev.SnapshotRequest("checkpoint", request_id=f"c{n}")


def suspend(n: int = 0) -> ev.SnapshotRequest:
    return ev.SnapshotRequest("stop-savepoint", request_id=f"stop{n}", stop="suspend")


@pytest.mark.parametrize("open_splits", [None, 1, 3])
def test_splits_that_appear_while_the_job_runs_are_read_and_a_bounded_source_ends(open_splits: int | None) -> None:
    job = Job(open_splits=open_splits)
    job.shelf.rows |= {"a": 5, "b": 3}
    run = job.job.submit()
    passed(run, 200)
    job.shelf.rows |= {"c": 7, "d": 0, "e": 1}
    passed(run, 200)
    assert run.outcome is None, "more may come"
    job.shelf.closed = True
    assert isinstance(run.to_end(), RunEnded)
    assert job.rows() == sorted(job.shelf.everything())


def test_a_reader_whose_last_split_ends_with_its_last_batch_gets_the_next_one() -> None:
    """S4.3: it reports no end. It has no records at the next poll."""
    job = Job(parallelism=1)
    job.shelf.rows |= {"a": 4, "b": 4, "c": 4}
    job.shelf.closed, job.shelf.tells = True, False
    assert isinstance(job.job.submit().to_end(), RunEnded)
    assert job.rows() == sorted(job.shelf.everything())


def test_a_shelf_that_is_empty_and_closed_ends_the_job() -> None:
    job = Job()
    job.shelf.closed = True
    assert isinstance(job.job.submit().to_end(), RunEnded) and job.rows() == []


@pytest.mark.parametrize("rounds", range(0, 40, 3))
def test_a_job_that_crashes_anywhere_reads_every_split_once(rounds: int) -> None:
    """S4.3, S9.1: before and after the assignment, with splits that wait, and with some that no checkpoint knows."""
    job = Job()
    job.shelf.rows |= {f"s{k}": 5 for k in range(6)}
    run = job.job.submit()
    run.pump(4)
    run.run.handle_command(checkpoint(1))
    run.pump(rounds)
    job.shelf.rows |= {"late": 4}
    run.tick(100)
    run.pump(rounds // 3)
    run.crash()
    job.shelf.closed = True
    assert isinstance(job.job.rerun().to_end(), RunEnded)
    assert job.rows() == sorted(job.shelf.everything())


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 2)])
def test_a_rescaled_job_divides_the_splits_again(before: int, after: int) -> None:
    """S5.5: those with readers, with their positions, and those that wait."""
    job = Job(parallelism=before)
    job.shelf.rows |= {f"s{k}": 9 for k in range(7)}
    run = job.job.submit()
    run.pump(6)
    answer = run.ask(suspend())
    assert answer is None or answer.ok
    assert isinstance(run.outcome, RunEnded)
    half = job.rows()
    assert 0 < len(half) < len(job.shelf.everything())
    job.options["parallelism"] = after
    job.job.options = job.options
    job.shelf.rows |= {"new": 2}
    job.shelf.closed = True
    assert isinstance(job.job.submit(RestoreFrom(kind="latest")).to_end(), RunEnded)
    assert job.rows() == sorted(job.shelf.everything())


def test_a_batch_job_says_that_no_split_follows() -> None:
    """S8.1: a reader ends only then."""
    job = Job(parallelism=2)
    job.grows = False
    job.shelf.rows |= {"a": 5, "b": 3}
    run_batch(job._build, job.options)
    assert job.rows() == sorted(job.shelf.everything())


def test_a_stop_with_drain_leaves_later_splits_to_the_restored_job() -> None:
    """S7.5: it ends early. What no reader had is read after the restore."""
    job = Job()
    job.shelf.rows |= {f"s{k}": 9 for k in range(5)}
    run = job.job.submit()
    run.pump(6)
    run.run.handle_command(ev.SnapshotRequest("stop-savepoint", request_id="d", stop="drain"))
    assert isinstance(run.to_end(), RunEnded)
    job.shelf.closed = True
    restored = job.job.submit(RestoreFrom(kind="latest", allow_drained=True))
    assert isinstance(restored.to_end(), RunEnded)
    assert job.rows() == sorted(job.shelf.everything())


def test_a_search_that_the_system_does_not_answer_is_repeated() -> None:
    job = Job()
    job.shelf.fails = [OutageError("the broker does not answer"), OutageError("nor now")]
    run = job.job.submit()
    job.shelf.rows |= {"a": 2}
    passed(run, 400)
    job.shelf.closed = True
    assert isinstance(run.to_end(), RunEnded) and job.rows() == [("a", 0), ("a", 1)]


def test_any_other_error_of_an_enumerator_fails_the_run_and_names_the_source() -> None:
    job = Job()
    job.shelf.fails = [ValueError("a name that is no text")]
    outcome = job.job.submit().to_end()
    assert isinstance(outcome, RunFailed) and outcome.operator == "shelf"
    assert "ValueError: a name that is no text" in outcome.message


def test_readers_and_enumerators_hear_of_completed_checkpoints_with_their_positions() -> None:
    job = Job(boundedness="unbounded", parallelism=1)
    job.shelf.rows |= {"a": 9}
    run = job.job.submit()
    run.pump(4)
    run.ask(checkpoint(1))
    run.pump(4)
    (told,) = job.shelf.reader_completed
    assert told[0] == 1 and 0 < told[1]["a"] < 9
    assert job.shelf.enumerator_completed == [(1, 1)], "one split was discovered"
    job.shelf.rows |= {"b": 2}
    passed(run, 200)
    run.ask(ev.SnapshotRequest("savepoint", request_id="sp"))
    run.pump(4)
    assert len(job.shelf.reader_completed) == 1, "a savepoint is no recovery point (S2.4)"
    run.ask(checkpoint(3))
    run.pump(4)
    assert [n for n, _ in job.shelf.reader_completed] == [1, 3]
    assert job.shelf.enumerator_completed == [(1, 1), (3, 2)]


def test_with_a_commit_gate_they_hear_of_a_checkpoint_when_it_is_approved() -> None:
    """S7.8: a rejection takes the job back before it."""
    job = Job(boundedness="unbounded", parallelism=1, commit="on_request")
    job.shelf.rows |= {"a": 9}
    run = job.job.submit()
    run.pump(4)
    run.ask(checkpoint(1))
    run.pump(4)
    assert job.shelf.reader_completed == job.shelf.enumerator_completed == []
    run.run.handle_command(ev.Verdict("v", True, 1, "the auditor", "stop"))
    run.pump(8)
    assert [n for n, _ in job.shelf.reader_completed] == [1] and job.shelf.enumerator_completed == [(1, 1)]


@pytest.mark.parametrize("crashes", [True, False])
@pytest.mark.parametrize("open_splits", [None, 1])
def test_searches_can_wait_until_every_split_has_been_read(open_splits: int | None, crashes: bool) -> None:
    job = Job(open_splits=open_splits, after_finished=True)
    job.shelf.rows |= {f"s{k}": 7 for k in range(5)}
    run = job.job.submit()
    run.pump(3)
    job.shelf.rows |= {"later": 3}
    if crashes:
        run.run.handle_command(checkpoint(1))
        run.pump(9)
        run.crash()
        job.shelf.read.clear()
        run = job.job.rerun()
    passed(run, 300)
    job.shelf.rows |= {"last": 2}
    passed(run, 300)
    job.shelf.closed = True
    assert isinstance(run.to_end(), RunEnded)
    assert job.rows() == sorted(job.shelf.everything())
    if not crashes:
        assert len(job.shelf.unread) >= 4 and not any(job.shelf.unread), "of the splits known at each search"


@pytest.mark.parametrize(
    ("kept", "found", "expected"),
    [
        ({}, None, None),
        ({"a": 5_000}, None, "1970-01-01T00:00:05+00:00"),
        ({"a": 5_000, "b": 3_000}, None, "1970-01-01T00:00:03+00:00"),
        ({"a": 5_000}, 4_000, "1970-01-01T00:00:04+00:00"),
    ],
)
def test_a_snapshot_records_until_when_its_positions_can_be_read(
    kept: dict[str, int], found: int | None, expected: str | None
) -> None:
    """S4.2: the earliest time of all readers and of the enumerator."""
    job = Job(boundedness="unbounded")
    job.shelf.rows |= {"a": 90, "b": 90}
    job.shelf.kept_until_ms, job.shelf.found_until_ms = kept, found
    run = job.job.submit()
    run.pump(4)
    run.ask(checkpoint(1))
    run.pump(4)
    (complete,) = [d for d in job.job.generation_log.decisions if d.kind == "complete"]
    assert complete.data.get("readable_until") == expected


@pytest.mark.parametrize("lost", ["state", "waiting split", "nothing"])
def test_a_restore_is_refused_beforehand_if_the_enumerator_cannot_continue(lost: str) -> None:
    """S4.3, S9.3: its state, and the splits that no reader has yet, are checked before the first run."""
    job = Job(boundedness="unbounded")
    job.shelf.rows |= dict.fromkeys("abcd", 900)
    run = job.job.submit()
    run.pump(4)
    run.ask(suspend())
    run = job.job.submit(RestoreFrom(kind="latest"))
    run.crash()
    found = run._job.find_restore()
    assert found is not None
    waiting = found[1].metadata.enumerators["shelf"]["waiting"]
    assert waiting, "a split that no reader has"
    if lost == "nothing":
        run._job.check_sources(*found)
        return
    if lost == "state":
        job.shelf.forgotten = "the shelf was cleared"
    else:
        job.shelf.removed = {waiting[0]["split_id"]}
    with pytest.raises(SnapshotError, match="cannot continue") as caught:
        run._job.check_sources(*found)
    assert ("was cleared" if lost == "state" else "off the shelf") in caught.value.cause
    assert caught.value.remedy


@pytest.mark.parametrize("part", [{"state": None, "complete": False}, {"state": 4, "complete": True}])
def test_an_enumerator_that_has_not_begun_or_is_complete_is_not_checked(part: dict[str, Any]) -> None:
    source = Growing(Shelf(forgotten="the shelf was cleared"))
    assert judge_source("shelf", source, (), {**part, "waiting": []}) is None
    refused = judge_source("shelf", source, (), {"state": 4, "complete": False, "waiting": []})
    assert refused is not None and refused.verdict == "refused"


@pytest.mark.parametrize("grew", [True, False])
def test_a_source_that_begins_or_ceases_to_discover_splits_is_not_restored(grew: bool) -> None:
    """It would read its input again, or leave out what had no reader."""
    job = Job()
    job.shelf.rows |= {"a": 9, "b": 9, "c": 9}
    job.grows = grew
    run = job.job.submit()
    run.pump(5)
    run.ask(suspend())
    job.grows = not grew
    with pytest.raises(SnapshotError, match="while the job r"):
        job.job.submit(RestoreFrom(kind="latest"))


def test_readers_that_wait_for_splits_hold_no_watermark_back_and_poll_seldom() -> None:
    job = Job(boundedness="unbounded")
    run = job.job.submit()
    passed(run, 3_000)
    assert job.shelf.searches <= 31, "one each 100 ms"
    searched = job.shelf.searches
    job.shelf.rows |= {"a": 2}
    passed(run, 150)
    run.ask(checkpoint(1))
    run.pump(5)
    assert job.shelf.searches > searched and _ids(job.rows()) == {"a"}


def _ids(rows: Sequence[tuple[str, int]]) -> set[str]:
    return {split for split, _ in rows}


def test_splits_are_assigned_between_checkpoints_that_follow_each_other_without_a_pause() -> None:
    """S4.3: the last acknowledgement of one triggers the next."""
    job = Job(boundedness="unbounded", parallelism=1, checkpoint_interval="10 ms", max_concurrent_checkpoints=2)
    run = job.job.submit()
    run.writers.held = True
    run.tick(1_000)
    passed(run, 100)
    job.shelf.rows |= {"a": 4, "b": 4}
    for _ in range(60):
        run.writers.release()
        run.writers.held = True
        run.run.handle_command(ev.SnapshotRequest("checkpoint"))
        run.tick(20)
        run.pump(2)
    run.writers.release()
    run.ask(checkpoint(1))
    run.pump(4)
    assert job.rows() == sorted(job.shelf.everything())


def test_an_enumerator_may_change_its_state_after_a_search() -> None:
    """S4.3: the snapshot holds the state of the search."""

    class Changing(ShelfEnumerator):
        def __init__(self, shelf: Shelf, seen: dict[str, int]) -> None:
            super().__init__(shelf, len(seen))
            self.seen = seen

        def discover(self) -> Discovery:
            found = super().discover()
            self.seen |= {split.split_id: 1 for split in found.splits}
            return Discovery(found.splits, self.seen, found.complete)

    class Source(Growing):
        def create_enumerator(self, state: Any) -> SplitEnumerator:
            return Changing(self.shelf, dict(state or {}))

    shelf = Shelf({"a": 5})
    search = SplitSearch("shelf", Source(shelf), None)
    first = search.search()
    shelf.rows["b"] = 2
    search.search()
    assert isinstance(first, SplitsDiscovered) and first.state == {"a": 1}


@pytest.mark.parametrize("state", [{1, 2}, float("nan")], ids=str)
def test_a_state_that_is_not_json_fails_the_run_before_a_snapshot_needs_it(state: Any) -> None:
    class Stated(ShelfEnumerator):
        def discover(self) -> Discovery:
            return Discovery([], state)

    class Source(Growing):
        def create_enumerator(self, state: Any) -> SplitEnumerator:
            return Stated(self.shelf, 0)

    with pytest.raises((TypeError, ValueError), match="JSON"):
        SplitSearch("shelf", Source(Shelf()), None).search()
