"""The progress of the sources of an alignment group, over all slots (S4.4). Pure."""

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
"""Value for a group in which no source holds the others back."""


@dataclass
class SourceAlignment:
    """Collects watermarks of sources from slots, and returns the progress of groups when it changes.

    Sources that are idle, have ended, or have emitted nothing yet are ignored. A source that is silent but not idle
    makes the others wait.
    """

    _marks: dict[Subtask, SourceWatermark] = field(default_factory=dict)
    _lows: dict[str, GroupWatermark] = field(default_factory=dict)

    def advance(self, message: SourceWatermarks) -> AlignSources | None:
        """Record a slot's watermarks. Return the message for all slots, or None if no group's watermark has changed."""
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
