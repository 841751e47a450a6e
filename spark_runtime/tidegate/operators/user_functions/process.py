"""Process: base class of user processes with state of a subtask, without keys."""

from __future__ import annotations

from datetime import timedelta

from tidegate.operators.user_functions.context import Batches, ProcessBase, Rows, SubtaskContext


class UnkeyedProcessBase(ProcessBase):
    """Common base of processes without keys. Subclass one of the classes below it.

    Attributes:
        every: interval of `on_processing_time`, such as "5 s"; None: it is never called. While a list state of the
            process holds rows, the operator does not forward idleness, as if a timer waited for each row (S4.4).
    """

    every: str | timedelta | None = None

    def open(self, ctx: SubtaskContext) -> None:
        """Prepare the process. Called before all other methods. Do not use states: they are not restored yet."""

    def restored(self, ctx: SubtaskContext) -> None:
        """Continue after a restore: states are restored. Called before any input; never at a first start."""

    def on_watermark(self, watermark_us: int, ctx: SubtaskContext) -> Batches:
        """Handle a new watermark, MAX_WATERMARK at the end of the input. Called before the watermark is forwarded, so
        rows emitted here with times up to `watermark_us` are not late downstream."""
        return None

    def on_processing_time(self, now_ms: int, ctx: SubtaskContext) -> Batches:
        """Handle the interval `every`, counted from the last call or the start of the subtask. The call may come long
        after. It never comes after the end of the input: `finish` is called instead."""
        raise NotImplementedError

    def finish(self, ctx: SubtaskContext) -> Batches:
        """Emit the last rows: all input has arrived. States are kept. May be called again after a failure."""
        return None


class Process(UnkeyedProcessBase):
    """Subclass it to keep state of a subtask, such as waiting rows; pass an instance to `stream.process(...)`.

    See `ProcessBase` for the order of calls.
    """

    def process(self, rows: Rows, ctx: SubtaskContext) -> Batches:
        """Process rows. The division of rows into batches may differ from run to run."""
        raise NotImplementedError
