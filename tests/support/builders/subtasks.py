"""A slot with channels in memory, and a harness that drives one subtask in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from builders.clock import ManualClock
from tidegate.channel.elements import Element
from tidegate.channel.memory import MemoryChannel
from tidegate.jobs.stores.in_memory import MemoryStore
from tidegate.jobs.stores.store import Store
from tidegate.operators.stream_operator import StreamOperator
from tidegate.subtask.alignment import AlignmentMode
from tidegate.subtask.chain import OperatorChain
from tidegate.subtask.host import SubtaskHost
from tidegate.subtask.router import OutputEdge, Router
from tidegate.subtask.slot import LoopSignal, Slot
from tidegate.subtask.source import SourceInput
from tidegate.subtask.subtask import InputPort, Subtask
from tidegate.testing.in_process_job import InlineExecutor

ROOM_BYTES = 1_000_000
"""More than a test puts into one channel."""
SUBTASK = (1, 0)
"""Chain and index of the subtask of a harness."""


def memory_slot(**facts: Any) -> Slot:
    """A slot without threads at time 0, whose state goes into memory, where `facts` say nothing else."""
    store = MemoryStore("slot")
    place: dict[str, Any] = {
        "run_id": "r",
        "generation": 1,
        "send": lambda message: None,
        "open_location": lambda location: (store, location),
        "threshold_bytes": ROOM_BYTES,
        "writers": InlineExecutor(),
        "now_ms": lambda: 0,
        "wake": LoopSignal(),
    }
    return Slot(**{**place, **facts})


def no_location(location: str) -> tuple[Store, str]:
    """For a slot of a test that stores nothing."""
    raise AssertionError(location)


class SubtaskHarness:
    """Drives one subtask: the test fills its inputs and takes what it sends.

    Args:
        ports: for each channel that leads to it the input of its first operator.
        uids: of its operators.
        output: where it sends; room for everything by default.
        edges: more than this output.
        source: reads this instead of channels.
        host: stands for the slot; None: a `memory_slot` with `slot_facts`.
        subtask_facts: more arguments of `Subtask`.
    """

    def __init__(
        self,
        *operators: StreamOperator,
        ports: Sequence[int] = (0,),
        uids: Sequence[str] = ("op",),
        output: MemoryChannel | None = None,
        edges: Sequence[OutputEdge] = (),
        source: SourceInput | None = None,
        mode: AlignmentMode = "exactly_once",
        host: SubtaskHost | None = None,
        slot_facts: Mapping[str, Any] = MappingProxyType({}),
        **subtask_facts: Any,
    ) -> None:
        self.clock = ManualClock(0)
        self.inputs = [MemoryChannel(ROOM_BYTES) for _ in ports]
        self.output = MemoryChannel(ROOM_BYTES) if output is None else output
        self.slot = memory_slot(**{"now_ms": self.clock, **slot_facts})
        self.subtask = Subtask(
            SUBTASK,
            OperatorChain(operators, uids, 0),
            uids,
            [
                InputPort(channel, port, source=n)
                for n, (channel, port) in enumerate(zip(self.inputs, ports, strict=True))
            ],
            Router([OutputEdge([self.output]), *edges]),
            host or self.slot,
            source=source,
            mode=mode,
            wait_for_final=True,
            **subtask_facts,
        )
        if host is None:
            self.slot.start([self.subtask])

    def send(self, channel: int, *elements: Element) -> None:
        """Put elements into an input."""
        for element in elements:
            self.inputs[channel].send(element)

    def pump(self) -> None:
        """Let the slot work until nothing is left to do."""
        while self.slot.run_round():
            continue

    def sent(self) -> Iterator[Element]:
        """Take what is in the output, without letting the subtask go on."""
        while (element := self.output.poll()) is not None:
            yield element

    def out(self) -> list[Any]:
        """The same, batches as the values of their first column."""
        return [e.column(0).to_pylist() if isinstance(e, pa.RecordBatch) else e for e in self.sent()]
