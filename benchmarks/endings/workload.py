"""The rows that both systems get, and what became of each of them.

Row number i has the value 2^i. A window's `sum(v)` is then the set of the rows in it, so that every row can be looked
for in what was committed: once, twice, or nowhere. Standard library only: the Flink side runs this in an environment of
its own.

Three files, given to a job one after the other:

1. rows whose windows are closed when the job is ended;
2. rows whose windows are open then;
3. rows that come after a restore, some of them for the windows that were open, with one of key `end` whose event time
   lies so far ahead that all other windows close. That one is not counted.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EVENT_WINDOW_MS = 10_000
PROCESSING_WINDOW_S = 20
"""Long enough that a job can be given rows and ended within one window, also on a busy machine."""
KEYS = ("a", "b", "c")
END_KEY = "end"
END_TS_MS = 1_000_000


@dataclass(frozen=True)
class Emitted:
    """One result row: of which key and window (its start), how many rows were counted, and the sum of their values."""

    key: str
    window: str
    count: int
    total: int

    @property
    def rows(self) -> frozenset[int]:
        """Numbers of the rows in it. ValueError when count and sum contradict each other."""
        numbers = frozenset(i for i in range(self.total.bit_length()) if self.total >> i & 1)
        if len(numbers) != self.count:
            raise ValueError(f"{self}: {self.count} rows counted, but the sum says {sorted(numbers)}")
        return numbers


@dataclass(frozen=True)
class Account:
    """What became of the rows of a job's life up to some moment.

    Attributes:
        given: rows in the input.
        emitted: rows in at least one committed window.
        rows_twice: rows in more than one committed window.
        windows_twice: keys' windows for which more than one result row was committed.
    """

    given: frozenset[int]
    emitted: frozenset[int]
    rows_twice: frozenset[int]
    windows_twice: int

    @property
    def missing(self) -> frozenset[int]:
        """Rows in no committed window."""
        return self.given - self.emitted


def file_rows(number: int) -> list[dict[str, Any]]:
    """The rows of file 1, 2 or 3."""
    times = {1: range(0, 20_000, 2_500), 2: range(20_000, 26_000, 1_000), 3: range(26_000, 40_000, 2_000)}
    first = sum(len(times[earlier]) for earlier in range(1, number))
    rows = [
        {"k": KEYS[i % len(KEYS)], "v": 1 << i, "ts_ms": ts_ms} for i, ts_ms in enumerate(times[number], start=first)
    ]
    return [*rows, {"k": END_KEY, "v": 0, "ts_ms": END_TS_MS}] if number == 3 else rows


def numbers_of(files: Iterable[int]) -> frozenset[int]:
    """Numbers of the counted rows of these files."""
    return frozenset(row["v"].bit_length() - 1 for file in files for row in file_rows(file) if row["k"] != END_KEY)


def give(folder: Path, *numbers: int) -> int:
    """Put a file with the rows of these files, whole at once, where a job reads; how many rows it has."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row for number in numbers for row in file_rows(number)]
    hidden = folder.parent / f"rows-{numbers[-1]}.part"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    os.replace(hidden, folder / f"rows-{numbers[-1]}.jsonl")
    return len(rows)


def account(files: Iterable[int], results: Sequence[Emitted]) -> Account:
    """Compare the given files with everything committed so far."""
    counted = [result for result in results if result.key != END_KEY]
    times = Counter(number for result in counted for number in result.rows)
    windows = Counter((result.key, result.window) for result in counted)
    return Account(
        given=numbers_of(files),
        emitted=frozenset(times),
        rows_twice=frozenset(number for number, n in times.items() if n > 1),
        windows_twice=sum(n > 1 for n in windows.values()),
    )
