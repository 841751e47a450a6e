"""Job ids that a mistyped one may have meant."""

from __future__ import annotations

import difflib

from tidegate.errors import StoreError
from tidegate.jobs.layout import JobLayout, job_ids
from tidegate.jobs.stores.store import Store

LIST_REMEDY = "`tidegate list` shows the jobs of a root"
MOST_NAMES = 3
"""Candidates that are looked up, since of each the job directory is asked whether it holds a job."""


def nearest_job(store: Store, job_id: str) -> str | None:
    """The job of a root whose id is nearest to this one; None: no id is near, or the root cannot be listed."""
    try:
        near = difflib.get_close_matches(job_id, [*job_ids(store.list(""))], n=MOST_NAMES + 1)
        return next((name for name in near if name != job_id and store.exists(JobLayout(name).spec(1))), None)
    except StoreError:
        return None


def job_remedy(store: Store, job_id: str, otherwise: str) -> str:
    """What to do about a job id that there is not."""
    near = nearest_job(store, job_id)
    return f"Did you mean {near!r}? {otherwise}" if near else otherwise
