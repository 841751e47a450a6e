"""Sources of one slot that wait for slower ones, here or in other slots (S4.4)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.subtask.subtask import Subtask

TELL_EVERY_MS = 200
"""How often a slot tells the driver of its sources' watermarks at most: how far a source may run beyond its drift."""
PAUSED = "ahead of its alignment group"
"""Why such a source is not read."""


class AlignedSources:
    """Tells the driver how far they are, and pauses those that are further ahead of the least of their group, which the
    driver tells, than their drift allows."""

    def __init__(
        self, subtasks: Sequence[Subtask], send: Callable[[dict[str, Any]], None], now_ms: Callable[[], int]
    ) -> None:
        """Args: subtasks: of the slot; others than sources of a group are passed over."""
        sources = [(s, s.source_input) for s in subtasks if s.source_input is not None]
        self._members = [(s, source, source.group) for s, source in sources if source.group is not None]
        self._send = send
        self._now_ms = now_ms
        self._told: dict[tuple[int, int], tuple[int, bool]] = {}
        self._told_ms: int | None = None
        self._lows: dict[str, tuple[int, tuple[int, int] | None, int]] = {}

    def look(self) -> None:
        """Once each round of the loop."""
        if not self._members:
            return
        for subtask, source, group in self._members:
            low_us, of, others_us = self._lows.get(group.name, (MAX_WATERMARK, None, MAX_WATERMARK))
            wait_for_us = others_us if of == subtask.subtask else low_us
            source.pause(PAUSED, subtask.watermark_us - group.max_drift_us > wait_for_us)
        now_ms = self._now_ms()
        if self._told_ms is None or now_ms - self._told_ms >= TELL_EVERY_MS:
            self._tell(now_ms)

    def take(self, message: Mapping[str, Any]) -> None:
        """The driver says how far groups are (`coordinator.source_alignment.Low`)."""
        for group, (low_us, of, others_us) in message["lows"].items():
            self._lows[group] = (int(low_us), (of[0], of[1]) if of is not None else None, int(others_us))

    def _tell(self, now_ms: int) -> None:
        news = []
        for subtask, _, group in self._members:
            mark = (subtask.watermark_us, subtask.watermarks.told_idle)
            if self._told.get(subtask.subtask) != mark:
                self._told[subtask.subtask] = mark
                news.append([*subtask.subtask, group.name, str(mark[0]), mark[1]])
        if news:
            self._told_ms = now_ms
            self._send({"type": "source_watermarks", "marks": news})
