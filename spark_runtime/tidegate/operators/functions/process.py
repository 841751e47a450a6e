"""What a user writes to keep state of a subtask, without keys: a `Process`."""

from __future__ import annotations

from datetime import timedelta

from tidegate.operators.functions.context import Batches, ProcessBase, Rows, SubtaskContext


class UnkeyedProcessBase(ProcessBase):
    """What all processes without keys have; subclass one of those below it.

    Attributes:
        every: how often `on_processing_time` is called, such as "5 s"; None: never. While a list state of the process
            holds rows, idleness is kept back, as if a timer waited for each of them (S4.4).
    """

    every: str | timedelta | None = None

    def open(self, ctx: SubtaskContext) -> None:
        """Before anything else. States have not been restored yet: leave them alone."""

    def restored(self, ctx: SubtaskContext) -> None:
        """States are back. After every restore, before anything else comes; never at a first start."""

    def on_watermark(self, watermark_us: int, ctx: SubtaskContext) -> Batches:
        """Event time has come to `watermark_us`, MAX_WATERMARK at the end of the input. Before the watermark is passed
        on, so that what is emitted up to then is late for nobody downstream."""
        return None

    def on_processing_time(self, now_ms: int, ctx: SubtaskContext) -> Batches:
        """`every` has passed since the last call, or since the subtask began; perhaps long after. Never once the input
        has ended: `finish` comes instead."""
        raise NotImplementedError

    def finish(self, ctx: SubtaskContext) -> Batches:
        """All input has come: the last chance to emit. States stay. May come again after a failure."""
        return None


class Process(UnkeyedProcessBase):
    """Subclass it to keep state of a subtask: rows that wait, what is known of the rows so far; give an instance to
    `stream.process(...)`. See `ProcessBase` for the order of calls."""

    def process(self, rows: Rows, ctx: SubtaskContext) -> Batches:
        """Rows have come. How they are cut into batches may differ from run to run."""
        raise NotImplementedError
