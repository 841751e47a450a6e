"""KeyedProcess: base class of user processes with state per key, with its rows, timers and context."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from tidegate.errors import PipelineError
from tidegate.operators.user_functions.context import Batches, ProcessBase, Rows, SubtaskContext
from tidegate.state.keyed_state import (
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
from tidegate.state.operator_state import OperatorStates

KeyedState: TypeAlias = ValueState | ListState | MapState | MergingState


@dataclass(frozen=True)
class KeyedRows(Rows):
    """Rows of one input, with their keys.

    Attributes:
        batch: the rows; at least one.
        keys: their distinct keys, in order of arrival; valid until `process` ends. Null is a key.
    """

    keys: KeySet

    @property
    def owners(self) -> KeyNumbers:
        """Return for each row the number of its key, int32. States take it as their argument `owners`."""
        return self.keys.rows


@dataclass(frozen=True)
class FiredTimers:
    """Timers that are due: timer i belongs to key `owners[i]` and was set to `times_us[i]`.

    Attributes:
        kind: "event": the watermark has reached them. "processing": the clock has reached them, or the input has ended
            (S7.6).
        keys: their distinct keys; valid until `on_timers` ends.
        owners: int32, one for each timer; a key may have several.
        times_us: int64, microseconds since the epoch, ascending.
    """

    kind: TimerKind
    keys: KeySet
    owners: KeyNumbers
    times_us: npt.NDArray[np.int64]


class ProcessContext(SubtaskContext):
    """Context of a process with keys: its states, timers and time. One for each subtask; use it only in the loop's
    thread.

    Attributes:
        event_timers: fire when the watermark reaches them. A timer set to a time that the watermark has already
            reached fires with the next watermark.
        processing_timers: fire when the clock reaches them, perhaps long after, as after a restore.
    """

    def __init__(
        self,
        uid: str,
        subtask: int,
        parallelism: int,
        *,
        key_groups: range,
        own: OperatorStates,
        states: Mapping[str, tuple[StateDescriptor, KeyedState]],
        event_timers: TimerService,
        processing_timers: TimerService,
        now_ms: Callable[[], int],
        watermarks_us: Callable[[KeySet], npt.NDArray[np.int64]],
        all_keys: Callable[[str, int], Iterator[KeySet]],
        count: Callable[[str, int], None],
    ) -> None:
        super().__init__(uid, subtask, parallelism, key_groups=key_groups, own=own, now_ms=now_ms, count=count)
        self.event_timers = event_timers
        self.processing_timers = processing_timers
        self._states = states
        self._watermarks_us = watermarks_us
        self._all_keys = all_keys

    def watermarks_us(self, keys: KeySet) -> npt.NDArray[np.int64]:
        """Return the watermark of each key, int64: `watermark_us`, or later if the key's timers fired further before a
        restore. A row with an earlier time is late."""
        return self._watermarks_us(keys)

    def value(self, name: str) -> ValueState:
        """Return the state declared with `value_state(name, ...)`. Raises PipelineError for any other name."""
        return cast(ValueState, self._state(name, "value", ("value",)))

    def list(self, name: str) -> ListState:
        """Return the state declared with `list_state(name, ...)`. Raises PipelineError for any other name."""
        return cast(ListState, self._state(name, "list", ("list",)))

    def map(self, name: str) -> MapState:
        """Return the state declared with `map_state(name, ...)`. Raises PipelineError for any other name."""
        return cast(MapState, self._state(name, "map", ("map",)))

    def merging(self, name: str) -> MergingState:
        """Return the state declared with `reducing_state(name, ...)` or `aggregating_state(name, ...)`.

        Raises:
            PipelineError: no such state is declared.
        """
        return cast(MergingState, self._state(name, "merging", ("reducing", "aggregating")))

    def all_keys(self, name: str, limit: int = 64 * 1024) -> Iterator[KeySet]:
        """Return every key of this subtask that has a value in the state, in sets of at most `limit`. The order is not
        guaranteed. Do not write between two sets."""
        return self._all_keys(name, limit)

    def _state(self, name: str, called: str, kinds: tuple[str, ...]) -> KeyedState:
        where = f"operator {self.uid!r}, state {name!r}"
        if name not in self._states:
            near = difflib.get_close_matches(name, self._states, n=1)
            raise PipelineError(
                f"there is no state {name!r}" + (f", did you mean {near[0]!r}?" if near else ""),
                where=where,
                cause=f"the declared states are {', '.join(self._states) or 'none'}",
                remedy="Declare the state in the process's `states`",
            )
        descriptor, state = self._states[name]
        if descriptor.kind not in kinds:
            right = "merging" if descriptor.kind in ("reducing", "aggregating") else descriptor.kind
            raise PipelineError(
                f"ctx.{called}({name!r}) was called, but state {name!r} is of kind {descriptor.kind!r}",
                where=where,
                remedy=f"Call ctx.{right}({name!r})",
            )
        return state


class KeyedProcessBase(ProcessBase):
    """Common base of processes with keys. Subclass one of the classes below it."""

    def open(self, ctx: ProcessContext) -> None:
        """Prepare the process. Called before all other methods. Do not use states and timers: they are not restored
        yet."""

    def restored(self, ctx: ProcessContext) -> None:
        """Continue after a restore: states and timers are restored. Called before any input; never at a first start."""

    def on_timers(self, due: FiredTimers, ctx: ProcessContext) -> Batches:
        """Handle due timers of one kind. They are already deleted. Event timers fire before the watermark is forwarded,
        so rows emitted with the timers' times are not late downstream."""
        raise NotImplementedError

    def finish(self, ctx: ProcessContext) -> Batches:
        """Emit the last rows: all input has arrived and all timers have fired. States are kept. May be called again
        after a failure."""
        return None


class KeyedProcess(KeyedProcessBase):
    """Subclass it to keep state and timers per key; pass an instance to `stream.group_by(...).process(...)`.

    All methods work on batches: `process` receives rows with their distinct keys, and reads and writes a state for all
    keys in one call. See `ProcessBase` for the order of calls.
    """

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> Batches:
        """Process rows. The division of rows into batches may differ from run to run."""
        raise NotImplementedError
