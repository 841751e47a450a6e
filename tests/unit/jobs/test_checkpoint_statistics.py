"""S2.5: counts and figures of a job's snapshots."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_contract import NOW, ScriptedDriver

from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.history.checkpoints import CheckpointView
from tidegate.jobs.history.statistics import Distribution, checkpoint_statistics, distribution, percentile


def view(n: int, status: Any = "completed", kind: str = "checkpoint", **more: Any) -> CheckpointView:
    return CheckpointView(n, kind, status, f"chk-{n}", 1, **more)


def test_a_job_without_snapshots_has_counts_of_zero_and_no_figures() -> None:
    found = checkpoint_statistics([])
    assert (found.triggered, found.in_progress, found.completed, found.savepoints) == (0, 0, 0, 0)
    assert (found.aborted, found.duration_ms, found.size_bytes, found.alignment_ms) == ({}, None, None, None)


def test_snapshots_are_counted_by_their_end_and_aborts_by_their_code() -> None:
    """S2.5."""
    found = checkpoint_statistics(
        [
            view(1),
            view(2, kind="savepoint"),
            view(3, "aborted", code="expired"),
            view(4, "aborted", code="declined"),
            view(5, "aborted", code="expired"),
            view(6, "aborted", kind="savepoint"),
            view(7, kind="stop-savepoint"),
            view(8, "pending"),
        ],
        restored=2,
        refused={"too_many_requests": 3},
    )
    assert (found.triggered, found.in_progress, found.completed, found.savepoints) == (8, 1, 3, 2)
    assert found.aborted == {"declined": 1, "expired": 2, "unknown": 1}
    assert (found.restored, found.refused) == (2, {"too_many_requests": 3})


def test_figures_are_of_completed_snapshots_alone() -> None:
    """S2.5: min, mean, max and percentiles of duration, size and alignment."""
    metrics = [{"bytes": 100.0 * n, "alignment_ms": float(n)} for n in range(1, 11)]
    done = [view(n, duration_ms=10 * n, metrics=metrics[n - 1]) for n in range(1, 11)]
    aborted = view(11, "aborted", duration_ms=10_000, metrics={"bytes": 1e9})
    found = checkpoint_statistics([*done, aborted])
    assert found.duration_ms == Distribution(10, 10, 55, 100, p50=50, p90=90, p99=100)
    assert found.size_bytes == Distribution(10, 100, 550, 1000, p50=500, p90=900, p99=1000)
    assert found.alignment_ms == Distribution(10, 1, 5.5, 10, p50=5, p90=9, p99=10)


def test_snapshots_that_do_not_tell_a_figure_are_left_out_of_it() -> None:
    found = checkpoint_statistics([view(1, metrics={"bytes": "many"}), view(2, metrics={"bytes": 7})])
    assert found.size_bytes == Distribution(1, 7, 7, 7, 7, 7, 7)
    assert found.duration_ms is None


@pytest.mark.parametrize(
    ("percent", "of_four", "of_one"),
    [(1, 1, 9), (25, 1, 9), (26, 2, 9), (50, 2, 9), (75, 3, 9), (99, 4, 9), (100, 4, 9)],
)
def test_a_percentile_is_the_figure_of_the_nearest_rank(percent: int, of_four: float, of_one: float) -> None:
    assert percentile([1, 2, 3, 4], percent) == of_four
    assert percentile([9], percent) == of_one


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1))
def test_figures_are_among_what_was_given_and_in_order(figures: list[int]) -> None:
    found = distribution(figures)
    assert found is not None and found.count == len(figures)
    percentiles = [found.min, found.p50, found.p90, found.p99, found.max]
    assert percentiles == sorted(percentiles) and set(percentiles) <= set(figures)
    assert found.min <= found.avg <= found.max
    for percent, figure in ((50, found.p50), (90, found.p90), (99, found.p99)):
        assert 100 * sum(f <= figure for f in figures) >= percent * len(figures)
        assert 100 * sum(f < figure for f in figures) < percent * len(figures)


def test_a_jobs_view_counts_restores_and_tells_why_snapshots_ended(client: JobClient, driver: ScriptedDriver) -> None:
    """S2.5: over all submissions, from the log; refusals from the hint."""
    driver.generation_log.append("claim", {"checkpoint_id": 1, "kind": "checkpoint", "path": "p1", "triggered_at": NOW})
    driver.generation_log.append("abort", {"checkpoint_id": 1, "reason": "no room", "code": "declined", "counts": True})
    driver.generation_log.append("claim", {"checkpoint_id": 2, "kind": "checkpoint", "path": "p2", "triggered_at": NOW})
    successor = ScriptedDriver(client, driver.spec, launch=2)
    successor.status("RUNNING", restored_from="p0")
    successor.checkpoint(3)
    successor.beat(refused_requests={"periodic_queued": 4})
    found = client.view()
    assert [(c.status, c.code) for c in found.checkpoints] == [
        ("aborted", "declined"),
        ("aborted", "driver_replaced"),
        ("completed", ""),
    ]
    statistics = found.statistics
    assert (statistics.triggered, statistics.completed, statistics.restored) == (3, 1, 1)
    assert statistics.aborted == {"declined": 1, "driver_replaced": 1}
    assert statistics.refused == {"periodic_queued": 4}
