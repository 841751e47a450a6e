"""The input channels of one subtask: the next element to process, and events that have arrived in the queues."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from tidegate.channel.elements import Element
from tidegate.channel.ports import Announce, Announced
from tidegate.subtask.input_port import InputPort
from tidegate.subtask.snapshots.in_flight_capture import InFlightCaptures


class Inputs:
    """Takes elements from the ports in turn. In-flight records of a restored snapshot come before all others (S3.7).

    Attributes:
        ports: ports by channel number.
        news: (channel number, barrier or end) that has arrived in a queue. Filled by any thread, emptied by the
            subtask.
        recording: channels that are being captured; see `InFlightCaptures`.
    """

    def __init__(
        self, ports: Sequence[InputPort], captures: InFlightCaptures, replay: Iterable[tuple[int, Element]] = ()
    ) -> None:
        """Args: replay: (channel number, element) in the order of processing."""
        self.ports = list(ports)
        self.news: deque[tuple[int, Announced]] = deque()
        self._captures = captures
        self._recording = captures.recording
        self._replay = deque(replay)
        self._next = 0

    def listen(self) -> None:
        """Subscribe to barriers and ends as they arrive. Call it once, before any arrives."""
        for number, port in enumerate(self.ports):
            port.channel.on_barrier_queued(self._announce(number))

    def take(self) -> tuple[int, Element] | None:
        """Return (channel number, element), or None if no unblocked channel has an element.

        No barrier is returned before the end of the replay, because replayed records precede it.
        """
        if self._replay:
            return self._replay.popleft()
        ports = self.ports
        for k in range(len(ports)):
            # Start after the channel that delivered last, so that a busy channel does not starve the others.
            number = (self._next + k) % len(ports)
            port = ports[number]
            if port.blocked or port.ended:
                continue
            element = port.channel.poll()
            if element is not None:
                self._next = (number + 1) % len(ports)
                # The synchronous part of the snapshot is over: this element is in no state unless it is recorded here.
                if number in self._recording:
                    self._captures.record(number, element)
                return number, element
        return None

    def replay_left(self) -> list[tuple[int, Element]]:
        """Return the elements of the replay that have not been taken."""
        return list(self._replay)

    @property
    def any_blocked(self) -> bool:
        """True if a channel waits for the barriers of other channels."""
        return any(port.blocked for port in self.ports)

    def unblock(self) -> None:
        """Unblock every channel."""
        for port in self.ports:
            port.blocked = False

    def _announce(self, number: int) -> Announce:
        return lambda event: self.news.append((number, event))
