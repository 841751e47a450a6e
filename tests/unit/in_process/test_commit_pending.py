"""S7.8: what is approved is committed with no job running, whatever happens in between."""

from __future__ import annotations

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from test_commit_gate_jobs import Gated, endless
from test_quarantine_jobs import rows_of

from tidegate.cli.verdicts.pending_commits import _checked
from tidegate.coordinator.driver_job import DriverJob
from tidegate.coordinator.events import Then, Verdict
from tidegate.coordinator.job_run import RunEnded
from tidegate.coordinator.late_commit import LateCommitResult, commit_late, last_status, status_after_commit
from tidegate.errors import CommandRefusedError, FencedError, StoreError
from tidegate.jobs.history.verdicts import Verdicts, find_verdicts
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import RestoreFrom
from tidegate.jobs.status import derive
from tidegate.plan.execution_plan import make_execution_plan
from tidegate.testing.collect_sink import collected

_ids = itertools.count()


def bounded(sink: str) -> Any:
    return endless(sink, rows=64)


def ended(job: Gated, **more: Any) -> Gated:
    """As the driver says it."""
    outcome = job.run.outcome
    assert isinstance(outcome, RunEnded)
    status = {"status": "FINISHED_COMMIT_PENDING", "uncommitted": list(outcome.uncommitted)}
    if outcome.stop is not None:
        stop = {"outcome": "commits_pending", "mode": outcome.stop, "uncommitted": list(outcome.uncommitted)}
        status = {"status": "STOPPED", "stop": stop}
    job.job.generation_log.append("status", status)
    return job


def finished() -> Gated:
    job = Gated(bounded)
    job.run.to_end()
    return ended(job)


def word(n: int | None, then: Then | None = None) -> Verdict:
    return Verdict(f"late-{next(_ids)}", then is None, n, "anna", then or "stop", "wrong prices" if then else "")


def commit(job: Gated, ruling: Verdict | None = None) -> LateCommitResult:
    """As `tidegate commit-pending` does, without its artifact."""
    owner = job.job
    spec = owner.specs[-1]
    graph = owner.build().build()
    options = JobOptions.from_mapping(spec.options)
    log = owner._open_log()
    late = DriverJob(
        root=owner.root,
        storage_options={},
        store=owner.store,
        layout=owner.layout,
        spec=spec,
        options=options,
        graph=graph,
        plan=make_execution_plan(graph, options.parallelism, options.max_parallelism),
        log=log,
        generation_log=log.begin_generation(spec=spec.number, launch=1, only_commits=True),
        now_iso=owner.now_iso,
        specs=lambda: owner.specs,
    )
    return commit_late(late, "commit-1", ruling)


def view(job: Gated) -> Any:
    return derive(job.job.specs, job.job._open_log().read(), None)


def test_a_job_that_has_finished_is_committed_and_says_so() -> None:
    """S7.8."""
    job = finished()
    assert job.shown == 0 and view(job).status == "FINISHED_COMMIT_PENDING"
    result = commit(job, word(None))
    assert job.shown == 64 and result.waiting == result.uncommitted == () and result.committed
    assert view(job).status == "FINISHED" and view(job).checkpoint(result.committed).committed
    assert commit(job) == result and job.shown == 64


def test_a_job_that_was_stopped_is_committed_in_two_steps_and_goes_on() -> None:
    """S7.8: what still waits stays, for whoever commits next; the job goes on behind a fence of its own."""
    job = Gated()
    job.checkpoint(), job.checkpoint()
    job.stop()
    ended(job)
    assert view(job).waiting == (1, 2, 3)
    first = commit(job, word(2))
    shown = job.shown
    assert shown and (first.committed, first.waiting) == (2, (3,))
    assert view(job).status == "STOPPED" and view(job).stop["uncommitted"] == [3]
    assert commit(job, word(3)).waiting == () and job.shown > shown
    assert view(job).stop == {"outcome": "committed", "mode": "suspend"}
    job.again(RestoreFrom("latest"))
    job.approve(job.checkpoint())
    assert job.shown > shown


