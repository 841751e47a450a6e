"""Reader of topic partitions."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from tidegate.clock import iso
from tidegate.connectors.files.source.bad_records import BAD_RECORDS, OnBadRecord
from tidegate.connectors.interface import PollResult, SourceContext, SourceReader, Split
from tidegate.connectors.kafka.cluster import load_confluent_kafka
from tidegate.connectors.kafka.source.fetcher import Fetcher
from tidegate.connectors.kafka.source.inbox import Inbox, Received
from tidegate.connectors.kafka.source.partitions import next_offset, split_part
from tidegate.connectors.kafka.source.record_rows import RowBuilder, bad_batch, undecodable
from tidegate.connectors.kafka.source.topic_view import Part
from tidegate.errors import OutageError
from tidegate.jobs.status import OUTAGE

logger = logging.getLogger("tidegate.connectors")

MOST_ROWS = 16_384
"""Messages of one batch: large enough that its fixed cost does not count, and made in some 10 ms."""
RETRY_MS = 1_000
"""Wait for the next poll of a reader without messages, milliseconds. Messages end it, by the wake call."""


@dataclass
class _Reading:
    """A split while it is read. `offset` is the next one.

    Attributes:
        rows, bad: emitted rows, and records that could not be decoded, over all runs.
        time_ms: timestamp of the last record; None: unknown.
    """

    split: Split
    offset: int
    end: int | None
    rows: int = 0
    bad: int = 0
    finished: bool = False
    time_ms: int | None = None

    @classmethod
    def of(cls, split: Split) -> _Reading:
        """Begin at the position of a split."""
        position = split.position or {}
        return cls(
            split,
            next_offset(split),
            split.data["end"],
            position.get("rows", 0),
            position.get("bad", 0),
            split.finished,
            position.get("time_ms"),
        )

    @property
    def part(self) -> Part:
        """The partition."""
        return split_part(self.split)

    def is_at_end(self) -> bool:
        """Return whether no record is left before the end."""
        return self.end is not None and self.offset >= self.end

    def now(self) -> Split:
        """Return the split with its position (S4.2)."""
        if self.offset == next_offset(self.split) and self.finished == self.split.finished:
            return self.split
        position = {"offset": self.offset, "rows": self.rows, **({"bad": self.bad} if self.bad else {})}
        if self.time_ms is not None:
            position["time_ms"] = self.time_ms
        return replace(self.split, position=position, finished=self.finished)


class KafkaReader(SourceReader):
    """Reads its partitions with one consumer, a batch of one partition at a time.

    A position is the offset of the next record. It also moves over offsets without a record: markers of transactions,
    aborted records, and gaps of a compacted topic. A reader with partitions never reports itself idle: whether silence
    means idleness is for `idle_after` to decide (S4.4).
    """

    def __init__(
        self,
        ctx: SourceContext,
        rows: RowBuilder,
        connect: Callable[[Inbox], Fetcher],
        *,
        bounded: bool,
        publishes: bool,
        on_bad_record: OnBadRecord,
        outage_s: float,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        connect: creates the fetcher of an inbox; no I/O.
        publishes: commits offsets of the consumer group.
        outage_s: seconds for which a format's registry may not answer.
        """
        self._ctx, self._rows, self._bounded, self._publishes = ctx, rows, bounded, publishes
        self._on_bad_record, self._outage_s, self._now_s = on_bad_record, outage_s, monotonic_s
        self._inbox = Inbox(ctx.wake)
        self._fetcher = connect(self._inbox)
        self._reading: dict[str, _Reading] = {}
        self._no_more = self._changed = False
        self._now_ms = 0
        self._undecoded: Received | None = None
        self._undecoded_since_s: float | None = None
        self._undecoded_cause = ""
        self._outage_since_ms: int | None = None

    def add_splits(self, splits: Sequence[Split]) -> None:
        """Accept splits. The first ones start the consumer's thread."""
        added = {split.split_id: _Reading.of(split) for split in splits}
        self._reading |= added
        for reading in added.values():
            if not reading.finished and reading.is_at_end():
                reading.finished = self._changed = True
        fetched = [reading.now() for reading in added.values() if not reading.finished]
        if fetched:
            self._fetcher.add(fetched)
            if not self._fetcher.is_started:
                self._fetcher.start(f"kafka-{self._ctx.uid}-{self._ctx.subtask}")

    def no_more_splits(self) -> None:
        """Return `end` when all splits are read."""
        self._no_more = True

    def poll(self, now_ms: int) -> PollResult:
        """Return the next messages of the partition that has waited longest."""
        self._now_ms = now_ms
        while (received := self._undecoded or self._inbox.take(MOST_ROWS)) is not None:
            reading = self._reading[received.split_id]
            if reading.finished:
                continue
            try:
                polled = self._poll(reading, received)
            except OutageError as error:
                self._keep_undecoded(received, error)
                return self._nothing(now_ms)
            self._undecoded = self._undecoded_since_s = None
            if polled is not None:
                return polled
        changed, self._changed = self._changed, False
        if all(reading.finished for reading in self._reading.values()):
            if self._bounded and self._no_more:
                return PollResult(state="end", splits_changed=changed)
            return self._nothing(now_ms, idle=True, changed=changed)
        return self._nothing(now_ms, changed=changed)

    @staticmethod
    def _nothing(now_ms: int, *, idle: bool = False, changed: bool = False) -> PollResult:
        return PollResult(state="nothing_now", retry_at_ms=now_ms + RETRY_MS, idle=idle, splits_changed=changed)

    def _poll(self, reading: _Reading, received: Received) -> PollResult | None:
        """Process messages. Nothing has changed if it raises an error."""
        messages = _between(received.messages, reading.offset, reading.end)
        batch: pa.RecordBatch | None = None
        sides: dict[str, pa.RecordBatch] = {}
        offset, bad = reading.offset, 0
        if messages:
            rows = self._rows.rows(*reading.part, messages)
            offset, bad = messages[-1].offset() + 1, len(rows.bad)
            kind, time_ms = messages[-1].timestamp()
            reading.time_ms = time_ms if kind else reading.time_ms
            batch = rows.batch if rows.batch.num_rows else None
            if bad and self._on_bad_record == "fail":
                raise undecodable(*reading.part, rows.bad[0])
            if bad and self._on_bad_record == "dead_letter":
                sides = {BAD_RECORDS: bad_batch(*reading.part, rows.bad)}
        if len(messages) < len(received.messages) and reading.end is not None:
            offset = max(offset, reading.end)  # the first record after the end has come
        if received.reached is not None:
            offset = max(offset, received.reached)
        reading.offset, reading.bad = offset, reading.bad + bad
        reading.rows += 0 if batch is None else batch.num_rows
        if reading.is_at_end():
            reading.finished = self._changed = True
            self._fetcher.end(reading.split.split_id)
        if batch is not None:
            return PollResult(batch, reading.split.split_id, sides=sides)
        if not sides:
            return None
        changed, self._changed = self._changed, False
        return PollResult(sides=sides, splits_changed=changed)

    def _keep_undecoded(self, received: Received, error: OutageError) -> None:
        """Keep messages that cannot be decoded now. Raises the error after `outage_s`."""
        self._undecoded, self._undecoded_cause = received, error.what_and_why
        if self._undecoded_since_s is None:
            self._undecoded_since_s = self._now_s()
            logger.warning("records cannot be decoded now; the job waits for %g s: %s", self._outage_s, error)
        elif self._now_s() - self._undecoded_since_s >= self._outage_s:
            raise error

    def snapshot(self) -> Sequence[Split]:
        """Return all splits with the offset after the last record polled (S4.2)."""
        return [reading.now() for reading in self._reading.values()]

    def active_splits(self) -> frozenset[str]:
        """Return the partitions that are not read to their end."""
        return frozenset(split_id for split_id, reading in self._reading.items() if not reading.finished)

    def readable_until_ms(self) -> int | None:
        """Return the earliest time at which a topic may delete a record that was not read.

        A record is at least as old as the one before it. At the end of a partition, the next record is not written yet.
        Limits of size are not considered, because how fast a topic grows is not known.
        """
        return min(filter(None, map(self._kept_until_ms, self._reading.values())), default=None)

    def _kept_until_ms(self, reading: _Reading) -> int | None:
        limit_ms = self._fetcher.retention_ms.get(reading.part[0])
        if limit_ms is None or reading.finished:
            return None
        at_end = 0 <= self._fetcher.ends.get(reading.split.split_id, -1) <= reading.offset
        last_ms = self._now_ms if at_end else reading.time_ms
        return None if last_ms is None else last_ms + limit_ms

    def checkpoint_completed(self, checkpoint_id: int, splits: Sequence[Split]) -> None:
        """Publish the offsets of the checkpoint as offsets of the consumer group, for tools that show the lag."""
        if self._publishes:
            self._fetcher.commit({split_part(split): next_offset(split) for split in splits})

    def progress(self) -> Mapping[str, Any]:
        """Return rows emitted over all runs, the number of partitions, their lag in offsets, and an outage.

        The lag counts records and transaction markers. `lag` is left out until the cluster has reported all ends.
        """
        reading = self._reading.values()
        facts: dict[str, Any] = {"rows": sum(one.rows for one in reading), "partitions": len(reading)}
        ends = {one.split.split_id: self._fetcher.ends.get(one.split.split_id, -1) for one in reading}
        if not self._bounded and all(end >= 0 for end in ends.values()):
            facts["lag"] = sum(max(0, ends[one.split.split_id] - one.offset) for one in reading)
        return {**facts, **self._outage()}

    def _outage(self) -> dict[str, Any]:
        """Return the outage of the cluster or of a registry, as of the last poll; empty: there is none."""
        found = self._fetcher.outage
        if found is None and self._undecoded_since_s is not None:
            found = self._now_s() - self._undecoded_since_s, self._undecoded_cause
        if found is None:
            self._outage_since_ms = None
            return {}
        silent_s, cause = found
        if self._outage_since_ms is None:  # once, because the time of the last poll moves
            self._outage_since_ms = self._now_ms - round(silent_s * 1_000)
        since_ms, until_ms = self._outage_since_ms, self._outage_since_ms + round(self._outage_s * 1_000)
        return {OUTAGE: {"since": _iso(since_ms), "until": _iso(until_ms), "cause": cause}}

    def counters(self) -> Mapping[str, int]:
        """Return `bad_records`."""
        bad = sum(reading.bad for reading in self._reading.values())
        return {"bad_records": bad} if bad else {}

    def close(self) -> None:
        """End the consumer."""
        self._fetcher.close()


def _iso(time_ms: int) -> str:
    return iso(datetime.fromtimestamp(time_ms / 1_000, UTC))


def _between(messages: Sequence[Any], first: int, end: int | None) -> Sequence[Any]:
    """Return the messages with offsets from `first` on and before `end`."""
    offset_of = load_confluent_kafka().Message.offset
    begin = bisect_left(messages, first, key=offset_of) if messages and messages[0].offset() < first else 0
    if end is not None and messages and messages[-1].offset() >= end:
        return messages[begin : bisect_left(messages, end, key=offset_of)]
    return messages[begin:] if begin else messages
