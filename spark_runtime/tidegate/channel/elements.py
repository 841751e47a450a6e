"""The elements of a channel, in first-in-first-out order: record batches and in-band events (S3.1).

Events never need credit. Capacity is reserved for them, because their number is limited: one watermark that is newer
than the last, `max_concurrent_checkpoints` barriers, one EndOfData, one EndOfPartition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

MAX_WATERMARK = 2**63 - 1
"""Watermark of an input that has ended, microseconds since the epoch."""
MIN_WATERMARK = -(2**63)
"""Watermark of an input that has sent none yet."""

SMALL_BATCH_BYTES = 4 * 1024
"""Below this size, the whole buffers of a batch count. Arrow needs longer to compute the used part (30 us) than to send
the batch."""

CheckpointKind = Literal["checkpoint", "savepoint", "stop-savepoint", "final"]
SAVEPOINT_KINDS: tuple[CheckpointKind, ...] = ("savepoint", "stop-savepoint")
"""Kinds that belong to the user: self-contained, and never deleted by the runtime."""
StopMode = Literal["suspend", "drain"]


@dataclass(frozen=True, slots=True)
class Watermark:
    """Only late records with an earlier event time follow. Microseconds since the epoch."""

    time_us: int


@dataclass(frozen=True, slots=True)
class IdleStatus:
    """The channel is idle (`True`: excluded from the minimum, S4.4), or active again."""

    idle: bool


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """Divides the elements of a channel: those before it belong to snapshot `checkpoint_id`, those after it do not.

    Attributes:
        checkpoint_id: id claimed by the coordinator, increasing over the job's life.
        kind: kind of the snapshot.
        triggered_ms: trigger time by the driver's clock, for the start delay metric.
        stop: mode of the stop, set on a stop-savepoint.
    """

    checkpoint_id: int
    kind: CheckpointKind
    triggered_ms: int
    stop: StopMode | None = None


@dataclass(frozen=True, slots=True)
class CancelBarrier:
    """Checkpoint `checkpoint_id` will not complete: unblock immediately (S3.4)."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class EndOfData:
    """No more records follow on this channel. `drain`: the end is real, and not a suspend (S7.2)."""

    drain: bool


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """Nothing more follows on this channel."""


@dataclass(frozen=True, slots=True)
class SplitChanged:
    """The source split of the records that follow, for operators that distinguish splits (S4.4).

    It is sent only over forward channels, so that it never leaves its slot, and only if an operator downstream creates
    watermarks.

    Attributes:
        split: id of the split; None: no split yet.
        active: ids of the source subtask's splits that are not completely read.
    """

    split: str | None
    active: frozenset[str]


Event: TypeAlias = (
    Watermark | IdleStatus | CheckpointBarrier | CancelBarrier | EndOfData | EndOfPartition | SplitChanged
)
Element: TypeAlias = pa.RecordBatch | Event


def batch_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of a batch, for credit and metrics: the used part of its buffers, or all if that is little."""
    held_bytes = int(batch.get_total_buffer_size())
    return held_bytes if held_bytes <= SMALL_BATCH_BYTES else int(batch.nbytes)
