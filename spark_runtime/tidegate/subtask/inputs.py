"""The input channels of one subtask: the next element to process, and events that have arrived in the queues."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from tidegate.channel.elements import Element, batch_bytes
from tidegate.channel.ports import Announce, Announced
from tidegate.snapshot.partial_rows import is_partial
from tidegate.subtask.input_port import InputPort
from tidegate.subtask.snapshots.in_flight_capture import InFlightCaptures


class Inputs:
    """Takes elements from the ports in turn. In-flight records of a restored snapshot come before all others (S3.7).

    Small batches that have arrived are merged, because a batch of a few rows costs an operator as much as one of a
    thousand. No input waits for more batches. A merged batch holds the next batches of one or more channels, up to each
    channel's next event. So it is what the operator would process without an event between them (S3.1, S4.4).

    While the operator works on a batch for several turns, `gather` takes the batches that arrive in the meantime. They
    are the beginning of the next merged batch, which may so be larger than the channels.

    Attributes:
        ports: ports by channel number.
        news: (channel number, barrier or end) that has arrived in a queue. Filled by any thread, emptied by the
            subtask.
        recording: channels that are being captured; see `InFlightCaptures`.
    """

    def __init__(
        self,
        ports: Sequence[InputPort],
        captures: InFlightCaptures,
        replay: Iterable[tuple[int, Element]] = (),
        *,
        merged_bytes: Callable[[], int],
    ) -> None:
        """Args: replay: (channel number, element) in the order of processing. merged_bytes: returns the most bytes of
        a merged batch; 0: batches are not merged."""
        self.ports = list(ports)
        self._merged_bytes = merged_bytes
        self._gathered: list[tuple[int, pa.RecordBatch]] = []
        self._gathered_bytes = 0
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
        if self._gathered:
            self.gather()
            return self._merged()
        ports = self.ports
        for k in range(len(ports)):
            # Start after the channel that delivered last, so that a busy channel does not starve the others.
            number = (self._next + k) % len(ports)
            port = ports[number]
            if port.blocked or port.ended:
                continue
            size_bytes = port.channel.next_batch_bytes()
            element = self._poll(number)
            if element is not None:
                self._next = (number + 1) % len(ports)
                if isinstance(element, pa.RecordBatch) and 0 < size_bytes < self._merged_bytes():
                    self._gathered, self._gathered_bytes = [(number, element)], size_bytes
                    self._gather_from(number)
                    return self._merged()
                return number, element
        return None

    def gather(self) -> None:
        """Take batches that have arrived, up to the size of a merged batch. `take` returns them next."""
        if not self._replay:  # replayed records come first
            self._gather_from(self._gathered[0][0] if self._gathered else self._next)

    def _poll(self, number: int) -> Element | None:
        element = self.ports[number].channel.poll()
        # The synchronous part of the snapshot is over: this element is in no state unless it is recorded here.
        if element is not None and number in self._recording:
            self._captures.record(number, element)
        return element

    def _gather_from(self, first: int) -> None:
        """Take the next batches of the channels of one input, from channel `first` on."""
        ports, gathered, most_bytes = self.ports, self._gathered, self._merged_bytes()
        for k in range(len(ports)):
            number = (first + k) % len(ports)
            port = ports[number]
            if port.blocked or port.ended or (gathered and port.input_index != ports[gathered[0][0]].input_index):
                continue
            while 0 < (next_bytes := port.channel.next_batch_bytes()) <= most_bytes - self._gathered_bytes:
                element = self._poll(number)
                assert isinstance(element, pa.RecordBatch)
                gathered.append((number, element))
                self._gathered_bytes += next_bytes

    def _merged(self) -> tuple[int, pa.RecordBatch]:
        """Return the gathered batches as one."""
        gathered, self._gathered, self._gathered_bytes = self._gathered, [], 0
        number, batch = gathered[0]
        if len(gathered) == 1:
            return number, batch
        kind = is_partial(batch.schema)
        other = next(
            (i for i, (_, element) in enumerate(gathered) if is_partial(element.schema) != kind), len(gathered)
        )
        # The rest begins the next merged batch. Its order in a channel stays the same.
        gathered, self._gathered = gathered[:other], gathered[other:]
        self._gathered_bytes = sum(batch_bytes(element) for _, element in self._gathered)
        try:
            return number, pa.concat_batches([element for _, element in gathered])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            # Dictionaries with too many values together. The batches stay apart, and are captured like a replay.
            self._replay.extend(gathered[1:])
            return number, batch

    def replay_left(self) -> list[tuple[int, Element]]:
        """Return the elements that were replayed or polled, and have not been taken."""
        return [*self._replay, *self._gathered]

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
