"""The steps by which a subtask ends (S7.1-S7.3). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Phase = Literal["running", "ended", "finished"]


@dataclass(frozen=True, slots=True)
class InputEnded:
    """All channels of input `index` have ended. `drain`: call end_input for it."""

    index: int
    drain: bool


@dataclass(frozen=True, slots=True)
class AllInputsEnded:
    """Every input has ended. `drain`: call finish first; then send EndOfData(drain)."""

    drain: bool


class SubtaskLifecycle:
    """The way of a subtask from running through ended (EndOfData sent) to finished.

    A subtask may finish when all these conditions hold:

    - It has ended.
    - Every input channel has reached EndOfPartition.
    - Every part of a snapshot that it took is acknowledged, declined or aborted.
    - A snapshot that started after its end has completed and been committed. This condition does not apply with
      `wait_for_final` False or after `allow_finish`.
    """

    def __init__(self, channel_inputs: Sequence[int], *, wait_for_final: bool) -> None:
        """Args: channel_inputs: for each input channel the index of its input."""
        self._input_of = list(channel_inputs)
        self._open_data = set(range(len(self._input_of)))
        self._open_partitions = set(range(len(self._input_of)))
        self._drain: dict[int, bool] = {}
        self._wait_for_final = wait_for_final
        self._phase: Phase = "running"
        self._snapshots_after_end: set[int] = set()
        self._unwritten: set[int] = set()
        self._final_done = False

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self._phase

    @property
    def all_partitions_ended(self) -> bool:
        """True when every input channel has reached EndOfPartition. Always true in sources."""
        return not self._open_partitions

    def end_of_data(self, channel: int, drain: bool) -> list[InputEnded | AllInputsEnded]:
        """Process EndOfData on `channel`. Repeated calls for a channel have no effect."""
        if channel not in self._open_data:
            return []
        self._open_data.discard(channel)
        index = self._input_of[channel]
        self._drain[index] = self._drain.get(index, True) and drain
        out: list[InputEnded | AllInputsEnded] = []
        if not any(self._input_of[c] == index for c in self._open_data):
            out.append(InputEnded(index, self._drain[index]))
        if not self._open_data:
            out.append(AllInputsEnded(all(self._drain.values())))
        return out

    def end_of_partition(self, channel: int) -> None:
        """Process EndOfPartition on `channel`."""
        self._open_partitions.discard(channel)

    def end_of_data_sent(self) -> None:
        """Record that EndOfData has been sent to every output."""
        assert self._phase == "running", self._phase
        self._phase = "ended"

    def on_snapshot_taken(self, checkpoint_id: int) -> None:
        """Record that a snapshot was taken. It counts as final if the subtask had ended before.

        The subtask cannot finish until `snapshot_settled`, because a closed subtask would abort a snapshot that it
        takes part in (S7.3).
        """
        self._unwritten.add(checkpoint_id)
        if self._phase == "ended":
            self._snapshots_after_end.add(checkpoint_id)

    def snapshot_settled(self, checkpoint_id: int) -> None:
        """Record that the part of snapshot `checkpoint_id` is acknowledged, declined or aborted. May be repeated."""
        self._unwritten.discard(checkpoint_id)

    def committed(self, checkpoint_id: int) -> None:
        """Record that snapshot `checkpoint_id` has completed, and that this subtask has committed what it permits."""
        if checkpoint_id in self._snapshots_after_end:
            self._final_done = True

    def allow_finish(self) -> None:
        """Allow the end without a final snapshot, because none is coming."""
        self._wait_for_final = False

    @property
    def may_finish(self) -> bool:
        """True when the subtask may close and send EndOfPartition."""
        done = self._final_done or not self._wait_for_final
        return self._phase == "ended" and done and self.all_partitions_ended and not self._unwritten

    def finished(self) -> None:
        """Record that EndOfPartition has been sent."""
        self._phase = "finished"
