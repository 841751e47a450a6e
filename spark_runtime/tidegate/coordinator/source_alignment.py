"""How far the sources of an alignment group have come, over all slots (S4.4). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.channel.control.protocol import (
    AlignSources,
    GroupWatermark,
    SourceWatermark,
    SourceWatermarks,
    Subtask,
)
from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK

NOBODY = GroupWatermark(MAX_WATERMARK, None, MAX_WATERMARK)
"""Of a group in which no source holds the others back."""


@dataclass
class SourceAlignment:
    """Takes the watermarks of sources from slots; returns how far each group is when that has changed.

    Left out of it: a source that is idle, that has ended, or that has brought nothing yet. One that is silent and not
    idle keeps the others waiting.
    """

    _marks: dict[Subtask, SourceWatermark] = field(default_factory=dict)
    _lows: dict[str, GroupWatermark] = field(default_factory=dict)

    def advance(self, message: SourceWatermarks) -> AlignSources | None:
        """Take a slot's watermarks. Returns the message for all slots; None: no group's watermark has changed."""
        for mark in message.sources:
            self._marks[mark.subtask] = mark
        groups = sorted({mark.group for mark in message.sources})
        lows = {group: self._low(group) for group in groups}
        changed = {group: low for group, low in lows.items() if self._lows.get(group, NOBODY) != low}
        self._lows |= changed
        return AlignSources(changed) if changed else None

    def _low(self, group: str) -> GroupWatermark:
        waited_for = sorted(
            (mark.watermark_us, mark.subtask)
            for mark in self._marks.values()
            if mark.group == group and not mark.idle and MIN_WATERMARK < mark.watermark_us < MAX_WATERMARK
        )
        if not waited_for:
            return NOBODY
        others_us = waited_for[1][0] if len(waited_for) > 1 else MAX_WATERMARK
        return GroupWatermark(*waited_for[0], others_us)
