"""Watermark of a subtask: the minimum over its input channels (S4.4). Pure."""

from __future__ import annotations

from collections.abc import Collection

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK


class WatermarkTracker:
    """Takes watermarks and idleness per channel; tells when the minimum over the active channels advances."""

    def __init__(self, channels: int, timeless: Collection[int] = ()) -> None:
        """Args: channels: number of input channels, numbered from 0. timeless: those that bring no time but their end,
        and do not hold the minimum back before the others have ended, too."""
        self._timeless = [channel in timeless for channel in range(channels)]
        self._times = [MIN_WATERMARK] * channels
        self._idle = list(self._timeless)
        self._current = MIN_WATERMARK
        self._told_idle = False

    @property
    def reported_idle(self) -> bool:
        """Downstream takes the subtask for idle."""
        return self._told_idle

    @property
    def all_idle(self) -> bool:
        """Channels are left, and none of them is active."""
        left = [idle for t, idle in zip(self._times, self._idle, strict=True) if t < MAX_WATERMARK]
        return bool(left) and all(left)

    def watermark(self, channel: int, time_us: int) -> int | None:
        """`channel` advanced; the new minimum when that advanced, else None. Never goes back. MAX_WATERMARK ends the
        channel, idle or not."""
        self._times[channel] = max(self._times[channel], time_us)
        return self._advance()

    def idle(self, channel: int, idle: bool) -> int | None:
        """`channel` became idle or active; the new minimum when leaving it out advanced it."""
        self._idle[channel] = idle or self._timeless[channel]
        return self._advance()

    def idle_change(self, *, withheld: bool, silent: bool = False) -> bool | None:
        """What to tell downstream when it has been told otherwise: idle while every channel that is left is, or the
        subtask is `silent` for another reason, and no rows are `withheld`, which a later watermark of others would make
        late."""
        idle = not withheld and (silent or self.all_idle)
        if idle == self._told_idle:
            return None
        self._told_idle = idle
        return idle

    def reactivates(self) -> bool:
        """A row has come: whether downstream is to be told first that the subtask is active again."""
        told, self._told_idle = self._told_idle, False
        return told

    def ended(self, channel: int) -> int | None:
        """`channel` has ended: counts as MAX_WATERMARK."""
        return self.watermark(channel, MAX_WATERMARK)

    def _advance(self) -> int | None:
        """The minimum over active channels. Ended ones alone decide only when none is left: an idle channel may wake
        up, and nothing it then brings may be late for the end of time."""
        low = min((t for t, idle in zip(self._times, self._idle, strict=True) if not idle), default=None)
        ended = all(t == MAX_WATERMARK for t in self._times)
        if ended:
            low = MAX_WATERMARK
        if low is None or low <= self._current or (low == MAX_WATERMARK and not ended):
            return None
        self._current = low
        return low
