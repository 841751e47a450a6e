"""Interface between an operator and the back end that keeps its keyed state (S5.1, S5.2).

All calls work on batches: a back end converts the rows of a batch to a `KeySet`, its distinct keys, and every state is
read and written for many keys in one call. Values are Arrow columns, never Python objects.

A back end belongs to one operator subtask. All calls come from the slot's one loop, never concurrently (S4.1), except
calls of the function that `snapshot` returns, which runs on a snapshot writer thread. Call order: `open`, the states
(`value`, `list`, ...) and `timers` once for each descriptor, `restore` (only on restore), then any reads, writes and
snapshots, `close` always.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.snapshot.parts import AsyncSnapshot, StatePart

KeyedKind = Literal["value", "list", "map", "reducing", "aggregating"]
TimerKind = Literal["event", "processing"]
Reduction = Literal["sum", "min", "max", "count", "first", "last"]

KeyNumbers: TypeAlias = npt.NDArray[np.int32]
"""Numbers 0 <= n < keys.size of keys in a KeySet."""
Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TimeToLive:
    """Lifetime of an entry, in processing time. An expired entry is never returned; it is deleted sooner or later.

    Attributes:
        duration_ms: milliseconds from the last write, or from the last read, too.
        on_read: a read counts as a write.
    """

    duration_ms: int
    on_read: bool = False


@dataclass(frozen=True)
class StateDescriptor:
    """Name and shape of one state of an operator. Frozen; part of the metadata of snapshots.

    Attributes:
        name: unique within the operator; letters, digits, "_", "-", ".".
        kind: see the `*State` classes.
        columns: columns of a value, of a list's elements, of a map's values, of the reduced rows, or of an
            aggregation's accumulator; at least one, nullable as declared.
        map_key: for maps: the columns of its keys, only key types in their stored form (`key_types`); else empty.
        reductions: for "reducing": one for each of `columns`; else empty.
        merge: for "aggregating": combines accumulators of one key, in order of arrival. It is called with
            (accumulators: RecordBatch of `columns`, offsets: int64[keys + 1]); rows offsets[i]:offsets[i + 1] belong to
            key i, at least one each. It returns one row of `columns` for each key. It must be deterministic, pure and
            associative, and return a single row unchanged, so that a back end may skip such keys.
        ttl: None: entries live until they are cleared. For a list or map: each element separately.
        renamed: column of `columns` or `map_key` in older snapshots -> its name now (S5.5).
    """

    name: str
    kind: KeyedKind
    columns: pa.Schema
    map_key: pa.Schema = field(default_factory=lambda: pa.schema([]))
    reductions: tuple[Reduction, ...] = ()
    merge: Callable[[pa.RecordBatch, npt.NDArray[np.int64]], pa.RecordBatch] | None = None
    ttl: TimeToLive | None = None
    renamed: Mapping[str, str] = field(default_factory=dict, hash=False)


class KeySet(Protocol):
    """The distinct keys of some rows, in order of first occurrence. Valid until the next call of `keys` or `due`.

    Attributes:
        size: number of keys.
        rows: for each row of the batch, the number of its key.
    """

    size: int
    rows: KeyNumbers

    @property
    def groups(self) -> npt.NDArray[np.uint16]:
        """Return the key group of each key."""

    def columns(self) -> pa.RecordBatch:
        """Return the key columns, a row for each key, with the values of their first occurrence."""


@dataclass(frozen=True)
class Found:
    """Rows of a state for some keys.

    Attributes:
        present: for each key, whether the state has a row.
        columns: a row for each key; arbitrary (nulls, zeros) where not present.
    """

    present: Mask
    columns: pa.RecordBatch


@dataclass(frozen=True)
class Elements:
    """Several rows for each key: the rows of key i are `columns` offsets[i]:offsets[i + 1].

    Attributes:
        offsets: int64, one more than keys, from 0.
        columns: elements, in order.
    """

    offsets: npt.NDArray[np.int64]
    columns: pa.RecordBatch


class ValueState(Protocol):
    """One row for each key."""

    def get(self, keys: KeySet) -> Found:
        """Return the value of each key."""

    def put(self, keys: KeySet, columns: pa.RecordBatch, where: Mask | None = None) -> None:
        """Set the value of each key, or only of keys with `where` true; `columns` has a row for each key of the set."""

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """Remove the value of each key; keys without a value are ignored."""


class ListState(Protocol):
    """Rows in order of appending, for each key."""

    def get(self, keys: KeySet) -> Elements:
        """Return the elements of each key."""

    def append(self, keys: KeySet, owners: KeyNumbers, columns: pa.RecordBatch) -> None:
        """Append row i of `columns` to key `owners[i]`, in order."""

    def put(self, keys: KeySet, elements: Elements) -> None:
        """Replace the list of each key."""

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """Remove all elements of each key."""


class MapState(Protocol):
    """A row for each key and map key. Map keys compare as keys do: null is a key, NaN equals NaN."""

    def get(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch) -> Found:
        """Return the value of map key i of key `owners[i]`, for each i."""

    def put(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch, columns: pa.RecordBatch) -> None:
        """Set values; of equal map keys, the last wins."""

    def remove(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch) -> None:
        """Remove map keys; missing ones are ignored."""

    def entries(self, keys: KeySet) -> Elements:
        """Return all entries of each key: map key columns, then value columns; in no defined order."""

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """Remove all entries of each key."""


class MergingState(Protocol):
    """Reducing and aggregating states: added rows are folded into one row for each key."""

    def add(self, keys: KeySet, owners: KeyNumbers, columns: pa.RecordBatch) -> None:
        """Fold row i of `columns` into key `owners[i]`, in order.

        Reducing: nulls are ignored; a key exists from its first row on, even if it is null; integers sum exactly, NaN
        is greatest. Aggregating: rows are accumulators.

        Raises:
            SumOverflowError: a sum of integers exceeds int64; the state must not be used afterwards.
        """

    def get(self, keys: KeySet) -> Found:
        """Return the row of each key, with the columns of `state_layout.result_schema`.

        Sums are int64 or float64, null before the first value; counts are int64.
        """

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """Remove the row of each key."""


@dataclass(frozen=True)
class DueTimers:
    """Due timers: timer i belongs to key `owners[i]` at `times_us[i]`, ascending by time; a key may have several."""

    keys: KeySet
    owners: KeyNumbers
    times_us: npt.NDArray[np.int64]


class TimerService(Protocol):
    """Timers of one kind: a set of (key, time), so a repeated registration changes nothing. Part of every snapshot
    (S5.1).
    """

    def register(self, keys: KeySet, owners: KeyNumbers, times_us: npt.NDArray[np.int64]) -> None:
        """Register timer i for key `owners[i]` at `times_us[i]`: microseconds since the epoch, in event or processing
        time.
        """

    def delete(self, keys: KeySet, owners: KeyNumbers, times_us: npt.NDArray[np.int64]) -> None:
        """Delete timers; missing ones are ignored."""

    def of(self, keys: KeySet) -> Elements:
        """Return the timers of each key, ascending; one column `time_us`."""

    def next_us(self) -> int | None:
        """Return the time of the earliest timer; None: there is none. Cheap, because it is called before every step."""

    def due(self, until_us: int, limit: int) -> DueTimers | None:
        """Remove and return the earliest timers with time <= `until_us`, at most `limit`; None: none is due.

        Timers that are registered in response and are already due are returned by the next call.
        """


@dataclass(frozen=True)
class BackendContext:
    """Context of a back end.

    Attributes:
        uid: uid of the operator, for errors.
        key_schema: key columns, of stored types (`key_types.stored_type`); batches may have other types for them.
        key_columns: names of the key columns in the batches passed to `keys`.
        max_parallelism: number of key groups.
        key_groups: key groups of this subtask.
        now_ms: the injected clock, for TTL.
        scratch: private writable directory on local disk; the back end may fill it, and empties it when closed.
        memory_bytes: bytes that the back end may hold in memory, if it can keep state elsewhere.
        namespace_columns: number of key columns, the last ones, that do not affect the key group: they divide the state
            of one key, by window or span of time. At least one column is left.
        forgotten: names of states that a restore drops, whatever their kind, because the operator has no use for them.
        renamed_keys: key column in older snapshots -> its name now (S5.5).
        fills: a restore may fill a new nullable column of a state with null.
        drops: a restore drops value columns that a state does not declare any more.
    """

    uid: str
    key_schema: pa.Schema
    key_columns: tuple[str, ...]
    max_parallelism: int
    key_groups: range
    now_ms: Callable[[], int]
    scratch: str = ""
    memory_bytes: int = 256 * 2**20
    namespace_columns: int = 0
    forgotten: frozenset[str] = frozenset()
    renamed_keys: Mapping[str, str] = field(default_factory=dict)
    fills: bool = True
    drops: bool = False

    @property
    def group_columns(self) -> list[str]:
        """Return the names in `key_schema` of the columns that decide the key group."""
        names: list[str] = self.key_schema.names
        return names[: len(names) - self.namespace_columns]


class KeyedStateBackend(ABC):
    """Keeps all keyed state and timers of one operator subtask. See the module for call order and threads."""

    @abstractmethod
    def open(self, ctx: BackendContext) -> None:
        """Store the context. Compile or load kernels here."""

    @abstractmethod
    def keys(self, batch: pa.RecordBatch) -> KeySet:
        """Return the distinct keys of the batch's rows; null is a key. Creates no entries."""

    @abstractmethod
    def value(self, descriptor: StateDescriptor) -> ValueState:
        """Return the state of `descriptor`, of kind "value"."""

    @abstractmethod
    def list(self, descriptor: StateDescriptor) -> ListState:
        """Return the state of `descriptor`, of kind "list"."""

    @abstractmethod
    def map(self, descriptor: StateDescriptor) -> MapState:
        """Return the state of `descriptor`, of kind "map"."""

    @abstractmethod
    def merging(self, descriptor: StateDescriptor) -> MergingState:
        """Return the state of `descriptor`, of kind "reducing" or "aggregating"."""

    @abstractmethod
    def timers(self, kind: TimerKind) -> TimerService:
        """Return the timers of `kind`; always the same object."""

    @abstractmethod
    def all_keys(self, descriptor: StateDescriptor, limit: int) -> Iterator[KeySet]:
        """Yield every key that has rows in the state, in sets of at most `limit`, in no defined order.

        Nothing may be written between two sets.
        """

    @abstractmethod
    def snapshot(self, checkpoint_id: int, *, portable: bool = False) -> AsyncSnapshot:
        """Freeze everything within a few milliseconds, whatever its size.

        The returned function writes the frozen state later, while the back end continues.

        Args:
            portable: return only parts of format "rows", which any back end restores: for savepoints. Their blobs are
                read one at a time, so that no more than one piece must fit into memory.
        """

    @abstractmethod
    def restore(self, parts: Sequence[StatePart]) -> None:
        """Restore the parts of snapshots, whichever back end wrote them (rows as in `state_layout`).

        One state may have several parts, one for each old subtask. Rows of key groups of other subtasks are skipped.

        Raises:
            SnapshotError: a state has another kind or other columns than its descriptor (the message names both), or a
                part belongs to no state that was opened before. A back end's own files may have columns that can be
                converted to the declared ones (S5.5); rows have been converted before (`evolved_parts`).
        """

    @abstractmethod
    def close(self) -> None:
        """Release files and memory; may be called twice."""
