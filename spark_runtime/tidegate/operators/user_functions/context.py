"""Base of all user processes: rows, the context of a subtask, and the methods that every process has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa

from tidegate.channel.elements import MIN_WATERMARK
from tidegate.errors import PipelineError
from tidegate.operators.stream_operator import SideOutput
from tidegate.operators.time.event_time import EventTimeColumn
from tidegate.state.broadcast_map import BroadcastMap
from tidegate.state.keyed_state import StateDescriptor
from tidegate.state.operator_descriptor import OperatorDescriptor
from tidegate.state.operator_state import OperatorListState, OperatorStates, UnionState
from tidegate.state.raw_state import RawDescriptor, RawInput, RawOutput

SubtaskState: TypeAlias = OperatorDescriptor | RawDescriptor
"""A state that belongs to a subtask, not to keys in a back end."""
DeclaredState: TypeAlias = StateDescriptor | SubtaskState
Batches: TypeAlias = Iterable[pa.RecordBatch | SideOutput] | None
"""Result of a process: a generator or list of record batches of the declared schema, and of `SideOutput(name,
batch)`;
None: no rows."""


@dataclass(frozen=True)
class Rows:
    """Rows of one input.

    Attributes:
        batch: the rows; at least one.
    """

    batch: pa.RecordBatch
    _time: EventTimeColumn | None = field(default=None, repr=False, kw_only=True)

    @property
    def event_time_us(self) -> pa.Int64Array:
        """Return the event time of each row, microseconds since the epoch; null where a row has none.

        Raises:
            PipelineError: the stream has no event time: no `with_watermark` upstream, or its column was dropped.
        """
        if self._time is None:
            raise PipelineError(
                "the rows have no event time",
                cause="there is no with_watermark upstream, or the event-time column was dropped or changed later",
                remedy='Name the event-time column before the process: .with_watermark("time", "10 min")',
            )
        return self._time.microseconds(self.batch)


class SubtaskContext:
    """Context of a process: the states of its subtask, and its time. One for each subtask; use it only in the loop's
    thread.

    Attributes:
        uid: of the operator.
        subtask: index, 0 <= subtask < parallelism.
        parallelism: subtasks of the operator.
        key_groups: key groups of the subtask (S5.1).
        watermark_us: the current watermark; MIN_WATERMARK before the first watermark, MAX_WATERMARK at the end of the
            input. After a restore at another parallelism it is the earliest of the old subtasks' watermarks.
    """

    def __init__(
        self,
        uid: str,
        subtask: int,
        parallelism: int,
        *,
        key_groups: range,
        own: OperatorStates,
        now_ms: Callable[[], int],
        count: Callable[[str, int], None],
    ) -> None:
        self.uid = uid
        self.subtask = subtask
        self.parallelism = parallelism
        self.key_groups = key_groups
        self.watermark_us = MIN_WATERMARK
        self._own = own
        self._now_ms = now_ms
        self._count = count

    @property
    def now_ms(self) -> int:
        """Return the processing time, milliseconds since the epoch."""
        return self._now_ms()

    def operator_list(self, name: str) -> OperatorListState:
        """Return the state declared with `operator_list_state(name, ...)`. Raises PipelineError for any other name."""
        return self._own.list(name)

    def union_list(self, name: str) -> UnionState:
        """Return the state declared with `union_list_state(name, ...)`. Raises PipelineError for any other name."""
        return self._own.union(name)

    def broadcast(self, name: str) -> BroadcastMap:
        """Return the state declared with `broadcast_state(name, ...)`. Raises PipelineError for any other name.

        If the process has a broadcast input, only `process_broadcast` and `end_broadcast` can write this state.
        """
        return self._own.broadcast_map(name)

    def count(self, name: str, n: int = 1) -> None:
        """Add `n` to a counter that `tidegate status` shows."""
        self._count(name, n)


class ProcessBase:
    """Common base of all processes. Do not subclass it directly: subclass one of the classes below it.

    Every subtask has a shallow copy of the instance, and calls its methods in one thread: `open`; `restored` if a
    snapshot is restored; then any of the others; `finish` at a real end of the input (S7.1: not when the job is
    suspended); `close` always.

    Methods that return batches may be generators. The subtask does nothing else until they are exhausted. Methods must
    not block. To give the same results after a failure, they must depend only on rows, states and times. Data that a
    process keeps elsewhere is not part of a snapshot.

    Attributes:
        states: made by `value_state`, `operator_list_state` and their siblings; a class attribute, or set in
            `__init__`. Timers need no declaration.
    """

    states: Sequence[DeclaredState] = ()

    def write_raw(self, name: str, out: RawOutput) -> None:
        """Write the raw state `name` into a snapshot. The subtask waits until this method returns, so it must be
        fast."""
        raise NotImplementedError

    def read_raw(self, name: str, pieces: Sequence[RawInput]) -> None:
        """Restore the raw state `name`. Called before `restored`, once for each raw state, also if `pieces` is
        empty."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what `open` acquired. Also called after errors."""
