"""Ownership of a job (`on_owner_lost`): an Airflow task that waits for the job's end renews it regularly, in a worker
or in the triggerer. If the renewals stop, the job does what its option says."""

from __future__ import annotations

import logging
from collections.abc import Callable

from airflow_tidegate.waits.job_waits import Wait
from tidegate.errors import StoreError
from tidegate.jobs.client.job_client import JobClient
from tidegate.jobs.options import JobOptions
from tidegate.jobs.records import Spec

RENEWALS = 6
"""Renewals within `owner_timeout`: several, because some may fail, and moving a task to the triggerer takes time."""
logger = logging.getLogger("airflow_tidegate.waits")


def claim_ownership(client: JobClient, spec: Spec, by: str) -> str:
    """Own submission `spec`, before a driver is launched, if its option `on_owner_lost` needs an owner.

    Returns:
        `by`; "" if the submission needs no owner.
    """
    if JobOptions.from_mapping(spec.options).on_owner_lost == "keep_running":
        return ""
    client.renew_owner(spec.number, by)
    return by


class OwnerRenewal:
    """Renews the ownership during a wait: at most RENEWALS times within `owner_timeout`, however often it is called.

    Args:
        by: the owner, as text for users.
        only: number of the owned submission; 0: the newest one.
        monotonic: seconds.
    """

    def __init__(self, by: str, only: int, monotonic: Callable[[], float]) -> None:
        self._by, self._only, self._monotonic = by, only, monotonic
        self._spec = 0
        self._interval_s: float | None = None
        self._at_s: float | None = None

    @classmethod
    def of(cls, wait: Wait, monotonic: Callable[[], float]) -> OwnerRenewal | None:
        """Create it for a wait with an `owner`, for its submission (`spec`) if it has one; None for other waits."""
        by = getattr(wait, "owner", "")
        return cls(by, getattr(wait, "spec", 0), monotonic) if by else None

    def renew(self, client: JobClient, spec: Spec) -> None:
        """Renew if it is due; blocks. If the store fails, the next call tries again.

        Args:
            client: of the job.
            spec: its newest submission.
        """
        if self._only not in (0, spec.number):
            return
        if spec.number != self._spec:
            options = JobOptions.from_mapping(spec.options)
            interval_s = options.owner_timeout.total_seconds() / RENEWALS
            self._interval_s = None if options.on_owner_lost == "keep_running" else interval_s
            self._spec, self._at_s = spec.number, None
        now_s = self._monotonic()
        if self._interval_s is None or (self._at_s is not None and now_s - self._at_s < self._interval_s):
            return
        try:
            client.renew_owner(spec.number, self._by)
        except StoreError as error:
            logger.warning(
                "job %s: the file owner.json, by which the job sees that its task is alive, could not be written; "
                "it is tried again: %s",
                client.job_id,
                error,
            )
        else:
            self._at_s = now_s
