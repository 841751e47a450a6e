"""The outputs of a chain: its edges and their channels."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from tidegate.channel.elements import Element, SplitChanged, Watermark, batch_bytes
from tidegate.channel.ports import OutputChannel
from tidegate.operators.stream_operator import MAIN_OUTPUT, EmissionPaused, SideOutput
from tidegate.subtask.scatter import Divided, Scatter

Partitioner = Callable[[pa.RecordBatch], Sequence[pa.RecordBatch | None]]
"""Splits a batch into one batch (or None) per channel."""
PreAggregate = Callable[[pa.RecordBatch], pa.RecordBatch]
"""Aggregates a batch before it is partitioned, or returns it as it is."""
Emitted: TypeAlias = Element | SideOutput | EmissionPaused
"""Emission of a subtask: an element of its main output, rows of a side output, or a pause."""


@dataclass
class OutputEdge:
    """One edge of the ExecutionPlan as one subtask sees it.

    Attributes:
        channels: one for `forward`, else one per target subtask.
        partition: for `hash`; None sends each batch to every channel (`forward` has one, `broadcast` all).
        round_robin: for `rebalance`.
        output: name of the chain's output whose records it sends.
        first: channel with which `rebalance` begins; it differs between senders.
        tells_splits: its reader needs to know the split of the source.
        columns: columns that it carries; None: all. Other columns are dropped before the batch is divided.
        gathered_bytes: bytes of parts, over all channels, that are gathered within one emission before they are sent;
            0: each part is sent at once. Only with `partition`.
        channel_bytes: bytes of parts for one channel with which they are sent, too: a hot key may receive all rows.
        pre_aggregate: applied before the batch is divided; None: batches are sent as they are.
        scatter: sends large batches without `partition`; None: all batches are cut. Only with `gathered_bytes`.
    """

    channels: Sequence[OutputChannel]
    partition: Partitioner | None = None
    round_robin: bool = False
    output: str = MAIN_OUTPUT
    first: int = 0
    tells_splits: bool = False
    columns: Sequence[str] | None = None
    gathered_bytes: int = 0
    pre_aggregate: PreAggregate | None = None
    channel_bytes: int = sys.maxsize
    scatter: Scatter | None = None

    def __post_init__(self) -> None:
        self._next = self.first
        self._parts: list[Sequence[pa.RecordBatch | None]] = []
        self._divided: list[Divided] = []
        self._parts_bytes = 0
        self._fullest_bytes = 0
        self._schema: pa.Schema | None = None
        self._watermark: Watermark | None = None

    @property
    def gathers(self) -> bool:
        """True while it holds parts, and takes more."""
        return bool(self._parts or self._divided)

    @property
    def holds_back(self) -> bool:
        """True while it holds parts for which its channels have no capacity."""
        return self.gathers and not self.has_capacity()

    def has_capacity(self) -> bool:
        """Return whether another batch may be sent on every channel."""
        for channel in self.channels:  # noqa: SIM110 - asked at every step, twice as fast
            if not channel.has_capacity():
                return False
        return True

    def send(self, element: Element) -> None:
        """Send a batch to its channels, or an event to every channel (S3.1).

        Parts of a batch are gathered if `gathered_bytes` is set, until they are enough, or until `flush`. A watermark
        that follows them waits with them, and replaces an earlier one. All other events send the parts first.
        """
        if not isinstance(element, pa.RecordBatch):
            if self.gathers:
                if isinstance(element, Watermark):
                    self._watermark = element
                    return
                self.flush()
            for channel in self.channels:
                channel.send(element)
            return
        batch = element if self.columns is None else element.select(self.columns)
        if self.pre_aggregate is not None:
            batch = self.pre_aggregate(batch)
        if self.partition is not None:
            self._send_parts(batch, self.partition)
        elif self.round_robin:
            self.channels[self._next].send(batch)
            self._next = (self._next + 1) % len(self.channels)
        else:
            for channel in self.channels:
                channel.send(batch)

    def _send_parts(self, batch: pa.RecordBatch, partition: Partitioner) -> None:
        divided = self.scatter.divide(batch) if self.scatter is not None and self.gathered_bytes else None
        if divided is not None:
            if self._parts:
                self.flush()
            self._divided.append(divided)
            most_rows = int(divided.counts.max())
        else:
            parts = partition(batch)
            if not self.gathered_bytes:
                self._send_each(parts)
                return
            # Partial and raw rows, or columns with and without nulls, cannot be joined.
            if self._divided or (self._parts and not batch.schema.equals(self._schema, check_metadata=True)):
                self.flush()
            self._parts.append(parts)
            self._schema = batch.schema
            most_rows = max((part.num_rows for part in parts if part is not None), default=0)
        self._count(batch, most_rows)

    def _count(self, batch: pa.RecordBatch, most_rows: int) -> None:
        """Send what is gathered if it is enough with this batch. Args: most_rows: for one channel."""
        size_bytes = batch_bytes(batch)
        self._parts_bytes += size_bytes
        self._fullest_bytes += most_rows * size_bytes // max(1, batch.num_rows)
        # If parts of another schema have just been sent, these may have to wait for capacity.
        is_enough = self._parts_bytes >= self.gathered_bytes or self._fullest_bytes >= self.channel_bytes
        if is_enough and self.has_capacity():
            self.flush()

    def flush(self) -> None:
        """Send the gathered parts, at most one batch on each channel, and the watermark after them.

        Call it at the end of every emission, so that no output waits for a later step, and only if `has_capacity` is
        true or was true before the parts were gathered: nothing was sent since. See `holds_back`.
        """
        if not self.gathers:
            return
        gathered, self._parts = self._parts, []
        divided, self._divided = self._divided, []
        self._parts_bytes = self._fullest_bytes = 0
        watermark, self._watermark = self._watermark, None
        if divided:
            assert self.scatter is not None
            self.scatter.send(divided)
        else:
            self._send_each(
                gathered[0] if len(gathered) == 1 else [_joined(parts) for parts in zip(*gathered, strict=True)]
            )
        if watermark is not None:
            for channel in self.channels:
                channel.send(watermark)

    def _send_each(self, parts: Sequence[pa.RecordBatch | None]) -> None:
        for channel, part in zip(self.channels, parts, strict=True):
            if part is not None and part.num_rows:
                channel.send(part)


def _joined(parts: Sequence[pa.RecordBatch | None]) -> pa.RecordBatch | None:
    """Return the parts of one channel as one batch."""
    filled = [part for part in parts if part is not None and part.num_rows]
    if len(filled) <= 1:
        return filled[0] if filled else None
    return pa.concat_batches(filled)


@dataclass
class Router:
    """All output edges of one subtask."""

    edges: Sequence[OutputEdge]
    rows_out: int = 0
    _turn: SplitChanged | None = None

    def announce_split(self, turn: SplitChanged) -> bool:
        """Send a change of split before the records that follow. Needs no capacity. Return whether there was a change:
        repeated calls have no effect."""
        if turn is self._turn:
            return False
        self._turn = turn
        self.send(turn)
        return True

    def overdraw(self, allowed: bool) -> None:
        """See `OutputChannel.overdraw`."""
        for edge in self.edges:
            for channel in edge.channels:
                channel.overdraw(allowed)

    def has_capacity(self) -> bool:
        """Return whether every edge accepts another batch, of any output. If not, the subtask waits."""
        for edge in self.edges:  # noqa: SIM110
            if not edge.has_capacity():
                return False
        return True

    @property
    def gathers(self) -> bool:
        """True while an edge holds parts of small batches, and takes more of them."""
        return any(edge.gathers for edge in self.edges)

    @property
    def holds_back(self) -> bool:
        """True while an edge holds parts for which its channels have no capacity."""
        return any(edge.holds_back for edge in self.edges)

    def flush(self) -> None:
        """Send all parts that edges hold. See `OutputEdge.flush`."""
        for edge in self.edges:
            edge.flush()

    def send(self, element: Element | SideOutput) -> None:
        """Send records to every edge of their output, and events to every edge, in order."""
        if isinstance(element, pa.RecordBatch):
            self._records(MAIN_OUTPUT, element)
        elif isinstance(element, SideOutput):
            self._records(element.name, element.batch)
        elif isinstance(element, SplitChanged):
            for edge in self.edges:
                if edge.tells_splits:
                    edge.send(element)
        else:
            for edge in self.edges:
                edge.send(element)

    def _records(self, output: str, batch: pa.RecordBatch) -> None:
        self.rows_out += batch.num_rows
        for edge in self.edges:
            if edge.output == output:
                edge.send(batch)
