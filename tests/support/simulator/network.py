"""FIFO links with arbitrary delays: data channels between slots, control links between driver and slots."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic

import pyarrow as pa

from simulator.faults import Faults
from simulator.scheduler import Process, Scheduler
from tidegate.channel.control.protocol_codec import M, received
from tidegate.channel.elements import CheckpointBarrier, Element, EndOfPartition, Watermark
from tidegate.channel.ports import Announce, Announced, elements_before_barrier

ROW_BYTES = 48
"""Size of a row, for the credit of channels: asking Arrow costs more than sending the batch."""
SLOW_CHANNELS = 0.25
"""Share of channels on which elements take long: what comes on the others must wait, or is overtaken."""
SLOW_MS = 250
"""Longest delay on a slow channel, milliseconds."""
OnWatermark = Callable[[int, int], None]
"""(channel id, time in microseconds)."""


class DataChannel:
    """Both ends of one channel; elements become visible to the receiver in order, each after a delay of its own."""

    def __init__(
        self,
        channel_id: int,
        capacity_bytes: int,
        slow: float,
        scheduler: Scheduler,
        faults: Faults,
        on_watermark: OnWatermark,
    ) -> None:
        self.receiver: Process | None = None
        self.wake: Callable[[float], None] = lambda delay_ms: None
        self.wake_sender: Callable[[float], None] = lambda delay_ms: None
        self._channel_id = channel_id
        self._capacity_bytes = capacity_bytes
        self._scheduler = scheduler
        self._faults = faults
        self._on_watermark = on_watermark
        self._queue: deque[tuple[int, Element, int]] = deque()
        self._announcements: deque[Announced] = deque()
        self._announce: Announce | None = None
        self._limit_bytes = capacity_bytes
        self._unconsumed_bytes = 0
        self._last_ms = 0
        self._slowness_ms = scheduler.upto(SLOW_MS if scheduler.chance(slow) else 6)

    @property
    def queued_bytes(self) -> int:
        """Arrived and not polled."""
        return sum(size for at_ms, _, size in self._queue if at_ms <= self._scheduler.now_ms)

    def has_capacity(self) -> bool:
        """Another record batch may be sent."""
        return self._unconsumed_bytes < self._limit_bytes

    def overdraw(self, allowed: bool) -> None:
        """See `OutputChannel.overdraw`."""
        self._limit_bytes = self._capacity_bytes * (2 if allowed else 1)

    def send(self, element: Element) -> None:
        """Put `element` on its way."""
        size = 0
        if isinstance(element, pa.RecordBatch):
            assert self._unconsumed_bytes < self._limit_bytes, "a record batch was sent on a full channel"
            size = element.num_rows * ROW_BYTES
            self._unconsumed_bytes += size
        elif isinstance(element, Watermark):
            self._on_watermark(self._channel_id, element.time_us)
        delay_ms = self._scheduler.upto(self._slowness_ms if self._faults.active else 6)
        if self._faults.strikes("channel_stall"):
            delay_ms += self._scheduler.upto(300)
        self._last_ms = max(self._last_ms, self._scheduler.now_ms + delay_ms)
        self._queue.append((self._last_ms, element, size))
        self.wake(self._last_ms - self._scheduler.now_ms)
        if self._announce is not None and isinstance(element, CheckpointBarrier | EndOfPartition):
            self._announcements.append(element)
            self._scheduler.after(self._last_ms - self._scheduler.now_ms, self._tell, self.receiver)

    def on_barrier_queued(self, announce: Announce) -> None:
        """See `InputChannel.on_barrier_queued`."""
        self._announce = announce

    def queued_before(self, checkpoint_id: int) -> list[Element]:
        """See `InputChannel.queued_before`."""
        now_ms = self._scheduler.now_ms
        return elements_before_barrier(checkpoint_id, (element for at_ms, element, _ in self._queue if at_ms <= now_ms))

    def _tell(self) -> None:
        """One for each call: a stalled receiver learns of them late, in order."""
        assert self._announce is not None
        self._announce(self._announcements.popleft())
        self.wake(0)

    def poll(self) -> Element | None:
        """The next element that has arrived."""
        if not self._queue or self._queue[0][0] > self._scheduler.now_ms:
            return None
        _, element, size = self._queue.popleft()
        if size:
            self._unconsumed_bytes -= size
            self.wake_sender(1)
        return element

    def next_batch_bytes(self) -> int:
        """See `InputChannel.next_batch_bytes`."""
        arrived = bool(self._queue) and self._queue[0][0] <= self._scheduler.now_ms
        return self._queue[0][2] if arrived else 0


class ControlLink(Generic[M]):
    """One direction of a control connection: messages in order. Once cut, nothing arrives any more."""

    def __init__(self, scheduler: Scheduler, target: Process, deliver: Callable[[M], None]) -> None:
        self._scheduler = scheduler
        self._target = target
        self._deliver = deliver
        self._last_ms = 0
        self._on_the_way: deque[M] = deque()
        self.cut = False

    def send(self, message: M) -> None:
        """Put a message on its way."""
        if self.cut:
            return
        self._last_ms = max(self._last_ms, self._scheduler.now_ms + self._scheduler.upto(8))
        self._on_the_way.append(received(message))
        self._scheduler.after(self._last_ms - self._scheduler.now_ms, self._arrive, self._target)

    def _arrive(self) -> None:
        """One message for each call: a stalled receiver gets them late, in order."""
        if not self.cut:
            self._deliver(self._on_the_way.popleft())
