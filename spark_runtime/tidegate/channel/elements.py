"""What travels on a channel, in FIFO order: record batches and in-band events (S3.1).

Events are never subject to credit: capacity is reserved for them, because their number is bounded (one watermark that
is newer than the last, `max_concurrent_checkpoints` barriers, one EndOfData, one EndOfPartition).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import pyarrow as pa

MAX_WATERMARK = 2**63 - 1
"""Watermark of an input that has ended, microseconds since the epoch."""
MIN_WATERMARK = -(2**63)
"""Watermark of an input that has not spoken yet."""

SMALL_BATCH_BYTES = 4 * 1024
"""What a smaller batch uses of its buffers is not asked for: Arrow takes longer to tell (30 us) than to send it."""

CheckpointKind = Literal["checkpoint", "savepoint", "stop-savepoint", "final"]
SAVEPOINT_KINDS: tuple[CheckpointKind, ...] = ("savepoint", "stop-savepoint")
"""Kinds that belong to the user: self-contained, and never deleted by the runtime."""
StopMode = Literal["suspend", "drain"]


@dataclass(frozen=True, slots=True)
class Watermark:
    """No record with an earlier event time follows, but late ones. Microseconds since the epoch."""

    time_us: int


@dataclass(frozen=True, slots=True)
class IdleStatus:
    """The channel is idle (`True`: leave it out of the minimum, S4.4) or active again."""

    idle: bool


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """Splits the channel into what belongs to snapshot `checkpoint_id` and what does not.

    Attributes:
        checkpoint_id: id claimed by the coordinator, monotonic over the job's life.
        kind: what asked for it.
        triggered_ms: trigger time by the driver's clock, for the start delay metric.
        stop: set on a stop-savepoint.
    """

    checkpoint_id: int
    kind: CheckpointKind
    triggered_ms: int
    stop: StopMode | None = None


@dataclass(frozen=True, slots=True)
class CancelBarrier:
    """Checkpoint `checkpoint_id` will not complete: unblock at once (S3.4)."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class EndOfData:
    """No more records on this channel. `drain`: the end is a real one (S7.2)."""

    drain: bool


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """Nothing more at all on this channel."""


@dataclass(frozen=True, slots=True)
class SplitChanged:
    """Whose records follow, for operators that tell the splits of a source apart (S4.4). Over forward channels alone,
    so that it never leaves its slot, and only where somebody behind them makes watermarks.

    Attributes:
        split: id of the split; None: of none yet.
        active: ids of the source subtask's splits that are not read to their end.
    """

    split: str | None
    active: frozenset[str]


Event: TypeAlias = (
    Watermark | IdleStatus | CheckpointBarrier | CancelBarrier | EndOfData | EndOfPartition | SplitChanged
)
Element: TypeAlias = pa.RecordBatch | Event


def batch_bytes(batch: pa.RecordBatch) -> int:
    """Bytes of a batch, for credit and metrics: what it uses of its buffers, or all of them when that is little."""
    held_bytes = int(batch.get_total_buffer_size())
    return held_bytes if held_bytes <= SMALL_BATCH_BYTES else int(batch.nbytes)
