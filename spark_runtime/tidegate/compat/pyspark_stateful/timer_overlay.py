"""Timers as a StatefulProcessor uses them, one key and one time at a time, over a timer service by batch (S5.1)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.state.keyed_state import DueTimers, KeySet, TimerService

MIN_MS, MOST_MS = -(2**63) // 1000 + 1, 2**63 // 1000 - 1
"""Times that microseconds can tell."""


class TimerOverlay:
    """The timers of the keys in hand, and of those the ones that fire now.

    A timer that fires is listed until its handler is through, and gone then even if the handler has registered it
    again; what fires is settled when firing begins, whatever handlers delete. So Spark does.
    """

    def __init__(self, timers: TimerService) -> None:
        self._timers = timers
        self._keys: KeySet | None = None
        self._held: list[set[int]] | None = None
        self._firing: dict[int, set[int]] = {}
        self._changed: dict[int, dict[int, bool]] = {}

    def begin(self, keys: KeySet, due: DueTimers | None = None) -> None:
        """Work with these keys. Args: due: timers of theirs that fire now."""
        self._keys, self._held, self._firing = keys, None, {}
        if due is not None:
            for key, time_us in zip(due.owners.tolist(), due.times_us.tolist(), strict=True):
                self._firing.setdefault(key, set()).add(time_us // 1000)

    def register(self, key: int, time_ms: int) -> None:
        """For key number `key`."""
        self._changed.setdefault(key, {})[time_ms] = True

    def delete(self, key: int, time_ms: int) -> None:
        """Take it back."""
        self._changed.setdefault(key, {})[time_ms] = False
        self._firing.get(key, set()).discard(time_ms)

    def of(self, key: int) -> list[int]:
        """Times of key number `key`, milliseconds, ascending."""
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
        """Hand over what has changed.

        Args:
            fired_until_us: timers up to this time are firing, with other keys in hand or later: none of them is taken
                back any more, and new ones among them are kept back.

        Returns:
            Those kept back: their keys, a row for each, and times in milliseconds; for `register_late`.
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
        """Register what was kept back. Args: keys: of the batch that `write` gave."""
        self._timers.register(keys, keys.rows, np.array(times_ms, np.int64) * 1000)


def _columns(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([key for key, _ in pairs], np.int32), np.array([time for _, time in pairs], np.int64) * 1000
