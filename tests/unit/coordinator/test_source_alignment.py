"""The least watermark of each alignment group, from what slots tell (S4.4)."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.channel.control.protocol import GroupWatermark, SourceWatermark, SourceWatermarks, Subtask
from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.coordinator.source_alignment import NOBODY, SourceAlignment


def mark(chain: int, time_us: int, *, index: int = 0, group: str = "g", idle: bool = False) -> SourceWatermark:
    return SourceWatermark((chain, index), group, time_us, idle)


def low(time_us: int, of: Subtask | None, others_us: int = MAX_WATERMARK) -> GroupWatermark:
    return GroupWatermark(time_us, of, others_us)


def advance(alignment: SourceAlignment, *marks: SourceWatermark) -> Mapping[str, GroupWatermark]:
    """The groups that changed."""
    message = alignment.advance(SourceWatermarks(marks))
    return {} if message is None else message.groups


def test_the_least_of_a_group_and_of_the_others_is_reported_when_it_changes() -> None:
    alignment = SourceAlignment()
    assert advance(alignment, mark(0, 10)) == {"g": low(10, (0, 0))}
    assert advance(alignment, mark(1, 5)) == {"g": low(5, (1, 0), 10)}
    assert advance(alignment, mark(0, 20), mark(0, 30, index=1)) == {"g": low(5, (1, 0), 20)}
    assert advance(alignment, mark(0, 40, index=1)) == {}
    assert advance(alignment, mark(1, 30), mark(2, 1, group="h")) == {"g": low(20, (0, 0), 30), "h": low(1, (2, 0))}


@pytest.mark.parametrize(
    "left_out", [mark(1, MIN_WATERMARK), mark(1, 3, idle=True), mark(1, MAX_WATERMARK)], ids=["unread", "idle", "ended"]
)
def test_what_is_unread_idle_or_ended_is_not_waited_for(left_out: SourceWatermark) -> None:
    alignment = SourceAlignment()
    advance(alignment, mark(0, 10), mark(1, 3))
    assert advance(alignment, left_out) == {"g": low(10, (0, 0))}


def test_when_nobody_is_left_nobody_is_waited_for() -> None:
    alignment = SourceAlignment()
    advance(alignment, mark(0, 10))
    assert advance(alignment, mark(0, MAX_WATERMARK)) == {"g": NOBODY}
    assert alignment.advance(SourceWatermarks((mark(0, MAX_WATERMARK),))) is None


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 9), st.booleans()), max_size=20))
def test_what_was_reported_last_is_the_least_of_those_that_are_waited_for(
    steps: list[tuple[int, int, int, bool]],
) -> None:
    alignment, now, newest = SourceAlignment(), {}, NOBODY
    for chain, index, time_us, idle in steps:
        now[(chain, index)] = (time_us, idle)
        newest = advance(alignment, mark(chain, time_us, index=index, idle=idle)).get("g", newest)
        waited_for = {place: time for place, (time, is_idle) in now.items() if not is_idle}
        assert newest.low_us == min(waited_for.values(), default=MAX_WATERMARK)
        if newest.of is not None:
            assert waited_for.pop(newest.of) == newest.low_us
            assert newest.others_us == min(waited_for.values(), default=MAX_WATERMARK)
