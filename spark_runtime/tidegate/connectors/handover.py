"""What passes from a push source's threads to the loop: records and position as one thing, under one lock (S4.1)."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from tidegate.connectors.interface import Split
from tidegate.errors import PipelineError

ENTRY_BYTES = 512
"""What an entry counts besides its records, bytes: bounds how many entries without records can wait."""
MAX_PUSH_ROWS = 65_536
"""Most rows of one emission: the loop takes it as one batch, and takes nothing else meanwhile."""


class PushClosedError(Exception):
    """The reader was closed: the run is over, and what is emitted now belongs to nobody. End the thread."""


@dataclass(frozen=True)
class Taken:
    """What the loop got.

    Attributes:
        batch, split_id: records and where they came from, or neither.
        finished: a split ended, with the batch or without one.
        idle: nothing is left, and the pusher said that nothing comes.
    """

    batch: pa.RecordBatch | None = None
    split_id: str | None = None
    finished: bool = False
    idle: bool = False


@dataclass(frozen=True)
class _Entry:
    """One emission, or the end of a split. `position` is the split's after `batch`."""

    split_id: str
    batch: pa.RecordBatch | None
    position: Any
    finishes: bool
    size_bytes: int


class Handover:
    """A bounded queue between a pusher's threads and the loop, and the positions on the loop's side.

    The lock is the subtask's checkpoint lock. An entry holds records and position, so there is no moment at which one
    of them has been handed over without the other; positions move when an entry is taken. The queue is full when
    its entries hold `capacity_bytes`; one entry may go beyond, so that any batch can pass.
    """

    def __init__(
        self, splits: Sequence[Split], capacity_bytes: int, wake: Callable[[], None], condition: threading.Condition
    ) -> None:
        """Args: wake: rouses the loop, from any thread. condition: on a lock that nobody else holds for long."""
        self._capacity_bytes = capacity_bytes
        self._wake = wake
        self._condition = condition
        self._queue: deque[_Entry] = deque()
        self._splits = {split.split_id: split for split in splits}
        self._open = {split.split_id for split in splits if not split.finished}
        self._active = frozenset(self._open)
        self._closed = threading.Event()
        self._failure: BaseException | None = None
        self._idle = False
        self.queued_bytes = 0

    # ------------------------------------------------------------ the pusher's threads

    def put(self, split_id: str, batch: pa.RecordBatch, position: Any) -> None:
        """Hand over records and position; waits, without the lock, while the queue is full."""
        text = json.dumps(position)
        entry = _Entry(split_id, batch, json.loads(text), False, batch.nbytes + len(text) + ENTRY_BYTES)
        with self._condition:
            while self.queued_bytes >= self._capacity_bytes and not self._closed.is_set():
                self._condition.wait()
            self._refuse_when_closed()
            if split_id not in self._open:
                problem = "has ended" if split_id in self._splits else "is not here"
                raise PipelineError(
                    f"The pusher emitted records of split {split_id!r}, which {problem}",
                    cause=f"open splits of this subtask: {sorted(self._open)}",
                    remedy="Emit for the splits in PushContext.splits only, each until finish_split",
                )
            rouse = not self._queue
            self._idle = False
            self._append(entry)
        if rouse:
            self._wake()

    def finish(self, split_id: str) -> None:
        """The end of a split, behind what was put for it; a second time changes nothing."""
        with self._condition:
            self._refuse_when_closed()
            if split_id not in self._splits:
                raise PipelineError(f"The pusher finished split {split_id!r}, which is not here")
            self._finish(split_id)
        self._wake()

    def mark_idle(self) -> None:
        """Nothing will come for an indefinite time; the next `put` ends that."""
        with self._condition:
            self._refuse_when_closed()
            self._idle = True
        self._wake()

    def fail(self, error: BaseException) -> None:
        """The pusher raised; the next `take` raises the same. Too late when closed."""
        with self._condition:
            if not self._closed.is_set():
                self._failure = error
        self._wake()

    def finish_all(self) -> None:
        """The pusher of a bounded source returned: every split has been read to its end."""
        with self._condition:
            for split_id in sorted(self._open):
                self._finish(split_id)
        self._wake()

    @property
    def has_open_splits(self) -> bool:
        """Splits whose end was not put."""
        with self._condition:
            return bool(self._open)

    @property
    def is_closed(self) -> bool:
        """Nothing is taken any more."""
        return self._closed.is_set()

    def wait_until_closed(self, timeout_s: float | None) -> bool:
        """Sleep until closed; False: `timeout_s` passed before."""
        return self._closed.wait(timeout_s)

    # ------------------------------------------------------------ the loop

    def take(self) -> Taken:
        """The next batch, with its split's position moved behind it; raises what the pusher raised."""
        finished = False
        with self._condition:
            if self._failure is not None:
                raise self._failure
            while self._queue:
                entry = self._queue.popleft()
                finished |= self._move(entry)
                if entry.batch is None or entry.batch.num_rows == 0:
                    continue
                if self._queue and self._queue[0].finishes and self._queue[0].split_id == entry.split_id:
                    finished |= self._move(self._queue.popleft())
                self._condition.notify_all()
                return Taken(entry.batch, entry.split_id, finished)
            self._condition.notify_all()
            return Taken(finished=finished, idle=self._idle)

    def snapshot(self) -> list[Split]:
        """All splits with the positions behind what was taken; what waits in the queue is in no snapshot."""
        with self._condition:
            return list(self._splits.values())

    def active_splits(self) -> frozenset[str]:
        """Splits whose end has not been taken."""
        return self._active

    def close(self) -> None:
        """Take nothing more; waiting and later calls of the pusher raise PushClosedError. May come twice."""
        with self._condition:
            self._closed.set()
            self._queue.clear()
            self.queued_bytes = 0
            self._condition.notify_all()

    # ------------------------------------------------------------ with the lock held

    def _append(self, entry: _Entry) -> None:
        self._queue.append(entry)
        self.queued_bytes += entry.size_bytes

    def _finish(self, split_id: str) -> None:
        if split_id in self._open and not self._closed.is_set():
            self._open.discard(split_id)
            self._append(_Entry(split_id, None, None, True, ENTRY_BYTES))

    def _move(self, entry: _Entry) -> bool:
        """Move the split's position with the entry; True: the split has ended."""
        split = self._splits[entry.split_id]
        self.queued_bytes -= entry.size_bytes
        if entry.finishes:
            self._splits[entry.split_id] = replace(split, finished=True)
            self._active -= {entry.split_id}
        else:
            self._splits[entry.split_id] = replace(split, position=entry.position)
        return entry.finishes

    def _refuse_when_closed(self) -> None:
        if self._closed.is_set():
            raise PushClosedError("the source's reader was closed: end the thread")
