"""Unaligned snapshots between their synchronous part and the last barrier: in-flight records become state (S3.7).

`snapshot_metrics` returns the metrics of every snapshot, also of aligned ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tidegate.channel.elements import MAX_WATERMARK, CheckpointBarrier, Element, Watermark, batch_bytes
from tidegate.snapshot.channel_state import InFlightElement, channel_part
from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.subtask.alignment import AlignmentAction, CaptureComplete, CaptureQueued, RecordChannel, StopRecording
from tidegate.subtask.input_port import InputPort

MAX_RECORDED_BYTES = 256 * 2**20
"""Most bytes of batches that one snapshot keeps in memory because they were processed before the last barrier arrived.
Queued batches do not count. A snapshot that exceeds the limit is aborted: the barrier of a channel is too late."""

Parts = Sequence[tuple[str, AsyncSnapshot]]


@dataclass
class InFlightCapture:
    """One snapshot whose channel state is being collected.

    Attributes:
        parts: the operators' frozen states.
        metrics: metrics of the acknowledgement.
        finished: all data had been processed when it was taken.
        elements: elements by channel number, in order.
    """

    checkpoint_id: int
    parts: Parts
    metrics: dict[str, float]
    finished: bool
    elements: dict[int, list[Element]] = field(default_factory=dict)
    recorded_bytes: int = 0

    def add(self, channel: int, element: Element) -> None:
        """Add an element if it is state: a batch, or a watermark before MAX_WATERMARK.

        Idleness and the end are not state, because upstream sends them again after a restore.
        """
        if isinstance(element, pa.RecordBatch) or (isinstance(element, Watermark) and element.time_us < MAX_WATERMARK):
            self.elements.setdefault(channel, []).append(element)


def snapshot_metrics(
    barrier: CheckpointBarrier, first_ms: int, started_ms: int, ended_ms: int, *, unaligned: bool
) -> dict[str, float]:
    """Return metrics of the acknowledgement at the end of the synchronous part.

    Args:
        first_ms: when the first barrier, or the trigger, arrived.
        started_ms, ended_ms: start and end of the synchronous part.
    """
    return {
        "sync_ms": float(ended_ms - started_ms),
        "alignment_ms": float(max(0, started_ms - first_ms)),
        # max: the trigger time is from the driver's clock, which may be ahead of the clock of this slot.
        "start_delay_ms": float(max(0, first_ms - barrier.triggered_ms)),
        "unaligned": float(unaligned),
        "in_flight_bytes": 0.0,
    }


class InFlightCaptures:
    """All captures of one subtask. Carries out the aligner's actions on them.

    Attributes:
        recording: channel number -> ids of the snapshots for which it is recorded.
    """

    def __init__(
        self,
        ports: Sequence[InputPort],
        subtask: int,
        parallelism: int,
        head_uid: str,
        give_up: Callable[[int, str], None],
    ) -> None:
        """Args: head_uid: operator under which channel state is stored. give_up: aborts a snapshot, with the reason."""
        self.recording: dict[int, list[int]] = {}
        self._ports = ports
        self._subtask = subtask
        self._parallelism = parallelism
        self._head_uid = head_uid
        self._give_up = give_up
        self._captures: dict[int, InFlightCapture] = {}

    def begin(self, capture: InFlightCapture, replay_left: Iterable[tuple[int, Element]]) -> None:
        """Start a capture after the synchronous part. Elements of `replay_left` precede everything that is queued."""
        self._captures[capture.checkpoint_id] = capture
        for channel, element in replay_left:
            capture.add(channel, element)

    def apply(self, action: AlignmentAction) -> InFlightCapture | None:
        """Carry out an action. Return the capture, with channel state among its parts, if the action completed it."""
        match action:
            case RecordChannel(checkpoint_id, channel):
                self.recording.setdefault(channel, []).append(checkpoint_id)
            case StopRecording(checkpoint_id, channel):
                self._stop(checkpoint_id, channel)
            case CaptureQueued(checkpoint_id, channel):
                self._stop(checkpoint_id, channel)
                for element in self._ports[channel].channel.queued_before(checkpoint_id):
                    self._captures[checkpoint_id].add(channel, element)
            case CaptureComplete(checkpoint_id):
                return self._complete(self._captures.pop(checkpoint_id))
        return None

    def record(self, channel: int, element: Element) -> None:
        """Record `element`, which was polled from a channel in `recording`."""
        # A copy, because giving up a snapshot removes its id from the list.
        for checkpoint_id in tuple(self.recording[channel]):
            capture = self._captures[checkpoint_id]
            capture.add(channel, element)
            if isinstance(element, pa.RecordBatch):
                capture.recorded_bytes += batch_bytes(element)
                if capture.recorded_bytes > MAX_RECORDED_BYTES:
                    self._give_up(
                        checkpoint_id,
                        f"more than {MAX_RECORDED_BYTES:,} bytes arrived before the last barrier of the snapshot",
                    )

    def drop(self, checkpoint_id: int) -> None:
        """Drop the capture of an aborted snapshot."""
        if self._captures.pop(checkpoint_id, None) is not None:
            for channel in list(self.recording):
                self._stop(checkpoint_id, channel)

    def _stop(self, checkpoint_id: int, channel: int) -> None:
        ids = self.recording.get(channel, [])
        if checkpoint_id in ids:
            ids.remove(checkpoint_id)
            if not ids:
                del self.recording[channel]

    def _complete(self, capture: InFlightCapture) -> InFlightCapture:
        in_flight = [
            InFlightElement(
                self._ports[channel].input_index,
                self._ports[channel].source,
                element.time_us if isinstance(element, Watermark) else element,
            )
            for channel, elements in sorted(capture.elements.items())
            for element in elements
        ]
        capture.metrics["in_flight_bytes"] = float(sum(element.size_bytes for element in in_flight))
        if in_flight:
            capture.parts = self._with_channels(capture.parts, in_flight)
        return capture

    def _with_channels(self, parts: Parts, in_flight: Sequence[InFlightElement]) -> Parts:
        # An operator has one handle in a snapshot, so channel state joins the own parts of the chain's head.
        own = dict(parts).get(self._head_uid)

        def write() -> Sequence[StatePart]:
            channels = channel_part(in_flight, self._subtask, self._parallelism)
            return [*(own() if own is not None else ()), channels]

        return [(uid, part) for uid, part in parts if uid != self._head_uid] + [(self._head_uid, write)]
