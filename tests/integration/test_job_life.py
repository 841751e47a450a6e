"""A job's whole life on real Spark, and what it survives."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from conftest import RealJob
from pipelines.counting import expected, expected_of

from tidegate.jobs.records import RestoreFrom

ROWS = 24_000
MANY_ROWS = 80_000
"""Of a job that is stopped half-way: they play for 20 s, also when the machine stands still for some."""
RATE = 4_000.0


def test_a_bounded_job_ends_by_itself_with_complete_output(local_job: RealJob) -> None:
    local_job.start(rows=ROWS, rate=20_000.0)
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert local_job.output() == expected(ROWS)
    assert view.completed[-1].committed


def test_suspend_and_restore_lose_and_repeat_nothing(local_job: RealJob) -> None:
    """S4.2, S7.5."""
    local_job.start(rows=MANY_ROWS, rate=RATE)
    local_job.until_status("RUNNING")
    local_job.completed(2)
    saved = local_job.client.send("savepoint", issued_by="test")
    assert local_job.client.wait_result(saved.command_id, "60 s").ok
    command = local_job.client.send("stop", {"mode": "suspend"}, issued_by="test")
    result = local_job.client.wait_result(command.command_id, "60 s")
    assert result.ok and result.data["outcome"] == "committed"
    view = local_job.until_status("STOPPED")
    assert len(local_job.output()) < len(expected(MANY_ROWS)), "the job should have been stopped half-way"
    local_job.start(rows=MANY_ROWS, rate=100_000.0, restore=RestoreFrom("savepoint", path=result.data["path"]))
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert local_job.output() == expected(MANY_ROWS)


@pytest.mark.slow
def test_a_job_that_needs_no_final_snapshot_can_be_stopped_and_ends_without_one(local_job: RealJob) -> None:
    """S7.3, S7.7: no interval, nothing to commit; the stop does not race with the end of its subtasks."""
    local_job.start(rows=0, rate=RATE, function="discarding", checkpoint_interval=None)
    local_job.until_status("RUNNING")
    command = local_job.client.send("stop", {"mode": "suspend"}, issued_by="test")
    assert local_job.client.wait_result(command.command_id, "60 s").ok
    view = local_job.until_status("STOPPED")
    assert view.restarts == 0
    local_job.start(rows=ROWS, rate=50_000.0, function="discarding", checkpoint_interval=None, fresh=True)
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    kinds = [d.data["kind"] for d in local_job.client.decisions() if d.kind == "claim"]
    assert kinds == ["stop-savepoint"]


def test_drain_fires_open_windows_of_an_unbounded_job(local_job: RealJob) -> None:
    """S7.2, S7.5."""
    local_job.start(rows=0, rate=RATE)
    local_job.completed(3)
    command = local_job.client.send("stop", {"mode": "drain"}, issued_by="test")
    assert local_job.client.wait_result(command.command_id, "60 s").data["mode"] == "drain"
    local_job.until_status("STOPPED")
    output = local_job.output()
    counted = sum(n for _, _, n, _ in output)
    summed = sum(total for *_, total in output)
    prefixes = [(a, counted - a) for a in range(counted + 1) if a * (a - 1) + (counted - a) ** 2 == summed]
    assert any(output == expected_of([*range(0, 2 * a, 2), *range(1, 2 * b, 2)]) for a, b in prefixes)


def test_what_lies_before_the_watermark_of_a_published_checkpoint_is_complete_in_the_output(local_job: RealJob) -> None:
    """S4.4, S7.4: who waits for an hour of event time may read it then."""
    local_job.start(rows=0, rate=RATE)
    view = local_job.until(
        lambda view: any(c.is_published and (c.watermark_us or 0) >= 3_000_000 for c in view.completed),
        "a published checkpoint that has passed three seconds of event time",
    )
    output = local_job.output()
    seconds = max(c.watermark_us or 0 for c in view.completed if c.is_published) // 1_000_000
    assert set(expected(seconds * 1000)) <= set(output)
    local_job.until(
        lambda view: any((source.watermark_us or 0) >= seconds * 1_000_000 for source in view.sources),
        "the hint, which lags behind by some heartbeats, to tell the source's watermark",
    )


def test_a_job_whose_worker_is_killed_recovers_by_itself_with_exact_output(local_job: RealJob) -> None:
    """S9.1."""
    local_job.start(rows=ROWS, rate=RATE)
    local_job.completed(3)
    os.kill(local_job.slot_pids()[0], signal.SIGKILL)
    view = local_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert view.restarts == 1
    assert local_job.output() == expected(ROWS)


@pytest.mark.slow
def test_a_restart_reads_state_from_the_slots_own_disk_and_leaves_nothing_there(
    local_job: RealJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S5.4."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    local_job.start(rows=ROWS, rate=RATE, local_recovery=True, state_size_threshold="64 B")
    local_job.completed(3)
    assert list((tmp_path / "temporary").glob("tidegate-local/*/*/*.state"))
    os.kill(local_job.slot_pids()[0], signal.SIGKILL)
    view = local_job.until_status("FINISHED", "FAILED")
    assert (view.status.value, view.restarts) == ("FINISHED", 1), view.failure
    assert local_job.output() == expected(ROWS)
    assert list((tmp_path / "temporary").glob("tidegate-local/*")) == []


def test_a_job_on_a_standalone_cluster_survives_the_kill_of_a_worker(cluster_job: RealJob) -> None:
    rows = 10 * int(RATE)  # the processes are told some seconds after the start
    cluster_job.start(rows=rows, rate=RATE)
    cluster_job.completed(1)
    pids = cluster_job.slot_pids()
    assert len(set(pids)) == 2
    os.kill(pids[1], signal.SIGKILL)
    view = cluster_job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert view.restarts == 1
    assert cluster_job.output() == expected(rows)


@pytest.mark.slow
def test_sigterm_suspends_the_job_with_a_savepoint(local_job: RealJob) -> None:
    local_job.start(rows=ROWS, rate=RATE)
    local_job.completed(2)
    os.kill(local_job.driver_pid(), signal.SIGTERM)
    view = local_job.until_status("STOPPED", "FAILED")
    assert view.status.value == "STOPPED", view.failure
    assert view.stop is not None and view.stop["mode"] == "suspend"
    local_job.start(rows=ROWS, rate=50_000.0, restore=RestoreFrom("latest"))
    local_job.until_status("FINISHED", "FAILED")
    assert local_job.output() == expected(ROWS)


def kill_the_driver_and_restore(job: RealJob) -> None:
    """Kill -9 in the middle, restore the latest checkpoint: exact output, and not one entry of the dead generation."""
    job.start(rows=ROWS, rate=RATE)
    first = job.completed(3)
    os.kill(job.driver_pid(), signal.SIGKILL)
    job.until(lambda _: not job.client.is_alive(), "the driver's death to be seen")
    job.start(rows=ROWS, rate=50_000.0, restore=RestoreFrom("latest"))
    view = job.until_status("FINISHED", "FAILED")
    assert view.status.value == "FINISHED", view.failure
    assert view.generation == first.generation + 1
    assert job.output() == expected(ROWS)
    generation_logs = [d.generation for d in job.client.decisions()]
    assert generation_logs == sorted(generation_logs), "an entry of the dead generation came after the fence"


@pytest.mark.slow
def test_a_killed_driver_is_replaced_and_the_dead_generation_can_write_nothing(local_job: RealJob) -> None:
    """S9.2."""
    kill_the_driver_and_restore(local_job)


@pytest.mark.slow
def test_a_killed_driver_on_a_standalone_cluster_is_replaced_too(cluster_job: RealJob) -> None:
    kill_the_driver_and_restore(cluster_job)


def test_user_errors_reach_the_log_as_root_cause(local_job: RealJob) -> None:
    """S9.1."""
    local_job.start(rows=0, rate=RATE, function="failing", restart_attempts=0)
    view = local_job.until_status("FAILED")
    assert view.failure is not None
    assert view.failure.operator == "explode"
    assert "row 777 is cursed" in view.failure.message
    assert "in explode" in (view.failure.traceback or "")


def test_a_typo_in_a_column_fails_before_spark_starts(local_job: RealJob) -> None:
    local_job.start(rows=0, rate=RATE, function="typo")
    view = local_job.until_status("FAILED")
    assert view.failure is not None
    assert "vv" in view.failure.message and "counting.py" in view.failure.message


def test_too_few_slots_fail_with_the_numbers_and_the_remedy(local_job: RealJob) -> None:
    local_job.start(rows=ROWS, rate=RATE, parallelism=3)
    view = local_job.until_status("FAILED")
    assert view.failure is not None
    assert "2 of 3 slots" in view.failure.message and "local[3]" in view.failure.message


def test_a_slot_over_its_memory_is_named(local_job: RealJob) -> None:
    local_job.start(rows=0, rate=RATE, slot_memory="128 MiB", restart_attempts=0)
    view = local_job.until_status("FAILED")
    assert view.failure is not None and "exceeded slot_memory" in view.failure.message
