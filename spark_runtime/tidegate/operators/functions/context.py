"""What every process of the user's own has: rows, states of its subtask, its times, its life."""

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
"""A state that belongs to a subtask, and not to keys of a back end."""
DeclaredState: TypeAlias = StateDescriptor | SubtaskState
Batches: TypeAlias = Iterable[pa.RecordBatch | SideOutput] | None
"""What a process gives: a generator or list of record batches of the declared schema, and of `SideOutput(name, batch)`;
or None for nothing."""


@dataclass(frozen=True)
class Rows:
    """Rows that have come in.

    Attributes:
        batch: the rows; at least one.
    """

    batch: pa.RecordBatch
    _time: EventTimeColumn | None = field(default=None, repr=False, kw_only=True)

    @property
    def event_time_us(self) -> pa.Int64Array:
        """Event time of each row, microseconds since the epoch, null where it has none.

        Raises:
            PipelineError: there is no event time: no `with_watermark` upstream, or its column was dropped.
        """
        if self._time is None:
            raise PipelineError(
                "the rows have no event time",
                cause="there is no with_watermark upstream, or its column was dropped or changed since",
                remedy='Say which column holds it: .with_watermark("time", "10 min")',
            )
        return self._time.microseconds(self.batch)


class SubtaskContext:
    """A process's place: the states of its subtask, its time. One for each subtask; for its loop's thread alone.

    Attributes:
        uid: of the operator.
        subtask: index, 0 <= subtask < parallelism.
        parallelism: subtasks of the operator.
        key_groups: those of the subtask (S5.1).
        watermark_us: event time has come so far; MIN_WATERMARK before any watermark, MAX_WATERMARK at the end of the
            input. After a restore at another parallelism the earliest of those before.
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
        """Processing time, milliseconds since the epoch."""
        return self._now_ms()

    def operator_list(self, name: str) -> OperatorListState:
        """The state that `operator_list_state(name, ...)` declares. These three raise PipelineError for any other."""
        return self._own.list(name)

    def union_list(self, name: str) -> UnionState:
        """The state that `union_list_state(name, ...)` declares."""
        return self._own.union(name)

    def broadcast(self, name: str) -> BroadcastMap:
        """The state that `broadcast_state(name, ...)` declares. Where the process has a broadcast input, it can be
        written in `process_broadcast` and `end_broadcast` only."""
        return self._own.broadcast_map(name)

    def count(self, name: str, n: int = 1) -> None:
        """Add to a counter that `tidegate status` shows."""
        self._count(name, n)


class ProcessBase:
    """What all processes have; subclass one of those below it.

    Every subtask has a shallow copy of the instance, and calls its methods in one thread: `open`, `restored` where a
    snapshot is restored, then any of the others, `finish` at a real end of the input (S7.1: not when the job is
    suspended), `close` always. Those that give batches may be generators; nothing else happens to the subtask before
    they are exhausted. They must not block and, to be the same after a failure, must depend on rows, states and times
    alone; what a process keeps elsewhere is in no snapshot.

    Attributes:
        states: made by `value_state`, `operator_list_state` and their siblings; a class attribute, or set in
            `__init__`. Timers need no declaration.
    """

    states: Sequence[DeclaredState] = ()

    def write_raw(self, name: str, out: RawOutput) -> None:
        """A snapshot is taken: write the raw state `name`. The subtask stands still meanwhile: be quick."""
        raise NotImplementedError

    def read_raw(self, name: str, pieces: Sequence[RawInput]) -> None:
        """A snapshot is restored: take back the raw state `name`. Before `restored`, once for each raw state, also
        where there are no pieces for this subtask."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what `open` took; also after errors."""