def test_with_nothing_left_to_commit_no_snapshot_is_needed() -> None:
    """S7.8: as after a cancel with retention=delete, when a call has died before it said that all is done."""
    job = finished()
    done = commit(job, word(None))
    job.job.generation_log = job.job._open_log().begin_generation(spec=1, launch=1)
    ended(job)
    job.job.store.delete_folder(job.job.layout.checkpoints)
    assert commit(job) == done and view(job).status == "FINISHED"


def test_nothing_that_is_not_approved_is_committed() -> None:
    """S7.8."""
    job = finished()
    entries = len(job.job._open_log().read())
    result = commit(job)
    assert job.shown == 0 and result.committed == 0 and result.waiting
    assert len(job.job._open_log().read()) == entries + 1, "but for its fence"


def test_what_was_approved_before_a_driver_died_is_committed_and_the_job_is_as_it_was() -> None:
    """S7.8, S9.2: the dead driver decides nothing any more."""
    job = Gated()
    job.job.generation_log.append("status", {"status": "RUNNING"})
    job.checkpoint(), job.checkpoint()
    job.run.writers.held = True
    job.approve(1)
    assert job.shown == 0
    job.run.slot.close()
    assert commit(job).committed == 1 and job.shown > 0
    assert view(job).status == "RUNNING" and view(job).waiting == (2,)
    with pytest.raises(FencedError):
        job.job.generation_log.append("status", {"status": "FAILED"})
    job.again()
    assert job.view.waiting == (2,)
    job.approve(job.checkpoint())


def test_its_fence_does_not_change_what_the_job_is() -> None:
    """S7.8: while it works, and when it dies on the way."""
    job = finished()
    job.job._open_log().begin_generation(spec=1, launch=1, only_commits=True)
    assert view(job).status == "FINISHED_COMMIT_PENDING" and view(job).is_terminal
    job.job._open_log().begin_generation(spec=1, launch=1)
    assert view(job).status == "RESTARTING"


@pytest.mark.parametrize("dies_at", range(6))
def test_it_may_die_anywhere_and_be_repeated(monkeypatch: pytest.MonkeyPatch, dies_at: int) -> None:
    """S7.8: after the fence, at the verdict, between two transactions, before "committed", before the status."""
    job = finished()
    steps = iter(range(100))
    with monkeypatch.context() as broken:
        for target, name in ((type(job.job.generation_log), "append"), (type(collected(job.sink)), "publish")):
            real = getattr(target, name)

            def step(*args: Any, _real: Any = real, **more: Any) -> Any:
                if next(steps) == dies_at:
                    raise StoreError("dies here")
                return _real(*args, **more)

            broken.setattr(target, name, step)
        died = False
        try:
            commit(job, word(None))
        except StoreError:
            died = True
    assert died or dies_at > 4
    result = commit(job, word(None) if view(job).waiting else None)
    assert job.shown == 64 and result.uncommitted == () and view(job).status == "FINISHED"


def test_what_is_rejected_late_goes_to_quarantine_and_the_rest_is_committed() -> None:
    """S7.8: in a job that has ended; a call that died before the move is repeated."""
    job = Gated()
    job.checkpoint(), job.checkpoint()
    job.stop()
    ended(job)
    assert commit(job, word(2, "quarantine")).waiting == (1,)
    assert rows_of(job, "quarantined") and view(job).checkpoint(3).verdict == "quarantined"
    result = commit(job, word(1))
    assert result.uncommitted == () and rows_of(job, "committed") and view(job).stop["outcome"] == "committed"
    assert not set(rows_of(job, "committed")) & set(rows_of(job, "quarantined"))
    assert not collected(job.sink).staged


def test_what_is_rejected_late_and_for_good_stops_the_job_in_front_of_it() -> None:
    """S7.8."""
    job = Gated()
    job.checkpoint(), job.checkpoint()
    job.stop()
    ended(job)
    commit(job, word(2, "stop"))
    assert view(job).status == "STOPPED" and view(job).reason == "checkpoint 2 was rejected by anna: wrong prices"
    assert view(job).latest_recovery_point.checkpoint_id == 1 and view(job).waiting == (1,)


