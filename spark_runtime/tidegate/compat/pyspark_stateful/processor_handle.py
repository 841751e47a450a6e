"""PySpark's handle, states and timers as a StatefulProcessor uses them in its slot, on top of an operator's state."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from pyspark.sql.streaming.stateful_processor import ListState, MapState, StatefulProcessorHandle, ValueState

from tidegate.compat.pyspark_stateful.processor_rows import row_type
from tidegate.compat.pyspark_stateful.spark_values import Kept, calling_line
from tidegate.compat.pyspark_stateful.state_declarations import DeclaredState, Schema, StateOutsideCall, state_of
from tidegate.compat.pyspark_stateful.state_overlays import ListOverlay, MapOverlay, Overlay, ValueOverlay
from tidegate.compat.pyspark_stateful.timer_overlay import MIN_MS, MOST_MS, TimerOverlay
from tidegate.errors import PipelineError
from tidegate.state.keyed_state import KeyedKind, KeyedStateBackend, StateDescriptor

Fit = TypeVar("Fit")


class CurrentKey:
    """The key for which the processor is called.

    Attributes:
        number: number of the key in the current set; None: it is not called for a key.
    """

    def __init__(self, where: str) -> None:
        self.number: int | None = None
        self._where = where

    def require(self, call: str) -> int:
        """Return its number. Raises PipelineError if there is no key."""
        if self.number is None:
            raise PipelineError(
                f"{call} is called while no key is processed",
                where=f"{self._where}, {calling_line()}",
                cause="states and timers belong to the key for which a handle... method is called",
                remedy=f"Call {call} in handleInputRows, handleExpiredTimer or handleInitialState",
            )
        return self.number

    def fit(self, accept: Callable[[Any], Fit], value: Any, overlay: Overlay[Any]) -> Fit:
        """Convert a value with `accept`. A PipelineError then also names the key."""
        try:
            return accept(value)
        except PipelineError as error:
            if self.number is None:
                raise
            [row] = overlay.keys.columns().slice(self.number, 1).to_pylist()
            where = f"{error.where}, key {', '.join(f'{name}={one!r}' for name, one in row.items())}"
            raise PipelineError(error.what, where=where, cause=error.cause, remedy=error.remedy) from None


class OverlaidValue(ValueState):
    """PySpark's `ValueState`; see there."""

    def __init__(self, overlay: ValueOverlay, key: CurrentKey) -> None:
        self._overlay, self._key = overlay, key

    def exists(self) -> bool:
        """See PySpark."""
        return self._overlay.get(self._key.require("exists")) is not None

    def get(self) -> tuple[Any, ...] | None:
        """See PySpark."""
        row = self._overlay.get(self._key.require("get"))
        return None if row is None else self._overlay.codec.given(row)

    def update(self, newValue: tuple[Any, ...]) -> None:
        """See PySpark. Raises PipelineError if the value does not match the schema."""
        self._overlay.set(
            self._key.require("update"), self._key.fit(self._overlay.codec.accepted, newValue, self._overlay)
        )

    def clear(self) -> None:
        """See PySpark."""
        self._overlay.set(self._key.require("clear"), None)


class OverlaidList(ListState):
    """PySpark's `ListState`; see there. An iterator has the elements at the time of its creation."""

    def __init__(self, overlay: ListOverlay, key: CurrentKey) -> None:
        self._overlay, self._key = overlay, key

    def exists(self) -> bool:
        """See PySpark."""
        return bool(self._overlay.get(self._key.require("exists")))

    def get(self) -> Iterator[tuple[Any, ...]]:
        """See PySpark."""
        return map(self._overlay.codec.given, self._overlay.get(self._key.require("get")))

    def put(self, newState: list[tuple[Any, ...]]) -> None:
        """See PySpark. Raises PipelineError if an element does not match the schema."""
        key, rows = self._key.require("put"), self._key.fit(self._overlay.codec.accepted_list, newState, self._overlay)
        self._overlay.replace(key, rows)

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        """See PySpark. Raises PipelineError if the element does not match the schema."""
        self._overlay.append(
            self._key.require("appendValue"), [self._key.fit(self._overlay.codec.accepted, newState, self._overlay)]
        )

    def appendList(self, newState: list[tuple[Any, ...]]) -> None:
        """See PySpark. Raises PipelineError if an element does not match the schema."""
        key, rows = (
            self._key.require("appendList"),
            self._key.fit(self._overlay.codec.accepted_list, newState, self._overlay),
        )
        self._overlay.append(key, rows)

    def clear(self) -> None:
        """See PySpark."""
        self._overlay.replace(self._key.require("clear"), [])


