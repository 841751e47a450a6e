"""Timers as a StatefulProcessor uses them, one key and one time at a time, over a timer service by batch (S5.1)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.state.keyed_state import DueTimers, KeySet, TimerService

MIN_MS, MOST_MS = -(2**63) // 1000 + 1, 2**63 // 1000 - 1
"""Limits of times in milliseconds whose microseconds fit 64 bits."""


class TimerOverlay:
    """The timers of the current keys, and those that fire now.

    As in Spark: a timer that fires is listed until its handler has ended, and is then deleted even if the handler has
    registered it again. The set of firing timers is fixed when firing starts, whatever handlers delete.
    """

    def __init__(self, timers: TimerService) -> None:
        self._timers = timers
        self._keys: KeySet | None = None
        self._held: list[set[int]] | None = None
        self._firing: dict[int, set[int]] = {}
        self._changed: dict[int, dict[int, bool]] = {}

    def begin(self, keys: KeySet, due: DueTimers | None = None) -> None:
        """Start to work with these keys. Args: due: their timers that fire now."""
        self._keys, self._held, self._firing = keys, None, {}
        if due is not None:
            for key, time_us in zip(due.owners.tolist(), due.times_us.tolist(), strict=True):
                self._firing.setdefault(key, set()).add(time_us // 1000)

    def register(self, key: int, time_ms: int) -> None:
        """Register a timer for key number `key`."""
        self._changed.setdefault(key, {})[time_ms] = True

    def delete(self, key: int, time_ms: int) -> None:
        """Delete a timer of key number `key`."""
        self._changed.setdefault(key, {})[time_ms] = False
        self._firing.get(key, set()).discard(time_ms)

    def of(self, key: int) -> list[int]:
        """Return the times of key number `key`, milliseconds, ascending."""
        assert self._keys is not None
        if self._held is None:
            found = self._timers.of(self._keys)
            times = (found.columns.column(0).to_numpy() // 1000).tolist()
            bounds = found.offsets.tolist()
            self._held = [set(times[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]
        times = self._held[key] | self._firing.get(key, set())
        for time_ms, there in self._changed.get(key, {}).items():
            (times.add if there else times.discard)(time_ms)
        return sorted(times)

    def write(self, fired_until_us: int | None = None) -> tuple[pa.RecordBatch, list[int]] | None:
        """Write all changes to the back end.

        Args:
            fired_until_us: timers up to this time are firing, for these keys or later ones: they can no longer be
                deleted, and new timers up to this time are held back.

        Returns:
            The timers held back: their keys, a row for each, and times in milliseconds; for `register_late`.
        """
        if not self._changed:
            return None
        assert self._keys is not None
        changed, self._changed = self._changed, {}
        gone = [
            (key, time_ms)
            for key, times in changed.items()
            for time_ms, there in times.items()
            if not there and (fired_until_us is None or time_ms * 1000 > fired_until_us)
        ]
        new = [(key, time_ms) for key, times in changed.items() for time_ms, there in times.items() if there]
        late = [pair for pair in new if fired_until_us is not None and pair[1] * 1000 <= fired_until_us]
        if late:
            behind = set(late)
            new = [pair for pair in new if pair not in behind]
        if gone:
            self._timers.delete(self._keys, *_columns(gone))
        if new:
            self._timers.register(self._keys, *_columns(new))
        if not late:
            return None
        return self._keys.columns().take(pa.array([key for key, _ in late])), [time_ms for _, time_ms in late]

    def register_late(self, keys: KeySet, times_ms: list[int]) -> None:
        """Register timers that were held back. Args: keys: of the batch that `write` returned."""
        self._timers.register(keys, keys.rows, np.array(times_ms, np.int64) * 1000)


def _columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([key for key, _ in pairs], np.int32), np.array([time for _, time in pairs], np.int64) * 1000
