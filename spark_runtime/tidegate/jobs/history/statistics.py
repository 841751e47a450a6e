"""What a job's snapshots amounted to: counts, and how long and how large they were (S2.5). Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidegate.jobs.history.checkpoints import CheckpointView

PERCENTILES = (50, 90, 99)
SAVEPOINT_KINDS = ("savepoint", "stop-savepoint")
UNKNOWN = "unknown"
"""Code of an abort that an older version recorded without one."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Smallest, mean, largest and percentiles of some figures. A percentile is one of the figures: the smallest such
    that at least so many percent of them are not larger (nearest rank).

    Attributes:
        count: how many figures.
    """

    count: int
    min: float
    avg: float
    max: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class CheckpointStatistics:
    """Of all snapshots of a job, every kind and submission.

    Attributes:
        triggered: ever claimed.
        in_progress: on their way.
        completed: of every kind.
        aborted: how many, by code.
        savepoints: completed ones, with and without a stop.
        restored: runs that began from a snapshot.
        refused: requests that became no snapshot, by code, as counted since the current run began.
        duration_ms: from trigger to completion, of the completed ones; None: there are none.
        size_bytes: of all state, of the completed ones that tell.
        alignment_ms: longest of a subtask, of the completed ones that tell.
    """

    triggered: int
    in_progress: int
    completed: int
    aborted: Mapping[str, int]
    savepoints: int
    restored: int = 0
    refused: Mapping[str, int] = field(default_factory=dict)
    duration_ms: Distribution | None = None
    size_bytes: Distribution | None = None
    alignment_ms: Distribution | None = None


def checkpoint_statistics(
    views: Iterable[CheckpointView], *, restored: int = 0, refused: Mapping[str, int] | None = None
) -> CheckpointStatistics:
    """Of `views`, all snapshots of a job. `restored`, `refused`: handed through."""
    views = tuple(views)
    completed = [view for view in views if view.status == "completed"]
    aborted = Counter(view.code or UNKNOWN for view in views if view.status == "aborted")
    return CheckpointStatistics(
        triggered=len(views),
        in_progress=sum(view.status == "pending" for view in views),
        completed=len(completed),
        aborted=dict(sorted(aborted.items())),
        savepoints=sum(view.kind in SAVEPOINT_KINDS for view in completed),
        restored=restored,
        refused=dict(sorted((refused or {}).items())),
        duration_ms=distribution(view.duration_ms for view in completed),
        size_bytes=distribution(view.metrics.get("bytes") for view in completed),
        alignment_ms=distribution(view.metrics.get("alignment_ms") for view in completed),
    )


def distribution(figures: Iterable[object]) -> Distribution | None:
    """Of what is a number among `figures`; None when nothing is."""
    known = sorted(
        float(f) for f in figures if isinstance(f, int | float) and not isinstance(f, bool) and math.isfinite(f)
    )
    if not known:
        return None
    p50, p90, p99 = (percentile(known, percent) for percent in PERCENTILES)
    return Distribution(len(known), known[0], math.fsum(known) / len(known), known[-1], p50, p90, p99)


def percentile(ascending: list[float], percent: int) -> float:
    """The smallest figure such that at least `percent` percent are not larger."""
    rank = -(-percent * len(ascending) // 100)
    return ascending[max(rank, 1) - 1]
