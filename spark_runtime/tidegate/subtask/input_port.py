"""One input channel of a subtask, as alignment and captures see it."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.channel.ports import InputChannel


@dataclass
class InputPort:
    """One input channel of a subtask.

    Attributes:
        input_index: of the chain's head.
        blocked: aligned, not processed.
        ended: its end was processed.
        source: subtask index at the other end.
        timeless: brings no watermark but that of its end, and holds back nobody else's (S4.4).
    """

    channel: InputChannel
    input_index: int
    blocked: bool = False
    ended: bool = False
    source: int = 0
    timeless: bool = False
