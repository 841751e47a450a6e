"""A source whose splits appear while the job runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pyarrow as pa

from tidegate.connectors.interface import (
    Boundedness,
    ContinuousDiscovery,
    Discovery,
    PollResult,
    Source,
    SourceContext,
    SourceReader,
    Split,
    SplitEnumerator,
)

SCHEMA = pa.schema([("split", pa.string()), ("n", pa.int64())])


@dataclass
class Shelf:
    """What is there to read, shared by all sources of a test, as a folder would be.

    Attributes:
        rows: split -> number of its rows, in the order in which splits appeared.
        closed: no more will appear.
        tells: readers report the end of a split at once, and not only by having no more records.
        fails: raised by the next searches, one each.
        enumerator_completed: ids of completed checkpoints that the enumerator has received, and its state in them.
        kept_until_ms: split -> time until which its rows stay there.
        found_until_ms: time until which an enumerator can continue.
        removed: splits that can no longer be read.
        forgotten: why an enumerator cannot continue from any state; None: it can.
        unread: of each search, the splits that had been discovered but were not read to their end.
        reader_completed: the same of readers, with the positions of their splits.
    """

    rows: dict[str, int] = field(default_factory=dict)
    closed: bool = False
    tells: bool = True
    fails: list[Exception] = field(default_factory=list)
    searches: int = 0
    kept_until_ms: dict[str, int] = field(default_factory=dict)
    found_until_ms: int | None = None
    removed: set[str] = field(default_factory=set)
    forgotten: str | None = None
    read: set[str] = field(default_factory=set)
    unread: list[list[str]] = field(default_factory=list)
    enumerator_completed: list[tuple[int, int]] = field(default_factory=list)
    reader_completed: list[tuple[int, dict[str, int]]] = field(default_factory=list)

    def everything(self) -> list[tuple[str, int]]:
        """All rows."""
        return [(split, n) for split, rows in self.rows.items() for n in range(rows)]


class Growing(Source):
    """Reads a shelf. Its boundedness is declared, because a shelf may be closed later."""

    def __init__(
        self,
        shelf: Shelf,
        *,
        boundedness: Boundedness = "bounded",
        open_splits: int | None = 1,
        grows: bool = True,
        after_finished: bool = False,
    ) -> None:
        self.shelf, self._boundedness, self._open_splits, self._grows = shelf, boundedness, open_splits, grows
        self._after_finished = after_finished

    @property
    def boundedness(self) -> Boundedness:
        return self._boundedness

    def schema(self) -> pa.Schema:
        return SCHEMA

    def discover(self, parallelism: int) -> Sequence[Split]:
        return [Split(name, {}) for name in self.shelf.rows]

    def continuous_discovery(self) -> ContinuousDiscovery | None:
        interval = timedelta(milliseconds=100)
        return ContinuousDiscovery(interval, self._open_splits, self._after_finished) if self._grows else None

    def unavailable_splits(self, splits: Sequence[Split]) -> Sequence[tuple[str, str]]:
        return [(split.split_id, "it is off the shelf") for split in splits if split.split_id in self.shelf.removed]

    def unavailable_state(self, state: Any) -> str | None:
        return self.shelf.forgotten

    def create_enumerator(self, state: Any) -> SplitEnumerator:
        return ShelfEnumerator(self.shelf, state or 0)

    def create_reader(self, ctx: SourceContext) -> SourceReader:
        return ShelfReader(self.shelf, ends=self._boundedness == "bounded")


class ShelfEnumerator(SplitEnumerator):
    """Its state is the number of splits that it has found."""

    def __init__(self, shelf: Shelf, found: int) -> None:
        self._shelf, self._found = shelf, found

    def discover(self) -> Discovery:
        self._shelf.searches += 1
        self._shelf.unread.append(
            [name for name in list(self._shelf.rows)[: self._found] if name not in self._shelf.read]
        )
        if self._shelf.fails:
            raise self._shelf.fails.pop(0)
        names = list(self._shelf.rows)[self._found :]
        self._found += len(names)
        splits, until_ms = [Split(name, {}) for name in names], self._shelf.found_until_ms
        return Discovery(splits, self._found, complete=self._shelf.closed, readable_until_ms=until_ms)

    def checkpoint_completed(self, checkpoint_id: int, state: int) -> None:
        self._shelf.enumerator_completed.append((checkpoint_id, state))


class ShelfReader(SourceReader):
    """Reads its splits one after the other, two rows at a time, and forgets those that it has read."""

    def __init__(self, shelf: Shelf, *, ends: bool) -> None:
        self._shelf, self._ends = shelf, ends
        self._splits: dict[str, Split] = {}
        self._more = True

    def add_splits(self, splits: Sequence[Split]) -> None:
        for split in splits:
            assert split.split_id not in self._splits, "the reader has it"
            self._splits[split.split_id] = split

    def no_more_splits(self) -> None:
        self._more = False

    def poll(self, now_ms: int) -> PollResult:
        if not self._splits:
            if self._more or not self._ends:
                return PollResult(state="nothing_now", retry_at_ms=now_ms + 50, idle=True)
            return PollResult(state="end")
        name, split = next(iter(self._splits.items()))
        begin = split.position or 0
        end = min(begin + 2, self._shelf.rows[name])
        self._splits[name] = replace(split, position=end)
        if end == self._shelf.rows[name]:
            del self._splits[name]
            self._shelf.read.add(name)
        if begin == end:
            return PollResult(splits_changed=self._shelf.tells)
        columns = [pa.array([name] * (end - begin)), pa.array(range(begin, end), pa.int64())]
        return PollResult(pa.record_batch(columns, schema=SCHEMA), name, splits_changed=self._shelf.tells)

    def snapshot(self) -> Sequence[Split]:
        return list(self._splits.values())

    def readable_until_ms(self) -> int | None:
        known = [self._shelf.kept_until_ms[name] for name in self._splits if name in self._shelf.kept_until_ms]
        return min(known, default=None)

    def checkpoint_completed(self, checkpoint_id: int, splits: Sequence[Split]) -> None:
        self._shelf.reader_completed.append((checkpoint_id, {s.split_id: s.position or 0 for s in splits}))
