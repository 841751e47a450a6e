"""Barrier alignment over the input channels of one subtask (S3.2-S3.5). Pure: events in, actions out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from tidegate.channel.elements import CheckpointBarrier

AlignmentMode = Literal["exactly_once", "at_least_once"]


@dataclass(frozen=True, slots=True)
class Block:
    """Do not process `channel` until UnblockAll."""

    channel: int


@dataclass(frozen=True, slots=True)
class UnblockAll:
    """Resume every channel."""


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """All barriers are here. `first_ms`: when the first one came, by the caller's clock."""

    barrier: CheckpointBarrier
    first_ms: int


@dataclass(frozen=True, slots=True)
class AlignmentAborted:
    """The alignment of `checkpoint_id` is given up; report it to the coordinator."""

    checkpoint_id: int
    reason: str


@dataclass(frozen=True, slots=True)
class ForwardCancel:
    """Send the cancel marker of `checkpoint_id` downstream, once."""

    checkpoint_id: int


AlignmentAction: TypeAlias = Block | UnblockAll | TakeSnapshot | AlignmentAborted | ForwardCancel


@dataclass
class _Alignment:
    barrier: CheckpointBarrier
    first_ms: int
    arrived: set[int]


class BarrierAligner:
    """Alignment state of one subtask.

    Exactly-once keeps at most one alignment and blocks the channels that have delivered its barrier; at-least-once
    keeps
    every one that can still complete and blocks nothing.
    """

    def __init__(self, channels: int, mode: AlignmentMode) -> None:
        """Args: channels: number of input channels, numbered from 0."""
        self._channels = channels
        self._exactly_once = mode == "exactly_once"
        self._closed: set[int] = set()
        self._current: dict[int, _Alignment] = {}
        self._newest_done = 0
        self._cancelled: set[int] = set()
        self._forwarded: set[int] = set()

    @property
    def aligning(self) -> tuple[int, ...]:
        """Ids being aligned."""
        return tuple(self._current)

    def barrier(self, channel: int, barrier: CheckpointBarrier, now_ms: int) -> list[AlignmentAction]:
        """Barrier on `channel`."""
        n = barrier.checkpoint_id
        if n <= self._newest_done or n in self._cancelled:
            return []
        actions: list[AlignmentAction] = []
        alignment = self._current.get(n)
        if alignment is None:
            if self._exactly_once and self._current:
                older = next(iter(self._current))
                if n < older:
                    return []
                actions += self._give_up(older, f"barrier {n} came before all barriers {older}")
            alignment = self._current[n] = _Alignment(barrier, now_ms, set())
        alignment.arrived.add(channel)
        if self._is_complete(alignment):
            return actions + self._complete(n)
        if self._exactly_once:
            actions.append(Block(channel))
        return actions

    def end_of_partition(self, channel: int) -> list[AlignmentAction]:
        """`channel` has ended: it counts as having delivered every barrier (S3.5)."""
        self._closed.add(channel)
        complete = [n for n, alignment in self._current.items() if self._is_complete(alignment)]
        return self._complete(max(complete)) if complete else []

    def cancel(self, checkpoint_id: int) -> list[AlignmentAction]:
        """A cancel marker came in-band, before or after barriers of its id (S3.4)."""
        if checkpoint_id <= self._newest_done or checkpoint_id in self._cancelled:
            return []
        actions = self._drop(checkpoint_id)
        actions.append(AlignmentAborted(checkpoint_id, "a subtask upstream could not take part"))
        if checkpoint_id not in self._forwarded:
            self._forwarded.add(checkpoint_id)
            actions.append(ForwardCancel(checkpoint_id))
        return actions

    def abort(self, checkpoint_id: int) -> list[AlignmentAction]:
        """The coordinator aborted `checkpoint_id`: remembered, unblocks (S2.2)."""
        if checkpoint_id <= self._newest_done or checkpoint_id in self._cancelled:
            return []
        return self._drop(checkpoint_id)

    def _drop(self, checkpoint_id: int) -> list[AlignmentAction]:
        self._cancelled.add(checkpoint_id)
        was_aligning = self._current.pop(checkpoint_id, None) is not None
        return [UnblockAll()] if was_aligning and self._exactly_once else []

    def _give_up(self, checkpoint_id: int, reason: str) -> list[AlignmentAction]:
        actions = self._drop(checkpoint_id)
        self._newest_done = max(self._newest_done, checkpoint_id)
        self._forget_old()
        return [*actions, AlignmentAborted(checkpoint_id, reason)]

    def _is_complete(self, alignment: _Alignment) -> bool:
        return len(alignment.arrived | self._closed) == self._channels

    def _complete(self, checkpoint_id: int) -> list[AlignmentAction]:
        done = self._current.pop(checkpoint_id)
        for older in [n for n in self._current if n < checkpoint_id]:
            del self._current[older]
        self._newest_done = max(self._newest_done, checkpoint_id)
        self._forget_old()
        take = TakeSnapshot(done.barrier, done.first_ms)
        if self._exactly_once and self._channels > 1:
            return [UnblockAll(), take]
        return [take]

    def _forget_old(self) -> None:
        self._cancelled = {n for n in self._cancelled if n > self._newest_done}
        self._forwarded = {n for n in self._forwarded if n > self._newest_done}
