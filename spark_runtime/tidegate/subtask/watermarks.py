"""The watermark of a subtask: the minimum over its input channels (S4.4). Pure."""

from __future__ import annotations

from collections.abc import Collection

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK


class WatermarkTracker:
    """Tracks watermarks and idleness per channel. Reports when the minimum over the active channels advances."""

    def __init__(self, channels: int, timeless: Collection[int] = ()) -> None:
        """Create the tracker.

        Args:
            channels: number of input channels, numbered from 0.
            timeless: channels that deliver no watermark except their end, and hold the minimum back only when all other
                channels have ended.
        """
        self._timeless = [channel in timeless for channel in range(channels)]
        self._times = [MIN_WATERMARK] * channels
        self._idle = list(self._timeless)
        self._any_idle = any(self._idle)
        self._current = MIN_WATERMARK
        self._sent_idle = False

    @property
    def reported_idle(self) -> bool:
        """True while downstream has been notified that the subtask is idle."""
        return self._sent_idle

    @property
    def all_idle(self) -> bool:
        """True when there are open channels, and none of them is active."""
        if not self._any_idle:
            return False
        left = [idle for t, idle in zip(self._times, self._idle, strict=True) if t < MAX_WATERMARK]
        return bool(left) and all(left)

    def watermark(self, channel: int, time_us: int) -> int | None:
        """Process a watermark of `channel`. Return the new minimum if it advanced, else None.

        The minimum never decreases. MAX_WATERMARK ends the channel, idle or not.
        """
        before_us = self._times[channel]
        if time_us <= before_us:
            return None
        self._times[channel] = time_us
        # The minimum cannot have advanced if this channel did not hold it back.
        return self._advance() if before_us <= self._current or time_us == MAX_WATERMARK else None

    def idle(self, channel: int, idle: bool) -> int | None:
        """Process that `channel` became idle or active. Return the new minimum if it advanced, else None."""
        self._idle[channel] = idle or self._timeless[channel]
        self._any_idle = any(self._idle)
        return self._advance()

    def idle_change(self, *, withheld: bool, silent: bool = False) -> bool | None:
        """Return the idleness to send downstream, or None if it has not changed.

        The subtask is idle while every open channel is, or while it is `silent` for another reason. It is not idle
        while rows are `withheld`, because a later watermark of other subtasks would make these rows late.
        """
        idle = not withheld and (silent or self.all_idle)
        if idle == self._sent_idle:
            return None
        self._sent_idle = idle
        return idle

    def reactivates(self) -> bool:
        """Return whether a new row makes an idle subtask active, so that downstream must be notified first."""
        was_sent, self._sent_idle = self._sent_idle, False
        return was_sent

    def ended(self, channel: int) -> int | None:
        """Process the end of `channel`, which counts as MAX_WATERMARK."""
        return self.watermark(channel, MAX_WATERMARK)

    def _advance(self) -> int | None:
        """Return the minimum over active channels if it advanced.

        Ended channels decide only when no other is left. An idle channel may become active again, and its rows must not
        be late because of the end of time.
        """
        if self._any_idle:
            low = min((t for t, idle in zip(self._times, self._idle, strict=True) if not idle), default=None)
            ended = min(self._times) == MAX_WATERMARK
            if ended:
                low = MAX_WATERMARK
            if low is None or low <= self._current or (low == MAX_WATERMARK and not ended):
                return None
        elif (low := min(self._times)) <= self._current:
            return None
        self._current = low
        return low
