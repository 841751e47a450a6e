"""One input channel of a subtask, with its state for alignment and captures."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.channel.ports import InputChannel


@dataclass
class InputPort:
    """One input channel of a subtask.

    Attributes:
        input_index: input of the chain's head that it belongs to.
        blocked: it is blocked for an alignment, and not processed.
        ended: its end was processed.
        source: subtask index at the other end.
        timeless: it delivers no watermark except its end, and does not hold back watermarks of other channels (S4.4).
    """

    channel: InputChannel
    input_index: int
    blocked: bool = False
    ended: bool = False
    source: int = 0
    timeless: bool = False
