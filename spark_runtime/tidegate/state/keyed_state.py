"""The contract between an operator and the back end that keeps its keyed state (S5.1, S5.2).

Everything is by batch: a back end turns the rows of a batch into a `KeySet`, its distinct keys, and every state is read
and written for many keys in one call. Values are Arrow columns, never Python objects.

A back end belongs to one operator subtask. All calls come from the slot's one loop, never concurrently (S4.1), but for
what `snapshot` returns, which a snapshot writer thread calls. Call order: `open`, the states (`value`, `list`, ...) and
`timers` once for each descriptor, `restore` (only on restore), then any reads, writes and snapshots, `close` always.
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
    """How long an entry lives, in processing time; an expired one is never seen again and goes sooner or later.

    Attributes:
        duration_ms: from its last write, or its last read too.
        on_read: a read counts as a write.
    """

    duration_ms: int
    on_read: bool = False


@dataclass(frozen=True)
class StateDescriptor:
    """One state of an operator: its name, its shape. Frozen; enters the metadata of snapshots.

    Attributes:
        name: unique within the operator; letters, digits, "_", "-", ".".
        kind: see the `*State` classes.
        columns: of a value, of a list's elements, of a map's values, of what is reduced, or of an aggregation's
            accumulator; at least one, nullable as given.
        map_key: of maps: the columns of its keys, key types only and stored ones (`keytypes`); else empty.
        reductions: of "reducing": one for each of `columns`; else empty.
        merge: of "aggregating": gives `columns` for accumulators of one key, in order of arrival: called with
            (accumulators: RecordBatch of `columns`, offsets: int64[keys + 1], rows offsets[i]:offsets[i + 1] belonging
            to key i, at least one each), returns one row for each key. Deterministic, pure, associative; what it gives
            for a single row is that row, so that a back end may leave such keys out.
        ttl: None: entries live until they are cleared. Of a list or map: each element by itself.
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
    """The distinct keys of some rows, in order of first sight. Valid until the next call of `keys` or `due`.

    Attributes:
        size: how many.
        rows: for each row it was made from the number of its key.
        groups: key group of each key, uint16.
    """

    size: int
    rows: KeyNumbers
    groups: npt.NDArray[np.uint16]

    def columns(self) -> pa.RecordBatch:
        """The key columns, a row for each key, as they were first seen."""


@dataclass(frozen=True)
class Found:
    """What a state holds for some keys.

    Attributes:
        present: whether there is anything, for each.
        columns: a row for each; anything (nulls, zeros) where not present.
    """

    present: Mask
    columns: pa.RecordBatch


@dataclass(frozen=True)
class Elements:
    """Several rows for each key: those of key i are `columns` offsets[i]:offsets[i + 1].

    Attributes:
        offsets: int64, one more than keys, from 0.
        columns: elements, in order.
    """

    offsets: npt.NDArray[np.int64]
    columns: pa.RecordBatch


class ValueState(Protocol):
    """One row for each key."""

    def get(self, keys: KeySet) -> Found:
        """The value of each key."""

    def put(self, keys: KeySet, columns: pa.RecordBatch, where: Mask | None = None) -> None:
        """Set the value of each key, or of those `where` is true; `columns` has a row for each key of the set."""

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """Remove it; where there is none, nothing."""


class ListState(Protocol):
    """Rows in order of appending, for each key."""

    def get(self, keys: KeySet) -> Elements:
        """The elements of each key."""

    def append(self, keys: KeySet, owners: KeyNumbers, columns: pa.RecordBatch) -> None:
        """Append row i of `columns` to key `owners[i]`, in order."""

    def put(self, keys: KeySet, elements: Elements) -> None:
        """Replace the list of each key."""

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """Empty it."""


class MapState(Protocol):
    """A row for each key and map key. Map keys compare as keys do: null is one, NaN equals NaN."""

    def get(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch) -> Found:
        """The value of map key i of key `owners[i]`, for each i."""

    def put(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch, columns: pa.RecordBatch) -> None:
        """Set them; the last of equal ones stays."""

    def remove(self, keys: KeySet, owners: KeyNumbers, map_keys: pa.RecordBatch) -> None:
        """Remove them; what is not there is passed over."""

    def entries(self, keys: KeySet) -> Elements:
        """All entries of each key: map key columns, then value columns; in no promised order."""

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """Remove all entries of a key."""


class MergingState(Protocol):
    """Reducing and aggregating states: what is added is folded into one row for each key."""

    def add(self, keys: KeySet, owners: KeyNumbers, columns: pa.RecordBatch) -> None:
        """Fold row i of `columns` into key `owners[i]`, in order. Reducing: nulls are passed over, a key is there from
        its first row on, be it null; integers sum exactly, NaN is greatest. Aggregating: rows are accumulators.

        Raises:
            SumOverflowError: a sum of integers left int64; the state is of no use then.
        """

    def get(self, keys: KeySet) -> Found:
        """The row of each key, with the columns of `layout.result_schema`: sums are int64 or float64, null before the
        first value, counts int64."""

    def clear(self, keys: KeySet, where: Mask | None = None) -> None:
        """Forget it."""