@pytest.mark.parametrize("rejected", [1, 2])
@pytest.mark.parametrize("again", [False, True])
def test_a_rejection_whose_call_died_before_it_said_so_stops_the_job_all_the_same(
    monkeypatch: pytest.MonkeyPatch, rejected: int, again: bool
) -> None:
    """S7.8: said by the next call, whether or not it rejects once more; the rest is still committed later, and the job
    is not called finished for it."""
    job = Gated(lambda sink: endless(sink, rows=2_000))
    job.checkpoint()
    job.run.to_end()
    ended(job)
    last = max(view(job).waiting)
    real = type(job.job.generation_log).append

    def append(generation_log: Any, kind: str, data: Any, *more: Any) -> Any:
        if kind == "status":
            raise StoreError("dies here")
        return real(generation_log, kind, data, *more)

    with monkeypatch.context() as broken:
        broken.setattr(type(job.job.generation_log), "append", append)
        with pytest.raises(StoreError):
            commit(job, word(rejected, "stop"))
    assert view(job).status == "FINISHED_COMMIT_PENDING" and last > 1
    told, why = last_status(job.job._open_log().read(), 1)
    assert status_after_commit(told, find_verdicts(job.job.specs, job.job._open_log().read(), 1), why)
    commit(job, word(rejected, "stop") if again else None)
    assert (
        view(job).status == "STOPPED"
        and view(job).reason == f"checkpoint {rejected} was rejected by anna: wrong prices"
    )
    if rejected > 1:
        commit(job, word(None))
        assert view(job).status == "STOPPED" and view(job).uncommitted == () and 0 < job.shown < 2_000


def test_a_submission_that_comes_while_it_begins_is_not_fenced_off_in_its_name() -> None:
    """S9.2, S7.8: it goes on with the submission that it has looked at; whoever comes later fences it off."""
    job = finished()
    seen = view(job)
    specs = [*job.job.specs, replace(job.job.specs[0], number=2, restore=RestoreFrom("latest"))]
    client: Any = SimpleNamespace(
        job_id="job", view=lambda: seen, specs=lambda: specs, spec=lambda n: specs[n - 1], decisions=job.job.log.read
    )
    assert _checked(client).spec == 1


def test_a_verdict_that_cannot_be_given_is_refused_and_nothing_changes() -> None:
    """S7.8."""
    job = finished()
    with pytest.raises(CommandRefusedError, match="there is no checkpoint 9"):
        commit(job, word(9))
    assert job.shown == 0 and view(job).status == "FINISHED_COMMIT_PENDING"


def test_a_status_that_says_so_already_is_not_said_again() -> None:
    job = finished()
    job.job.log = job.job._open_log()
    told = job.job.log.read()[-1].data
    assert status_after_commit(told, _verdicts(job)) is None
    assert status_after_commit({"status": "FAILED"}, _verdicts(job), "rejected") is None
    assert status_after_commit({}, _verdicts(job)) is None


def _verdicts(job: Gated) -> Verdicts:

    return find_verdicts(job.job.specs, job.job.log.read(), 1)


def test_of_what_went_to_quarantine_long_ago_no_snapshot_is_needed(caplog: pytest.LogCaptureFixture) -> None:
    """S7.8: as after a cancel with retention=delete; a run has moved it."""
    job = Gated()
    job.checkpoint()
    assert job.say(False, 1, "quarantine").ok
    job.crash()
    job.checkpoint()
    job.run.crash()
    job.job.generation_log.append("status", {"status": "CANCELED"})
    job.job.store.delete_folder(job.job.layout.checkpoints)
    done = commit(job)
    assert done.committed == 0 and done.quarantined == (1,) and view(job).status == "CANCELED"
    assert "is discarded" not in caplog.text


def test_checkpoints_of_a_job_that_finishes_by_a_late_commit_go_when_the_job_says_so() -> None:
    """S2.3."""
    job = Gated(bounded, retention="delete")
    job.run.to_end()
    ended(job)
    folders = [d.data["path"] for d in job.job.log.read() if d.kind == "complete"]
    assert folders and all(job.job.store.exists(f"{folder}/_metadata") for folder in folders)
    assert commit(job, word(None)).uncommitted == ()
    assert view(job).status == "FINISHED" and job.shown == 64
    assert not any(job.job.store.exists(f"{folder}/_metadata") for folder in folders)
    assert commit(job).uncommitted == () and job.shown == 64, "and it may be asked again"
