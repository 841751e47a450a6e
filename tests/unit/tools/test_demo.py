"""What `make demo` prints of a job on the way."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from demo import status_line

from tidegate.jobs.status import JobStatus


def source(uid: str, records: int | None, **facts: bool) -> SimpleNamespace:
    return SimpleNamespace(uid=uid, records=records, **{"end_of_data": False, "played_all": False, **facts})


def test_a_job_is_shown_at_any_time_of_its_life() -> None:
    """A restored job has sources before any of them has reported a count."""
    view: Any = SimpleNamespace(status=JobStatus.CREATED, completed=(1,), sources=(source("flights", None),))
    assert status_line(view) == "CREATED, 1 snapshots"
    view.sources = (source("airlines", 16, end_of_data=True), source("flights", 5_114), source("weather", None))
    assert status_line(view) == "CREATED, 1 snapshots, rows read: airlines 16 (ended), flights 5,114"
