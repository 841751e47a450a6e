"""The one checkpoint of a batch job, and drivers that die around it (S8.1, S7.4)."""

from __future__ import annotations

from typing import Any

import pytest
from batch_drivers import Drivers

from tidegate import PipelineError, SparkWriter
from tidegate.coordinator.batch_commit import refuse_restore, was_completed_before
from tidegate.coordinator.events import Verdict
from tidegate.coordinator.late_commit import commit_late
from tidegate.errors import FencedError
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.collect_sink import collected


def test_output_is_visible_when_the_checkpoint_is_complete_and_published_and_not_before() -> None:
    drivers = Drivers()
    job, commit = drivers.driver()
    commit.claim()
    told = drivers.staged(job, commit)
    assert drivers.visible() == []
    commit.complete(told, job.splits(None), 5)
    assert drivers.visible() == []
    commit.publish()
    commit.publish()
    assert drivers.visible() == list(range(100))
    assert commit.committed() == ()
    (view,) = drivers.view().checkpoints
    assert (view.kind, view.status, view.committed, view.sinks) == ("final", "completed", True, ("out",))
    assert [source.uid for source in drivers.view().sources if source.end_of_data] == ["numbers"]


def test_a_driver_that_dies_before_the_checkpoint_is_complete_leaves_nothing_and_its_successor_begins_anew() -> None:
    drivers = Drivers()
    job, commit = drivers.driver()
    commit.claim()
    drivers.staged(job, commit)
    staged = set(collected(drivers.name).staged)
    second, again = drivers.driver()
    assert was_completed_before(second.log.read(), 1) is None
    again.claim()
    assert again.checkpoint_id == 2
    told = drivers.staged(second, again)
    assert not staged & set(collected(drivers.name).staged), "what the first has staged is removed"
    again.complete(told, {}, 5)
    again.publish()
    assert drivers.visible() == list(range(100))
    with pytest.raises(FencedError):
        commit.complete([], {}, 5)


def test_a_driver_that_dies_behind_the_completion_is_followed_by_one_that_commits() -> None:
    drivers = Drivers()
    job, commit = drivers.driver()
    commit.claim()
    commit.complete(drivers.staged(job, commit), {}, 5)
    second, again = drivers.driver()
    found = was_completed_before(second.log.read(), 1)
    assert found is not None
    again.checkpoint_id, again.path = found
    again.publish()
    assert again.committed() == ()
    assert drivers.visible() == list(range(100))
    assert drivers.view().checkpoints[0].committed


def test_a_gated_batch_job_waits_for_its_verdict_and_is_committed_without_running() -> None:
    """S7.8."""
    drivers = Drivers({"commit": "on_request"})
    job, commit = drivers.driver()
    commit.claim()
    commit.complete(drivers.staged(job, commit), job.splits(None), 5)
    commit.publish()
    assert commit.committed() == (1,)
    job.status("FINISHED_COMMIT_PENDING", uncommitted=[1])
    assert drivers.visible() == []
    late, _ = drivers.driver()
    result = commit_late(late, "late", Verdict("c", True, 1, "test"))
    assert (result.committed, result.waiting) == (1, ())
    assert drivers.visible() == list(range(100))
    assert drivers.view().status.value == "FINISHED"


def test_what_a_driver_left_behind_its_completion_is_committed_without_running() -> None:
    """S7.4: the snapshot is complete, which permits it; a driver that comes after all finds nothing to do."""
    drivers = Drivers()
    job, commit = drivers.driver()
    commit.claim()
    told = drivers.staged(job, commit)
    drivers.staged(job, commit, attempt=2)
    commit.complete(told, job.splits(None), 5)
    job.status("FAILED", reason="no disk")
    result = commit_late(drivers.driver(only_commits=True)[0], "late")
    assert (result.committed, result.waiting, result.uncommitted) == (1, (), ())
    collected(drivers.name).assert_exactly([(n,) for n in range(100)])
    view = drivers.view()
    assert view.status.value == "FAILED" and view.checkpoints[0].committed
    assert not collected(drivers.name).staged, "what a task had staged that Spark ran twice"
    entries = len(drivers.decisions())
    assert commit_late(drivers.driver(only_commits=True)[0], "again") == result
    assert len(drivers.decisions()) == entries + 1, "but for its fence"
    second, again = drivers.driver()
    found = was_completed_before(second.log.read(), 1)
    assert found is not None
    again.checkpoint_id, again.path = found
    again.publish()
    assert again.committed() == () and drivers.visible() == list(range(100))


@pytest.mark.parametrize("options", [{}, {"commit": "on_request"}], ids=["at once", "gated"])
def test_what_a_task_staged_that_spark_ran_twice_goes_with_the_commit_and_what_counts_stays(
    options: dict[str, Any],
) -> None:
    """S7.4: a job that has ended has no next run that would remove it."""
    drivers = Drivers(options)
    job, commit = drivers.driver()
    commit.claim()
    drivers.staged(job, commit)
    told = drivers.staged(job, commit, attempt=2)
    drivers.staged(job, commit, attempt=3)
    assert len(collected(drivers.name).staged) == 9
    commit.complete(told, job.splits(None), 5)
    commit.publish()
    assert len(collected(drivers.name).staged) == (3 if options else 0)
    assert drivers.visible() == ([] if options else list(range(100)))
    if options:
        job.status("FINISHED_COMMIT_PENDING", uncommitted=list(commit.committed()))
        commit_late(drivers.driver()[0], "late", Verdict("c", True, 1, "test"))
    collected(drivers.name).assert_exactly([(n,) for n in range(100)])
    assert not collected(drivers.name).staged


def test_a_run_that_fails_aborts_what_it_had_claimed() -> None:
    drivers = Drivers()
    _, commit = drivers.driver()
    commit.claim()
    commit.abort("a stage failed")
    assert [(c.status, c.reason) for c in drivers.view().checkpoints] == [("aborted", "a stage failed")]


def test_a_batch_job_starts_from_no_snapshot() -> None:
    job, _ = Drivers(restore=RestoreFrom("latest")).driver()
    with pytest.raises(PipelineError, match="cannot start from a snapshot"):
        refuse_restore(job)


@pytest.mark.parametrize("options", [{"execution_mode": "streaming"}, {"commit": "on_request"}])
def test_a_writer_of_spark_is_refused_where_it_cannot_commit(options: dict[str, Any]) -> None:
    drivers = Drivers(sink=lambda name: SparkWriter(format="parquet", path=f"/tmp/{name}"))
    drivers.given = JobOptions(**{"parallelism": 3, "execution_mode": "batch", **options})
    with pytest.raises(PipelineError, match="sink 'out' at .*batch_drivers.py"):
        drivers.driver()
