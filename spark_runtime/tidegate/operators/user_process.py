"""What a user writes to keep state of their own per key: a `KeyedProcess`, and what it is given."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.channel.elements import MIN_WATERMARK
from tidegate.contract.errors import PipelineError
from tidegate.operators.contract import SideOutput
from tidegate.state.contract import (
    KeyNumbers,
    KeySet,
    ListState,
    MapState,
    MergingState,
    StateDescriptor,
    TimerKind,
    TimerService,
    ValueState,
)

if TYPE_CHECKING:
    from tidegate.operators.eventtime import EventTime

KeyedState: TypeAlias = ValueState | ListState | MapState | MergingState


@dataclass(frozen=True)
class KeyedRows:
    """Rows that have come in, with their keys.

    Attributes:
        batch: the rows; at least one.
        keys: their distinct keys, in order of first sight; valid while `process` goes on. Null is a key.
    """

    batch: pa.RecordBatch
    keys: KeySet
    _time: EventTime | None = field(default=None, repr=False)

    @property
    def owners(self) -> KeyNumbers:
        """For each row the number of its key, int32: what states take to say whose a row is."""
        return self.keys.rows

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


@dataclass(frozen=True)
class FiredTimers:
    """Timers whose time has come: timer i is of key `owners[i]` and was set to `times_us[i]`.

    Attributes:
        kind: "event": the watermark has reached them. "processing": the clock has, or the input has ended (S7.6).
        keys: their distinct keys; valid while `on_timers` goes on.
        owners: int32, one for each timer; a key may have several.
        times_us: int64, microseconds since the epoch, ascending.
    """

    kind: TimerKind
    keys: KeySet
    owners: KeyNumbers
    times_us: npt.NDArray[np.int64]


class ProcessContext:
    """A process's place: its states, its timers, its time. One for each subtask; for its loop's thread alone.

    Attributes:
        uid: of the operator.
        subtask: index, 0 <= subtask < parallelism.
        parallelism: subtasks of the operator.
        event_timers: fire when the watermark reaches them. One for a time that it has reached already fires with the
            next watermark.
        processing_timers: fire when the clock reaches them, perhaps long after, as after a restore.
        watermark_us: event time has come so far; MIN_WATERMARK before any watermark, MAX_WATERMARK at the end of the
            input. After a restore at another parallelism the earliest of those of its key groups: see `watermarks_us`.
    """

    def __init__(
        self,
        uid: str,
        subtask: int,
        parallelism: int,
        *,
        states: Mapping[str, tuple[StateDescriptor, KeyedState]],
        event_timers: TimerService,
        processing_timers: TimerService,
        now_ms: Callable[[], int],
        watermarks_us: Callable[[KeySet], npt.NDArray[np.int64]],
        all_keys: Callable[[str, int], Iterator[KeySet]],
        count: Callable[[str, int], None],
    ) -> None:
        self.uid = uid
        self.subtask = subtask
        self.parallelism = parallelism
        self.event_timers = event_timers
        self.processing_timers = processing_timers
        self.watermark_us = MIN_WATERMARK
        self._states = states
        self._now_ms = now_ms
        self._watermarks_us = watermarks_us
        self._all_keys = all_keys
        self._count = count

    @property
    def now_ms(self) -> int:
        """Processing time, milliseconds since the epoch."""
        return self._now_ms()

    def watermarks_us(self, keys: KeySet) -> npt.NDArray[np.int64]:
        """How far event time has come for each key, int64: `watermark_us`, or later where the key's timers had been
        fired further before a restore. A row of an earlier time is late."""
        return self._watermarks_us(keys)

    def value(self, name: str) -> ValueState:
        """The state that `value_state(name, ...)` declares. These four raise PipelineError for any other."""
        return cast(ValueState, self._state(name, "value", ("value",)))

    def list(self, name: str) -> ListState:
        """The state that `list_state(name, ...)` declares."""
        return cast(ListState, self._state(name, "list", ("list",)))

    def map(self, name: str) -> MapState:
        """The state that `map_state(name, ...)` declares."""
        return cast(MapState, self._state(name, "map", ("map",)))

    def merging(self, name: str) -> MergingState:
        """The state that `reducing_state(name, ...)` or `aggregating_state(name, ...)` declares."""
        return cast(MergingState, self._state(name, "merging", ("reducing", "aggregating")))

    def all_keys(self, name: str, limit: int = 64 * 1024) -> Iterator[KeySet]:
        """Every key of this subtask that has something in the state, in sets of at most `limit`, in no promised order.
        Nothing may be written between two of them."""
        return self._all_keys(name, limit)

    def count(self, name: str, n: int = 1) -> None:
        """Add to a counter that `tidegate status` shows."""
        self._count(name, n)

    def _state(self, name: str, called: str, kinds: tuple[str, ...]) -> KeyedState:
        where = f"operator {self.uid!r}, state {name!r}"
        if name not in self._states:
            near = difflib.get_close_matches(name, self._states, n=1)
            raise PipelineError(
                f"there is no state {name!r}" + (f", did you mean {near[0]!r}?" if near else ""),
                where=where,
                cause=f"its states are {', '.join(self._states) or 'none'}",
                remedy="Declare it in the process's `states`",
            )
        descriptor, state = self._states[name]
        if descriptor.kind not in kinds:
            right = "merging" if descriptor.kind in ("reducing", "aggregating") else descriptor.kind
            raise PipelineError(
                f"state {name!r} is of kind {descriptor.kind!r}",
                where=where,
                cause=f"ctx.{called} was called",
                remedy=f"Call ctx.{right}({name!r})",
            )
        return state


class KeyedProcess:
    """Subclass it to keep state and timers per key; give an instance to `stream.group_by(...).process(...)`.

    Everything is by batch: `process` gets the rows that come with their distinct keys, and reads and writes a state for
    all of them in one call. It must not block and, to be the same after a failure, must depend on its rows, states and
    times alone; what it keeps elsewhere is in no snapshot.

    Every subtask has a shallow copy of the instance, and calls its methods in one thread: `open`, then any of the
    others, `finish` at a real end of the input (S7.1: not when the job is suspended), `close` always. `process`,
    `on_timers` and `finish` are generators of record batches of the declared schema, and of `SideOutput(name, batch)`
    (or give a list, or None for nothing); nothing else happens to the subtask before they are exhausted.

    Attributes:
        states: made by `value_state` and its siblings; a class attribute, or set in `__init__`. Timers need no
            declaration.
    """

    states: Sequence[StateDescriptor] = ()

    def open(self, ctx: ProcessContext) -> None:
        """Before anything else. States and timers have not been restored yet: leave them alone."""

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> Iterable[pa.RecordBatch | SideOutput] | None:
        """Rows have come. How they are cut into batches may differ from run to run."""
        raise NotImplementedError

    def on_timers(self, due: FiredTimers, ctx: ProcessContext) -> Iterable[pa.RecordBatch | SideOutput] | None:
        """Timers of one kind are due, and gone. Those over event time come before the watermark is passed on, so that
        what is emitted at their times is late for nobody downstream."""
        raise NotImplementedError

    def finish(self, ctx: ProcessContext) -> Iterable[pa.RecordBatch | SideOutput] | None:
        """All input has come and all timers have fired: the last chance to emit. States stay. May come again after a
        failure."""
        return None

    def close(self) -> None:
        """Release what `open` took; also after errors."""
