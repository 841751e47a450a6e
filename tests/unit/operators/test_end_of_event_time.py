"""S7.2, S4.4: operators of event time around its end: what comes behind MAX_WATERMARK and in front of `finish`, with
checkpoints and crashes in between, gives what it gives without a crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest
from driven_join import PROPERTY, Subtasks, join_spec, streams
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import tidegate as td
from tidegate.channel.elements import MAX_WATERMARK

MS = 1000


def spec(draw: Callable[[td.Stream, td.Stream], td.Stream]) -> Any:
    drawn = draw(*streams())
    return drawn._draft._nodes[drawn._node_id].spec


def windowed(window: Any, lateness: str | None = None) -> Any:
    def draw(left: td.Stream, _: td.Stream) -> td.Stream:
        windows = left.group_by("k").window(window, allowed_lateness=lateness)
        return windows.agg(n=td.count(), most=td.max("x"), uid="windows")

    return spec(draw)


SPECS: dict[str, Callable[[], Any]] = {
    "tumbling": lambda: windowed(td.tumbling("10 ms")),
    "tumbling, late": lambda: windowed(td.tumbling("10 ms"), "15 ms"),
    "sliding": lambda: windowed(td.sliding("10 ms", "4 ms")),
    "sliding, late": lambda: windowed(td.sliding("10 ms", "4 ms"), "15 ms"),
    "session": lambda: windowed(td.session("5 ms")),
    "session, late": lambda: windowed(td.session("5 ms"), "15 ms"),
    "deduplicate": lambda: spec(lambda left, _: left.deduplicate("k", within="10 ms", uid="first")),
    "interval join": lambda: join_spec(between=("-5 ms", "10 ms")),
    "interval join, full": lambda: join_spec(how="full", between=("-5 ms", "10 ms")),
    "interval join, semi": lambda: join_spec(how="semi", between=("-5 ms", "10 ms")),
    "window join": lambda: join_spec(window=td.sliding("10 ms", "4 ms")),
    "window join, full": lambda: join_spec(how="full", window=td.tumbling("10 ms")),
    "session join, full": lambda: join_spec(how="full", window=td.session("5 ms")),
    "join at any time, full": lambda: join_spec(how="full"),
    "join as of a time": lambda: spec(lambda left, right: left.join_as_of(right, on="k", uid="join")),
}


class Run:
    """A run with crashes at some steps. At each there is a checkpoint, and the next run goes on from it; the end of
    event time is told it again when all rows have come, as they lie in front of it in their channels."""

    def __init__(self, name: str, back_end: str, folder: Path, crashes: Collection[int], *, portable: bool) -> None:
        folder.mkdir()
        self._tasks = Subtasks(SPECS[name](), back_end, folder)
        self._crashes, self._portable = crashes, portable
        self._at = 0
        self._is_over = False

    def step(self, step: Any) -> None:
        """A watermark, or (side, rows)."""
        if isinstance(step, int):
            self._is_over = step == MAX_WATERMARK
            self._tasks.watermark(step)
        else:
            self._tasks.feed(*step)
        if self._at in self._crashes:
            self._tasks.restart(1, portable=self._portable)
            self._is_over = False
        self._at += 1

    def end(self) -> tuple[Counter[Any], Counter[str]]:
        """All results, and what was counted."""
        tasks = self._tasks
        if not self._is_over:
            tasks.watermark(MAX_WATERMARK)
        for side in (0, 1):
            tasks.end(side)
        for operator in tasks.operators:
            tasks.take(0, operator.finish())
        tasks.close()
        return Counter(tasks.out), +tasks.counters


TIME = st.integers(0, 60).map(lambda ms: ms * MS)
ROWS = st.lists(st.tuples(st.integers(0, 2), TIME, st.integers(0, 9)), min_size=1, max_size=6)
"""Times are behind watermarks, and ahead of them."""


@pytest.mark.parametrize("back_end", ["heap", "rocksdb"])
@pytest.mark.parametrize("name", SPECS)
def test_a_crash_around_the_end_of_event_time_changes_nothing(name: str, back_end: str, scratches: Any) -> None:
    """S7.2, S4.4: of the end nothing is state."""
    two = "join" in name

    @settings(PROPERTY, max_examples=25 if back_end == "heap" else 4, phases=(Phase.generate,))
    @given(
        fed=st.lists(st.tuples(st.integers(0, 1), ROWS, TIME), max_size=4),
        behind=st.lists(st.tuples(st.integers(0, 1), ROWS), max_size=3),
        crashes=st.sets(st.integers(0, 11)),
        portable=st.booleans(),
    )
    def run(fed: list[Any], behind: list[Any], crashes: set[int], portable: bool) -> None:
        steps: list[Any] = []
        passed = 0
        for side, rows, watermark_us in fed:
            steps.append((side * two, [_of_side(row, side * two) for row in rows]))
            if watermark_us > passed:
                passed = watermark_us
                steps.append(passed)
        steps.append(MAX_WATERMARK)
        steps += [(side * two, [_of_side(row, side * two) for row in rows]) for side, rows in behind]
        folder = scratches()
        runs = [
            Run(name, back_end, folder / str(number), places, portable=portable)
            for number, places in enumerate((set[int](), crashes))
        ]
        for step in steps:
            for each in runs:
                each.step(step)
        whole, broken = (each.end() for each in runs)
        assert broken == whole

    run()


def _of_side(row: tuple[int, int, int], side: int) -> tuple[Any, ...]:
    return (row[0], row[1], "abc"[row[2] % 3]) if side else row
