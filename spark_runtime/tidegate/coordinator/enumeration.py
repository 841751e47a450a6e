"""Which reader gets which split of a source that discovers splits while the job runs (S4.3). Pure.

A snapshot contains each discovered split once: with its reader if it was assigned before the trigger, and else here,
among the splits that wait. So no split is assigned from the trigger until the barrier has passed all readers of the
source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tidegate.channel.control.protocol import (
    AssignSplits,
    SplitsHeld,
    SubtaskFinished,
    Trigger,
)
from tidegate.snapshot.metadata import READABLE_UNTIL

MAX_WAITING_SPLITS = 1_000
"""Splits of a source that may wait for a reader before its enumerator searches again. Snapshots contain them."""

SplitDocument = Mapping[str, Any]
"""A split as JSON."""


@dataclass(frozen=True)
class SplitsDiscovered:
    """An enumerator has searched. Fields as in `connectors.interface.Discovery`, with splits as JSON."""

    uid: str
    splits: tuple[SplitDocument, ...]
    state: Any
    complete: bool = False
    more: bool = False
    readable_until_ms: int | None = None


@dataclass(frozen=True)
class SearchFailed:
    """The system that holds the splits of a source did not answer. It is asked again after the interval.

    Attributes:
        cause: why, for users.
    """

    uid: str
    cause: str = ""


@dataclass(frozen=True)
class SearchOutage:
    """Searches that have failed since `since_ms`. Attributes: cause: of the last one."""

    since_ms: int
    cause: str


@dataclass(frozen=True)
class EnumerationState:
    """The part of a source's enumerator in a snapshot.

    Attributes:
        state: state of the enumerator; None: it has not searched yet.
        waiting: splits that no reader has, in the order of discovery.
        complete: no split will be discovered any more.
        readable_until_ms: time until which an enumerator can continue from `state`; None: no limit is known.
    """

    state: Any = None
    waiting: tuple[SplitDocument, ...] = ()
    complete: bool = False
    readable_until_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the document for the metadata of a snapshot."""
        waiting = [dict(split) for split in self.waiting]
        document: dict[str, Any] = {"state": self.state, "waiting": waiting, "complete": self.complete}
        return document if self.readable_until_ms is None else {**document, READABLE_UNTIL: self.readable_until_ms}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> EnumerationState:
        """Inverse of `to_json`."""
        until_ms = document.get(READABLE_UNTIL)
        return cls(document["state"], tuple(document["waiting"]), document["complete"], until_ms)


class SourceEnumeration:
    """The splits of one source that no reader has, and how many each reader has.

    A split goes to the reader with the fewest unfinished splits. The first one is assigned when all readers have
    reported what they have, so that a restored reader gets no more than its share.

    Attributes:
        chain_id: the chain of the source.
        outage: searches fail; None: the last one was answered. Any thread may read it.
    """

    def __init__(
        self,
        chain_id: int,
        readers: Collection[int],
        begun: EnumerationState,
        *,
        interval_ms: int,
        open_splits: int | None = None,
        after_finished: bool = False,
    ) -> None:
        """Create it for one run.

        Args:
            readers: indices of the subtasks that read. Subtasks that had finished before the run are left out.
            begun: the part of the restored snapshot, or an empty one.
            interval_ms, open_splits, after_finished: as in `connectors.interface.ContinuousDiscovery`.
        """
        self.chain_id = chain_id
        self._after_finished = after_finished
        self._readers = frozenset(readers)
        self._limit = open_splits
        self._interval_ms = interval_ms
        self._search_ms = 0
        self._searching = False
        self.outage: SearchOutage | None = None
        self._state, self._complete, self._until_ms = begun.state, begun.complete, begun.readable_until_ms
        self._waiting = deque(begun.waiting)
        self._load: dict[int, int] = {}
        self._sent: dict[int, int] = dict.fromkeys(self._readers, 0)
        self._told_last: set[int] = set()
        self._behind: dict[int, set[int]] = {}
        self._stopped: dict[int, set[int]] = {}

    @property
    def search_ms(self) -> int | None:
        """The time of the next search; None: one is running, no split will follow, or enough splits are unread."""
        if self._searching or self._complete or len(self._waiting) >= MAX_WAITING_SPLITS:
            return None
        return None if self._after_finished and not self._all_finished() else self._search_ms

    def _all_finished(self) -> bool:
        """Return whether every discovered split has been read to its end."""
        return not self._waiting and self._load.keys() == self._readers and not any(self._load.values())

    def search_started(self) -> None:
        """Record that a search has started. `discovered` or `search_failed` follows."""
        self._searching = True

    def search_failed(self, cause: str, now_ms: int) -> None:
        """Search again after the interval."""
        self._searching, self._search_ms = False, now_ms + self._interval_ms
        self.outage = SearchOutage(now_ms if self.outage is None else self.outage.since_ms, cause)

    def discovered(self, found: SplitsDiscovered, now_ms: int) -> list[AssignSplits]:
        """Add the splits of a search."""
        self.outage = None
        at_once = found.more and bool(found.splits)  # without splits, it would search without a pause
        self._searching, self._search_ms = False, now_ms if at_once else now_ms + self._interval_ms
        self._waiting.extend(found.splits)
        self._state, self._complete, self._until_ms = found.state, found.complete, found.readable_until_ms
        return self._assign()

    def held(self, message: SplitsHeld) -> list[AssignSplits]:
        """Record what a reader has. Splits that are on their way to it count as its own."""
        index = message.subtask[1]
        self._load[index] = message.open + self._sent[index] - message.received
        for pending in [n for n in self._behind if n <= message.passed]:
            self._note_passed(pending, index)
        for stop_id in [n for n in self._stopped if n <= message.aborted]:
            self._stopped[stop_id].discard(index)
            if not self._stopped[stop_id]:
                del self._stopped[stop_id]
        return self._assign()

    def triggered(self, trigger: Trigger) -> EnumerationState:
        """Hold assignments back until the barrier of the snapshot has passed all readers. Return the source's part.

        After the trigger of a stop they stay back, because its readers emit nothing more. If it is aborted, each reader
        must first report that it reads on: some may have ended their data before the abort.
        """
        mine = {index for chain_id, index in trigger.subtasks if chain_id == self.chain_id}
        self._behind[trigger.checkpoint_id] = mine
        if trigger.stop is not None:
            self._stopped[trigger.checkpoint_id] = set(self._readers)
        return EnumerationState(self._state, tuple(self._waiting), self._complete, self._until_ms)

    def finished(self, index: int) -> list[AssignSplits]:
        """Record that a reader has finished, so that every barrier has passed it."""
        for pending in list(self._behind):
            self._note_passed(pending, index)
        return self._assign()

    def _note_passed(self, checkpoint_id: int, index: int) -> None:
        self._behind[checkpoint_id].discard(index)
        if not self._behind[checkpoint_id]:
            del self._behind[checkpoint_id]

    def aborted(self, checkpoint_id: int) -> list[AssignSplits]:
        """Forget a snapshot that will never complete."""
        self._behind.pop(checkpoint_id, None)
        return self._assign()

    def _assign(self) -> list[AssignSplits]:
        if self._behind or self._stopped or self._load.keys() != self._readers:
            return []
        given: dict[int, list[SplitDocument]] = {}
        while self._waiting and (index := self._next_reader()) is not None:
            given.setdefault(index, []).append(self._waiting.popleft())
            self._load[index] += 1
            self._sent[index] += 1
        if self._complete and not self._waiting:
            new = self._readers - self._told_last
            self._told_last |= new
        else:
            new = frozenset()
        return [
            AssignSplits((self.chain_id, index), tuple(given.get(index, ())), index in new)
            for index in sorted(given.keys() | new)
        ]

    def _next_reader(self) -> int | None:
        """Return the reader with the fewest unfinished splits; None: each has as many as it may have."""
        index = min(self._load, key=lambda i: (self._load[i], i))
        return None if self._limit is not None and self._load[index] >= self._limit else index


