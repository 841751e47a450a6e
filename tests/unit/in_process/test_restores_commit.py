"""S7.4 in whole jobs: what a view calls committed behind a restore is what readers see."""

from __future__ import annotations

from typing import Any

import pytest
from test_commit_gate_jobs import Gated

from tidegate.coordinator import events as ev
from tidegate.errors import StoreError
from tidegate.jobs.records import RestoreFrom
from tidegate.subtask.chain import OperatorFailure
from tidegate.testing.collect_sink import collected

_LATEST = RestoreFrom("latest")


def runs(job: Gated) -> Gated:
    """As its driver says when every subtask runs."""
    restored = job.run.run.restored_from
    more = {} if restored is None else {"restored_from": restored}
    job.job.generation_log.append("status", {"status": "RUNNING", "run_id": job.run.run.run_id, **more})
    return job


def failed_in_its_commit(monkeypatch: pytest.MonkeyPatch) -> Gated:
    """Without a gate; behind checkpoint 1 and savepoint 2 its stop-savepoint 3 is complete, and its sink could commit
    nothing of that."""
    job = runs(Gated(commit="automatic"))
    job.checkpoint()
    job.run.pump(6)
    answer = job.run.ask(ev.SnapshotRequest("savepoint", request_id="savepoint"))
    assert answer is not None and answer.ok

    def broken(*_: Any) -> None:
        raise StoreError("no disk")

    with monkeypatch.context() as patched:
        patched.setattr(type(collected(job.sink)), "publish", broken)
        job.run.pump(6)
        job.run.run.handle_command(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
        with pytest.raises(OperatorFailure, match="no disk"):
            job.run.until(lambda: job.run.outcome is not None)
    job.run.crash()
    job.job.generation_log.append("status", {"status": "FAILED", "reason": "no disk"})
    return job


def committed(job: Gated) -> list[int]:
    return [view.checkpoint_id for view in job.view.checkpoints if view.committed]


def test_what_the_next_submission_commits_is_called_committed_when_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    job = failed_in_its_commit(monkeypatch)
    before = job.shown
    assert committed(job) == [1]
    job.run = job.job.submit(_LATEST)
    assert job.shown > before, "the restore committed, before anything was read"
    assert committed(runs(job)) == [1, 3], "a savepoint that nobody restored has no say in it"


def test_what_a_submission_in_front_of_it_removes_is_never_called_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    job = failed_in_its_commit(monkeypatch)
    before = job.shown
    path = job.view.checkpoints[1].path
    job.run = job.job.submit(RestoreFrom("savepoint", path=path, on_committed_after="accept_duplicates"))
    assert job.shown > before and committed(runs(job)) == [1, 2] and not collected(job.sink).staged
    before = job.shown
    job.run.crash()
    job.run = job.job.relaunch()
    assert job.shown == before and committed(runs(job)) == [1, 2]


def test_behind_a_gate_the_next_submission_commits_nothing_and_none_is_called_so() -> None:
    """S7.8."""
    job = runs(Gated())
    job.checkpoint()
    job.stop()
    job.job.generation_log.append("status", {"status": "STOPPED"})
    job.again(_LATEST)
    assert job.shown == 0 and committed(runs(job)) == []
    job.approve(2)
    assert job.shown > 0 and committed(job) == [1, 2]


def test_a_gate_that_is_new_lets_through_what_was_permitted_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.4, S7.8."""
    job = failed_in_its_commit(monkeypatch)
    before = job.shown
    job.job.options = {**job.job.options, "commit": "on_request"}
    job.run = job.job.submit(_LATEST)
    assert job.shown > before and committed(runs(job)) == [1, 3]
