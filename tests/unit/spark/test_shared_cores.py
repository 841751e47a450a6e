"""Slots that share cores: threads switch less often, and the time without a core is known."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tidegate.spark import shared_cores
from tidegate.spark.shared_cores import (
    MOST_SWITCH_INTERVAL_S,
    SWITCH_INTERVAL_S,
    CpuWait,
    switch_interval_s,
    usable_cores,
)


@pytest.mark.parametrize(
    ("slots", "cores", "times"), [(1, 2, 1), (2, 2, 1), (2, 64, 1), (8, 2, 4), (32, 2, 16), (0, 1, 1)]
)
def test_threads_switch_less_often_where_slots_wait_for_cores(slots: int, cores: int, times: int) -> None:
    assert switch_interval_s(slots, cores) == pytest.approx(times * SWITCH_INTERVAL_S)


def test_the_interval_is_limited() -> None:
    assert switch_interval_s(1_000, 1) == MOST_SWITCH_INTERVAL_S


def test_time_asleep_is_no_time_without_a_core() -> None:
    wait = CpuWait()
    before_ms = wait.ms()
    time.sleep(0.05)
    assert 0 <= wait.ms() - before_ms < 50
    wait.close()
    wait.close()
    assert wait.ms() == 0
    assert usable_cores() >= 1


def test_statistics_without_numbers_count_as_no_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "schedstat").touch()
    monkeypatch.setattr(shared_cores, "_SCHEDULED", str(tmp_path / "schedstat"))
    wait = CpuWait()
    assert wait.ms() == 0
    wait.close()
