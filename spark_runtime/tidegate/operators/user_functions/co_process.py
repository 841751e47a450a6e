"""Base classes of user processes for two connected streams. Both inputs share states and timers (S5.1)."""

from __future__ import annotations

from tidegate.operators.user_functions.context import Batches, Rows, SubtaskContext
from tidegate.operators.user_functions.keyed_process import KeyedProcessBase, KeyedRows, ProcessContext
from tidegate.operators.user_functions.process import UnkeyedProcessBase


class CoProcess(UnkeyedProcessBase):
    """Process two streams that share the states of a subtask: `left.connect(right).process(...)`.

    The order between rows of the two sides is not guaranteed, and may differ from run to run.
    """

    def process_left(self, rows: Rows, ctx: SubtaskContext) -> Batches:
        """Process rows of the stream on which `connect` was called."""
        raise NotImplementedError

    def process_right(self, rows: Rows, ctx: SubtaskContext) -> Batches:
        """Process rows of the stream that was passed to `connect`."""
        raise NotImplementedError

    def end_left(self, ctx: SubtaskContext) -> Batches:
        """Handle the real end of the left stream."""
        return None

    def end_right(self, ctx: SubtaskContext) -> Batches:
        """Handle the real end of the right stream."""
        return None


class KeyedCoProcess(KeyedProcessBase):
    """Process two streams that share state and timers per key: `left.connect(right).group_by("order").process(...)`.

    The order between rows of the two sides is not guaranteed, and may differ from run to run.
    """

    def process_left(self, rows: KeyedRows, ctx: ProcessContext) -> Batches:
        """Process rows of the stream on which `connect` was called."""
        raise NotImplementedError

    def process_right(self, rows: KeyedRows, ctx: ProcessContext) -> Batches:
        """Process rows of the stream that was passed to `connect`. `keys.columns()` has the names of the left keys."""
        raise NotImplementedError

    def end_left(self, ctx: ProcessContext) -> Batches:
        """Handle the real end of the left stream."""
        return None

    def end_right(self, ctx: ProcessContext) -> Batches:
        """Handle the real end of the right stream."""
        return None


class BroadcastProcess(UnkeyedProcessBase):
    """Process a stream, and a second one that every subtask receives in full:
    `stream.connect(rules.broadcast()).process(...)`.

    Store broadcast rows in a `broadcast_state`: `process_broadcast` writes it, the other methods read it. The order
    between the inputs is not guaranteed: a row may arrive before a rule that is older.
    """

    def process(self, rows: Rows, ctx: SubtaskContext) -> Batches:
        """Process rows of the stream."""
        raise NotImplementedError

    def process_broadcast(self, rows: Rows, ctx: SubtaskContext) -> Batches:
        """Process rows that every subtask receives. Every subtask emits what this method emits."""
        raise NotImplementedError

    def end_broadcast(self, ctx: SubtaskContext) -> Batches:
        """Handle the real end of the broadcast stream."""
        return None


class KeyedBroadcastProcess(KeyedProcessBase):
    """Process a stream with state and timers per key, and a broadcast stream; compare `BroadcastProcess`.

    Use: `stream.group_by("k").connect(rules.broadcast()).process(...)`.
    """

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> Batches:
        """Process rows of the stream, with their keys."""
        raise NotImplementedError

    def process_broadcast(self, rows: Rows, ctx: ProcessContext) -> Batches:
        """Process rows that every subtask receives, without keys. `ctx.all_keys(name)` iterates over the keys of a
        state."""
        raise NotImplementedError

    def end_broadcast(self, ctx: ProcessContext) -> Batches:
        """Handle the real end of the broadcast stream."""
        return None
