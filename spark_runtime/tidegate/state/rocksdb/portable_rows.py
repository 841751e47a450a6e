"""Rows of RocksDB tables in the form that every back end reads (`state_layout`), by piece, and the reverse."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from tidegate.snapshot.parts import KEY_GROUP_COLUMN, Blob, StatePart
from tidegate.state.keyed_state import StateDescriptor
from tidegate.state.keys.key_bytes import canonical_bytes
from tidegate.state.rocksdb.byte_rows import ByteRows, fixed_width_bytes, join_bytes
from tidegate.state.rocksdb.checkpoint_files import CheckpointFolder
from tidegate.state.rocksdb.database import RocksDatabase, RocksTable
from tidegate.state.rocksdb.database_keys import GROUP_BYTES, group_key, groups_of
from tidegate.state.rocksdb.key_columns import key_columns
from tidegate.state.rocksdb.list_chunks import chunk_elements
from tidegate.state.rocksdb.row_codec import RowCodec
from tidegate.state.rocksdb.run_chunks import Chunks, RunLayout
from tidegate.state.rocksdb.sorted_runs import Combine, SortedRuns
from tidegate.state.rocksdb.state_rows import Expiry
from tidegate.state.rocksdb.timer_tables import time_bytes, times_of
from tidegate.state.state_layout import KEY_PREFIX, MAP_PREFIX, TIME_COLUMN, VALUE_PREFIX

PIECE_BYTES = 8 * 2**20
"""Approximate bytes of a piece in RocksDB's files; uncompressed, it may be several times as large."""
READING_BYTES = 16 * 2**20
"""Block cache of a database that is opened to be exported."""
RESTORED_ROWS = 65536
"""Rows that are restored at a time."""


@dataclass(frozen=True)
class TableRows:
    """Location of the rows of one state, or of one kind of timers, in a table whose keys begin with the key group.

    Attributes:
        name: name of the part.
        table: name of the column family.
        schema: schema of the rows in snapshots.
        key_schema: the key columns.
        descriptor: descriptor of the state; None: timers.
        expiry: expiry of the state's rows; None: timers.
    """

    name: str
    table: str
    schema: pa.Schema
    key_schema: pa.Schema
    descriptor: StateDescriptor | None = None
    expiry: Expiry | None = None

    def to_table(self, keys: ByteRows, rows: ByteRows) -> pa.Table:
        """Return the live content of some keys and rows of the table."""
        if self.descriptor is not None and self.descriptor.kind == "list":
            elements, offsets = chunk_elements(rows)
            keys, rows = keys.take(np.repeat(np.arange(len(keys)), np.diff(offsets))), elements
        if self.expiry is not None and self.expiry.ttl is not None:
            alive = self.expiry.alive(rows)
            keys, rows = keys.take(alive), rows.take(alive)
        columns, ends = key_columns(keys, self.key_schema, GROUP_BYTES)
        arrays = [pa.array(groups_of(keys)), *columns.columns]
        if self.descriptor is None or self.expiry is None:
            arrays.append(pa.array(times_of(keys)))
        else:
            if len(self.descriptor.map_key):
                arrays += key_columns(ByteRows(keys.data, ends, keys.lengths), self.descriptor.map_key)[0].columns
            arrays += self.expiry.codec.decode(rows).columns
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def ids(self, batch: pa.RecordBatch) -> ByteRows:
        """Return the database keys of the keys in rows of `schema`."""
        names = [KEY_PREFIX + name for name in self.key_schema.names]
        groups = fixed_width_bytes(batch.column(KEY_GROUP_COLUMN).to_numpy().astype(">u2"))
        return join_bytes(groups, ByteRows.of(*canonical_bytes(batch, names)))

    def cells(self, batch: pa.RecordBatch) -> tuple[ByteRows, ByteRows]:
        """Return keys and rows for the table, for all kinds except lists."""
        ids = self.ids(batch)
        if self.descriptor is None:
            times = batch.column(TIME_COLUMN).to_numpy()
            return join_bytes(ids, time_bytes(times)), fixed_width_bytes(np.ones(len(ids), np.uint8))
        if len(self.descriptor.map_key):
            names = [MAP_PREFIX + name for name in self.descriptor.map_key.names]
            ids = join_bytes(ids, ByteRows.of(*canonical_bytes(batch, names)))
        return ids, self.rows(batch)

    def rows(self, batch: pa.RecordBatch) -> ByteRows:
        """Return the encoded values."""
        assert self.expiry is not None, "timers have no values"
        codec = self.expiry.codec
        names = [VALUE_PREFIX + field.name for field in list(codec.schema)[: self.expiry.column]]
        names += codec.schema.names[self.expiry.column :]
        arrays = [batch.column(name) for name in names]
        return codec.encode(pa.RecordBatch.from_arrays(arrays, schema=codec.schema))


