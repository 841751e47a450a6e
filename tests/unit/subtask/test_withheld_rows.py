"""S4.4: what passes downstream of idleness and time while an operator keeps rows back that are still to come out."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from builders.operators import open_operator
from builders.subtasks import SubtaskHarness

from tidegate.channel.elements import MAX_WATERMARK, EndOfData, EndOfPartition, IdleStatus, Watermark
from tidegate.operators.joins.join_specs import BroadcastJoinSpec

LEFT = pa.schema([("k", pa.int64())])
RIGHT = pa.schema([("k", pa.int64()), ("v", pa.int64())])
PROBE, BUILD = 0, 1
JOINED = {"k": 1, "v": 7}


class Join(SubtaskHarness):
    """A subtask with a broadcast join: channel 0 brings probe rows, channel 1 the build side."""

    def __init__(self) -> None:
        join = open_operator(BroadcastJoinSpec(("k",), "inner", LEFT, RIGHT, RIGHT), LEFT, RIGHT)
        super().__init__(join, ports=(PROBE, BUILD))

    def flow(self, channel: int, *elements: Any) -> list[Any]:
        """What comes out when these come in; batches as rows."""
        self.send(channel, *elements)
        self.pump()
        out: list[Any] = []
        for element in self.sent():
            out += element.to_pylist() if isinstance(element, pa.RecordBatch) else [element]
        return out

    def probe(self) -> list[Any]:
        return self.flow(PROBE, pa.record_batch({"k": [1]}))

    def build(self) -> list[Any]:
        return self.flow(BUILD, pa.record_batch({"k": [1], "v": [7]}))


def test_idleness_waits_for_the_rows_that_a_join_withholds() -> None:
    """S4.4: an idle channel is left out of the minimum, and what it then brings is late. The build side's last
    watermark leaves only the idle probe side; the rows come out with its end."""
    join = Join()
    join.build()
    assert join.probe() == []
    assert join.flow(BUILD, IdleStatus(True)) == []
    assert join.flow(PROBE, Watermark(5), IdleStatus(True)) == [], "everything is idle, but row 1 is still in here"
    assert join.flow(BUILD, IdleStatus(False), Watermark(MAX_WATERMARK)) == []
    assert join.flow(BUILD, EndOfData(True)) == [JOINED, Watermark(5), IdleStatus(True)]
    assert join.flow(PROBE, IdleStatus(False)) == [IdleStatus(False)]


def test_a_join_that_withholds_nothing_passes_idleness_on() -> None:
    """S4.4."""
    join = Join()
    assert join.flow(PROBE, IdleStatus(True)) == []
    assert join.flow(BUILD, IdleStatus(True)) == [IdleStatus(True)]
    assert join.flow(PROBE, IdleStatus(False)) == [IdleStatus(False)]
    assert join.probe() == []
    assert join.flow(PROBE, IdleStatus(True)) == [], "from now on there is a row to wait for"
    assert join.flow(BUILD, IdleStatus(False)) == []


@pytest.mark.parametrize("ended", [PROBE, BUILD])
def test_the_end_of_one_side_makes_no_idleness_of_the_other_pass_withheld_rows(ended: int) -> None:
    """S4.4: an ended channel no longer counts among the active ones."""
    join = Join()
    join.build()
    join.probe()
    assert join.flow(1 - ended, IdleStatus(True)) == []
    assert join.flow(ended, Watermark(MAX_WATERMARK)) == []
    if ended == PROBE:
        assert join.flow(PROBE, EndOfData(True)) == []
        assert join.flow(BUILD, IdleStatus(False), Watermark(MAX_WATERMARK)) == [JOINED, Watermark(MAX_WATERMARK)]
        assert join.flow(BUILD, EndOfData(True), EndOfPartition()) == [EndOfData(True)]
    else:
        assert join.flow(BUILD, EndOfData(True)) == [JOINED, IdleStatus(True)]
