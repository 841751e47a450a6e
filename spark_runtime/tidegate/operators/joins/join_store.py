"""Where a join keeps its rows: in tables in memory, or in the keyed back end (S5.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from tidegate.operators.time.passed_watermarks import WatermarkByKeyGroup
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.keyed_state import Mask
from tidegate.state.keys.key_bytes import Int64s


@dataclass(frozen=True)
class ArrivedRows:
    """Rows of a batch, each in one span.

    Attributes:
        rows: in stored types.
        times: microseconds; None: the join does not use times.
        starts: starts of their spans; None: there are no spans.
    """

    rows: pa.RecordBatch
    times: Int64s | None
    starts: Int64s | None

    def part(self, mask: Mask) -> ArrivedRows:
        """Return the rows where `mask` is true."""
        if mask.all():
            return self
        times, starts = (None if array is None else array[mask] for array in (self.times, self.starts))
        return ArrivedRows(self.rows.filter(pa.array(mask)), times, starts)


@dataclass(frozen=True)
class MatchedPairs:
    """Some matches: pair i consists of arrived row `arrived[i]` and row i of `rows`.

    Attributes:
        stored: identifies the stored row of each pair, for `Matches.mark`.
        rows: stored rows of the other side.
    """

    arrived: Int64s
    stored: Int64s
    rows: pa.RecordBatch


@dataclass(frozen=True)
class LoneRows:
    """Stored rows of one side that are emitted without a match.

    Attributes:
        starts: starts of their spans; None: there are no spans.
    """

    side: int
    rows: pa.RecordBatch
    starts: Int64s | None


class Matches(Protocol):
    """The matches of arrived rows by key and time. Valid until the next call of the store."""

    def pairs(self) -> Iterator[MatchedPairs]:
        """Yield all pairs, at most `MAX_BATCH_ROWS` at a time."""

    def matched(self) -> tuple[Mask, Iterator[Int64s]]:
        """Return which arrived rows match, and the stored rows that match and are tracked, without pairs."""

    def mark(self, stored: Int64s) -> LoneRows | None:
        """Record that stored rows have found a match. For a semi join, return those that had none before; None: no
        row."""

    def keep(self, kept: Mask | None, matched: Mask) -> None:
        """Store the arrived rows.

        Args:
            kept: which of them; None: all.
            matched: which of the arrived rows have found a match.
        """


class JoinStore(Protocol):
    """The stored rows of both sides.

    Attributes:
        passed: the watermark of each key group.
    """

    passed: WatermarkByKeyGroup

    def match(self, arrived: ArrivedRows, side: int) -> Matches:
        """Find the matches of rows of `side`. No key or time is null."""

    def fire(self, until_us: int) -> Iterator[LoneRows]:
        """Yield the rows that are due without a match at the watermark `until_us`. Delete expired rows."""

    def snapshot(self, checkpoint_id: int, *, portable: bool) -> AsyncSnapshot:
        """Freeze the state."""

    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore what `snapshot` of any store wrote.

        Raises:
            SnapshotError: the snapshot was written by another kind of join or with other bounds, or its columns cannot
                be adapted (S5.5).
        """

    def close(self) -> None:
        """Release files and memory."""
