"""How old a snapshot may be that a submission starts from. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from tidegate.clock import parse_iso
from tidegate.errors import SnapshotError
from tidegate.units import format_duration


def refuse_older(name: str, completed_at: str | None, limit: timedelta, now: datetime, *, where: str) -> None:
    """Raise SnapshotError when a snapshot is older than it may be.

    Args:
        name: of the snapshot, for people.
        completed_at: recorded time of its completion; None or no time: its age is not known, which is refused, too.
        limit: greatest age.
        now: with zone.
        where: the job.
    """
    remedy = "Name a newer snapshot (`tidegate checkpoints`), allow a greater age, or start the job afresh"
    try:
        age = now - parse_iso(completed_at or "")
    except ValueError:
        raise SnapshotError(
            f"how old {name} is cannot be told, and it may be {format_duration(limit)} old at most",
            where=where,
            cause=f"its completion is recorded as {completed_at!r}",
            remedy=remedy,
        ) from None
    if age > limit:
        whole_s = timedelta(seconds=round(age.total_seconds()))
        raise SnapshotError(
            f"{name} is {format_duration(whole_s)} old, and may be {format_duration(limit)} old at most",
            where=where,
            cause=f"it completed at {completed_at}; nothing was submitted",
            remedy=remedy,
        )
