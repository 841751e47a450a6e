"""What a coordinator is told of the job's options."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CoordinatorOptions:
    """The options of S1 and S2, in milliseconds and counts; `interval_ms` None: periodic checkpoints off. `enabled`
    False: no snapshots at all (`checkpoint_mode="off"`)."""

    interval_ms: int | None
    min_pause_ms: int
    timeout_ms: int
    max_concurrent: int
    max_queued: int
    tolerable_failures: int
    retained: int
    enabled: bool = True