@dataclass(frozen=True)
class DueTimers:
    """Due timers: timer i is of key `owners[i]` at `times_us[i]`, ascending by time; a key may have several."""

    keys: KeySet
    owners: KeyNumbers
    times_us: npt.NDArray[np.int64]


class TimerService(Protocol):
    """Timers of one kind: a set of (key, time): registering one twice is once. Part of every snapshot (S5.1)."""

    def register(self, keys: KeySet, owners: KeyNumbers, times_us: npt.NDArray[np.int64]) -> None:
        """Timer i for key `owners[i]` at `times_us[i]`: microseconds since the epoch, of event or processing time."""

    def delete(self, keys: KeySet, owners: KeyNumbers, times_us: npt.NDArray[np.int64]) -> None:
        """Take them back; what is not there is passed over."""

    def of(self, keys: KeySet) -> Elements:
        """The timers of each key, ascending; one column `time_us`."""

    def next_us(self) -> int | None:
        """Time of the earliest; None: there is none. Cheap: asked before every step."""

    def due(self, until_us: int, limit: int) -> DueTimers | None:
        """The earliest timers with time <= `until_us`, at most `limit`, taken out; None: none is due. Those that are
        registered in answer to them and are due too come with the next call."""


@dataclass(frozen=True)
class BackendContext:
    """A back end's place.

    Attributes:
        uid: of the operator, for errors.
        key_schema: the key columns, of stored types (`keytypes.stored_type`); batches may have others for them.
        key_columns: their names in the batches that `keys` gets.
        max_parallelism: number of key groups.
        key_groups: those of this subtask.
        now_ms: the injected clock, for TTL.
        scratch: a private writable directory on local disk; the back end may fill it and empties it when closed.
        memory_bytes: what the back end may hold in memory, where it can keep state elsewhere.
        namespace_columns: so many key columns, the last ones, have no part in the key group: they cut the state of one
            key, by window or span of time. At least one column is left.
        forgotten: states that a restore leaves behind, whatever they were: the operator wants them no more.
        renamed_keys: key column in older snapshots -> its name now (S5.5).
        fills: a restore may fill a new nullable column of a state with null.
        drops: a restore leaves behind value columns that a state does not declare any more.
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
        """Names in `key_schema` of the columns that decide the key group."""
        names: list[str] = self.key_schema.names
        return names[: len(names) - self.namespace_columns]


class KeyedStateBackend(ABC):
    """Keeps all keyed state and timers of one operator subtask. See the module for call order and threads."""

    @abstractmethod
    def open(self, ctx: BackendContext) -> None:
        """Take the context. Compile or load kernels here."""

    @abstractmethod
    def keys(self, batch: pa.RecordBatch) -> KeySet:
        """The distinct keys of the batch's rows; every row counts, null is a key. Makes no entries by itself."""

    @abstractmethod
    def value(self, descriptor: StateDescriptor) -> ValueState:
        """The state of `descriptor`, of kind "value"."""

    @abstractmethod
    def list(self, descriptor: StateDescriptor) -> ListState:
        """The state of `descriptor`, of kind "list"."""

    @abstractmethod
    def map(self, descriptor: StateDescriptor) -> MapState:
        """The state of `descriptor`, of kind "map"."""

    @abstractmethod
    def merging(self, descriptor: StateDescriptor) -> MergingState:
        """The state of `descriptor`, of kind "reducing" or "aggregating"."""

    @abstractmethod
    def timers(self, kind: TimerKind) -> TimerService:
        """The timers of `kind`; always the same object."""

    @abstractmethod
    def all_keys(self, descriptor: StateDescriptor, limit: int) -> Iterator[KeySet]:
        """Every key that has something in the state, in sets of at most `limit`, in no promised order. Nothing may be
        written between two of them."""

    @abstractmethod
    def snapshot(self, checkpoint_id: int, *, portable: bool = False) -> AsyncSnapshot:
        """Freeze everything, in a few milliseconds whatever its size; the returned function writes it out later, while
        the back end goes on.

        Args:
            portable: parts of format "rows" only, which any back end restores: for savepoints. Their blobs are read
                one at a time, so that nothing larger than a piece need fit into memory.
        """

    @abstractmethod
    def restore(self, parts: Sequence[StatePart]) -> None:
        """Take back what snapshots gave, whatever back end wrote it (rows as in `layout`). One state may come in
        several parts, one for each old subtask; rows of key groups that are not this subtask's are passed over.

        Raises:
            SnapshotError: a state has another kind or other columns than its descriptor, and names both; or a part is
                of no state that was asked for before. A back end's own files may have columns that can become those of
                now (S5.5); rows have been changed before (`evolving`).
        """

    @abstractmethod
    def close(self) -> None:
        """Release files and memory; may come twice."""