class Enumerations:
    """The enumerations of a run. Without any, every method does nothing."""

    def __init__(self, sources: Mapping[str, SourceEnumeration] | None = None) -> None:
        """Args: sources: source uid -> its enumeration."""
        self._by_uid = dict(sources or {})
        self._by_chain = {enumeration.chain_id: enumeration for enumeration in self._by_uid.values()}
        self._parts: dict[int, Mapping[str, EnumerationState]] = {}
        self._completed: dict[int, dict[str, Any]] = {}

    @property
    def search_ms(self) -> int | None:
        """The time of the next search of any source, or None."""
        times = (enumeration.search_ms for enumeration in self._by_uid.values())
        return min((at_ms for at_ms in times if at_ms is not None), default=None)

    def take_searches(self, now_ms: int) -> list[str]:
        """Return the uids of the sources whose enumerator must search now. Their searches count as started."""
        due = [uid for uid, e in self._by_uid.items() if e.search_ms is not None and e.search_ms <= now_ms]
        for uid in due:
            self._by_uid[uid].search_started()
        return due

    def searched(self, outcome: SplitsDiscovered | SearchFailed, now_ms: int) -> list[AssignSplits]:
        """Process the outcome of a search."""
        enumeration = self._by_uid[outcome.uid]
        if isinstance(outcome, SplitsDiscovered):
            return enumeration.discovered(outcome, now_ms)
        enumeration.search_failed(outcome.cause, now_ms)
        return []

    def outages(self) -> dict[str, SearchOutage]:
        """Return the sources whose searches fail. Any thread may call it."""
        return {uid: one.outage for uid, one in self._by_uid.items() if one.outage is not None}

    def held(self, message: SplitsHeld) -> list[AssignSplits]:
        """Process the report of a reader."""
        return self._by_chain[message.subtask[0]].held(message)

    def triggered(self, trigger: Trigger) -> None:
        """Take the part of every source for a snapshot. Call it before the trigger is sent."""
        if self._by_uid:
            self._parts[trigger.checkpoint_id] = {uid: e.triggered(trigger) for uid, e in self._by_uid.items()}

    def finished(self, message: SubtaskFinished) -> list[AssignSplits]:
        """Process the end of a subtask."""
        enumeration = self._by_chain.get(message.subtask[0])
        return [] if enumeration is None else enumeration.finished(message.subtask[1])

    def aborted(self, checkpoint_id: int) -> list[AssignSplits]:
        """Forget a snapshot that will never complete."""
        self._parts.pop(checkpoint_id, None)
        return [assigned for e in self._by_uid.values() for assigned in e.aborted(checkpoint_id)]

    def parts(self, checkpoint_id: int) -> dict[str, dict[str, Any]]:
        """Return the part of every source in a snapshot that is being completed, as JSON."""
        parts = self._parts.pop(checkpoint_id, {})
        if parts:
            self._completed[checkpoint_id] = {uid: part.state for uid, part in parts.items()}
        return {uid: part.to_json() for uid, part in parts.items()}

    def permitted(self, checkpoint_id: int) -> dict[str, Any]:
        """Return source uid -> the state of its enumerator in a completed snapshot, and forget earlier snapshots.

        Empty for a snapshot of an earlier run.
        """
        found = self._completed.get(checkpoint_id, {})
        self._completed = {n: states for n, states in self._completed.items() if n > checkpoint_id}
        return found
