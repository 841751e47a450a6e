"""Statistics of a job's snapshots: counts, durations and sizes (S2.5). Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tidegate.jobs.history.checkpoints import CheckpointView

PERCENTILES = (50, 90, 99)
SAVEPOINT_KINDS = ("savepoint", "stop-savepoint")
UNKNOWN = "unknown"
"""Code of an abort for which an older version recorded no code."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Smallest, mean and largest of some figures, and percentiles. A percentile is one of the figures: the smallest for
    which at least that percentage of all figures are not larger (nearest rank).

    Attributes:
        count: number of figures.
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
    """Statistics of all snapshots of a job, of every kind and submission.

    Attributes:
        triggered: snapshots that were ever claimed.
        in_progress: pending snapshots.
        completed: completed snapshots of every kind.
        aborted: aborted snapshots, by code.
        savepoints: completed savepoints, with and without a stop.
        restored: runs that started from a snapshot.
        refused: requests that were refused, by code, since the current run began.
        duration_ms: time from trigger to completion of completed snapshots; None: there are none.
        size_bytes: size of all state of completed snapshots that recorded it.
        alignment_ms: longest alignment of a subtask, of completed snapshots that recorded it.
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
    """Compute the statistics of all snapshots of a job. `restored` and `refused` are passed through."""
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
    """Compute the distribution of the numbers among `figures`; None when there are no numbers."""
    known = sorted(
        float(f) for f in figures if isinstance(f, int | float) and not isinstance(f, bool) and math.isfinite(f)
    )
    if not known:
        return None
    p50, p90, p99 = (percentile(known, percent) for percent in PERCENTILES)
    return Distribution(len(known), known[0], math.fsum(known) / len(known), known[-1], p50, p90, p99)


def percentile(ascending: list[float], percent: int) -> float:
    """Return the smallest figure for which at least `percent` percent of all figures are not larger."""
    # Division that rounds up, in whole numbers: a float product could be slightly too large, and the rank one too high.
    rank = -(-percent * len(ascending) // 100)
    return ascending[max(rank, 1) - 1]
