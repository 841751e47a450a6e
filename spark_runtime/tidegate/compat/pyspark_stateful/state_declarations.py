"""Declarations in the `init` of a StatefulProcessor: states with Spark schemas, converted to states of an operator."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from pyspark.sql import types as st
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from tidegate.compat.pyspark_stateful.spark_ddl import schema_of
from tidegate.compat.pyspark_stateful.spark_values import SparkRowCodec
from tidegate.errors import PipelineError, TidegateError
from tidegate.state.keyed_state import KeyedKind, StateDescriptor, TimeToLive

Schema: TypeAlias = st.StructType | str
STATE_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_ .-]*[A-Za-z0-9_.-])?")
MAX_STATE_NAME_CHARACTERS = 100


@dataclass(frozen=True, eq=False)
class DeclaredState:
    """One state of a processor.

    Attributes:
        descriptor: for the back end; its columns are nullable, whatever the schema says.
        columns: converts its rows.
        map_key: converts its map keys; None: it is not a map.
    """

    descriptor: StateDescriptor
    columns: SparkRowCodec
    map_key: SparkRowCodec | None = None


@dataclass(frozen=True)
class Declarations:
    """All declarations of `init`.

    Attributes:
        states: in order.
        deleted: names of states that are dropped from older snapshots.
    """

    states: tuple[DeclaredState, ...]
    deleted: tuple[str, ...]


def declared(processor: StatefulProcessor, time_mode: str, where: str) -> Declarations:
    """Return the processor's declarations: calls `init` and `close` of a copy, as Spark does on its driver.

    Raises:
        PipelineError: Spark or a state does not support a declaration, or `init` or `close` fails.
    """
    handle = DeclaringHandle(time_mode, where)
    name = type(processor).__name__
    try:
        trial = copy.deepcopy(processor)
        trial.init(handle)
        trial.close()
    except TidegateError:
        raise
    except Exception as error:
        raise PipelineError(
            f"init of the processor {name} failed when the pipeline was built",
            where=where,
            cause=f"{type(error).__name__}: {error}",
            remedy="Let init work without a cluster: as in Spark, it is also called on a copy when the graph is built",
        ) from error
    return Declarations(tuple(handle.states.values()), tuple(handle.deleted))


def state_of(
    kind: KeyedKind, name: object, key: Schema | None, schema: Schema, ttl_ms: object, time_mode: str, where: str
) -> DeclaredState:
    """Return one state, checked. Raises PipelineError."""
    if not isinstance(name, str) or not STATE_NAME.fullmatch(name) or len(name) > MAX_STATE_NAME_CHARACTERS:
        raise PipelineError(
            f"{name!r} is not a valid name of a state",
            where=where,
            remedy=f"Use letters, digits, spaces and ._- , at most {MAX_STATE_NAME_CHARACTERS} characters",
        )
    where = f"{where}, state {name!r}"
    struct = schema_of(schema, "the schema", where)
    columns = SparkRowCodec(struct, f"state {name!r}", where)
    ttl = _time_to_live(ttl_ms, time_mode, where)
    if key is None:
        return DeclaredState(StateDescriptor(name, kind, columns.schema, ttl=ttl), columns)
    key_struct = schema_of(key, "the schema of the map key", where)
    apart = st.StructType(
        [st.StructField(_separate(field.name, struct.names), field.dataType) for field in key_struct.fields]
    )
    map_key = SparkRowCodec(apart, f"the map key of state {name!r}", where, as_key=True)
    descriptor = StateDescriptor(name, kind, columns.schema, map_key.schema, ttl=ttl)
    return DeclaredState(descriptor, columns, map_key)


def _separate(name: str, others: list[str]) -> str:
    """Rename a map key column that has the name of a value column, because names in a state are unique."""
    while name in others:
        name = f"key_{name}"
    return name


def _time_to_live(ttl_ms: object, time_mode: str, where: str) -> TimeToLive | None:
    if ttl_ms is None or ttl_ms == 0:
        return None
    if isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int) or ttl_ms < 0:
        raise PipelineError(
            f"ttlDurationMs must be an integer above 0, but is {ttl_ms!r}",
            where=where,
            remedy="Pass the time to live in milliseconds",
        )
    if time_mode != "processingtime":
        raise PipelineError(
            "the state has ttlDurationMs, but timeMode is not ProcessingTime",
            where=where,
            cause="the time to live is counted in processing time; Spark has the same rule",
            remedy='Set timeMode="ProcessingTime", or remove ttlDurationMs',
        )
    return TimeToLive(ttl_ms)


class DeclaringHandle(StatefulProcessorHandle):
    """The handle that `init` receives when the pipeline is built: it records the declarations.

    Attributes:
        states: by name.
        deleted: names passed to `deleteIfExists`.
    """

    def __init__(self, time_mode: str, where: str) -> None:
        self.states: dict[str, DeclaredState] = {}
        self.deleted: list[str] = []
        self._time_mode = time_mode
        self._where = where

    def getValueState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> Any:
        """See PySpark."""
        return self._declare("value", stateName, None, schema, ttlDurationMs)

    def getListState(self, stateName: str, schema: Schema, ttlDurationMs: int | None = None) -> Any:
        """See PySpark."""
        return self._declare("list", stateName, None, schema, ttlDurationMs)

    def getMapState(
        self, stateName: str, userKeySchema: Schema, valueSchema: Schema, ttlDurationMs: int | None = None
    ) -> Any:
        """See PySpark."""
        return self._declare("map", stateName, userKeySchema, valueSchema, ttlDurationMs)

    def deleteIfExists(self, stateName: str) -> None:
        """Drop the state of this name from snapshots, and forget an earlier declaration of it."""
        self.states.pop(stateName, None)
        if stateName not in self.deleted:
            self.deleted.append(stateName)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Refuse the call: there is no key in `init`."""
        raise self.outside("registerTimer")

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Refuse the call: there is no key in `init`."""
        raise self.outside("deleteTimer")

    def listTimers(self) -> Any:
        """Refuse the call: there is no key in `init`."""
        raise self.outside("listTimers")

    def outside(self, call: str) -> PipelineError:
        """Return the error for a call that needs a key."""
        return self._refused(
            f"{call} is called in init", "init runs before any key is processed", f"Call {call} in a handle... method"
        )

    def _declare(self, kind: KeyedKind, name: str, key: Schema | None, schema: Schema, ttl_ms: int | None) -> Any:
        if name in self.states:
            raise self._refused(
                f"two states are named {name!r}", "snapshots find a state by its name", "Rename one of the states"
            )
        if name in self.deleted:
            raise self._refused(
                f"state {name!r} is both deleted and declared",
                "Spark would empty such a state with every micro-batch",
                "Declare it, or delete it; clear() empties the state of a key",
            )
        self.states[name] = state_of(kind, name, key, schema, ttl_ms, self._time_mode, self._where)
        return StateOutsideCall(self.outside)

    def _refused(self, what: str, cause: str, remedy: str) -> PipelineError:
        return PipelineError(what, where=self._where, cause=cause, remedy=remedy)


class StateOutsideCall:
    """Replaces a state while there is no key: every call is refused."""

    def __init__(self, refused: Callable[[str], PipelineError]) -> None:
        self._refused = refused

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise self._refused(f"{name} of a state")
