"""Records of a job directory."""

from __future__ import annotations

from typing import Any

from tidegate.jobs.records import Spec


def submission(number: int = 1, **facts: Any) -> Spec:
    """A submission of the job "job", fresh and without options, where `facts` say nothing else."""
    record: dict[str, Any] = {
        "job_id": "job",
        "submission_id": f"s{number}",
        "pipeline": "m:f",
        "artifact": "",
        "arguments": {},
        "options": {},
        "master": "local[1]",
        "spark_conf": {},
        "storage_options": {},
        "restore": None,
        "lineage": "l",
        "owner_dag": None,
        "submitted_at": "2026-01-01T00:00:00Z",
        "submitted_by": "test",
    }
    return Spec(number=number, **{**record, **facts})
