"""The input channels of one subtask: which element comes next, and what has arrived but is not due yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from tidegate.channel.elements import Element
from tidegate.channel.ports import Announce, Announced
from tidegate.subtask.input_port import InputPort
from tidegate.subtask.snapshots.in_flight_capture import InFlightCaptures


class Inputs:
    """Takes elements from the ports in turn; what a restored snapshot held in flight before any of them (S3.7).

    Attributes:
        ports: by channel number.
        news: (channel number, barrier or end) that arrived in a queue; filled by any thread, emptied by the subtask.
        recording: which channels are being captured; see `InFlightCaptures`.
    """

    def __init__(
        self, ports: Sequence[InputPort], captures: InFlightCaptures, replay: Iterable[tuple[int, Element]] = ()
    ) -> None:
        """Args: replay: (channel number, element) in the order in which they are taken."""
        self.ports = list(ports)
        self.news: deque[tuple[int, Announced]] = deque()
        self._captures = captures
        self._recording = captures.recording
        self._replay = deque(replay)
        self._next = 0

    def listen(self) -> None:
        """From now on learn of barriers and ends as they arrive. Once, before anything does."""
        for number, port in enumerate(self.ports):
            port.channel.on_barrier_queued(self._announce(number))

    def take(self) -> tuple[int, Element] | None:
        """(channel number, element), or None when no channel that may be processed has any. A barrier is never taken
        before the whole replay: what is replayed lies in front of it."""
        if self._replay:
            return self._replay.popleft()
        ports = self.ports
        for k in range(len(ports)):
            number = (self._next + k) % len(ports)
            port = ports[number]
            if port.blocked or port.ended:
                continue
            element = port.channel.poll()
            if element is not None:
                self._next = (number + 1) % len(ports)
                if number in self._recording:
                    self._captures.record(number, element)
                return number, element
        return None

    def replay_left(self) -> list[tuple[int, Element]]:
        """What of the replay has not been taken."""
        return list(self._replay)

    @property
    def any_blocked(self) -> bool:
        """Some channel waits for the barriers of others."""
        return any(port.blocked for port in self.ports)

    def unblock(self) -> None:
        """Process every channel."""
        for port in self.ports:
            port.blocked = False

    def _announce(self, number: int) -> Announce:
        return lambda event: self.news.append((number, event))
