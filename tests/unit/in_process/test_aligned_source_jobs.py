"""S4.4 in whole jobs: sources of an alignment group wait for the slowest of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from fed_splits import Fed

from tidegate.api.pipeline import Pipeline
from tidegate.subtask.slot import REPORT_INTERVAL_MS
from tidegate.testing.collect_sink import CollectSink, clear_collected
from tidegate.testing.in_process_job import InProcessJob, InProcessRun

DRIFT_MS = 1_000
BATCH_MS = 100
_sinks = itertools.count()


class Two:
    """A fast source, of which everything is there, and a slow one that the test feeds, in one group; batches are of
    100 ms of event time."""

    def __init__(self, sink: str, parallelism: int = 1, fast_splits: tuple[str, ...] = ("f",), **what: Any) -> None:
        self.fast = Fed(*fast_splits, batch_rows=BATCH_MS)
        self.slow = Fed("s", batch_rows=BATCH_MS)
        for split in fast_splits:
            self.fast.feed(split, *range(20_000))
        p = Pipeline()
        for name, source in (("fast", self.fast), ("slow", self.slow)):
            stream = p.read(source, uid=name).with_watermark("ts", "0 s", group="both", max_drift="1 s", **what)
            stream.write(CollectSink(f"{sink}-{name}"), uid=f"{name}-out")
        self.job = InProcessJob(lambda: p, {"parallelism": parallelism})
        self.run: InProcessRun = self.job.submit()

    def read_ms(self) -> list[int]:
        """How far each split of the fast source was read."""
        return [20_000 - len(left) for left in self.fast.waiting.values()]

    def paused(self) -> dict[str, Any]:
        """Sources that say that they are not read, and why."""
        sources = [s.source for s in self.run.slot.metrics().subtasks if s.source is not None]
        return {source.uid: source.details["paused"] for source in sources if "paused" in source.details}


@pytest.fixture
def sink() -> Iterator[str]:
    name = f"aligned-{next(_sinks)}"
    yield name
    for end in ("fast", "slow"):
        clear_collected(f"{name}-{end}")


def passed(run: InProcessRun, ms: int) -> None:
    """Let the job run for so long; each subtask of a source reads two batches in 50 ms at most."""
    for _ in range(ms // 50):
        run.pump(2)
        run.tick(50)


def within_drift(found: list[int], of_ms: int) -> bool:
    """No less than the drift, and no further than a source comes before the driver hears of it and answers."""
    unheard = 2 * (REPORT_INTERVAL_MS // 50 + 2) * BATCH_MS
    return all(of_ms + DRIFT_MS <= ms <= of_ms + DRIFT_MS + unheard for ms in found)


@pytest.mark.parametrize("splits", [("f",), ("f", "g")])
def test_a_source_that_is_ahead_waits_for_the_slowest_of_its_group(sink: str, splits: tuple[str, ...]) -> None:
    """In each of its subtasks."""
    two = Two(sink, len(splits), splits)
    two.slow.feed("s", 0)
    two.run.pump(3)
    passed(two.run, 2_000)
    assert two.paused() == {"fast": "ahead of its alignment group"}
    first = two.read_ms()
    for now_ms in (3_000, 3_050, 6_000):
        two.slow.feed("s", now_ms)
        passed(two.run, 2_000)
        found = two.read_ms()
        assert within_drift(found, now_ms) and min(found) >= min(first)
    two.run.crash()


def test_a_source_that_is_idle_or_has_brought_nothing_keeps_nobody_waiting(sink: str) -> None:
    two = Two(sink, idle_after="2 s")
    passed(two.run, 6_000)
    assert not two.fast.waiting["f"], "the slow one has brought nothing yet"
    two.slow.feed("s", 500)
    two.fast.feed("f", *range(20_000, 40_000))
    passed(two.run, 1_000)
    assert two.fast.waiting["f"] and two.paused(), "it has"
    passed(two.run, 8_000)
    assert not two.fast.waiting["f"] and not two.paused(), "it is idle"
    two.run.crash()


def test_a_paused_source_does_not_count_as_idle_and_a_restored_one_aligns_again(sink: str) -> None:
    two = Two(sink, idle_after="10 s")
    two.slow.feed("s", 0)
    two.run.pump(3)
    for time_ms in range(1, 120):
        two.slow.feed("s", time_ms)
        passed(two.run, 1_000)
    (fast,) = [s for s in two.run.slot._subtasks if s.source_input is not None and s.source_input.uid == "fast"]
    assert two.paused() and not fast.watermarks.reported_idle
    two.run.crash()
    two.run = two.job.rerun()
    before = max(two.read_ms())
    two.slow.feed("s", 200)
    two.run.pump(3)
    passed(two.run, 2_000)
    assert two.paused() and max(two.read_ms()) < 20_000 and max(two.read_ms()) >= before
    two.run.crash()
