"""The back end `rocksdb`: keyed state larger than memory, in a RocksDB on local disk (S5.2).

The synchronous part of a snapshot only freezes the rows that the caches have not written yet. The snapshot writer
thread writes them, flushes and links the files; or the loop does so, if it must write to the database earlier.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from tidegate.snapshot.parts import AsyncSnapshot, StatePart
from tidegate.state.keyed_state import (
    BackendContext,
    ListState,
    MapState,
    MergingState,
    StateDescriptor,
    TimerKind,
    TimerService,
    ValueState,
)
from tidegate.state.keys.key_bytes import key_array
from tidegate.state.rocksdb.byte_rows import ByteRows
from tidegate.state.rocksdb.checkpoint_files import UnwrittenCheckpoint, Write, file_part
from tidegate.state.rocksdb.database import RocksDatabase, RocksTable, require_rocksdict
from tidegate.state.rocksdb.database_keys import GROUP_BYTES, RocksKeys, distinct, read_keys
from tidegate.state.rocksdb.database_restore import DatabaseRestore
from tidegate.state.rocksdb.key_columns import key_ends
from tidegate.state.rocksdb.list_chunks import RocksList, chunk_elements, live_chunks, stale_heads
from tidegate.state.rocksdb.portable_rows import CheckpointExport, RunRows, TableRows, schemas
from tidegate.state.rocksdb.row_cache import CacheMemory, RowCache
from tidegate.state.rocksdb.row_states import RocksMap, RocksMerging, RocksRuns, RocksValue, RunsBackend
from tidegate.state.rocksdb.sorted_runs import Combine, SortedRuns
from tidegate.state.rocksdb.state_rows import Expiry, ExpirySweep, StateRows
from tidegate.state.rocksdb.timer_tables import BY_TIME, RocksTimers
from tidegate.state.state_layout import RUNS, marked_schema, part_schema, timer_part, timer_schema

DATABASE_SHARE = 3 / 8
"""Part of the memory for the database."""
CACHE_SHARE = 1 / 2
"""Part of the memory for all caches. The rest is for rows in progress and for growth."""


class RocksDBBackend(RunsBackend):
    """See the module and `KeyedStateBackend`."""

    def open(self, ctx: BackendContext) -> None:
        """See `KeyedStateBackend`. Raises MissingExtraError if `rocksdict` is not installed."""
        require_rocksdict()
        self._ctx = ctx
        self._scratch = Path(ctx.scratch or tempfile.mkdtemp(prefix="tidegate-rocksdb-"))
        self._scratch.mkdir(parents=True, exist_ok=True)
        _empty(self._scratch)  # left by a killed process
        self._database = RocksDatabase(self._scratch / "database", int(ctx.memory_bytes * DATABASE_SHARE))
        self._cache_memory = CacheMemory(int(ctx.memory_bytes * CACHE_SHARE))
        self._nonce = uuid.uuid4().hex[:16]
        self._inherited: dict[str, str] = {}
        self._stored: dict[str, TableRows] = {}
        self._cells: dict[str, StateRows] = {}
        self._caches: dict[str, RowCache] = {}
        self._lists: dict[str, RocksList] = {}
        self._timers: dict[TimerKind, RocksTimers] = {}
        self._runs: dict[str, tuple[RocksRuns, SortedRuns]] = {}
        self._pending: UnwrittenCheckpoint | None = None
        self._snapshots = 0

    def keys(self, batch: pa.RecordBatch) -> RocksKeys:
        """See `KeyedStateBackend`."""
        arrays = [key_array(batch, name) for name in self._ctx.key_columns]
        columns = pa.RecordBatch.from_arrays(arrays, schema=self._ctx.key_schema)
        return read_keys(columns, self._ctx)

    def value(self, descriptor: StateDescriptor) -> ValueState:
        """See `KeyedStateBackend`."""
        return RocksValue(self._cells_of(descriptor))

    def list(self, descriptor: StateDescriptor) -> ListState:
        """See `KeyedStateBackend`."""
        state = self._lists[descriptor.name] = RocksList(self._cells_of(descriptor))
        return state

    def map(self, descriptor: StateDescriptor) -> MapState:
        """See `KeyedStateBackend`."""
        return RocksMap(self._cells_of(descriptor), descriptor, len(self._ctx.key_schema))

    def merging(self, descriptor: StateDescriptor) -> MergingState:
        """See `KeyedStateBackend`."""
        return RocksMerging(self._cells_of(descriptor), descriptor)

    def timers(self, kind: TimerKind) -> TimerService:
        """See `KeyedStateBackend`."""
        if kind not in self._timers:
            name = timer_part(kind)
            tables = self._database.table(name + BY_TIME), self._database.table(name)
            caches = self._cache(tables[0], is_read=False), self._cache(tables[1], is_read=False)
            self._stored[name] = TableRows(name, name, timer_schema(self._ctx.key_schema), self._ctx.key_schema)
            self._timers[kind] = RocksTimers(tables, caches, self._ctx.key_schema)
        return self._timers[kind]

    def runs(self, descriptor: StateDescriptor, combine: Combine | None) -> RocksRuns:
        """See `RunsBackend`."""
        name, keys = descriptor.name, self._ctx.key_schema
        schema = marked_schema(RUNS, part_schema(descriptor, keys))
        stored = RunRows(name, name, schema, keys, max_parallelism=self._ctx.max_parallelism, combine=combine)
        self._stored[name] = stored
        runs = stored.runs(self._database, self._ctx.key_groups)
        self._runs[name] = RocksRuns(runs, self._settle), runs
        return self._runs[name][0]

    def all_keys(self, descriptor: StateDescriptor, limit: int) -> Iterator[RocksKeys]:
        """See `KeyedStateBackend`."""
        stored = self._stored[descriptor.name]
        self._caches[descriptor.name].flush()
        last = b""
        for keys, rows in self._database.table(stored.table).scan():
            ids, last = _alive_ids(stored, keys, rows, last)
            for start in range(0, len(ids), limit):
                yield RocksKeys.of_ids(ids.take(slice(start, start + limit)), self._ctx.key_schema)

    def snapshot(self, checkpoint_id: int, *, portable: bool = False) -> AsyncSnapshot:
        """See `KeyedStateBackend`."""
        # The former snapshot must get its rows and its folder before anything later is written.
        self._settle()
        self._snapshots += 1
        name = f"{checkpoint_id}-{self._snapshots}"
        writes: list[Write] = []
        for table_name, cache in self._caches.items():
            frozen = cache.freeze()
            if frozen is not None:
                writes.append(partial(frozen.write, self._database.table(table_name)))
        for state, runs in self._runs.values():
            writes += [partial(runs.append, rows) for rows in state.take_later()]
        pending = self._pending = UnwrittenCheckpoint(self._database, writes, self._scratch / f"checkpoint-{name}")
        return partial(self._written, _UnwrittenSnapshot(pending), name, tuple(self._stored.values()), portable)

    def restore(self, parts: Sequence[StatePart]) -> None:
        """See `KeyedStateBackend`."""
        restore = DatabaseRestore(self._ctx, self._database, self._stored, self._lists, self._scratch, type(self))
        self._inherited = restore.run(parts)
        for _, runs in self._runs.values():
            runs.load()

    def close(self) -> None:
        """See `KeyedStateBackend`."""
        if hasattr(self, "_database"):
            self._database.remove()
            shutil.rmtree(self._scratch, ignore_errors=True)

    def _cells_of(self, descriptor: StateDescriptor) -> StateRows:
        if descriptor.name in self._cells:
            return self._cells[descriptor.name]
        expiry = Expiry(descriptor, self._ctx.now_ms)
        schema = self._ctx.key_schema
        name = descriptor.name
        self._stored[name] = TableRows(name, name, part_schema(descriptor, schema), schema, descriptor, expiry)
        table = self._database.table(name)
        sweep = None
        if descriptor.ttl is not None and descriptor.kind == "list":
            sweep = ExpirySweep(table, partial(live_chunks, expiry=expiry), partial(stale_heads, expiry=expiry))
        elif descriptor.ttl is not None:
            sweep = ExpirySweep(table, expiry.alive)
        cells = self._cells[name] = StateRows(table, self._cache(table, sweep), expiry)
        return cells

    def _cache(self, table: RocksTable, sweep: ExpirySweep | None = None, *, is_read: bool = True) -> RowCache:
        cache = RowCache(table, self._cache_memory, self._settle, sweep, is_read=is_read)
        self._caches[table.name] = cache
        return cache

    def _settle(self) -> None:
        """Write the rest of the last snapshot, so that later changes may go to the database."""
        if self._pending is not None:
            self._pending.written()
            self._pending = None

    def _written(
        self, claim: _UnwrittenSnapshot, name: str, stored: Sequence[TableRows], portable: bool
    ) -> Sequence[StatePart]:
        folder = claim.pending.folder()
        if not portable:
            return [file_part(folder, self._database.files(), self._blob_id, schemas(stored), self._ctx.key_groups)]
        export = CheckpointExport(folder, stored, self._ctx.key_groups)
        return [
            export.part(one, self._ctx.key_groups, partial("{}-rows-{}-{}-{}".format, self._nonce, name, number))
            for number, one in enumerate(stored)
        ]

    def _blob_id(self, name: str, size: int) -> str:
        # Files of the restored snapshot keep the ids of their blobs, so that checkpoints do not write them again.
        return self._inherited.get(name) or f"{self._nonce}-{Path(name).stem}-{size}.sst"


class _UnwrittenSnapshot:
    """Held by a snapshot that has not been written yet. When it is dropped, the folder is not needed any more."""

    def __init__(self, pending: UnwrittenCheckpoint) -> None:
        self.pending = pending

    def __del__(self) -> None:
        self.pending.give_up()


def _alive_ids(stored: TableRows, keys: ByteRows, rows: ByteRows, last: bytes) -> tuple[ByteRows, bytes]:
    """Return the distinct keys among adjacent rows with live content, without `last`; and the last of these keys."""
    if stored.expiry is not None:
        if stored.descriptor is not None and stored.descriptor.kind == "list":
            elements, offsets = chunk_elements(rows)
            alive = np.diff(np.concatenate([[0], np.cumsum(stored.expiry.alive(elements))])[offsets]) > 0
        else:
            alive = stored.expiry.alive(rows)
        keys = keys.take(alive)
    if not len(keys):
        return keys, last
    ends = key_ends(keys, len(stored.key_schema), GROUP_BYTES)
    ids, _, _ = distinct(ByteRows(keys.data, keys.starts, ends - keys.starts))
    edges = ids.take(np.array([0, len(ids) - 1])).to_list()
    return (ids.take(slice(1, None)) if edges[0] == last else ids), edges[1]


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
