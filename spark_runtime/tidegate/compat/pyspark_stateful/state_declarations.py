"""What a StatefulProcessor declares in its `init`: states with Spark schemas, as the states of an operator."""

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
        descriptor: as the back end knows it; columns are nullable, whatever the schema says.
        columns: its rows.
        map_key: rows of its map keys; None: it is no map.
    """

    descriptor: StateDescriptor
    columns: SparkRowCodec
    map_key: SparkRowCodec | None = None


@dataclass(frozen=True)
class Declarations:
    """All that `init` declares.

    Attributes:
        states: in order.
        deleted: names of states that are dropped from older snapshots.
    """

    states: tuple[DeclaredState, ...]
    deleted: tuple[str, ...]


def declared(processor: StatefulProcessor, time_mode: str, where: str) -> Declarations:
    """What the processor declares: `init` and `close` of a copy, as Spark calls them on its driver.

    Raises:
        PipelineError: something is declared that Spark or a state does not take, or `init` or `close` fails.
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
            f"init of the processor {name} failed where the pipeline is built",
            where=where,
            cause=f"{type(error).__name__}: {error}",
            remedy="init declares states and is called on a copy once more, where the pipeline is built: as in Spark",
        ) from error
    return Declarations(tuple(handle.states.values()), tuple(handle.deleted))


def state_of(
    kind: KeyedKind, name: object, key: Schema | None, schema: Schema, ttl_ms: object, time_mode: str, where: str
) -> DeclaredState:
    """One state, checked; PipelineError."""
    if not isinstance(name, str) or not STATE_NAME.fullmatch(name) or len(name) > MAX_STATE_NAME_CHARACTERS:
        raise PipelineError(
            f"{name!r} cannot be the name of a state",
            where=where,
            remedy=f"Use letters, digits, blanks and ._- , at most {MAX_STATE_NAME_CHARACTERS} characters",
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
    """A column of the map key and one of the value may have one name; in a state they may not."""
    while name in others:
        name = f"key_{name}"
    return name


def _time_to_live(ttl_ms: object, time_mode: str, where: str) -> TimeToLive | None:
    if ttl_ms is None or ttl_ms == 0:
        return None
    if isinstance(ttl_ms, bool) or not isinstance(ttl_ms, int) or ttl_ms < 0:
        raise PipelineError(
            f"ttlDurationMs is {ttl_ms!r}", where=where, remedy="Give milliseconds: a whole number above 0"
        )
    if time_mode != "processingtime":
        raise PipelineError(
            "a state has a TTL, which is counted in processing time, and timeMode is another",
            where=where,
            cause="Spark takes a TTL with timeMode ProcessingTime alone",
            remedy='Say timeMode="ProcessingTime", or leave ttlDurationMs away',
        )
    return TimeToLive(ttl_ms)


class DeclaringHandle(StatefulProcessorHandle):
    """The handle that `init` gets where the pipeline is built: it notes what is declared.

    Attributes:
        states: by name.
        deleted: names of `deleteIfExists`.
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
        """The state of this name, where a snapshot holds one, is dropped; one that was declared before is not kept."""
        self.states.pop(stateName, None)
        if stateName not in self.deleted:
            self.deleted.append(stateName)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Not in `init`."""
        raise self.outside("registerTimer")

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Not in `init`."""
        raise self.outside("deleteTimer")

    def listTimers(self) -> Any:
        """Not in `init`."""
        raise self.outside("listTimers")

    def outside(self, call: str) -> PipelineError:
        """The error for a call that needs a key."""
        return self._refused(f"{call} is called in init", "there is no key yet", "Call it while a key is handled")

    def _declare(self, kind: KeyedKind, name: str, key: Schema | None, schema: Schema, ttl_ms: int | None) -> Any:
        if name in self.states:
            raise self._refused(
                f"two states are named {name!r}", "snapshots find a state by its name", "Give one another name"
            )
        if name in self.deleted:
            raise self._refused(
                f"state {name!r} is deleted and declared",
                "Spark would empty it with every micro-batch",
                "Declare it, or delete it; with clear() a key's state goes",
            )
        self.states[name] = state_of(kind, name, key, schema, ttl_ms, self._time_mode, self._where)
        return StateOutsideCall(self.outside)

    def _refused(self, what: str, cause: str, remedy: str) -> PipelineError:
        return PipelineError(what, where=self._where, cause=cause, remedy=remedy)


class StateOutsideCall:
    """Stands for a state while there is no key: whatever is asked of it is refused."""

    def __init__(self, refused: Callable[[str], PipelineError]) -> None:
        self._refused = refused

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise self._refused(f"{name} of a state")
