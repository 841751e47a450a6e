"""Whether a slot is dead or hung: heartbeats come from beside its loop, the count of the loop's rounds from within.
Pure.

A dead slot is not heard. A hung one is heard, and its rounds stand still: something in its loop does not return. An
idle one comes round too, and so does one whose outputs are full.

Time counts here only while somebody listens. A driver whose own loop was held up (by a slow append to the log, say, or
because its machine stood still) has not heard what was sent meanwhile, and blames no slot for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MIN_OBSERVATIONS = 10
"""Between two looks at most this part of the silence that is too long counts: so many looks in a row find a slot
silent before it is taken for dead."""


@dataclass(frozen=True, slots=True)
class SlotFailure:
    """Slot `slot` has been silent, or has not come round its loop, for `for_ms` milliseconds."""

    slot: int
    what: Literal["silent", "hung"]
    for_ms: int

    def __str__(self) -> str:
        if self.what == "silent":
            return f"slot {self.slot} was silent for {self.for_ms / 1000:.0f} s"
        return (
            f"slot {self.slot} is hung: it lives, but for {self.for_ms / 1000:.0f} s (slot_progress_timeout) a user "
            "function or connector in its loop has not returned"
        )


@dataclass(slots=True)
class _SlotObservation:
    at_ms: int
    rounds: int | None = None
    round_ms: int = 0


class SlotLiveness:
    """What was heard of each slot of a run. A slot counts from its first message on."""

    def __init__(self, *, silent_after_ms: int, hung_after_ms: int | None) -> None:
        """Args: hung_after_ms: `slot_progress_timeout`; None: no slot counts as hung."""
        self._silent_after_ms = silent_after_ms
        self._hung_after_ms = hung_after_ms
        self._slots: dict[int, _SlotObservation] = {}
        self._over: set[int] = set()
        self._looked_ms: int | None = None
        self._listened_ms = 0

    def on_message(self, slot: int) -> None:
        """Any message of the slot: it counts as of the last look."""
        self._slots.setdefault(slot, _SlotObservation(self._listened_ms)).at_ms = self._listened_ms

    def on_heartbeat(self, slot: int, rounds: int | None) -> None:
        """A heartbeat. `rounds`: of its loop so far; None: the loop has not begun, or has ended."""
        self.on_message(slot)
        heard = self._slots[slot]
        if rounds is None or rounds != heard.rounds:
            heard.rounds, heard.round_ms = rounds, heard.at_ms

    def on_slot_ended(self, slot: int) -> None:
        """Nothing more is expected of the slot."""
        self._over.add(slot)

    def trouble(self, now_ms: int) -> SlotFailure | None:
        """Look: the first slot that is dead or hung. To be asked often, between taking messages."""
        now_ms = self._listen(now_ms)
        for slot, heard in self._slots.items():
            if slot in self._over:
                continue
            if now_ms - heard.at_ms > self._silent_after_ms:
                return SlotFailure(slot, "silent", now_ms - heard.at_ms)
            limit_ms = self._hung_after_ms
            # Measured up to the last heartbeat: a slot that is only late is not hung.
            if limit_ms is not None and heard.rounds is not None and heard.at_ms - heard.round_ms > limit_ms:
                return SlotFailure(slot, "hung", heard.at_ms - heard.round_ms)
        return None

    def _listen(self, now_ms: int) -> int:
        """The time listened so far, this look included."""
        since_ms = 0 if self._looked_ms is None else now_ms - self._looked_ms
        self._looked_ms = now_ms
        self._listened_ms += min(since_ms, max(1, self._silent_after_ms // MIN_OBSERVATIONS))
        return self._listened_ms
