"""How a subtask comes to its end (S7.1-S7.3). Pure."""

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
    """Every input has ended. `drain`: call finish first; then pass EndOfData(drain) on."""

    drain: bool


class SubtaskLifecycle:
    """From running over ended (EndOfData passed on) to finished.

    A subtask may finish when it has ended, every input channel has reached EndOfPartition, every part that it took of a
    snapshot is acknowledged, declined or aborted, and a snapshot that started after the end has completed and been
    committed; with `wait_for_final` False, or after `allow_finish`, the last condition falls away.
    """

    def __init__(self, channel_inputs: Sequence[int], *, wait_for_final: bool) -> None:
        """Args: channel_inputs: for each input channel the index of the input it belongs to."""
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
        """Where the subtask stands."""
        return self._phase

    @property
    def all_partitions_ended(self) -> bool:
        """Every input channel has reached EndOfPartition; sources: always."""
        return not self._open_partitions

    def end_of_data(self, channel: int, drain: bool) -> list[InputEnded | AllInputsEnded]:
        """EndOfData on `channel`; a channel counts once."""
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
        """EndOfPartition on `channel`."""
        self._open_partitions.discard(channel)

    def end_of_data_sent(self) -> None:
        """EndOfData has been sent to every output."""
        assert self._phase == "running", self._phase
        self._phase = "ended"

    def on_snapshot_taken(self, checkpoint_id: int) -> None:
        """A snapshot was taken; counts as final when the subtask had ended before. Its part keeps the subtask from
        finishing until `snapshot_settled`: a closed subtask would abort a snapshot that it takes part in (S7.3)."""
        self._unwritten.add(checkpoint_id)
        if self._phase == "ended":
            self._snapshots_after_end.add(checkpoint_id)

    def snapshot_settled(self, checkpoint_id: int) -> None:
        """The part of snapshot `checkpoint_id` is acknowledged, declined or aborted. May come repeatedly."""
        self._unwritten.discard(checkpoint_id)

    def committed(self, checkpoint_id: int) -> None:
        """Snapshot `checkpoint_id` completed and what it permits here is committed."""
        if checkpoint_id in self._snapshots_after_end:
            self._final_done = True

    def allow_finish(self) -> None:
        """No snapshot is to come."""
        self._wait_for_final = False

    @property
    def may_finish(self) -> bool:
        """Time to close and send EndOfPartition."""
        done = self._final_done or not self._wait_for_final
        return self._phase == "ended" and done and self.all_partitions_ended and not self._unwritten

    def finished(self) -> None:
        """EndOfPartition has been sent."""
        self._phase = "finished"
