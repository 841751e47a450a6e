"""S5.5 on real Spark: jobs go on at another parallelism."""

from __future__ import annotations

import json

import pytest
from conftest import PIPELINE, RealJob
from pipelines.counting import expected

from tidegate.cli.main import main
from tidegate.jobs.client.preflight import preflight_restore
from tidegate.jobs.records import RestoreFrom

ROWS = 24_000
MANY_ROWS = 100_000
"""Enough for three stops on a busy machine."""
RATE = 4_000.0


def suspend(job: RealJob) -> str:
    """Stop half-way; the savepoint's path."""
    command = job.client.send("stop", {"mode": "suspend"}, issued_by="test")
    result = job.client.wait_result(command.command_id, "60 s")
    assert result.ok and result.data["outcome"] == "committed"
    job.until_status("STOPPED")
    return str(result.data["path"])


def counted_with(job: RealJob, back_end: str) -> None:
    """Windows with 2, 3 and 1 slots, a savepoint between any two."""
    job.start(rows=ROWS, state_backend=back_end, rate=RATE)
    job.completed(2)
    path = suspend(job)
    first = len(job.output())
    job.master = "local[3]"
    job.start(rows=ROWS, state_backend=back_end, rate=RATE, parallelism=3, restore=RestoreFrom("savepoint", path=path))
    job.until_status("RUNNING", "FAILED")
    job.until(lambda view: len(job.output()) > first, "a window that three slots have committed")
    path = suspend(job)
    second = len(job.output())
    assert first < second < len(expected(ROWS)), "both stops should have come half-way"
    job.start(
        rows=ROWS, state_backend=back_end, rate=50_000.0, parallelism=1, restore=RestoreFrom("savepoint", path=path)
    )
    view = job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert job.output() == expected(ROWS)


@pytest.mark.slow
def test_a_job_suspended_with_two_slots_goes_on_with_three_and_then_with_one(local_job: RealJob) -> None:
    """S4.2, S5.5, S7.4: windows, splits and files that wait for their commit move to other slots."""
    counted_with(local_job, "heap")


@pytest.mark.slow
def test_windows_in_rocksdb_go_on_at_other_parallelisms(local_job: RealJob) -> None:
    """S5.2, S5.5."""
    counted_with(local_job, "rocksdb")


def processed_with(job: RealJob, back_end: str) -> None:
    """A process of the user's own with 2, 3, 1 and 4 slots, one after the other, a savepoint between any two."""
    options = {"function": "processed", "state_backend": back_end, "slots_timeout": "2 min"}
    path, before = None, 0
    for parallelism in (2, 3, 1):
        job.master = f"local[{parallelism}]"
        restore = None if path is None else RestoreFrom("savepoint", path=path)
        job.start(rows=MANY_ROWS, rate=RATE, parallelism=parallelism, restore=restore, **options)
        if path is None:
            job.completed(2)
        job.until(lambda _, so_far=before: len(job.output()) > so_far, f"a result of {parallelism} slots")
        path = suspend(job)
        before = len(job.output())
    assert 0 < before < len(expected(MANY_ROWS)), "the last stop should have come half-way"
    job.master = "local[4]"
    job.start(rows=MANY_ROWS, rate=50_000.0, parallelism=4, restore=RestoreFrom("savepoint", path=path), **options)
    view = job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert job.output() == expected(MANY_ROWS)


@pytest.mark.slow
@pytest.mark.gate
def test_a_process_with_two_then_three_then_one_then_four_slots_gives_every_result_once(local_job: RealJob) -> None:
    """S5.1, S5.5: every kind of state and event timers, on the back end heap."""
    processed_with(local_job, "heap")


@pytest.mark.slow
@pytest.mark.parametrize("back_end", ["rocksdb", "memory"])
def test_a_process_goes_on_at_other_parallelisms_with_every_back_end(local_job: RealJob, back_end: str) -> None:
    """S5.1, S5.2, S5.5."""
    processed_with(local_job, back_end)


@pytest.mark.slow
def test_the_verb_rescales_a_job_and_a_preflight_agrees_with_its_restore(
    local_job: RealJob, capsys: pytest.CaptureFixture[str]
) -> None:
    """S5.5: the driver has pinned the graph that its snapshots are held against."""
    local_job.start(rows=MANY_ROWS, rate=RATE)
    local_job.completed(1)
    place = (local_job.client.job_id, "--root", local_job.root)
    assert main(["rescale", *place, "--parallelism", "1"]) == 0, capsys.readouterr().err
    found = preflight_restore(local_job.client, RestoreFrom("latest"))
    assert found.spec == 2 and found.verdict.fits and [f.code for f in found.verdict.findings] in ([], ["parallelism"])
    savepoint = local_job.client.view().latest_savepoint
    assert savepoint is not None
    capsys.readouterr()
    arguments = json.dumps(dict(local_job.client.specs()[-1].arguments))
    words = ["snapshot", "check", f"{local_job.root}/{savepoint.path}", f"{PIPELINE}:build", "--args-json", arguments]
    assert main([*words, "--json"]) == 0, capsys.readouterr().out
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED" and local_job.output() == expected(MANY_ROWS), view.failure