@dataclass(frozen=True)
class RunRows(TableRows):
    """Location of sorted runs. The last key column is the start, which is not a part of the rows.

    Attributes:
        max_parallelism: number of key groups.
        combine: see `SortedRuns`.
    """

    max_parallelism: int = 1
    combine: Combine | None = None

    @property
    def layout(self) -> RunLayout:
        """Return the columns of the rows, with the names in `schema`."""
        fields = [field for field in self.schema if field.name != KEY_GROUP_COLUMN]
        start = len(self.key_schema) - 1
        names = tuple(field.name for field in fields[:start])
        return RunLayout(pa.schema([*fields[:start], *fields[start + 1 :]]), names, self.max_parallelism)

    def runs(self, database: RocksDatabase, key_groups: range) -> SortedRuns:
        """Return the runs in a database."""
        return SortedRuns(database.table(self.table), self.layout, key_groups, self.combine)

    def to_table(self, keys: ByteRows, rows: ByteRows) -> pa.Table:
        """See `TableRows`. Rows of one key are next to each other if they were combined."""
        chunks = Chunks.of(keys, rows)
        columns, numbers = chunks.rows(RowCodec(self.layout.schema))
        arrays = list(columns.columns)
        arrays.insert(len(self.key_schema) - 1, pa.array(chunks.starts_us()[numbers]))
        groups = pa.array(chunks.keys["group"].astype(np.uint16)[numbers])
        return pa.Table.from_arrays([groups, *arrays], schema=self.schema)


class CheckpointExport:
    """The database in a checkpoint folder, open for reading. Both are released when this object is no longer
    referenced.
    """

    def __init__(self, folder: CheckpointFolder, stored: Sequence[TableRows], key_groups: range) -> None:
        """Open the database, and combine the rows of sorted runs in it.

        Args:
            folder: folder with the database, whose files are links: they are never changed, only replaced.
            stored: location of all states and timers.
            key_groups: key groups of the subtask.
        """
        self._folder = folder
        runs = [one for one in stored if isinstance(one, RunRows)]
        self._database = RocksDatabase(folder.path, READING_BYTES, read_only=not runs)
        self._database.opened()
        self._names = set(self._database.table_names())
        for one in runs:
            combined = one.runs(self._database, key_groups)
            combined.load()
            combined.combine_all()
            # The size of files decides how many pieces there are.
            self._database.flush()

    def part(self, stored: TableRows, key_groups: range, id_of: Callable[[int], str]) -> StatePart:
        """Return the rows of one state as a part whose blobs are read from the database one at a time.

        Args:
            stored: location of the state's rows.
            key_groups: key groups of the subtask.
            id_of: returns the blob id for a piece's number.
        """
        empty = stored.schema.empty_table()
        if stored.table not in self._names:
            return StatePart(stored.name, "keyed", empty)
        table = self._database.table(stored.table)
        bounds = self._bounds(table, key_groups)
        if len(bounds) == 2:
            return StatePart(stored.name, "keyed", self._rows(stored, table, *bounds))
        blobs = [
            Blob(id_of(number), partial(self._rows, stored, table, lower, upper))
            for number, (lower, upper) in enumerate(zip(bounds, bounds[1:], strict=False))
        ]
        return StatePart(stored.name, "keyed", empty, blobs=tuple(blobs))

    def __del__(self) -> None:
        database = getattr(self, "_database", None)
        if database is not None:
            database.close()

    def _bounds(self, table: RocksTable, key_groups: range) -> list[bytes]:
        """Return the bounds of the pieces.

        They are at key groups, which are of similar size. Because some keys are much larger than others, they are also
        at first keys of RocksDB's files, which all have about the same size.
        """
        pieces = 1 + table.file_bytes() // PIECE_BYTES
        low, high = group_key(key_groups.start), group_key(key_groups.stop)
        if pieces == 1:
            return [low, high]
        wanted = min(pieces, len(key_groups))
        inner = {group_key(key_groups[len(key_groups) * number // wanted]) for number in range(wanted)}
        starts = sorted(one["start_key"] for one in self._database.files() if one["level"] > 0 and one["start_key"])
        inner.update(starts[:: max(1, len(starts) // pieces)])
        return [low, *sorted(key for key in inner if low < key < high), high]

    def _rows(self, stored: TableRows, table: RocksTable, lower: bytes, upper: bytes) -> pa.Table:
        tables = [stored.to_table(keys, rows) for keys, rows in table.scan(lower, upper)]
        return pa.concat_tables([stored.schema.empty_table(), *tables])


def rows_in_key_groups(part: StatePart, key_groups: range) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a part of format "rows" whose key group is one of `key_groups`, some at a time."""
    for table in part.tables():
        groups = table.column(KEY_GROUP_COLUMN).to_numpy()
        mask = (groups >= key_groups.start) & (groups < key_groups.stop)
        kept = table if mask.all() else table.filter(pa.array(mask))
        yield from kept.combine_chunks().to_batches(max_chunksize=RESTORED_ROWS)


def prefixed_columns(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the key columns of rows, under their own names."""
    arrays = [batch.column(KEY_PREFIX + name) for name in schema.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def schemas(stored: Sequence[TableRows]) -> Mapping[str, pa.Schema]:
    """Return name -> schema of its rows."""
    return {one.name: one.schema for one in stored}
