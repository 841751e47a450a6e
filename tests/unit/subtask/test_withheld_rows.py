"""S4.4: what passes downstream of idleness and time while an operator keeps rows back that are still to come out."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tidegate.channel.elements import MAX_WATERMARK, EndOfData, EndOfPartition, IdleStatus, Watermark
from tidegate.channel.memory import MemoryChannel
from tidegate.jobs.stores.in_memory import MemoryStore
from tidegate.operators.joins.join_specs import BroadcastJoinSpec
from tidegate.operators.operator_registry import create_operator
from tidegate.operators.stream_operator import OperatorContext
from tidegate.subtask.chain import OperatorChain
from tidegate.subtask.router import OutputEdge, Router
from tidegate.subtask.slot import LoopSignal, Slot
from tidegate.subtask.subtask import InputPort, Subtask
from tidegate.testing.in_process_job import InlineExecutor

LEFT = pa.schema([("k", pa.int64())])
RIGHT = pa.schema([("k", pa.int64()), ("v", pa.int64())])
PROBE, BUILD = 0, 1
JOINED = {"k": 1, "v": 7}


class Rig:
    """A subtask with a broadcast join: channel 0 brings probe rows, channel 1 the build side."""

    def __init__(self) -> None:
        self.channels = [MemoryChannel(1_000_000) for _ in range(2)]
        self.output = MemoryChannel(1_000_000)
        join = create_operator(BroadcastJoinSpec(("k",), "inner", LEFT, RIGHT, RIGHT))
        join.open(OperatorContext("job", "l", "join", 0, 1, 128, 1, "r", (LEFT, RIGHT), lambda: 0))
        self.slot = Slot(
            run_id="r",
            generation=1,
            send=lambda message: None,
            open_location=lambda location: (MemoryStore("withheld"), location),
            threshold_bytes=1_000_000,
            writers=InlineExecutor(),
            now_ms=lambda: 0,
            wake=LoopSignal(),
        )
        subtask = Subtask(
            (0, 0),
            OperatorChain([join], ["join"], 0),
            ["join"],
            [InputPort(channel, index) for index, channel in enumerate(self.channels)],
            Router([OutputEdge([self.output])]),
            self.slot,
            source=None,
            mode="exactly_once",
            wait_for_final=True,
        )
        self.slot.start([subtask])

    def send(self, channel: int, *elements: Any) -> list[Any]:
        """What comes out when these come in; batches as rows."""
        for element in elements:
            self.channels[channel].send(element)
        while self.slot.run_round():
            continue
        out: list[Any] = []
        while (element := self.output.poll()) is not None:
            out += element.to_pylist() if isinstance(element, pa.RecordBatch) else [element]
        return out

    def probe(self) -> list[Any]:
        return self.send(PROBE, pa.record_batch({"k": [1]}))

    def build(self) -> list[Any]:
        return self.send(BUILD, pa.record_batch({"k": [1], "v": [7]}))


def test_idleness_waits_for_the_rows_that_a_join_withholds() -> None:
    """S4.4: an idle channel is left out of the minimum, and what it then brings is late. The build side's last
    watermark leaves only the idle probe side; the rows come out with its end."""
    rig = Rig()
    rig.build()
    assert rig.probe() == []
    assert rig.send(BUILD, IdleStatus(True)) == []
    assert rig.send(PROBE, Watermark(5), IdleStatus(True)) == [], "everything is idle, but row 1 is still in here"
    assert rig.send(BUILD, IdleStatus(False), Watermark(MAX_WATERMARK)) == []
    assert rig.send(BUILD, EndOfData(True)) == [JOINED, Watermark(5), IdleStatus(True)]
    assert rig.send(PROBE, IdleStatus(False)) == [IdleStatus(False)]


def test_a_join_that_withholds_nothing_passes_idleness_on() -> None:
    """S4.4."""
    rig = Rig()
    assert rig.send(PROBE, IdleStatus(True)) == []
    assert rig.send(BUILD, IdleStatus(True)) == [IdleStatus(True)]
    assert rig.send(PROBE, IdleStatus(False)) == [IdleStatus(False)]
    assert rig.probe() == []
    assert rig.send(PROBE, IdleStatus(True)) == [], "from now on there is a row to wait for"
    assert rig.send(BUILD, IdleStatus(False)) == []


@pytest.mark.parametrize("ended", [PROBE, BUILD])
def test_the_end_of_one_side_makes_no_idleness_of_the_other_pass_withheld_rows(ended: int) -> None:
    """S4.4: an ended channel no longer counts among the active ones."""
    rig = Rig()
    rig.build()
    rig.probe()
    assert rig.send(1 - ended, IdleStatus(True)) == []
    assert rig.send(ended, Watermark(MAX_WATERMARK)) == []
    if ended == PROBE:
        assert rig.send(PROBE, EndOfData(True)) == []
        assert rig.send(BUILD, IdleStatus(False), Watermark(MAX_WATERMARK)) == [JOINED, Watermark(MAX_WATERMARK)]
        assert rig.send(BUILD, EndOfData(True), EndOfPartition()) == [EndOfData(True)]
    else:
        assert rig.send(BUILD, EndOfData(True)) == [JOINED, IdleStatus(True)]
