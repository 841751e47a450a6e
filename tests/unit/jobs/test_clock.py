"""The clock that timeouts and pauses are measured with."""

from __future__ import annotations

from tidegate.clock import steady_clock


def test_setting_the_wall_clock_moves_no_time() -> None:
    """S1.2, S1.4: a pause and a timeout last as long as they should."""
    wall_ns, monotonic_ns = 1_700_000_000_123_000_000, 5_000_000_000
    now_ms = steady_clock(lambda: wall_ns, lambda: monotonic_ns)
    assert now_ms() == 1_700_000_000_123
    wall_ns -= 3_600_000_000_000
    monotonic_ns += 250_000_000
    assert now_ms() == 1_700_000_000_373
