"""The rows that both systems receive, and an account of each row afterwards.

Row number i has the value 2^i. A window's `sum(v)` therefore identifies its rows, so that each row can be found in the
committed output: once, twice, or never. Uses the standard library only, because the Flink side runs this in an
environment of its own.

A job receives three files, one after the other:

1. rows whose windows are closed when the job is ended;
2. rows whose windows are open then;
3. rows that arrive after a restore, some of them for the windows that were open, and one of key `end` whose event time
   is so late that all other windows close. The row of key `end` is not counted.
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
"""Long enough to pass rows to a job and end it within one window, also on a busy machine."""
KEYS = ("a", "b", "c")
END_KEY = "end"
END_TS_MS = 1_000_000


@dataclass(frozen=True)
class Emitted:
    """One result row: its key and window (its start), the number of counted rows, and the sum of their values."""

    key: str
    window: str
    count: int
    total: int

    @property
    def rows(self) -> frozenset[int]:
        """Return the numbers of its rows. Raises ValueError if count and sum contradict each other."""
        numbers = frozenset(i for i in range(self.total.bit_length()) if self.total >> i & 1)
        if len(numbers) != self.count:
            raise ValueError(f"{self}: {self.count} rows counted, but the sum says {sorted(numbers)}")
        return numbers


@dataclass(frozen=True)
class Account:
    """Account of the rows of a job's life up to some moment.

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
        """Return the rows in no committed window."""
        return self.given - self.emitted


def file_rows(number: int) -> list[dict[str, Any]]:
    """Return the rows of file 1, 2 or 3."""
    times = {1: range(0, 20_000, 2_500), 2: range(20_000, 26_000, 1_000), 3: range(26_000, 40_000, 2_000)}
    first = sum(len(times[earlier]) for earlier in range(1, number))
    rows = [
        {"k": KEYS[i % len(KEYS)], "v": 1 << i, "ts_ms": ts_ms} for i, ts_ms in enumerate(times[number], start=first)
    ]
    return [*rows, {"k": END_KEY, "v": 0, "ts_ms": END_TS_MS}] if number == 3 else rows


def numbers_of(files: Iterable[int]) -> frozenset[int]:
    """Return the numbers of the counted rows of these files."""
    return frozenset(row["v"].bit_length() - 1 for file in files for row in file_rows(file) if row["k"] != END_KEY)


def give(folder: Path, *numbers: int) -> int:
    """Put the rows of these files as one file, atomically, where a job reads; return the number of rows."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [row for number in numbers for row in file_rows(number)]
    hidden = folder.parent / f"rows-{numbers[-1]}.part"
    hidden.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    os.replace(hidden, folder / f"rows-{numbers[-1]}.jsonl")
    return len(rows)


def account(files: Iterable[int], results: Sequence[Emitted]) -> Account:
    """Compare the rows of these files with the whole committed output."""
    counted = [result for result in results if result.key != END_KEY]
    times = Counter(number for result in counted for number in result.rows)
    windows = Counter((result.key, result.window) for result in counted)
    return Account(
        given=numbers_of(files),
        emitted=frozenset(times),
        rows_twice=frozenset(number for number, n in times.items() if n > 1),
        windows_twice=sum(n > 1 for n in windows.values()),
    )
