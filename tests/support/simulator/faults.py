"""Which faults strike a simulation, how often, and the count of those that did."""

from __future__ import annotations

from collections import Counter
from random import Random

KINDS = {
    "slot_crash": 0.0125,
    "driver_crash": 0.025,
    "driver_stall": 0.0125,
    "slot_stall": 0.0145,
    "link_lost": 0.0055,
    "peer_lost": 0.0027,
    "store_error": 0.036,
    "reply_lost": 0.036,
    "late_write": 0.35,
    "stale_list": 0.4,
    "torn_write": 0.5,
    "channel_stall": 0.054,
    "commit_error": 0.144,
    "snapshot_error": 0.036,
}
"""Kind -> chance at each opportunity when a seed has chosen it at full strength. `late_write` and `torn_write`:
chance that a dying process's unanswered write still happens, or leaves a part of itself."""


class Faults:
    """Drawn per seed: some kinds, each with a strength of its own, so that seeds differ in what they try."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.active = True
        self.counts: Counter[str] = Counter()
        self._rates = {
            kind: rate * (0.3 + 1.4 * random.random()) if random.random() < 0.75 else 0.0
            for kind, rate in KINDS.items()
        }

    def spare_processes(self) -> None:
        """Few runs end before their time: what strikes are slow channels, and snapshots that cannot be written."""
        for kind in self._rates.keys() - {"channel_stall", "late_write", "stale_list", "torn_write"}:
            self._rates[kind] *= 0.08
        self._rates["snapshot_error"] = 0.03

    def strikes(self, kind: str) -> bool:
        """Whether a fault of `kind` strikes now; counted when it does."""
        if not self.active or self._random.random() >= self._rates[kind]:
            return False
        self.counts[kind] += 1
        return True

    @property
    def total(self) -> int:
        """Faults so far."""
        return sum(self.counts.values())