class OverlaidMap(MapState):
    """PySpark's `MapState`; see there. An iterator has the entries at the time of its creation, in any order."""

    def __init__(self, overlay: MapOverlay, key: CurrentKey) -> None:
        self._overlay, self._key = overlay, key
        self._row = partial(tuple.__new__, row_type(overlay.codec.schema.names))

    def exists(self) -> bool:
        """See PySpark."""
        return bool(self._overlay.items(self._key.require("exists")))

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """See PySpark; returns a `Row`, as PySpark does."""
        row = self._overlay.get(self._key.require("getValue"), self._map_key(key))
        return None if row is None else self._row(self._overlay.codec.given(row))

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        """See PySpark."""
        return self._overlay.get(self._key.require("containsKey"), self._map_key(key)) is not None

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        """See PySpark. Raises PipelineError if key or value does not match its schema."""
        map_key, row = self._map_key(key), self._key.fit(self._overlay.codec.accepted, value, self._overlay)
        self._overlay.set(self._key.require("updateValue"), map_key, row)

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """See PySpark."""
        entries = self._overlay.items(self._key.require("iterator"))
        key, row = self._overlay.map_key.given, self._overlay.codec.given
        return ((key(map_key), row(kept)) for map_key, kept in entries.items())

    def _map_key(self, key: tuple[Any, ...]) -> Kept:
        return self._key.fit(self._overlay.map_key.accepted, key, self._overlay)

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """See PySpark."""
        return map(self._overlay.map_key.given, self._overlay.items(self._key.require("keys")))

    def values(self) -> Iterator[tuple[Any, ...]]:
        """See PySpark."""
        return map(self._overlay.codec.given, self._overlay.items(self._key.require("values")).values())

    def removeKey(self, key: tuple[Any, ...]) -> None:
        """See PySpark."""
        self._overlay.set(self._key.require("removeKey"), self._map_key(key), None)

    def clear(self) -> None:
        """See PySpark."""
        self._overlay.clear(self._key.require("clear"))


