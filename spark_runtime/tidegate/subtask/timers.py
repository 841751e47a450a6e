"""What a subtask does by the clock (S7.6)."""

from __future__ import annotations

from collections.abc import Iterator

from tidegate.operators.stream_operator import Output
from tidegate.subtask.chain import OperatorChain
from tidegate.subtask.host import SubtaskHost
from tidegate.subtask.inputs import Inputs
from tidegate.subtask.lifecycle import SubtaskLifecycle


class Timers:
    """Processing-time work of the chain's operators, asked for in front of every step. It ends with the data: after a
    real end nothing is left that waits (S7.6), after a suspend it stays in the savepoint (S7.2)."""

    def __init__(
        self, chain: OperatorChain, lifecycle: SubtaskLifecycle, host: SubtaskHost, inputs: Inputs | None
    ) -> None:
        """Args: inputs: None: it is fed by a source."""
        self._inputs = inputs
        self._chain = chain
        self._lifecycle = lifecycle
        self._host = host

    def due_ms(self) -> int | None:
        """Processing time of the next work; None: none waits."""
        return self._chain.next_processing_time_ms() if self._lifecycle.phase == "running" else None

    def are_due(self) -> bool:
        """There is work to do now."""
        due_ms = self.due_ms()
        return due_ms is not None and due_ms <= self._host.now_ms()

    def fire(self) -> Iterator[Output]:
        """Do it."""
        if self._inputs is not None:
            self._chain.hold_input(self._inputs.any_blocked)
        yield from self._chain.processing_time(self._host.now_ms())
