"""Watermarks that do not wait for silent splits (S4.4); the clock is the test's."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidegate.channel.elements import Watermark
from tidegate.operators.time.watermark_specs import WatermarkSpec

IDLE_MS = 800
SPEC = WatermarkSpec("t", delay_us=0, unit="us", idle_after_ms=IDLE_MS)


class Rig:
    """The operator of a subtask that reads splits a and b, and its watermarks."""

    def __init__(self, open_operator: Any, active: tuple[str, ...] = ("a", "b")) -> None:
        self.operator = open_operator(SPEC)
        self.now_ms = 0
        self.operator.ctx.processing_time_ms = lambda: self.now_ms
        self.operator.ctx.active_splits = frozenset(active)
        self.watermarks: list[int] = []

    def rows(self, split: str | None, *times: int) -> None:
        self.operator.ctx.current_split = split
        self.take(self.operator.process(pa.record_batch({"t": pa.array(times, pa.int64())}), 0))

    def wait(self, ms: int) -> None:
        """The loop runs meanwhile, and looks at the clock."""
        until_ms = self.now_ms + ms
        while (due_ms := self.operator.next_processing_time_ms()) is not None and due_ms <= until_ms:
            assert due_ms > self.now_ms or self.now_ms == 0
            self.now_ms = due_ms
            self.take(self.operator.on_processing_time(due_ms))
        self.now_ms = until_ms

    def take(self, emission: Any) -> None:
        self.watermarks += [w.time_us for w in emission if isinstance(w, Watermark)]


@pytest.fixture
def rig(open_operator: Any) -> Rig:
    return Rig(open_operator)


def test_a_silent_split_holds_the_watermark_back_only_for_so_long(rig: Rig) -> None:
    rig.rows("a", 100)
    rig.wait(IDLE_MS - 100)
    rig.rows("a", 200)
    assert rig.watermarks == [], "b may still bring something"
    rig.wait(100)
    assert rig.watermarks == [200], "by the clock, without another row"
    assert not rig.operator.is_idle()
    rig.rows("a", 300)
    assert rig.watermarks == [200, 300]


def test_a_split_that_wakes_is_waited_for_again(rig: Rig) -> None:
    rig.rows("a", 100)
    rig.wait(IDLE_MS // 2)
    rig.rows("a", 110)
    rig.wait(IDLE_MS // 2)
    rig.rows("b", 50)
    rig.rows("a", 200)
    assert rig.watermarks == [110], "b is at 50; its row was late, and nothing goes back"
    rig.rows("b", 150)
    assert rig.watermarks == [110, 150]


def test_when_all_splits_are_silent_the_subtask_is_idle_until_a_row_comes(rig: Rig) -> None:
    rig.rows("a", 100)
    rig.rows("b", 70)
    rig.wait(IDLE_MS)
    assert rig.operator.is_idle() and rig.watermarks == [70], "nobody is ahead of anybody then"
    assert rig.operator.next_processing_time_ms() is None, "no clock is looked at for nothing"
    rig.wait(10_000)
    rig.rows("b", 80)
    assert not rig.operator.is_idle()


def test_time_in_which_the_subtask_stood_still_or_its_source_was_paused_is_no_silence(rig: Rig) -> None:
    """Rows wait in the source then, and would be late."""
    rig.rows("a", 100)
    rig.now_ms += 100 * IDLE_MS
    rig.rows("a", 200)
    rig.wait(IDLE_MS // 2)
    assert rig.watermarks == []
    rig.operator.ctx.input_held = True
    rig.wait(100 * IDLE_MS)
    rig.operator.ctx.input_held = False
    assert rig.watermarks == [] and not rig.operator.is_idle()
    rig.wait(IDLE_MS)
    assert rig.operator.is_idle()


def test_behind_an_exchange_all_input_is_one_split(open_operator: Any) -> None:
    rig = Rig(open_operator, ())
    rig.rows(None, 100)
    rig.wait(IDLE_MS - 1)
    assert not rig.operator.is_idle()
    rig.wait(1)
    assert rig.operator.is_idle() and rig.watermarks == [100]
    rig.rows(None, 200)
    assert rig.watermarks == [100, 200]


def test_the_restored_operator_hears_of_every_split_anew(open_operator: Any, rig: Rig) -> None:
    rig.rows("a", 100)
    rig.wait(IDLE_MS)
    snapshot = rig.operator.snapshot(1)
    restored = Rig(lambda spec: open_operator(spec, snapshot()))
    restored.rows("a", 150)
    assert restored.watermarks == []
    restored.wait(IDLE_MS // 2)
    restored.rows("a", 160)
    restored.wait(IDLE_MS // 2)
    assert restored.watermarks == [160]
