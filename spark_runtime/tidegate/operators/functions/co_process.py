"""What a user writes for two connected streams: the same states and timers see both (S5.1)."""

from __future__ import annotations

from tidegate.operators.functions.context import Batches, Rows, SubtaskContext
from tidegate.operators.functions.keyed_process import KeyedProcessBase, KeyedRows, ProcessContext
from tidegate.operators.functions.process import UnkeyedProcessBase


class CoProcess(UnkeyedProcessBase):
    """Two streams, and the states of a subtask for both: `left.connect(right).process(...)`.

    Which side's rows come first is not promised, and may differ from run to run.
    """

    def process_left(self, rows: Rows, ctx: SubtaskContext) -> Batches:
        """Rows of the stream that was connected."""
        raise NotImplementedError

    def process_right(self, rows: Rows, ctx: SubtaskContext) -> Batches:
        """Rows of the stream that it was connected with."""
        raise NotImplementedError

    def end_left(self, ctx: SubtaskContext) -> Batches:
        """The left stream has really ended."""
        return None

    def end_right(self, ctx: SubtaskContext) -> Batches:
        """The right stream has really ended."""
        return None


class KeyedCoProcess(KeyedProcessBase):
    """Two streams, and state and timers per key for both: `left.connect(right).group_by("order").process(...)`.

    Which side's rows come first is not promised, and may differ from run to run.
    """

    def process_left(self, rows: KeyedRows, ctx: ProcessContext) -> Batches:
        """Rows of the stream that was connected."""
        raise NotImplementedError

    def process_right(self, rows: KeyedRows, ctx: ProcessContext) -> Batches:
        """Rows of the stream that it was connected with. `keys.columns()` has the names of the left keys."""
        raise NotImplementedError

    def end_left(self, ctx: ProcessContext) -> Batches:
        """The left stream has really ended."""
        return None

    def end_right(self, ctx: ProcessContext) -> Batches:
        """The right stream has really ended."""
        return None


class BroadcastProcess(UnkeyedProcessBase):
    """A stream, and another that every subtask gets all of: `stream.connect(rules.broadcast()).process(...)`.

    Keep what is broadcast in a `broadcast_state`: `process_broadcast` writes it, the rest reads. Which rows come first
    is not promised: a row may come before a rule that is older.
    """

    def process(self, rows: Rows, ctx: SubtaskContext) -> Batches:
        """Rows of the stream."""
        raise NotImplementedError

    def process_broadcast(self, rows: Rows, ctx: SubtaskContext) -> Batches:
        """Rows that every subtask gets; what is emitted here every subtask emits."""
        raise NotImplementedError

    def end_broadcast(self, ctx: SubtaskContext) -> Batches:
        """The stream that is broadcast has really ended."""
        return None


class KeyedBroadcastProcess(KeyedProcessBase):
    """As a `BroadcastProcess`, with state and timers per key of the stream that is not broadcast:
    `stream.group_by("k").connect(rules.broadcast()).process(...)`."""

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> Batches:
        """Rows of the stream, with their keys."""
        raise NotImplementedError

    def process_broadcast(self, rows: Rows, ctx: ProcessContext) -> Batches:
        """Rows that every subtask gets, without keys: `ctx.all_keys(name)` goes through those of a state."""
        raise NotImplementedError

    def end_broadcast(self, ctx: ProcessContext) -> Batches:
        """The stream that is broadcast has really ended."""
        return None
