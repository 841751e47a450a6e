"""Operators in a stage of a batch job."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa

from tidegate.operators.stream_operator import EMISSION_PAUSED, TURN_OVER, Output, StreamOperator
from tidegate.spark.batch.stage_operators import StageChain


class Pausing(StreamOperator):
    """Emits its batch after a pause."""

    def __init__(self, pause: Output) -> None:
        self.pause = pause

    def process(self, batch: pa.RecordBatch, input_index: int) -> Iterator[Output]:
        yield self.pause
        yield batch


class CountedWaits(threading.Event):
    """Does not wait, and counts how often it should have."""

    count = 0

    def wait(self, timeout: float | None = None) -> bool:
        self.count += 1
        return False


def test_an_operator_whose_turn_is_over_continues_at_once_because_nothing_else_runs() -> None:
    batch = pa.record_batch([[1]], names=["n"])
    for pause, waits in ((TURN_OVER, 0), (EMISSION_PAUSED, 1)):
        roused = CountedWaits()
        chain = StageChain([("a", Pausing(pause)), ("b", Pausing(pause))], 0, roused)
        assert list(chain.rows(batch)) == [batch]
        assert roused.count == 2 * waits
