"""What a user writes to keep state of their own per key: a `KeyedProcess`, and what it is given."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
import numpy.typing as npt

from tidegate.errors import PipelineError
from tidegate.operators.functions.context import Batches, ProcessBase, Rows, SubtaskContext
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
    """Rows that have come in, with their keys.

    Attributes:
        batch: the rows; at least one.
        keys: their distinct keys, in order of first sight; valid while `process` goes on. Null is a key.
    """

    keys: KeySet

    @property
    def owners(self) -> KeyNumbers:
        """For each row the number of its key, int32: what states take to say whose a row is."""
        return self.keys.rows


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


class ProcessContext(SubtaskContext):
    """The place of a process with keys: its states, its timers, its time. One for each subtask; for its loop's thread
    alone.

    Attributes:
        event_timers: fire when the watermark reaches them. One for a time that it has reached already fires with the
            next watermark.
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


class KeyedProcessBase(ProcessBase):
    """What all processes with keys have; subclass one of those below it."""

    def open(self, ctx: ProcessContext) -> None:
        """Before anything else. States and timers have not been restored yet: leave them alone."""

    def restored(self, ctx: ProcessContext) -> None:
        """States and timers are back. After every restore, before anything else comes; never at a first start."""

    def on_timers(self, due: FiredTimers, ctx: ProcessContext) -> Batches:
        """Timers of one kind are due, and gone. Those over event time come before the watermark is passed on, so that
        what is emitted at their times is late for nobody downstream."""
        raise NotImplementedError

    def finish(self, ctx: ProcessContext) -> Batches:
        """All input has come and all timers have fired: the last chance to emit. States stay. May come again after a
        failure."""
        return None


class KeyedProcess(KeyedProcessBase):
    """Subclass it to keep state and timers per key; give an instance to `stream.group_by(...).process(...)`.

    Everything is by batch: `process` gets the rows that come with their distinct keys, and reads and writes a state for
    all of them in one call. See `ProcessBase` for the order of calls.
    """

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> Batches:
        """Rows have come. How they are cut into batches may differ from run to run."""
        raise NotImplementedError
