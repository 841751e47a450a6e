"""Detect slots that are dead or hung. Pure.

Heartbeats come from a thread outside the slot's loop, and contain the number of rounds of the loop. A dead slot sends
no heartbeats. A hung slot sends them, but its rounds do not increase: a call in its loop does not return. The rounds of
an idle slot increase, and also of a slot whose outputs are full.

Time counts only while the driver listens. If the driver's own loop was delayed, for example by a slow append to the log
or because its machine was suspended, it could not receive messages, and does not blame a slot for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MIN_OBSERVATIONS = 10
"""At least this many checks in a row must find a slot silent. Time between two checks counts at most as this fraction
of the timeout."""


@dataclass(frozen=True, slots=True)
class SlotFailure:
    """Slot `slot` has been silent, or its loop has made no round, for `for_ms` milliseconds."""

    slot: int
    what: Literal["silent", "hung"]
    for_ms: int

    def __str__(self) -> str:
        if self.what == "silent":
            return f"slot {self.slot} sent no message to the driver for {self.for_ms / 1000:.0f} s (heartbeat_timeout)"
        return (
            f"slot {self.slot} is hung: it sends heartbeats, but a user function or connector in its loop has not "
            f"returned for {self.for_ms / 1000:.0f} s (slot_progress_timeout)"
        )


@dataclass(slots=True)
class _SlotObservation:
    at_ms: int
    rounds: int | None = None
    round_ms: int = 0


class SlotLiveness:
    """The last signs of life of each slot of a run. A slot is observed from its first message on."""

    def __init__(self, *, silent_after_ms: int, hung_after_ms: int | None) -> None:
        """Args: hung_after_ms: the option `slot_progress_timeout`; None: hung slots are not detected."""
        self._silent_after_ms = silent_after_ms
        self._hung_after_ms = hung_after_ms
        self._slots: dict[int, _SlotObservation] = {}
        self._over: set[int] = set()
        self._looked_ms: int | None = None
        self._listened_ms = 0

    def on_message(self, slot: int) -> None:
        """Record any message of the slot, with the time of the last check."""
        self._slots.setdefault(slot, _SlotObservation(self._listened_ms)).at_ms = self._listened_ms

    def on_heartbeat(self, slot: int, rounds: int | None) -> None:
        """Record a heartbeat. `rounds`: rounds of its loop so far; None: the loop has not started, or has ended."""
        self.on_message(slot)
        heard = self._slots[slot]
        if rounds is None or rounds != heard.rounds:
            heard.rounds, heard.round_ms = rounds, heard.at_ms

    def on_slot_ended(self, slot: int) -> None:
        """Stop observing the slot."""
        self._over.add(slot)

    def trouble(self, now_ms: int) -> SlotFailure | None:
        """Return the first slot that is dead or hung, or None. Call it often, between messages."""
        now_ms = self._listen(now_ms)
        for slot, heard in self._slots.items():
            if slot in self._over:
                continue
            if now_ms - heard.at_ms > self._silent_after_ms:
                return SlotFailure(slot, "silent", now_ms - heard.at_ms)
            limit_ms = self._hung_after_ms
            # Measured up to the last heartbeat: a slot whose heartbeat is late is not hung.
            if limit_ms is not None and heard.rounds is not None and heard.at_ms - heard.round_ms > limit_ms:
                return SlotFailure(slot, "hung", heard.at_ms - heard.round_ms)
        return None

    def _listen(self, now_ms: int) -> int:
        """Return the total time spent listening, including this check."""
        since_ms = 0 if self._looked_ms is None else now_ms - self._looked_ms
        self._looked_ms = now_ms
        # At least 1 ms per check: for a timeout below 10 ms the fraction is 0, and no slot would ever count as silent.
        self._listened_ms += min(since_ms, max(1, self._silent_after_ms // MIN_OBSERVATIONS))
        return self._listened_ms
