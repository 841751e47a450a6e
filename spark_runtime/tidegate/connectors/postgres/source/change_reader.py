"""Reader of the changes of a table."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidegate.connectors.interface import PollResult, SourceContext, SourceReader, Split
from tidegate.connectors.postgres.source.change_assembler import Arrived
from tidegate.connectors.postgres.source.change_feed import ChangeFeed, FeedSettings
from tidegate.connectors.postgres.source.handover import ChangePosition
from tidegate.connectors.postgres.source.slots import SlotOwner
from tidegate.connectors.prefetch import Prefetch

RETRY_MS = 1_000
"""Wait for the next poll of a reader without changes, milliseconds. Changes end it, by the wake call."""


class ChangeReader(SourceReader):
    """Reads the one split of a table's changes: first its copy, then the stream.

    It never reports itself idle: whether silence means idleness is for `idle_after` to decide (S4.4).
    """

    def __init__(
        self, ctx: SourceContext, settings: FeedSettings, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._ctx, self._settings, self._now_s = ctx, settings, monotonic_s
        self._split: Split | None = None
        self._position: ChangePosition | None = None
        self._feed: ChangeFeed | None = None
        self._prefetch: Prefetch[Arrived] | None = None
        self._covered: deque[tuple[float, int]] = deque()

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Accept the split, and start the thread."""
        for split in splits:
            assert self._split is None, "a source of changes has one split"
            self._split = split
            self._position = None if split.position is None else ChangePosition.from_json(split.position)
            self._feed = ChangeFeed(self._settings, SlotOwner.of(self._ctx), self._position)
            name = f"postgres-{self._ctx.uid}"
            self._prefetch = Prefetch(self._feed.results, self._ctx.wake, name, self._feed.keep_alive)

    def poll(self, now_ms: int) -> PollResult:
        """Return the next rows."""
        if self._prefetch is None or self._split is None:
            return PollResult(state="nothing_now", retry_at_ms=now_ms + RETRY_MS, idle=True)
        while (arrived := self._prefetch.take()) is not None:
            self._position = arrived.position
            if arrived.batch is not None:
                return PollResult(arrived.batch, self._split.split_id)
        return PollResult(state="nothing_now", retry_at_ms=now_ms + RETRY_MS)

    def snapshot(self) -> Sequence[Split]:
        """Return the split with the position after the last change polled (S4.2)."""
        if self._split is None:
            return ()
        if self._feed is not None:
            # The thread compares at once, so that a job fails soon after a checkpoint that lacks hidden changes.
            self._feed.compare_soon()
        position = None if self._position is None else self._position.to_json()
        return [replace(self._split, position=position)]

    def active_splits(self) -> frozenset[str]:
        """Return the split."""
        return frozenset() if self._split is None else frozenset([self._split.split_id])

    def checkpoint_completed(self, checkpoint_id: int, splits: Sequence[Split]) -> None:
        """Release the WAL that no restore needs any more: that before the checkpoint, after `keep_wal`."""
        now_s = self._now_s()
        for split in splits:
            if split.position is not None:
                self._covered.append((now_s, ChangePosition.from_json(split.position).lsn))
        while self._covered and now_s - self._covered[0][0] >= self._settings.options.keep_wal_s:
            _, lsn = self._covered.popleft()
            assert self._feed is not None, "a split was polled"
            self._feed.confirm(lsn)

    def progress(self) -> Mapping[str, Any]:
        """Return rows emitted over all runs, whether the table is still copied, and the lag in bytes of WAL.

        One reader of a source has the split. The others have nothing to copy and no lag, and report that: the status
        shows only what all readers report. The lag is left out during the copy.
        """
        if self._split is None:
            return {"rows": 0, "copying": False, "lag_bytes": 0}
        if self._position is None or self._feed is None:
            return {"rows": 0}
        facts: dict[str, Any] = {"rows": self._position.rows, "copying": self._position.copying}
        if self._feed.server_lsn and not self._position.copying:
            facts["lag_bytes"] = max(0, self._feed.server_lsn - self._position.lsn)
        return facts

    def close(self) -> None:
        """Let the thread end."""
        if self._prefetch is not None:
            self._prefetch.close()
