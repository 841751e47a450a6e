"""Workload W1: its rows, and its result in closed form, without generating the rows.

Row i, 0 <= i < N: k = (i * 2654435761) mod K, v = i mod 1000, ts_ms = (i mod (N/2)) div 250. Two source subtasks read
one half each, so both halves have the same event times. Result: count and sum(v) per k and 10 s window."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd

import numpy as np
import numpy.typing as npt

MULTIPLIER = 2_654_435_761
VALUES = 1_000
ROWS_PER_MS = 250
WINDOW_MS = 10_000
ROWS_PER_WINDOW = 2 * ROWS_PER_MS * WINDOW_MS
"""Rows of both halves in one window: 5 million."""
MOST_ROWS = 2**63 // MULTIPLIER
"""With more rows than this, i * 2654435761 exceeds int64."""

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class WindowResult:
    """Expected content of one window: for key number j (`keys[j]`, ascending) the number of rows and the sum of their
    v."""

    start_ms: int
    keys: Int64s
    counts: Int64s
    sums: Int64s


def check_rows(rows: int, keys: int) -> None:
    """Raise ValueError unless W1 is defined for these numbers."""
    if rows % 2 or not 0 < rows <= MOST_ROWS:
        raise ValueError(f"rows={rows} must be even and in 2..{MOST_ROWS}")
    if keys < 1 or gcd(keys, MULTIPLIER) != 1:
        raise ValueError(f"keys={keys} must be positive and have no divisor in common with {MULTIPLIER}")


def expected(rows: int, keys: int) -> Iterator[WindowResult]:
    """Yield every window of W1 in ascending order, from closed forms.

    k depends only on r = i mod K, and every r has a different k, because K and the multiplier are coprime. So key k's
    rows in a range of i are i = r + K t for a range of t, and v = (r + K t) mod 1000 repeats in t with period
    P = 1000 / gcd(K, 1000).
    """
    check_rows(rows, keys)
    residues = np.arange(keys, dtype=np.int64)
    key_of = (residues * (MULTIPLIER % keys)) % keys
    order = np.argsort(key_of, kind="stable")
    period = VALUES // gcd(keys, VALUES)
    steps = np.arange(period, dtype=np.int64) * keys
    by_value = np.zeros((VALUES, period + 1), dtype=np.int64)  # [r mod 1000, t]: sum of v over the first t rows of r
    np.cumsum((np.arange(VALUES, dtype=np.int64)[:, None] + steps[None, :]) % VALUES, axis=1, out=by_value[:, 1:])

    def up_to(i: int) -> tuple[Int64s, Int64s]:
        counts = np.maximum((i - residues + keys - 1) // keys, 0)
        whole, rest = counts // period, counts % period
        value = residues % VALUES
        return counts, whole * by_value[value, period] + by_value[value, rest]

    half = rows // 2
    half_window = ROWS_PER_MS * WINDOW_MS
    for first in range(0, half, half_window):
        end = min(first + half_window, half)
        counts, sums = np.zeros(keys, dtype=np.int64), np.zeros(keys, dtype=np.int64)
        for offset in (0, half):
            high, low = up_to(offset + end), up_to(offset + first)
            counts += high[0] - low[0]
            sums += high[1] - low[1]
        there = order[counts[order] > 0]
        yield WindowResult(first // ROWS_PER_MS, key_of[there], counts[there], sums[there])
