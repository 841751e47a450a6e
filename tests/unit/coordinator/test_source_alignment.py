"""The least watermark of each alignment group, from what slots tell (S4.4)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.channel.elements import MAX_WATERMARK, MIN_WATERMARK
from tidegate.coordinator.source_alignment import Low, SourceAlignment

Mark = tuple[int, int, str, str, bool]


def mark(chain: int, time_us: int, *, index: int = 0, group: str = "g", idle: bool = False) -> Mark:
    return (chain, index, group, str(time_us), idle)


def test_the_least_of_a_group_and_of_the_others_is_told_when_it_changes() -> None:
    alignment = SourceAlignment()
    assert alignment.told([mark(0, 10)]) == {"g": Low(10, (0, 0))}
    assert alignment.told([mark(1, 5)]) == {"g": Low(5, (1, 0), 10)}
    assert alignment.told([mark(0, 20), mark(0, 30, index=1)]) == {"g": Low(5, (1, 0), 20)}
    assert alignment.told([mark(0, 40, index=1)]) == {}
    assert alignment.told([mark(1, 30), mark(2, 1, group="h")]) == {"g": Low(20, (0, 0), 30), "h": Low(1, (2, 0))}


@pytest.mark.parametrize(
    "left_out", [mark(1, MIN_WATERMARK), mark(1, 3, idle=True), mark(1, MAX_WATERMARK)], ids=["unread", "idle", "ended"]
)
def test_what_is_unread_idle_or_ended_is_not_waited_for(left_out: Mark) -> None:
    alignment = SourceAlignment()
    alignment.told([mark(0, 10), mark(1, 3)])
    assert alignment.told([left_out]) == {"g": Low(10, (0, 0))}


def test_when_nobody_is_left_nobody_is_waited_for() -> None:
    alignment = SourceAlignment()
    alignment.told([mark(0, 10)])
    assert alignment.message({"marks": [list(mark(0, MAX_WATERMARK))]}) == {
        "type": "align_sources",
        "lows": {"g": [str(MAX_WATERMARK), None, str(MAX_WATERMARK)]},
    }
    assert alignment.message({"marks": [list(mark(0, MAX_WATERMARK))]}) is None


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 9), st.booleans()), max_size=20))
def test_what_was_told_last_is_the_least_of_those_that_are_waited_for(
    steps: list[tuple[int, int, int, bool]],
) -> None:
    alignment, now, told = SourceAlignment(), {}, Low()
    for chain, index, time_us, idle in steps:
        now[(chain, index)] = (time_us, idle)
        told = alignment.told([mark(chain, time_us, index=index, idle=idle)]).get("g", told)
        waited_for = {place: time for place, (time, is_idle) in now.items() if not is_idle}
        assert told.time_us == min(waited_for.values(), default=MAX_WATERMARK)
        if told.of is not None:
            assert waited_for.pop(told.of) == told.time_us
            assert told.others_us == min(waited_for.values(), default=MAX_WATERMARK)
