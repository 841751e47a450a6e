"""Watermarks that do not wait for silent splits (S4.4); the clock is the test's."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from builders.operators import OperatorHarness

from tidegate.channel.elements import Watermark
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.time.watermark_specs import WatermarkSpec

IDLE_MS = 800
SPEC = WatermarkSpec("t", delay_us=0, unit="us", idle_after_ms=IDLE_MS)


class WatermarkHarness(OperatorHarness[None]):
    """The operator of a subtask that reads splits a and b, and its watermarks."""

    def __init__(self, active: tuple[str, ...] = ("a", "b"), restored: Any = None) -> None:
        self.watermarks: list[int] = []
        super().__init__(
            create_operator(SPEC), self.take, pa.schema([]), restored=restored, active_splits=frozenset(active)
        )

    def rows(self, split: str | None, *times: int) -> None:
        self.context.current_split = split
        self.process(pa.record_batch({"t": pa.array(times, pa.int64())}))

    def wait(self, ms: int) -> None:
        """The loop runs meanwhile, and looks at the clock."""
        until_ms = self.clock.now + ms
        while (due_ms := self.operator.next_processing_time_ms()) is not None and due_ms <= until_ms:
            assert due_ms > self.clock.now or self.clock.now == 0
            self.at(due_ms)
        self.clock.now = until_ms

    def take(self, emission: Any) -> None:
        self.watermarks += [w.time_us for w in emission if isinstance(w, Watermark)]


@pytest.fixture
def harness() -> WatermarkHarness:
    return WatermarkHarness()


def test_a_silent_split_holds_the_watermark_back_only_for_so_long(harness: WatermarkHarness) -> None:
    harness.rows("a", 100)
    harness.wait(IDLE_MS - 100)
    harness.rows("a", 200)
    assert harness.watermarks == [], "b may still bring something"
    harness.wait(100)
    assert harness.watermarks == [200], "by the clock, without another row"
    assert not harness.operator.is_idle()
    harness.rows("a", 300)
    assert harness.watermarks == [200, 300]


def test_a_split_that_wakes_is_waited_for_again(harness: WatermarkHarness) -> None:
    harness.rows("a", 100)
    harness.wait(IDLE_MS // 2)
    harness.rows("a", 110)
    harness.wait(IDLE_MS // 2)
    harness.rows("b", 50)
    harness.rows("a", 200)
    assert harness.watermarks == [110], "b is at 50; its row was late, and nothing goes back"
    harness.rows("b", 150)
    assert harness.watermarks == [110, 150]


def test_when_all_splits_are_silent_the_subtask_is_idle_until_a_row_comes(harness: WatermarkHarness) -> None:
    harness.rows("a", 100)
    harness.rows("b", 70)
    harness.wait(IDLE_MS)
    assert harness.operator.is_idle() and harness.watermarks == [70], "nobody is ahead of anybody then"
    assert harness.operator.next_processing_time_ms() is None, "no clock is looked at for nothing"
    harness.wait(10_000)
    harness.rows("b", 80)
    assert not harness.operator.is_idle()


def test_time_in_which_the_subtask_stood_still_or_its_source_was_paused_is_no_silence(
    harness: WatermarkHarness,
) -> None:
    """Rows wait in the source then, and would be late."""
    harness.rows("a", 100)
    harness.clock.now += 100 * IDLE_MS
    harness.rows("a", 200)
    harness.wait(IDLE_MS // 2)
    assert harness.watermarks == []
    harness.context.input_held = True
    harness.wait(100 * IDLE_MS)
    harness.context.input_held = False
    assert harness.watermarks == [] and not harness.operator.is_idle()
    harness.wait(IDLE_MS)
    assert harness.operator.is_idle()


def test_behind_an_exchange_all_input_is_one_split() -> None:
    harness = WatermarkHarness(())
    harness.rows(None, 100)
    harness.wait(IDLE_MS - 1)
    assert not harness.operator.is_idle()
    harness.wait(1)
    assert harness.operator.is_idle() and harness.watermarks == [100]
    harness.rows(None, 200)
    assert harness.watermarks == [100, 200]


def test_the_restored_operator_hears_of_every_split_anew(harness: WatermarkHarness) -> None:
    harness.rows("a", 100)
    harness.wait(IDLE_MS)
    restored = WatermarkHarness(restored=harness.state())
    restored.rows("a", 150)
    assert restored.watermarks == []
    restored.wait(IDLE_MS // 2)
    restored.rows("a", 160)
    restored.wait(IDLE_MS // 2)
    assert restored.watermarks == [160]