class ProcessorHandle(StatefulProcessorHandle):
    """The handle that `init` receives in a slot. The processor may keep it.

    Attributes:
        key: the current key.
        overlays: of all states.
        timers: None: timeMode is None.
    """

    def __init__(
        self,
        declared: Mapping[str, DeclaredState],
        back_end: KeyedStateBackend,
        timers: TimerOverlay | None,
        time_mode: str,
        where: str,
        deleted: Collection[str] = (),
    ) -> None:
        """Args: declared: by name, from when the pipeline was built. deleted: names passed to `deleteIfExists`."""
        self._deleted = deleted
        self.key = CurrentKey(where)
        self.timers = timers
        self.overlays: list[Overlay[Any]] = []
        self._where, self._time_mode = where, time_mode
        self._declared = declared
        self._states: dict[str, Any] = {}
        self._open = True
        for name, state in declared.items():
            self._states[name] = self._opened(state, back_end)

    def opened(self) -> None:
        """End `init`: later declarations are refused."""
        self._open = False

    def getValueState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> Any:
        """See PySpark."""
        return self._state("value", stateName, None, schema, ttlDurationMs)

    def getListState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> Any:
        """See PySpark."""
        return self._state("list", stateName, None, schema, ttlDurationMs)

    def getMapState(
        self, stateName: str, userKeySchema: Schema, valueSchema: Schema, ttlDurationMs: int | None = None
    ) -> Any:
        """See PySpark."""
        return self._state("map", stateName, userKeySchema, valueSchema, ttlDurationMs)

    def deleteIfExists(self, stateName: str) -> None:
        """Check the name: the state was already dropped by the restore."""
        self._require_init("deleteIfExists")
        if stateName not in self._deleted:
            raise self._otherwise(stateName)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """See PySpark. Raises PipelineError with timeMode None, or for an invalid time."""
        key, timers = self._timers_of("registerTimer")
        timers.register(key, self._time(expiryTimestampMs))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """See PySpark. Raises PipelineError with timeMode None, or for an invalid time."""
        key, timers = self._timers_of("deleteTimer")
        timers.delete(key, self._time(expiryTimestampMs))

    def listTimers(self) -> Iterator[int]:
        """See PySpark; ascending. Raises PipelineError with timeMode None."""
        key, timers = self._timers_of("listTimers")
        return iter(timers.of(key))

    def _opened(self, state: DeclaredState, back_end: KeyedStateBackend) -> Any:
        overlay: Any
        if state.descriptor.kind == "value":
            overlay = ValueOverlay(back_end.value(state.descriptor), state.columns)
            self.overlays.append(overlay)
            return OverlaidValue(overlay, self.key)
        if state.map_key is None:
            overlay = ListOverlay(back_end.list(state.descriptor), state.columns)
            self.overlays.append(overlay)
            return OverlaidList(overlay, self.key)
        overlay = MapOverlay(back_end.map(state.descriptor), state.map_key, state.columns)
        self.overlays.append(overlay)
        return OverlaidMap(overlay, self.key)

    def _state(self, kind: KeyedKind, name: str, key: Schema | None, schema: Schema, ttl_ms: int | None) -> Any:
        self._require_init(f"get{kind.title()}State")
        given = state_of(kind, name, key, schema, ttl_ms, self._time_mode, self._where).descriptor
        if name in self._deleted:
            return StateOutsideCall(lambda call: self._of_deleted(name, call))
        before = self._declared.get(name)
        if before is None or _shape(before.descriptor) != _shape(given):
            raise self._otherwise(name)
        return self._states[name]

    def _otherwise(self, name: str) -> PipelineError:
        return PipelineError(
            f"init declares state {name!r} in another way than when the pipeline was built",
            where=self._where,
            cause="the declarations in init depend on something that differs between processes or calls",
            remedy="Declare the same states in every call of init",
        )

    def _of_deleted(self, name: str, call: str) -> PipelineError:
        return PipelineError(
            f"{call} failed: deleteIfExists has deleted state {name!r}",
            where=f"{self._where}, {calling_line()}",
            remedy=f"Remove deleteIfExists({name!r}) from init. To empty the state of a key, call clear()",
        )

    def _require_init(self, call: str) -> None:
        if not self._open:
            raise PipelineError(
                f"{call} is called outside init",
                where=f"{self._where}, {calling_line()}",
                remedy="Declare all states in init, and keep the result: self.count = handle.getValueState(...)",
            )

    def _timers_of(self, call: str) -> tuple[int, TimerOverlay]:
        if self.timers is None:
            raise PipelineError(
                f"{call} is called with timeMode None",
                where=f"{self._where}, {calling_line()}",
                remedy='Set timeMode="EventTime" or timeMode="ProcessingTime"',
            )
        return self.key.require(call), self.timers

    def _time(self, time_ms: object) -> int:
        if isinstance(time_ms, bool) or not hasattr(time_ms, "__index__"):
            raise PipelineError(
                f"the time {time_ms!r} of the timer is invalid",
                where=f"{self._where}, {calling_line()}",
                remedy="Pass an integer: milliseconds since the epoch",
            )
        return min(max(int(time_ms.__index__()), MIN_MS), MOST_MS)


def _shape(state: StateDescriptor) -> tuple[Any, ...]:
    """Return the properties that must be equal in all declarations of a state."""
    return state.kind, state.columns, state.map_key, state.ttl
