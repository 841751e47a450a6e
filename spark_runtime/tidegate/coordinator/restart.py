"""When a failed run is tried again (S9.1). Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class FixedDelayRestart:
    """At most `attempts` restarts since the last completed checkpoint, `delay_ms` apart.

    A completed checkpoint proves progress and gives the attempts back; waiting for slots does not count.
    """

    attempts: int
    delay_ms: int
    used: int = 0

    def on_failure(self) -> int | None:
        """Milliseconds to wait before the next run, or None: give up."""
        if self.used >= self.attempts:
            return None
        self.used += 1
        return self.delay_ms

    def on_progress(self) -> None:
        """A checkpoint completed."""
        self.used = 0
