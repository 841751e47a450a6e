"""How far the sources of an alignment group have come, over all slots (S4.4). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK

Place = tuple[int, int]
"""Chain and index of a subtask."""


@dataclass(frozen=True, slots=True)
class Low:
    """How far a group is.

    Attributes:
        time_us: its least watermark; MAX_WATERMARK: nobody is to be waited for.
        of: whose it is; None: nobody's.
        others_us: the least of all others. For `of` it decides: nobody waits for itself, since what the driver knows of
            it is always a little old.
    """

    time_us: int = MAX_WATERMARK
    of: Place | None = None
    others_us: int = MAX_WATERMARK

    def to_json(self) -> list[Any]:
        """As in the message to slots."""
        return [str(self.time_us), list(self.of) if self.of is not None else None, str(self.others_us)]


@dataclass
class SourceAlignment:
    """Takes what slots tell of their sources' watermarks; tells how far each group is when that has changed.

    Left out of it: a source that is idle, that has ended, or that has brought nothing yet. One that is silent and not
    idle keeps the others waiting.
    """

    _marks: dict[Place, tuple[str, int, bool]] = field(default_factory=dict)
    _lows: dict[str, Low] = field(default_factory=dict)

    def told(self, marks: Iterable[tuple[int, int, str, str, bool]]) -> Mapping[str, Low]:
        """Args: marks: chain, index, group, watermark in microseconds, idle.

        Returns:
            By group, of those that changed.
        """
        groups = set()
        for chain, index, group, time_us, idle in marks:
            self._marks[(chain, index)] = (group, int(time_us), idle)
            groups.add(group)
        changed = {group: self._low(group) for group in sorted(groups)}
        changed = {group: low for group, low in changed.items() if self._lows.get(group, Low()) != low}
        self._lows |= changed
        return changed

    def message(self, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """The answer to a slot's message `source_watermarks`, for all slots; None: nothing has changed."""
        changed = self.told([(c, i, group, time_us, idle) for c, i, group, time_us, idle in given["marks"]])
        lows = {group: low.to_json() for group, low in changed.items()}
        return {"type": "align_sources", "lows": lows} if lows else None

    def _low(self, group: str) -> Low:
        waited_for = sorted(
            (time_us, place)
            for place, (of, time_us, idle) in self._marks.items()
            if of == group and not idle and MIN_WATERMARK < time_us < MAX_WATERMARK
        )
        if not waited_for:
            return Low()
        others_us = waited_for[1][0] if len(waited_for) > 1 else MAX_WATERMARK
        return Low(*waited_for[0], others_us)
