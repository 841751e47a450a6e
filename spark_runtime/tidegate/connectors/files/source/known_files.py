"""The files that a watched source has found, in little memory and in the state of its enumerator.

A file is known by a 64-bit hash of its path. With a million files, two of them have the same hash with a probability of
3 in 100 million. Hashes of old files are left out of the state; only their number by day stays.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK_FILES = 4_096
"""Files of a block. A block is encoded once, and forgotten as a whole."""
DAY_S = 86_400
NEVER_S = 2**62
"""Time of a file whose file system reports none: it is never forgotten."""

Hashes = npt.NDArray[np.uint64]


def path_hash(system: str, path: str) -> int:
    """Return the hash of a path in a file system."""
    name = f"{system}\0{path}".encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "little")


@dataclass
class DayCount:
    """Files that were last written on one day (UTC): their number, and the exclusive or of their hashes."""

    files: int = 0
    mixed: int = 0

    def add(self, files: int, mixed: int) -> None:
        """Add other files."""
        self.files += files
        self.mixed ^= mixed


DayCounts = dict[int, DayCount]
"""Day since the epoch -> its files."""


@dataclass
class Block:
    """Hashes of files that were found one after the other.

    Attributes:
        newest_s: time of the newest file, seconds since the epoch.
    """

    hashes: list[int] = field(default_factory=list)
    newest_s: int = 0
    days: DayCounts = field(default_factory=dict)

    def add(self, hashed: int, time_s: int) -> None:
        """Add a file."""
        self.hashes.append(hashed)
        self.newest_s = max(self.newest_s, time_s)
        self.days.setdefault(time_s // DAY_S, DayCount()).add(1, hashed)

    def absorb(self, other: Block) -> None:
        """Add the files of another block."""
        self.hashes += other.hashes
        self.newest_s = max(self.newest_s, other.newest_s)
        _add_days(self.days, other.days)

    def to_json(self) -> dict[str, Any]:
        """Return the document for the state of the enumerator."""
        names = base64.b64encode(np.array(self.hashes, "<u8").tobytes()).decode()
        return {"newest_s": self.newest_s, "days": days_to_json(self.days), "names": names}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Block:
        """Inverse of `to_json`."""
        hashes = np.frombuffer(base64.b64decode(document["names"]), "<u8").tolist()
        return cls(hashes, document["newest_s"], days_from_json(document["days"]))


class KnownFiles:
    """Files that a source has found, and old files that it counts as found.

    Attributes:
        forgotten: files that the state does not name any more, by day.
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        """Args: state: result of `to_json`; None: no file is known."""
        self.forgotten: DayCounts = days_from_json(state["forgotten"]) if state is not None else {}
        self._tail = Block()
        self._blocks: list[tuple[Block, dict[str, Any]]] = []
        self._sorted: Hashes = np.empty(0, np.uint64)
        self._unsorted: set[int] = set()
        for document in state["blocks"] if state is not None else ():
            self._append(Block.from_json(document))

    def add(self, hashed: int, time_s: int) -> None:
        """Add a file that was found. Args: time_s: when it was last written; `NEVER_S`: unknown."""
        self._tail.add(hashed, time_s)
        self._unsorted.add(hashed)
        if len(self._tail.hashes) >= BLOCK_FILES:
            self._append(self._tail)
            self._tail = Block()

    def add_old(self, hashed: int) -> None:
        """Add a file that is so old that it counts as found. It is known only until the driver ends."""
        self._unsorted.add(hashed)

    def unknown(self, hashes: Sequence[int]) -> list[bool]:
        """Return for each hash whether it is not known."""
        if len(self._unsorted) >= 4 * BLOCK_FILES:
            self._sort()
        wanted = np.array(hashes, np.uint64)
        at = np.searchsorted(self._sorted, wanted)
        at[at == len(self._sorted)] = 0
        found = self._sorted[at] == wanted if len(self._sorted) else np.zeros(len(wanted), bool)
        return [
            not known and hashed not in self._unsorted for known, hashed in zip(found.tolist(), hashes, strict=True)
        ]

    def forget(self, before_s: int) -> None:
        """Leave blocks out of the state whose files are all older than `before_s`. They stay known in this process."""
        kept = [(block, document) for block, document in self._blocks if block.newest_s >= before_s]
        for block, _ in self._blocks if len(kept) < len(self._blocks) else ():
            if block.newest_s < before_s:
                _add_days(self.forgotten, block.days)
        self._blocks = kept

    def to_json(self) -> dict[str, Any]:
        """Return the state."""
        blocks = [document for _, document in self._blocks]
        if self._tail.hashes:
            blocks.append(self._tail.to_json())
        return {"blocks": blocks, "forgotten": days_to_json(self.forgotten)}

    def _append(self, block: Block) -> None:
        """Append a block, or fill the last one up: each restore begins a new one."""
        self._unsorted.update(block.hashes)
        if self._blocks and len(self._blocks[-1][0].hashes) + len(block.hashes) <= BLOCK_FILES:
            last, _ = self._blocks.pop()
            last.absorb(block)
            block = last
        self._blocks.append((block, block.to_json()))

    def _sort(self) -> None:
        fresh = np.fromiter(self._unsorted, np.uint64, len(self._unsorted))
        self._sorted = np.union1d(self._sorted, fresh)
        self._unsorted = set()


def days_to_json(days: DayCounts) -> dict[str, list[Any]]:
    """Return counts by day as JSON."""
    return {str(day): [count.files, f"{count.mixed:016x}"] for day, count in sorted(days.items())}


def days_from_json(document: Mapping[str, Sequence[Any]]) -> DayCounts:
    """Inverse of `days_to_json`."""
    return {int(day): DayCount(files, int(mixed, 16)) for day, (files, mixed) in document.items()}


def first_unlike_day(known: DayCounts, there: DayCounts) -> int | None:
    """Return the first day on which files are there that cannot all have been found before; None: there is none.

    A day with fewer files than before is no such day: files may have been deleted.
    """
    for day in sorted(there):
        before, now = known.get(day, DayCount()), there[day]
        if now.files > before.files or (now.files == before.files and now.mixed != before.mixed):
            return day
    return None


def _add_days(days: DayCounts, others: Mapping[int, DayCount]) -> None:
    for day, count in others.items():
        days.setdefault(day, DayCount()).add(count.files, count.mixed)
